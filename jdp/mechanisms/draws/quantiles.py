"""Samples a distribution truncated to an upper tail, to float32's accuracy.

Sampling is by inversion, inside jit. The inverse of a tail probability is mostly beyond float32's
special functions. So it is tabulated once, on the host in float64, as a function of the *log* of
the tail. That function is smooth: 1,024 cubic Hermite pieces are as good as float32's own rounding.
Tables end at a probability of 2^-65, and deeper draws are cut there.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdp.random import draws

_KNOTS = 1024
_DEEPEST = 45.1  # -log of the least share, 2^-65: 65 log 2 = 45.05


def tabulate(
  function: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> Callable[[jax.Array], jax.Array]:
  """Tabulates a function of a log probability y in [-45.1, 0].

  The table is made of cubic Hermite pieces between equidistant knots. Positions count from y = 0.
  Most of the probability lies there, and float32 is finest there.

  Args:
    function: y -> (value, derivative), float64.

  Returns:
    The function y -> value, float32, of any shape.
  """
  y = np.linspace(0.0, -_DEEPEST, _KNOTS)
  values, derivatives = function(y)
  step = float(y[0] - y[1])
  values, slopes = values.astype(np.float32), (-step * derivatives).astype(np.float32)

  # The cubic of s in [0, 1] with values v0 and v1 and slopes d0 and d1 at its ends.
  def interpolate(y):
    position = jnp.clip(-y / step, 0.0, _KNOTS - 1.0)
    left = jnp.minimum(position.astype(jnp.int32), _KNOTS - 2)
    s = position - left.astype(jnp.float32)
    v, d = jnp.asarray(values), jnp.asarray(slopes)
    v0, v1, d0, d1 = v[left], v[left + 1], d[left], d[left + 1]
    rise = v1 - v0
    return v0 + s * (d0 + s * ((3 * rise - 2 * d0 - d1) + s * (d0 + d1 - 2 * rise)))

  return interpolate


def anywhere_or_top(
  log_q: float, logit_p: float, top: Callable[[jax.Array], Any]
) -> Callable[[jax.Array], tuple[jax.Array, Any]]:
  """Makes the sampler key -> (anywhere, T).

  A draw from the upper tail of share q with probability p, else from the rest, is a draw from
  *anywhere* with probability (1 - p) / (1 - q), else from the tail. Whoever draws anywhere needs no
  T, and nothing that depends on an input.

  Args:
    log_q: log of the upper tail's share.
    logit_p: log(p / (1-p)).
    top: key -> T, a pytree.
  """
  log_anywhere = -float(np.logaddexp(0.0, logit_p)) - math.log1p(-math.exp(log_q))

  def sample(key):
    side_key, top_key = jax.random.split(key)
    # For p at its least, q, rounding might bring the logarithm above 0.
    return draws.rare_bernoulli(side_key, min(0.0, log_anywhere)), top(top_key)

  return sample


def by_inversion(in_top: Callable[[jax.Array], Any]) -> Callable[[jax.Array], Any]:
  """Makes the sampler key -> T from the function log U -> the T whose upper tail is q U."""
  return lambda key: in_top(draws.log_uniforms(key)[0])
