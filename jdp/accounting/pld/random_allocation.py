"""The pair of an epoch in which a record takes part in one round, chosen at random.

Each of t rounds releases a Gaussian sum of multiplier z. The record is in one of them, uniformly,
and the rounds' sums may depend on earlier releases. Then (sum_i N(e_i, z^2 I)) / t against N(0, z^2
I), in t dimensions, dominates a removal, and the reverse an addition (arXiv 2410.06266, Lemma 3.2;
arXiv 2502.08202, Section 3). With Q = N(0, z^2 I) the likelihood ratio is

  W = (R_1 + ... + R_t) / t,  log R_i independent, N(-1/(2 z^2), 1/z^2) under Q.

The hockey sticks are E_Q (W - c)_+ for a removal and E_Q (1 - c W)_+ for an addition: both are
means of convex functions of W. So a law that is larger in convex order is an upper bound for both
directions at once, and sums of independent larger laws are larger. Here W's is found by doubling:

* R's values are split between points of a geometric lattice, means kept (`discretise.upper`). What
  is below the lattice is split between its first point and 0.
* The sums of two such laws are split between the points of the next lattice, means kept.
* What is above a lattice counts as its last point. What it loses in mean is added to the P-mass of
  an infinite loss: (x + y - c)_+ <= (x - c)_+ + y.

Lattices become finer as the law concentrates, since they hold what is likely only. Rounding errors
of masses are relative ones, as all terms are positive: all masses are enlarged by a bound. Those of
the splits move means, relatively, by a few units: losses are enlarged by a bound.

W for t rounds is a mean of W's for fewer, so t rounds cost at most as much as any fewer.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from jdp.accounting.pld import discretise, pairs
from jdp.accounting.pld.discretise import Lattice
from jdp.accounting.pld.pairs import Pair

LEAST_MULTIPLIER = 0.2
"""Below it the lattices would be too coarse."""

_POINTS = 1000
_MOST_ROUNDS = 2**14  # more are charged as so many
_DEVIATIONS = 10.0  # of the log of a ratio, from its means, that the first lattice holds
_UNLIKELY = 1e-20  # mass outside a lattice: from below under Q, from above under P
_MOST_MULTIPLIERS, _NEAR = 16, 1e-5  # of a composition; and ones nearer than this are one
_ROWS = 250  # of a table of sums at a time
# Bounds on rounding errors: of each mass, relatively, by a doubling; of means, by all of them.
_MASS_ERROR, _MEAN_ERROR = 1e-9, 1e-12


class _Law(NamedTuple):
  """A law on 0 and positive values, larger in convex order than that of a sum of ratios.

  Attributes:
    rounds: how many ratios.
    values: float64 [N], increasing, the first one 0.
    masses: float64 [N], under Q.
    excess: what large values lost in mean.
  """

  rounds: int
  values: np.ndarray
  masses: np.ndarray
  excess: float


def allocated_gaussian(rounds: float, z: float, *, removed: bool) -> Pair:
  """The pair of one epoch, when a record is removed or added.

  Args:
    rounds: t >= 1.
    z: the multiplier of one round, at least `LEAST_MULTIPLIER`.
    removed: the direction.
  """
  law = _sum_of_ratios(int(min(rounds, _MOST_ROUNDS)), z)
  ratios, masses = law.values / law.rounds, law.masses * (1 + _MASS_ERROR * law.rounds)
  with np.errstate(divide="ignore"):
    losses = np.log(ratios)
  kept = masses > 0
  losses, ratios, masses = losses[kept], ratios[kept], masses[kept]
  if removed:
    positive = ratios > 0
    return pairs.atoms(
      np.append(losses[positive] + _MEAN_ERROR, np.inf),
      np.append((ratios * masses)[positive], law.excess / law.rounds),
    )
  return pairs.atoms((_MEAN_ERROR - losses)[::-1], masses[::-1])


def merged(parameters: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Fewer pairs that dominate all of them: at most 16 multipliers for each number of rounds.

  A law takes a second or so to compute. Multipliers that are near each other count as the least.

  Args:
    parameters: (rounds, multiplier) of each pair, float64 [E, 2].
    counts: float64 [E].
  """
  rows, numbers = [], []
  for rounds in np.unique(parameters[:, 0]):
    here = parameters[:, 0] == rounds
    z = parameters[here, 1]
    with np.errstate(divide="ignore"):
      place = np.log(z / max(z.min(), LEAST_MULTIPLIER))
    width = max(_NEAR, (1 + _NEAR) * float(place.max()) / _MOST_MULTIPLIERS)
    bucket = np.where(z < LEAST_MULTIPLIER, -1.0 - np.arange(len(z)), np.floor(place / width))
    for one in np.unique(bucket):
      rows.append((rounds, z[bucket == one].min()))
      numbers.append(counts[here][bucket == one].sum())
  return np.array(rows, float).reshape(-1, 2), np.array(numbers, float)


@functools.lru_cache(maxsize=64)
def _sum_of_ratios(rounds: int, z: float) -> _Law:
  """The law of a sum of ratios."""
  if rounds == 1:
    return _ratio(z)
  half = _sum_of_ratios(rounds // 2, z)
  whole = _sum(half, half)
  return _sum(whole, _ratio(z)) if rounds % 2 else whole


@functools.lru_cache(maxsize=64)
def _ratio(z: float) -> _Law:
  """The law of one ratio."""
  mean = 1 / z
  highest = mean * mean / 2 + _DEVIATIONS * mean
  spacing = 2 * highest / _POINTS
  lattice = Lattice(0.0, spacing, -_POINTS // 2, _POINTS // 2)
  found = discretise.upper(pairs.sampled_gaussian(1.0, z, removed=True), lattice)
  values = np.exp(lattice.points())
  masses = found.p / values
  rest = max(0.0, 1.0 - float(masses.sum())) + _MASS_ERROR * _UNLIKELY
  return _Law(1, np.append(0.0, values), np.append(rest, masses), found.infinite)


def _sum(first: _Law, second: _Law) -> _Law:
  """The law of the sum of two independent values."""
  values = _lattice(first, second)
  masses, excess = np.zeros(len(values)), first.excess + second.excess
  log_first, spacing = math.log(values[1]), math.log(values[-1] / values[1]) / (len(values) - 2)
  for start in range(0, len(first.values), _ROWS):
    rows = slice(start, start + _ROWS)
    # Of two equal laws, a sum of values in different blocks of rows stands for its mirror image.
    columns = slice(start if first is second else 0, None)
    weights = second.masses[columns].copy()
    weights[_ROWS:] *= 2 if first is second else 1
    sums = (first.values[rows, None] + second.values[columns]).ravel()
    mass = (first.masses[rows, None] * weights).ravel()
    above = sums > values[-1]
    excess += float(np.sum((sums - values[-1])[above] * mass[above]))
    sums = np.minimum(sums, values[-1])
    with np.errstate(divide="ignore"):
      cell = np.floor((np.log(sums) - log_first) / spacing)
    cell = np.clip(cell + 1, 0, len(values) - 2).astype(np.int64)  # below values[1]: from 0 on
    share = np.clip((sums - values[cell]) / (values[cell + 1] - values[cell]), 0.0, 1.0)
    masses += np.bincount(cell, mass * (1 - share), minlength=len(values))
    masses += np.bincount(cell + 1, mass * share, minlength=len(values))
  return _Law(first.rounds + second.rounds, values, masses, excess * (1 + _MASS_ERROR))


def _lattice(first: _Law, second: _Law) -> np.ndarray:
  """0 and a geometric lattice that holds what is likely of the sum."""
  (low, high), (other_low, other_high) = _likely(first), _likely(second)
  # A large sum has one large part, as tails of ratios are long; the other is near its mean.
  highest = max(high + 3 * second.rounds, other_high + 3 * first.rounds)
  highest = min(highest, high + other_high)
  return np.append(0.0, np.geomspace(low + other_low, highest, _POINTS))


def _likely(law: _Law) -> tuple[float, float]:
  """The values between which a law has all but a tiny part: under Q from below, P from above."""
  below = np.cumsum(law.masses) > _UNLIKELY
  above = discretise.sums_from(law.masses * law.values) > _UNLIKELY * law.rounds
  below[0] = False
  return float(law.values[np.argmax(below)]), float(law.values[np.flatnonzero(above)[-1]])
