"""The share of the sphere in a cap, for `jdp.accounting.local.priv_unit`, in logarithms."""

import math
from typing import Any

import numpy as np
import scipy


def gamma_of(log_height: Any) -> Any:
  """The gamma of a cap with this log h."""
  return -np.expm1(log_height + math.log(2))


def log_height_of(gamma: float) -> float:
  """The log h of a cap with this gamma."""
  return np.log1p(-gamma) - math.log(2)


def log_density_constant(dim: int) -> float:
  """log c_d = log Gamma(d/2) - log Gamma((d-1)/2) - log(pi)/2.

  A difference of lgamma would lose 1e-6 at d = 1e9. So Stirling's series is used from a = (d-1)/2 =
  25 on.
  """
  a = (dim - 1) / 2
  if a < 25:
    return scipy.special.gammaln(a + 0.5) - scipy.special.gammaln(a) - 0.5 * math.log(math.pi)
  r = 1 / (a * a)
  series = (-1 / 8 + r * (1 / 192 + r * (-1 / 640 + r * (17 / 14336 - r * 31 / 18432)))) / a
  return 0.5 * math.log(a) + series - 0.5 * math.log(math.pi)


def log_share(dim: int, gamma, log_height) -> tuple[np.ndarray, np.ndarray]:
  """log q(gamma) and log(q/f)(gamma), elementwise for 0 <= gamma < 1.

  Args:
    dim: The dimension d. At least 2.
    gamma: The height of the cap's rim. Any shape.
    log_height: log((1-gamma)/2), of the same shape as gamma. It is read where gamma > 1/2, where it
      is the more accurate of the two. Elsewhere gamma is read.

  Returns:
    (log q, log q/f), float64: relative errors below 1e-13 for q/f - 1 and 1e-13 for log q.
  """
  gamma, log_height = np.broadcast_arrays(np.asarray(gamma, float), np.asarray(log_height, float))
  log_q, log_ratio = np.empty(gamma.shape), np.empty(gamma.shape)
  high = gamma > 0.5
  log_q[high], log_ratio[high] = _log_share_high(dim, log_height[high])
  log_q[~high], log_ratio[~high] = _log_share_low(dim, gamma[~high])
  return log_q, log_ratio


def _log_share_high(dim: int, log_height: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """For gamma > 1/2: q/f = 2F1(2a, 1; a+1; h), as a series.

  Its terms are positive, and their ratio is below 2h < 1/2.
  """
  a, h = (dim - 1) / 2, np.exp(log_height)
  # Each term is less than half of the one before it, so what follows the 64th is below rounding.
  n = np.arange(64).reshape(-1, *[1] * h.ndim)
  excess = np.sum(np.cumprod((2 * a + n) / (a + 1 + n) * h, axis=0), axis=0)
  log_scale = log_density_constant(dim) - math.log(2 * a)
  log_f = log_scale + a * (math.log(4) + log_height + np.log1p(-h))
  return log_f + np.log1p(excess), np.log1p(excess)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def _log_share_low(dim: int, gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """For gamma <= 1/2: q = c_d times the integral of sin^(d-2) from 0 to Theta = acos(gamma).

  Let theta = Theta - x. The integrand, relative to its value at Theta, is then

      (1 - 2 sin^2(x/2) - cot(Theta) sin x)^(d-2).

  Nothing cancels in it. Gauss's rule on the range where it exceeds e^-50 is exact to rounding.
  """
  power, sine = dim - 2, np.sqrt((1 - gamma) * (1 + gamma))
  cot, angle = gamma / sine, np.arccos(gamma)
  # The root of power * (cot x + x^2/2) = 50, beyond which the integrand is below e^-50. It is
  # written so that nothing cancels; the 1e-300 covers power = 0 (d = 2).
  reach = np.minimum(
    angle, 100 / (np.sqrt((power * cot) ** 2 + 100 * power) + power * cot + 1e-300)
  )
  x = 0.5 * reach[..., None] * (1 + _NODES)
  drop = 2 * np.sin(x / 2) ** 2 + cot[..., None] * np.sin(x)
  # Rounding may bring `drop` above 1, where the logarithm would be NaN.
  relative = np.exp(power * np.log1p(-np.minimum(drop, 1 - 1e-300)))
  integral = 0.5 * reach * np.sum(_WEIGHTS * relative, axis=-1)
  log_sine_squared = np.log1p(-(gamma**2))
  log_q = log_density_constant(dim) + 0.5 * power * log_sine_squared + np.log(integral)
  # q/f = 2a * integral / sin(Theta), as f = c_d sin^(2a)(Theta) / (2a).
  return log_q, np.log((dim - 1) * integral) - 0.5 * log_sine_squared


def quantile(dim: int, log_tail) -> tuple[np.ndarray, np.ndarray]:
  """The height gamma >= 0 of the cap with a given share of the sphere: the inverse of `log_share`.

  Newton's method solves for log h. log q is a concave function of log h, so the iteration converges
  from one side. It starts from a normal approximation.

  Args:
    dim: The dimension d. At least 2.
    log_tail: log q, at most log(1/2). Any shape.

  Returns:
    (gamma, log h), float64, accurate to 1e-12 relative to 1/sqrt(d).
  """
  log_tail = np.asarray(log_tail, float)
  log_sine_squared = -(scipy.special.ndtri_exp(log_tail) ** 2) / (dim - 1.5)
  gamma = np.sqrt(-np.expm1(log_sine_squared))
  log_height = log_sine_squared - math.log(2) - np.log1p(gamma)
  for _ in range(50):
    log_q, log_ratio = log_share(dim, gamma, log_height)
    slope = (dim - 1) / (1 + gamma) * np.exp(-log_ratio)  # d log q / d log h
    step = (log_tail - log_q) / slope
    log_height = np.minimum(log_height + step, math.log(0.5))
    gamma = gamma_of(log_height)
    if np.max(np.abs(step)) * math.sqrt(dim) < 1e-7:  # the error after a step is its square
      break
  return gamma, log_height


def log_density(dim: int, gamma, log_height) -> np.ndarray:
  """log of the density of T = <V, u> at gamma, elementwise."""
  log_sine_squared = np.log1p(gamma) + np.asarray(log_height) + math.log(2)
  return log_density_constant(dim) + 0.5 * (dim - 3) * log_sine_squared
