"""Accountants: from a composition to epsilon as a function of delta, and the reverse.

Each result is an upper bound on the truth. Minima and maxima are NumPy's, which keep NaN: Python's
`max(0.0, nan)` is 0.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import scipy

from jdp.accounting.composition import Composition
from jdp.accounting.families.base import Family
from jdp.accounting.renyi.conversions import CLASSIC, IMPROVED, total_variation

# The search for the best order starts from these. It doubles order - 1 beyond while that helps.
_GRID = (1.01, 1.04, 1.16, 1.64, 2, 3, 5, 9, 17, 33, 65, 129)
_MAX_ORDER = 1 + 2**20
# It ends where orders differ by _CLOSE in log(order - 1), or their bounds by a share _FLAT. Then a
# parabola fits.
_CLOSE, _FLAT = 3e-4, 3e-4


class PrivacyProfile(NamedTuple):
  """The guarantee of a run, as two functions.

  The run is (epsilon(delta), delta)-DP for every delta, and (epsilon, delta(epsilon))-DP for every
  epsilon.
  """

  epsilon: Callable[[float], float]
  delta: Callable[[float], float]


def rdp_profile(composed: Composition) -> PrivacyProfile:
  """The profile by Renyi divergences, with the best of all real orders from 1.01 to 2^20 + 1.

  There is no list of orders to choose. The result is within 0.02 % of the least over all orders.
  Large epsilons have their best order near 1, ordinary ones between 2 and 50, tiny ones in the
  hundreds or thousands.

  At a delta equal to the distance in total variation, epsilon is 0. Orders alone would jump there.
  As a supremum of P(E) - e^epsilon Q(E) over events E, delta is convex in e^epsilon. So from half
  the distance on, the chord to epsilon = 0 is a bound too.
  """
  curve = functools.cache(composed.rdp)
  distance = total_variation(float(curve(_GRID)[0]))
  # Every ledger's vertex is at another order, for which parts have nothing cached.
  least = functools.partial(_least_over_orders, curve, with_vertex=not composed.parts)

  half = distance / 2

  def by_orders(delta: float) -> float:
    return float(np.maximum(0.0, least(lambda orders, rdp: IMPROVED.epsilon(orders, rdp, delta))))

  def epsilon(delta: float) -> float:
    if distance <= delta:
      return 0.0
    found = by_orders(delta)
    if delta <= half:
      return found
    share = (distance - delta) / half
    return float(np.minimum(found, np.logaddexp(np.log1p(-share), np.log(share) + by_orders(half))))

  def delta(epsilon: float) -> float:
    log_delta = least(lambda orders, rdp: IMPROVED.log_delta(orders, rdp, epsilon))
    found = float(np.minimum(distance, _probability(log_delta)))
    if found <= half or epsilon >= (end := by_orders(half)):
      return found
    share = math.exp(epsilon - end) * math.expm1(-epsilon) / math.expm1(-end)
    return float(np.minimum(found, distance - share * half))

  return PrivacyProfile(epsilon, delta)


def _least_over_orders(
  curve: Callable[[tuple[float, ...]], np.ndarray],
  bound: Callable[[np.ndarray, np.ndarray], np.ndarray],
  *,
  with_vertex: bool,
) -> float:
  """The smallest bound over all orders.

  (a - 1) rdp(a) is a cumulant generating function, so it is convex in the order a. That makes both
  bounds quasi-convex in a. The best order lies between the neighbours of the best order of the
  grid. Halving finds it. Where the bound is flat, a parabola does. A parabola alone would not do:
  at some order the bound may rise as steeply as a cliff. Without it the result is larger by at most
  an eighth of what the last three differ by.
  """
  orders, values = list(_GRID), list(bound(np.array(_GRID), curve(_GRID)))

  def value(log_excess: np.ndarray) -> np.ndarray:
    order = 1 + np.exp(log_excess)
    return bound(order, curve(tuple(order.tolist())))

  while (best := int(np.argmin(values))) == len(orders) - 1 and orders[-1] < _MAX_ORDER:
    orders.append(2 * orders[-1] - 1)
    values.append(float(value(np.log([orders[-1] - 1]))[0]))
  if math.isinf(values[best]):
    return float(values[best])
  best = min(max(best, 1), len(orders) - 2)
  # Three points around the least; each step halves both gaps and keeps the three around the least.
  points = [math.log(order - 1) for order in orders[best - 1 : best + 2]]
  around = [float(v) for v in values[best - 1 : best + 2]]
  while points[2] - points[0] > _CLOSE and max(around) - around[1] > _FLAT * abs(around[1]):
    between = np.array([points[0] + points[1], points[1] + points[2]]) / 2
    left, right = value(between)
    points = [points[0], between[0], points[1], between[1], points[2]]
    around = [around[0], float(left), around[1], float(right), around[2]]
    best = min(max(int(np.argmin(around)), 1), 3)
    points, around = points[best - 1 : best + 2], around[best - 1 : best + 2]
  if with_vertex:
    around.append(float(value(np.array([_vertex(points, around)]))[0]))
  return float(np.min(around))


def _probability(log_delta: float) -> float:
  """e^log_delta, at most 1, and above zero where it would underflow."""
  return float(
    np.maximum(np.exp(np.minimum(0.0, log_delta)), math.ulp(0.0) if log_delta > -math.inf else 0.0)
  )


def _vertex(x: list[float], y: list[float]) -> float:
  """Where the parabola through three points is least, between the first and the last."""
  left, right = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
  if not 0 < right - left < math.inf:
    return x[1]
  slope_at_middle = (left * (x[2] - x[1]) + right * (x[1] - x[0])) / (x[2] - x[0])
  return min(max(x[1] - slope_at_middle * (x[2] - x[0]) / (2 * (right - left)), x[0]), x[2])


def moments_profile(composed: Composition) -> PrivacyProfile:
  """The profile of the moments accountant as published (arXiv 1607.00133).

  It takes Gaussian sums, orders 2..33 and the classic conversion.
  """
  if others := {family for family in composed.groups if not family.is_published}:
    raise ValueError(
      "Expected Gaussian sums of Poisson samples for accountant='moments', as published, got "
      f"{names_of(others)}; pass accountant='rdp'."
    )
  orders = tuple(range(2, 34))
  rdp = composed.rdp(orders)
  return PrivacyProfile(
    lambda delta: float(np.maximum(0.0, np.min(CLASSIC.epsilon(np.array(orders), rdp, delta)))),
    lambda epsilon: _probability(np.min(CLASSIC.log_delta(np.array(orders), rdp, epsilon))),
  )


def names_of(families: Iterable[Family]) -> str:
  """The names of families, as messages list them."""
  return ", ".join(sorted(family.name for family in families))


def pure_profile(epsilon: float) -> PrivacyProfile:
  """The profile of pure differential privacy."""
  return PrivacyProfile(
    lambda delta: epsilon if delta < 1 else 0.0, lambda bound: 0.0 if epsilon <= bound else 1.0
  )


def smaller(first: PrivacyProfile, second: PrivacyProfile) -> PrivacyProfile:
  """The better of two profiles of one run, for each delta and each epsilon."""
  return PrivacyProfile(
    lambda delta: float(np.minimum(first.epsilon(delta), second.epsilon(delta))),
    lambda epsilon: float(np.minimum(first.delta(epsilon), second.delta(epsilon))),
  )


def with_release(profile: PrivacyProfile, epsilon: float, delta: float = 0.0) -> PrivacyProfile:
  """The profile of a run with one more (epsilon, delta)-DP release, by basic composition."""
  return PrivacyProfile(
    lambda target: epsilon + profile.epsilon(target - delta) if target >= delta else math.inf,
    lambda target: (
      float(np.minimum(1.0, delta + profile.delta(target - epsilon))) if target >= epsilon else 1.0
    ),
  )


def with_overflow(profile: PrivacyProfile, overflow: float) -> PrivacyProfile:
  """The profile of a run that departs from the analysed one with probability `overflow`.

  If the analysed run is (epsilon, d)-DP, the run is (epsilon, d + (1 + e^epsilon) overflow)-DP.
  """
  if overflow == 0:
    return profile

  def surcharge(epsilon: float) -> float:
    # Capped, so that nothing overflows: a delta above 1 says nothing.
    return overflow + math.exp(min(epsilon + math.log(overflow), 1.0))

  def smallest_epsilon(delta: float) -> float:
    # A larger epsilon has a larger surcharge, which takes a larger epsilon. So epsilon rises from 0
    # to just past the first that suffices. The steps grow, as the two may run nearly side by side.
    epsilon = 0.0
    for step in itertools.count():
      if not (rest := delta - surcharge(epsilon)) > 0:
        break
      if (needed := profile.epsilon(rest)) <= epsilon:
        return epsilon
      epsilon = needed * (1 + 1e-7 * 2.0 ** max(0, step - 50))
    return math.inf

  def smallest_delta(epsilon: float) -> float:
    own = float(np.minimum(1.0, profile.delta(epsilon) + surcharge(epsilon)))
    if surcharge(epsilon) < _CLOSE * own:
      return own
    # A guarantee at a smaller epsilon holds here too, and its surcharge is smaller. Exact deltas
    # are convex in e^epsilon and surcharges are linear in it, so a search finds the least sum.
    found = scipy.optimize.minimize_scalar(
      lambda smaller: profile.delta(smaller) + surcharge(smaller),
      bounds=(0.0, min(epsilon, max(0.0, -math.log(overflow)))),
      method="bounded",
      options={"xatol": _CLOSE},
    )
    low, high = math.log(overflow), math.log(np.minimum(own, found.fun))
    middle = high - _CLOSE / 2
    # Bounds on deltas need not be convex. So bisect for the least delta that some epsilon up to
    # this one reaches, if it is not what was found.
    while high - low > _CLOSE:
      low, high = (low, middle) if smallest_epsilon(math.exp(middle)) <= epsilon else (middle, high)
      middle = (low + high) / 2
    return math.exp(high)

  return PrivacyProfile(smallest_epsilon, smallest_delta)
