"""The cost and mean of mechanisms that draw from either side of a threshold.

These are PrivUnit, PrivUnitG and PrivUnit-infinity. V has a distribution that looks the same in all
directions, and T is its component along the input's direction u. The cap is where T exceeds a
threshold. It has probability q, and f = E[T; cap]. The mechanism draws V from the cap with
probability p, else from the rest. This costs exactly epsilon = logit p - logit q. It gives E[V] = m
u with

    m = f (p/q - (1-p)/(1-q)) = f (p/q) (1 - e^-epsilon),

as e^-epsilon is the ratio of the two densities. Everything is float64 and in logarithms.
"""

import math

import numpy as np

from jdp import _validate

MIN_EPSILON, MAX_EPSILON = 1e-3, 1e4


def cost(logit_p: float, logit_q: float, log_mean: float) -> tuple[float, float, float]:
  """The cost of drawing with probability p from a cap of probability q.

  `log_mean` is the log of f/q, the mean of T in the cap.

  Returns:
    (p, log m, epsilon): epsilon is exact. It is at most 0 if p is no larger than q, and log m is
    then -infinity.
  """
  epsilon = logit_p - logit_q
  log_p = -float(np.logaddexp(0.0, -logit_p))
  log_m = log_p + log_mean + math.log(-math.expm1(-epsilon)) if epsilon > 0 else -math.inf
  return math.exp(log_p), log_m, epsilon


def logit(log_q: float) -> float:
  """log(q / (1-q)), accurate for small q."""
  return float(log_q - np.log1p(-np.exp(log_q)))


def logit_of(p: float) -> float:
  """log(p / (1-p)) of a probability that a user gives.

  Raises:
    ValueError: if p is not in (0, 1).
  """
  if not 0 < p < 1:
    raise ValueError(f"Expected p in (0, 1), got {p}; p = 1 has no finite epsilon.")
  return math.log(p) - math.log1p(-p)


def check_epsilon(epsilon: float) -> None:
  """Refuses an epsilon outside of [1e-3, 1e4]."""
  _validate.in_range(MIN_EPSILON, MAX_EPSILON, epsilon=epsilon)
