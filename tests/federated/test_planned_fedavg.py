"""DP-FedAvg in one call: planned, within its target, and the procedure made by hand."""

import equinox as eqx
import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jdp import accounting, data, matrix_factorization, models, sampling
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.federated import (
  dp_fedavg,
  federated_averaging,
  fixed_denominator,
  flat_clipping,
  local_sgd,
  train,
)
from jdp.ledger import Ledger

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, 400)
INPUTS = RNG.normal(size=(400, 3)) + LABELS[:, None]
CLIENTS = data.clients_from_arrays(INPUTS, LABELS, np.sort(RNG.integers(0, 40, 400)))
MODEL = models.logistic_regression((3,), 2)
LOSS = models.cross_entropy(MODEL)
PLAN = {"cohort_size": 8, "clip_norm": 0.5, "num_rounds": 3}
TARGET = {"target_epsilon": 6.0, "delta": 1e-3}
LARGE_TARGET = {"target_epsilon": 100.0, "delta": 1e-3}
COINS = {"strategy": matrix_factorization.identity(3), "relation": "zero_out"}


@pytest.mark.sweep
@pytest.mark.parametrize("before", [2, 0])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one", "zero_out", "truncated"])
def test_the_whole_run_is_within_its_target_and_within_one_percent_of_it(relation, before):
  sampler = sampling.fixed_size(40, 8) if relation == "replace_one" else None
  if relation == "truncated":
    relation, sampler = "add_remove", sampling.truncated_poisson(40, 0.2, capacity=9)
  earlier = Round(PoissonSampling(1.0), GaussianSum(1.0, 9.0), relation)
  prior = Ledger().append(earlier, count=before)
  algorithm = dp_fedavg(
    LOSS, CLIENTS, **PLAN, **TARGET, relation=relation, prior=prior, sampler=sampler
  )
  result = train(algorithm, MODEL.init(jax.random.key(0)), CLIENTS, prior=prior)
  epsilon = accounting.epsilon(result.ledger, 1e-3, relation=relation)
  assert len(result.ledger) == 3 + before
  assert 5.94 < epsilon <= 6.0


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("sampler", "turns"),
  [
    (sampling.min_separation(40, 4, 3), 3),
    (sampling.balls_in_bins(40, 4, capacity=38), 3),
    (sampling.random_allocation(40, 8, 2), 4),
    (sampling.shuffled(40, 10), 3),
  ],
  ids=lambda value: type(value).__name__,
)
def test_turns_that_a_sampler_promises_are_planned_and_charged_alike(sampler, turns):
  """11 of 12 rounds, in the middle of an epoch: one Gaussian sum of independent noise a turn."""
  algorithm = dp_fedavg(
    LOSS,
    CLIENTS,
    **PLAN | {"num_rounds": 11},
    **TARGET,
    relation="zero_out",
    sampler=sampler,
    strategy=matrix_factorization.identity(12),
  )
  result = train(algorithm, MODEL.init(jax.random.key(0)), CLIENTS)
  z = result.ledger.entries[0][0].query.noise_multiplier
  assert 5.94 < accounting.epsilon(result.ledger, 1e-3) <= 6.0
  exact = accounting.gaussian_epsilon(z / turns**0.5, 1e-3)
  assert accounting.epsilon(result.ledger, 1e-3, accountant="pld") == pytest.approx(exact, rel=1e-2)


@pytest.mark.optimised
@pytest.mark.slow
def test_it_is_the_procedure_made_by_hand(key):
  by_hand = federated_averaging(
    local_sgd(LOSS, 0.1, batch_size=10),
    fixed_denominator(flat_clipping(0.5), 1.3, 8),
    sampling.poisson(40, 0.2),
    optax.sgd(1.0),
  )
  noise_key, data_key = jax.random.split(key)
  results = [
    train(algorithm, MODEL.init(key), CLIENTS, num_rounds=3, noise_key=noise_key, data_key=data_key)
    for algorithm in (by_hand, dp_fedavg(LOSS, CLIENTS, **PLAN, noise_multiplier=1.3))
  ]
  jax.tree.map(np.testing.assert_array_equal, *(result.params for result in results))
  assert results[0].ledger == results[1].ledger


@pytest.mark.slow
def test_no_more_rounds_than_planned_and_fewer_on_request():
  algorithm = dp_fedavg(LOSS, CLIENTS, **PLAN, noise_multiplier=1.0)
  params = MODEL.init(jax.random.key(0))
  with pytest.raises(ValueError, match="num_rounds of at most 3, for which the noise was planned"):
    train(algorithm, params, CLIENTS, num_rounds=4)
  assert len(train(algorithm, params, CLIENTS, num_rounds=2).ledger) == 2


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({}, "neither"),
    ({"noise_multiplier": 1.0, **TARGET}, "both"),
    ({"target_epsilon": 6.0}, "Expected delta"),
    ({**TARGET, "cohort_size": 41}, "at most 40 users"),
    ({**TARGET, "clip_norm": -1.0}, "clip_norm"),
    ({**TARGET, "num_rounds": 0}, "num_rounds"),
    ({**TARGET, "sampler": sampling.poisson(41, 0.2)}, "sampler of 40 users"),
    ({**TARGET, "sampler": sampling.shuffled(40, 8)}, "rounds are alike"),
    pytest.param(
      {**LARGE_TARGET, "sampler": sampling.poisson(40, 0.2, capacity=25)},
      "larger capacity",
      marks=pytest.mark.slow,
    ),
    pytest.param(
      {**LARGE_TARGET, **COINS, "sampler": sampling.cyclic_poisson(40, 1, 0.2, capacity=25)},
      "larger capacity",
      marks=pytest.mark.slow,
    ),
  ],
)
def test_plans_that_do_not_fit_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    dp_fedavg(LOSS, CLIENTS, **PLAN | changes)


@pytest.mark.parametrize(
  "changes",
  [
    {"sampler": sampling.poisson(40, 0.2, capacity=40)},
    {**COINS, "sampler": sampling.cyclic_poisson(40, 1, 0.2, capacity=40)},
  ],
)
def test_slots_for_all_let_a_large_target_be_planned(changes):
  algorithm = dp_fedavg(LOSS, CLIENTS, **PLAN, **LARGE_TARGET, **changes)
  assert algorithm.num_rounds == PLAN["num_rounds"]


class Linen(nn.Module):
  @nn.compact
  def __call__(self, x):
    return nn.Dense(2)(nn.relu(nn.Dense(8)(x)))


class Nnx(nnx.Module):
  def __init__(self, rngs):
    self.hidden = nnx.Linear(3, 8, rngs=rngs)
    self.dropout = nnx.Dropout(0.2, rngs=rngs)
    self.out = nnx.Linear(8, 2, rngs=rngs)

  def __call__(self, x):
    return self.out(self.dropout(nnx.relu(self.hidden(x))))


@pytest.mark.slow
@pytest.mark.parametrize(
  "make",
  [
    lambda: models.from_flax(Linen(), (3,)),
    lambda: models.from_flax(Nnx, (3,)),
    lambda: models.from_equinox(lambda key: eqx.nn.MLP(3, 2, 8, 1, key=key), (3,)),
  ],
)
def test_modules_of_each_library_learn_on_users_of_unequal_sizes(key, make):
  """With little noise the loss falls, and below the log 2 = 0.69 of a model that knows nothing."""
  model = make()
  loss = models.cross_entropy(model)
  everything = data.examples(INPUTS, LABELS)
  algorithm = dp_fedavg(
    loss, CLIENTS, cohort_size=20, clip_norm=1.0, num_rounds=25, noise_multiplier=0.01
  )
  result = train(
    algorithm, model.init(key), CLIENTS,
    evaluate=lambda params: {"loss": loss(params, everything)}, evaluate_every=25,
  )  # fmt: skip
  first, last = (row["loss"] for row in result.metrics)
  assert last < min(0.55, first - 0.05)
