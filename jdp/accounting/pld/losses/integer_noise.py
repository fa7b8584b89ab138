"""Pairs of integer sums with discrete noise: those that dominate, and those that data sets attain.

The noise X is drawn independently for each coordinate, and a record moves the sum by an integer
vector u.

**One coordinate is the worst case of an L1 bound.** A sum of discrete Gaussians, and a Skellam
variable, have log-concave laws. So likelihood ratios of X + k and X are monotone, and thresholds
are the best tests. A test of k units is a chain of k tests of one unit: group privacy is attained
at every threshold, and trade-off curves are straight between them. Any u is reached in |u|_1 steps
of one unit in one coordinate, each as hard to see as a single such step. So X + |u|_1 against X
dominates u, in any number of dimensions. It is attained if the L2 bound allows it.

**Gaussians for an L2 bound.** Let N_Z(v) be the discrete Gaussian of variance parameter v, N(v) the
Gaussian, e = 2 sum_j e^(-2 pi^2 r j^2), j >= 1. Then sum_k e^(-(k - x)^2 / (2 r)) over the integers
is within a factor of 1 +- e of its mean over x (Poisson's summation formula). Hence

* N(v - r), rounded to an integer k with probability proportional to e^(-(k - x)^2 / (2 r)), has the
  law of N_Z(v) up to a factor of ((1 + e) / (1 - e))^(+-1) (as in Peikert, An Efficient and
  Parallel Gaussian Sampler for Lattices, CRYPTO 2010). Such rounding commutes with moves by
  integers, so the sum post-processes a Gaussian one of variance v - r.
* N_Z(v) + N(r) has the density of N(v + r) up to the same factor, so a Gaussian sum of variance v +
  r post-processes the sum.

A factor of e^+-m for a whole release makes the loss larger by at most 2 m, and masses by a factor
of e^m at most. For n shares, e^tau is a further factor for each coordinate
(`jdp.accounting.renyi.discrete_noise`).

**Few vectors, each by itself.** Where the bounds allow few integer vectors, the pair of Statement
1.9 dominates all of them (`integer_vectors`).

Where an L2 bound in several dimensions allows many vectors, no pair is known for Skellam noise. It
is then composed by its Renyi divergences.
"""

import math
from typing import NamedTuple

import numpy as np

from jdp.accounting.families.base import Charge
from jdp.accounting.pld.losses import pairs
from jdp.accounting.pld.losses.integer_vectors import largest_vectors, worst_of
from jdp.accounting.pld.losses.pairs import Pair
from jdp.accounting.renyi.discrete_noise import inflation

_EXACT = 1e6  # largest variance of a discrete Gaussian whose own pair is computed, not a Gaussian's
_MOST_VARIANCE = 1e8  # largest variance whose pair is computed
_ROUGH = 1e3  # largest variance at which a discrete Gaussian is worth looking at vector by vector
_POINTS = 2**12  # of the lattice for vectors' losses; more if the losses' own lattice is finer
_DEVIATIONS = 15.0  # standard deviations from its mean up to which a law has atoms
_ROUNDING = 1e-11  # relative error of a law's masses
_MARGIN = 1e-12  # most that smoothing may change the log of a release's density
_MOST_MARGIN = 1e-7  # most that a release's log density may be off in all
_LARGEST = 1e9  # the largest distance
_MOST = 2.0**53  # whole numbers above it may not be float64 numbers
_SKETCH = 600  # atoms of a sketch
_COORDINATES = 4  # every whole number is a sum of four squares


class IntegerNoise(NamedTuple):
  """A sum of integers with noise, under one relation.

  Attributes:
    l2: the L2 bound on a record.
    l1: the L1 bound on it.
    factor: how far the sum moves, in units of a record.
    variance: the variance of the noise.
    dim: the dimension of the sum; 0 if not known.
    margin: log of a bound on the factor by which a coordinate's law is off.
    is_gaussian: whether the noise is a discrete Gaussian, rather than a Skellam variable.
  """

  l2: float
  l1: float
  factor: int
  variance: float
  dim: int
  margin: float
  is_gaussian: bool


def discrete_gaussian(
  l2: float, l1: float, stddev: float, shares: float, dim: float, factor: float
) -> IntegerNoise:
  """A sum with `shares` discrete Gaussians; it moves by at most (l2, l1)."""
  margin = inflation(stddev, int(shares)) if 0 < shares < _MOST and dim < _MOST else math.inf
  variance, dim = shares * stddev * stddev, int(min(dim, _MOST))
  return IntegerNoise(l2 / factor, l1 / factor, int(factor), variance, dim, margin, True)


def skellam(l2: float, l1: float, variance: float, factor: float) -> IntegerNoise:
  """A sum with Skellam noise; it moves by at most (l2, l1)."""
  return IntegerNoise(l2 / factor, l1 / factor, int(factor), variance, 0, 0.0, False)


def dominating(noise: IntegerNoise) -> Charge | None:
  """A pair that dominates one release; None if no useful pair is known."""
  # Below 1 only the zero vector is left, and would be free.
  if not (1 <= noise.l2 <= _LARGEST and noise.l1 >= 1):
    return None
  squared = _floor(noise.l2 * noise.l2)
  steps = _floor(min(noise.l1, noise.l2 * noise.l2))
  if noise.dim:
    steps = _floor(min(steps, noise.l2 * math.sqrt(noise.dim)))
  smooth = _smoothing(noise) if noise.is_gaussian else math.inf
  shift, distance = noise.factor * steps, noise.factor * math.sqrt(squared)
  if (found := _by_vectors(noise, squared, steps)) is not None:
    return found
  left = noise.variance - smooth
  if not left > 3 * smooth:  # what is left is not smooth, or the noise is not Gaussian
    return _one_coordinate(noise, shift, 1.0) if shift <= 1.1 * distance else None
  if _is_exact(noise) and shift * math.sqrt(left / noise.variance) <= distance:
    return _one_coordinate(noise, shift, 1.0)
  return _gaussian(noise, distance, left, noise.dim)


def attained(noise: IntegerNoise) -> Charge | None:
  """Pairs of data sets that differ in few coordinates; None if they are not known well enough."""
  if not noise.l2 <= _LARGEST:
    return None
  moves = _moves(noise)
  if noise.is_gaussian and not _is_exact(noise):
    smooth = _smoothing(noise)
    distance = noise.factor * math.sqrt(sum(move * move for move in moves))
    return _gaussian(noise, distance, noise.variance + smooth, len(moves))
  charges = [_one_coordinate(noise, noise.factor * move, -1.0) for move in moves]
  found = [charge.pairs for charge in charges if charge is not None]
  return Charge(sum(found, ())) if len(found) == len(moves) else None


def _is_exact(noise: IntegerNoise) -> bool:
  return noise.variance <= (_EXACT if noise.is_gaussian else _MOST_VARIANCE)


def _floor(bound: float) -> int:
  return math.floor(bound * (1 + 1e-9))  # rounding errors may put a bound below its whole number


def _moves(noise: IntegerNoise) -> list[int]:
  """The non-zero coordinates of an integer vector within the bounds whose L2 norm is large."""
  moves, squared, left = [], noise.l2 * noise.l2, noise.l1
  for _ in range(min(noise.dim or 1, _COORDINATES)):
    moves.append(math.floor(min(math.sqrt(squared), left)))
    squared, left = squared - moves[-1] ** 2, left - moves[-1]
  return [move for move in moves if move]


def _smoothing(noise: IntegerNoise) -> float:
  """The variance r of a rounding that costs less than `_MARGIN` in `noise.dim` coordinates."""
  return math.log(8 * max(noise.dim, 1) / _MARGIN) / (2 * math.pi**2)


def _gaussian(noise: IntegerNoise, distance: float, variance: float, dim: int) -> Charge | None:
  # By `_smoothing`, e <= _MARGIN / (4 dim): the `dim` factors (1 + e) / (1 - e) cost below _MARGIN.
  margin = _MARGIN + dim * noise.margin
  multiplier = math.sqrt(variance) / distance if distance else math.inf
  return Charge((), multiplier, margin) if margin <= _MOST_MARGIN else None


def _by_vectors(noise: IntegerNoise, squared: int, steps: int) -> Charge | None:
  """The pair of all vectors within the bounds; None if there are many, or only one coordinate."""
  largest = noise.factor * min(math.isqrt(squared), steps)
  vectors = largest_vectors(
    noise.factor**2 * squared, noise.factor * steps, noise.dim or int(_MOST), largest
  )
  if vectors is None or len(vectors[0]) == len(vectors) == 1:
    return None
  if (noise.is_gaussian and noise.variance > _ROUGH) or not _is_known(noise, largest):
    return None
  deviation, moved = math.sqrt(noise.variance), noise.factor * math.sqrt(squared)
  width = 2 * _DEVIATIONS * moved / deviation + moved * moved / noise.variance
  spacing = width / _POINTS
  if noise.is_gaussian:  # its losses are multiples of 0.5 / variance, so the spacing divides that
    spacing = 0.5 / noise.variance / max(1, int(0.5 / noise.variance / spacing))
  return Charge((worst_of(vectors, lambda shift: _coordinate(noise, shift, 1.0), spacing),))


def _is_known(noise: IntegerNoise, shift: int) -> bool:
  """Whether the pair of one coordinate that moves by `shift` can be computed."""
  near = 0.01 <= noise.variance <= _MOST_VARIANCE and shift <= 40 * math.sqrt(noise.variance)
  return near and noise.margin + _ROUNDING <= _MOST_MARGIN


def _one_coordinate(noise: IntegerNoise, shift: int, side: float) -> Charge | None:
  """X + shift against X, for upper (1) or lower bounds (-1)."""
  if not _is_known(noise, shift):
    return None
  if not shift:
    return Charge(())
  pair = _coordinate(noise, shift, side)
  starts = np.arange(1, len(pair.losses), -(-len(pair.losses) // _SKETCH))
  return Charge((pairs.sketched(pair, np.append(0, starts)),))


def _coordinate(noise: IntegerNoise, shift: int, side: float) -> Pair:
  """X + shift against X, by its atoms."""
  variance, margin = noise.variance, noise.margin + _ROUNDING
  last = math.ceil(_DEVIATIONS * math.sqrt(variance)) + 40 + shift
  log_law = (_log_discrete_gaussian if noise.is_gaussian else _log_skellam)(variance, last)
  whole = np.concatenate([log_law[:0:-1], log_law])
  p = np.exp(whole[:-shift])  # the law of X + shift, from shift - last to last
  losses = whole[:-shift] - whole[shift:]
  if noise.is_gaussian:
    losses = shift / variance * (np.arange(len(p)) - (len(p) - 1) / 2)
  # Laws are log-concave: from 15 deviations on, each tail is below `last` times its first mass.
  beyond = 2 * float(p[-1]) * last
  p, losses = p * math.exp(side * margin), losses + side * 3 * margin
  if side > 0:
    losses, p = np.append(losses, math.inf), np.append(p, beyond)
  return pairs.atoms(losses, p, shift / variance if noise.is_gaussian else 0.0)


def _log_discrete_gaussian(variance: float, last: int) -> np.ndarray:
  """log P(X = k), k from 0 to `last`."""
  exponents = -np.square(np.arange(last + 1.0)) / (2 * variance)
  return exponents - math.log(2 * float(np.exp(exponents).sum()) - 1)


def _log_skellam(variance: float, last: int) -> np.ndarray:
  """log P(X = k), k from 0 to `last`, by ratios of Bessel functions.

  I_k / I_(k-1) = 1 / (2 k / v + I_(k+1) / I_k), downwards: all terms are positive, and the first
  guess is forgotten.
  """
  ratio, ratios = 0.0, np.empty(last)
  for k in range(last + 100 + int(math.sqrt(variance)), 0, -1):
    ratio = 1 / (2 * k / variance + ratio)
    if k <= last:
      ratios[k - 1] = ratio
  logs = np.append(0.0, np.cumsum(np.log(ratios)))
  return logs - math.log(2 * float(np.exp(logs).sum()) - 1)
