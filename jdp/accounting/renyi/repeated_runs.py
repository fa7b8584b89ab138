"""Renyi divergences of the best of a random number of runs (`jdp.events.BestOfRuns`).

If one run has Renyi divergences r(a), the best of all runs has, at every order a > 1 (arXiv
2110.03620, version 2),

* r(a) + log(E K) / (a - 1) + (1 + shape) min_b [(1 - 1/b) r(b) + log(1/gamma) / b], for a negative
  binomial number K of runs (Theorem 2);
* r(a) + log(E K) / (a - 1) + E K delta(log(a / (a - 1))), for a Poisson one (Theorem 6), where one
  run is (epsilon, delta(epsilon))-DP.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from jdp.accounting.renyi.conversions import IMPROVED

Curve = Callable[[tuple[float, ...]], np.ndarray]
"""Orders [A] > 1 -> divergences [A]."""

_ORDERS = tuple((1 + np.geomspace(1e-3, 1e6, 200)).tolist())  # the orders b, and those for delta
_LEAST_LOG_GAMMA, _LARGEST_LOG_GAMMA = -600.0, -1e-12  # where log gamma, below 0, is looked for


def best_of_runs(one: Curve, max_loss: float, mean_runs: float, shape: float) -> Curve:
  """The divergences of the best of some runs.

  Args:
    one: the divergences of one run.
    max_loss: the epsilon of pure differential privacy of one run, or infinity.
    mean_runs: E K >= 1.
    shape: the shape of the distribution of K, infinity for Poisson.
  """
  inner, inner_orders = one(_ORDERS), np.array(_ORDERS)

  def of_poisson(above: np.ndarray) -> np.ndarray:
    """What a Poisson number of runs adds; `above` holds orders minus 1."""
    losses = np.log1p(1 / above)[:, None]
    deltas = IMPROVED.log_delta(inner_orders, inner, losses)  # type: ignore[arg-type]
    least = np.min(deltas, axis=1)
    return mean_runs * np.where(losses[:, 0] < max_loss, np.exp(np.minimum(least, 0.0)), 0.0)

  common = 0.0  # what a negative binomial number adds, the same at all orders
  if shape < math.inf:
    parts = (1 - 1 / inner_orders) * inner - log_gamma(mean_runs, shape) / inner_orders
    common = (1 + shape) * float(np.min(parts))

  def curve(orders: tuple[float, ...]) -> np.ndarray:
    above = np.array(orders) - 1
    further = of_poisson(above) if shape == math.inf else common
    return one(orders) + math.log(mean_runs) / above + further

  return curve


@functools.cache
def log_gamma(mean_runs: float, shape: float) -> float:
  """log gamma of the negative binomial distribution with this mean, rounded down."""

  def log_mean(log_gamma: float) -> float:
    """log of E K = shape (1 - gamma) / (gamma (1 - gamma^shape))."""
    if log_gamma == 0:
      return 0.0
    # A subnormal shape would lose the quotient's digits.
    share = -math.expm1(shape * log_gamma) / shape if shape > 1e-300 else -log_gamma
    return math.log(-math.expm1(log_gamma)) - log_gamma - math.log(share)

  target = math.log(mean_runs)
  if target == 0:
    return 0.0
  if log_mean(_LARGEST_LOG_GAMMA) >= target:
    return _LARGEST_LOG_GAMMA
  ends = _LEAST_LOG_GAMMA, _LARGEST_LOG_GAMMA
  root = scipy.optimize.brentq(lambda x: log_mean(x) - target, *ends, xtol=1e-12)
  return min(root - 1e-9, 0.0)  # rounded down by more than the search's error
