"""Closed forms of PrivUnitG, the spherical-cap mechanism with Gaussian noise (arXiv 2205.02466).

V is drawn from N(0, I) in R^d, u is a unit vector, and T = <V, u>. T is standard normal in every
dimension, and

    q(gamma) = P(T >= gamma) = Phi(-gamma),
    f(gamma) = E[T; T >= gamma] = phi(gamma).

The mechanism draws V from the half-space {T >= gamma} with probability p, else from the other one.
This costs exactly epsilon = logit p - logit q. It gives E[V] = m u with m = f (p/q - (1-p)/(1-q)),
and E[T^2] = 1 + gamma m. The part of V orthogonal to u is N(0, I), so

    E||V/m - u||^2 = (d + gamma m) / m^2 - 1.

The paper's noise is N(0, I/d). Its gamma is this one over sqrt(d), and its estimate is the same.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy

from jdp._arguments import checked
from jdp.accounting.local.threshold import MAX_EPSILON, check_epsilon, cost

# The relative margin by which a mechanism's epsilon stays below the one asked for. It is well above
# the error of the formulas here.
_SAFETY = 1e-11


class GaussianCap(NamedTuple):
  """A half-space and the probability of drawing from it: all of PrivUnitG, in every dimension.

  Attributes:
    gamma: The threshold: the half-space is <v, u> >= gamma, in units in which the noise has stddev
      1. It is the paper's gamma times sqrt(d).
    p: the probability of drawing from the half-space.
    logit_p: log(p / (1-p)).
    log_q: log of the half-space's probability, Phi(-gamma).
    m: The norm of E[V].
    epsilon: The exact privacy loss. It is logit p - logit q.
  """

  gamma: float
  p: float
  logit_p: float
  log_q: float
  m: float
  epsilon: float

  def mean_squared_error(self, dim: int) -> float:
    """E||V/m - u||^2 in `dim` dimensions, exactly."""
    return (dim + self.gamma * self.m) / self.m**2 - 1


@checked
def optimal_gaussian_cap(epsilon: float) -> GaussianCap:
  """The half-space and probability with the largest m among all that cost epsilon.

  For given gamma the best p spends all of epsilon. That leaves m = f / (q + 1/(e^epsilon - 1)) to
  maximise. d log m / d gamma = m - gamma, so the maximum is where gamma = m, and nowhere else.

  There the covariance of V/m is exactly I/m^2, and its mean squared error is d/m^2. The least error
  is at a gamma smaller by about m/(2d). It is less by about 1/(4d), and not isotropic.

  Args:
    epsilon: the budget, from 1e-3 to 1e4.

  Returns:
    A `GaussianCap` whose exact epsilon is below the one asked for, by a relative 1e-11.

  Raises:
    ValueError: if epsilon is out of range.

  >>> cap = optimal_gaussian_cap(4.0)
  >>> round(cap.gamma, 6), round(cap.m, 6), round(cap.p, 5)
  (1.515638, 1.515638, 0.79095)
  """
  check_epsilon(epsilon)
  log_odds = epsilon + math.log(-math.expm1(-epsilon))  # log(e^epsilon - 1)

  def surplus(log_gamma):  # log(gamma / m), increasing through its only root
    gamma = math.exp(log_gamma)
    log_rest = np.logaddexp(-log_odds, scipy.special.log_ndtr(-gamma))
    return log_gamma - log_normal_density(gamma) + log_rest

  # The root lies between these for every epsilon that is allowed.
  low, high = math.log(1e-4), math.log(1 + math.sqrt(2 * MAX_EPSILON))
  gamma = math.exp(scipy.optimize.brentq(surplus, low, high, xtol=1e-15, rtol=1e-15))
  return _spend(gamma, epsilon)


def log_normal_density(x):
  """log phi(x), elementwise."""
  return -0.5 * x * x - 0.5 * math.log(2 * math.pi)


def _spend(gamma: float, epsilon: float) -> GaussianCap:
  """The half-space whose p spends epsilon, up to the safety margin."""
  log_q, log_rest = float(scipy.special.log_ndtr(-gamma)), float(scipy.special.log_ndtr(gamma))
  logit_q = log_q - log_rest
  logit_p = epsilon * (1 - _SAFETY) + logit_q
  p, log_m, spent = cost(logit_p, logit_q, float(log_normal_density(gamma)) - log_q)
  return GaussianCap(gamma, p, logit_p, log_q, math.exp(log_m), spent)
