"""The pairs of an epoch's rounds of which a record is in some, chosen at random.

Each of t rounds releases a Gaussian sum of multiplier z. The record is in one of them, uniformly,
and the rounds' sums may depend on earlier releases. Then (sum_i N(e_i, z^2 I)) / t against N(0, z^2
I), in t dimensions, dominates a removal, and the reverse an addition (arXiv 2410.06266, Lemma 3.2;
arXiv 2502.08202, Section 3). With Q = N(0, z^2 I) the likelihood ratio is

  W = (R_1 + ... + R_t) / t,  log R_i independent, N(-1/(2 z^2), 1/z^2) under Q.

A record that is in two of three rounds has W = (R_1 R_2 + R_1 R_3 + R_2 R_3) / 3. What is charged
for k of t is made of both (`cut`; Statement 2.6 in `docs/theory/amplification.md`).

The hockey sticks are E_Q (W - c)_+ for a removal and E_Q (1 - c W)_+ for an addition: both are
means of convex functions of W. So a law that is larger in convex order is an upper bound for both
directions at once. W is linear in each R_i, with coefficients that are not negative, so that larger
laws of independent R_i give a larger law of W. It is found as follows:

* R's values are split between points of a geometric lattice, which keeps means
  (`discretise.upper`). What is below the lattice is split between its first point and 0.
* The sums of two such laws are split between the points of the next lattice, which keeps means:
  that gives W for a record in one round, by doubling. For two rounds of three, the values of W of
  all triples are split.
* What is above a lattice counts as its last point. The mean that this loses is added to the P-mass
  of an infinite loss: (x + y - c)_+ <= (x - c)_+ + y.

Lattices become finer as the law concentrates, since they hold only what is likely. Rounding errors
of masses are relative, as all terms are positive: all masses are enlarged by a bound. Those of the
splits move means, relatively, by a few units: losses are enlarged by a bound.

W for t rounds is a mean of W's for fewer, so t rounds cost at most as much as any fewer.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from jdp.accounting.pld import discretise
from jdp.accounting.pld.discretise import Lattice
from jdp.accounting.pld.losses import pairs
from jdp.accounting.pld.losses.pairs import Pair

LEAST_MULTIPLIER = 0.2
"""Below it the lattices would be too coarse."""

_POINTS = 1000
_MOST_ROUNDS = 2**20  # more are charged as this many
_DEVIATIONS = 10.0  # standard deviations of a log ratio, from its means, in the first lattice
_UNLIKELY = 1e-20  # mass outside a lattice: from below under Q, from above under P
_MOST_MULTIPLIERS, _NEAR = 16, 1e-5  # in a composition; those within a relative 1e-5 are one
_ROWS = 250  # of a table of sums at a time
_FEW_POINTS = 300  # for each of three rounds
# Bounds on rounding errors: relative, of each mass in a doubling; of means in all doublings.
_MASS_ERROR, _MEAN_ERROR = 1e-9, 1e-12


class _Law(NamedTuple):
  """A law on 0 and positive values, larger in convex order than that of a sum of ratios.

  Attributes:
    rounds: the number of ratios, or of products of ratios, in the sum.
    values: float64 [N], increasing, the first one 0.
    masses: float64 [N], under Q.
    excess: the mean that large values lost.
  """

  rounds: int
  values: np.ndarray
  masses: np.ndarray
  excess: float


def cut(rounds: int, taken: int) -> list[tuple[int, int, int]]:
  """Parts of an epoch of which a record is in one round, or in two of three (Statement 2.6).

  Args:
    rounds: t, the rounds of the epoch.
    taken: k, the rounds that the record is in.

  Returns:
    (rounds, how many of these the record is in, how many such parts there are).
  """
  if 2 * taken <= rounds:
    size, larger = divmod(rounds, taken)
    found = [(size, 1, taken - larger), (size + 1, 1, larger)]
  elif 3 * taken <= 2 * rounds:
    found = [(2, 1, 2 * rounds - 3 * taken), (3, 2, 2 * taken - rounds)]
  else:
    found = [(1, 1, 3 * taken - 2 * rounds), (3, 2, rounds - taken)]
  return [part for part in found if part[2]]


def allocated_gaussian(
  rounds: float, taken: float, z: float, *, removed: bool, below: bool = False
) -> Pair:
  """The pair of one part of an epoch, when a record is removed or added.

  Args:
    rounds: t >= 1.
    taken: 1; or 2, of three rounds.
    z: the multiplier of one round, at least `LEAST_MULTIPLIER`.
    removed: the direction.
    below: whether the true pair must dominate it, rather than be dominated; of one round.
  """
  if taken == 2:
    law = _two_of_three(z)
  else:
    law = _sum_of_ratios(int(rounds if below else min(rounds, _MOST_ROUNDS)), z, below)
  error = _MASS_ERROR * law.rounds
  ratios, masses = law.values / law.rounds, law.masses * (1 - error if below else 1 + error)
  with np.errstate(divide="ignore"):
    losses = np.log(ratios)
  kept = masses > 0
  losses, ratios, masses = losses[kept], ratios[kept], masses[kept]
  if below:  # so that masses of the pair's second part are larger
    error = 3 * error + _MEAN_ERROR
    if removed:
      return pairs.dense_atoms(losses - error, ratios * masses)
    return pairs.dense_atoms((-losses - error)[::-1], masses[::-1])
  if removed:
    positive = ratios > 0
    return pairs.atoms(
      np.append(losses[positive] + _MEAN_ERROR, np.inf),
      np.append((ratios * masses)[positive], law.excess / law.rounds),
    )
  return pairs.atoms((_MEAN_ERROR - losses)[::-1], masses[::-1])


def merged(
  parameters: np.ndarray, counts: np.ndarray, attained: bool
) -> tuple[np.ndarray, np.ndarray]:
  """The pairs of epochs from those of their rounds; or pairs of epochs' parts that dominate them.

  A law takes a second or so to compute. Multipliers that are near each other count as the least, so
  that there are at most 16 of them. Each kind of part is charged the most severe ones.

  Args:
    parameters: (rounds, taken, multiplier) of each pair, float64 [E, 3].
    counts: float64 [E], the numbers of rounds that the record is in: `taken` rounds are an epoch.
    attained: whether pairs must be those of epochs.
  """
  if attained:
    return parameters, counts / parameters[:, 1]
  rows, numbers = [], []
  for rounds, taken in np.unique(parameters[:, :2], axis=0).tolist():
    here = np.all(parameters[:, :2] == (rounds, taken), axis=1)
    z, several = _near(parameters[here, 2], counts[here])
    epochs = math.ceil(several.sum() / taken)
    for size, of_size, number in cut(int(rounds), int(taken)):
      first = np.diff(np.minimum(np.cumsum(several), epochs * number), prepend=0.0)
      rows += [(size, of_size, one) for one in z[first > 0]]
      numbers += first[first > 0].tolist()
  return np.array(rows, float).reshape(-1, 3), np.array(numbers, float)


def _near(z: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Counted multipliers, increasing; those that are near each other count as their least."""
  order = np.argsort(z)
  z, counts = z[order], counts[order]
  with np.errstate(divide="ignore"):
    place = np.log(z / max(z[0], LEAST_MULTIPLIER))
  width = max(_NEAR, (1 + _NEAR) * float(place[-1]) / _MOST_MULTIPLIERS)
  bucket = np.where(z < LEAST_MULTIPLIER, np.arange(-len(z), 0), np.floor(place / width))
  starts = np.unique(bucket, return_index=True)[1]
  return z[starts], np.add.reduceat(counts, starts)


@functools.lru_cache(maxsize=128)
def _sum_of_ratios(rounds: int, z: float, below: bool) -> _Law:
  """The law of a sum of ratios."""
  one = _collapsed_ratio(z) if below else _ratio(z)
  if rounds == 1:
    return one
  half = _sum_of_ratios(rounds // 2, z, below)
  whole = _sum(half, half, below)
  return _sum(whole, one, below) if rounds % 2 else whole


@functools.lru_cache(maxsize=64)
def _two_of_three(z: float) -> _Law:
  """The law of the sum of the products of two of three ratios."""
  of_one = _ratio(z, _FEW_POINTS)
  low, high = _likely(of_one)
  values = np.append(0.0, np.geomspace(3 * low * low, 3 * high * high, 2 * _POINTS))
  # Each of the 3 ratios' excess counts times the sum of the two others, of mean 2; and a margin.
  masses, excess = np.zeros(len(values)), 6.001 * of_one.excess
  for place, (first, mass) in enumerate(zip(of_one.values, of_one.masses, strict=True)):
    second, weights = of_one.values[place:, None], of_one.masses[place:, None].copy()
    weights[1:] *= 2  # each pair also stands for its mirror image
    products = first * second + (first + second) * of_one.values
    excess += _split(products.ravel(), (mass * weights * of_one.masses).ravel(), values, masses)
  return _Law(3, values, masses, excess * (1 + _MASS_ERROR))


@functools.lru_cache(maxsize=64)
def _ratio(z: float, points: int = _POINTS) -> _Law:
  """The law of one ratio."""
  lattice = _lattice_of_one(z, points)
  found = discretise.upper(pairs.sampled_gaussian(1.0, z, removed=True), lattice)
  values = np.exp(lattice.points())
  masses = found.p / values
  rest = max(0.0, 1.0 - float(masses.sum())) + _MASS_ERROR * _UNLIKELY
  return _Law(1, np.append(0.0, values), np.append(rest, masses), found.infinite)


def _collapsed_ratio(z: float) -> _Law:
  """The law of one ratio, with each cell's values replaced by their mean."""
  t = _lattice_of_one(z, _POINTS).points() * z + 0.5 / z
  (q, _), (p, _) = pairs.normal_masses(t), pairs.normal_masses(t - 1 / z)
  return _Law(1, p / q, q, 0.0)  # relative errors are below 1e-11


def _lattice_of_one(z: float, points: int) -> Lattice:
  """The lattice of the log of one ratio."""
  highest = 0.5 / z / z + _DEVIATIONS / z
  return Lattice(0.0, 2 * highest / points, -points // 2, points // 2)


def _sum(first: _Law, second: _Law, below: bool) -> _Law:
  """The law of the sum of two independent values."""
  values = _lattice(first, second)
  masses, means = np.zeros(len(values)), np.zeros(len(values))
  excess = first.excess + second.excess
  for start in range(0, len(first.values), _ROWS):
    rows = slice(start, start + _ROWS)
    # For two equal laws, sums of values in different blocks also stand for their mirror images.
    columns = slice(start if first is second else 0, None)
    weights = second.masses[columns].copy()
    weights[_ROWS:] *= 2 if first is second else 1
    sums = (first.values[rows, None] + second.values[columns]).ravel()
    mass = (first.masses[rows, None] * weights).ravel()
    if below:
      cell = _cells(sums, values)
      masses += np.bincount(cell, mass, minlength=len(values))
      means += np.bincount(cell, mass * sums, minlength=len(values))
    else:
      excess += _split(sums, mass, values, masses)
  if below:
    kept = masses > 0
    values, masses = means[kept] / masses[kept], masses[kept]
  return _Law(first.rounds + second.rounds, values, masses, excess * (1 + _MASS_ERROR))


def _cells(found: np.ndarray, values: np.ndarray) -> np.ndarray:
  """For each number found, the index of the last of a law's values that is not above it."""
  log_first, spacing = math.log(values[1]), math.log(values[-1] / values[1]) / (len(values) - 2)
  with np.errstate(divide="ignore"):
    cell = np.floor((np.log(found) - log_first) / spacing)
  return np.clip(cell + 1, 0, len(values) - 1).astype(np.int64)  # below values[1]: 0


def _split(found: np.ndarray, mass: np.ndarray, values: np.ndarray, masses: np.ndarray) -> float:
  """Splits the mass at what was found between a law's values. Returns the mean lost above them."""
  above = found > values[-1]
  excess = float(np.sum((found - values[-1])[above] * mass[above]))
  found = np.minimum(found, values[-1])
  cell = np.minimum(_cells(found, values), len(values) - 2)
  share = np.clip((found - values[cell]) / (values[cell + 1] - values[cell]), 0.0, 1.0)
  masses += np.bincount(cell, mass * (1 - share), minlength=len(values))
  masses += np.bincount(cell + 1, mass * share, minlength=len(values))
  return excess


def _lattice(first: _Law, second: _Law) -> np.ndarray:
  """0 and a geometric lattice that holds what is likely of the sum."""
  (low, high), (other_low, other_high) = _likely(first), _likely(second)
  # A large sum has one large part, as tails of ratios are long; the other is near its mean.
  highest = max(high + 3 * second.rounds, other_high + 3 * first.rounds)
  highest = min(highest, high + other_high)
  return np.append(0.0, np.geomspace(low + other_low, highest, _POINTS))


def _likely(law: _Law) -> tuple[float, float]:
  """The values that hold all but a tiny part of a law: under Q from below, under P from above."""
  below = np.cumsum(law.masses) > _UNLIKELY
  above = discretise.sums_from(law.masses * law.values) > _UNLIKELY * law.rounds
  below[0] = False
  return float(law.values[np.argmax(below)]), float(law.values[np.flatnonzero(above)[-1]])
