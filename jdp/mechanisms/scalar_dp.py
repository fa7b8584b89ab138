"""ScalarDP: the magnitude of a vector, by randomised response on a grid (arXiv 1812.00984, Algorithm 3)."""

import jax
import jax.numpy as jnp

from jdp import random
from jdp.accounting.scalar import scalar_grid
from jdp.guarantees import PureDP
from jdp.mechanisms.base import LocalMechanism


def scalar_dp(epsilon: float, max_value: float, *, num_levels: int | None = None) -> LocalMechanism:
  """Releases a number in [0, max_value] as a noisy level of an equidistant grid.

  The number is rounded without bias to one of the levels 0..k of the grid with
  spacing max_value / k; the level is kept with probability e^epsilon / (e^epsilon + k), else it becomes one of the k
  others, uniformly. The estimate a (level - b) is unbiased; it may be negative,
  and it may exceed max_value.

  Formal guarantee: `PureDP`, replace one (any two inputs), per value, against the
  server, for every input: numbers are clipped to [0, max_value] first, and NaN counts as 0. The report is an
  integer, so floating point leaks nothing; the probabilities of its levels are realised to a relative 2^-32.

  Args:
    epsilon: the privacy loss of one release, > 0.
    max_value: r_max > 0.
    num_levels: k, the number of intervals, in [1, 2^16]. Default: the k with the
      least worst-case variance.

  Returns:
    A `LocalMechanism` on float scalars (shape ()). Reports: int32 scalars in
    [0, k]. `parameters` is a `jdp.accounting.scalar.ScalarGrid`, with the exact `variance` at
    every value; `mean_squared_error` is that.

  Raises:
    ValueError: if epsilon, max_value or num_levels is out of range.

  >>> mechanism = scalar_dp(4.0, 1.0)
  >>> mechanism.parameters.num_levels, round(mechanism.mean_squared_error(0.3), 4)
  (4, 0.0274)
  >>> estimates = jax.vmap(mechanism.privatize, (0, None))(jax.random.split(jax.random.key(0), 10_000), 0.3)
  >>> abs(float(estimates.mean()) - 0.3) < 0.01
  True
  """
  grid = scalar_grid(epsilon, max_value, num_levels)
  k = grid.num_levels

  def encode(key, value):
    rounding_key, lie_key, other_key = jax.random.split(key, 3)
    value = jnp.asarray(value, jnp.float32)
    value = jnp.where(value > 0, value, 0.0)  # NaN too
    position = jnp.minimum(value / max_value, 1.0) * k
    lower = jnp.floor(position)
    up = jax.random.uniform(rounding_key) < position - lower
    level = lower.astype(jnp.int32) + up.astype(jnp.int32)
    other = jax.random.randint(other_key, (), 0, k)
    other = jnp.where(other >= level, other + 1, other)
    return jnp.where(random.rare_bernoulli(lie_key, grid.log_lie_probability), other, level)

  def decode(report):
    return jnp.float32(grid.a) * (report.astype(jnp.float32) - jnp.float32(grid.b))

  return LocalMechanism(
    encode=encode,
    decode=decode,
    privatize=lambda key, value: decode(encode(key, value)),
    guarantee=PureDP(grid.epsilon),
    norm=jnp.abs,
    max_norm=grid.max_norm,
    mean_squared_error=grid.variance,
    parameters=grid,
  )
