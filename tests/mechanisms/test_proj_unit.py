"""ProjUnit: its projections, and its estimates along directions that other projections distort."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.mechanisms import fast_proj_unit, priv_unit
from jdp.mechanisms.draws import projections
from jdp.mechanisms.proj_units import proj_unit
from tests.helpers.statistical import assert_mean

DIM, K, COUNT = 512, 16, 24_000


def directions(dim, k=16):
  """Unit vectors: the all-ones direction and e_1 (which exchange places in Hadamard's basis), a
  block, random.
  """
  block = np.arange(dim) < k
  spread = np.arange(dim) % k == 3
  vectors = [
    np.ones(dim),
    np.eye(1, dim)[0],
    block,
    spread,
    np.random.default_rng(2).standard_normal(dim),
  ]
  return [jnp.asarray(v / np.linalg.norm(v), jnp.float32) for v in vectors]


DIRECTIONS = dict(zip(["ones", "e1", "block", "spread", "random"], directions(DIM), strict=True))


def seeds(count):
  return jax.random.bits(jax.random.key(5), (count, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
  ("make", "k"),
  [
    ("haar", 16),
    *((make, k) for make in ("own rotation", "shared rotation") for k in (16, 100, 512)),
  ],
)
def test_rows_are_orthogonal_and_the_two_steps_transpose(make, k):
  rotation_key = jax.random.key(1) if make == "shared rotation" else None
  dim = projections.padded_dim(DIM, k)
  projection = (
    projections.haar(dim, k)
    if make == "haar"
    else projections.folded_hadamard(dim, k, rotation_key)
  )
  seed = seeds(1)[0]
  columns = jax.jit(jax.vmap(lambda v: projection.project(seed, v)))(jnp.eye(dim))
  transposed = jax.jit(jax.vmap(lambda z: projection.finish(projection.spread(seed, z))))(
    jnp.eye(k)
  )
  np.testing.assert_allclose(transposed, columns.T, atol=1e-5)
  np.testing.assert_allclose(transposed @ transposed.T, np.eye(k), atol=1e-5)


def over(function):
  """(keys [n], vector) -> results, compiled once, in blocks: a map over all keys at once would need
  their memory.
  """
  mapped = jax.jit(lambda keys, u: jax.lax.map(lambda key: function(key, u), keys, batch_size=200))
  return lambda keys, u: np.asarray(mapped(keys, u), np.float64)


@functools.cache
def squared_lengths(dim, k):
  projection = projections.folded_hadamard(dim, k, None)
  return over(lambda seed, u: jnp.sum(projection.project(seed, u) ** 2) * (dim / k))


@functools.cache
def along_and_error(mechanism):
  def summary(key, u):
    estimate = mechanism.privatize(key, u)
    return jnp.stack([jnp.vdot(estimate, u), jnp.sum((estimate - u) ** 2)])

  return over(summary)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIRECTIONS)
def test_fast_projection_has_the_stated_mean_length_and_variance(name):
  """The length to a relative 0.3/D: the stated offset of 1/(2D) along `spread` shows, and a bias of
  1/(4k) by far.

  What the leading order leaves out, a few k/D^2, is below that: the largest is 0.1/D, along
  `spread`. The root of X less its quadratic Taylor polynomial, whose mean follows from the stated
  variance, varies little.
  """
  dim, k = 2048, 64
  u = directions(dim, k)[list(DIRECTIONS).index(name)]
  squares = squared_lengths(dim, k)(seeds(COUNT), u)
  energy = np.asarray(u, np.float64) ** 2
  collisions = np.sum(np.sum(energy.reshape(-1, k), axis=0) ** 2) - np.sum(energy**2)
  stated = 2 / k * (1 - k / dim) - 4 / dim * collisions
  deviations = (squares - 1) ** 2
  assert_mean(deviations, stated, stddev=deviations.std(), catches=0.12 * stated)
  rest = np.sqrt(squares) - (1 + (squares - 1) / 2 - deviations / 8)
  c = fast_proj_unit(dim, 4.0, k).parameters.c * math.sqrt(dim / k)
  assert_mean(
    rest, c * (1 + collisions / (2 * dim)) - (1 - stated / 8), stddev=rest.std(), catches=0.3 / dim
  )


def of_shared_projection(make, dim=DIM, k=K, epsilon=8.0):
  return make(dim, epsilon, k, projection_key=jax.random.key(17))


HAAR, FAST = proj_unit(64, 16.0, 8), fast_proj_unit(DIM, 16.0, K)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("mechanism", "name"),
  [(HAAR, "ones"), (HAAR, "e1"), *((FAST, name) for name in DIRECTIONS)],
  ids=lambda case: case if isinstance(case, str) else "haar" if case is HAAR else "fast",
)
def test_estimates_are_unbiased_with_the_stated_error(mechanism, name):
  """To 2 % along u, and to 1 % in the error."""
  u = directions(*mechanism.shape)[list(DIRECTIONS).index(name)]
  along, error = along_and_error(mechanism)(jax.random.split(jax.random.key(6), COUNT), u).T
  assert_mean(along, 1.0, stddev=along.std(), catches=0.02)
  stated = mechanism.mean_squared_error(1.0)
  assert_mean(error, stated, stddev=error.std(), catches=0.01 * stated)


@pytest.mark.slow
def test_padding_costs_no_error():
  dim, count = 700, 5_000
  mechanism, u = fast_proj_unit(dim, 8.0, K), jnp.full(dim, dim**-0.5)
  errors = along_and_error(mechanism)(jax.random.split(jax.random.key(7), count), u)[:, 1]
  stated = mechanism.mean_squared_error(1.0)
  assert mechanism.parameters.width == 1024 == K * 2**6
  assert stated == pytest.approx(
    fast_proj_unit(1024, 8.0, K).mean_squared_error(1.0) * dim / 1024, rel=0.01
  )
  assert_mean(errors, stated, stddev=errors.std(), catches=0.03 * stated)


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 10.0, 16.0])
def test_a_thousand_numbers_cost_little_error(epsilon):
  for make in (proj_unit, fast_proj_unit):
    ratio = make(2**15, epsilon, 1000).mean_squared_error(1.0) / priv_unit(
      2**15, epsilon
    ).mean_squared_error(1.0)
    assert 1 < ratio < 1.05


@pytest.mark.slow
@pytest.mark.parametrize("make", [proj_unit, fast_proj_unit])
def test_error_of_a_shared_projection_does_not_average_out(make):
  """Given W, the mean of many estimates of u is off by 1/c^2 - 1; with own projections by next to
  nothing.
  """
  dim, k, count = 64, 8, 4000
  u = directions(dim)[-1]
  off = []
  for mechanism in (make(dim, 64.0, k), of_shared_projection(make, dim, k, 64.0)):
    estimates = jax.jit(jax.vmap(mechanism.privatize, (0, None)))(
      jax.random.split(jax.random.key(9), count), u
    )
    off.append(float(jnp.sum((jnp.mean(estimates, axis=0) - u) ** 2)))
  assert off[0] < 10 * mechanism.mean_squared_error(1.0) / count < 0.1
  assert 0.3 < off[1] / (1 / mechanism.parameters.c**2 - 1) < 3


@pytest.mark.slow
@pytest.mark.parametrize("make", [proj_unit, fast_proj_unit])
def test_reports_of_a_shared_projection_are_k_numbers_and_decode_as_a_sum(make):
  mechanism, u = of_shared_projection(make), DIRECTIONS["random"]
  reports = jax.jit(jax.vmap(mechanism.encode, (0, None)))(
    jax.random.split(jax.random.key(10), 5), u
  )
  assert sum(leaf.nbytes for leaf in jax.tree.leaves(reports)) == 5 * K * 4
  total = jax.jit(mechanism.decode)(jax.tree.map(lambda x: jnp.sum(x, axis=0), reports))
  estimates = jax.jit(jax.vmap(mechanism.decode))(reports)
  np.testing.assert_allclose(total, jnp.sum(estimates, axis=0), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_projection_key_may_be_traced():
  @jax.jit
  def release(public_key, key, value):
    return fast_proj_unit(DIM, 8.0, K, projection_key=public_key).privatize(key, value)

  u = DIRECTIONS["random"]
  first, second = (release(jax.random.key(i), jax.random.key(0), u) for i in (1, 2))
  assert not np.allclose(first, second)
  again = fast_proj_unit(DIM, 8.0, K, projection_key=jax.random.key(2)).privatize(
    jax.random.key(0), u
  )
  np.testing.assert_allclose(second, again, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [proj_unit, fast_proj_unit])
def test_guarantee_is_that_of_priv_unit_in_the_projected_dimensions(make):
  assert make(DIM, 4.0, K).guarantee == priv_unit(K, 4.0).guarantee


def test_bad_arguments_are_refused():
  for make in (proj_unit, fast_proj_unit):
    with pytest.raises(ValueError, match="num_projections"):
      make(10, 1.0, 11)
    with pytest.raises(ValueError, match="num_projections"):
      make(10, 1.0, 1)
    with pytest.raises(ValueError, match=r"shape \(10,\)"):
      make(10, 1.0, 5).encode(jax.random.key(0), jnp.ones(11))
  with pytest.raises(ValueError, match="at most one"):
    fast_proj_unit(10, 1.0, 5, rotation_key=jax.random.key(0), projection_key=jax.random.key(1))
