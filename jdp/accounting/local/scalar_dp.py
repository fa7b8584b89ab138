"""Closed forms of k-ary randomised response on a grid (arXiv 1812.00984, Algorithms 3 and 4).

ScalarDP rounds a number r in [0, r_max] without bias to one of the levels 0..k. It keeps the level
with probability e^epsilon / (e^epsilon + k), and otherwise replaces it by one of the k others. The
estimate a (level - b) is unbiased. Let x = k r / r_max, j = floor(x) and f = x - j. In units of
r_max/k the variance is

    (1/A - 1)(j^2 + (2j+1) f) + f(1-f) + C - 2 x B - B^2

where A = (e^epsilon - 1)/(e^epsilon + k) is the slope of E[level kept]. B is b/A, and C is
k(k+1)(2k+1)/(6 (e^epsilon + k)) / A^2. The variance is convex in j for fixed f, and a concave
parabola in f for fixed j. So the worst r lies in the first or the last interval. Everything is
written in e^-epsilon, which cannot overflow.

ScalarRelDP does the same on levels e_0 = 0 and e_1..e_k in geometric progression. Its variance is

    E[e_J^2]/A + (sum_i e_i^2)/(e^epsilon + k)/A^2 - (r + B)^2

where now B = (sum_i e_i)/(e^epsilon - 1).
"""

import math
from typing import Any, NamedTuple

import numpy as np

from jdp import _validate
from jdp._arguments import checked

# With more levels the rounding to them is float32's own, and k-ary draws need wider words.
MAX_LEVELS = 2**16


class ScalarGrid(NamedTuple):
  """The constants of ScalarDP.

  Attributes:
    epsilon: the privacy loss of one release.
    max_value: r_max.
    num_levels: k. The levels are 0..k.
    log_lie_probability: log of k / (e^epsilon + k), the probability of another level.
    a: scale of the estimate a (level - b).
    b: offset of the estimate.
  """

  epsilon: float
  max_value: float
  num_levels: int
  log_lie_probability: float
  a: float
  b: float

  @property
  def max_norm(self) -> float:
    """The largest |estimate|: estimates may be negative, and exceed max_value."""
    return self.a * max(self.b, self.num_levels - self.b)

  def variance(self, value: float) -> float:
    """E(estimate - value)^2 for a value in [0, max_value]."""
    x = self.num_levels * value / self.max_value
    j = min(math.floor(x), self.num_levels - 1)
    variance = float(level_variance(self.epsilon, self.num_levels, j, x - j))
    return variance * (self.max_value / self.num_levels) ** 2

  @property
  def worst_variance(self) -> float:
    """The largest variance over all values."""
    return float(worst_variance(self.epsilon, np.array(self.num_levels))) * self.max_value**2


@checked
def scalar_grid(epsilon: float, max_value: float, num_levels: int | None = None) -> ScalarGrid:
  """The constants for `num_levels` = k, by default the k with the least worst-case variance.

  Raises:
    ValueError: if epsilon is below 1e-12 or infinite. Also if max_value is not in [1e-150, 1e150],
      or num_levels not in [1, 2^16].

  >>> grid = scalar_grid(4.0, 1.0)
  >>> grid.num_levels, round(grid.worst_variance, 7)
  (4, 0.0441735)
  """
  _check(epsilon, max_value)
  k = best_num_levels(epsilon) if num_levels is None else num_levels
  _validate.integer(1, num_levels=k)
  _validate.in_range(1, MAX_LEVELS, num_levels=k)
  slope = _slope(epsilon, k)
  scale, offset = max_value / k / slope, _shift(epsilon, k) * slope
  return ScalarGrid(epsilon, max_value, int(k), _log_lie(epsilon, k), scale, offset)


@checked
def best_num_levels(epsilon: float) -> int:
  """The k that minimises the worst-case variance.

  It is of the order e^(epsilon/3), and at most 2^16.

  >>> [best_num_levels(epsilon) for epsilon in (2.0, 4.0, 8.0)]
  [2, 4, 16]
  """
  # The factor 8 leaves room above the order of the best k; the 20 keeps exp from overflowing.
  largest = min(MAX_LEVELS, math.ceil(8 * math.exp(min(epsilon / 3, 20))))
  return int(np.argmin(worst_variance(epsilon, np.arange(1, largest + 1)))) + 1


def worst_variance(epsilon: float, k: np.ndarray) -> np.ndarray:
  """The largest variance over r in [0, 1], for each k, in units of r_max^2."""
  k = np.asarray(k, float)
  # Convex in j: only the first and the last interval can hold the worst value.
  first, last = (_worst_in_interval(epsilon, k, j) for j in (np.zeros_like(k), k - 1))
  return np.maximum(first, last) / k**2


class RelativeGrid(NamedTuple):
  """The constants of ScalarRelDP.

  Attributes:
    epsilon: The privacy loss of one release.
    levels: the k + 1 levels, from 0 and min_value up to max_value. Those above 0 are in geometric
      progression.
    log_lie_probability: log of k / (e^epsilon + k), the probability of another level.
    estimates: the estimate for each level, (level - b)/A.
  """

  epsilon: float
  levels: tuple[float, ...]
  log_lie_probability: float
  estimates: tuple[float, ...]

  @property
  def max_norm(self) -> float:
    """The largest |estimate|: estimates may be negative, and exceed max_value."""
    return max(map(abs, self.estimates))

  def variance(self, value: float) -> float:
    """E(estimate - value)^2 for a value in [0, max_value]."""
    above = int(np.searchsorted(self.levels[:-1], value, side="right"))
    low, high, at_0, at_1 = (part[max(above - 1, 0)] for part in self._intervals())
    return float(at_0 + (value - low) * ((at_1 - at_0) / (high - low) + (high - value)))

  @property
  def worst_relative_variance(self) -> float:
    """The largest variance(r) / r^2 over r in [min_value, max_value].

    In each interval it is c_0 s^2 + c_1 s - 1 with s = 1/r. So it is largest at an end, or at the
    parabola's vertex.
    """
    low, high, at_0, at_1 = (part[1:] for part in self._intervals())
    # The interval from 0 to min_value is left out: r starts at min_value.
    c_1 = (at_1 - at_0) / (high - low) + low + high
    c_0 = at_0 - (c_1 - low) * low
    vertex = np.clip(-2 * c_0 / c_1, low, high)
    return float(max(np.max(c_0 / r**2 + c_1 / r - 1) for r in (low, high, vertex)))

  def _intervals(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Each interval's ends, and the variance at them.

    Between the ends the variance is a line plus (high-r)(r-low), which the rounding adds.
    """
    levels = np.array(self.levels)
    k, rest = len(levels) - 1, math.exp(-self.epsilon)
    slope, shift = _slope(self.epsilon, k), np.sum(levels) * rest / -math.expm1(-self.epsilon)
    spread = np.sum(levels**2) * rest / (1 + k * rest) / slope**2
    variances = _excess(self.epsilon, k) * levels**2 + spread - 2 * levels * shift - shift**2
    return levels[:-1], levels[1:], variances[:-1], variances[1:]


@checked
def relative_grid(
  epsilon: float, max_value: float, num_levels: int, min_value: float
) -> RelativeGrid:
  """The constants of ScalarRelDP for k = `num_levels` levels above 0.

  The levels are 0 and then min_value up to max_value, in geometric progression.

  Raises:
    ValueError: if epsilon is not positive, or 0 < min_value < max_value does not hold. Also if
      num_levels is not in [2, 2^16].

  >>> grid = relative_grid(8.0, 1.0, num_levels=4, min_value=0.125)
  >>> [round(level, 12) for level in grid.levels], round(grid.variance(0.25), 4)
  ([0.0, 0.125, 0.25, 0.5, 1.0], 0.0002)
  """
  _check(epsilon, max_value)
  _validate.positive(min_value=min_value)
  _validate.integer(2, num_levels=num_levels)
  _validate.in_range(2, MAX_LEVELS, num_levels=num_levels)
  if not min_value < max_value:
    raise ValueError(f"Expected min_value below max_value = {max_value}, got {min_value}.")
  levels = np.concatenate([[0.0], np.geomspace(min_value, max_value, num_levels)])
  shift = np.sum(levels) * math.exp(-epsilon) / -math.expm1(-epsilon)
  estimates = levels / _slope(epsilon, num_levels) - shift
  log_lie = _log_lie(epsilon, num_levels)
  return RelativeGrid(epsilon, tuple(levels.tolist()), log_lie, tuple(estimates.tolist()))


@checked
def best_num_relative_levels(epsilon: float, max_value: float, min_value: float) -> int:
  """The k >= 2 of ScalarRelDP with the least worst-case relative variance.

  The worst case is over [min_value, max_value]. The search goes up to k = 1024.

  >>> [best_num_relative_levels(epsilon, 1.0, 0.01) for epsilon in (4.0, 8.0, 12.0)]
  [2, 4, 12]
  """
  _validate.positive(epsilon=epsilon)
  largest = min(1024, math.ceil(8 * math.exp(min(epsilon / 3, 20))))

  def worst(k: int) -> float:
    return relative_grid(epsilon, max_value, k, min_value).worst_relative_variance

  return min(range(2, max(largest, 2) + 1), key=worst)


def _check(epsilon: float, max_value: float) -> None:
  """Refuses arguments at which the scale of the estimates would underflow or overflow."""
  _validate.in_range(1e-12, math.inf, epsilon=epsilon)
  _validate.in_range(1e-150, 1e150, max_value=max_value)
  _validate.positive(epsilon=epsilon)


def _log_lie(epsilon: float, k: int) -> float:
  """log of k / (e^epsilon + k)."""
  return math.log(k) - float(np.logaddexp(epsilon, math.log(k)))


def _worst_in_interval(epsilon: float, k: np.ndarray, j: np.ndarray) -> np.ndarray:
  """The largest variance in an interval.

  The variance is a concave parabola in f with leading coefficient -1. It is largest at the vertex,
  or at the end of [0, 1] closest to it.
  """
  at_0, at_1 = level_variance(epsilon, k, j, 0.0), level_variance(epsilon, k, j, 1.0)
  vertex = np.clip((at_1 - at_0 + 1) / 2, 0.0, 1.0)
  return level_variance(epsilon, k, j, vertex)


def level_variance(epsilon: float, k, j, f):
  """ScalarDP's variance at x = j + f, elementwise, in units of (r_max/k)^2.

  j is at most k - 1, and f is in [0, 1].
  """
  rest = math.exp(-epsilon)
  slope, shift = _slope(epsilon, k), _shift(epsilon, k)
  second = k * (k + 1) * (2 * k + 1) / 6 * rest / (1 + k * rest) / slope**2
  kept = _excess(epsilon, k) * (j**2 + (2 * j + 1) * f)
  return kept + f * (1 - f) + second - 2 * (j + f) * shift - shift**2


def _slope(epsilon: float, k: Any) -> Any:
  """A, elementwise."""
  return -math.expm1(-epsilon) / (1 + k * math.exp(-epsilon))


def _excess(epsilon: float, k: Any) -> Any:
  """1/A - 1, elementwise."""
  return (k + 1) * math.exp(-epsilon) / -math.expm1(-epsilon)


def _shift(epsilon: float, k: Any) -> Any:
  """B = b/A, elementwise."""
  return k * (k + 1) / 2 * math.exp(-epsilon) / -math.expm1(-epsilon)
