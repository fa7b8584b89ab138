"""Renyi differential privacy of a Gaussian sum over a truncated Poisson sample.

Whether the other records drawn fill the sample has one probability, t, with the record and without
it. Both distributions are mixtures over that, with the same weights. So the divergence of order a
is at most log((1 - t) e^((a-1) d) + t e^((a-1) f)) / (a - 1), with the divergences d of a sample
that is not full and f of a full one (joint convexity of e^((a-1) D)).
"""

import numpy as np

from jdp.accounting.renyi.binomial_sums import log_expm1
from jdp.accounting.renyi.fixed_size_gaussian import rdp_fixed_size_gaussian
from jdp.accounting.renyi.poisson_gaussian import rdp_of_pairs


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
