"""Noised sums on a grid: multiples of the spacing, at the stated cost, under the query's own
event.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import random
from jdp.accounting import gaussian_epsilon
from jdp.audits.bounds import epsilon_bound
from jdp.audits.residues import audit_residues
from jdp.events import GaussianSum
from jdp.queries import (
  adaptive_clipped_sum,
  average,
  discrete_sum,
  gaussian_sum,
  grouped,
  joint_clipped_sum,
  no_privacy,
  weighted_average,
)
from jdp.queries.adaptive_clipping import AdaptiveContribution
from jdp.queries.grid import on_grid
from tests.helpers import query_cases, statistical

SIGMA, COUNT = 0.75, 1_000_000


def release(query, total, key=0):
  return jax.jit(query.finalize)(jax.random.key(key), query.init(total), total)[0]


def errors(spacing, at):
  """The errors of a million sums of `at`, each with a shift of its own, in float64."""
  query, total = on_grid(gaussian_sum(1.0, SIGMA), spacing), jnp.float32(at)
  keys = jax.random.split(jax.random.key(0), COUNT)
  results = jax.jit(jax.vmap(lambda key: query.finalize(key, query.init(total), total)[0]))(keys)
  return np.asarray(results, np.float64) - np.float64(np.float32(at))


def stated(spacing, at):
  """The bias and the rise of the mean squared error that the docstring states."""
  k = np.arange(1, 200)
  signs = (-1.0) ** k * np.exp(-2 * (math.pi * k * SIGMA / spacing) ** 2)
  angle = 2 * math.pi * k * at / spacing
  bias = spacing / math.pi * np.sum(signs / k * np.sin(angle))
  return bias, spacing**2 / 12 + np.sum(
    signs * (4 * SIGMA**2 + (spacing / (math.pi * k)) ** 2) * np.cos(angle)
  )


@pytest.mark.slow
@pytest.mark.parametrize("spacing", [0.5, 0.3])  # a power of two, and one that is not a float32
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
  # Nothing finer is rounded to; what is rounded lies on a grid of SIGMA / 16 itself.
  assert np.max(np.abs(np.asarray(gridded["w"]) - plain["w"])) > 0.49 * spacing - SIGMA / 32


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("spacing", "at"), [(SIGMA, 0.3), (SIGMA / 4, 5.05), (4 * SIGMA, 0.0), (4 * SIGMA, 1.2)]
)
def test_error_is_what_is_stated(spacing, at):
  """Both moments, on fine grids and coarse: a bias off by 2 % of sigma and a rise off by 3 % of
  sigma^2 are seen.
  """
  bias, rise = stated(spacing, at)
  sample = errors(spacing, at)
  total = SIGMA**2 * (1 + 1 / 3072) + rise
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


@pytest.mark.slow
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
  # both spacings and the denominator are powers of two
  np.testing.assert_array_equal(of_sum, of_average)


@pytest.mark.parametrize("spacing", [0.0, -1.0, math.nan, math.inf, 1e-31])
def test_bad_spacings_are_refused(spacing):
  with pytest.raises(ValueError, match="Expected spacing"):
    on_grid(gaussian_sum(1.0, 1.0), spacing)


def noised(query, at, key):
  """100,000 coordinates whose sum is `at`."""
  return np.asarray(release(query, jnp.full(100_000, np.float32(at)), key))


@pytest.mark.slow
@pytest.mark.parametrize(
  "at",
  [(0.0, 1.0), (0.0, 0.5), (0.25, 1.25), (0.0, -1.0), (1e7, 1e7 + 1), (2.0**20, 2.0**20 + 0.5)],
)
def test_residues_refute_nothing_on_the_finest_grid(at):
  """Sums of records of norm 1, small and so large that float32 is coarser than the grid; 99.9 %
  over all together.
  """
  spacing, epsilon = 1 / 16, gaussian_epsilon(1.0, 1e-5)
  drawn = [noised(on_grid(gaussian_sum(1.0, 1.0), spacing), x, key) for key, x in enumerate(at)]
  assert audit_residues(*drawn, epsilon_bound(1 - 1e-3 / 6, 1e-5), spacing=spacing).bound <= epsilon


def test_residues_refute_a_grid_as_fine_as_floats():
  """The audit above can fail: without the dither, on a grid that fine, it proves more than the
  stated 4.377.
  """
  spacing, stated = float(np.float32(1e-8)), GaussianSum(1.0, 1.0)
  plain = gaussian_sum(1.0, 1.0)._replace(
    noise=0.0,
    finalize=lambda key, state, total: (total + random.normal(key, total.shape), stated, state),
  )
  fine = on_grid(plain, spacing)
  first, second = (
    np.asarray(fine.finalize(jax.random.key(key), fine.init(0.0), jnp.full(200_000, x))[0])
    for key, x in enumerate((np.float32(0), np.float32(1)))
  )
  assert audit_residues(
    first, second, epsilon_bound(1 - 1e-6, 1e-5), spacing=spacing
  ).bound > gaussian_epsilon(1.0, 1e-5)


@pytest.mark.parametrize("share", [0.999, 1e-3, 1e-8])
def test_spacings_below_a_sixteenth_of_the_noise_are_refused(share):
  plain = gaussian_sum(1.0, SIGMA)
  scaled = joint_clipped_sum({"v": 1.0, "w": 8.0}, 1.0, SIGMA)
  groups = grouped({"v": plain, "w": gaussian_sum(1.0, 8 * SIGMA)}, {"v": "v", "w": "w"})
  weighted = weighted_average(1.0, SIGMA, min_total_weight=2.0)
  for query, factor in (
    (plain, 1.0),
    (average(plain, 4.0), 0.25),
    (scaled, 8.0),
    (groups, 8.0),
    (weighted, 1.0),
  ):
    with pytest.raises(ValueError, match="Expected spacing to be at least 1/16 of the noise"):
      on_grid(query, share * factor * SIGMA / 16)
    on_grid(query, factor * SIGMA / 16)


def test_queries_without_float_noise_take_any_grid_and_those_that_do_not_state_it_none():
  on_grid(gaussian_sum(1.0, 0.0), 1e-20)
  on_grid(no_privacy(), 1e-20)
  on_grid(discrete_sum(jnp.zeros(4), 1.0, 1.0, num_clients=10), 1e-20)
  silent = gaussian_sum(1.0, SIGMA)._replace(noise=None)
  for query in (silent, average(silent, 2.0), grouped({"x": silent}, "x")):
    with pytest.raises(ValueError, match="states its noise"):
      on_grid(query, 1.0)


@pytest.mark.sweep
@pytest.mark.parametrize("spacing", [1e-3, 0.3, 1.0])
def test_noise_that_a_round_decides_on_doubles_the_spacing_until_it_is_coarse_enough(spacing):
  """Schedules and adaptive clip norms: the least multiple 2^j of the spacing, a sixteenth of the
  noise or more.
  """
  scheduled = gaussian_sum(1.0, lambda step: 2.0 ** (step.astype(jnp.float32) - 2.0))
  total = jnp.zeros(20_000)
  gridded, state = on_grid(scheduled, spacing), scheduled.init(total)
  for step in range(8):
    result, event, state = jax.jit(gridded.finalize)(jax.random.key(step), state, total)
    least = float(event.stddev) / 16
    assert float(event.stddev) == 2.0 ** (step - 2)
    expected = np.float32(spacing) * 2.0 ** max(0, math.ceil(math.log2(least / spacing)))
    values = np.abs(np.asarray(result, np.float64))
    assert np.min(values[values > 0]) == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(values / expected, np.rint(values / expected), atol=1e-3)


def test_a_round_without_noise_keeps_the_spacing():
  silent = on_grid(gaussian_sum(1.0, lambda step: 0.0 * step.astype(jnp.float32)), 1e-3)
  np.testing.assert_array_equal(
    release(silent, jnp.float32([0.0014, 0.0016])), np.float32([0.001, 0.002])
  )


def test_adaptive_clipping_on_a_grid():
  """A round's spacing follows its noise of about twice the clip norm."""
  query = adaptive_clipped_sum(2.0, 1000.0)
  gridded, total = on_grid(query, 2.0**-10), AdaptiveContribution(jnp.zeros(20_000), jnp.float32(0))
  for clip_norm, expected in ((7.9, 1.0), (17.0, 4.0)):
    state = query.init(jnp.zeros(20_000))._replace(clip_norm=jnp.float32(clip_norm))
    values = np.abs(gridded.finalize(jax.random.key(0), state, total)[0])
    assert np.min(values[values > 0]) == expected


RECORD = {"a": jnp.zeros(3), "b": {"v": jnp.zeros(2), "w": jnp.zeros(4)}}


@pytest.mark.parametrize("name", query_cases.examples(RECORD))
def test_queries_state_their_noise(name):
  case = query_cases.examples(RECORD)[name]
  noise = case.query.noise
  stated, largest = (
    float(noise(case.query.init(RECORD)) if callable(noise) else noise),
    max(case.stddevs.values()),
  )
  # a bound: its joint query has a larger scale for vectors that are in other groups
  if name == "nested":
    assert stated > largest
  else:
    assert stated == pytest.approx(largest, rel=1e-6)
