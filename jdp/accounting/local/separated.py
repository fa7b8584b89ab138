"""The best split of a budget between a vector's direction and magnitude.

The setting is Definition 1 of arXiv 1812.00984.

The estimate is the product of PrivUnit's and ScalarDP's estimates. For a vector of norm r its error
is (r^2 + Var(r))/m^2 - r^2. So the direction's 1/m^2 and the magnitude's variance Var(r) multiply.
"""

from typing import NamedTuple

import numpy as np

from jdp import _validate
from jdp._arguments import Rows, checked
from jdp.accounting.local.priv_unit import optimal_cap
from jdp.accounting.local.scalar_dp import ScalarGrid, level_variance, scalar_grid
from jdp.accounting.local.threshold import MAX_EPSILON, MIN_EPSILON

_FIRST_POINTS, _FINER_POINTS = 256, 16


class Split(NamedTuple):
  """A budget's two parts, and the error that they achieve.

  Attributes:
    direction: epsilon of `priv_unit`.
    magnitude: Epsilon of `scalar_dp`. The two add up to the budget.
    mean_squared_error: E||estimate - vector||^2, averaged over the norms, or the worst.
  """

  direction: float
  magnitude: float
  mean_squared_error: float


@checked
def best_split(
  dim: int, epsilon: float, max_value: float, norms: Rows | float | None = None
) -> Split:
  """The split of epsilon with the least error of `separated(priv_unit(...), scalar_dp(...))`.

  The best number of levels jumps as the magnitude's share grows, and so does the error. So the
  search takes a grid of 256 shares, and then ever finer grids around the best one. It may settle in
  the second-best of two dips, with an error some 0.1 % above the least.

  Args:
    dim: The dimension d. At least 2.
    epsilon: the whole budget, in [0.01, 1e4].
    max_value: r_max of `scalar_dp`, > 0.
    norms: the vectors' norms, of any shape, within [0, max_value]. One norm, or a sample of a
      *public* distribution, over which the error is averaged. None asks for the worst error of all
      norms in [0, max_value], exactly.

  Returns:
    A `Split`.

  Raises:
    ValueError: if an argument is out of range.

  >>> split = best_split(1000, 10.0, 1.0, norms=0.5)
  >>> round(split.direction, 1), round(split.magnitude, 1), round(split.mean_squared_error, 1)
  (7.5, 2.5, 45.0)
  """
  _validate.in_range(10 * MIN_EPSILON, MAX_EPSILON, epsilon=epsilon)
  _validate.positive(max_value=max_value)
  if norms is not None:
    norms = np.atleast_1d(np.asarray(norms, float))
    if not (norms.size and np.all((norms >= 0) & (norms <= max_value))):
      raise ValueError(
        f"Expected at least one norm, all in [0, max_value = {max_value}]; clip them first."
      )

  def error(magnitude: float) -> float:
    return _error(dim, epsilon - magnitude, scalar_grid(magnitude, max_value), norms)

  # Both parts stay above `MIN_EPSILON`, below which `optimal_cap` refuses the direction's.
  low, high = 2 * MIN_EPSILON, epsilon - 2 * MIN_EPSILON
  points = _FIRST_POINTS
  # Each grid covers the two steps around the best share of the grid before it.
  while high > low * (1 + 1e-3):
    shares = np.geomspace(low, high, points)
    best = int(np.argmin([error(share) for share in shares]))
    low, high = shares[max(best - 1, 0)], shares[min(best + 1, points - 1)]
    points = _FINER_POINTS
  magnitude = min((low, (low + high) / 2, high), key=error)
  return Split(float(epsilon - magnitude), float(magnitude), float(error(magnitude)))


def _error(dim: int, epsilon: float, grid: ScalarGrid, norms: np.ndarray | None) -> float:
  """The error at the best direction for `epsilon`, averaged over norms, or the largest of all."""
  inflation, unit = np.exp(-2 * optimal_cap(dim, epsilon).log_m), grid.max_value / grid.num_levels
  if norms is not None:
    errors = _second_moment(grid, norms / unit) * inflation - (norms / unit) ** 2
    return float(np.mean(errors)) * unit**2
  # Between two levels r^2 + Var(r) is a line. So the error is a concave parabola, and is largest at
  # an end or at its vertex.
  moments = _second_moment(grid, np.arange(grid.num_levels + 1.0)) * inflation
  level, rise = np.arange(grid.num_levels), np.diff(moments)
  vertex = np.clip(rise / 2 - level, 0.0, 1.0)
  return float(np.max(moments[:-1] + vertex * rise - (level + vertex) ** 2)) * unit**2


def _second_moment(grid: ScalarGrid, x: np.ndarray) -> np.ndarray:
  """x^2 plus the variance at x, in units of the grid's spacing."""
  j = np.minimum(np.floor(x), grid.num_levels - 1)
  return x**2 + level_variance(grid.epsilon, grid.num_levels, j, x - j)
