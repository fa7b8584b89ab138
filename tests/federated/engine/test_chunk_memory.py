"""How many clients an accelerator computes side by side: by shapes, and never by anybody's data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.data import examples
from jdp.data.packed import pack
from jdp.federated import client_mesh, cohort_sum
from jdp.federated.engine import chunk_memory, cohort
from jdp.federated.engine.chunk_memory import fitting_chunk_size, held_bytes
from jdp.federated.engine.sharded import shard
from jdp.sampling import Sample

KIB = 1024
VECTOR = jnp.zeros(256)  # 1 KiB


@pytest.mark.parametrize(
  ("function", "kib"),
  [
    (lambda x: x + 1, 1),
    (lambda x: jnp.dot(jnp.sin(x) + 1, x), 1 + 4 / KIB),  # XLA fuses the sine into the sum
    (lambda x: jnp.sin(jnp.outer(x, x)).sum(), 4 / KIB),
    (lambda x: jnp.linalg.norm(jnp.outer(x, x) @ jnp.outer(x, x)), 3 * 256),
    (lambda x: functools.reduce(lambda a, _: a @ a, range(4), jnp.outer(x, x))[0, 0], 2 * 256),
    (lambda x: jax.lax.scan(lambda c, _: (c + x, c), x, length=64)[1], 1 + 64 + 1),
    (lambda x: jax.lax.cond(x[0] > 0, lambda: jnp.outer(x, x) @ x, lambda: x), 257),
  ],
  ids=["one array", "fused", "reduced", "products", "let go", "scan", "branches"],
)
def test_arrays_are_held_from_their_equation_to_their_last_use(function, kib):
  found = held_bytes(jax.make_jaxpr(function)(VECTOR).jaxpr) / KIB
  assert found == pytest.approx(kib, abs=0.02)


def mlp(width):
  """A client's gradient by width^2 + width weights, bounded."""

  def summand(keys, params, client, weight):
    del keys
    gradient = jax.grad(lambda p: jnp.sum(jnp.tanh(client @ p[0]) @ p[1]))(params)
    norm = jnp.sqrt(sum(jnp.sum(x * x) for x in gradient))
    return jax.tree.map(lambda x: weight * x / jnp.maximum(norm, 1.0), gradient)

  return summand, (jnp.zeros((width, width)), jnp.zeros(width))


def chunk_of(width, data, platform="gpu"):
  summand, params = mlp(width)
  return fitting_chunk_size(summand, jax.random.key(0), params, data, platform)


@pytest.mark.parametrize("width", [256, 512])
def test_a_chunk_takes_no_more_than_is_said_of_it(monkeypatch, width):
  """By XLA, for a CPU. Less than an eighth of it would leave a device idle."""
  monkeypatch.setattr(chunk_memory, "_MOST_BYTES", 2**26)
  summand, params = mlp(width)
  data = jnp.zeros((1000, 16, width))
  chunk = chunk_of(width, data)
  assert chunk == {256: 32, 512: 8}[width]
  sample = Sample(jnp.arange(512), jnp.ones(512), jnp.int32(512), 1000)
  run = jax.jit(lambda *args: cohort_sum(summand, *args, chunk_size=chunk))
  compiled = run.lower(jax.random.key(0), params, sample, data).compile()
  assert 2**23 < compiled.memory_analysis().temp_size_in_bytes < 2**26


def test_chunks_are_as_large_as_memory_allows():
  shape = jax.ShapeDtypeStruct
  assert chunk_of(64, shape((10, 16, 64), jnp.float32)) == 1024
  assert chunk_of(64, shape((10, 16, 64), jnp.float32), "tpu") == 256
  assert chunk_of(4096, shape((10, 16, 4096), jnp.float32)) == 8
  assert chunk_of(4096, shape((10, 2**19, 4096), jnp.float32)) == 1


def test_the_largest_user_chooses_no_chunk():
  """Two data sets that differ in one user: its size must not show in the sum's rounding."""
  data = examples(np.zeros((60_000, 64), np.float32), np.zeros(60_000, np.int32))
  users = [np.arange(3)] * 4
  larger = [*users, np.arange(60_000)]

  def chunk(users, max_examples=None):
    summand, params = mlp(64)
    packed = pack(data, users, max_examples=max_examples)
    return fitting_chunk_size(
      lambda key, params, client, weight: summand(key, params, client.inputs, weight),
      jax.random.key(0),
      params,
      packed,
      "gpu",
    )

  assert chunk(users) == chunk(larger)
  assert chunk(users, 60_000) < chunk(users, 3)  # declared, for all


@pytest.mark.sweep
@pytest.mark.parametrize(("mesh", "shares"), [(False, False), (True, False), (True, True)])
def test_a_cohort_elsewhere_than_on_a_cpu_is_the_same_sum(monkeypatch, mesh, shares):
  monkeypatch.setattr(cohort, "platform_of", lambda mesh: "gpu")
  summand, _ = mlp(8)
  params = tuple(
    jax.random.normal(key, (8,) * n) for n, key in ((2, jax.random.key(1)), (1, jax.random.key(2)))
  )
  data = jax.random.normal(jax.random.key(0), (20, 4, 8))
  over = client_mesh() if mesh else None
  sample = Sample(jnp.arange(12), jnp.float32(jnp.arange(12) < 9), jnp.int32(9), 20)
  arguments = jax.random.key(3), params, sample
  held = shard(data, over) if shares else data
  found = cohort_sum(summand, *arguments, held, mesh=over)
  expected = cohort_sum(summand, *arguments, data, chunk_size=1)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), found, expected)
