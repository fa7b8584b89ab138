"""What later Laplace noise hides: the sum of n Laplace draws against the same sum shifted, and
iterations of the two.

All lengths are in units of the noise's scale: one draw hides a shift of s with epsilon = s.

**The sum.** S = X_1 + ... + X_n is a difference of two Gamma(n) variables, the n-th arrival times
of two Poisson processes A and B of rate 1. When B's n-th arrival comes, A has had n - m, each of
the 2n - m - 1 arrivals before it having been A's or B's by a fair coin; then A needs m more.
Arrivals have no memory, so

    P(S > x) = sum_{m=1}^n w_m P(Gamma(m) > x),   w_m = C(2n-m-1, n-1) 2^-(2n-m),   x >= 0,

a sum of non-negative terms, and so is the density p: both are accurate however far out x lies.

**The hockey stick.** delta(e) = sup_A P(S + s in A) - e^e P(S in A) is the least delta for which S
+ s and S are (e, delta)-indistinguishable. S has a log-concave density (a convolution of such),
hence its loss log p(x-s)/p(x) grows with x, the best A is a half-line from where the loss is e on,
and by symmetry both directions cost the same.

**Iterations** whose steps move two states no further apart: arXiv 1808.06651.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from jdp import _validate
from jdp.accounting.renyi.conversions import IMPROVED

_HUGE = 1e150
_LOG_TINY = -700.0  # e^-700: what is smaller counts as zero
MOST_DRAWS = 2**14
_MOST_DIMENSIONS = 1e15  # a larger dimension costs as much as infinity, to 15 digits
_LOG_ORDERS = math.log(1e-3), math.log(2.0**24)  # of order - 1, where the best one is looked for


def hockey_stick(draws: int, shift: float, epsilon: float) -> float:
  """The exact delta at `epsilon` of the sum of `draws` Laplace variables, shifted or not (module's
  docstring).

  The hockey-stick divergence between S + shift and S. Exact up to rounding: a relative error below
  1e-8 for up to 10,000 draws, wherever the result is at least 1e-200; where it is smaller, an upper
  bound or zero. More than 2^14 draws count as so many, an upper bound: noise that is added later
  hides no less.

  Args:
    draws: n >= 1.
    shift: >= 0, in units of the draws' scale.
    epsilon: >= 0.

  Raises:
    ValueError: if an argument is out of range or NaN.

  >>> hockey_stick(1, 1.0, 0.5), -math.expm1(-0.25)  # one draw has a closed form
  (0.221199..., 0.221199...)
  """
  _validate.integer(1, draws=draws)
  _validate.non_negative(shift=shift, epsilon=epsilon)
  if epsilon >= shift:
    return 0.0
  draws = min(draws, MOST_DRAWS)

  def missing(x):
    return _log_density(draws, x - shift) - _log_density(draws, x) - epsilon

  high = shift
  while missing(high) < 0:
    if _log_tail(draws, high) < _LOG_TINY:  # The half-line begins even farther out.
      return math.exp(_log_tail(draws, high - shift))
    high *= 2
  # An error here is one of second order below.
  start = optimize.brentq(missing, shift / 2, high, xtol=1e-9, rtol=1e-9)
  with_shift, without = _log_tail(draws, start - shift), _log_tail(draws, start)
  return float(np.maximum(0.0, -math.exp(with_shift) * math.expm1(epsilon + without - with_shift)))


def laplace_rdp(shift: float, orders: ArrayLike) -> np.ndarray:
  """Renyi divergence of each order a > 1 between one Laplace draw shifted by `shift` scales and the
  draw itself.

  Closed form (arXiv 1702.07476, Proposition 6):

      log((a e^((a-1) s) + (a-1) e^(-a s)) / (2a-1)) / (a-1).

  It is at most a s^2 / 2 (an s-DP release is s^2/2-zCDP, arXiv 1605.02065, Proposition 3.3); that
  is returned below s = 1e-4, where the closed form would cancel and the two agree to 1 part in
  10,000.

  >>> print(laplace_rdp(1.0, [2.0, 8.0]).round(6))
  [0.619124 0.910199]
  """
  a = np.asarray(orders, float)
  with np.errstate(over="ignore"):
    ceiling = a / 2 * np.square(shift)
    if shift < 1e-4:
      return ceiling
    near, far = np.log(a / (2 * a - 1)) + (a - 1) * shift, np.log((a - 1) / (2 * a - 1)) - a * shift
    return np.minimum(ceiling, np.logaddexp(near, far) / (a - 1))


def iterated_rdp(draws: int, shift: float, dimension: float, orders: ArrayLike) -> np.ndarray:
  """Renyi divergence after `draws` noisy steps, the first of which moved the state by at most
  `shift` in L2 norm.

  Each step adds Laplace noise to every coordinate; the steps after the first apply maps that are
  non-expansive in the L2 norm and do not depend on the shifted input (a gradient step on a smooth
  convex loss, unclipped: arXiv 1808.06651, Proposition 18). A bound, by Theorem 22 there: the shift
  may be paid in parts a_1 + ... + a_n = shift, one to each step, and costs the sum of what the
  noise needs to hide each part. Equal parts are best, since that cost is convex in the part.

  What hides a part is the sum over coordinates of `laplace_rdp` f(v_j), at its largest over ||v||
  <= shift / n. f' is concave (it is a sigmoid to the right of its centre) and f'(0) = 0, so f is
  concave in v_j^2 and the largest value is that of equal coordinates: dimension * f(shift / (n
  sqrt(dimension))), at most a (shift/n)^2 / 2 in any dimension.

  Args:
    draws: n >= 1, the first step included.
    shift: >= 0, L2 norm in units of the noise's scale.
    dimension: coordinates of the state; math.inf: any number.
    orders: a > 1.

  >>> print(iterated_rdp(11, 1.0, 1, 8.0).round(6), iterated_rdp(11, 1.0, math.inf, 8.0).round(6))
  0.329506 0.363636
  """
  _validate.integer(1, draws=draws)
  with np.errstate(over="ignore"):
    if dimension > _MOST_DIMENSIONS:
      return np.asarray(orders, float) / 2 * np.square(shift) / draws
    return draws * dimension * laplace_rdp(shift / draws / math.sqrt(dimension), orders)


def rdp_delta(rdp: Callable[[np.ndarray], np.ndarray], epsilon: float) -> float:
  """A delta at `epsilon` from a curve of Renyi divergences over orders: the least over all real
  orders.

  Every order's bound holds, so a search that stopped early would still be right.
  """

  def log_delta(log_excess):
    order = np.array(1 + math.exp(log_excess))
    return float(IMPROVED.log_delta(order, rdp(order), epsilon))

  return float(np.exp(np.minimum(0.0, _least(log_delta))))


def rdp_epsilon(rdp: Callable[[np.ndarray], np.ndarray], delta: float) -> float:
  """An epsilon at `delta` > 0 from a curve of Renyi divergences over orders: the least over all
  real orders.

  >>> round(rdp_epsilon(lambda orders: iterated_rdp(101, 1.0, 1, orders), 1e-6), 3)
  0.419
  """

  def epsilon(log_excess):
    order = np.array(1 + math.exp(log_excess))
    return float(IMPROVED.epsilon(order, rdp(order), delta))

  return float(np.maximum(0.0, _least(epsilon)))


def least_epsilon(curve: Callable[[float], float], delta: float, limit: float) -> float:
  """The least epsilon in [0, limit] with curve(epsilon) <= delta.

  Args:
    curve: non-increasing, epsilon -> delta.
    delta: what is allowed.
    limit: an epsilon that is enough even for delta = 0.

  >>> round(least_epsilon(lambda epsilon: hockey_stick(11, 1.0, epsilon), 1e-6, 1.0), 4)
  0.6322
  """
  if curve(0.0) <= delta:
    return 0.0
  if curve(limit) > delta or delta == 0:
    return limit

  def surplus(epsilon):
    return math.log(np.maximum(curve(epsilon), 1e-300)) - math.log(delta)

  return min(limit, float(optimize.brentq(surplus, 0.0, limit, xtol=1e-11)) + 1e-11)


def _least(bound: Callable[[float], float]) -> float:
  """The smallest value of a bound that falls, then rises, with the logarithm of order - 1; infinity
  if none is less.

  Raises:
    ValueError: if the search meets NaN.
  """

  def finite(log_excess):
    value = bound(log_excess)
    if math.isnan(value):
      raise ValueError("Expected bounds that are numbers, got NaN; choose less extreme parameters.")
    return min(max(value, -_HUGE), _HUGE)  # The search fits parabolas, which infinity would spoil.

  with np.errstate(over="ignore"):
    least = float(
      optimize.minimize_scalar(
        finite, bounds=_LOG_ORDERS, method="bounded", options={"xatol": 1e-4}
      ).fun
    )
  return least if least < _HUGE else math.inf


_POWERS = np.arange(float(MOST_DRAWS))
_LOG_FACTORIALS = special.gammaln(_POWERS + 1)


class _Terms(NamedTuple):
  """For the terms i = m - 1 = 0..n-1 of the sums: i, log i!, log w_m, and log of w_m + ... +
  w_n.
  """

  power: np.ndarray
  log_factorials: np.ndarray
  log_weights: np.ndarray
  log_tails: np.ndarray


@functools.lru_cache(maxsize=1024)
def _terms(draws: int) -> _Terms:
  i = _POWERS[:draws]
  log_choose = (
    special.gammaln(2 * draws - 1 - i) - special.gammaln(draws) - special.gammaln(draws - i)
  )
  log_weights = log_choose - (2 * draws - 1 - i) * math.log(2)
  return _Terms(
    i, _LOG_FACTORIALS[:draws], log_weights, np.logaddexp.accumulate(log_weights[::-1])[::-1]
  )


def _log_poisson_mixture(terms: _Terms, log_weights: np.ndarray, x: float) -> float:
  """log sum_i weight_i e^-x x^i / i!; that power is Gamma(i+1)'s density at x, and the i-th term of
  its tails.
  """
  log_terms = log_weights + special.xlogy(terms.power, x) - terms.log_factorials
  top = log_terms.max()
  return float(top + math.log(np.exp(log_terms - top).sum())) - x


def _log_density(draws: int, x: float) -> float:
  terms = _terms(draws)
  return _log_poisson_mixture(terms, terms.log_weights, abs(x))


def _log_tail(draws: int, x: float) -> float:
  """log P(S > x): Gamma(m) exceeds x when fewer than m arrivals come before x."""
  terms = _terms(draws)
  beyond = _log_poisson_mixture(terms, terms.log_tails, abs(x))
  return beyond if x >= 0 else math.log1p(-math.exp(beyond))
