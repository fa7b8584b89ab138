"""`train` runs every training procedure: as a loop by hand, killed and resumed, stopped early."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import accounting, data, ledger, mechanisms, models, queries, random, sampling
from jdp.federated import (
  adaptive_average,
  client_dropout,
  draw_and_discard,
  dropout,
  example_gradient,
  federated_averaging,
  fixed_denominator,
  flat_clipping,
  gradient_step,
  iterative_training,
  no_improvement,
  private_federated,
  train,
)
from jdp.federated.iterative import initial_values
from jdp.models.batch_norm import without_statistics
from tests.helpers.small_runs import InterruptedRunError
from tests.helpers.toy_rounds import interrupt_at

USERS, ROUNDS, STOP = 6, 4, 2
_rng = np.random.default_rng(0)
EXAMPLES = data.examples(_rng.random((12, 3), np.float32), np.arange(12) % 2)
CLIENTS = data.group(EXAMPLES, np.split(np.arange(12), USERS))
MODEL = models.logistic_regression((3,), 2)
PARAMS = MODEL.init(jax.random.key(0))
LOSS = models.cross_entropy(MODEL)
SGD, STEP = optax.sgd(1.0), gradient_step(LOSS, 0.5)
SAMPLER = sampling.poisson(USERS, 0.5, max_participations=3)
UPDATE = draw_and_discard.laplace_update(jax.grad(LOSS), 1.0, 0.1)
PASSES = draw_and_discard.passes(USERS, ROUNDS, rounds_per_pass=2)
INSTANCES = jax.tree.map(lambda x: jnp.stack([x, x]), PARAMS)
KEYS = {"noise_key": random.seeded_key(5), "data_key": jax.random.key(1)}


def averaging():
  return (
    federated_averaging(STEP, adaptive_average(1.0, 3.0, count_stddev=1.0), SAMPLER, SGD),
    PARAMS,
    CLIENTS,
  )


def private():
  mean = queries.average(queries.gaussian_sum(2.0, 2.0), 3.0)
  mechanism = mechanisms.priv_unit_linf(8, 4.0)
  return private_federated(STEP, mean, SAMPLER, SGD, mechanism=mechanism), PARAMS, CLIENTS


def sgd():
  mean = fixed_denominator(flat_clipping(1.0), 1.0, 6.0)
  sampler = sampling.balls_in_bins(12, 3)
  made = federated_averaging(example_gradient(LOSS), mean, sampler, SGD, unit="example")
  return made, PARAMS, EXAMPLES


def iterative():
  plain, mean = without_statistics(MODEL), queries.average(queries.gaussian_sum(1.0, 1.0), 3)
  return (
    iterative_training(plain, mean, SAMPLER, SGD),
    initial_values(plain, KEYS["data_key"]),
    CLIENTS,
  )


def vanishing():
  scheme = queries.calibrated()
  lost = dropout.with_calibrations(dropout.independent(USERS, 0.3), [0.0])
  noise = queries.distributed_sum(0.5, 4.0, scheme)
  made = client_dropout(STEP, noise, lost, SGD, num_clients=USERS, local_clip_norm=None)
  return made, PARAMS, CLIENTS


def drawing():
  return draw_and_discard.draw_and_discard(UPDATE, 2, PASSES), INSTANCES, CLIENTS


def batching():
  one = jax.tree.map(lambda x: x[:1], INSTANCES)
  return draw_and_discard.server_batching(UPDATE, 2, PASSES), one, CLIENTS


ALGORITHMS = [averaging, private, sgd, iterative, vanishing, drawing, batching]


@functools.cache
def by_hand(make):
  """The algorithm with its arguments, parameters and ledger after every round."""
  made, params, clients = make()
  step, state, spent, after = jax.jit(made.round), made.init(params), ledger.Ledger(), [params]
  for _ in range(ROUNDS):
    state, events, _ = step(*KEYS.values(), state, clients)
    for event in events:
      spent = spent.append(event)
    after.append(state.params)
  return (made, params, clients), after, spent


def assert_same(params, expected):
  for own, other in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
    np.testing.assert_array_equal(own, other)


@pytest.mark.optimised
@pytest.mark.sweep
@pytest.mark.parametrize("make", ALGORITHMS)
def test_killed_and_resumed_it_is_the_loop_by_hand(tmp_path, make):
  arguments, after, spent = by_hand(make)
  go = functools.partial(train, *arguments, num_rounds=ROUNDS, evaluate_every=STOP, **KEYS)
  with pytest.raises(InterruptedRunError):
    go(workdir=tmp_path / "run", callbacks=[interrupt_at(STOP)])
  result = go(workdir=tmp_path / "run")
  assert_same(result.params, after[-1])
  assert result.ledger == spent == ledger.load(tmp_path / "run/ledger.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("make", ALGORITHMS)
def test_stopped_early_in_memory_it_costs_what_all_planned_rounds_cost(make):
  arguments, after, spent = by_hand(make)
  result = train(
    *arguments, num_rounds=ROUNDS, evaluate_every=STOP, **KEYS, early_stop=lambda rows: True
  )
  assert (result.stopped, result.stopped_early, len(result.ledger)) == (False, True, len(spent))
  assert [event.number for event in result.ledger] == [event.number for event in spent]
  assert_same(result.params, after[STOP])
  observers = {event.observer for event in spent}
  cost = {o: accounting.epsilon(spent, 1e-5, observer=o) for o in observers}
  found = {o: accounting.epsilon(result.ledger, 1e-5, observer=o) for o in observers}
  assert found == pytest.approx(cost, rel=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("killed", "budget"), [(True, {"max_epsilon": 1e6}), (True, {}), (False, {})]
)
def test_it_stays_stopped_when_it_is_resumed(tmp_path, killed, budget):
  """Also without the rule, and if it was killed before its last checkpoint."""
  arguments, after, _ = by_hand(averaging)
  rule = no_improvement("constant", patience=1)
  seen = []

  def watch(progress):
    seen.append(progress.round)
    if killed and seen == [0, STOP]:
      raise InterruptedRunError

  def go(**changes):
    options = {"early_stop": rule, "delta": 1e-5, "callbacks": [watch], **KEYS, **budget, **changes}
    return train(
      *arguments, num_rounds=ROUNDS, evaluate_every=STOP, workdir=tmp_path / "run",
      evaluate=lambda params: {"constant": 1.0}, **options,
    )  # fmt: skip

  if killed:
    with pytest.raises(InterruptedRunError):
      go()
    assert len(ledger.load(tmp_path / "run/ledger.jsonl")) == ROUNDS  # recorded before it is shown
  first, again = go(), go(early_stop=None)
  for result in (first, again):
    assert_same(result.params, after[STOP])
    assert result.stopped_early
    last = result.metrics[-1]
    assert (last["round"], last["stopped_early"]) == (STOP, True)
    assert last["central_epsilon"] == accounting.epsilon(result.ledger, 1e-5)
    assert len(result.ledger) == ROUNDS
  assert max(seen) == STOP


def test_a_budget_bounds_what_an_early_stop_costs():
  """The rounds that the budget forbids could not have followed, and are not charged."""
  arguments, _, spent = by_hand(averaging)
  budget = accounting.epsilon(spent.rounds(0, 3), 1e-5)
  result = train(
    *arguments, num_rounds=ROUNDS, evaluate_every=STOP, **KEYS,
    early_stop=lambda rows: True, max_epsilon=budget, delta=1e-5,
  )  # fmt: skip
  assert (result.stopped, result.stopped_early, len(result.ledger)) == (False, True, 3)


@pytest.mark.slow
def test_the_rule_sees_no_epsilon_and_names_a_missing_metric():
  arguments, _, _ = by_hand(averaging)
  rows = []
  go = functools.partial(train, *arguments, num_rounds=ROUNDS, evaluate_every=1, delta=1e-5, **KEYS)
  go(evaluate=lambda params: {"one": 1.0}, early_stop=lambda seen: rows.append(seen))
  assert rows[-1] == [{"round": n, "one": 1.0} for n in range(ROUNDS)]
  with pytest.raises(ValueError, match="Expected a metric 'accuracy' to stop early by, got round"):
    go(early_stop=no_improvement("accuracy"))
