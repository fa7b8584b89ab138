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


def total_variation(rdp: float) -> float:
  """A delta for epsilon = 0, from the divergence of any order.

  It is the smaller of Pinsker's sqrt(rdp / 2) and Bretagnolle and Huber's sqrt(1 - e^-rdp). Both
  hold for Kullback and Leibler's divergence, which is at most that of any order above 1.
  """
  return float(np.sqrt(np.minimum(rdp / 2, -np.expm1(-rdp))))


def _log(delta: float) -> float:
  """log(delta), -infinity at 0."""
  return math.log(delta) if delta > 0 else -math.inf
