"""Samples a distribution truncated to either side of a threshold, to float32's accuracy.

Sampling is by inversion, inside jit. The inverse of a tail probability is mostly beyond float32's
special functions. So it is tabulated once, on the host in float64, as a function of the *log* of
the tail. That function is smooth: 1,024 cubic Hermite pieces are as good as float32's own rounding.
Uniforms have 64 bits, so both tails reach to a probability of 2^-65.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdp import random

_KNOTS = 1024
# -log of the smallest 64-bit uniform is 65 log 2 = 45.05.
_DEEPEST = 45.1

HALF = math.log(0.5)  # the highest log tail in the tables of `two_sided` for the rest


def tabulate(
  function: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], highest: float
) -> Callable[[jax.Array], jax.Array]:
  """Tabulates a function of a log probability y in [highest - 45.1, highest].

  The table is made of cubic Hermite pieces between equidistant knots. Positions count from the
  highest y. Most of the probability lies there, and float32 is finest there.

  Args:
    function: y -> (value, derivative), float64.
    highest: the largest y.

  Returns:
    The function y -> value, float32, of any shape.
  """
  y = np.linspace(highest, highest - _DEEPEST, _KNOTS)
  values, derivatives = function(y)
  step = float(y[0] - y[1])
  values, slopes = values.astype(np.float32), (-step * derivatives).astype(np.float32)

  # The cubic of s in [0, 1] with values v0 and v1 and slopes d0 and d1 at its ends.
  def interpolate(y):
    position = jnp.clip((highest - y) / step, 0.0, _KNOTS - 1.0)
    left = jnp.minimum(position.astype(jnp.int32), _KNOTS - 2)
    s = position - left.astype(jnp.float32)
    v, d = jnp.asarray(values), jnp.asarray(slopes)
    v0, v1, d0, d1 = v[left], v[left + 1], d[left], d[left + 1]
    rise = v1 - v0
    return v0 + s * (d0 + s * ((3 * rise - 2 * d0 - d1) + s * (d0 + d1 - 2 * rise)))

  return interpolate


def two_sided(
  log_q: float,
  logit_p: float,
  in_top: Callable[[jax.Array], Any],
  in_half: Callable[[jax.Array], Any],
  mirror: Callable[[Any], Any],
) -> Callable[[jax.Array], Any]:
  """Makes the sampler key -> T, with T from the upper tail with probability p, else from the rest.

  The upper tail has probability q, and sampling is by inversion of S(t) = P(T >= t). In the tail,
  log S(t) = log q + log U. In the rest, S(t) = q + (1-q) U. Where that exceeds 1/2, the lower tail
  1 - S = (1-q)(1-U) is inverted instead. So both tails keep their full depth.

  Args:
    log_q: log of the upper tail's probability under a distribution symmetric about 0. At most
      log(1/2).
    logit_p: log(p / (1-p)).
    in_top: log U -> the t whose upper tail is q U. A pytree.
    in_half: log of an upper tail of at most 1/2 -> its t. A pytree like that of `in_top`.
    mirror: t -> the pytree of -t.
  """
  log_outside = -float(np.logaddexp(0.0, logit_p))  # log(1 - p), also where p rounds to 1
  log_rest = np.float32(np.log1p(-math.exp(log_q)))
  log_tail = np.float32(max(log_q, -1e3))  # -1e3 is below the log of any U

  def sample(key):
    side_key, height_key = jax.random.split(key)
    outside = random.rare_bernoulli(side_key, log_outside)
    log_u, log_1mu = random.log_uniforms(height_key)
    log_upper = jnp.logaddexp(log_tail, log_rest + log_u)
    log_lower = log_rest + log_1mu
    is_upper = log_upper <= log_lower
    near = in_half(jnp.minimum(log_upper, log_lower))
    near = jax.tree.map(lambda t, minus_t: jnp.where(is_upper, t, minus_t), near, mirror(near))
    return jax.tree.map(lambda far, t: jnp.where(outside, t, far), in_top(log_u), near)

  return sample
