"""Separated mechanisms: a vector's direction and magnitude, released independently.

Source: arXiv 1812.00984, Definition 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jdp._arguments import checked
from jdp.guarantees import SeparatedDP, common_scope
from jdp.mechanisms.base import LocalMechanism


class SeparatedReport(NamedTuple):
  """What leaves the client: the reports of the two mechanisms."""

  direction: jax.Array
  magnitude: jax.Array


class SeparatedParameters(NamedTuple):
  """The constants of the two mechanisms."""

  direction: object
  magnitude: object


@checked
def separated(direction: LocalMechanism, magnitude: LocalMechanism) -> LocalMechanism:
  """Releases a vector w = r u as the product of an estimate of u and one of r = ||w||.

  The two are drawn independently, so the product is unbiased. A zero vector has no direction, so a
  fixed one is released for it. The result is then finite, and unbiased if magnitudes are. Norms
  above the magnitude's largest value are clipped to it.

  Formal guarantee: `SeparatedDP(epsilon of the direction, epsilon of the magnitude)`. As pure DP,
  it is their sum. It is stated per value, replace one (any two inputs), against the server. In
  floating point, what the two mechanisms' docstrings say holds.

  Args:
    direction: a mechanism that is unbiased on the unit sphere of its norm (`priv_unit`,
      `priv_unit_linf`). It is given w / ||w||, for norms from 1e-30 to 1e30.
    magnitude: a mechanism for scalars >= 0 (`scalar_dp`).

  Returns:
    A `LocalMechanism` on float [dim] vectors, in the direction's norm. Its reports have the fields
    `direction` and `magnitude`: the reports of the two. Its `mean_squared_error(r)` is
    (r^2 + Var(r)) E||Z1||^2 - r^2 with Z1 the direction's estimate. For a direction in another norm
    than L2 this is an upper bound, as ||w||^2 in the last term exceeds r^2.

  Raises:
    ValueError: if the two guarantees differ in relation, unit or observer, or are not pure.

  >>> from jdp.mechanisms import priv_unit, scalar_dp
  >>> mechanism = separated(priv_unit(1000, 8.0), scalar_dp(2.0, max_value=1.0))
  >>> print(mechanism.guarantee)
  (8, 2)-separated, 10-DP per value (replace one), against the server
  """
  parts = (direction.guarantee, magnitude.guarantee)
  scope = common_scope(parts)
  if any(part.delta for part in parts):
    raise ValueError(f"Expected two pure guarantees, got {parts[0]} and {parts[1]}.")

  def encode(key, value):
    direction_key, magnitude_key = jax.random.split(key)
    value = jnp.asarray(value, jnp.float32)
    norm = direction.norm(value)
    # Not every mechanism for directions divides by the norm itself. For those that do, this must
    # change nothing. So extreme norms, whose reciprocals float32 does not hold, divide nothing.
    length = jnp.where((norm > 1e-30) & (norm < 1e30), norm, 1.0)
    return SeparatedReport(
      direction.encode(direction_key, value / length), magnitude.encode(magnitude_key, norm)
    )

  def decode(report):
    return magnitude.decode(report.magnitude) * direction.decode(report.direction)

  def mean_squared_error(norm: float) -> float:
    second_moment = norm**2 + magnitude.mean_squared_error(norm)
    return second_moment * (1 + direction.mean_squared_error(1.0)) - norm**2

  return LocalMechanism(
    encode=encode,
    decode=decode,
    privatize=lambda key, value: decode(encode(key, value)),
    guarantee=SeparatedDP(parts[0].epsilon, parts[1].epsilon, **scope),
    shape=direction.shape,
    norm=direction.norm,
    max_norm=direction.max_norm * magnitude.max_norm,
    mean_squared_error=mean_squared_error,
    parameters=SeparatedParameters(direction.parameters, magnitude.parameters),
    privatize_sum=direction.privatize_sum
    and _product_sum(direction.privatize_sum, direction.norm, magnitude.privatize),
    noise=_product_noise(direction, magnitude),
  )


def _product_noise(direction: LocalMechanism, magnitude: LocalMechanism) -> float | None:
  """The `noise` of the product.

  None for a magnitude that is not exact, which would show its own digits in all coordinates.
  """
  return (
    direction.noise * magnitude.max_norm
    if magnitude.noise == 0 and direction.noise is not None
    else None
  )


def _product_sum(
  direction_sum: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
  norm: Callable[[jax.Array], jax.Array],
  magnitude: Callable[[jax.Array, jax.Array], jax.Array],
) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
  """The `privatize_sum` of the product: the directions' sum, with the magnitudes among the weights.

  All mechanisms with a `privatize_sum` divide by the norm themselves. So values go in as they are.
  """

  # The keys are split as in `encode`, so that the sum is that of the same releases.
  def magnitude_of(key, value):
    direction_key, magnitude_key = jax.random.split(key)
    return direction_key, magnitude(magnitude_key, norm(value))

  def privatize_sum(keys, values, weights):
    direction_keys, magnitudes = jax.vmap(magnitude_of)(keys, values)
    return direction_sum(direction_keys, values, weights * magnitudes)

  return privatize_sum
