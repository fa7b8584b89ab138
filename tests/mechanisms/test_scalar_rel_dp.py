"""ScalarRelDP: constants against brute force, the channel against its definition."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.accounting.local import scalar_dp
from jdp.mechanisms import scalar_rel_dp
from tests.helpers import releases, statistical
from tests.helpers.level_channel import exact_law

CASES = [(0.1, 2), (2.0, 3), (8.0, 9)]


@pytest.mark.parametrize(("epsilon", "k"), CASES)
def test_estimate_is_unbiased_with_the_stated_variance(epsilon, k):
  grid = scalar_dp.relative_grid(epsilon, 3.0, k, 0.02)
  assert grid.levels == pytest.approx(
    [0, *(0.02 * (3.0 / 0.02) ** (i / (k - 1)) for i in range(k))], rel=1e-12
  )
  for value in np.linspace(0, 3, 41):
    law, estimates = exact_law(epsilon, grid.levels, value), np.array(grid.estimates)
    assert law @ estimates == pytest.approx(value, abs=1e-12 * grid.max_norm)
    assert grid.variance(value) == pytest.approx(law @ (estimates - value) ** 2, rel=1e-9)
  assert grid.max_norm == np.max(np.abs(estimates))


@pytest.mark.sweep
@pytest.mark.parametrize(("epsilon", "k"), [*CASES, (8.0, 2), (14.0, 5)])
def test_worst_relative_variance_is_the_maximum_over_all_values(epsilon, k):
  """It is at the least value for three cases, and within an interval for the last two."""
  grid = scalar_dp.relative_grid(epsilon, 3.0, k, 0.02)
  found = max(grid.variance(value) / value**2 for value in np.geomspace(0.02, 3.0, 10_001))
  assert found == pytest.approx(grid.worst_relative_variance, rel=1e-5)
  assert found <= grid.worst_relative_variance * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", [1.0, 6.0, 12.0])
def test_best_number_of_levels(epsilon):
  best = scalar_dp.best_num_relative_levels(epsilon, 1.0, 0.05)
  worst = {
    k: scalar_dp.relative_grid(epsilon, 1.0, k, 0.05).worst_relative_variance for k in range(2, 200)
  }
  assert best == min(worst, key=worst.__getitem__)


def test_large_budgets_do_not_overflow():
  mechanism = scalar_rel_dp(1e4, 3.0, num_levels=1000, min_value=1e-3)
  estimate = mechanism.privatize(jax.random.key(0), jnp.float32(0.5))
  assert float(estimate) == pytest.approx(0.5, rel=0.01)
  assert mechanism.mean_squared_error(0.5) <= (0.005 * 0.5) ** 2


made = functools.cache(scalar_rel_dp)


def levels(mechanism, value, count=100_000):
  return releases.draw(mechanism.encode, value, count, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("value", [0.0, 0.05, 0.1, 0.4, 1.0])
def test_levels_have_the_law_of_the_channel(value):
  """100,000 draws; the distribution of a budget 4 % larger is caught."""
  mechanism = made(2.0, 1.0, num_levels=4, min_value=0.1)
  law, other = (exact_law(epsilon, mechanism.parameters.levels, value) for epsilon in (2.0, 2.08))
  counts = np.bincount(levels(mechanism, value), minlength=5)
  statistical.assert_frequencies(counts, law, catches=other)


def test_epsilon_is_the_largest_likelihood_ratio():
  """Over pairs of values: reached between two levels."""
  grid = scalar_dp.relative_grid(3.0, 1.0, 6, 0.01)
  laws = np.array(
    [exact_law(3.0, grid.levels, value) for value in (*grid.levels, *np.linspace(0, 1, 30))]
  )
  assert np.log(np.max(laws[:, None] / laws[None])) == pytest.approx(3.0, rel=1e-12)
  keep = math.log1p(-math.exp(grid.log_lie_probability))
  assert keep - grid.log_lie_probability + math.log(6) == pytest.approx(3.0, rel=1e-12)


@pytest.mark.parametrize(
  ("hostile", "tame"),
  [(np.nan, 0.0), (-3.0, 0.0), (-np.inf, 0.0), (np.inf, 1.0), (1e30, 1.0), (1e-42, 0.0)],
)
def test_values_outside_the_domain_release_as_its_nearest_point(hostile, tame):
  mechanism = made(1.0, 1.0, num_levels=3, min_value=0.1)
  np.testing.assert_array_equal(levels(mechanism, hostile, 200), levels(mechanism, tame, 200))


@pytest.mark.parametrize(
  ("epsilon", "max_value", "k", "min_value"),
  [
    (0.0, 1.0, 3, 0.1),
    (math.nan, 1.0, 3, 0.1),
    (1.0, math.inf, 3, 0.1),
    (1.0, 1.0, 1, 0.1),
    (1.0, 1.0, 2**17, 0.1),
    (1.0, 1.0, 2.5, 0.1),
    (1.0, 1.0, 3, 0.0),
    (1.0, 1.0, 3, 1.0),
    (1.0, 1.0, 2**16, 0.99),
  ],
)
def test_bad_arguments_are_refused(epsilon, max_value, k, min_value):
  with pytest.raises(ValueError, match="Expected"):
    scalar_rel_dp(epsilon, max_value, num_levels=k, min_value=min_value)
