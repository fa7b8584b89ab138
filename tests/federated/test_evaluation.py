"""Metrics of users: each counts once, whatever its data; protected ones are noised and charged."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import accounting, data, ledger, random, sampling
from jdp.events import CyclicPoissonSampling, GaussianSum, PoissonSampling, Round
from jdp.federated import evaluate_privately, evaluate_users
from jdp.sampling.registry import registered

VALUES = np.array([[0.25], [0.5], [np.nan], [1e30], [-3.0], [1.0]], np.float32)
USERS = data.Examples(VALUES[:, None], np.zeros((6, 1), np.int32), np.ones((6, 1), np.float32))
PACKED = data.clients_from_pairs([(np.full((n, 1), n / 4), np.zeros(n)) for n in (1, 4, 2)])
KEY = random.seeded_key(3)


def first(params, user):
  return {"first": user.inputs[0, 0] + params, "half": jnp.float32(0.5)}


privately = functools.partial(evaluate_privately, first, jnp.float32(0), USERS)


def test_every_public_user_counts_once_whatever_its_size():
  found = evaluate_users(first, jnp.float32(0), PACKED)
  assert found["first"] == pytest.approx((0.25 + 1 + 0.5) / 3)
  assert found["half"] == 0.5


@pytest.mark.slow
def test_a_user_moves_the_sum_by_at_most_its_bound_and_the_denominator_is_public():
  """Without noise: values beyond [0, 1] are clipped, NaN is 0, and half of all are expected."""
  found = privately(noise_multiplier=0.0, noise_key=KEY)
  assert found.metrics["first"] == pytest.approx((0.25 + 0.5 + 0 + 1 + 0 + 1) / 6, rel=1e-5)
  assert found.metrics["half"] == pytest.approx(0.5, rel=1e-5)
  half = privately(
    noise_multiplier=0.0, sampler=sampling.poisson(6, 0.5), noise_key=random.seeded_key(1)
  )
  count = half.metrics["half"] / (0.5 / 3)  # of a sample, over the 3 that are expected
  assert count == pytest.approx(round(count), rel=1e-5)


def many(params, user):
  return {f"metric {number}": jnp.float32(1) for number in range(100)}


@pytest.mark.slow
def test_the_noise_is_that_of_the_event_which_is_in_the_ledger():
  """100 draws: their deviation is within 40 % of the one stated but with a chance of 1e-8."""
  before = ledger.subsampled_gaussian(0.1, 1.0, 5)
  found = evaluate_privately(
    many, jnp.float32(0), USERS, noise_multiplier=30.0, ledger=before, noise_key=KEY
  )
  assert found.stddev == pytest.approx(30.0 * 10 / 6)
  noise = np.array(list(found.metrics.values())) - 1
  assert np.std(noise) / found.stddev == pytest.approx(1, abs=0.4)
  event = Round(PoissonSampling(1.0, population=6), GaussianSum(10.0, 300.0))
  expected = accounting.epsilon(before.append(event), 1e-5)
  assert accounting.epsilon(found.ledger, 1e-5) == pytest.approx(expected)
  assert len(found.ledger) == 6
  assert found.ledger.caveats  # the key is seeded
  own = evaluate_privately(many, jnp.float32(0), USERS, noise_multiplier=30.0)
  assert not own.ledger.caveats


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"noise_multiplier": -1.0}, "noise_multiplier"),
    ({"metric": lambda params, user: {}}, "Expected a metric that returns name"),
    ({"sampler": sampling.poisson(7, 0.5)}, "population of 7"),
    ({"relation": "neighbours"}, "relation"),
  ],
)
def test_what_cannot_be_evaluated_is_refused(changes, message):
  arguments = {"metric": first, "noise_multiplier": 1.0, **changes}
  with pytest.raises(ValueError, match=message):
    evaluate_privately(params=jnp.float32(0), clients=USERS, **arguments)


@pytest.mark.slow
def test_a_noised_metric_of_a_replaced_user_costs_twice_the_noise():
  arguments = {"noise_multiplier": 2.0, "sampler": sampling.fixed_size(6, 3), "noise_key": KEY}
  one = privately(relation="replace_one", **arguments)
  assert one.stddev == pytest.approx(2 * 2.0 * np.sqrt(2) / 3)
  (event,) = jax.tree.leaves(list(one.ledger), is_leaf=lambda x: isinstance(x, Round))
  assert accounting.noise_multiplier(event.query, "replace_one") == pytest.approx(2.0)


def evaluated(sampler, before, seed):
  how = {"sampler": sampler, "relation": "zero_out", "noise_key": random.seeded_key(seed)}
  return privately(noise_multiplier=2.0, ledger=before, **how).ledger


@pytest.mark.parametrize(
  "sampler",
  [
    sampling.poisson(6, 1.0, max_participations=1),
    sampling.shuffled(6, 4, keep_partial=True),
    sampling.min_separation(6, 2, 1),
    sampling.cyclic_poisson(6, 2, 1.0),
    sampling.cyclic_poisson(6, 2, 1.0)._replace(
      event=lambda state: CyclicPoissonSampling(2, 1.0, 6, by_identity=True)
    ),
  ],
)
def test_a_sampler_whose_first_round_is_not_like_the_others_is_refused(sampler):
  """Its cap would make later evaluations free, and its mean size is not that of one round."""
  with pytest.raises(ValueError, match="Expected a sampler whose rounds are alike"):
    evaluated(sampler, ledger.Ledger(), 0)


TAKEN = (
  *("poisson", "truncated_poisson", "fixed_size"),
  *("shuffled", "balls_in_bins", "random_allocation"),
)


@pytest.mark.parametrize("name", TAKEN)
def test_every_evaluation_costs_as_a_round_of_its_own(name):
  sampler = registered()[name].make(6, 2)
  alone = [evaluated(sampler, ledger.Ledger(), seed) for seed in range(3)]
  found = ledger.Ledger()
  for seed in range(3):
    found = evaluated(sampler, found, seed)
  epsilon, whole = accounting.epsilon(found, 1e-5), alone[0] + alone[1] + alone[2]
  assert epsilon == accounting.epsilon(whole, 1e-5)
  assert epsilon > 1.2 * accounting.epsilon(alone[0], 1e-5)


def test_every_other_registered_sampler_is_refused():
  for name in registered().keys() - {*TAKEN}:
    with pytest.raises(ValueError, match="Expected a sampler whose rounds are alike"):
      evaluated(registered()[name].make(6, 2), ledger.Ledger(), 0)


def test_the_key_of_a_run_in_the_ledger_is_refused():
  once = privately(noise_multiplier=1.0, noise_key=KEY)
  with pytest.raises(ValueError, match="Expected ledgers of different runs"):
    privately(noise_multiplier=1.0, ledger=once.ledger, noise_key=KEY)
