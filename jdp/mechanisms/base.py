"""The form of a local mechanism: one client's value, made private on the client."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jdp.guarantees import AnyGuarantee, rounded_up

Key = jax.Array
Report = Any


class LocalMechanism(NamedTuple):
  """A local randomiser as pure functions, with its privacy statement.

  A factory makes it. The factory checks its arguments and computes its constants on the host in
  float64. Make a mechanism once, outside the round: jit caches by the identity of the functions.
  `encode`, `decode` and `privatize` work inside jit, vmap and scan.

  The guarantee holds for *every* input. A value outside the domain (not a unit vector, NaN,
  infinite, too large) is first mapped into it.

  Attributes:
    encode: (key, value) -> report. The report is what leaves the client: a pytree whose bytes are
      the upload. Consumes the key.
    decode: report -> estimate. The server's unbiased estimate of the value.
    privatize: (key, value) -> estimate. `decode` after `encode`.
    guarantee: what one report costs. A mechanism states nothing else about privacy.
    shape: the shape of one value and of one estimate. () for scalars.
    norm: value -> scalar. The norm that the domain is stated in.
    max_norm: the largest norm of an estimate. Infinite for mechanisms that add unbounded noise.
    mean_squared_error: norm of the value -> E||estimate - value||^2 (L2). It is computed in float64
      on the host. It is exact, or an upper bound where the factory says so.
    parameters: the mechanism's constants, by their names in the field.
    privatize_sum: (keys [n], values [n, d], weights [n]) -> [d]. The weighted sum of the n
      estimates that `privatize` makes from the same keys, up to rounding. Only mechanisms for which
      this is faster than making each estimate have one; others have None. It is a fast path of
      `stream_sum` and no other release.
    noise: the largest standard deviation that float noise gives to a coordinate of the estimate.
      (For directions, the root mean square.) It is 0 where reports are integers, or floats whose
      bits tell nothing. `on_grid` must hide the digits of this noise. None means that it is not
      stated.
  """

  encode: Callable[[Key, jax.Array], Report]
  decode: Callable[[Report], jax.Array]
  privatize: Callable[[Key, jax.Array], jax.Array]
  guarantee: AnyGuarantee
  shape: tuple[int, ...]
  norm: Callable[[jax.Array], jax.Array]
  max_norm: float
  mean_squared_error: Callable[[float], float]
  parameters: Any
  privatize_sum: Callable[[Key, jax.Array, jax.Array], jax.Array] | None = None
  noise: float | None = None


def check_cost(cost: float, epsilon: float, **pair: float) -> None:
  """Refuses a pair of a mechanism's constants whose exact epsilon exceeds the one asked for."""
  if not cost <= epsilon:
    constants = ", ".join(f"{name} = {value}" for name, value in pair.items())
    raise ValueError(
      f"Expected a pair that costs at most epsilon = {epsilon}, got {constants} with an exact "
      f"epsilon of {rounded_up(cost, 9)}; ask for that epsilon, or leave p out."
    )


def check_shape(value: jax.Array, shape: tuple[int, ...]) -> None:
  """Refuses a value of another shape than the mechanism's, such as a batch."""
  if value.shape != shape:
    kind = "vector" if len(shape) == 1 else "value"
    raise ValueError(f"Expected a {kind} of shape {shape}, got {value.shape}; vmap over a batch.")
