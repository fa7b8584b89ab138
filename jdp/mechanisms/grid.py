"""Releases on a public grid: integers leave the client, not floats."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp.mechanisms.base import LocalMechanism

_LARGEST = 2**24  # every integer up to here is a float32


class GridParameters(NamedTuple):
  """The constants of `on_grid`.

  Attributes:
    mechanism: those of the mechanism itself.
    spacing: between neighbouring points of the grid.
    num_levels: reports are integers in [-num_levels, num_levels].
    dtype: of the reports.
  """

  mechanism: Any
  spacing: float
  num_levels: int
  dtype: np.dtype


def on_grid(mechanism: LocalMechanism, spacing: float, *, unbiased: bool = False) -> LocalMechanism:
  """The mechanism's estimates, rounded to multiples of `spacing` on the client, after sampling.

  An upload is an integer of 1, 2 or 4 bytes for each coordinate: the fewest that hold `mechanism.max_norm / spacing`.
  If the estimates have no bound, they are 4 bytes, and estimates beyond 2^24 spacings are cut off there.

  Rounding is to nearest, by default: it moves each coordinate by at most spacing / 2, and biases it by at most that
  (far less if its noise is wider than the spacing). `unbiased` rounds up with the probability of the remainder
  instead (realised to 2^-23): no bias, less than `spacing` off, and a variance of at most spacing^2 / 4 more
  for each coordinate.

  Formal guarantee: the mechanism's own, exactly, for real numbers: rounding is post-processing. In floating point
  the report is a function of integers, so a float's low-order bits (Mironov, CCS 2012) never leave the client;
  what remains of float32's errors is that an estimate within about 1e-7 of its size of a rounding threshold
  may fall on the other side. This moves an outcome's probability by the order of 1e-7 |estimate| / spacing for
  each coordinate: small for a coarse grid, not zero, and not covered by the epsilon.

  Args:
    mechanism: a mechanism with float32 estimates.
    spacing: > 0, public; at least `mechanism.max_norm` / 2^24, below which float32 has no finer points to round.
    unbiased: round at random, without bias, instead of to nearest.

  Returns:
    A `LocalMechanism` on the same values, with integer reports. Its `mean_squared_error` is an upper bound
    (without the cut-off); `max_norm` is one for norms from L2 to L-infinity.

  Raises:
    ValueError: if spacing is not positive, or too fine.

  >>> from jdp.mechanisms import priv_unit
  >>> mechanism = on_grid(priv_unit(1000, 8.0), spacing=0.25)
  >>> report = mechanism.encode(jax.random.key(0), jnp.ones(1000))
  >>> report.dtype, report.nbytes, mechanism.parameters.num_levels
  (dtype('int8'), 1000, 47)
  """
  _validate.positive(spacing=spacing)
  dim = math.prod(mechanism.shape)
  bounded = mechanism.max_norm < math.inf
  num_levels = math.ceil(mechanism.max_norm / spacing) if bounded else _LARGEST
  if not num_levels <= _LARGEST:
    raise ValueError(
      f"Expected spacing to be at least max_norm / 2^24 = {mechanism.max_norm / _LARGEST:.3g}, got {spacing}; "
      "float32 estimates are not finer than that: take a coarser grid."
    )
  dtype = next(np.dtype(t) for t in (np.int8, np.int16, np.int32) if num_levels <= np.iinfo(t).max)
  step = np.float32(spacing)
  farthest = spacing if unbiased else spacing / 2

  def encode(key, value):
    if not unbiased:
      return as_report(jnp.round(mechanism.privatize(key, value) / step))
    own_key, rounding_key = jax.random.split(key)
    position = mechanism.privatize(own_key, value) / step
    below = jnp.floor(position)
    up = jax.random.uniform(rounding_key, position.shape) < position - below
    return as_report(below + up.astype(jnp.float32))

  def as_report(position):
    return jnp.clip(position, -num_levels, num_levels).astype(dtype)

  def decode(report):
    return report.astype(jnp.float32) * step

  def mean_squared_error(norm: float) -> float:
    before, rounding = mechanism.mean_squared_error(norm), dim * spacing**2 / 4
    return before + rounding if unbiased else (math.sqrt(before) + math.sqrt(rounding)) ** 2

  return mechanism._replace(
    encode=encode,
    decode=decode,
    privatize=lambda key, value: decode(encode(key, value)),
    max_norm=mechanism.max_norm + math.sqrt(dim) * farthest,
    mean_squared_error=mean_squared_error,
    parameters=GridParameters(mechanism.parameters, spacing, num_levels, dtype),
    privatize_sum=None,
  )
