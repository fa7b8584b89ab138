"""Accountants: from composed losses to epsilon as a function of delta, and the reverse.

Each result is an upper bound on the truth.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import optimize

from jdp.accounting.conversions import CLASSIC, IMPROVED, total_variation
from jdp.accounting.losses import Losses
from jdp.accounting.rdp import rdp_of_pairs

# The search for the best order starts from these; it goes on doubling order - 1 while that helps.
_GRID = (1.01, 1.02, 1.04, 1.08, 1.16, 1.32, 1.64, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129)
_MAX_ORDER = 1 + 2**20


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
  curve = functools.cache(functools.partial(_total_rdp, composed))
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
  quasi-convex in a: the best order lies between the neighbours of the best order of the grid.
  """
  orders, values = list(_GRID), list(bound(np.array(_GRID), curve(_GRID)))

  def value(order):
    return float(bound(np.array([order]), curve((order,)))[0])

  while (best := int(np.argmin(values))) == len(orders) - 1 and orders[-1] < _MAX_ORDER:
    orders.append(2 * orders[-1] - 1)
    values.append(value(orders[-1]))
  if math.isinf(values[best]):
    return float(values[best])
  neighbours = orders[max(best - 1, 0)], orders[min(best + 1, len(orders) - 1)]
  search = optimize.minimize_scalar(
    lambda log_excess: value(1 + math.exp(log_excess)),
    bounds=[math.log(order - 1) for order in neighbours],
    method="bounded",
    options={"xatol": 3e-4},
  )
  return float(min(values[best], search.fun))


def moments_profile(composed: Losses) -> Profile:
  """The moments accountant as published (arXiv 1607.00133): orders 2..33, the classic conversion."""
  orders = np.arange(2.0, 34.0)
  rdp = _total_rdp(composed, tuple(orders))
  return Profile(
    lambda delta: max(0.0, float(np.min(CLASSIC.epsilon(orders, rdp, delta)))),
    lambda epsilon: math.exp(min(0.0, float(np.min(CLASSIC.log_delta(orders, rdp, epsilon))))),
  )


def _total_rdp(composed: Losses, orders: tuple[float, ...]) -> np.ndarray:
  q, z, num_rounds, _ = composed
  return num_rounds @ rdp_of_pairs(q, z, np.array(orders))


def pld_profile(composed: Losses) -> Profile:
  """Privacy loss distributions on a grid of 1e-4, rounded pessimistically, by the package dp_accounting."""
  try:
    import dp_accounting
    from dp_accounting import pld
  except ImportError as error:
    raise ImportError("Expected the package dp_accounting for accountant='pld'; pip install 'jdp[pld]'.") from error
  accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
  for q, z, num_rounds in zip(*composed[:3], strict=True):
    gaussian = dp_accounting.GaussianDpEvent(float(z))
    event = gaussian if q == 1 else dp_accounting.PoissonSampledDpEvent(float(q), gaussian)
    accountant.compose(event, int(num_rounds))
  return Profile(accountant.get_epsilon, accountant.get_delta)


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
