"""What every local mechanism promises. A new mechanism joins by one line in MECHANISMS."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statistical

from jdp.guarantees import Relation, Unit
from jdp.mechanisms import (
  fast_proj_unit,
  gaussian,
  hemisphere,
  l2_laplace,
  laplace,
  on_grid,
  priv_unit,
  priv_unit_g,
  priv_unit_linf,
  proj_unit,
  scalar_dp,
  scalar_rel_dp,
  separated,
)

MECHANISMS = {
  "priv_unit": priv_unit(30, 4.0),
  "priv_unit, many dimensions": priv_unit(300, 4.0),
  "priv_unit, gamma 0": priv_unit(30, 1.0, gamma=0.0),
  "scalar_dp": scalar_dp(2.0, 1.0),
  "separated": separated(priv_unit(30, 4.0), scalar_dp(2.0, 1.0)),
  "on_grid": on_grid(priv_unit(30, 4.0), 0.25),
  "on_grid, at random": on_grid(scalar_dp(2.0, 1.0), 0.25, unbiased=True),
  "priv_unit_linf": priv_unit_linf(30, 4.0),
  "priv_unit_linf, one vertex in the cap": priv_unit_linf(5, 2.0, kappa=4),
  "scalar_rel_dp": scalar_rel_dp(3.0, 1.0, num_levels=4, min_value=0.1),
  "laplace": laplace(4.0, 2.0),
  "laplace, a matrix": laplace(40.0, 2.0, shape=(4, 5)),
  "l2_laplace": l2_laplace(8.0, 2.0, shape=(10,)),
  "gaussian": gaussian(1.0, 2.0, 1e-5, shape=(30,)),
  "hemisphere": hemisphere(30, 4.0),
  "priv_unit_g": priv_unit_g(30, 4.0),
  "proj_unit": proj_unit(30, 4.0, 5),
  "fast_proj_unit": fast_proj_unit(100, 4.0, 16),
}
BIASED = {"on_grid"}  # rounding to nearest
BATCH = 1000  # releases at once, in every test: one program each
MSE_IS_A_BOUND = BIASED | {"on_grid, at random", "priv_unit_linf", "priv_unit_linf, one vertex in the cap"}


@pytest.fixture(params=MECHANISMS, name="case")
def _case(request):
  mechanism = MECHANISMS[request.param]
  value = jnp.asarray(np.random.default_rng(0).uniform(0.01, 0.2, mechanism.shape), jnp.float32)
  return mechanism, value


@functools.cache
def alone(mechanism):
  """(key, value) -> estimate, compiled once."""
  return jax.jit(mechanism.privatize)


@functools.cache
def releases(mechanism):
  """(keys [n], values [n, ...] or one value) -> estimates [n, ...], compiled once for n = BATCH."""
  privatize = jax.jit(jax.vmap(mechanism.privatize))
  return lambda keys, values: privatize(keys, jnp.broadcast_to(values, (len(keys), *mechanism.shape)))


def keys():
  return jax.random.split(jax.random.key(11), BATCH)


def inputs(mechanism):
  """Values of norm 1, in every mechanism's domain: along an axis, along the diagonal, and neither."""
  ones = np.ones(mechanism.shape)
  axis = (np.arange(ones.size) == ones.size // 2).astype(float).reshape(mechanism.shape)
  for value in (axis, ones, np.random.default_rng(3).uniform(0.1, 1, mechanism.shape)):
    value = jnp.asarray(value, jnp.float32)
    yield value / mechanism.norm(value)


def test_estimate_keeps_the_shape_and_is_float32(case):
  mechanism, value = case
  estimate = jax.eval_shape(mechanism.privatize, jax.random.key(0), value)
  assert estimate.shape == value.shape
  assert estimate.dtype == jnp.float32


def test_privatize_is_decode_after_encode_compiled_or_not(case):
  mechanism, value = case
  key = jax.random.key(0)
  expected = mechanism.decode(mechanism.encode(key, value))
  np.testing.assert_allclose(alone(mechanism)(jax.random.clone(key), value), expected, rtol=1e-5, atol=1e-5)


def test_vmap_equals_loop(case):
  mechanism, value = case
  batch = releases(mechanism)(keys(), value)
  loop = np.stack([alone(mechanism)(key, value) for key in keys()[:16]])
  np.testing.assert_allclose(batch[:16], loop, rtol=1e-5, atol=1e-5)


def test_clients_of_a_batch_do_not_touch_each_other(case):
  mechanism, value = case
  values = jnp.broadcast_to(value, (BATCH, *mechanism.shape))
  changed = releases(mechanism)(keys(), values.at[2].set(jnp.nan))
  unchanged = releases(mechanism)(keys(), value)
  others = np.arange(BATCH) != 2
  np.testing.assert_array_equal(np.asarray(changed)[others], np.asarray(unchanged)[others])


def test_same_key_same_report_and_different_keys_differ(case):
  mechanism, value = case
  first, second = (releases(mechanism)(keys(), value) for _ in range(2))
  np.testing.assert_array_equal(first, second)
  assert len(np.unique(np.asarray(first).reshape(len(first), -1), axis=0)) > 1


def test_guarantee_is_finite_per_value_under_replacement(case):
  guarantee = case[0].guarantee
  assert guarantee.relation is Relation.REPLACE_ONE
  assert guarantee.unit is Unit.VALUE
  assert 0 < guarantee.epsilon < np.inf
  assert 0 <= guarantee.delta < 1e-4


@pytest.mark.parametrize("name", MECHANISMS)
def test_mean_and_mean_squared_error_are_as_stated(name):
  """20,000 releases; an error in the mean of 10 standard errors, and one of 12 % in the second moment, are caught."""
  mechanism, count = MECHANISMS[name], 20_000
  batches = jax.random.split(jax.random.key(11), (count // BATCH, BATCH))
  for value in inputs(mechanism):
    samples = np.concatenate([np.asarray(releases(mechanism)(batch, value), np.float64) for batch in batches])
    stddev = samples.std(axis=0).max()
    if name not in BIASED:
      statistical.assert_mean(samples, np.asarray(value), stddev=stddev, catches=10 * stddev / np.sqrt(count))
    errors = np.sum((samples - np.asarray(value)).reshape(count, -1) ** 2, axis=1)
    stated, margin = mechanism.mean_squared_error(1.0), 5 * errors.std() / np.sqrt(count)
    assert margin < 0.12 * stated
    assert errors.mean() - margin <= stated * (1 + 1e-5)
    if name not in MSE_IS_A_BOUND:
      assert errors.mean() + margin >= stated * (1 - 1e-5)


@pytest.mark.parametrize("filling", [0.0, np.nan, np.inf, -np.inf, 1e30, -1e38, 1e-40])
def test_every_input_gives_a_finite_estimate_within_the_bound(case, filling):
  mechanism, value = case
  estimates = releases(mechanism)(keys(), jnp.full_like(value, filling))
  assert np.all(np.isfinite(estimates))
  assert np.max(np.asarray(jax.vmap(mechanism.norm)(estimates))) <= mechanism.max_norm * (1 + 1e-5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_inputs_of_any_float_type_are_taken(case, dtype):
  mechanism, value = case
  assert jax.eval_shape(mechanism.privatize, jax.random.key(0), value.astype(dtype)).dtype == jnp.float32
