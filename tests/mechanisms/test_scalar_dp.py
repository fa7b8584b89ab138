"""ScalarDP: constants against brute force, the channel against its definition, no sampling where
none is needed.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jdp.accounting.local import scalar_dp as scalar
from jdp.mechanisms import scalar_dp
from tests.helpers import releases
from tests.helpers.level_channel import exact_law

FALSE_FAILURE_RATE = 1e-6


def law_of_levels(epsilon, k, value):
  return exact_law(epsilon, np.arange(k + 1) / k, value)


def exact_moments(epsilon, k, value):
  """Mean and variance of the estimate for r_max = 1, from the definition of the channel, by
  enumeration.
  """
  law = law_of_levels(epsilon, k, value)
  a = (math.exp(epsilon) + k) / (math.exp(epsilon) - 1) / k
  b = k * (k + 1) / (2 * (math.exp(epsilon) + k))
  estimates = a * (np.arange(k + 1) - b)
  mean = law @ estimates
  return mean, law @ (estimates - mean) ** 2


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("k", [1, 2, 5, 40])
def test_estimate_is_unbiased_with_the_stated_variance(epsilon, k):
  grid = scalar.scalar_grid(epsilon, 1.0, k)
  for value in np.linspace(0, 1, 41):
    mean, variance = exact_moments(epsilon, k, value)
    assert mean == pytest.approx(value, rel=1e-11, abs=1e-11 * grid.max_norm)
    assert grid.variance(value) == pytest.approx(variance, rel=1e-9)


@pytest.mark.sweep
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("k", [1, 2, 5, 40])
def test_worst_variance_is_the_maximum_over_all_values(epsilon, k):
  grid = scalar.scalar_grid(epsilon, 1.0, k)
  found = max(grid.variance(value) for value in np.linspace(0, 1, 20_001))
  assert found <= grid.worst_variance * (1 + 1e-12)
  assert found == pytest.approx(grid.worst_variance, rel=1e-6)


@pytest.mark.parametrize(
  ("epsilon", "k", "variance"),
  [(2.0, 2, 0.249979593), (4.0, 4, 0.0441734953), (8.0, 16, 0.00278064984)],
)
def test_best_number_of_levels(epsilon, k, variance):
  """The variances are those that `exact_moments` finds on a fine grid of values, for the best k of
  all up to 200.
  """
  grid = scalar.scalar_grid(epsilon, 1.0)
  assert grid.num_levels == k
  assert grid.worst_variance == pytest.approx(variance, rel=1e-8)
  fine = np.linspace(0, 1, 2001)
  assert max(exact_moments(epsilon, k, v)[1] for v in fine) == pytest.approx(variance, rel=1e-5)
  for other in (k - 1, k + 1):
    assert max(exact_moments(epsilon, other, v)[1] for v in fine) > variance


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [30.0, 100.0, 1e4])
def test_large_budgets_do_not_overflow(epsilon):
  grid = scalar.scalar_grid(epsilon, 3.0)
  assert np.all(np.isfinite(grid))
  assert grid.num_levels <= scalar.MAX_LEVELS
  mechanism = scalar_dp(epsilon, 3.0)
  assert float(mechanism.privatize(jax.random.key(0), jnp.float32(1.5))) == pytest.approx(
    1.5, abs=2e-3
  )


made = functools.cache(scalar_dp)


def levels(mechanism, value, count=200_000):
  return releases.draw(mechanism.encode, value, count, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("value", [0.0, 0.3, 0.5, 1.0])
def test_levels_have_the_law_of_the_channel(value):
  """Chi-square on 200,000 draws; rejects a budget 2 % too large, whose levels are kept 0.9 points
  more often.
  """
  k = 4

  def p_value(epsilon):
    return stats.chisquare(observed, law_of_levels(epsilon, k, value) * observed.sum()).pvalue

  observed = np.bincount(levels(made(2.0, 1.0, num_levels=k), value), minlength=k + 1)
  assert p_value(2.0) > FALSE_FAILURE_RATE
  assert p_value(2.04) < FALSE_FAILURE_RATE


def test_epsilon_is_the_exact_likelihood_ratio():
  grid = scalar.scalar_grid(3.0, 1.0, 7)
  log_keep = math.log1p(-math.exp(grid.log_lie_probability))
  assert log_keep - grid.log_lie_probability + math.log(7) == pytest.approx(3.0, rel=1e-14)


@pytest.mark.parametrize(
  ("hostile", "tame"),
  [(np.nan, 0.0), (-3.0, 0.0), (-np.inf, 0.0), (np.inf, 1.0), (1e30, 1.0), (1e-42, 0.0)],
)
def test_values_outside_the_domain_release_as_its_nearest_point(hostile, tame):
  mechanism = made(1.0, 1.0)
  np.testing.assert_array_equal(levels(mechanism, hostile, 200), levels(mechanism, tame, 200))


def test_max_norm_bounds_every_estimate_and_is_reached():
  mechanism = scalar_dp(1.0, 2.0)
  estimates = np.asarray(mechanism.decode(jnp.arange(mechanism.parameters.num_levels + 1)))
  assert np.max(np.abs(estimates)) == pytest.approx(mechanism.max_norm, rel=1e-6)


@pytest.mark.parametrize(
  "arguments",
  [
    (0.0, 1.0),
    (float("nan"), 1.0),
    (1.0, 0.0),
    (1.0, float("inf")),
    (1.0, 1.0, 0),
    (1.0, 1.0, 2**17),
    (1.0, 1.0, 2.5),
  ],
)
def test_bad_arguments_are_refused(arguments):
  with pytest.raises(ValueError, match="Expected"):
    scalar.scalar_grid(*arguments)
