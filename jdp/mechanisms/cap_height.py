"""Sampling <V, u> for V uniform on a spherical cap or its complement, inside jit and to float32's accuracy.

The inverse of the tail probability is an incomplete beta function's, which
float32 cannot evaluate (bisection on it is wrong by 0.2 / sqrt(d) at d = 1e5). So it is tabulated once
on the host in float64, as a function of the *log* of the tail, which is smooth
at every dimension: 1,024 cubic Hermite pieces leave an error of 2.4e-6 / sqrt(d), most of it float32's own.
Uniforms have 64 bits, so both tails reach to a probability of 2^-65.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import random
from jdp.accounting.cap import Cap, log_density, quantile

# Up to this dimension 1 - t is tabulated rather than t: points near the pole are common.
_POLAR_DIM = 64
_KNOTS = 1024
# -log of the smallest 64-bit uniform is 65 log 2 = 45.05.
_DEEPEST = 45.1


class _Quantiles(NamedTuple):
  """The height t as a function of y, a log probability: cubic Hermite pieces between equidistant knots.

  Positions count from the highest y, where most of the probability lies and
  float32 is finest. Tabulates 1 - t where t comes close to 1 (`from_pole`), else t:
  whichever float32 holds to 1e-7 of its own scale.
  """

  highest: float
  step: float
  values: np.ndarray
  slopes: np.ndarray
  from_pole: bool

  def __call__(self, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(t, 1 - t) at y, float32, of any shape."""
    position = jnp.clip((self.highest - y) / self.step, 0.0, _KNOTS - 1.0)
    left = jnp.minimum(position.astype(jnp.int32), _KNOTS - 2)
    s = position - left.astype(jnp.float32)
    v, d = jnp.asarray(self.values), jnp.asarray(self.slopes)
    v0, v1, d0, d1 = v[left], v[left + 1], d[left], d[left + 1]
    rise = v1 - v0
    value = v0 + s * (d0 + s * ((3 * rise - 2 * d0 - d1) + s * (d0 + d1 - 2 * rise)))
    return (1 - value, value) if self.from_pole else (value, 1 - value)


def _quantiles(dim: int, log_tail_start: float, highest: float, from_pole: bool) -> _Quantiles:
  """Tabulates the t >= 0 whose cap has the log share log_tail_start + y, for y in [highest - 45.1, highest]."""
  y = np.linspace(highest, highest - _DEEPEST, _KNOTS)
  gamma, log_height = quantile(dim, log_tail_start + y)
  # dt / d log q = -q / density.
  slope = -np.exp(log_tail_start + y - log_density(dim, gamma, log_height)) * (y[1] - y[0])
  values, slopes = (2 * np.exp(log_height), -slope) if from_pole else (gamma, slope)
  return _Quantiles(highest, float(y[0] - y[1]), values.astype(np.float32), slopes.astype(np.float32), from_pole)


def height_sampler(cap: Cap) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
  """The sampler key -> (t, 1 - t) of t = <V, u>, for V from the cap w.p. p and else from its complement.

  By inversion: in the cap, log S(t) = log q + log U. In the complement S(t) = q + (1-q) U, and where that exceeds 1/2
  the lower tail 1 - S = (1-q)(1-U) is inverted instead, so that both tails keep their full depth.
  """
  small = cap.dim <= _POLAR_DIM
  in_cap = _quantiles(cap.dim, cap.log_q, 0.0, small or cap.gamma > 0.5)
  in_half = _quantiles(cap.dim, 0.0, math.log(0.5), small)
  log_outside = -float(np.logaddexp(0.0, cap.logit_p))  # log(1 - p), also where p rounds to 1
  log_q = np.float32(max(cap.log_q, -1e3))  # below the smallest U either way
  log_rest = np.float32(np.log1p(-math.exp(cap.log_q)))

  def sample(key):
    side_key, height_key = jax.random.split(key)
    outside = random.rare_bernoulli(side_key, log_outside)
    log_u, log_1mu = random.log_uniforms(height_key)
    log_upper = jnp.logaddexp(log_q, log_rest + log_u)
    log_lower = log_rest + log_1mu
    is_upper = log_upper <= log_lower
    near, complement = in_half(jnp.minimum(log_upper, log_lower))
    near, complement = jnp.where(is_upper, near, -near), jnp.where(is_upper, complement, 2 - complement)
    top, top_complement = in_cap(log_u)
    return jnp.where(outside, near, top), jnp.where(outside, complement, top_complement)

  return sample
