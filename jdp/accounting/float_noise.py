"""What float32 noise on a grid costs beyond its guarantee, and which grids are coarse enough.

A release is x + n', rounded to float32 and then to a grid of spacing g. Here n' is float32 noise in
place of real noise n with standard deviation sigma >= g (coarser grids say less). The statements
are numbered and argued in `docs/theory/float_noise.md`:

* 5.1: rounding leaks nothing.
* 5.2: the noise is near real noise, within a relative 5e-7. This rests on measurement.
* 5.3: every cell of the grid has its probability up to a factor of exp(+-e). For a noise of b,

    e = 1.5e-6 |b| / g,
    root mean square of e over the noise: 1.5e-6 sigma / g,    largest e: at most 22 times that.

* 5.4: a random shift changes none of this. Float noise goes through `jdp.numerics.dither` before it
  is released, with g = sigma / 16.
* 5.5: draws are bounded by `LARGEST_NORMAL` and `LARGEST_LAPLACE`. `gaussian_cut` and `laplace_cut`
  are the mass of reports that a neighbour cannot send.

`grid_surcharge` adds e up over coordinates.
"""

import math

from jdp import _validate
from jdp._arguments import checked
from jdp.guarantees import rounded_up
from jdp.random.draws import LARGEST_LAPLACE, LARGEST_NORMAL

FINEST_SHARE = 1 / 16
"""The finest grid that is accepted, as a share of the noise's standard deviation."""

_CELL_ERROR = 1.5e-6  # e g / |b|
_LARGEST_DRAW = 22  # |b| / sigma
TAIL = 2.5e-15
"""What the tails of one coordinate's noise add to a delta, for each of 1 and e^epsilon."""
NEGLIGIBLE = 1e-30
"""A cut below this is not charged, and the release is called purely differentially private."""
# Relative errors of the length of PrivUnit's Y, and errors of its inner product with the input.
_RADIAL, _ALONG = 1e-6, 1e-5
_ROUNDED = 1e-5  # more than float32 moves the ends of the draws by


def gaussian_cut(noise_multiplier: float) -> float:
  """The mass of a Gaussian release that a neighbour cannot send because float noise is bounded.

  It is at most exp(-(T - 1/z)^2 / 2) + 1e-50 with T = `LARGEST_NORMAL`, by statement 5.5. A
  statement for real noise at some delta holds for float noise at delta plus this mass.

  >>> [f"{gaussian_cut(z):.0e}" for z in (0.05, 0.1, 0.2, 1.0)]
  ['1e+00', '2e-12', '8e-34', '1e-50']
  """
  room = LARGEST_NORMAL - _ROUNDED - (1 / noise_multiplier if noise_multiplier > 0 else math.inf)
  return math.exp(-(room**2) / 2) + 1e-50 if room > 0.2 else 1.0


def laplace_cut(epsilon: float) -> float:
  """The mass of a Laplace release that a neighbour cannot send. epsilon = sensitivity / scale.

  >>> [f"{laplace_cut(epsilon):.0e}" for epsilon in (1.0, 86.0, 150.0, 200.0)]
  ['1e-67', '8e-31', '5e-03', '1e+00']
  """
  return math.exp(min(0.0, epsilon - LARGEST_LAPLACE + _ROUNDED))


def delta_of_real_noise(noise_multiplier: float, delta: float) -> float:
  """What is left of a delta for the real noise of a Gaussian release.

  Raises:
    ValueError: if nothing is left.
  """
  cut = gaussian_cut(noise_multiplier)
  if not delta > cut:
    raise ValueError(
      f"Expected delta above {rounded_up(cut, 2)} for a noise of {noise_multiplier} times the "
      f"sensitivity, got {delta}; float noise ends at {LARGEST_NORMAL:.1f} standard deviations, so "
      "that more of the reports are impossible under a neighbour: raise the noise or delta."
    )
  return delta - cut


def check_laplace(epsilon: float) -> None:
  """Refuses a Laplace release if a mass above `NEGLIGIBLE` cannot come from a neighbour."""
  largest = math.floor(LARGEST_LAPLACE + math.log(NEGLIGIBLE))
  if not epsilon <= largest:
    raise ValueError(
      f"Expected epsilon of at most {largest} for Laplace noise, got {epsilon}; float noise ends "
      f"at {LARGEST_LAPLACE:.0f} scales, so that more than {NEGLIGIBLE:g} of the reports are "
      "impossible under a neighbour: take a smaller epsilon."
    )


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
  """An upper bound on the rise of epsilon when independent float noise is released on a grid.

  Statement 5.3 of `docs/theory/float_noise.md` says why. Each coordinate has a log-ratio of its
  probabilities under float and real noise. Its root mean square is v^(1/2) = 1.5e-6 stddev /
  spacing. It is at most M = 22 v^(1/2), and its mean is at most v. By Bernstein's inequality d of
  them add up to more than

      s = d v + sqrt(2 d v L) + 2 M L / 3,    L = log(1 / delta),

  with a probability of at most delta. They never exceed d M. Two inputs are compared, so epsilon
  rises by twice the smaller of s and d M.

  Formal guarantee: (epsilon, delta0)-DP of real noise is (epsilon + r, e^r delta0 + (1 + e^(epsilon
  + r)) (delta + dim `TAIL`))-DP of float noise, with r the result. It holds for Laplace and
  Gaussian noise.

  Args:
    spacing: the grid's, at least 1/16 of the stddev. A larger one than the stddev counts as that.
    stddev: the standard deviation of the noise on a coordinate, > 0.
    dim: the number of coordinates released.
    delta: the probability of the sum's tail, in (0, 1).
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
  return 2 * _sum_of_cells(error, dim, delta)


def cap_surcharge(spacing: float, dim: int, delta: float) -> float:
  """An upper bound on the rise of epsilon when PrivUnit is released by float32 noise.

  Formal guarantee: `priv_unit` and `priv_unit_g`, epsilon-DP for real numbers, are (epsilon + r, (1
  + e^(epsilon + r)) (delta + dim `TAIL`))-DP on the machine, with r the result (statement 5.6 of
  `docs/theory/float_noise.md`).

  Args:
    spacing: the dither's, in standard deviations of the noise: 1/64, or less where a cap is small.
    dim: the dimension.
    delta: in (0, 1).

  >>> [f"{cap_surcharge(1 / 64, dim, delta=1e-10):.2g}" for dim in (2, 1000, 1_000_000)]
  ['0.011', '0.27', '7.1']
  """
  radial = math.log1p(2 * _RADIAL * dim / spacing)
  along = math.log1p(2 * _ALONG * math.sqrt(dim) / spacing)
  return radial + along + 2 * _sum_of_cells(_CELL_ERROR / spacing, dim, delta)


def _sum_of_cells(error: float, dim: int, delta: float) -> float:
  """A bound on the sum of `dim` cells' errors up to a delta; `error` is their root mean square."""
  largest, variance, nats = _LARGEST_DRAW * error, dim * error**2, -math.log(delta)
  # The certain bound is the smaller one in few dimensions, Bernstein's in many.
  return min(dim * largest, variance + math.sqrt(2 * variance * nats) + 2 * largest * nats / 3)
