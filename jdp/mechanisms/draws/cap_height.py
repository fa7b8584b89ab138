"""Samples <V, u> for V uniform on a spherical cap, to float32's accuracy.

All of it runs inside jit. The tail probability is an incomplete beta function, which float32
cannot evaluate: bisection on it is wrong by 0.2 / sqrt(d) at d = 1e5. A table of its inverse is
used instead. The table leaves an error of 2.4e-6 / sqrt(d) at every dimension, most of it float32's
own.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jdp.accounting.local.cap_shares import log_density, quantile
from jdp.accounting.local.priv_unit import Cap
from jdp.mechanisms.draws.quantiles import anywhere_or_top, by_inversion, tabulate

# Up to this dimension 1 - t is tabulated rather than t: points near the pole are common.
_POLAR_DIM = 64


def height_sampler(
  cap: Cap,
) -> Callable[[jax.Array], tuple[jax.Array, tuple[jax.Array, jax.Array]]]:
  """Makes the sampler key -> (anywhere, (t, 1 - t)) of t = <V, u>, for V on the cap.

  `anywhere` says that V is to be drawn from the whole sphere instead, so that V is from the cap
  with probability p.
  """
  in_cap = _quantiles(cap.dim, cap.log_q, cap.dim <= _POLAR_DIM or cap.gamma > 0.5)
  return anywhere_or_top(cap.log_q, cap.logit_p, by_inversion(in_cap))


def _quantiles(
  dim: int, log_share: float, from_pole: bool
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
  """The function y -> (t, 1 - t), t >= 0, for caps {<v, u> >= t} of log share log_share + y.

  It is tabulated for y in [-45.1, 0]. Where t comes close to 1 (`from_pole`) the table holds 1 - t,
  else t: whichever float32 holds to 1e-7 of its own scale.
  """

  def height(y):
    gamma, log_height = quantile(dim, log_share + y)
    # dt / d log q = -q / density.
    slope = -np.exp(log_share + y - log_density(dim, gamma, log_height))
    return (2 * np.exp(log_height), -slope) if from_pole else (gamma, slope)

  table = tabulate(height)
  # Constant and factor of t and of 1 - t: data, so that all caps share one compiled program.
  lines = np.array([[0, 1], [1, -1]], np.float32)[:: -1 if from_pole else 1]

  def heights(y):
    value = table(y)
    t, complement = (constant + factor * value for constant, factor in jnp.asarray(lines))
    return t, complement

  return heights
