"""What float32 noise on a grid costs beyond its guarantee, and which grids are coarse enough.

A release is x + n', rounded to float32 and then to a grid of spacing g. Here n' is float32 noise in
place of real noise n. The real noise has density f and standard deviation sigma >= g (coarser grids
say less). The following bounds what the release leaks.

**Rounding leaks nothing.** IEEE arithmetic rounds the exact sum x + n'. So the report is one fixed,
public function of the real number x + n', whatever x. That is post-processing. Without error in n'
the guarantee would be exact, also for sums far larger than the noise. The function's cells are the
sets of real numbers that share a report. They are intervals of a width w, which is at least .97 g
for reports up to 2^16 spacings, and at least g / 4 up to 2^24, where reports are cut off.

**The noise is near real noise.** The random bits of a draw of `jdp.random` stand for a real draw.
Once multiplied by its scale, the draw is within a relative 5e-7 of that. The bits are finite:

* Laplace's 63 move a draw at t by 2^-64 e^t, in units of the scale. That is below 2e-6 up to t
  = 31.
* The normal's move its distribution function (summed over all 2^24 angles) by at most 1e-8 f up to
  5 sigma, by 5e-7 f up to 5.9 sigma, and by 5e-14 beyond.

So, except in the tails, the distribution functions of n' and n differ at b by little more than 5e-7
|b| f(b).

**A random shift changes none of this.** Float noise goes through `jdp.numerics.dither` before it is
released. Given the shift, the grid of the numbers (k + shift) g is a fixed one. Its cells are no
narrower than said. Beyond 2^23 spacings the report is the float32 number itself, whose cells are g
/ 4 or wider. Releases have g = sigma / 16, so `grid_surcharge(sigma / 16, sigma, ...)` bounds what
is left. Over the shift, the error of rounding a real number is uniform and independent of the
number. Suppose each number of several releases has a shift of its own. Their sum is then that of
the real releases with independent noise added. So a guarantee that rests on noise added later holds
too.

**So every cell has its probability.** Take a cell at a noise of b (its farthest point, or sigma /
50 if that is more). Its probability under n is about w f(b). Under n' it has that probability
within a factor of exp(+-e),

    e = 1.5e-6 |b| / g,
    root mean square of e over the noise: 1.5e-6 sigma / g,    largest e: at most 22 times that,

but for three things:

* Beyond 2^16 spacings, e is four times as much.
* For g above sigma / 2, e is up to 1.8 times as much in the normal's tails. The root mean square
  and the maximum cover that.
* The factor does not hold in tails, whose probabilities differ by 2e-12 in all.

A grid far finer than the noise has cells with few floats or none, hence another support for each x.
Spacings of 1e-8 sigma are refuted in seconds (`jdp.audits.residues`). At a spacing of
`FINEST_SHARE` sigma, the root mean square of e is 2.4e-5. `grid_surcharge` adds e up over
coordinates.

**What rests on measurement, not proof.** The figure of 5e-7 is the sum of the largest errors found
of the parts (logarithm, root, sine, products), in millions of draws. Their *mean* moves a
probability. It is 4e-8. Normals that come in pairs share a radius, and so part of their error. That
adds up to at most sqrt(2) times what independent errors would, of which two thirds were measured.
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

  The module's docstring says why. A coordinate has a log-ratio of probabilities, float noise
  against real noise. Its root mean square is v^(1/2) = 1.5e-6 stddev / spacing. It is at most M =
  22 v^(1/2), and its mean is at most v. By Bernstein's inequality d of them add up to more than

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
