"""Releases on a grid: integers, of the stated width, with the stated error."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import releases
import statistical

from jdp.mechanisms import on_grid, priv_unit, scalar_dp, separated, stream_sum

DIM, SPACING = 20, 0.7
MECHANISM = priv_unit(DIM, 6.0)
COARSE = 4 * MECHANISM.max_norm
VALUE = jnp.zeros(DIM).at[3].set(0.8).at[7].set(-0.6)

rounded = functools.cache(on_grid)


def draw(mechanism, count, key=0):
  return releases.draw(mechanism.privatize, VALUE, count, seed=key).astype(np.float64)


def test_to_nearest_moves_no_coordinate_by_more_than_half_the_spacing():
  moved = draw(rounded(MECHANISM, SPACING), 2000) - draw(MECHANISM, 2000)
  assert np.max(np.abs(moved)) <= SPACING / 2 * (1 + 1e-5)
  assert np.max(np.abs(moved)) > 0.49 * SPACING


@pytest.mark.parametrize("unbiased", [False, True])
def test_every_estimate_is_a_multiple_of_the_spacing(unbiased):
  estimates = draw(rounded(MECHANISM, SPACING, unbiased=unbiased), 1000)
  levels = np.rint(estimates / SPACING)
  np.testing.assert_array_equal(estimates, (levels.astype(np.float32) * np.float32(SPACING)).astype(np.float64))
  assert len(np.unique(levels)) > 3


def test_random_rounding_is_unbiased_on_a_grid_coarser_than_the_release():
  """200,000 draws catch a bias of 2 % of the spacing; rounding to nearest would release zeros only."""
  samples = draw(on_grid(MECHANISM, COARSE, unbiased=True), 200_000)
  second_moment = MECHANISM.max_norm * COARSE  # E Z^2 <= COARSE E|estimate|
  statistical.assert_mean(samples, np.asarray(VALUE), stddev=math.sqrt(second_moment), catches=0.02 * COARSE)
  assert not np.any(draw(on_grid(MECHANISM, COARSE), 1000))


@pytest.mark.parametrize("unbiased", [False, True])
def test_mean_squared_error_is_within_the_stated_bound_and_near_it_when_random(unbiased):
  """50,000 draws: standard error below 0.5 % of the error, false-failure rate 1e-6.

  Random rounding adds spacing^2 f (1 - f) for a remainder f; the test catches one that adds nothing, or twice that.
  """
  mechanism = rounded(MECHANISM, SPACING, unbiased=unbiased)
  errors = np.sum((draw(mechanism, 50_000) - np.asarray(VALUE)) ** 2, axis=1)
  margin = 5 * errors.std() / math.sqrt(len(errors))
  assert margin < 0.025 * errors.mean()
  assert errors.mean() + margin < mechanism.mean_squared_error(1.0)
  if unbiased:
    remainders = np.mod(draw(MECHANISM, 50_000, key=1) / SPACING, 1)
    expected = DIM * SPACING**2 * np.mean(remainders * (1 - remainders))
    assert margin < expected
    assert errors.mean() - MECHANISM.mean_squared_error(1.0) == pytest.approx(expected, abs=margin)


@pytest.mark.parametrize(("levels", "dtype"), [(127, np.int8), (128, np.int16), (32767, np.int16), (32768, np.int32)])
def test_reports_are_the_narrowest_integers_that_hold_the_bound(levels, dtype):
  mechanism = on_grid(MECHANISM, MECHANISM.max_norm / (levels - 0.5))
  report = jax.eval_shape(mechanism.encode, jax.random.key(0), VALUE)
  assert mechanism.parameters.num_levels == levels
  assert (report.shape, report.dtype) == ((DIM,), dtype)


def test_unbounded_estimates_are_cut_off_and_never_wrap():
  unbounded = MECHANISM._replace(privatize=lambda key, value: value * 1e30, max_norm=math.inf)
  mechanism = on_grid(unbounded, SPACING)
  report = mechanism.encode(jax.random.key(0), VALUE)
  np.testing.assert_array_equal(np.asarray(report)[[3, 7, 0]], [2**24, -(2**24), 0])


def test_scalars_and_separated_and_streams():
  scalar = on_grid(scalar_dp(4.0, 1.0), 0.01)
  assert scalar.encode(jax.random.key(0), jnp.float32(0.5)).shape == ()
  mechanism = on_grid(separated(MECHANISM, scalar_dp(4.0, 1.0)), 0.1)
  keys = jax.random.split(jax.random.key(1), 9)
  values = jnp.tile(VALUE, (9, 1))
  expected = jnp.sum(jax.jit(jax.vmap(mechanism.privatize))(keys, values), axis=0)
  streamed = jax.jit(lambda keys: stream_sum(mechanism, keys, values, block_size=4))(jax.random.clone(keys))
  np.testing.assert_allclose(streamed, expected, atol=1e-4)


def test_guarantee_is_the_mechanisms():
  assert on_grid(MECHANISM, SPACING).guarantee == MECHANISM.guarantee


@pytest.mark.parametrize("spacing", [0.0, -1.0, math.nan, math.inf, 1e-9])
def test_bad_spacings_are_refused(spacing):
  with pytest.raises(ValueError, match="Expected spacing"):
    on_grid(MECHANISM, spacing)
