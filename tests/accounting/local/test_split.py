"""The split of a budget: against brute force over splits and over norms."""

import math

import numpy as np
import pytest

from jdp.accounting.local.scalar_dp import scalar_grid
from jdp.accounting.local.separated import _error, best_split
from jdp.mechanisms import priv_unit, scalar_dp, separated


def error(dim, direction, magnitude, norm):
  """As the mechanism states it, for max_value 2."""
  return separated(priv_unit(dim, direction), scalar_dp(magnitude, 2.0)).mean_squared_error(norm)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("dim", "epsilon", "norm"), [(10, 1.0, 2.0), (1000, 10.0, 1.0), (1000, 10.0, 0.0)]
)
def test_error_is_the_mechanisms_and_no_split_of_a_fine_grid_is_better(dim, epsilon, norm):
  split = best_split(dim, epsilon, 2.0, norm)
  assert split.direction + split.magnitude == pytest.approx(epsilon, rel=1e-12)
  assert split.mean_squared_error == pytest.approx(
    error(dim, split.direction, split.magnitude, norm), rel=1e-9
  )
  shares = epsilon * np.linspace(0.02, 0.98, 97)
  assert split.mean_squared_error <= min(error(dim, epsilon - s, s, norm) for s in shares) * 1.002


@pytest.mark.slow
def test_norms_of_a_distribution_are_averaged():
  norms = np.array([[0.2, 0.5], [1.1, 2.0]])
  split = best_split(100, 6.0, 2.0, norms)
  errors = [error(100, split.direction, split.magnitude, norm) for norm in norms.flat]
  assert split.mean_squared_error == pytest.approx(np.mean(errors), rel=1e-9)
  assert split.mean_squared_error < best_split(100, 6.0, 2.0).mean_squared_error


@pytest.mark.slow
@pytest.mark.parametrize(
  ("direction", "magnitude"), [(0.5, 0.5), (8.0, 2.0), (60.0, 6.0), (2.0, 0.01)]
)
def test_worst_error_is_the_largest_over_all_norms(direction, magnitude):
  found = max(error(50, direction, magnitude, norm) for norm in np.linspace(0, 2, 401))
  worst = _error(50, direction, scalar_grid(magnitude, 2.0), None)
  assert found <= worst * (1 + 1e-9)
  assert found == pytest.approx(worst, rel=1e-3)


@pytest.mark.slow
def test_without_norms_the_worst_error_is_minimised():
  split = best_split(50, 5.0, 2.0)
  assert split.mean_squared_error == pytest.approx(
    _error(50, split.direction, scalar_grid(split.magnitude, 2.0), None), rel=1e-9
  )
  others = [_error(50, 5.0 - s, scalar_grid(s, 2.0), None) for s in np.linspace(0.1, 4.9, 97)]
  assert split.mean_squared_error <= min(others) * 1.002


@pytest.mark.parametrize("norms", [[], [-0.1], [2.1], [math.nan]])
def test_norms_outside_the_domain_are_refused(norms):
  with pytest.raises(ValueError, match=r"^Expected (norms to be an array|at least one norm)"):
    best_split(10, 1.0, 2.0, norms)


@pytest.mark.parametrize(
  ("epsilon", "max_value"), [(0.0, 1.0), (math.nan, 1.0), (1.0, 0.0), (2e4, 1.0)]
)
def test_bad_arguments_are_refused(epsilon, max_value):
  with pytest.raises(ValueError, match="Expected"):
    best_split(10, epsilon, max_value)
