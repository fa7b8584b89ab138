"""One query a round over gradients, moments and metrics: what each record becomes, and what the
server makes of it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp.data import Examples
from jdp.events import GaussianSum, GroupedSums
from jdp.federated.iterative import (
  MAX_LOSS,
  Vectors,
  initial_values,
  iterative_training,
  record_vectors,
)
from jdp.models import cross_entropy, logistic_regression
from jdp.models.base import Model
from jdp.models.batch_norm import (
  VARIANCE_RANGE,
  Moments,
  Statistics,
  batch_norm_cnn,
  move,
  without_statistics,
)
from jdp.queries import average, gaussian_sum, grouped, no_privacy
from jdp.sampling import poisson
from tests.helpers import statistical

RECORDS, SIZE, CLASSES = 8, 3, 2
MODEL = batch_norm_cnn((4, 4), CLASSES)
BOUNDS = {"gradient": 0.05, "moments": 0.5, "metrics": 0.25}
VALUES = initial_values(MODEL, jax.random.key(5))
RNG = np.random.default_rng(0)
DATA = Examples(
  RNG.random((RECORDS, SIZE, 4, 4), np.float32),
  RNG.integers(0, CLASSES, (RECORDS, SIZE)).astype(np.int32),
  np.ones((RECORDS, SIZE), np.float32),
)
apply = jax.jit(MODEL.apply)
vectors_of = jax.jit(lambda record, values=VALUES: record_vectors(MODEL, values, record))


def query(stddevs):
  groups = {name: gaussian_sum(BOUNDS[name], stddevs[name]) for name in BOUNDS}
  return grouped(groups, Vectors(*BOUNDS))


def algorithm(sum_query, rate=0.1, **options):
  sampler = poisson(RECORDS, 1.0)
  return iterative_training(
    MODEL, average(sum_query, sampler.expected_size), sampler, optax.sgd(1.0), rate=rate, **options
  )


PLAIN = algorithm(no_privacy())
PLAIN_ROUND = jax.jit(PLAIN.round)
CLIPPED = algorithm(query(dict.fromkeys(BOUNDS, 0.0)))
CLIPPED_ROUND = jax.jit(CLIPPED.round)


def after(run_round, made, data=DATA, rounds=1):
  state = made.init(VALUES)
  for _ in range(rounds):
    state, events, _ = run_round(jax.random.key(0), jax.random.key(1), state, data)
  return state.params, events


def row(number, data=DATA):
  return jax.tree.map(lambda x: x[number], data)


def norm(tree):
  return np.sqrt(sum(np.sum(np.square(np.asarray(x, np.float64))) for x in jax.tree.leaves(tree)))


@pytest.mark.slow
def test_a_record_is_its_gradient_its_moments_and_its_metrics():
  record = row(0)
  got = vectors_of(record)
  model = Model(MODEL.init, lambda weights, x: MODEL.apply(weights, VALUES.statistics, x)[0])
  expected = jax.jit(jax.grad(cross_entropy(model)))(VALUES.weights, record)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got.gradient, expected)
  logits, normalised = apply(VALUES.weights, VALUES.statistics, record.inputs)
  for name, u in normalised.items():
    u = np.asarray(u, np.float64).reshape(-1, u.shape[-1])
    np.testing.assert_allclose(got.moments[name].shift, u.mean(0), atol=1e-5)
    np.testing.assert_allclose(got.moments[name].spread, (u**2).mean(0) - 1, atol=1e-5)
  assert float(got.metrics["accuracy"]) == pytest.approx(
    np.mean(np.argmax(logits, axis=1) == record.labels)
  )
  losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, record.labels)
  assert float(got.metrics["loss"]) == pytest.approx(float(jnp.mean(losses)) / MAX_LOSS, rel=1e-5)


def test_activations_are_normalised_by_the_servers_statistics_alone():
  statistics = {
    name: Statistics(s.mean + 0.3, s.variance * 4.0) for name, s in VALUES.statistics.items()
  }
  plain = apply(VALUES.weights, VALUES.statistics, DATA.inputs[0])[1]["Conv_0"]
  moved = apply(VALUES.weights, statistics, DATA.inputs[0])[1]["Conv_0"]
  np.testing.assert_allclose(moved, (plain - 0.3) / 2.0, atol=1e-5)
  alone = apply(VALUES.weights, VALUES.statistics, DATA.inputs[0, :1])[0]
  hostile = DATA.inputs[0].copy()
  hostile[1:] = np.nan
  np.testing.assert_allclose(
    apply(VALUES.weights, VALUES.statistics, hostile)[0][0], alone[0], atol=1e-5
  )


@pytest.mark.optimised
def test_what_padding_holds_changes_nothing():
  clean = row(0)._replace(mask=np.array([1, 1, 0], np.float32))
  inputs = clean.inputs.copy()
  inputs[2] = np.nan
  poisoned = clean._replace(inputs=inputs, labels=np.array([*clean.labels[:2], 99], np.int32))
  jax.tree.map(np.testing.assert_array_equal, vectors_of(clean), vectors_of(poisoned))
  assert norm(vectors_of(clean._replace(mask=np.zeros(SIZE, np.float32)))) == 0


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_statistics_become_those_of_the_mixture(rate):
  old, new = RNG.normal(2, 3, (20_000, 4)), RNG.normal(-1, 0.5, (20_000, 4))
  statistics = Statistics(*(jnp.asarray(x, jnp.float32) for x in (old.mean(0), old.var(0))))
  u = (new - old.mean(0)) / old.std(0)
  moments = Moments(*(jnp.asarray(x, jnp.float32) for x in (u.mean(0), (u**2).mean(0) - 1)))
  mean = (1 - rate) * old.mean(0) + rate * new.mean(0)
  square = (1 - rate) * (old**2).mean(0) + rate * (new**2).mean(0)
  moved = move(statistics, moments, rate)
  np.testing.assert_allclose(moved.mean, mean, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(moved.variance, square - mean**2, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "spread"), [(0.0, -1e6), (1e3, 0.0), (0.0, 1e12), (-1e5, -1e5)])
def test_variances_stay_positive_whatever_the_noise(shift, spread):
  statistics = Statistics(jnp.zeros(1), jnp.ones(1))
  for _ in range(300):
    before = statistics
    statistics = move(before, Moments(jnp.full(1, shift), jnp.full(1, spread)), 0.1)
    assert np.isfinite(statistics.mean).all()
    low = max(float(before.variance[0]) * 0.9, VARIANCE_RANGE[0])
    assert low * (1 - 1e-6) <= float(statistics.variance[0]) <= VARIANCE_RANGE[1]


@pytest.mark.slow
def test_without_privacy_statistics_reach_those_of_the_data():
  frozen = iterative_training(
    MODEL,
    average(no_privacy(), RECORDS),
    poisson(RECORDS, 1.0),
    optax.sgd(0.0),
    rate=0.1,
    chunk_size=RECORDS,
  )
  values, _ = after(jax.jit(frozen.round), frozen, rounds=200)
  _, u = apply(values.weights, values.statistics, DATA.inputs.reshape(-1, 4, 4))
  alive = np.asarray(values.statistics["Conv_0"].variance) > 1e-3
  activations = np.asarray(u["Conv_0"]).reshape(-1, alive.size)[:, alive]
  assert alive.any()
  np.testing.assert_allclose(activations.mean(0), 0, atol=1e-3)
  np.testing.assert_allclose(activations.var(0), 1, atol=1e-3)


@pytest.mark.slow
def test_without_privacy_a_round_steps_by_the_mean_gradient_and_tells_the_mean_metrics():
  values, events = after(PLAIN_ROUND, PLAIN)
  records = [vectors_of(row(number)) for number in range(RECORDS)]
  mean = jax.tree.map(lambda *x: np.mean(x, axis=0), *records)
  moved = jax.tree.map(lambda new, old: new - old, VALUES.weights, values.weights)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), moved, mean.gradient)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), values.metrics, mean.metrics
  )
  assert events[0].unit == "example"
  twice, _ = after(PLAIN_ROUND, PLAIN, rounds=2)
  later = jax.tree.map(
    lambda *x: np.mean(x, axis=0), *(vectors_of(row(n), values) for n in range(RECORDS))
  )
  # the mean of the first rounds
  both = (float(values.metrics["loss"]) + float(later.metrics["loss"])) / 2
  assert float(twice.metrics["loss"]) == pytest.approx(both, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30, 50.0])
def test_a_hostile_record_moves_each_group_by_at_most_its_share(poison):
  inputs = DATA.inputs.copy()
  inputs[-1] = poison
  inputs[-1, 0, :2] *= -1
  hostile = DATA._replace(inputs=inputs)
  absent = DATA._replace(mask=DATA.mask * (np.arange(RECORDS) < 7)[:, None])
  (with_it, events), (without, other_events) = (
    after(CLIPPED_ROUND, CLIPPED, data) for data in (hostile, absent)
  )
  assert events == other_events
  assert np.isfinite(norm(with_it))
  difference = jax.tree.map(
    lambda a, b: (np.asarray(a, np.float64) - b) * RECORDS, with_it, without
  )
  assert norm(difference.weights) <= BOUNDS["gradient"] * (1 + 1e-4)
  assert norm(difference.metrics) <= BOUNDS["metrics"] * (1 + 1e-4)
  # Statistics began at mean 0 and variance 1, so that a mean moves by rate * shift.
  means = {name: s.mean for name, s in difference.statistics.items()}
  assert norm(means) <= 0.1 * BOUNDS["moments"] * (1 + 1e-4)
  if np.isfinite(poison) and poison < 1e6:  # the bounds are met: a smaller clip would be seen
    assert norm(difference.weights) > 0.5 * BOUNDS["gradient"]
    assert norm(difference.metrics) > 0.5 * BOUNDS["metrics"]


@pytest.mark.slow
def test_noise_of_each_group_and_its_event():
  """Rates: see `statistical`. An error of 10 % in any group's standard deviation would be
  caught.
  """
  stddevs = {"gradient": 0.3, "moments": 2.0, "metrics": 0.7}
  noisy = query(stddevs)
  layer = Moments(jnp.zeros(4), jnp.zeros(4))
  zero = Vectors(
    {"w": jnp.zeros(8)}, {"layer": layer}, {"accuracy": jnp.float32(0), "loss": jnp.float32(0)}
  )
  state = noisy.init(zero)
  nothing = noisy.preprocess(jax.random.key(0), state, zero, jnp.float32(0))
  _, event, _ = noisy.finalize(jax.random.key(1), state, nothing)
  assert event == GroupedSums(
    tuple(GaussianSum(BOUNDS[name], stddevs[name]) for name in sorted(BOUNDS)),
    tuple(sorted(BOUNDS)),
  )
  draw = jax.jit(jax.vmap(lambda key: noisy.finalize(key, state, nothing)[0]))
  released = draw(jax.random.split(jax.random.key(2), 2000))
  for name, group in released._asdict().items():
    draws = np.concatenate(
      [np.asarray(x).reshape(2000, -1) for x in jax.tree.leaves(group)], axis=1
    )
    statistical.assert_normal_stddev(draws, stddevs[name], catches=0.1)


@pytest.mark.slow
def test_rounds_are_compiled_once_and_computed_twice_are_the_same_twice():
  made = algorithm(
    query({"gradient": 0.1, "moments": 1.0, "metrics": 0.5}), unit="user", relation="zero_out"
  )
  run_round = jax.jit(made.round)
  (values, events), (again, _) = (after(run_round, made, rounds=3) for _ in range(2))
  assert run_round._cache_size() == 1
  jax.tree.map(np.testing.assert_array_equal, values, again)
  assert (events[0].relation, events[0].unit) == ("zero_out", "user")


@pytest.mark.slow
def test_a_model_without_normalised_layers_has_no_moments():
  plain = logistic_regression((4, 4), CLASSES)
  values = initial_values(without_statistics(plain), jax.random.key(0), metrics=False)
  record = record_vectors(without_statistics(plain), values, row(1))
  assert (record.moments, record.metrics, values.statistics) == ({}, {}, {})
  expected = jax.grad(cross_entropy(plain))(values.weights, row(1))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), record.gradient, expected)


@pytest.mark.parametrize("rate", [0.0, 1.0, float("nan")])
def test_rates_out_of_range_are_refused(rate):
  with pytest.raises(ValueError, match="Expected rate to be a number in"):
    algorithm(no_privacy(), rate=rate)


@pytest.mark.parametrize("shape", [(3, 8), (8,)])
def test_images_that_are_too_small_are_refused(shape):
  with pytest.raises(ValueError, match="Expected images of at least 4 x 4 pixels"):
    batch_norm_cnn(shape, 2)
