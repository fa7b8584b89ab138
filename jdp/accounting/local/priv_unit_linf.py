"""Closed forms of the hypercube mechanism PrivUnit-infinity (arXiv 1812.00984, Algorithm 2).

A vector of [-1, 1]^d is rounded to a vertex of the cube, without bias. V is a uniform vertex. N is
the number of coordinates in which V agrees with the rounded vector: Binomial(d, 1/2). Let

    Q = P(N >= L),    f = E[2N/d - 1; N >= L] = C(d-1, L-1) / 2^d.

The mechanism draws V from {N >= L} with probability p, else from {N < L}. This costs exactly
epsilon = logit p - logit Q. It gives E[V] = m u with m = f (p/Q - (1-p)/(1-Q)).

Everything is float64 on the host and in logarithms, as Q is 2^-d at L = d.
"""

import bisect
import math
from typing import NamedTuple

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.local.threshold import check_epsilon, cost, logit, logit_of

MAX_DIM = 10**7

# The relative margin by which a mechanism's epsilon stays below the one asked for. It is far more
# than the error of the formulas.
_SAFETY = 5e-10


class Cube(NamedTuple):
  """How many coordinates agree, and how often: all that defines PrivUnit-infinity.

  Attributes:
    dim: d.
    kappa: The paper's threshold. The cap holds the V with <V, rounded input> > kappa. It is 2
      threshold - dim - 1.
    threshold: L, the least number of agreeing coordinates in the cap.
    p: the probability of drawing from the cap.
    logit_p: `log(p / (1-p))`. Accurate where p rounds to 1.
    log_q: log of the cap's share Q of all vertices.
    log_m: log of m, where E[V] = m u.
    epsilon: The exact privacy loss. It is logit p - logit Q.
  """

  dim: int
  kappa: int
  threshold: int
  p: float
  logit_p: float
  log_q: float
  log_m: float
  epsilon: float

  @property
  def m(self) -> float:
    """The m of E[V] = m u. The coordinates of releases are +-1/m."""
    return math.exp(self.log_m)


@checked
def optimal_cube(dim: int, epsilon: float) -> Cube:
  """The threshold and probability with the least mean squared error among all that cost epsilon.

  For given L the best p spends all of epsilon, and m = f / (Q + 1/(e^epsilon - 1)). From L to L +
  1, Q loses C(d, L) / 2^d, and f loses (2L - d)/d times that. So m grows exactly as long as (2L -
  d)/d < m. The optimum is the first L where it does not.

  Args:
    dim: The dimension d. From 1 to 1e7.
    epsilon: the budget, from 1e-3 to 1e4.

  Returns:
    A `Cube` whose exact epsilon is below the one asked for, by a relative 5e-10.

  Raises:
    ValueError: if an argument is out of range.

  >>> cube = optimal_cube(100, 4.0)
  >>> cube.threshold, round(cube.p, 6), round(cube.m, 6)
  (58, 0.795753, 0.151643)
  """
  _check(dim, epsilon)
  least = dim // 2 + 1

  def is_past(threshold: int) -> bool:
    """False for every L below the optimum, true from it on."""
    return not (2 * threshold - dim) / dim < _spend(dim, threshold, epsilon).m

  best = least + bisect.bisect_left(range(least, dim), True, key=is_past)
  return _spend(dim, best, epsilon)


@checked
def cube_at(dim: int, epsilon: float, kappa: int) -> Cube:
  """The cube of a given kappa. Its p is the best for epsilon: the one that spends all of it."""
  _check(dim, epsilon)
  return _spend(dim, _threshold(dim, kappa), epsilon)


@checked
def cube_of(dim: int, kappa: int, p: float) -> Cube:
  """The cube of a given (kappa, p), with its exact epsilon.

  Raises:
    ValueError: if kappa is not in [0, d-1], or p is not in (0, 1). Also if p is below the cap's own
      share Q, where the mechanism would point away from its input.

  >>> cube = cube_of(11, 2, 0.8)
  >>> round(cube.m, 8), round(cube.epsilon, 8)
  (0.27066859, 2.35863574)
  """
  _check(dim)
  cube = _costed_cube(dim, _threshold(dim, kappa), logit_of(p))
  if not cube.epsilon > 0:
    raise ValueError(
      f"Expected p above the cap's share of the vertices, {math.exp(cube.log_q):.6g}, got {p}."
    )
  return cube


@checked
def widest_cube(dim: int, epsilon: float, p: float) -> Cube:
  """The best threshold for a given p: the largest L that costs at most epsilon.

  It is the best because m grows with L, and so does the cost.

  Raises:
    ValueError: if an argument is out of range. Also if p alone costs more than epsilon, or is too
      small for any threshold.
  """
  _check(dim, epsilon)
  logit_p, least = logit_of(p), dim // 2 + 1

  def is_too_dear(threshold: int) -> bool:
    return not _costed_cube(dim, threshold, logit_p).epsilon <= epsilon

  if is_too_dear(least):
    raise ValueError(
      f"Expected p to cost at most epsilon = {epsilon} at kappa = 0, got p = {p}; take a smaller "
      "one."
    )
  best = least + bisect.bisect_left(range(least + 1, dim + 1), True, key=is_too_dear)
  return cube_of(dim, _kappa(dim, best), p)


def log_share(dim: int, threshold: int) -> float:
  """log P(N >= L) for L > d/2.

  The sum is the term at L, times one plus the later terms relative to it.
  """
  # Terms below e^-128 are left out.
  later = np.arange(min(dim - threshold, 8 * math.isqrt(dim) + 8))
  series = np.sum(np.cumprod((dim - threshold - later) / (threshold + 1.0 + later)))
  return float(log_probability(dim, np.array(threshold)) + np.log1p(series))


def log_probability(dim: int, count: np.ndarray) -> np.ndarray:
  """log P(N = count), to an absolute 1e-13 sqrt(d / 1e6) near the middle.

  The formula is that of C. Loader, "Fast and accurate computation of binomial probabilities"
  (2000). It uses the deviance, and the remainder of Stirling's formula. A difference of lgamma
  would lose 1e-9 at d = 1e6.
  """
  count = np.asarray(count, float)
  x = (2 * count - dim) / dim
  deviance = 0.5 * dim * (scipy.special.xlog1py(1 + x, x) + scipy.special.xlog1py(1 - x, -x))
  whole = _log_stirling(np.array(float(dim)))
  return whole - _log_stirling(count) - _log_stirling(dim - count) - deviance


def _log_stirling(n: np.ndarray) -> np.ndarray:
  """log(n! e^n / n^n)."""
  # The series is accurate from 16 on. Below, the logarithms are small enough to subtract.
  large = np.maximum(n, 16.0)
  r = 1 / (large * large)
  series = (1 / 12 + r * (-1 / 360 + r * (1 / 1260 + r * (-1 / 1680 + r / 1188)))) / large
  exact = scipy.special.gammaln(n + 1) - scipy.special.xlogy(n, n) + n
  return np.where(n < 16, exact, 0.5 * np.log(2 * math.pi * large) + series)


def _spend(dim: int, threshold: int, epsilon: float) -> Cube:
  """The cube whose p spends epsilon, up to the safety margin."""
  logit_q = logit(log_share(dim, threshold))
  return _costed_cube(dim, threshold, epsilon * (1 - _SAFETY) + logit_q)


def _costed_cube(dim: int, threshold: int, logit_p: float) -> Cube:
  """The cube with its share of the vertices, its mean and its exact epsilon filled in."""
  log_q = log_share(dim, threshold)
  log_f = float(log_probability(dim, np.array(threshold))) + math.log(threshold / dim)
  p, log_m, epsilon = cost(logit_p, logit(log_q), log_f - log_q)
  return Cube(dim, _kappa(dim, threshold), threshold, p, logit_p, log_q, log_m, epsilon)


def _kappa(dim: int, threshold: int) -> int:
  return 2 * threshold - dim - 1


def _threshold(dim: int, kappa: int) -> int:
  _validate.integer(0, kappa=kappa)
  _validate.in_range(0, dim - 1, kappa=kappa)
  return (dim + int(kappa)) // 2 + 1


def _check(dim: int, epsilon: float = 1.0) -> None:
  _validate.integer(1, dim=dim)
  _validate.in_range(1, MAX_DIM, dim=dim)
  check_epsilon(epsilon)
