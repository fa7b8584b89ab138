"""Renyi differential privacy of a Gaussian sum over a sample of fixed size without replacement.

Source: arXiv 1808.00087 (Wang, Balle and Kasiviswanathan). The relation is replace-one. The sample
holds a share q of the records. The noise multiplier z is that of the sum when one record in the
sample is replaced. The divergence of a whole order a is at most log(A) / (a - 1) with

    A = 1 + sum_{j=2}^a C(a, j) q^j c_j,      c_j = min(2 e^(j(j-1)/(2z^2)), 4 m_j)

(Theorem 9). Here m_j bounds E |L - 1|^j for the likelihood ratio L of N(1, z^2) to N(0, z^2). At
even j it is the moment itself, at odd j the geometric mean of its neighbours (Theorem 27). Between
whole orders (a - 1) rdp(a) is convex in a, so it lies below its chord (Corollary 10). Nor does a
sample cost more than the whole: a / (2z^2).

For z <= 1/2 the first term of c_j is the smaller one, and no moments are computed. To see this, let
n_j = (E L^j)^(1/j) = e^((j-1)/(2z^2)). Minkowski's inequality gives m_j >= (n_j - 1)^j = E L^j (1 -
1/n_j)^j. The last factor is then at least (1 - e^-2)^2 > 1/2. That holds at odd j too, as moments
are log-convex in j.

**Truncated Poisson samples.** Whether the other records drawn fill the sample has one probability,
t, with the record and without it. Both distributions are mixtures over that, with the same weights.
So the divergence of order a is at most log((1 - t) e^((a-1) d) + t e^((a-1) f)) / (a - 1), with the
divergences d of a sample that is not full and f of a full one (joint convexity of e^((a-1) D)).
"""

import functools
import math
import sys

import numpy as np

from jdp.accounting.renyi.binomial_sums import log_binomial_sum, log_expm1
from jdp.accounting.renyi.conversions import below_chords
from jdp.accounting.renyi.poisson_gaussian import rdp_of_pairs

# For higher orders the other bound is the smaller one, so their moments are not computed.
_MAX_MOMENT = 256
_MAX_ORDER = 2**14  # above it the sum has too many terms, and the cost unsampled is the bound
_LEAST_FOR_MOMENTS = 0.5  # z; a smaller z needs no moments, which would take about 1/z nodes
_LARGEST = 1e100  # a larger z counts as this


def rdp_fixed_size_gaussian(q: np.ndarray, z: np.ndarray, orders: np.ndarray) -> np.ndarray:
  """The bound for shares q [E] and multipliers z [E] at real orders a [A], float64 [E, A].

  Shares lie in [0, 1], multipliers are >= 0 and orders > 1. The relative error is below 1e-9. For a
  clipped sum the multiplier is stddev / (2 clip norm), as a replaced record moves it by twice the
  clip norm.

  >>> print(rdp_fixed_size_gaussian(np.array([0.01]), np.array([1.0]), np.array([2.0, 6.0, 6.5])))
  [[0.00054351 0.0018142  0.00202305]]
  """
  z = np.minimum(z, _LARGEST)

  def log_moments(whole: np.ndarray) -> np.ndarray:
    return np.minimum(_log_moment(q, z, whole), whole * (whole - 1) / 2 * precision)

  with np.errstate(divide="ignore", over="ignore"):
    precision = (1 / z[:, None]) ** 2
    found = np.minimum(below_chords(log_moments, orders), orders / 2 * precision)
  least = sys.float_info.min + 0 * q[:, None]  # NaN stays
  return np.where(q[:, None] == 0, 0.0, np.maximum(found, least))


def rdp_truncated_gaussian(parameters: np.ndarray, orders: np.ndarray) -> np.ndarray:
  """The divergences [E, A] of `TRUNCATED_GAUSSIAN` pairs [E, 6] at orders [A].

  >>> print(rdp_truncated_gaussian(np.array([[0.1, 1.0, 0.01, 0.09, 0.5, 0.0]]), [2.0]))
  [[0.02112767]]
  """
  q, z, full, share, z_replaced, null = parameters.T
  orders = np.asarray(orders, float)
  whole = np.where(
    null[:, None] == 1,
    rdp_fixed_size_gaussian(share, z_replaced, orders),
    rdp_of_pairs(share, z_replaced, orders),
  )
  with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
    parts = [
      np.log(weight)[:, None] + log_expm1((orders - 1) * divergence)
      for weight, divergence in ((1 - full, rdp_of_pairs(q, z, orders)), (full, whole))
    ]
    return np.logaddexp(0.0, np.logaddexp(*parts)) / (orders - 1)


def _log_moment(q: np.ndarray, z: np.ndarray, whole: np.ndarray) -> np.ndarray:
  """log A of whole orders [W], [E, W]; infinity where the sum is not evaluated."""
  result = np.full((q.size, whole.size), math.inf)
  events = np.flatnonzero((q > 0) & (q < 1) & (z > 1e-100))
  within = whole <= _MAX_ORDER
  if events.size and within.any():

    def gain(rows: np.ndarray, j: np.ndarray) -> np.ndarray:
      return np.stack([_log_coefficients(float(z[event]), int(j[-1])) for event in events[rows]])

    log_q = np.log(q[events])
    log_excess = log_binomial_sum(log_q, np.zeros_like(log_q), gain, whole[within])
    result[np.ix_(events, np.flatnonzero(within))] = np.logaddexp(0.0, log_excess)
  result[q == 0] = 0.0
  return result


@functools.lru_cache(maxsize=256)
def _log_coefficients(z: float, top: int) -> np.ndarray:
  """log c_j for j = 2..top."""
  j = np.arange(2, top + 1)
  # The two bounds of the module's docstring, 2 e^(j(j-1)/(2z^2)) and 4 m_j.
  crude = math.log(2) + j * (j - 1) / 2 / z**2
  if z <= _LEAST_FOR_MOMENTS:
    return crude
  known = j[: max(0, _MAX_MOMENT - 1)]
  even = _log_even_moments(z, int(known[-1]))
  fine = math.log(4) + (even[known // 2 - 1] + even[(known + 1) // 2 - 1]) / 2
  crude[: known.size] = np.minimum(crude[: known.size], fine)
  return crude


def _log_even_moments(z: float, top: int) -> np.ndarray:
  """log E (L - 1)^j for j = 2, 4, ... up to the even number from `top` on.

  It uses the trapezoidal rule over x ~ N(0, z^2). The integrand is a sum of Gaussians of width z
  with centres 0..j. So the step below errs by less than e^-190 of the result for j <= 256 (Poisson
  summation). The range leaves out less.
  """
  j = np.arange(2, top + 2, 2)[:, None]
  reach = math.sqrt(top + 1) + 10
  x = np.arange(-reach * z, top + 1 + reach * z, 0.2 * z)
  u = (2 * x - 1) / (2 * z**2)
  log_distance = np.where(
    u > 0, log_expm1(np.maximum(u, 0.0)), np.log(-np.expm1(np.minimum(u, 0.0)))
  )
  exponent = j * log_distance - (x / z) ** 2 / 2
  top_exponent = exponent.max(axis=1)
  total = np.exp(exponent - top_exponent[:, None]).sum(axis=1)
  return top_exponent + np.log(total * 0.2 / math.sqrt(2 * math.pi))
