"""Noised sums on a grid: multiples of the spacing, at the stated cost, under the query's own event."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statistical

from jdp.queries import average, gaussian_sum
from jdp.queries.on_grid import on_grid

SIGMA, COUNT = 0.75, 1_000_000


def release(query, total, key=0):
  return jax.jit(query.finalize)(jax.random.key(key), query.init(total), total)[0]


def errors(spacing, at):
  """The errors of a million coordinates whose sum is `at`, in float64."""
  query = on_grid(gaussian_sum(1.0, SIGMA), spacing)
  return np.asarray(release(query, jnp.full(COUNT, np.float32(at))), np.float64) - np.float64(np.float32(at))


def stated(spacing, at):
  """The bias and the rise of the mean squared error that the docstring states."""
  k = np.arange(1, 200)
  signs = (-1.0) ** k * np.exp(-2 * (math.pi * k * SIGMA / spacing) ** 2)
  angle = 2 * math.pi * k * at / spacing
  bias = spacing / math.pi * np.sum(signs / k * np.sin(angle))
  return bias, spacing**2 / 12 + np.sum(signs * (4 * SIGMA**2 + (spacing / (math.pi * k)) ** 2) * np.cos(angle))


@pytest.mark.parametrize("spacing", [0.5, 0.3])  # a power of two, and one that is no float32
def test_results_are_multiples_of_the_spacing_half_of_it_away_at_most(spacing):
  query = gaussian_sum(1.0, SIGMA)
  total = {"w": jnp.linspace(-40.0, 40.0, 3000).reshape(30, 100), "b": jnp.float32(3.3)}
  plain, gridded = release(query, total), release(on_grid(query, spacing), total)
  assert jax.tree.structure(plain) == jax.tree.structure(gridded)
  for before, after in zip(jax.tree.leaves(plain), jax.tree.leaves(gridded), strict=True):
    levels = np.rint(np.asarray(after, np.float64) / spacing).astype(np.float32)
    np.testing.assert_array_equal(after, levels * np.float32(spacing))
    moved = np.abs(np.asarray(after, np.float64) - before)
    assert np.max(moved) <= spacing / 2 + 1e-5
  assert np.max(np.abs(np.asarray(gridded["w"]) - plain["w"])) > 0.49 * spacing  # nothing finer is rounded to


@pytest.mark.parametrize(("spacing", "at"), [(SIGMA, 0.3), (SIGMA / 4, 5.05), (4 * SIGMA, 0.0), (4 * SIGMA, 1.2)])
def test_error_is_what_is_stated(spacing, at):
  """Both moments, on fine grids and coarse: a bias off by 2 % of sigma and a rise off by 3 % of sigma^2 are seen."""
  bias, rise = stated(spacing, at)
  sample = errors(spacing, at)
  total = SIGMA**2 + rise
  statistical.assert_mean(sample, bias, stddev=math.sqrt(total), catches=0.02 * SIGMA)
  square_stddev = math.sqrt(np.var(sample**2))
  statistical.assert_mean(sample**2, total, stddev=square_stddev, catches=0.03 * SIGMA**2)


@pytest.mark.parametrize("at", np.linspace(0, SIGMA, 7))
def test_a_spacing_up_to_sigma_costs_a_twelfth_of_its_square_wherever_the_sum_lies(at):
  bias, rise = stated(SIGMA, at)
  assert abs(bias) < 1e-9 * SIGMA
  assert rise == pytest.approx(SIGMA**2 / 12, rel=2e-7)


def test_what_no_float32_can_round_is_cut_off():
  spacing = 0.3
  query = on_grid(gaussian_sum(1e20, 0.0), spacing)
  total = jnp.array([1e30, -1e30, jnp.inf, (2**24 - 1) * 0.3, 2**24 * 0.31])
  expected = np.float32([2**24, -(2**24), 2**24, 2**24 - 1, 2**24]) * np.float32(spacing)
  np.testing.assert_array_equal(release(query, total), expected)


def test_event_state_and_contribution_are_the_querys_own():
  plain = gaussian_sum(lambda step: 1.0 + step.astype(jnp.float32), SIGMA)
  gridded, total, key = on_grid(plain, 0.1), jnp.ones(4), jax.random.key(3)
  assert (gridded.init, gridded.preprocess) == (plain.init, plain.preprocess)
  state = plain.init(total)
  for step in range(2):
    _, event, after = gridded.finalize(jax.random.fold_in(key, step), state, total)
    _, expected, state = plain.finalize(jax.random.fold_in(key, step), state, total)
    assert float(event.clip_norm) == float(expected.clip_norm) == 1.0 + step
    assert int(after.step) == int(state.step) == step + 1


def test_a_grid_on_the_sum_or_on_the_average():
  query, total = gaussian_sum(1.0, SIGMA), jnp.linspace(-3.0, 3.0, 50)
  of_sum = release(average(on_grid(query, 0.5), 8.0), total)
  of_average = release(on_grid(average(query, 8.0), 0.0625), total)
  np.testing.assert_array_equal(of_sum, of_average)  # both spacings and the denominator are powers of two


@pytest.mark.parametrize("spacing", [0.0, -1.0, math.nan, math.inf, 1e-31])
def test_bad_spacings_are_refused(spacing):
  with pytest.raises(ValueError, match="Expected spacing"):
    on_grid(gaussian_sum(1.0, 1.0), spacing)
