"""Rounds with correlated noise: planned, resumed, and on several devices, bit for bit."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import accounting, data, ledger, models, sampling
from jdp import matrix_factorization as mf
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.federated import (
  adaptive_average,
  add_updates,
  client_mesh,
  clipped_denominator,
  dp_fedavg,
  fixed_denominator,
  flat_clipping,
  per_layer_clipping,
  rounds,
  train,
)
from jdp.federated.engine.rounds import replicate
from jdp.federated.engine.sharded import shard
from jdp.random import binding, seeded_key
from tests.helpers.processes import two_process_scripts, two_processes_correlated
from tests.helpers.small_runs import InterruptedRunError
from tests.helpers.toy_rounds import interrupt_at

DELTA, ROUNDS, USERS = 1e-4, 9, 24
CLIENTS = np.linspace(-1, 1, USERS * 3, dtype=np.float32).reshape(USERS, 3)
PARAMS = {"a": jnp.zeros(3), "b": jnp.zeros((2, 2))}
STRATEGIES = {
  "buffered": lambda: mf.buffered_toeplitz(ROUNDS, buffers=2, min_separation=3),
  "banded_inverse": lambda: mf.banded_inverse_square_root(ROUNDS, 2),
  "tree": lambda: mf.tree(ROUNDS),
  "banded": lambda: mf.banded_toeplitz(ROUNDS, 3),
}


def client_fn(keys, params, own):
  """A client's record depends on the model and on its own data."""
  return {"a": own - params["a"], "b": jnp.outer(own[:2], own[1:])}, {}


def algorithm(name, mesh=None, query=None):
  query = query or fixed_denominator(
    flat_clipping(1.0), 2.0, 8.0, strategy=STRATEGIES[name](), min_separation=3
  )
  sampler = sampling.min_separation(USERS, 3, 3)
  return rounds(
    client_fn, query, sampler, add_updates(optax.sgd(0.5)), relation="zero_out", mesh=mesh
  )


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_several_devices_release_what_one_does(name):
  """Sums are made in float64, so they round to the same numbers; noise is the same to the bit."""
  found = []
  for mesh in (None, client_mesh(jax.devices()[:2])):
    own = algorithm(name, mesh)
    clients = CLIENTS if mesh is None else shard(CLIENTS, mesh)
    state = replicate(own.init(PARAMS), mesh)
    step = jax.jit(own.round)
    for _ in range(5):
      state, _, _ = step(jax.random.key(1), jax.random.key(2), state, clients)
    found.append(jax.device_get((state.params, state.query)))
  jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_run_that_was_killed_goes_on_to_the_same_bits(name, tmp_path):
  own = algorithm(name)
  arguments = {
    "noise_key": seeded_key(3), "data_key": seeded_key(4), "evaluate_every": 2, "delta": DELTA,
  }  # fmt: skip
  whole = train(own, PARAMS, CLIENTS, **arguments)
  with pytest.raises(InterruptedRunError):
    train(own, PARAMS, CLIENTS, **arguments, workdir=tmp_path / "run", callbacks=(interrupt_at(6),))
  resumed = train(own, PARAMS, CLIENTS, **arguments, workdir=tmp_path / "run")
  jax.tree.map(np.testing.assert_array_equal, whole.params, resumed.params)
  assert whole.ledger == resumed.ledger
  indices = [
    int(event.query.index) for event, _ in ledger.load(tmp_path / "run/ledger.jsonl").entries
  ]
  assert indices == list(range(ROUNDS))
  # What is to publish holds neither noise nor keys.
  kept = {"ledger.jsonl", "metrics.jsonl", "params.npz"}
  assert {path.name for path in (tmp_path / "run").iterdir()} == kept


@pytest.mark.optimised
@pytest.mark.slow
def test_two_processes_that_were_killed_release_what_one_does(tmp_path):
  """Noise is kept, checkpointed and drawn again as in one process that was not interrupted."""
  script = two_processes_correlated
  name = "two_processes_correlated.py"
  processes = two_process_scripts.start(name, tmp_path, devices=1)
  statuses = two_process_scripts.kill(processes, script.REACHED)
  assert statuses == [-signal.SIGKILL] * 2
  assert len(ledger.load(tmp_path / "run/ledger.jsonl")) == script.LAST
  processes = two_process_scripts.start(name, tmp_path, devices=1)
  alone = script.trained()
  two_process_scripts.finish(processes)
  found = np.load(tmp_path / "found.npz")
  for leaf in script.STRATEGIES:
    assert np.all(alone[leaf] != 0)
    np.testing.assert_array_equal(found[leaf], alone[leaf])


@pytest.mark.slow
def test_who_arrives_late_adds_nothing_before_and_moves_nobody(monkeypatch):
  """User 0 is missing in the first of its rounds, 0, 3 and 6. A further user is refused."""
  # Both runs get the same noise, so that their difference is that of the sums.
  monkeypatch.setattr(binding, "bind", lambda key, hidden: key)
  query = fixed_denominator(
    flat_clipping(1.0), 2.0, 8.0, strategy=STRATEGIES["banded"](), min_separation=3
  )
  own = rounds(
    lambda keys, params, own: (own["record"], {}),
    query,
    sampling.min_separation(USERS, 3, 3),
    add_updates(optax.sgd(1.0)),
    relation="zero_out",
    weight=lambda own: own["here"],
  )
  step = jax.jit(own.round)
  present = {"record": jnp.asarray(CLIENTS), "here": jnp.ones(USERS)}
  missing = {**present, "here": present["here"].at[0].set(0.0)}
  models, events = [], []
  for first in (present, missing):
    state = own.init(jnp.zeros(3))
    for number in range(6):
      clients = first if number == 0 else present
      state, spent, _ = step(jax.random.key(1), jax.random.key(2), state, clients)
    models.append(np.asarray(state.params))
    events.append(spent)
  clipped = CLIENTS[0] / np.linalg.norm(CLIENTS[0])
  spacing = 2.0 / 16 / 8  # of the grid that an average is released on
  np.testing.assert_allclose(models[0] - models[1], clipped / 8, atol=2 * spacing)
  assert jax.tree.all(jax.tree.map(lambda a, b: a == b, *events))
  more = jax.tree.map(lambda x: jnp.concatenate([x, x[:1]]), present)
  with pytest.raises(ValueError, match="Expected"):
    own.round(jax.random.key(1), jax.random.key(2), own.init(jnp.zeros(3)), more)


def test_no_more_rounds_than_the_strategy_has():
  with pytest.raises(ValueError, match="num_rounds of at most 9, for which the noise was planned"):
    train(algorithm("tree"), PARAMS, CLIENTS, num_rounds=10)


@pytest.mark.slow
def test_layers_and_schedules_cost_what_the_whole_update_does():
  """Every coordinate has the noise of the whole update, whatever its layer's own bound."""
  strategy = mf.square_root_toeplitz(ROUNDS, bands=3)
  schedule = optax.exponential_decay(1.0, 2, 0.5)
  costs = []
  for clipping in (
    flat_clipping(1.0),
    per_layer_clipping(PARAMS, 1.0, shares="dimension"),
    per_layer_clipping(PARAMS, schedule),
  ):
    query = fixed_denominator(clipping, 2.0, 8.0, strategy=strategy, min_separation=3)
    result = train(algorithm("", query=query), PARAMS, CLIENTS)
    costs.append(accounting.epsilon(result.ledger, DELTA, relation="zero_out"))
  np.testing.assert_allclose(costs, costs[0], rtol=1e-6)


@pytest.mark.slow
def test_an_adaptive_average_is_charged_as_one_run():
  strategy = mf.buffered_toeplitz(ROUNDS, buffers=2, min_separation=3)
  query = adaptive_average(2.0, 8.0, strategy=strategy, min_separation=3, count_stddev=2.0)
  result = train(algorithm("", query=query), PARAMS, CLIENTS)
  multiplier = 2.0 / strategy.sensitivity(min_separation=3)
  one = Round(PoissonSampling(1.0), GaussianSum(1.0, multiplier), "zero_out")
  found, expected = (
    accounting.epsilon(spent, DELTA, relation="zero_out")
    for spent in (result.ledger, ledger.Ledger().append(one))
  )
  assert found == pytest.approx(expected, rel=1e-6)


def test_what_does_not_fit_is_refused():
  with pytest.raises(ValueError, match="strategy with min_separation"):
    fixed_denominator(flat_clipping(1.0), 1.0, 8.0, min_separation=2)
  with pytest.raises(TypeError, match="strategy"):
    clipped_denominator(flat_clipping(1.0), 1.0, 8.0, strategy=mf.tree(3))


@pytest.mark.slow
def test_a_plan_counts_the_overflows_of_all_its_rounds():
  delta, users = 1e-3, 80
  sampler = sampling.cyclic_poisson(users, 4, 0.25, capacity=14)
  strategy = mf.banded_toeplitz(8, 4)
  assert 1e-6 < sampler.event(sampler.init()).overflow_probability < 1e-5
  model = models.logistic_regression((1,), 2)
  clients = data.clients_from_arrays(np.zeros((users, 1)), np.zeros(users, int), np.arange(users))
  algorithm = dp_fedavg(
    models.cross_entropy(model),
    clients,
    cohort_size=5,
    clip_norm=1.0,
    num_rounds=8,
    target_epsilon=2.0,
    delta=delta,
    sampler=sampler,
    strategy=strategy,
    relation="zero_out",
  )
  result = train(algorithm, model.init(jax.random.key(0)), clients, evaluate_every=8)
  assert 1.98 < accounting.epsilon(result.ledger, delta) <= 2.0
