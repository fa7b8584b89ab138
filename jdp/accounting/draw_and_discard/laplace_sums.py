"""Sums of Laplace noise: how well n draws hide a shift, at once and over iterations.

All lengths are in units of the noise's scale. One draw hides a shift of s with epsilon = s. The
distribution of the sum S is a mixture of Gammas with non-negative weights, which stays accurate in
the far tail (Statement 3.2 of `docs/theory/later_updates.md`). The hockey stick delta(e) = sup_A
P(S + s in A) - e^e P(S in A) is attained by a half-line, and both directions cost the same
(Statement 3.3).
Iterations are steps that move two states no further apart (arXiv 1808.06651, Statement 3.5).
"""

import functools
import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from jdp import _validate
from jdp.accounting.renyi.conversions import IMPROVED

_HUGE = 1e150  # stands for infinity in a search
_LOG_TINY = -700.0  # e^-700: what is smaller counts as zero
MOST_DRAWS = 2**14  # more draws count as this many
_MOST_DIMENSIONS = 1e15  # a larger dimension costs as much as infinity, to 15 digits
_LOG_ORDERS = math.log(1e-3), math.log(2.0**24)  # range of log(order - 1) that is searched


def hockey_stick(draws: int, shift: float, epsilon: float) -> float:
  """The exact delta at `epsilon` of the sum of `draws` Laplace variables, shifted or not.

  It is the hockey-stick divergence between S + shift and S, of Statement 3.3.
  The result is exact up to rounding. Wherever it is at least 1e-200, its relative error is below
  1e-8 for up to 10,000 draws. Where it is smaller, it is an upper bound or zero. More than 2^14
  draws count as 2^14. That is an upper bound, since additional noise hides no less.

  Args:
    draws: The number n of variables. At least 1.
    shift: The shift in units of the draws' scale. At least 0.
    epsilon: The epsilon of the guarantee. At least 0.

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

  def excess(x: float) -> float:  # the loss at x, less epsilon
    return _log_density(draws, x - shift) - _log_density(draws, x) - epsilon

  # The loss is 0 at shift / 2 and grows with x, so the half-line begins beyond it.
  high = shift
  while excess(high) < 0:
    if _log_tail(draws, high) < _LOG_TINY:  # the half-line begins even farther out
      return math.exp(_log_tail(draws, high - shift))
    high *= 2
  # The half-line is the best one, so an error in its start changes delta in second order only.
  start = scipy.optimize.brentq(excess, shift / 2, high, xtol=1e-9, rtol=1e-9)
  with_shift, without = _log_tail(draws, start - shift), _log_tail(draws, start)
  return float(np.maximum(0.0, -math.exp(with_shift) * math.expm1(epsilon + without - with_shift)))


def laplace_rdp(shift: float, orders: ArrayLike) -> np.ndarray:
  """Renyi divergence of each order a > 1 between a shifted Laplace draw and the draw itself.

  The draw is shifted by `shift` scales. Closed form (arXiv 1702.07476, Proposition 6):

      log((a e^((a-1) s) + (a-1) e^(-a s)) / (2a-1)) / (a-1).

  It is at most a s^2 / 2 (an s-DP release is s^2/2-zCDP, arXiv 1605.02065, Proposition 3.3). That
  bound is returned below s = 1e-4, where the closed form would cancel and the two agree to 1 part
  in 10,000.

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
  """Renyi divergence after `draws` noisy steps, the first of which moved the state by `shift`.

  `shift` bounds that move in L2 norm. Each step adds Laplace noise to every coordinate. The steps
  after the first apply maps that are non-expansive in the L2 norm and do not depend on the shifted
  input. An example is an unclipped gradient step on a smooth convex loss (arXiv 1808.06651,
  Proposition 18).

  The result is a bound, by Theorem 22 there. The shift may be paid in parts a_1 + ... + a_n =
  shift, one to each step. It costs the sum of what the noise needs to hide each part. Equal parts
  are best, since that cost is convex in the part.

  A part costs the sum over coordinates of `laplace_rdp` f(v_j), at its largest over ||v|| <= shift
  / n. Here f' is concave (it is a sigmoid to the right of its centre) and f'(0) = 0. So f is
  concave in v_j^2. The largest value is therefore that of equal coordinates: dimension * f(shift /
  (n sqrt(dimension))). It is at most a (shift/n)^2 / 2 in any dimension.

  Args:
    draws: The number n of steps, the first one included. At least 1.
    shift: The L2 norm of the move in units of the noise's scale. At least 0.
    dimension: The number of coordinates of the state. math.inf stands for any number.
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
  """A delta at `epsilon` from a curve of Renyi divergences: the least over all real orders.

  Every order's bound holds, so even a search that stops early returns a valid one.
  """
  return float(np.exp(np.minimum(0.0, _least(IMPROVED.log_delta, rdp, epsilon))))


def rdp_epsilon(rdp: Callable[[np.ndarray], np.ndarray], delta: float) -> float:
  """An epsilon at `delta` > 0 from a curve of Renyi divergences: the least over all real orders.

  >>> round(rdp_epsilon(lambda orders: iterated_rdp(101, 1.0, 1, orders), 1e-6), 3)
  0.419
  """
  return float(np.maximum(0.0, _least(IMPROVED.epsilon, rdp, delta)))


def least_epsilon(curve: Callable[[float], float], delta: float, limit: float) -> float:
  """The least epsilon in [0, limit] with curve(epsilon) <= delta.

  Args:
    curve: A non-increasing function from epsilon to delta.
    delta: The delta that is allowed. It lies in [0, 1].
    limit: An epsilon that is enough even for delta = 0.

  >>> round(least_epsilon(lambda epsilon: hockey_stick(11, 1.0, epsilon), 1e-6, 1.0), 4)
  0.6322
  """
  if curve(0.0) <= delta:
    return 0.0
  least = sys.float_info.min  # Below it, floats lose their digits.
  if curve(limit) > delta or delta <= least:
    return limit

  def surplus(epsilon: float) -> float:
    return math.log(np.maximum(curve(epsilon), least)) - math.log(delta)

  # The root may be off by the tolerance. The same amount is added, so that the result is enough.
  return min(limit, float(scipy.optimize.brentq(surplus, 0.0, limit, xtol=1e-11)) + 1e-11)


def _least(bound: Callable[..., np.ndarray], rdp: Callable, given: float) -> float:
  """The smallest value of a conversion's bound, which falls, then rises, with log(order - 1).

  It is infinity if no value is below 1e150.

  Raises:
    ValueError: if the search meets NaN.
  """

  def finite(log_excess: float) -> float:
    order = np.array(1 + math.exp(log_excess))
    value = float(bound(order, rdp(order), given))
    if math.isnan(value):
      raise ValueError("Expected bounds that are numbers, got NaN; choose less extreme parameters.")
    return min(max(value, -_HUGE), _HUGE)  # the search fits parabolas, which infinity would spoil

  with np.errstate(over="ignore"):
    found = scipy.optimize.minimize_scalar(
      finite, bounds=_LOG_ORDERS, method="bounded", options={"xatol": 1e-4}
    )
  least = float(found.fun)
  return least if least < _HUGE else math.inf


_POWERS = np.arange(float(MOST_DRAWS))


class _Terms(NamedTuple):
  """The terms i = m - 1 = 0..n-1 of the sums.

  Attributes:
    power: The index i.
    log_factorials: `log i!`.
    log_weights: `log w_m`.
    log_tails: The log of w_m + ... + w_n.
  """

  power: np.ndarray
  log_factorials: np.ndarray
  log_weights: np.ndarray
  log_tails: np.ndarray


# The same few numbers of draws recur at every epsilon of a search.
@functools.lru_cache(maxsize=1024)
def _terms(draws: int) -> _Terms:
  """The terms of the sum of `draws` variables."""
  i = _POWERS[:draws]
  gammaln = scipy.special.gammaln
  log_choose = gammaln(2 * draws - 1 - i) - gammaln(draws) - gammaln(draws - i)
  log_weights = log_choose - (2 * draws - 1 - i) * math.log(2)
  return _Terms(
    i, scipy.special.gammaln(i + 1), log_weights, np.logaddexp.accumulate(log_weights[::-1])[::-1]
  )


def _log_poisson_mixture(terms: _Terms, log_weights: np.ndarray, x: float) -> float:
  """log sum_i weight_i e^-x x^i / i!.

  The factor e^-x x^i / i! is Gamma(i+1)'s density at x, and the i-th term of its tails.
  """
  log_terms = log_weights + scipy.special.xlogy(terms.power, x) - terms.log_factorials
  top = log_terms.max()  # taken out, so that not every term underflows
  return float(top + math.log(np.exp(log_terms - top).sum())) - x


def _log_density(draws: int, x: float) -> float:
  """log p(x) of the sum of `draws` variables; p is symmetric."""
  terms = _terms(draws)
  return _log_poisson_mixture(terms, terms.log_weights, abs(x))


def _log_tail(draws: int, x: float) -> float:
  """log P(S > x), as Gamma(m) exceeds x when fewer than m arrivals come before x."""
  terms = _terms(draws)
  beyond = _log_poisson_mixture(terms, terms.log_tails, abs(x))
  return beyond if x >= 0 else math.log1p(-math.exp(beyond))
