"""Releases on a public grid: integers leave the client, not floats."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.float_noise import check_spacing
from jdp.guarantees import rounded_up
from jdp.mechanisms.base import LocalMechanism

_LARGEST = 2**24  # float32 holds every integer up to this one


class GridParameters(NamedTuple):
  """The constants of `on_grid`.

  Attributes:
    mechanism: the constants of the mechanism itself.
    spacing: the distance of neighbouring points of the grid.
    num_levels: the largest report. Reports are integers in [-num_levels, num_levels].
    dtype: the dtype of the reports.
  """

  mechanism: Any
  spacing: float
  num_levels: int
  dtype: np.dtype


@checked
def on_grid(mechanism: LocalMechanism, spacing: float, *, unbiased: bool = False) -> LocalMechanism:
  """Rounds a mechanism's estimates to multiples of `spacing`, on the client and after sampling.

  An upload is an integer of 1, 2 or 4 bytes for each coordinate. It has the fewest bytes that hold
  `mechanism.max_norm / spacing`. If the estimates have no bound, it has 4 bytes, and estimates
  beyond 2^24 spacings are cut off there.

  Float noise is dithered before it is rounded, on a grid of 1/16 of its standard deviation. The
  dither is part of the mechanism's error. It adds 1/3072 of the noise's variance to what the grid
  alone would need.

  By default, rounding is to the nearest multiple. It moves each coordinate by at most spacing / 2,
  and biases it by at most that. The bias is far less if the noise is wider than the spacing.

  With `unbiased`, a coordinate is rounded up with the probability of its remainder, realised to
  2^-23. Then there is no bias. A coordinate moves by less than `spacing`, and its variance rises by
  at most spacing^2 / 4.

  Formal guarantee: for real numbers, the mechanism's own. Rounding is post-processing, random or
  not. In floating point it depends on where the mechanism's randomness comes from. A grid about as
  fine as the floats would release their low-order bits (Mironov, CCS 2012). So spacings below 1/16
  of `mechanism.noise` are refused.

  * `laplace`, `gaussian`: the guarantee with a surcharge. A cell of the grid has its probability to
    a factor of exp(+-1.5e-6 |noise| / spacing), as `jdp.accounting.float_noise` explains. So
    epsilon rises by at most `jdp.accounting.grid_surcharge`. At delta = 1e-10 and spacings of a
    quarter of the noise's standard deviation, that is 2.6e-4 for one coordinate and 6.6e-3 for a
    thousand. For inputs above 4,000 times the noise pass `large=True`.
  * `priv_unit`, `priv_unit_g`: their estimates are dithered as they are, and the grid rounds what
    can be released. `jdp.accounting.float_noise.cap_surcharge` is what floats cost.
  * `l2_laplace` of vectors: no such factor is proved, because the coordinates share one length.
    What holds is a bound on total variation. Each coordinate is within about 1e-5 of the noise of
    the real one. So rounding tells the two apart in at most about 2e-5 noise / spacing of all
    reports. The reports of floats and those of real numbers are at most d times that apart, which
    adds (1 + e^epsilon) times that to a delta. This is little only for few coordinates on coarse
    grids. The bound is crude: audits by residues refute nothing on the finest grids. Where a proof
    is needed, take a mechanism of the first kinds or of the next.
  * `hemisphere` and all whose reports are integers (`scalar_dp`, `scalar_rel_dp`,
    `priv_unit_linf`): the guarantee as it is, on any grid. They have no float digits to hide.
  * `separated`: the worse of what holds for its parts.
  * `proj_unit`, `fast_proj_unit`: the guarantee as without a grid, on any grid. Their k numbers are
    dithered before they become many images. Rounding the images is post-processing of the numbers.

  Args:
    mechanism: a mechanism with float32 estimates that states its `noise`.
    spacing: positive and public. At least `mechanism.noise` / 16, and at least `mechanism.max_norm`
      / 2^24, below which float32 has no finer points to round.
    unbiased: round at random, without bias, instead of to nearest.

  Returns:
    A `LocalMechanism` on the same values, with integer reports. Its `mean_squared_error` is an
    upper bound (without the cut-off). Its `max_norm` is a bound for norms from L2 to L-infinity.

  Raises:
    ValueError: if spacing is not positive or too fine, or the mechanism does not state its noise.

  >>> from jdp.mechanisms import priv_unit
  >>> mechanism = on_grid(priv_unit(1000, 8.0), spacing=0.25)
  >>> report = mechanism.encode(jax.random.key(0), jnp.ones(1000))
  >>> report.dtype, report.nbytes, mechanism.parameters.num_levels
  (dtype('int8'), 1000, 47)
  """
  _validate.float32_safe(spacing=spacing)
  check_spacing(spacing, mechanism.noise)
  dim = math.prod(mechanism.shape)
  bounded = mechanism.max_norm < math.inf
  num_levels = math.ceil(mechanism.max_norm / spacing) if bounded else _LARGEST
  if not num_levels <= _LARGEST:
    least = rounded_up(mechanism.max_norm / _LARGEST, 3)
    raise ValueError(
      f"Expected spacing to be at least max_norm / 2^24 = {least}, got {spacing}; float32 "
      "estimates are not finer than that: take a coarser grid."
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
    # Unbiased rounding is uncorrelated with the estimate. Else take the triangle inequality.
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
    noise=0.0,
  )
