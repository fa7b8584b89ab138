"""Renyi differential privacy of the Poisson-subsampled Gaussian mechanism, in vectorised float64.

With sampling probability q, noise multiplier z and x ~ N(0, z^2), the likelihood ratio of the two
neighbouring outputs is 1 + y, where

    y = q (exp((2x - 1) / (2 z^2)) - 1),         E y = 0.

The Renyi divergence of order a is log A / (a - 1) with A = E (1 + y)^a (arXiv 1908.10530, Section
3, which also proves that this direction is the larger of the two). A - 1 can be as small as 1e-15
while its epsilon over a million rounds matters. So both ways to it below are sums of
non-negative terms:

* Whole orders: the binomial sum A - 1 = sum_{k=2}^a C(a,k) (1-q)^(a-k) q^k (e^((k^2-k)/(2z^2)) -
  1).
* Any order: quadrature of E[(1 + y)^a - 1 - a y].
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.renyi.binomial_sums import CHUNK, chunks, log_binomial_sum, log_expm1

_LEAST_PROBABILITY = 1e-300  # a smaller one counts as this, whose reciprocal is finite
_MAX_BINOMIAL_ORDER = 1024  # beyond it a whole order's sum has more terms than the quadrature nodes


@checked
def rdp_subsampled_gaussian(
  sampling_probability: ArrayLike, noise_multiplier: ArrayLike, orders: ArrayLike
) -> np.ndarray:
  """The Renyi divergence of each order of one Poisson-subsampled Gaussian sum.

  The relation is add/remove or zero-out of one record (both give the same pair of distributions).
  The divergence is the larger of the two directions. Divergences of several rounds add up.

  Args:
    sampling_probability: q in [0, 1], any shape.
    noise_multiplier: z >= 0, stddev of the noise over the clip norm. Its shape broadcasts with q's.
    orders: a > 1, finite, shape [A]. Or one order, shape [].

  Returns:
    float64 of the broadcast shape followed by the shape of `orders`. The relative error is below
    1e-10. Where a / z^2 exceeds about 1e4, it is an upper bound for fractional orders. q = 0 costs
    0, z = 0 infinity.

  Raises:
    ValueError: if an argument is out of range or NaN.
    FloatingPointError: if a result is NaN.

  >>> print(rdp_subsampled_gaussian(0.01, 1.0, [1.25, 2.0, 32.5]))
  [1.05398005e-04 1.71813422e-04 1.14986339e+01]
  """
  q, z = _validate.broadcast(
    sampling_probability=sampling_probability, noise_multiplier=noise_multiplier
  )
  a = np.asarray(orders, float)
  _check("sampling_probability in [0, 1]", (q >= 0) & (q <= 1), q)
  _check("noise_multiplier >= 0", z >= 0, z)
  _check("finite orders > 1", (a > 1) & (a < math.inf), a)
  return rdp_of_pairs(q.ravel(), z.ravel(), a.ravel()).reshape(q.shape + a.shape)


def rdp_of_pairs(q: np.ndarray, z: np.ndarray, a: np.ndarray) -> np.ndarray:
  """The divergences [E, A] of pairs q [E], z [E] at orders a [A].

  This is `rdp_subsampled_gaussian` of valid arguments.
  """
  q = np.where(q == 0, 0.0, np.maximum(q, _LEAST_PROBABILITY))
  with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
    precision = (1 / z) ** 2
    rdp = a / 2 * precision[:, None]  # without sampling, and an upper bound with it
    rdp[q == 0] = 0.0
    sampled = (q > 0) & (q < 1) & (precision > 0) & (precision < 1e200)
    if sampled.any():
      rdp[sampled] = np.logaddexp(0.0, _log_excess(q[sampled], z[sampled], a)) / (a - 1)
  least = np.where(z[:, None] < math.inf, np.finfo(float).tiny, 0.0)
  rdp = np.where(q[:, None] == 0, 0.0, np.maximum(rdp, least + 0 * q[:, None]))  # NaN stays
  if np.isnan(rdp).any():
    raise FloatingPointError("Expected Renyi divergences that are numbers, got NaN.")
  return rdp


def _log_excess(q: np.ndarray, z: np.ndarray, a: np.ndarray) -> np.ndarray:
  """log(A - 1), shape [E, A], for 0 < q < 1 and 0 < z < inf."""
  whole = (a == np.floor(a)) & (a <= _MAX_BINOMIAL_ORDER)
  result = np.empty((q.size, a.size))
  if whole.any():
    result[:, whole] = _by_binomial_sum(q, z, a[whole])
  if not whole.all():
    number = a.size - np.count_nonzero(whole)
    flat = _by_quadrature(np.repeat(q, number), np.repeat(z, number), np.tile(a[~whole], q.size))
    result[:, ~whole] = flat.reshape(q.size, number)
  return result


def _by_binomial_sum(q: np.ndarray, z: np.ndarray, a: np.ndarray) -> np.ndarray:
  """log(A - 1) at whole orders, [E, A]."""

  def gain(rows: np.ndarray, k: np.ndarray) -> np.ndarray:
    return log_expm1(k * (k - 1) / 2 * (1 / z[rows, None]) ** 2)

  return log_binomial_sum(np.log(q), np.log1p(-q), gain, a)


# The trapezoidal rule with step h errs by about e^(-2 pi d / h) times the integral of |integrand|
# along Im x = d (Trefethen and Weideman, SIAM Review 56(3), 2014, Theorem 5.1). Ours is analytic
# for d < pi z^2, and grows there by a factor of at most e^(d^2 / (2 z^2)). This gives the step for
# an error of e^-_LOG_ACCURACY. The range leaves out less.
_LOG_ACCURACY = 34


def _by_quadrature(q: np.ndarray, z: np.ndarray, a: np.ndarray) -> np.ndarray:
  """log(A - 1) of P triples (q, z, a), each [P]."""
  wide = math.pi * math.sqrt(2 / _LOG_ACCURACY) * z
  narrow = 2 / (_LOG_ACCURACY / (math.pi * z) ** 2 + 0.5)
  step = np.where(wide > 2, wide, narrow)
  num_nodes = np.ceil((np.maximum(a, 2) + 16 * z) / step) + 1  # from -8z to max(a, 2) + 8z
  result = np.empty(q.size)
  for rows in chunks(num_nodes):
    if num_nodes[rows[-1]] > CHUNK:  # Where more are needed, a closed form is as good.
      result[rows] = _by_triangle_inequality(q[rows], z[rows], a[rows])
    else:
      x = -8 * z[rows, None] + step[rows, None] * np.arange(num_nodes[rows[-1]])
      result[rows] = np.log(step[rows] / z[rows]) + _log_sum(
        x, q[rows, None], z[rows, None], a[rows, None]
      )
  return result


def _log_sum(x: np.ndarray, q: np.ndarray, z: np.ndarray, a: np.ndarray) -> np.ndarray:
  """log of the sum over the nodes x [P, N] of the integrand, [P].

  The integrand is (1+y)^a - 1 - a y times the standard normal density at x/z.
  """
  s = log_mixture(q, (x - 0.5) / z**2)
  # Terms are scaled by e^-t where t = a s > 0, so that nothing overflows.
  t, y, up = a * s, np.expm1(np.minimum(s, 1.0)), np.maximum(s, 0.0)
  rising = -np.expm1(-a * up) + a * np.exp((1 - a) * up) * np.expm1(-up)
  falling = np.expm1(np.minimum(t, 0.0)) - a * y
  c2 = a * (a - 1) / 2
  c3 = c2 * (a - 2) / 3
  c4 = c3 * (a - 3) / 4
  # At small |t| the differences above cancel; four terms of the series in y are exact enough.
  taylor = y * y * (c2 + y * (c3 + y * (c4 + y * (c4 * (a - 4) / 5))))
  small = np.abs(t) < 0.005
  scaled = np.where(small, taylor, np.where(t > 0, rising, falling))
  exponent = np.where(small, 0.0, np.maximum(t, 0.0)) - (x / z) ** 2 / 2
  top = exponent.max(axis=-1)
  total = np.sum(scaled * np.exp(exponent - top[:, None]), axis=-1)
  return top + np.log(np.maximum(total / math.sqrt(2 * math.pi), np.finfo(float).tiny))


def _by_triangle_inequality(q: np.ndarray, z: np.ndarray, a: np.ndarray) -> np.ndarray:
  """E (1-q + q L)^a <= ((1-q) + q (E L^a)^(1/a))^a, with E L^a = e^(a(a-1)/(2z^2))."""
  return log_expm1(a * log_mixture(q, (a - 1) / (2 * z**2)))


def log_mixture(q: np.ndarray | float, u: np.ndarray) -> np.ndarray:
  """log(1 - q + q e^u), accurate where it is small and without overflow where it is large."""
  log_large = np.log(q) + u
  small = np.log1p(q * np.expm1(np.minimum(u, -np.log(q))))
  return np.where(
    log_large > 0, log_large + np.log1p((1 - q) * np.exp(-np.maximum(log_large, 0.0))), small
  )


def _check(expected: str, accepted: np.ndarray, values: np.ndarray) -> None:
  if not np.all(accepted):
    raise ValueError(f"Expected {expected}, got {values[~accepted].flat[0]}.")
