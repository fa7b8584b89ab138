"""The privacy profile of the best of a random number of runs (`jdp.events.BestOfRuns`).

It follows from the profile of one run (Statement 1.10, after arXiv 2402.06701). For a negative
binomial number of runs it is below what Renyi divergences of one run give (`jdp.accounting.renyi`):
for ten runs on average, epsilon is some 1.6 times that of one run, rather than 2.3 times.
"""

import math
from collections.abc import Callable

import numpy as np

from jdp.accounting.renyi.repeated_runs import log_gamma

Profile = Callable[[np.ndarray], np.ndarray]
"""Epsilons [N] >= 0 -> log of a bound on delta [N], in both directions."""

_HALVINGS, _LARGEST = 60, 600.0


def best_of_runs(one: Profile, mean_runs: float, shape: float) -> Profile:
  """The profile of the best of some runs.

  Args:
    one: the profile of one run.
    mean_runs: E K >= 1.
    shape: the shape of the distribution of K, infinity for Poisson.
  """
  if shape == math.inf:
    added = mean_runs * float(np.exp(np.minimum(one(np.zeros(1))[0], 0.0)))
  else:
    added = (1 + shape) * _least_ratio(one, log_gamma(mean_runs, shape))

  def profile(epsilons: np.ndarray) -> np.ndarray:
    below = epsilons - added
    found = np.where(below >= 0, one(np.maximum(below, 0.0)), 0.0)
    return np.minimum(math.log(mean_runs) + found, 0.0)

  return profile


def _least_ratio(one: Profile, log_gamma: float) -> float:
  """The least epsilon at which delta (1 - gamma) <= gamma (e^epsilon - 1), rounded up."""
  if log_gamma == 0:
    return 0.0
  log_odds = log_gamma - math.log(-math.expm1(log_gamma))

  def holds(epsilon: float) -> bool:
    gain = epsilon + math.log(-math.expm1(-epsilon))
    return bool(one(np.array([epsilon]))[0] <= log_odds + gain)

  low, high = 0.0, 1e-3
  while not holds(high):
    low, high = high, 2 * high
    if high > _LARGEST:
      return math.inf
  for _ in range(_HALVINGS):
    middle = (low + high) / 2
    low, high = (low, middle) if holds(middle) else (middle, high)
  return high * (1 + 1e-12)
