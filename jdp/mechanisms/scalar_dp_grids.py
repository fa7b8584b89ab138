"""ScalarDP and ScalarRelDP: magnitudes, by randomised response on a grid.

Source: arXiv 1812.00984, Algorithms 3 and 4.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp._loop_carries import vary_like
from jdp.accounting.local.scalar_dp import RelativeGrid, ScalarGrid, relative_grid, scalar_grid
from jdp.guarantees import PureDP
from jdp.mechanisms.base import LocalMechanism
from jdp.random import draws


@checked
def scalar_dp(epsilon: float, max_value: float, *, num_levels: int | None = None) -> LocalMechanism:
  """Releases a number in [0, max_value] as a noisy level of an equidistant grid.

  The grid has the levels 0..k and the spacing max_value / k. The number is rounded without bias to
  one of the levels. The level is kept with probability e^epsilon / (e^epsilon + k), else it becomes
  one of the k others, uniformly. The estimate a (level - b) is unbiased. It may be negative, and it
  may exceed max_value.

  Formal guarantee: `PureDP` per value, replace one (any two inputs), against the server. It holds
  for every input: numbers are first clipped to [0, max_value], and NaN counts as 0. The report is
  an integer, so floating point leaks nothing. The probabilities of its levels are realised to a
  relative 2^-32.

  Args:
    epsilon: the privacy loss of one release. Positive.
    max_value: r_max. In [1e-30, 1e30].
    num_levels: k, the number of intervals. In [1, 2^16]. Default: the k with the least worst-case
      variance.

  Returns:
    A `LocalMechanism` on float scalars (shape ()). Reports are int32 scalars in [0, k].
    `parameters` is a `jdp.accounting.local.scalar_dp.ScalarGrid`. Its `variance` is exact at every
    value, and is the `mean_squared_error`.

  Raises:
    ValueError: if epsilon, max_value or num_levels is out of range.

  >>> mechanism = scalar_dp(4.0, 1.0)
  >>> mechanism.parameters.num_levels, round(mechanism.mean_squared_error(0.3), 4)
  (4, 0.0274)
  >>> estimates = jax.vmap(mechanism.privatize, (0, None))(
  ...   jax.random.split(jax.random.key(0), 10_000), 0.3
  ... )
  >>> abs(float(estimates.mean()) - 0.3) < 0.01
  True
  """
  _validate.float32_safe(max_value=max_value)
  grid = scalar_grid(epsilon, max_value, num_levels)
  k = grid.num_levels

  def encode(key, value):
    value = jnp.asarray(value, jnp.float32)
    value = jnp.where(value > 0, value, 0.0)  # also 0 for NaN
    position = jnp.minimum(value / max_value, 1.0) * k
    lower = jnp.floor(position)
    return _respond(key, lower, position - lower, k, grid.log_lie_probability)

  def decode(report):
    return jnp.float32(grid.a) * (report.astype(jnp.float32) - jnp.float32(grid.b))

  return _mechanism(grid, encode, decode)


@checked
def scalar_rel_dp(
  epsilon: float, max_value: float, *, num_levels: int, min_value: float
) -> LocalMechanism:
  """Releases a number in [0, max_value] as a noisy level of a geometric grid.

  The error is relative to the number. The levels are 0, min_value, ..., max_value. The k =
  num_levels levels above 0 are in geometric progression. The number is rounded without bias to one
  of its two neighbours among the levels. The level is kept with probability e^epsilon / (e^epsilon
  + k), else it becomes one of the k others, uniformly. The estimate is unbiased. It may be
  negative, and it may exceed max_value.

  Formal guarantee: that of `scalar_dp`. It is `PureDP` per value, replace one (any two inputs),
  against the server. It holds for every input: numbers are first clipped to [0, max_value], and NaN
  counts as 0. The report is an integer, so floating point leaks nothing. The probabilities of its
  levels are realised to a relative 2^-32.

  Source: arXiv 1812.00984, Algorithm 4.

  Args:
    epsilon: the privacy loss of one release. Positive.
    max_value: r_max. In [1e-30, 1e30].
    num_levels: k, the number of levels above 0. In [2, 2^16].
      `jdp.accounting.local.scalar_dp.best_num_relative_levels` finds the one with the least
      worst-case relative error.
    min_value: the least level above 0, where errors begin to be relative. In [1e-30, max_value).

  Returns:
    A `LocalMechanism` on float scalars (shape ()). Reports are int32 scalars in [0, k].
    `parameters` is a `jdp.accounting.local.scalar_dp.RelativeGrid`. Its `variance` is exact at
    every value, and is the `mean_squared_error`.

  Raises:
    ValueError: if an argument is out of range, or the levels are too close for float32.

  >>> mechanism = scalar_rel_dp(8.0, 1.0, num_levels=4, min_value=0.125)
  >>> [round(mechanism.mean_squared_error(value) ** 0.5, 3) for value in (0.125, 0.5, 1.0)]
  [0.018, 0.015, 0.029]
  """
  _validate.float32_safe(max_value=max_value, min_value=min_value)
  grid = relative_grid(epsilon, max_value, num_levels, min_value)
  levels = np.array(grid.levels, np.float32)
  if not np.all(np.diff(levels) > 1e-6 * levels[1:]):
    raise ValueError(
      f"Expected levels a relative 1e-6 apart for float32, got num_levels = {num_levels}; take "
      "fewer."
    )
  estimates = np.array(grid.estimates, np.float32)

  def encode(key, value):
    value = jnp.asarray(value, jnp.float32)
    value = jnp.where(value > 0, jnp.minimum(value, levels[-1]), 0.0)  # also 0 for NaN
    inner = vary_like(jnp.asarray(levels[1:-1]), value)  # JAX searches it in a loop
    lower = jnp.searchsorted(inner, value, side="right")
    low, high = jnp.asarray(levels)[lower], jnp.asarray(levels)[lower + 1]
    share = (value - low) / (high - low)
    return _respond(key, lower, share, num_levels, grid.log_lie_probability)

  return _mechanism(grid, encode, lambda report: jnp.asarray(estimates)[report])


def _respond(
  key: jax.Array, lower: jax.Array, share: jax.Array, k: int, log_lie_probability: float
) -> jax.Array:
  """Randomised response on 0..k: a level or, with the probability of a lie, another one.

  The level is `lower` or, with probability `share`, the next one. The other one is uniform among
  the rest.
  """
  rounding_key, response_key = jax.random.split(key)
  up = jax.random.uniform(rounding_key) < share
  level = lower.astype(jnp.int32) + up.astype(jnp.int32)
  lie_key, other_key = jax.random.split(response_key)
  other = jax.random.randint(other_key, (), 0, k)
  # Skip the level itself: the k numbers 0..k-1 stand for the k other levels.
  other = jnp.where(other >= level, other + 1, other)
  return jnp.where(draws.rare_bernoulli(lie_key, log_lie_probability), other, level)


def _mechanism(
  grid: ScalarGrid | RelativeGrid,
  encode: Callable[[jax.Array, jax.Array], jax.Array],
  decode: Callable[[jax.Array], jax.Array],
) -> LocalMechanism:
  _validate.float32_safe(**{"largest estimate, by epsilon and max_value,": grid.max_norm})
  return LocalMechanism(
    encode=encode,
    decode=decode,
    privatize=lambda key, value: decode(encode(key, value)),
    guarantee=PureDP(grid.epsilon),
    shape=(),
    norm=jnp.abs,
    max_norm=grid.max_norm,
    mean_squared_error=grid.variance,
    parameters=grid,
    noise=0.0,
  )
