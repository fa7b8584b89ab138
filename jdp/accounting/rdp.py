"""Renyi differential privacy of the Poisson-subsampled Gaussian mechanism, in vectorised float64.

With sampling probability q, noise multiplier z and x ~ N(0, z^2), the
likelihood ratio of the two neighbouring outputs is 1 + y, where

    y = q (exp((2x - 1) / (2 z^2)) - 1),         E y = 0,

and the Renyi divergence of order a is log A / (a - 1) with A = E (1 + y)^a
(arXiv 1908.10530, Section 3.3, which also proves that this order of the two
is the larger). A - 1 can be as small as 1e-15 while its epsilon over a
million rounds matters, so both ways to it below are sums of non-negative terms:

* whole orders: the binomial sum A - 1 = sum_{k=2}^a C(a,k) (1-q)^(a-k) q^k (e^((k^2-k)/(2z^2)) - 1),
* any order: quadrature of E[(1 + y)^a - 1 - a y].
"""

import functools
import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

_MAX_BINOMIAL_ORDER = 1024  # beyond it a whole order's sum has more terms than the quadrature nodes
_MIN_QUADRATURE_NOISE = 0.01  # below it the triangle inequality is as good, and quadrature needs 1/z^2 nodes
_CHUNK = 2**16  # array elements at a time: bounds the memory, and stays in the cache


def rdp_subsampled_gaussian(
  sampling_probability: ArrayLike, noise_multiplier: ArrayLike, orders: ArrayLike
) -> np.ndarray:
  """Renyi divergence of each order between neighbouring runs of one Poisson-subsampled Gaussian sum.

  The relation is add/remove or zero-out of one record (both give the same
  pair of distributions); the divergence is the larger of the two directions.
  Divergences of several rounds add up.

  Args:
    sampling_probability: q in [0, 1], any shape.
    noise_multiplier: z >= 0, stddev of the noise over the clip norm, of a shape that broadcasts with q's.
    orders: a > 1, finite, shape [A]; or one order, shape [].

  Returns:
    float64 of the broadcast shape followed by the shape of `orders`. Relative
    error below 1e-10, for z < 0.01 and fractional orders an upper bound. q = 0
    costs 0, z = 0 infinity.

  Raises:
    ValueError: if an argument is out of range or NaN.

  >>> print(rdp_subsampled_gaussian(0.01, 1.0, [1.25, 2.0, 32.5]))
  [1.05398005e-04 1.71813420e-04 1.14986339e+01]
  """
  q, z = np.broadcast_arrays(np.asarray(sampling_probability, float), np.asarray(noise_multiplier, float))
  a = np.asarray(orders, float)
  _check("sampling_probability in [0, 1]", (q >= 0) & (q <= 1), q)
  _check("noise_multiplier >= 0", z >= 0, z)
  _check("finite orders > 1", (a > 1) & (a < math.inf), a)
  rdp = _rdp(q.ravel(), z.ravel(), a.ravel())
  return rdp.reshape(q.shape + a.shape)


def _rdp(q, z, a):
  """The divergences [E, A] of E pairs (q, z) at A orders."""
  with np.errstate(divide="ignore", over="ignore"):
    rdp = a / 2 * (1 / z[:, None]) ** 2
  rdp[q == 0] = 0.0
  sampled = (q > 0) & (q < 1) & (z > 0) & (z < math.inf)
  if sampled.any():
    rdp[sampled] = np.logaddexp(0.0, _log_excess(q[sampled], z[sampled], a)) / (a - 1)
  return rdp


def _log_excess(q, z, a):
  """log(A - 1), shape [E, A], for 0 < q < 1 and 0 < z < inf."""
  binomial = (a == np.floor(a)) & (a <= _MAX_BINOMIAL_ORDER)
  result = np.empty((q.size, a.size))
  if binomial.any():
    result[:, binomial] = _by_binomial_sum(q, z, a[binomial])
  if not binomial.all():
    fine = z >= _MIN_QUADRATURE_NOISE
    result[np.ix_(fine, ~binomial)] = _by_quadrature(q[fine], z[fine], a[~binomial])
    result[np.ix_(~fine, ~binomial)] = _by_triangle_inequality(q[~fine], z[~fine], a[~binomial])
  return result


def _by_binomial_sum(q, z, a):
  starts, k, rest, log_choose = _binomial_terms(tuple(a.astype(int)))
  result = np.empty((q.size, a.size))
  for chunk in _chunks(np.full(q.size, k.size)):
    log_q, log_p = np.log(q[chunk, None]), np.log1p(-q[chunk, None])
    squares = np.arange(k.max() + 1.0)
    squares *= squares - 1
    gain = _log_expm1(squares / 2 * (1 / z[chunk, None]) ** 2)
    terms = log_choose + k * log_q + rest * log_p + gain[:, k]
    result[chunk] = _log_sum_exp(terms, starts)
  return result


@functools.lru_cache(maxsize=16)
def _binomial_terms(orders):
  """The terms k = 2..a of every order, one after another: where each order starts, k, a - k, log C(a, k)."""
  a = np.repeat(orders, np.array(orders) - 1)
  k = np.concatenate([np.arange(2, order + 1) for order in orders])
  starts = np.cumsum([0, *(order - 1 for order in orders[:-1])])
  log_choose = special.gammaln(a + 1) - special.gammaln(k + 1) - special.gammaln(a - k + 1)
  return starts, k, a - k, log_choose


def _log_sum_exp(terms, starts):
  """log of the sum of exp(terms) over the segments of the last axis that begin at `starts`."""
  top = np.maximum.reduceat(terms, starts, axis=1)
  lengths = np.diff(starts, append=terms.shape[1])
  terms -= np.repeat(top, lengths, axis=1)
  return top + np.log(np.add.reduceat(np.exp(terms, out=terms), starts, axis=1))


def _log_expm1(t):
  """log(e^t - 1) for t >= 0, accurate for small and for large t."""
  with np.errstate(divide="ignore"):
    return np.where(t > 1, t + np.log1p(-np.exp(-t)), np.log(np.expm1(np.minimum(t, 1))))


# On [-8z, a + 8z] the trapezoidal rule's error, relative to the integral, is about e^-_DIGITS: the integrand is analytic
# for |Im x| < pi z^2, and exp((Im x)^2 / (2 z^2)) times larger there than on the real line (arXiv 1401.5462, ...).
_DIGITS = 34


def _by_quadrature(q, z, a):
  wide, narrow = math.pi * math.sqrt(2 / _DIGITS) * z, 2 / (_DIGITS / (math.pi * z) ** 2 + 0.5)
  step = np.where(wide > 2, wide, narrow)
  num_nodes = np.ceil((a.max() + 16 * z) / step).astype(int) + 1
  result = np.empty((q.size, a.size))
  for rows in _chunks(a.size * num_nodes):
    x = -8 * z[rows, None] + step[rows, None] * np.arange(num_nodes[rows].max())
    result[rows] = _log_integral(q[rows, None], z[rows, None], a, x)
  return result + np.log(step / z / math.sqrt(2 * math.pi))[:, None]


def _log_integral(q, z, a, x):
  """log of the sum over the nodes x [E, N] of e^(-x^2/(2z^2)) ((1+y)^a - 1 - a y), shape [E, A]."""
  s, bell, a = _log_ratio(q, z, x)[:, None], -((x / z) ** 2 / 2)[:, None], a[:, None]
  # Terms are scaled by e^-t where t = a s > 0, so that nothing overflows.
  t, y, up = a * s, np.expm1(np.minimum(s, 1.0)), np.maximum(s, 0.0)
  rising = -np.expm1(-a * up) + a * np.exp((1 - a) * up) * np.expm1(-up)
  falling = np.expm1(np.minimum(t, 0.0)) - a * y
  taylor = a * (a - 1) / 2 * y**2 * (1 + (a - 2) / 3 * y * (1 + (a - 3) / 4 * y * (1 + (a - 4) / 5 * y)))
  small = np.abs(t) < 0.01
  scaled = np.where(small, taylor, np.where(t > 0, rising, falling))
  exponent = bell + np.where(small, 0.0, np.maximum(t, 0.0))
  top = exponent.max(axis=-1)
  total = np.sum(scaled * np.exp(exponent - top[..., None]), axis=-1)
  return top + np.log(np.maximum(total, np.finfo(float).tiny))


def _log_ratio(q, z, x):
  """s = log(1 + y) = log(1 - q + q e^u), accurate for small y and without overflow for large y."""
  u = (x - 0.5) / z**2
  log_large = np.log(q) + u
  small = np.log1p(q * np.expm1(np.minimum(u, -np.log(q))))
  return np.where(log_large > 0, log_large + np.log1p((1 - q) * np.exp(-np.maximum(log_large, 0.0))), small)


def _by_triangle_inequality(q, z, a):
  """E (1-q + q L)^a <= ((1-q) + q (E L^a)^(1/a))^a, with E L^a = e^(a(a-1)/(2z^2))."""
  log_root = (a - 1) / (2 * z[:, None] ** 2)
  log_moment = a * np.logaddexp(np.log1p(-q)[:, None], np.log(q)[:, None] + log_root)
  return _log_expm1(log_moment)


def _chunks(lengths):
  """Splits rows into index arrays, rows of similar length together, that fill at most _CHUNK elements."""
  rows = np.argsort(lengths)
  while rows.size:
    filled = np.arange(1, rows.size + 1) * lengths[rows]
    size = max(1, int(np.searchsorted(filled, _CHUNK, side="right")))
    yield rows[:size]
    rows = rows[size:]


def _check(expected, accepted, values):
  if not np.all(accepted):
    raise ValueError(f"Expected {expected}, got {values[~accepted].flat[0]}.")
