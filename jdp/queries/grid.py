"""Noised sums on a public grid: whole multiples of a spacing are released, not floats."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.float_noise import FINEST_SHARE, check_spacing
from jdp.queries.base import SumQuery

_LARGEST = np.float32(2**24)  # float32 holds every integer up to this one


@checked
def on_grid(query: SumQuery, spacing: float) -> SumQuery:
  """Rounds each coordinate of the query's result to the nearest multiple of `spacing`.

  Rounding follows the noise. It moves a coordinate by at most spacing / 2. For noise N(0, sigma^2)
  with sigma >= spacing, the mean squared error of a coordinate rises by spacing^2 / 12. That is
  right to a relative 2e-7 wherever the sum lies, and the bias is below 1e-9 spacing. So sigma =
  spacing costs as much as 4.1 % more noise, and sigma = 5 spacing costs 0.17 %. For a sum s and any
  sigma there are exact formulas (the Fourier series of the rounding error, taken in expectation
  over the noise). With r = spacing and E_k = e^(-2 pi^2 k^2 sigma^2 / r^2),

      bias = (r / pi) sum_k (-1)^k / k  E_k sin(2 pi k s / r),
      rise = r^2 / 12 + sum_k (-1)^k (4 sigma^2 + r^2 / (pi k)^2) E_k cos(2 pi k s / r).

  The sum was dithered before this rounding, as without a grid. Include the dither in the variance,
  sigma^2 (1 + 1/3072): then both formulas stay right to a relative 1e-5 where they are not
  negligible. They are averages over the dither's shift too, which all coordinates share. Given the
  shift, all coordinates may be off by up to sigma / 32 to one side, where the spacing is a multiple
  of sigma / 16.

  On a grid that is coarse for the noise, sums near a multiple of the spacing hide their noise. The
  guarantee stays, but the bias is up to half the spacing. The result is cut off at 2^24 spacings,
  beyond which float32 has no finer points to round.

  Formal guarantee: for real numbers, the query's own guarantee with the same event, as rounding is
  post-processing. In floating point it holds too, up to a surcharge that no event states. The noise
  is float32, and a grid about as fine as its floats would release their low-order bits (I. Mironov,
  CCS 2012).

  With a spacing of a sixteenth of sigma or more, each cell holds so many floats that its
  probability is right to a factor of exp(+-1.5e-6 |noise| / spacing), also where the sum is far
  larger than the noise. Beyond 2^16 spacings, it is right to the fourth power of this factor.
  (`jdp.accounting.float_noise` explains why.) Over d coordinates epsilon rises by at most
  `jdp.accounting.grid_surcharge`. At delta = 1e-10 and sigma = 4 spacing, that is 2.6e-4 for one
  and 0.086 for a million.

  Finer spacings are refused. With schedules or adaptive clipping, sigma is known only in the round.
  Then the round's spacing is the least 2^j `spacing` that is at least a sixteenth of sigma. Sigma
  is public there.

  Sigma is the largest of all coordinates (`SumQuery.noise`). Where groups differ much in their
  noise, put each on a grid of its own: `grouped({name: on_grid(query, spacing)}, labels)`. The
  query's *state* and *event* are not on the grid. What a query learns from its noised sums
  (adaptive clipping) is dithered, as without a grid.

  The spacing refers to the result of the wrapped query: `average(on_grid(query, spacing), n)` has
  spacing / n on the average.

  Args:
    query: a sum query with float results that states its `noise`.
    spacing: the distance between neighbouring points, in the units of the result. Public, and the
      same in all coordinates.

  Returns:
    A `SumQuery` with the same contributions, states and events. Its results are float32, of the
    same structure.

  Raises:
    ValueError: if spacing is not in [1e-30, 1e30] or is below 1/16 of the noise's standard
      deviation. Also if the query does not state its noise.

  >>> from jdp.queries import gaussian_sum
  >>> query = on_grid(gaussian_sum(clip_norm=1.0, stddev=2.0), spacing=0.5)
  >>> result, event, _ = query.finalize(jax.random.key(0), query.init(jnp.zeros(3)), jnp.zeros(3))
  >>> bool(jnp.all(result == jnp.round(2 * result) / 2)), event
  (True, GaussianSum(clip_norm=1.0, stddev=2.0))
  """
  _validate.float32_safe(spacing=spacing)
  noise = query.noise
  if not callable(noise):
    check_spacing(spacing, noise)

  def finalize(key, state, total):
    result, event, after = query.finalize(key, state, total)
    step = _coarsened(spacing, noise(state)) if callable(noise) else np.float32(spacing)
    return jax.tree.map(lambda x: _rounded(x, step), result), event, after

  return query._replace(finalize=finalize)


def _rounded(x: jax.Array, step: jax.typing.ArrayLike) -> jax.Array:
  return jnp.clip(jnp.round(x.astype(jnp.float32) / step), -_LARGEST, _LARGEST) * step


def _coarsened(spacing: float, noise: jax.Array) -> jax.Array:
  """The least 2^j spacing, j >= 0, that is not finer than the noise allows."""
  # Compares mantissas and exponents, because a float32 logarithm could be one doubling off.
  mantissa, exponent = math.frexp(spacing)
  least_mantissa, least_exponent = jnp.frexp(np.float32(FINEST_SHARE) * noise)
  doublings = least_exponent - exponent + (least_mantissa > np.float32(mantissa)).astype(np.int32)
  return jnp.ldexp(np.float32(spacing), jnp.where(noise > 0, jnp.maximum(doublings, 0), 0))
