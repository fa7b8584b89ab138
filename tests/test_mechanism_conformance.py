"""What every local mechanism promises. A new mechanism joins by one line in MECHANISMS."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.guarantees import Relation, Unit
from jdp.mechanisms import on_grid, priv_unit, scalar_dp, separated

VECTOR, SCALAR = (30,), ()
MECHANISMS = {  # name: (mechanism, shape of a value)
  "priv_unit": (priv_unit(30, 4.0), VECTOR),
  "priv_unit, many dimensions": (priv_unit(300, 4.0), (300,)),
  "priv_unit, gamma 0": (priv_unit(30, 1.0, gamma=0.0), VECTOR),
  "scalar_dp": (scalar_dp(2.0, 1.0), SCALAR),
  "separated": (separated(priv_unit(30, 4.0), scalar_dp(2.0, 1.0)), VECTOR),
  "on_grid": (on_grid(priv_unit(30, 4.0), 0.25, 30), VECTOR),
  "on_grid, at random": (on_grid(scalar_dp(2.0, 1.0), 0.25, 1, unbiased=True), SCALAR),
}


@pytest.fixture(params=MECHANISMS, name="case")
def _case(request):
  mechanism, shape = MECHANISMS[request.param]
  value = jnp.asarray(np.random.default_rng(0).uniform(0.01, 0.2, shape), jnp.float32)
  return mechanism, value


def keys(count=16):
  return jax.random.split(jax.random.key(11), count)


def test_estimate_keeps_the_shape_and_is_float32(case):
  mechanism, value = case
  estimate = mechanism.privatize(jax.random.key(0), value)
  assert estimate.shape == value.shape
  assert estimate.dtype == jnp.float32


def test_privatize_is_decode_after_encode(case):
  mechanism, value = case
  key = jax.random.key(0)
  expected = mechanism.decode(mechanism.encode(key, value))
  np.testing.assert_array_equal(mechanism.privatize(jax.random.clone(key), value), expected)


def test_jit_equals_eager(case):
  mechanism, value = case
  key = jax.random.key(0)
  compiled = jax.jit(mechanism.privatize)(key, value)
  np.testing.assert_allclose(compiled, mechanism.privatize(jax.random.clone(key), value), rtol=1e-5, atol=1e-5)


def test_vmap_equals_loop(case):
  mechanism, value = case
  batch = jax.jit(jax.vmap(mechanism.privatize, (0, None)))(keys(), value)
  loop = jnp.stack([jax.jit(mechanism.privatize)(key, value) for key in keys()])
  np.testing.assert_allclose(batch, loop, rtol=1e-5, atol=1e-5)


def test_clients_of_a_batch_do_not_touch_each_other(case):
  mechanism, value = case
  values = jnp.stack([value] * 4)
  batch = jax.jit(jax.vmap(mechanism.privatize))
  changed = batch(keys(4), values.at[2].set(jnp.nan))
  unchanged = batch(keys(4), values)
  others = np.array([0, 1, 3])
  np.testing.assert_array_equal(np.asarray(changed)[others], np.asarray(unchanged)[others])


def test_same_key_same_report_and_different_keys_differ(case):
  mechanism, value = case
  release = jax.jit(jax.vmap(mechanism.privatize, (0, None)))
  first, second = release(keys(64), value), release(keys(64), value)
  np.testing.assert_array_equal(first, second)
  assert len(np.unique(np.asarray(first).reshape(64, -1), axis=0)) > 1


def test_guarantee_is_pure_per_value_under_replacement(case):
  guarantee = case[0].guarantee
  assert guarantee.relation is Relation.REPLACE_ONE
  assert guarantee.unit is Unit.VALUE
  assert guarantee.delta == 0
  assert 0 < guarantee.epsilon < np.inf


@pytest.mark.parametrize("filling", [0.0, np.nan, np.inf, -np.inf, 1e30, -1e38, 1e-40])
def test_every_input_gives_a_finite_estimate_within_the_bound(case, filling):
  mechanism, value = case
  estimates = jax.jit(jax.vmap(mechanism.privatize, (0, None)))(keys(100), jnp.full_like(value, filling))
  assert np.all(np.isfinite(estimates))
  assert np.max(np.asarray(jax.vmap(mechanism.norm)(estimates))) <= mechanism.max_norm * (1 + 1e-5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_inputs_of_any_float_type_are_taken(case, dtype):
  mechanism, value = case
  assert mechanism.privatize(jax.random.key(0), value.astype(dtype)).dtype == jnp.float32
