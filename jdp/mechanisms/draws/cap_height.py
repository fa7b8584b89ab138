"""Samples <V, u> for V uniform on a spherical cap or its complement, to float32's accuracy.

All of it runs inside jit. The tail probability is an incomplete beta function, which float32
cannot evaluate: bisection on it is wrong by 0.2 / sqrt(d) at d = 1e5. A table of its inverse is
used instead. The table leaves an error of 2.4e-6 / sqrt(d) at every dimension, most of it float32's
own.
"""

from collections.abc import Callable

import jax
import numpy as np

from jdp.accounting.local.priv_unit import Cap, log_density, quantile
from jdp.mechanisms.draws.quantiles import HALF, tabulate, two_sided

# Up to this dimension 1 - t is tabulated rather than t: points near the pole are common.
_POLAR_DIM = 64


def height_sampler(cap: Cap) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
  """Makes the sampler key -> (t, 1 - t) of t = <V, u>.

  V is drawn from the cap with probability p, else from its complement.
  """
  small = cap.dim <= _POLAR_DIM
  in_cap = _quantiles(cap.dim, cap.log_q, 0.0, small or cap.gamma > 0.5)
  in_half = _quantiles(cap.dim, 0.0, HALF, small)
  return two_sided(
    cap.log_q, cap.logit_p, in_cap, in_half, mirror=lambda height: (-height[0], 2 - height[1])
  )


def _quantiles(
  dim: int, log_tail_start: float, highest: float, from_pole: bool
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
  """The function y -> (t, 1 - t), t >= 0, for caps {<v, u> >= t} of log share log_tail_start + y.

  It is tabulated for y in [highest - 45.1, highest]. Where t comes close to 1 (`from_pole`) the
  table holds 1 - t, else t: whichever float32 holds to 1e-7 of its own scale.
  """

  def height(y):
    gamma, log_height = quantile(dim, log_tail_start + y)
    # dt / d log q = -q / density.
    slope = -np.exp(log_tail_start + y - log_density(dim, gamma, log_height))
    return (2 * np.exp(log_height), -slope) if from_pole else (gamma, slope)

  table = tabulate(height, highest)

  def heights(y):
    value = table(y)
    return (1 - value, value) if from_pole else (value, 1 - value)

  return heights
