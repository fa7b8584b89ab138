"""Closed forms of the spherical-cap mechanism PrivUnit (arXiv 1812.00984, Algorithm 1).

V is uniform on the unit sphere of R^d, and T = <V, u>. The density of T is c_d (1 - t^2)^((d-3)/2).
With a = (d-1)/2,

    q(gamma) = P(T >= gamma) = I_h(a, a),        h = (1 - gamma) / 2,
    f(gamma) = E[T; T >= gamma] = c_d (1 - gamma^2)^a / (2 a).

The mechanism draws V from the cap {T >= gamma} with probability p, else from its complement. This
costs exactly epsilon = logit p - logit q. It gives E[V] = m u with m = f (p/q - (1-p)/(1-q)).

Everything is float64 on the host and in logarithms. At (d=1e5, epsilon=256) q is 3e-109. At
epsilon=1e4 both gamma and p round to 1. So the height of the cap is carried as log h, and p as its
logit.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.local.cap_shares import gamma_of, log_height_of, log_share, quantile
from jdp.accounting.local.threshold import check_epsilon, cost, logit, logit_of
from jdp.guarantees import rounded_up

MAX_DIM = 10**9

# The relative margin by which a mechanism's epsilon stays below the one asked for. It is ten times
# the error of the formulas here, and a thousandth of what a user could notice.
_SAFETY = 5e-10


class Cap(NamedTuple):
  """A cap and the probability of drawing from it, all that defines PrivUnit.

  Attributes:
    dim: The dimension d. At least 2.
    gamma: the least <v, u> of the cap's points, in [0, 1).
    log_height: `log((1 - gamma) / 2)`. Accurate where gamma rounds to 1.
    p: the probability of drawing from the cap.
    logit_p: `log(p / (1-p))`. Accurate where p rounds to 1. The paper calls it eps0.
    log_q: log of the cap's share of the sphere.
    logit_q: log(q / (1-q)).
    log_m: log of the norm of E[V].
    epsilon: The exact privacy loss. It is logit p - logit q.
  """

  dim: int
  gamma: float
  log_height: float
  p: float
  logit_p: float
  log_q: float
  logit_q: float
  log_m: float
  epsilon: float

  @property
  def m(self) -> float:
    """The norm of E[V]. Releases have norm 1/m."""
    return math.exp(self.log_m)


@checked
def optimal_cap(dim: int, epsilon: float) -> Cap:
  """The cap and probability with the least mean squared error among all that cost epsilon.

  For given gamma the best p spends all of epsilon. That leaves m = f / (q + 1/(e^epsilon - 1)) to
  maximise. Its derivative vanishes where gamma = m, and nowhere else.

  Args:
    dim: The dimension d. From 2 to 1e9.
    epsilon: the budget, from 1e-3 to 1e4.

  Returns:
    A `Cap` whose exact epsilon is below the one asked for, by a relative 5e-10.

  Raises:
    ValueError: if an argument is out of range.

  >>> cap = optimal_cap(1000, 4.0)
  >>> round(cap.p, 5), round(cap.m, 6), round(1 / cap.m**2 - 1, 1)
  (0.79121, 0.047913, 434.6)
  """
  _check(dim, epsilon)
  log_odds = epsilon + math.log(-math.expm1(-epsilon))  # log(e^epsilon - 1)

  def surplus_low(log_gamma):  # log(gamma/m), increasing through its root
    gamma = math.exp(log_gamma)
    log_q, log_ratio = log_share(dim, gamma, log_height_of(gamma))
    return log_gamma + log_ratio + np.logaddexp(0.0, -(log_odds + log_q))

  # For gamma above 1/2 both gamma q/f and m q/f may round to 1. So their distances from 1 are
  # compared, on a log scale. log(-log(gamma q/f)) - log(-log(m q/f)) increases through its root.
  def surplus_high(log_height):
    log_q, log_ratio = log_share(dim, gamma_of(log_height), log_height)
    gap = -np.log1p(-2 * np.exp(log_height)) - log_ratio
    # Below e^-40 the gap cancels, and its first-order term in h is exact to rounding.
    log_gap = math.log(gap) if log_height > -40 else log_height + math.log(4 / (dim + 1))
    x = log_odds + float(log_q)
    return log_gap - (math.log(np.logaddexp(0.0, -x)) if x < 40 else -x)

  if surplus_low(math.log(0.5)) >= 0:  # the root has gamma <= 1/2
    gamma = math.exp(
      scipy.optimize.brentq(surplus_low, math.log(1e-14), math.log(0.5), xtol=1e-15, rtol=1e-15)
    )
    return _spend(dim, gamma, log_height_of(gamma), epsilon)
  lowest = -2 * (epsilon + 100) / (dim - 1) - 100
  log_height = scipy.optimize.brentq(surplus_high, lowest, math.log(0.25), xtol=1e-15, rtol=1e-15)
  return _spend(dim, gamma_of(log_height), log_height, epsilon)


@checked
def cap_at(dim: int, epsilon: float, gamma: float) -> Cap:
  """The cap of a given gamma. Its p is the best for epsilon: the one that spends all of it."""
  _check(dim, epsilon)
  _check_gamma(gamma)
  return _spend(dim, gamma, log_height_of(gamma), epsilon)


@checked
def cap_of(dim: int, gamma: float, p: float) -> Cap:
  """The cap of a given (gamma, p), with its exact epsilon.

  Raises:
    ValueError: if gamma is not in [0, 1), or p is not in (0, 1). Also if p is below the cap's own
      share q, where the mechanism would point away from its input.
  """
  _check(dim)
  _check_gamma(gamma)
  cap = _costed_cap(dim, gamma, log_height_of(gamma), logit_of(p))
  if not cap.epsilon > 0:
    raise ValueError(
      f"Expected p above the cap's share of the sphere, {math.exp(cap.log_q):.6g}, got {p}."
    )
  return cap


@checked
def widest_cap(dim: int, epsilon: float, p: float) -> Cap:
  """The best cap for a given p: m grows with gamma, so it spends all of epsilon on gamma.

  Raises:
    ValueError: if an argument is out of range, or if p alone costs more than epsilon.
  """
  _check(dim, epsilon)
  if not 0.5 <= p < 1:
    raise ValueError(f"Expected p in [1/2, 1) when gamma is not given, got {p}.")
  logit_p = logit_of(p)
  logit_q = logit_p - epsilon * (1 - _SAFETY)
  if not logit_q <= 0:
    raise ValueError(
      f"Expected p with log(p/(1-p)) <= epsilon = {epsilon}, got p = {p} with "
      f"{rounded_up(logit_p)}."
    )
  gamma, log_height = quantile(dim, -np.logaddexp(0.0, -logit_q))
  return _costed_cap(dim, float(gamma), float(log_height), logit_p)


@checked
def published_cap(dim: int, epsilon0: float, epsilon1: float) -> Cap:
  """The paper's choice: p = expit(epsilon0), gamma from its sufficient conditions for epsilon1.

  gamma is the largest that condition (a) or (b) of arXiv 1812.00984, Section 4.1.1, allows:

      (a) gamma <= tanh(epsilon1/2) sqrt(pi / (2(d-1)))
      (b) epsilon1 >= log(d)/2 + log 6 - (d-1)/2 log(1-gamma^2) + log gamma, gamma >= sqrt(2/d)

  Both leave part of epsilon1 unused. The cap's `epsilon` says what it really costs.

  Args:
    dim: The dimension d. At least 3, because condition (a) is not sufficient at d = 2.
    epsilon0: the share of the budget spent on p, >= 0.
    epsilon1: the share spent on gamma, > 0.

  Raises:
    ValueError: if an argument is out of range, or the exact epsilon exceeds epsilon0 + epsilon1.

  >>> cap = published_cap(1000, 1.0, 3.0)
  >>> cap.epsilon < 4.0 and cap.m < optimal_cap(1000, 4.0).m
  True
  """
  _check(dim, epsilon0 + epsilon1)
  _validate.integer(3, dim=dim)
  _validate.non_negative(epsilon0=epsilon0)
  _validate.positive(epsilon1=epsilon1)

  def slack_b(gamma: float) -> float:
    around = 0.5 * (dim - 1) * math.log1p(-(gamma**2))
    return epsilon1 - (0.5 * math.log(dim) + math.log(6) - around + math.log(gamma))

  # The largest gamma of (a), and then that of (b) if any gamma meets it.
  least_b, most = math.sqrt(2 / dim), 1 - 1e-12
  gamma = min(math.tanh(epsilon1 / 2) * math.sqrt(math.pi / (2 * (dim - 1))), most)
  if slack_b(least_b) >= 0:
    largest_b = most if slack_b(most) >= 0 else scipy.optimize.brentq(slack_b, least_b, most)
    gamma = max(gamma, largest_b)
  cap = _costed_cap(dim, gamma, log_height_of(gamma), epsilon0)
  if not cap.epsilon <= epsilon0 + epsilon1:
    raise ValueError(
      f"Expected the published gamma to cost at most {epsilon0 + epsilon1}, got {cap.epsilon}."
    )
  return cap


def _spend(dim: int, gamma: float, log_height: float, epsilon: float) -> Cap:
  """The cap whose p spends epsilon, up to the safety margin."""
  log_q, _ = log_share(dim, gamma, log_height)
  return _costed_cap(dim, gamma, log_height, epsilon * (1 - _SAFETY) + logit(float(log_q)))


def _costed_cap(dim: int, gamma: float, log_height: float, logit_p: float) -> Cap:
  """The cap with its share of the sphere, its mean and its exact epsilon filled in."""
  log_q, log_ratio = (float(x) for x in log_share(dim, gamma, log_height))
  logit_q = logit(log_q)
  p, log_m, epsilon = cost(logit_p, logit_q, -log_ratio)
  return Cap(dim, gamma, log_height, p, logit_p, log_q, logit_q, log_m, epsilon)


def _check(dim: int, epsilon: float = 1.0) -> None:
  if not (isinstance(dim, int | np.integer) and 2 <= dim <= MAX_DIM):
    raise ValueError(
      f"Expected dim to be a whole number in [2, {MAX_DIM}], got {dim!r}; a scalar has no "
      "direction."
    )
  check_epsilon(epsilon)


def _check_gamma(gamma: float) -> None:
  if not 0 <= gamma < 1:
    raise ValueError(f"Expected gamma in [0, 1), got {gamma}.")
