"""What float32 noise on a grid costs beyond its guarantee, and which grids are coarse enough.

A release is x + n', rounded to float32 and then to a grid of spacing g. Here n' is float32 noise in
place of real noise n with standard deviation sigma >= g (coarser grids say less). The statements
are numbered and argued in `docs/theory/float_noise.md`:

* 5.1: rounding leaks nothing.
* 5.2: the noise is near real noise, within a relative 5e-7. This rests on measurement.
* 5.3: every cell of the grid has its probability, but for a factor of exp(+-e). For a noise of b,

    e = 1.5e-6 |b| / g,
    root mean square of e over the noise: 1.5e-6 sigma / g,    largest e: at most 22 times that.

* 5.4: a random shift changes none of this. Float noise goes through `jdp.numerics.dither` before it
  is released, with g = sigma / 16.

`grid_surcharge` adds e up over coordinates.
"""

import math

from jdp import _validate
from jdp._arguments import checked
from jdp.guarantees import rounded_up

FINEST_SHARE = 1 / 16
"""The finest grid that is accepted, as a share of the noise's standard deviation."""

_CELL_ERROR = 1.5e-6  # e g / |b|
_LARGEST_DRAW = 22  # |b| / sigma
TAIL = 2e-12
"""What the tails of one coordinate's noise add to a delta, for each of 1 and e^epsilon."""


def check_spacing(spacing: float, noise: float | None) -> None:
  """Refuses a grid that is finer than `FINEST_SHARE` of the float noise's standard deviation.

  A `noise` of 0 says that there is no float noise.

  Raises:
    ValueError: if the grid is finer, or the noise is not stated.
  """
  if noise is None:
    raise ValueError(
      "Expected a mechanism or query that states its noise, got noise = None; state the largest "
      "standard deviation of float noise on a coordinate of what it releases, 0 if there is none."
    )
  finest = FINEST_SHARE * noise
  if not spacing >= finest:
    raise ValueError(
      f"Expected spacing to be at least 1/{1 / FINEST_SHARE:.0f} of the noise's standard "
      f"deviation, {rounded_up(finest)}, got {spacing}; on a finer grid the digits of float32 "
      "noise show: take a coarser one."
    )


@checked
def grid_surcharge(
  spacing: float, stddev: float, dim: int, delta: float, *, large: bool = False
) -> float:
  """An upper bound of what epsilon rises by when independent float noise is released on a grid.

  Statement 5.3 of `docs/theory/float_noise.md` says why. A coordinate has a log-ratio of
  probabilities, float noise against real noise. Its root mean square is v^(1/2) = 1.5e-6 stddev /
  spacing. It is at most M = 22 v^(1/2), and its mean is at most v. By Bernstein's inequality d of
  them add up to more than

      s = d v + sqrt(2 d v L) + 2 M L / 3,    L = log(1 / delta),

  with a probability of at most delta. They never exceed d M. Two inputs are compared, so epsilon
  rises by twice the smaller of s and d M.

  Formal guarantee: (epsilon, delta0)-DP of real noise is (epsilon + r, e^r delta0 + (1 + e^(epsilon
  + r)) (delta + dim `TAIL`))-DP of float noise, with r the result. It holds for Laplace and
  Gaussian noise.

  Args:
    spacing: of the grid, at least 1/16 of the stddev. Coarser ones than the stddev count as that.
    stddev: of the noise on a coordinate, > 0.
    dim: the number of coordinates released.
    delta: of the sum's tail, in (0, 1).
    large: whether results may exceed 2^16 spacings.

  Returns:
    r, in nats.

  Raises:
    ValueError: if an argument is out of range.

  >>> [f"{grid_surcharge(1.0, 4.0, dim, delta=1e-10):.1e}" for dim in (1, 1000, 1_000_000)]
  ['2.6e-04', '6.6e-03', '8.6e-02']
  """
  _validate.positive(spacing=spacing, stddev=stddev)
  _validate.in_range(1, 1e12, dim=dim)
  _validate.in_range(1e-300, 1, delta=delta)
  check_spacing(spacing, stddev)
  error = (4 if large else 1) * _CELL_ERROR * stddev / min(spacing, stddev)
  largest, variance, nats = _LARGEST_DRAW * error, dim * error**2, -math.log(delta)
  # The certain bound is the smaller one in few dimensions, Bernstein's in many.
  return 2 * min(dim * largest, variance + math.sqrt(2 * variance * nats) + 2 * largest * nats / 3)
