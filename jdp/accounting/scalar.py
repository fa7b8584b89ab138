"""Closed forms of k-ary randomised response on a grid: ScalarDP (arXiv 1812.00984, Algorithm 3).

A number r in [0, r_max] is rounded without bias to one of the levels 0..k, the
level is kept with probability e^epsilon / (e^epsilon + k) and otherwise
replaced by one of the k others; a (level - b) is unbiased. In units of
r_max/k, and with x = k r / r_max, j = floor(x), f = x - j, the variance is

    (1/A - 1)(j^2 + (2j+1) f) + f(1-f) + C - 2 x B - B^2

where A = (e^epsilon - 1)/(e^epsilon + k) is the slope of E[level kept],
B = b/A and C = k(k+1)(2k+1)/(6 (e^epsilon + k)) / A^2. For fixed f it is convex
in j, for fixed j a concave parabola in f: the worst r lies in the first or the
last interval. Everything is written in e^-epsilon, which cannot overflow.
"""

import math
from typing import NamedTuple

import numpy as np

from jdp import _validate

MAX_LEVELS = 2**16  # beyond it the rounding to levels is float32's own, and k-ary draws need wider words


class ScalarGrid(NamedTuple):
  """The constants of ScalarDP.

  Attributes:
    epsilon: the privacy loss of one release.
    max_value: r_max.
    num_levels: k; the levels are 0..k.
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
    return float(_variance(self.epsilon, self.num_levels, j, x - j)) * (self.max_value / self.num_levels) ** 2

  @property
  def worst_variance(self) -> float:
    """The largest variance over all values."""
    return float(worst_variance(self.epsilon, np.array(self.num_levels))) * self.max_value**2


def scalar_grid(epsilon: float, max_value: float, num_levels: int | None = None) -> ScalarGrid:
  """The constants for `num_levels` = k, by default the k with the least worst-case variance.

  Raises:
    ValueError: if epsilon or max_value is not positive and finite, or num_levels not in [1, 2^16].

  >>> grid = scalar_grid(4.0, 1.0)
  >>> grid.num_levels, round(grid.worst_variance, 7)
  (4, 0.0441735)
  """
  _validate.positive(epsilon=epsilon, max_value=max_value)
  k = best_num_levels(epsilon) if num_levels is None else num_levels
  _validate.integer(1, num_levels=k)
  _validate.in_range(1, MAX_LEVELS, num_levels=k)
  slope, shift = _slope(epsilon, k), _shift(epsilon, k)
  log_lie = math.log(k) - float(np.logaddexp(epsilon, math.log(k)))
  return ScalarGrid(epsilon, max_value, int(k), log_lie, max_value / k / slope, shift * slope)


def best_num_levels(epsilon: float) -> int:
  """The k that minimises the worst-case variance; of the order e^(epsilon/3), at most 2^16.

  >>> [best_num_levels(epsilon) for epsilon in (2.0, 4.0, 8.0)]
  [2, 4, 16]
  """
  largest = min(MAX_LEVELS, math.ceil(8 * math.exp(min(epsilon / 3, 20))))
  return int(np.argmin(worst_variance(epsilon, np.arange(1, largest + 1)))) + 1


def worst_variance(epsilon: float, k: np.ndarray) -> np.ndarray:
  """The largest variance over r in [0, 1], for each k, in units of r_max^2."""
  k = np.asarray(k, float)
  first, last = (_worst_in_interval(epsilon, k, j) for j in (np.zeros_like(k), k - 1))
  return np.maximum(first, last) / k**2


def _worst_in_interval(epsilon, k, j):
  """The parabola in f is concave with leading coefficient -1: its vertex, if inside [0, 1]."""
  at_0, at_1 = _variance(epsilon, k, j, 0.0), _variance(epsilon, k, j, 1.0)
  vertex = np.clip((at_1 - at_0 + 1) / 2, 0.0, 1.0)
  return _variance(epsilon, k, j, vertex)


def _variance(epsilon, k, j, f):
  """Variance at x = j + f, in units of (r_max/k)^2, with k - 1 >= j."""
  rest = math.exp(-epsilon)
  slope, shift = _slope(epsilon, k), _shift(epsilon, k)
  second = k * (k + 1) * (2 * k + 1) / 6 * rest / (1 + k * rest) / slope**2
  excess = (k + 1) * rest / -math.expm1(-epsilon)  # 1/A - 1
  return excess * (j**2 + (2 * j + 1) * f) + f * (1 - f) + second - 2 * (j + f) * shift - shift**2


def _slope(epsilon, k):
  return -math.expm1(-epsilon) / (1 + k * math.exp(-epsilon))


def _shift(epsilon, k):
  return k * (k + 1) / 2 * math.exp(-epsilon) / -math.expm1(-epsilon)
