"""Renyi differential privacy of a Poisson-sampled Gaussian about a replaced record.

With m = 1/(2z), the noise as unit, and phi the standard normal density, the pair of Statement 2.11
has the densities phi(x) (r + c e^(m x)) and phi(x) (r + c e^(-m x)), where r = 1 - q and
c = q e^(-m^2/2). The moment of order a is the integral of

    f(x) = phi(x) (r + c e^(m x))^a (r + c e^(-m x))^(1-a).

The trapezoidal rule sums it up. Let d <= pi/(2m). Where |y| <= d, the second bracket at x + iy is
at least its value at x over sqrt(2), and the first one at most its value. So the integral of |f|
along that line is at most M = e^(d^2/2) 2^((a-1)/2) times that of f. As f is analytic there, the
rule with spacing h is off by at most 2 M / (e^(2 pi d / h) - 1) of the integral (Trefethen and
Weideman, SIAM Review 56, Theorem 5.1). The spacing makes that
e^-38 of it. Below 0 log f grows at least as fast as log phi. Beyond X = m (a + (a - 1) c / (r + c))
it falls at least as fast as that of phi(x - X). So what is left out is below e^-45 of the rest.
"""

import math

import numpy as np
import scipy

from jdp.accounting.renyi.fixed_size_gaussian import rdp_fixed_size_gaussian

_MOST_NODES = 2**14  # where more are needed, the bound is that of a sample of fixed size
_UNIT = 2.0**-52


def rdp_replaced_gaussian(q: np.ndarray, z: np.ndarray, orders: np.ndarray) -> np.ndarray:
  """The divergences, float64 [E, A], for probabilities q [E] and multipliers z [E] at orders [A].

  Orders are > 1. The multiplier is that of a replaced record which takes part for certain. The
  divergences are those of a sum's sample of fixed size in which all other records are null.

  >>> print(rdp_replaced_gaussian(np.array([0.01]), np.array([1.0]), np.array([2.0, 6.0])))
  [[0.00010073 0.00030228]]
  """
  found = rdp_fixed_size_gaussian(q, z, orders)
  for row, (probability, multiplier) in enumerate(zip(q.tolist(), z.tolist(), strict=True)):
    if 0 < probability < 1 and multiplier > 0:
      for column, order in enumerate(orders.tolist()):
        own = _log_moment(probability, 0.5 / multiplier, order) / (order - 1)
        found[row, column] = min(found[row, column], own)
  return found


def _log_moment(q: float, m: float, order: float) -> float:
  """log of the moment, rounding errors included; infinity where it takes too many nodes."""
  log_r, log_c = math.log1p(-q), math.log(q) - m * m / 2
  d = min(6.0, math.pi / (2 * m)) if m else 6.0
  # So e^(2 pi d / h) = M e^40: the rule's error, 2 e^-40 of the integral, is below e^-38 of it.
  spacing = 2 * math.pi * d / (d * d / 2 + (order - 1) * math.log(2) / 2 + 40)
  low, high = -10.0, m * (order + (order - 1) * scipy.special.expit(log_c - log_r)) + 10
  if not (high - low) / spacing < _MOST_NODES:
    return math.inf
  x = np.arange(low, high + spacing, spacing)
  above, below = (np.logaddexp(log_r, log_c + side * m * x) for side in (1, -1))
  terms = order * above, (1 - order) * below, -x * x / 2
  largest = sum(float(np.max(np.abs(term))) for term in terms)
  log_sum = scipy.special.logsumexp(sum(terms)) + math.log(spacing / math.sqrt(2 * math.pi))
  return max(0.0, float(log_sum)) + 16 * _UNIT * (largest + len(x))
