"""Accountants: from composed losses to epsilon as a function of delta, and the reverse.

Each result is an upper bound on the truth.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from jdp.accounting.conversions import CLASSIC, IMPROVED, total_variation
from jdp.accounting.loss_kinds import GAUSSIAN, NON_PRIVATE, LossKind
from jdp.accounting.losses import Losses

# The search for the best order starts from these; it goes on doubling order - 1 while that helps.
_GRID = (1.01, 1.02, 1.04, 1.08, 1.16, 1.32, 1.64, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129)
_MAX_ORDER = 1 + 2**20
# It ends where orders differ by _CLOSE in log(order - 1), or their bounds by a share _FLAT: then a parabola fits.
_CLOSE, _FLAT = 3e-4, 3e-4


class Profile(NamedTuple):
  """What is guaranteed: (epsilon(delta), delta)-DP for every delta, (epsilon, delta(epsilon))-DP for every epsilon."""

  epsilon: Callable[[float], float]
  delta: Callable[[float], float]


def rdp_profile(composed: Losses) -> Profile:
  """Renyi divergences, with the best of all real orders from 1.01 to 2^20 + 1.

  There is no list of orders to choose: the result is within 0.02 % of the
  least over all orders. Large epsilons have their best order near 1, ordinary
  ones between 2 and 50, tiny ones in the hundreds or thousands.
  """
  curve = functools.cache(composed.rdp)
  distance = total_variation(float(curve(_GRID)[0]))

  def epsilon(delta):
    if distance <= delta:
      return 0.0
    return max(0.0, _least_over_orders(curve, lambda orders, rdp: IMPROVED.epsilon(orders, rdp, delta)))

  def delta(epsilon):
    least = _least_over_orders(curve, lambda orders, rdp: IMPROVED.log_delta(orders, rdp, epsilon))
    return min(distance, math.exp(min(0.0, least)))

  return Profile(epsilon, delta)


def _least_over_orders(curve: Callable[[tuple[float, ...]], np.ndarray], bound) -> float:
  """The smallest bound over all orders.

  (a - 1) rdp(a) is convex in the order a, being a cumulant generating function. That makes both bounds
  quasi-convex in a: the best order lies between the neighbours of the best order of the grid. Ever finer grids
  find it, and where the bound is flat a parabola; but at some order it may rise as steeply as a cliff.
  """
  orders, values = list(_GRID), list(bound(np.array(_GRID), curve(_GRID)))

  def value(log_excess):
    order = 1 + np.exp(log_excess)
    return bound(order, curve(tuple(order.tolist())))

  while (best := int(np.argmin(values))) == len(orders) - 1 and orders[-1] < _MAX_ORDER:
    orders.append(2 * orders[-1] - 1)
    values.append(float(value(np.log([orders[-1] - 1]))[0]))
  least = float(values[best])
  if math.isinf(least):
    return least
  ends = max(best - 1, 0), min(best + 1, len(orders) - 1)
  low, high = (math.log(orders[end] - 1) for end in ends)
  around = [float(values[end]) for end in ends]
  while True:
    x = np.linspace(low, high, 6)
    y = np.array([around[0], *value(x[1:-1]), around[-1]])
    middle = min(max(int(np.argmin(y)), 1), 4)
    low, centre, high = x[middle - 1 : middle + 2]
    around = y[middle - 1 : middle + 2].tolist()
    least = min(least, float(y.min()))
    if high - low < _CLOSE or max(around) - around[1] <= _FLAT * abs(around[1]):
      break
  vertex = centre + (high - centre) * _vertex(*around)
  return min(least, float(value(np.array([vertex]))[0]))


def _vertex(left: float, middle: float, right: float) -> float:
  """Where the parabola through (-1, left), (0, middle), (1, right) is least, within [-1, 1]."""
  curvature = left - 2 * middle + right
  if not 0 < curvature < math.inf:
    return 0.0
  return min(max((left - right) / (2 * curvature), -1.0), 1.0)


def moments_profile(composed: Losses) -> Profile:
  """The moments accountant as published (arXiv 1607.00133): Gaussian sums, orders 2..33, the classic conversion."""
  if others := composed.groups.keys() - {GAUSSIAN, NON_PRIVATE}:
    raise ValueError(
      f"Expected Gaussian sums of Poisson samples for accountant='moments', as published, got {names_of(others)}; "
      "pass accountant='rdp'."
    )
  orders = tuple(range(2, 34))
  rdp = composed.rdp(orders)
  return Profile(
    lambda delta: max(0.0, float(np.min(CLASSIC.epsilon(np.array(orders), rdp, delta)))),
    lambda epsilon: math.exp(min(0.0, float(np.min(CLASSIC.log_delta(np.array(orders), rdp, epsilon))))),
  )


def names_of(kinds: Iterable[LossKind]) -> str:
  """What kinds of loss are called in a message."""
  return ", ".join(sorted(kind.name for kind in kinds))


def pure_profile(epsilon: float) -> Profile:
  """Pure differential privacy."""
  return Profile(lambda delta: epsilon if delta < 1 else 0.0, lambda bound: 0.0 if epsilon <= bound else 1.0)


def smaller(first: Profile, second: Profile) -> Profile:
  """The better of two profiles of one run, for each delta and each epsilon."""
  return Profile(
    lambda delta: min(first.epsilon(delta), second.epsilon(delta)),
    lambda epsilon: min(first.delta(epsilon), second.delta(epsilon)),
  )


def with_release(profile: Profile, epsilon: float, delta: float = 0.0) -> Profile:
  """The profile of a run with one more (epsilon, delta)-DP release, by basic composition."""
  return Profile(
    lambda target: epsilon + profile.epsilon(target - delta) if target >= delta else math.inf,
    lambda target: min(1.0, delta + profile.delta(target - epsilon)) if target >= epsilon else 1.0,
  )


def with_overflow(profile: Profile, overflow: float) -> Profile:
  """The profile of a run that departs from the analysed one with probability `overflow`.

  If the analysed run is (epsilon, d)-DP, the run is (epsilon, d + (1 + e^epsilon) overflow)-DP.
  """
  if overflow == 0:
    return profile

  def surcharge(epsilon):
    return (1 + math.exp(min(epsilon, 700.0))) * overflow

  def smallest_epsilon(delta):
    # What epsilon needs grows with the surcharge it causes: from 0 up to just past the first that suffices.
    epsilon = 0.0
    while (rest := delta - surcharge(epsilon)) > 0:
      if (needed := profile.epsilon(rest)) <= epsilon:
        return epsilon
      epsilon = needed * (1 + 1e-7)
    return math.inf

  return Profile(smallest_epsilon, lambda epsilon: min(1.0, profile.delta(epsilon) + surcharge(epsilon)))
