"""Lower bounds on a privacy loss from how often an event was seen on two inputs.

A mechanism that is (epsilon, delta)-DP has P(A) <= e^epsilon Q(A) + delta for every event A. So a
lower limit of P(A) and an upper limit of Q(A) bound epsilon from below. Both limits are Clopper and
Pearson's. They hold for an event that was fixed before the outputs were seen.
"""

from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike

from jdp import _validate
from jdp._arguments import checked
from jdp.audits._shared import (
  Bound,
  check_delta,
  epsilon_bound_by,
  error_probability,
  gaussian_bound_by,
)

_TOLERANCE = 1e-3  # relative error of the probability at a limit
_HALVINGS = 100  # of the interval [0, 1]: p may be as small as 1e-30


@checked
def clopper_pearson(
  successes: ArrayLike, trials: ArrayLike, error: float
) -> tuple[np.ndarray, np.ndarray]:
  """Lower and upper confidence limits of a probability from independent trials, elementwise.

  Each limit is wrong with probability at most `error`.

  Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of
  the binomial" (Biometrika 1934).

  >>> low, high = clopper_pearson([0, 50, 100], 100, 0.005)
  >>> low.round(3).tolist(), high.round(3).tolist()
  ([0.0, 0.369, 0.948], [0.052, 0.631, 1.0])
  """
  k, n = _validate.broadcast(successes=successes, trials=trials)
  some = np.maximum(n, 1)
  low = _lower_limit(np.maximum(k, 1), some, error)
  high = _upper_limit(np.minimum(k, some - 1), some, error)
  return np.where(k > 0, low, 0.0), np.where(k < n, high, 1.0)


def _lower_limit(k: np.ndarray, n: np.ndarray, error: float) -> np.ndarray:
  """The p at which k or more successes have probability `error`, for 0 < k <= n."""
  special = scipy.special
  p = special.betaincinv(k, n - k + 1, error)
  return _corrected(p, lambda p: special.betainc(k, n - k + 1, p), error)[0]


def _upper_limit(k: np.ndarray, n: np.ndarray, error: float) -> np.ndarray:
  """The p at which k or fewer successes have probability `error`, for 0 <= k < n."""
  special = scipy.special
  p = special.betainccinv(k + 1, n - k, error)
  return _corrected(p, lambda p: -special.betaincc(k + 1, n - k, p), -error)[1]


def _corrected(
  p: np.ndarray, tail: Callable[[np.ndarray], np.ndarray], target: float
) -> tuple[np.ndarray, np.ndarray]:
  """Both ends of an interval that contains the root of an increasing `tail` minus `target`.

  It is p itself where SciPy is right, else found by bisection. SciPy's inverses may be wrong: at
  1000 successes of 3e8 the lower limit was nearly twice the frequency (SciPy 1.17).
  """
  near = np.abs(tail(p) - target) <= _TOLERANCE * abs(target)
  low, high = np.where(near, p, 0.0), np.where(near, p, 1.0)
  if not np.all(near):
    for _ in range(_HALVINGS):
      middle = (low + high) / 2
      below = tail(middle) <= target
      low, high = np.where(below, middle, low), np.where(below, high, middle)
  return low, high


@checked
def epsilon_bound(confidence: float, delta: float = 0.0) -> Bound:
  """The bound log((P - delta) / Q) on epsilon.

  It is at most the true epsilon with probability `confidence`.

  Args:
    confidence: in (0, 1). The limits of P and of Q share it equally.
    delta: the delta of the (epsilon, delta)-DP that is audited, in [0, 1).

  Raises:
    ValueError: if an argument is out of range.

  >>> epsilon_bound(0.95)(900, 1000, 100, 1000).round(3).item()  # of log 9 = 2.197
  1.99
  """
  check_delta(delta)
  return epsilon_bound_by(clopper_pearson, error_probability(confidence) / 2, delta)


@checked
def quick_epsilon_bound(confidence: float, delta: float = 0.0) -> Bound:
  """`epsilon_bound` by Wilson's limits, for choosing events.

  Wilson's limits are faster, but they hold only approximately.

  Source: Wilson, "Probable inference, the law of succession, and statistical inference" (JASA
  1927).

  >>> quick_epsilon_bound(0.95)(900, 1000, 100, 1000).round(3).item()  # `epsilon_bound`: 1.990
  1.991
  """
  z = scipy.special.ndtri(1 - error_probability(confidence) / 2)
  check_delta(delta)

  def limits(hits, trials, error):
    del error
    hits = np.asarray(hits)
    p, spread = hits / trials, z * z / trials
    half = z * np.sqrt(p * (1 - p) / trials + spread / (4 * trials))
    return (p + spread / 2 - half) / (1 + spread), (p + spread / 2 + half) / (1 + spread)

  return epsilon_bound_by(limits, 0.0, delta)


@checked
def gaussian_bound(confidence: float) -> Bound:
  """The bound Phi^-1(P) - Phi^-1(Q) on mu, for mechanisms that are mu-GDP.

  A release with normal noise of multiplier z is 1/z-GDP (Dong, Roth, Su, arXiv 1905.02383, Theorem
  1). That is a claim about all its pairs (epsilon, delta) at once. The events that refute it are
  far likelier than any delta worth stating.

  Args:
    confidence: in (0, 1). The bound is at most the least such mu with this probability.

  >>> gaussian_bound(0.95)(840, 1000, 160, 1000).round(3).item()  # of mu = 1.989
  1.799
  """
  return gaussian_bound_by(clopper_pearson, error_probability(confidence) / 2)
