"""From Renyi differential privacy of one order to epsilon or delta, order by order.

Every order's bound holds, so the smallest is the answer. There are two conversions:

* `IMPROVED`: arXiv 2004.00010, Proposition 12.
* `CLASSIC`: arXiv 1702.07476, Proposition 3. The tables of the moments accountant were published
  with it (arXiv 1607.00133, Theorem 2).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Conversion(NamedTuple):
  """A pair of bounds that belong together.

  A negative epsilon, or a positive log delta, is left as it is, so that both are smooth in the
  order.

  Attributes:
    epsilon: (orders [A] > 1, rdp [A], delta) -> the epsilon [A] of (epsilon, delta)-DP.
    log_delta: (orders [A] > 1, rdp [A], epsilon) -> the log delta [A] of (epsilon, delta)-DP.
  """

  epsilon: Callable[[np.ndarray, np.ndarray, float], np.ndarray]
  log_delta: Callable[[np.ndarray, np.ndarray, float], np.ndarray]


def _improved_epsilon(orders: np.ndarray, rdp: np.ndarray, delta: float) -> np.ndarray:
  return rdp + np.log1p(-1 / orders) - (_log(delta) + np.log(orders)) / (orders - 1)


def _improved_log_delta(orders: np.ndarray, rdp: np.ndarray, epsilon: float) -> np.ndarray:
  return (orders - 1) * (rdp - epsilon + np.log1p(-1 / orders)) - np.log(orders)


def _classic_epsilon(orders: np.ndarray, rdp: np.ndarray, delta: float) -> np.ndarray:
  return rdp - _log(delta) / (orders - 1)


def _classic_log_delta(orders: np.ndarray, rdp: np.ndarray, epsilon: float) -> np.ndarray:
  return (orders - 1) * (rdp - epsilon)


IMPROVED = Conversion(_improved_epsilon, _improved_log_delta)
CLASSIC = Conversion(_classic_epsilon, _classic_log_delta)


def below_chords(log_moments: Callable[[np.ndarray], np.ndarray], orders: np.ndarray) -> np.ndarray:
  """A bound on the divergences [E, A] of orders a > 1 [A], from those of whole orders.

  (a - 1) times the divergence is convex in a (arXiv 1206.2459, Corollary 2), and zero at 1. So
  between whole orders it lies below its chord. `log_moments` maps whole orders >= 2, increasing,
  [W] to that product [E, W].
  """
  low, high = np.floor(orders), np.ceil(orders)
  whole = np.unique(np.concatenate([low, high]))
  whole = whole[whole > 1]
  at_whole, share = np.pad(log_moments(whole), ((0, 0), (1, 0))), orders - low
  whole = np.append(1.0, whole)
  below, above = (at_whole[:, np.searchsorted(whole, side)] for side in (low, high))
  with np.errstate(invalid="ignore"):  # At a whole order 0 times an infinite end would be NaN.
    chord = np.where(share > 0, (1 - share) * below + share * above, below)
  return chord / (orders - 1)


def total_variation(rdp: float) -> float:
  """A delta for epsilon = 0, from the divergence of any order.

  It is the smaller of Pinsker's sqrt(rdp / 2) and Bretagnolle and Huber's sqrt(1 - e^-rdp). Both
  hold for Kullback and Leibler's divergence, which is at most that of any order above 1.
  """
  return float(np.sqrt(np.minimum(rdp / 2, -np.expm1(-rdp))))


def _log(delta: float) -> float:
  """log(delta), -infinity at 0."""
  return math.log(delta) if delta > 0 else -math.inf
