"""The streamed sum of releases: their own sum, whatever the block, the keys and the inputs; in
little memory.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jdp import random
from jdp.mechanisms import (
  fast_proj_unit,
  priv_unit,
  priv_unit_g,
  scalar_dp,
  separated,
  stream_sum,
  streaming,
)

DIM, COUNT = 300, 23
MECHANISMS = {  # name: (mechanism, shape of a value)
  "priv_unit": (priv_unit(DIM, 8.0), (DIM,)),
  "priv_unit, few dimensions": (priv_unit(30, 8.0), (30,)),
  "separated": (separated(priv_unit(DIM, 8.0), scalar_dp(4.0, 2.0)), (DIM,)),
  "scalar_dp": (scalar_dp(4.0, 2.0), ()),
  "priv_unit_g": (priv_unit_g(DIM, 8.0), (DIM,)),
  "priv_unit_g, two dimensions": (priv_unit_g(2, 8.0), (2,)),
  # padded to 128
  "fast_proj_unit": (fast_proj_unit(100, 8.0, 16), (100,)),
  "one rotation": (fast_proj_unit(100, 8.0, 16, rotation_key=jax.random.key(17)), (100,)),
  "one projection": (fast_proj_unit(100, 8.0, 16, projection_key=jax.random.key(17)), (100,)),
}
KEYS = {"threefry": jax.random.key, "ChaCha20": random.seeded_key}


def values_of(shape, scale=1.0):
  return jnp.asarray(
    np.random.default_rng(1).uniform(-0.5, 1, (COUNT, *shape)) * scale, jnp.float32
  )


@functools.cache
def released(mechanism):
  return jax.jit(jax.vmap(mechanism.privatize))


@functools.cache
def stream(mechanism, block_size):
  return jax.jit(functools.partial(stream_sum, mechanism, block_size=block_size))


def assert_is_the_sum_of_releases(mechanism, key, values, weights, block_size=5):
  """To 1e-5 of the norm of the releases: what float32 rounding explains, and no release in 23 left
  out or doubled.
  """
  keys = jax.random.split(key, COUNT)
  releases = np.asarray(released(mechanism)(keys, values), np.float64)
  expected = np.tensordot(np.asarray(weights, np.float64), releases, 1)
  streamed = stream(mechanism, block_size)(jax.random.clone(keys), values, weights)
  assert streamed.dtype == jnp.float32
  tolerance = 1e-5 * np.sqrt(np.sum(releases**2))
  assert 100 * tolerance < np.min(np.sqrt(np.sum(releases.reshape(COUNT, -1) ** 2, axis=1)))
  assert np.linalg.norm(streamed - expected) <= tolerance


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "make_key"),
  [*((name, KEYS["threefry"]) for name in MECHANISMS), ("separated", KEYS["ChaCha20"])],
  ids=[*MECHANISMS, "separated, ChaCha20"],
)
def test_sum_is_that_of_the_releases(name, make_key):
  mechanism, shape = MECHANISMS[name]
  values, weights = values_of(shape).at[3].set(jnp.nan), jnp.linspace(-1.0, 2.0, COUNT)
  assert_is_the_sum_of_releases(mechanism, make_key(0), values, weights)


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [None, 1, 22])
def test_no_block_size_leaves_out_or_doubles_a_client(block_size):
  assert_is_the_sum_of_releases(
    MECHANISMS["priv_unit"][0],
    jax.random.key(1),
    values_of((DIM,)),
    jnp.ones(COUNT),
    block_size=block_size,
  )


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-35, 2e-19, 1e-15, 1e-3, 1e3, 1e18, 1e37])
def test_values_of_any_length_are_taken(scale):
  assert_is_the_sum_of_releases(
    MECHANISMS["priv_unit"][0], jax.random.key(2), values_of((DIM,), scale), jnp.ones(COUNT)
  )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["priv_unit", "separated"])
@pytest.mark.parametrize("filling", [0.0, np.nan, np.inf, -np.inf, 1e-40, 3e38])
def test_a_client_with_an_unusable_value_counts_as_in_its_own_release(name, filling):
  values = values_of((DIM,)).at[3].set(filling).at[9, 7].set(filling)
  assert_is_the_sum_of_releases(MECHANISMS[name][0], jax.random.key(3), values, jnp.ones(COUNT))


@pytest.mark.slow
def test_half_precision_values_are_taken():
  values = values_of((DIM,)).astype(jnp.bfloat16)
  assert_is_the_sum_of_releases(
    MECHANISMS["separated"][0], jax.random.key(4), values, jnp.ones(COUNT)
  )


@pytest.mark.slow
def test_weight_zero_or_nan_leaves_a_client_out_exactly():
  mechanism, values = MECHANISMS["separated"][0], values_of((DIM,))
  weights = jnp.ones(COUNT).at[jnp.array([2, 22])].set(jnp.array([0.0, jnp.nan]))
  without = stream(mechanism, 5)(jax.random.split(jax.random.key(5), COUNT), values, weights)
  hostile = values.at[jnp.array([2, 22])].set(-7.0)  # other directions, ordinary lengths
  np.testing.assert_array_equal(
    stream(mechanism, 5)(jax.random.split(jax.random.key(5), COUNT), hostile, weights), without
  )
  assert (
    np.linalg.norm(
      stream(mechanism, 5)(jax.random.split(jax.random.key(5), COUNT), values, jnp.ones(COUNT))
      - without
    )
    > 1
  )


@pytest.mark.slow
@pytest.mark.parametrize(  # two turns of three blocks, and all blocks at once
  ("name", "at_once"), [("separated", 3 * 5 * DIM), ("separated", 2**25), ("scalar_dp", 3 * 5)]
)
def test_blocks_side_by_side_leave_out_and_double_nobody(name, at_once, monkeypatch):
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(streaming, "_NUMBERS_AT_ONCE", at_once)
  stream.cache_clear()  # what was compiled for a CPU
  mechanism, shape = MECHANISMS[name]
  assert_is_the_sum_of_releases(
    mechanism,
    jax.random.key(14),
    values_of(shape),
    jnp.linspace(-1.0, 2.0, COUNT).at[22].set(0.0),
  )
  stream.cache_clear()


@pytest.mark.slow
def test_values_by_a_function_of_the_client():
  mechanism, values = MECHANISMS["priv_unit"][0], values_of((DIM,))
  keys = jax.random.split(jax.random.key(6), COUNT)
  whole = stream(mechanism, 5)(jax.random.clone(keys), values, jnp.ones(COUNT))
  by_number = jax.jit(lambda keys: stream_sum(mechanism, keys, lambda i: values[i], block_size=5))(
    keys
  )
  np.testing.assert_allclose(by_number, whole, rtol=0, atol=1e-5 * np.linalg.norm(whole))


@pytest.mark.slow
@pytest.mark.parametrize(  # of 3 clients a device has none
  ("count", "block_size", "make_key"), [(COUNT, 2, jax.random.key), (3, None, random.seeded_key)]
)
def test_a_mesh_changes_only_the_order_of_summation(count, block_size, make_key):
  mechanism, values = MECHANISMS["priv_unit"][0], values_of((DIM,))[:count]
  weights = jnp.linspace(-1.0, 2.0, count).at[1].set(jnp.nan)
  keys = jax.random.split(make_key(10), count)
  alone = stream(mechanism, 5)(jax.random.clone(keys), values, weights)
  mesh = Mesh(np.reshape(jax.devices(), (2, 2)), ("hosts", "cores"))
  on_mesh = functools.partial(
    stream_sum, mechanism, weights=weights, block_size=block_size, mesh=mesh
  )
  whole = jax.jit(on_mesh)(jax.random.clone(keys), values)
  by_number = jax.jit(lambda keys, values: on_mesh(keys, lambda i: values[i]))(keys, values)
  for shared in (whole, by_number):
    np.testing.assert_allclose(shared, alone, rtol=0, atol=1e-6 * count * mechanism.max_norm)


@pytest.mark.slow
def test_runs_inside_scan():
  mechanism, values = MECHANISMS["separated"][0], values_of((DIM,))

  def step(key, _):
    key, own = jax.random.split(key)
    return key, stream_sum(mechanism, jax.random.split(own, COUNT), values, block_size=4)

  _, sums = jax.jit(lambda key: jax.lax.scan(step, key, length=2))(jax.random.key(7))
  key = jax.random.key(7)
  for streamed in sums:
    key, own = jax.random.split(key)
    expected = jnp.sum(released(mechanism)(jax.random.split(own, COUNT), values), axis=0)
    np.testing.assert_allclose(streamed, expected, rtol=0, atol=1e-5 * COUNT * mechanism.max_norm)


@pytest.mark.slow
@pytest.mark.parametrize("make_key", KEYS.values(), ids=KEYS)
def test_memory_is_bounded_by_the_block(make_key):
  """10,000 clients at 1e6 coordinates: 40 GB of releases, in buffers of a few vectors, compiled and
  not run.
  """
  dim, count = 1_000_000, 10_000
  mechanism = priv_unit(dim, 64.0)
  direction = jnp.ones(dim)

  def run(keys):
    return stream_sum(mechanism, keys, lambda client: direction + client.astype(jnp.float32))

  keys = jax.random.split(make_key(8), count)
  memory = jax.jit(run).lower(keys).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 12 * 4 * dim
  assert memory.output_size_in_bytes == 4 * dim


def test_bad_arguments_are_refused():
  mechanism, values = MECHANISMS["priv_unit"][0], values_of((DIM,))
  keys = jax.random.split(jax.random.key(9), COUNT)
  with pytest.raises(ValueError, match="Expected values for 23 clients"):
    stream_sum(mechanism, keys, values[:5])
  with pytest.raises(ValueError, match="Expected weights for 23 clients"):
    stream_sum(mechanism, keys, values, jnp.float32(1))
  with pytest.raises(ValueError, match="block_size"):
    stream_sum(mechanism, keys, values, block_size=0)
  with pytest.raises(ValueError, match="number_of_keys"):
    stream_sum(mechanism, keys[:0], values[:0])
  too_many = jax.ShapeDtypeStruct((2**31 - 1, 2), np.uint32)
  with pytest.raises(ValueError, match="fewer than 2\\^31 clients"):
    jax.eval_shape(
      lambda data: stream_sum(mechanism, jax.random.wrap_key_data(data), lambda i: jnp.ones(DIM)),
      too_many,
    )


@pytest.mark.parametrize(("platform", "refused"), [("cpu", False), ("gpu", True)])
def test_no_number_of_a_client_passes_32_bits(platform, refused, monkeypatch):
  """An accelerator's last turn has blocks beyond the last client."""
  monkeypatch.setattr(jax, "default_backend", lambda: platform)
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2**31 - 2**20))

  def total(keys):
    return stream_sum(scalar_dp(4.0, 2.0), keys, lambda client: jnp.float32(0))

  if not refused:
    assert jax.eval_shape(total, keys).shape == ()
    return
  with pytest.raises(ValueError, match=r"Expected fewer than 2\^31 clients in whole blocks"):
    jax.eval_shape(total, keys)
