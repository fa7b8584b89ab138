"""Sums on integers: within their bound, right on average, noised as the event says, wrapping as
rarely as promised.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import accounting
from jdp.events import DiscreteGaussianSum, PoissonSampling, Round, SkellamSum
from jdp.ledger import Ledger
from jdp.numerics.rotations import randomized_hadamard
from jdp.queries.distributed.integer_sums import discrete_sum, plan_grid, rounded, rounded_norm
from tests.helpers import statistical

LIKE = {"a": jnp.zeros((20, 25)), "b": jnp.zeros(12)}  # 512 coordinates


def total_of(query, key, state, records, weights):
  contributions = compiled(query.preprocess)(
    jax.random.split(key, len(weights)), state, records, weights
  )
  return jax.tree.map(lambda x: jnp.sum(x, axis=0), contributions)


@functools.cache
def compiled(preprocess):
  return jax.jit(jax.vmap(preprocess, (0, None, 0, 0)))


def records_of(number, scale):
  rng = np.random.default_rng(3)
  return jax.tree.map(
    lambda x: jnp.asarray(scale * rng.standard_normal((number, *x.shape)), jnp.float32), LIKE
  )


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["gaussian", "skellam"])
def test_the_result_is_the_clipped_sum_with_the_planned_noise(key, noise):
  query = discrete_sum(LIKE, 2.0, 0.5, num_clients=40, modulus_bits=20, noise=noise)
  state = query.init(LIKE)
  records, weights = records_of(43, 0.02), jnp.concatenate([jnp.ones(40), jnp.zeros(3)])
  records["a"] = records["a"].at[41].set(jnp.nan)
  results = []
  finalize = jax.jit(query.finalize)
  for k in jax.random.split(key, 8):
    total = total_of(query, k, state, records, weights)
    result, event, state = finalize(jax.random.key(0), state, total)
    results.append(np.concatenate([np.ravel(x) for x in jax.tree.leaves(result)]))
  truth = np.concatenate([np.ravel(x[:40].sum(axis=0)) for x in jax.tree.leaves(records)])
  grid = plan_grid(512, 2.0, 0.5, num_clients=40, modulus_bits=20, noise=noise)
  assert int(event.num_shares) == 40
  assert int(state.step) == 8
  # rounding adds at most a quarter, on average a sixth, for each record
  variance = 0.5**2 + 40 * grid.spacing**2 / 6
  statistical.assert_normal_stddev(np.array(results) - truth, variance**0.5, catches=0.1)


@pytest.mark.slow
def test_records_are_clipped_and_nan_is_zero(key):
  query = discrete_sum(LIKE, 1.0, 0.01, num_clients=2, modulus_bits=16)
  state = query.init(LIKE)
  long, bad = records_of(1, 100.0), jax.tree.map(lambda x: jnp.full((1, *x.shape), jnp.nan), LIKE)
  for record, expected in ((long, 1.0), (bad, 0.0)):
    total = total_of(query, jax.random.clone(key), state, record, jnp.ones(1))
    result, _, _ = query.finalize(jax.random.key(0), state, total)
    norm = np.sqrt(sum(float(jnp.sum(x * x)) for x in jax.tree.leaves(result)))
    assert abs(norm - expected) < 0.01 * 22  # the noise of one of two clients has a norm of 0.16


def test_rounding_is_unbiased_and_bounded(key):
  x = jnp.asarray(np.random.default_rng(0).uniform(-3, 3, 100), jnp.float32)
  bound = rounded_norm(float(jnp.linalg.norm(x)), 100)
  draws = np.asarray(
    jax.jit(jax.vmap(lambda k: rounded(k, x, bound)))(jax.random.split(key, 20_000))
  )
  assert np.all(np.linalg.norm(draws, axis=1) <= bound)
  assert np.all(np.abs(draws - np.asarray(x)) < 1)
  statistical.assert_mean(draws, np.asarray(x), stddev=0.5, catches=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [1.0, 1.02, 1.1])
def test_rounding_never_leaves_its_bound(key, fraction):
  x = jnp.full(400, 0.5)  # of norm 10; unbiased rounding has a norm of about 14
  draws = np.asarray(
    jax.jit(jax.vmap(lambda k: rounded(k, x, 10.0 * fraction)))(jax.random.split(key, 50))
  )
  assert np.all(np.linalg.norm(draws, axis=1) <= 10.0 * fraction)
  assert not np.any(rounded(jax.random.key(0), jnp.array([jnp.nan, 3.0]), 5.0))
  # towards zero, if nothing else is short
  assert np.all(rounded(jax.random.key(0), jnp.full(64, 1.5), 8.001) == 1)


@pytest.mark.slow
def test_sensitivity_is_that_of_the_integers(key):
  """Every contribution less its noise is an integer vector of at most S: here by a noise of nearly
  nothing.
  """
  query = discrete_sum(jnp.zeros(256), 1.0, 0.05, num_clients=1, modulus_bits=10, noise="skellam")
  state = query.init(jnp.zeros(256))
  one = total_of(query, key, state, 50 * jnp.ones((1, 256)), jnp.ones(1))
  _, event, _ = query.finalize(jax.random.key(0), state, one)
  assert one.integers.dtype == jnp.int32
  noise = np.sqrt(256 * event.share_variance)
  assert np.linalg.norm(one.integers) <= event.l2_norm + 1.3 * noise
  assert event.l1_norm == event.l2_norm * min(event.l2_norm, 16.0)


@pytest.mark.slow
def test_sums_wrap_no_more_than_bounded_and_the_bound_says_something(key):
  """All records point one way, the worst case: an eighth of the range would wrap often."""
  clients, dim = 30, 64
  grid = plan_grid(dim, 1.0, 0.2, num_clients=clients, modulus_bits=12, max_wrap_probability=0.01)
  rotate = jax.vmap(lambda k: randomized_hadamard(dim).apply(k, jnp.ones(dim) / 8))
  largest = np.max(np.abs(clients * rotate(jax.random.split(key, 300))), axis=1) / grid.spacing
  assert np.mean(largest > 2**11) < 0.03  # 300 trials of 0.01: more than 9 with probability 1e-3
  assert np.mean(largest > 2**10) > 0.05
  assert (
    plan_grid(dim, 1.0, 0.2, num_clients=clients, max_sum_norm=3.0).spacing < 0.5 * grid.spacing
  )


@pytest.mark.slow
def test_modulus_does_not_change_a_sum_within_range(key):
  record, weights = records_of(4, 0.01), jnp.ones(4)
  query = discrete_sum(LIKE, 1.0, 1.0, num_clients=4, modulus_bits=16)
  state = query.init(LIKE)
  total = total_of(query, key, state, record, weights)
  shifted = total._replace(integers=total.integers + jnp.int32(5 * 2**16))
  for a, b in zip(
    *(jax.tree.leaves(query.finalize(jax.random.key(0), state, t)[0]) for t in (total, shifted)),
    strict=True,
  ):
    assert np.array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("noise", "kind"), [("gaussian", DiscreteGaussianSum), ("skellam", SkellamSum)]
)
def test_epsilon_is_near_that_of_the_floats(noise, kind):
  query = discrete_sum(jnp.zeros(1000), 1.0, 4.0, num_clients=100, modulus_bits=18, noise=noise)
  state = query.init(jnp.zeros(1000))
  zero = jax.eval_shape(query.preprocess, jax.random.key(0), state, jnp.zeros(1000), jnp.float32(1))
  total = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), zero)
  event = query.finalize(jax.random.key(0), state, total._replace(shares=jnp.int32(90)))[1]
  assert isinstance(event, kind)
  ledger = Ledger().append(Round(PoissonSampling(1.0), event, "zero_out"))
  rdp = accounting.epsilon(ledger, 1e-5)
  from_floats = accounting.gaussian_epsilon(4.0 * 0.9**0.5, 1e-5)
  assert from_floats < rdp < 1.15 * from_floats


@pytest.mark.sweep
@pytest.mark.parametrize("dim", [1, 3, 64, 100])
def test_rotation_keeps_norms_and_is_undone(key, dim):
  rotation = randomized_hadamard(dim)
  x = jnp.asarray(np.random.default_rng(0).standard_normal(dim), jnp.float32)
  rotated = rotation.apply(jax.random.clone(key), x)
  assert rotated.shape == (rotation.dim,)
  np.testing.assert_allclose(jnp.linalg.norm(rotated), jnp.linalg.norm(x), rtol=1e-5)
  np.testing.assert_allclose(rotation.invert(key, rotated), x, atol=1e-5)


@pytest.mark.parametrize(
  "changes",
  [
    {"clip_norm": 0.0},
    {"stddev": np.nan},
    {"num_clients": 0},
    {"modulus_bits": 1},
    {"modulus_bits": 32},
    {"max_wrap_probability": 0.0},
    {"noise": "laplace"},
    {"stddev": 1e-4},
    {"num_clients": 2, "modulus_bits": 24},
    {"num_clients": 10**6, "modulus_bits": 4},
  ],
  ids=str,
)
def test_invalid_arguments_are_refused(changes):
  arguments = {"clip_norm": 1.0, "stddev": 1.0, "num_clients": 10, **changes}
  with pytest.raises(ValueError, match="Expected"):
    discrete_sum(jnp.zeros(3), **arguments)
