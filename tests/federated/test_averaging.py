"""DP-FedAvg, DP-FedSGD and DP-SGD: noise and sensitivity of the average for every estimator and
clipping, and steps.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from jdp import accounting
from jdp.data import Examples
from jdp.events import GaussianSum, GroupedSums, LaplaceSum, NonPrivate, Round
from jdp.federated import example_gradient, gradient_step, local_sgd
from jdp.federated.engine.rounds import block, events_by_round
from jdp.federated.estimators import (
  adaptive_average,
  clipped_denominator,
  fixed_denominator,
  flat_clipping,
  per_layer_clipping,
  true_average,
)
from jdp.federated.fedavg import federated_averaging, weight_by_examples
from jdp.ledger import Ledger, subsampled_gaussian
from jdp.models import cross_entropy, half_precision, logistic_regression
from jdp.numerics import vectors
from jdp.queries import grouped
from jdp.sampling import fixed_size, poisson
from tests.helpers import statistical

USERS, EXAMPLES, FEATURES = 8, 4, 3
S, Z, WEIGHT = 0.5, 0.7, 4.0
PARAMS = {"a": {"w": jnp.zeros(FEATURES), "b": jnp.zeros(2)}, "c": {"w": jnp.zeros((2, 2))}}
ADAPTIVE = adaptive_average(2.0, 8.0, count_stddev=2.0)
DIM = FEATURES + 2 + 4
RNG = np.random.default_rng(0)
CLIENTS = Examples(
  RNG.normal(size=(USERS, EXAMPLES, DIM)).astype(np.float32),
  np.zeros((USERS, EXAMPLES), np.int32),
  (np.arange(EXAMPLES)[None] < RNG.integers(1, EXAMPLES + 1, (USERS, 1))).astype(np.float32),
)
CLIPPINGS = {
  "flat": lambda params: flat_clipping(S),
  "by layer": lambda params: per_layer_clipping(params, S, shares="dimension"),
}
ESTIMATORS = {"fixed": fixed_denominator, "clipped": clipped_denominator}
every_clipping = pytest.mark.parametrize("clipping", CLIPPINGS)
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)
every_relation = pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])


def loss(params, examples):
  """A bowl around the mean of a client's examples: the gradient is the way there, whatever the
  parameters' layers.
  """
  flat_params, _ = ravel_pytree(params)
  inputs = jnp.where(examples.mask[:, None] > 0, examples.inputs, 0.0)
  offsets = (flat_params[None] - inputs) * examples.mask[:, None]
  return 0.5 * jnp.sum(offsets**2) / jnp.maximum(jnp.sum(examples.mask), 1.0)


def algorithm(average, *, update=None, sampler=None, optimizer=None, **kwargs):
  """FedSGD of everybody, unless told otherwise."""
  return federated_averaging(
    update or gradient_step(loss, 1.0),
    average,
    sampler or poisson(USERS, 1.0),
    optimizer or optax.sgd(1.0),
    **kwargs,
  )


def run(made, clients=CLIENTS, *, params=PARAMS, rounds=1, seed=0):
  """How far the model moves, flat in float64, and the events of every round."""
  compiled, state, history = jax.jit(made.round), made.init(params), []
  for _ in range(rounds):
    state, events, _ = compiled(jax.random.key(seed), jax.random.key(seed + 1), state, clients)
    history.append(events)
  moved = jax.tree.map(jnp.subtract, state.params, params)
  return np.asarray(ravel_pytree(moved)[0], np.float64), history


def means(clients=CLIENTS):
  """Every client's difference after one step of rate 1 from zero: the mean of its examples."""
  inputs, mask = np.asarray(clients.inputs, np.float64), np.asarray(clients.mask, np.float64)
  return (inputs * mask[..., None]).sum(axis=1) / np.maximum(mask.sum(axis=1, keepdims=True), 1)


def unravel(vector):
  return ravel_pytree(PARAMS)[1](jnp.asarray(vector, jnp.float32))


def clipped(vector, clipping="flat"):
  """The definition, by groups of entries."""
  sizes = [DIM] if clipping == "flat" else [2 + FEATURES, 4]
  parts = np.split(vector, np.cumsum(sizes)[:-1])
  bounds = [S * np.sqrt(size / DIM) for size in sizes]
  return np.concatenate(
    [p * min(1, b / np.linalg.norm(p)) for p, b in zip(parts, bounds, strict=True)]
  )


def sensitivity(estimator, relation):
  """The most that one user moves the average, over S (Lemma 1, and its sharper form for one who
  comes or goes).
  """
  if estimator == "fixed":
    return (2 if relation == "replace_one" else 1) / WEIGHT
  return 2 / WEIGHT if relation == "replace_one" else 2 / (WEIGHT + 1)


@pytest.mark.slow
@every_relation
@every_clipping
@every_estimator
def test_of_zero_updates_the_average_is_noise_of_the_stated_deviation(
  estimator, clipping, relation
):
  """Rates: see `statistical`. An error of 2 % in the standard deviation would be caught."""
  params = {"a": {"w": jnp.zeros((40, 50))}, "c": {"w": jnp.zeros(18_000)}}
  query = ESTIMATORS[estimator](CLIPPINGS[clipping](params), Z, WEIGHT, relation=relation)
  state = query.init(params)
  nothing = query.preprocess(jax.random.key(0), state, params, jnp.float32(0))
  keys = jax.random.split(jax.random.key(1), 5)
  noise = [np.asarray(ravel_pytree(query.finalize(key, state, nothing)[0])[0]) for key in keys]
  statistical.assert_normal_stddev(noise, Z * S * sensitivity(estimator, relation), catches=0.02)
  statistical.assert_uncorrelated(np.stack(noise).T / np.std(noise), catches=0.06)
  _, event, _ = query.finalize(keys[0], state, nothing)
  sampling = (
    fixed_size(USERS, USERS).event(())
    if relation == "replace_one"
    else poisson(USERS, 1.0).event(())
  )
  spent = Ledger().append(Round(sampling, event, relation))
  assert accounting.epsilon(spent, 1e-5) == pytest.approx(
    accounting.epsilon(subsampled_gaussian(1.0, Z, 1), 1e-5)
  )


@pytest.mark.slow
def test_a_whole_round_of_users_without_examples_is_that_noise():
  """The same through sampling, cohort and server step; an error of 5 % would be caught."""
  empty = CLIENTS._replace(mask=np.zeros_like(CLIENTS.mask))
  made = algorithm(fixed_denominator(flat_clipping(S), Z, WEIGHT))
  state = made.init(PARAMS)
  with jax.debug_key_reuse(False):

    def one(key):
      return made.round(key, jax.random.key(1), state, empty)[0].params

    moved = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(0), 2000))
  statistical.assert_normal_stddev(
    np.concatenate([x.ravel() for x in jax.tree.leaves(moved)]), Z * S / WEIGHT, catches=0.05
  )


HOSTILE = {"nan": np.nan, "inf": np.inf, "1e30": 1e30, "1e-40": 1e-40}


@pytest.mark.slow
@every_clipping
@every_estimator
def test_a_hostile_user_moves_the_average_by_at_most_the_stated_sensitivity(estimator, clipping):
  """By whatever update, and whatever weight: the weight function reads it from the user's data."""
  average = ESTIMATORS[estimator](CLIPPINGS[clipping](PARAMS), 0.0, WEIGHT)
  made = algorithm(average, weight=lambda client: client.labels[0].astype(jnp.float32) / 2)
  compiled, state = jax.jit(made.round), made.init(PARAMS)

  def moved(clients):
    return np.asarray(
      ravel_pytree(compiled(jax.random.key(0), jax.random.key(1), state, clients)[0].params)[0]
    )

  # The others agree, and have exactly the least total weight: where the clipped denominator is at
  # its most sensitive.
  inputs = np.full_like(CLIENTS.inputs, 1.0)
  labels = np.where(np.arange(USERS)[:, None] < WEIGHT, 2, 0).astype(np.int32) * np.ones(
    (1, EXAMPLES), np.int32
  )
  others = Examples(inputs, labels, np.ones_like(CLIENTS.mask))
  without, reached = moved(others), 0.0
  for value in HOSTILE.values():
    for weight in (1, 2, 2**30, -5):
      poisoned = Examples(inputs.copy(), labels.copy(), others.mask)
      poisoned.inputs[-1], poisoned.labels[-1] = -value, weight
      with_user = moved(poisoned)
      assert np.all(np.isfinite(with_user))
      change = np.linalg.norm(with_user - without)
      assert change <= S * sensitivity(estimator, "add_remove") * (1 + 1e-5)
      reached = max(reached, change)
  # the bound is sharp
  assert reached == pytest.approx(S * sensitivity(estimator, "add_remove"), rel=1e-4)


@pytest.mark.slow
def test_drop_one_never_moves_the_fixed_denominator():
  made = algorithm(fixed_denominator(flat_clipping(S), 0.0, WEIGHT), weight=weight_by_examples(3))
  everybody, events = run(made)
  weights = np.minimum(CLIENTS.mask.sum(axis=1) / 3, 1)
  assert len(set(weights)) > 1
  for user in range(USERS):
    absent = CLIENTS._replace(
      mask=np.where(np.arange(USERS)[:, None] == user, 0.0, CLIENTS.mask).astype(np.float32)
    )
    without, other_events = run(made, absent)
    own = weights[user] * clipped(means()[user]) / WEIGHT
    np.testing.assert_allclose(everybody - without, own, atol=1e-6)
    assert events == other_events


@pytest.mark.slow
@pytest.mark.parametrize(
  ("clipping", "leasts"), [("flat", [1.0, 100.0]), ("by layer", [1.0])], ids=CLIPPINGS
)
def test_the_clipped_denominator_is_the_definition(clipping, leasts):
  weight = weight_by_examples(3)
  weights = np.minimum(CLIENTS.mask.sum(axis=1) / 3, 1)
  total = weights @ np.stack([clipped(v, clipping) for v in means()])
  for least in leasts:
    made = algorithm(clipped_denominator(CLIPPINGS[clipping](PARAMS), 0.0, least), weight=weight)
    np.testing.assert_allclose(run(made)[0], total / max(least, weights.sum()), atol=1e-6)


@pytest.mark.slow
def test_without_privacy_it_is_the_true_average_of_a_fixed_cohort():
  cohort = 3
  made = algorithm(
    true_average(),
    sampler=fixed_size(USERS, cohort),
    weight=weight_by_examples(3),
    relation="replace_one",
  )
  sampling_key = jax.random.split(jax.random.fold_in(jax.random.key(0), 0), 3)[0]
  members = np.asarray(fixed_size(USERS, cohort).sample(sampling_key, ())[0].indices)
  weights = np.minimum(CLIENTS.mask.sum(axis=1) / 3, 1)[members]
  moved, [(event,)] = run(made)
  np.testing.assert_allclose(
    moved, weights @ means()[members] / weights.sum(), rtol=1e-5, atol=1e-6
  )
  assert event == Round(fixed_size(USERS, cohort).event(()), NonPrivate(), "replace_one")
  assert accounting.epsilon(Ledger().append(event), 1e-5) == np.inf


@pytest.mark.slow
@every_clipping
def test_the_local_model_is_projected_after_every_batch(clipping):
  """One example a batch, in a bowl with steep and shallow sides: clipping once at the end leads
  elsewhere.
  """
  slopes, target = np.linspace(0.2, 1.2, DIM), np.full(DIM, 1.0)

  def uneven(params, examples):
    del examples
    return 0.5 * jnp.sum(jnp.asarray(slopes, jnp.float32) * (ravel_pytree(params)[0] - target) ** 2)

  client = jax.tree.map(lambda x: x[:1], CLIENTS._replace(mask=np.ones_like(CLIENTS.mask)))
  average = fixed_denominator(CLIPPINGS[clipping](PARAMS), 0.0, 1.0)
  update, ends = local_sgd(uneven, 1.0, num_epochs=2, batch_size=1), {}
  for project in (True, False):
    x = np.zeros(DIM)
    for _ in range(2 * EXAMPLES):
      x = x - slopes * (x - target)
      x = clipped(x, clipping) if project else x
    ends[project], _ = run(
      algorithm(average, update=update, sampler=poisson(1, 1.0), project=project), client
    )
    np.testing.assert_allclose(ends[project], clipped(x, clipping), atol=1e-5)
  assert np.linalg.norm(ends[True]) <= S * (1 + 1e-7)
  assert np.linalg.norm(ends[True] - ends[False]) > 0.01


@pytest.mark.slow
@every_clipping
@every_estimator
def test_a_schedule_lowers_bound_and_noise_together(estimator, clipping):
  """Local training is within the bound of its round, the noise is z times its sensitivity: rounds
  cost the same.
  """

  def lower(step):
    return jnp.where(step < 2, S, 0.1 * S)

  bound = flat_clipping(lower) if clipping == "flat" else per_layer_clipping(PARAMS, lower)
  query = ESTIMATORS[estimator](bound, Z, WEIGHT)
  far = {
    "a": {"w": jnp.full(FEATURES, 9.0), "b": jnp.full(2, 9.0)},
    "c": {"w": jnp.full((2, 2), 9.0)},
  }
  state, costs = query.init(PARAMS), []
  for expected in (S, S, 0.1 * S):
    assert float(vectors.l2_norm(query.clip(state, far))) == pytest.approx(expected, rel=1e-5)
    total = query.preprocess(jax.random.key(0), state, far, jnp.float32(1))
    _, event, state = query.finalize(jax.random.key(1), state, total)
    costs.append(
      accounting.epsilon(Ledger().append(Round(poisson(10, 0.5).event(()), event)), 1e-5)
    )
    parts = event.parts if isinstance(event, GroupedSums) else (event,)
    assert np.sqrt(sum(float(part.clip_norm) ** 2 for part in parts)) == pytest.approx(
      expected, rel=1e-6
    )
  expected = accounting.epsilon(subsampled_gaussian(0.5, Z, 1), 1e-5)
  assert costs == pytest.approx([expected] * 3, rel=1e-5)


@pytest.mark.optimised
@pytest.mark.slow
def test_a_block_of_rounds_is_those_rounds_bit_for_bit_and_its_events_count():

  def lower(step):
    return jnp.where(step < 1, S, 0.5 * S)

  made = algorithm(
    fixed_denominator(flat_clipping(lower), Z, WEIGHT), update=local_sgd(loss, 0.5, batch_size=2)
  )
  constant = algorithm(fixed_denominator(flat_clipping(S), Z, WEIGHT))
  arguments = (jax.random.key(0), jax.random.key(1))
  with jax.debug_key_reuse(False):
    state, events, _ = jax.jit(block(made, 3))(*arguments, made.init(PARAMS), CLIENTS)
    _, same_events, _ = jax.jit(block(constant, 3))(*arguments, constant.init(PARAMS), CLIENTS)
  moved, history = run(made, rounds=3)
  assert np.asarray(ravel_pytree(state.params)[0], np.float64).tolist() == moved.tolist()
  ledgers = [Ledger(), Ledger()]
  for row, (single,) in zip(events_by_round(events), history, strict=True):
    ledgers = [ledgers[0].append(*row), ledgers[1].append(single)]
  assert ledgers[0] == ledgers[1]
  assert [event.query for (event,) in events_by_round(same_events)] == [GaussianSum(S, Z * S)] * 3


@pytest.mark.slow
def test_adaptive_clipping_follows_the_norms_of_what_local_training_would_send():
  average = adaptive_average(
    0.01, float(USERS), initial_clip_norm=1e-3, learning_rate=1.0, count_stddev=0.1
  )
  made = algorithm(average, update=local_sgd(loss, 1e-3, batch_size=4))
  compiled, state, bounds = jax.jit(made.round), made.init(PARAMS), []
  for _ in range(12):
    bounds.append(float(state.query.clip_norm))
    state, (event,), _ = compiled(jax.random.key(0), jax.random.key(1), state, CLIENTS)
    assert float(event.query.parts[1].clip_norm) == bounds[-1]
  # It begins below half of the norms. Were the local models held within S, all would count
  # as unclipped: S would fall.
  norms = np.linalg.norm(1e-3 * means(), axis=1)
  assert bounds[0] < np.median(norms) < 3 * bounds[0]
  assert bounds[-1] == pytest.approx(np.median(norms), rel=0.3)


@pytest.mark.slow
def test_dp_sgd_clips_examples_and_says_so():
  points = Examples(
    *(x.reshape(-1, *x.shape[2:]) for x in CLIENTS._replace(mask=np.ones_like(CLIENTS.mask)))
  )
  count = len(points.labels)
  made = federated_averaging(
    example_gradient(loss),
    fixed_denominator(flat_clipping(S), 0.0, 10.0),
    poisson(count, 1.0),
    optax.sgd(0.3),
    unit="example",
  )
  moved, [(event,)] = run(made, points)
  gradients = np.stack([clipped(-x) for x in points.inputs.astype(np.float64)])
  np.testing.assert_allclose(moved, -0.3 * gradients.sum(axis=0) / 10, atol=1e-5)
  assert event == Round(poisson(count, 1.0).event(()), GaussianSum(S, 0.0), unit="example")


@pytest.mark.slow
def test_the_server_optimiser_steps_on_minus_the_average():
  average, optimizer = fixed_denominator(flat_clipping(S), 0.0, WEIGHT), optax.adam(0.1)
  plain, _ = run(algorithm(average))
  with jax.numpy_dtype_promotion("standard"):  # optax's adam promotes
    moved, _ = run(algorithm(average, optimizer=optimizer))
    updates, _ = optimizer.update(unravel(-plain), optimizer.init(PARAMS), PARAMS)
  np.testing.assert_allclose(moved, ravel_pytree(updates)[0], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_one_program_serves_every_round():
  traces = []

  def counted(params, examples):
    traces.append(1)
    return loss(params, examples)

  made = algorithm(
    clipped_denominator(flat_clipping(optax.linear_schedule(S, 0.1, 5)), Z, WEIGHT),
    update=local_sgd(counted, 0.5, batch_size=2),
    sampler=poisson(USERS, 0.5),
  )
  compiled, state = jax.jit(made.round), made.init(PARAMS)
  state, *_ = compiled(jax.random.key(0), jax.random.key(1), state, CLIENTS)
  once = len(traces)
  for _ in range(3):
    state, *_ = compiled(jax.random.key(0), jax.random.key(1), state, CLIENTS)
  assert len(traces) == once
  assert compiled._cache_size() == 1


@pytest.mark.slow
def test_diagnostics_are_the_mean_norm_and_the_size():
  made = algorithm(fixed_denominator(flat_clipping(S), 0.0, WEIGHT), diagnose=True)
  _, _, diagnostics = jax.jit(made.round)(
    jax.random.key(0), jax.random.key(1), made.init(PARAMS), CLIENTS
  )
  assert float(diagnostics["cohort_size"]) == USERS
  assert float(diagnostics["update_norm"]) == pytest.approx(
    np.linalg.norm(means(), axis=1).mean(), rel=1e-5
  )
  clipped = np.linalg.norm(means(), axis=1) > S * (1 - 1e-3)
  assert float(diagnostics["clipped"]) == pytest.approx(clipped.mean())


@pytest.mark.parametrize(
  "query",
  [ADAPTIVE, true_average(), grouped({"a": ADAPTIVE, "c": ADAPTIVE}, {"a": "a", "c": "c"})],
  ids=["adaptive", "true", "grouped"],
)
def test_a_bound_that_is_not_known_beforehand_clips_no_share(query):
  """A share of 0 would be told as advice to clip more."""
  made = algorithm(query, diagnose=True)
  *_, diagnostics = jax.eval_shape(
    made.round, jax.random.key(0), jax.random.key(1), made.init(PARAMS), CLIENTS
  )
  assert set(diagnostics) == {"update_norm", "cohort_size"}


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize(
  ("kwargs", "name"),
  [
    ({"noise_multiplier": -1.0}, "noise_multiplier"),
    ({"noise_multiplier": np.nan}, "noise_multiplier"),
    ({"weight": 0.0}, ""),
    ({"weight": np.nan}, ""),
  ],
)
@pytest.mark.parametrize("bound", [S, lambda step: S], ids=["number", "schedule"])
def test_bad_numbers_are_refused(estimator, kwargs, name, bound):
  kwargs = {"noise_multiplier": Z, "weight": WEIGHT} | kwargs
  with pytest.raises(ValueError, match=f"Expected {name}"):
    estimator(flat_clipping(bound), kwargs["noise_multiplier"], kwargs["weight"])
  with pytest.raises(ValueError, match="Expected cap to be a finite number > 0"):
    weight_by_examples(0)


@pytest.mark.slow
def test_clients_in_half_precision_are_clipped_and_summed_in_single():
  inputs = RNG.random((3, 2, 16, 16)).astype(np.float32)
  labels = np.array([[0, 1], [1, 1], [0, 0]], np.int32)
  images = Examples(inputs, labels, np.ones((3, 2), np.float32))
  single = logistic_regression((16, 16), 2)
  ends = []
  for model in (single, half_precision(single)):
    update = gradient_step(cross_entropy(model), 1.0)
    average = fixed_denominator(flat_clipping(S), 0.0, 1.0)
    made = algorithm(average, update=update, sampler=poisson(3, 1.0))
    params = model.init(jax.random.key(0))
    program = jax.jit(made.round).lower(
      jax.random.key(0), jax.random.key(1), made.init(params), images
    )
    ends.append((run(made, images, params=params)[0], "bf16" in program.as_text()))
  (full, no), (half, yes) = ends
  assert (no, yes) == (False, True)
  assert 0 < np.linalg.norm(full - half) < 0.02 * np.linalg.norm(full)
  assert np.linalg.norm(half) <= 3 * S


def test_ghost_norms_need_a_gradient_step():
  with pytest.raises(ValueError, match="Expected a gradient_step with ghost_norms"):
    algorithm(
      fixed_denominator(flat_clipping(S), Z, WEIGHT),
      update=local_sgd(loss, 1.0, batch_size=1),
      ghost_norms=True,
    )


def test_only_gaussian_releases_have_a_noise_multiplier():
  assert accounting.noise_multiplier(GaussianSum(2.0, 1.0), "replace_one") == 0.25
  with pytest.raises(ValueError, match="Expected a release with Gaussian noise, got LaplaceSum"):
    accounting.noise_multiplier(LaplaceSum(1.0, 1.0), "add_remove")
