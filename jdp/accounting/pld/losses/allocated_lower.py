"""A pair that data sets attain in an epoch of which a record is in k of t rounds.

The record contributes the clip norm in its rounds, all others contribute nothing. Each round then
releases z times a normal, plus 1 in the record's rounds: x_1, ..., x_t. Any function of these is
post-processing. The function here is a sum of multiples of a spacing, each from the likelihood
ratio R of one round,

  T = sum_i f(x_i),  f(x) = log(1 - s + s R(x)) rounded down.

With the record it sums k values f of a shifted normal and t - k of an unshifted one, and without it
t of an unshifted one, whichever the record's rounds are (Statement 2.13 in
`docs/theory/amplification.md`). Both laws are compositions (`compose`). The first law of the pair
is not tilted, and taken from below. The other is tilted by 1 towards it, so that its small masses
are precise, and taken from above. The smaller the share s, the more T depends on the largest R
alone; that suits a record in one round.
"""

import math
from collections.abc import Sequence

import numpy as np

from jdp.accounting.pld.aims import Term, moments
from jdp.accounting.pld.compose import LatticeComposition, compose
from jdp.accounting.pld.discretise import Lattice, Masses
from jdp.accounting.pld.losses import pairs
from jdp.accounting.pld.losses.pairs import UNIT, Pair
from jdp.accounting.pld.plan import Window, likely

_MOST_ROUNDS, _LEAST, _LARGEST = 2**20, 0.1, 30.0  # the rounds t and multipliers z of `has_pair`
_FARTHEST = 9.0  # deviations, beyond which values count as one
_FINE = 0.2  # the spacing over a round's standard deviation
_MOST_POINTS = 2**19
_ATOMS = 2**9
_NEGLIGIBLE = 46.0  # minus the log of the mass outside of the window
_STEPS = np.geomspace(0.01, 100.0, 100)  # with which the window is looked for


def multiplier_of_mean(rounds: float, taken: float, z: float) -> float:
  """The multiplier of the mean of an epoch's releases, a Gaussian that data sets attain."""
  return z * math.sqrt(rounds) / taken * (1 + 4 * UNIT)  # rounded up, as a lower bound needs


def has_pair(rounds: float, taken: float, z: float) -> bool:
  """Whether `allocated_lower` has another pair: where z is large, or k = t, the mean is as good."""
  return taken < rounds <= _MOST_ROUNDS and _LEAST <= z <= _LARGEST


def allocated_lower(rounds: float, taken: float, z: float, *, removed: bool) -> Pair | None:
  """The pair of an epoch that data sets attain, when a record is removed or added.

  Args:
    rounds: t, as `has_pair` wants it.
    taken: k in [2, t).
    z: the multiplier of one round.
    removed: the direction.
  """
  others = int(rounds - taken)
  share = taken / rounds * (taken - 1) / (taken + 3)  # near k/t for large k, 0 for k = 1
  counts = ((int(taken), others), (0, int(rounds)))  # numbers of shifted and unshifted normals
  first, second = counts if removed else counts[::-1]
  window, spacing = _window(share, z, first)
  parts = _counted(*_masses(share, z, spacing, above=False), first)
  tilt = 1.0 if removed else -1.0
  plain, tilted = (compose(parts, window._replace(tilt=by)) for by in (0.0, tilt))
  parts = _counted(*_masses(share, z, spacing, above=True), second)
  other = compose(parts, window._replace(tilt=tilt))
  starts = pairs.group_starts(len(plain.losses), _ATOMS)
  p = np.maximum(_at_least(plain, starts), _at_least(tilted, starts))
  q = _at_most(other, starts)
  shown = (p > 0) & (q < math.inf)
  losses = np.log(p[shown] / q[shown])
  losses -= 16 * UNIT * (1 + np.abs(losses))
  order = np.argsort(losses)
  return pairs.dense_atoms(losses[order], p[shown][order]) if len(order) else None


def _statistic(share: float, z: float, x: np.ndarray) -> np.ndarray:
  """log(1 - s + s R) of a release of x standard deviations."""
  return np.logaddexp(math.log1p(-share), math.log(share) + (x - 0.5 / z) / z)


def _window(share: float, z: float, counts: tuple[int, int]) -> tuple[Window, float]:
  """Where the law of the statistic is computed, and the spacing. It certifies nothing."""
  x = np.linspace(-_FARTHEST, _FARTHEST + 1 / z, 4001)
  exact = _statistic(share, z, x)
  one, none = (-np.square(x - centre) / 2 for centre in (1 / z, 0.0))
  one, none = (log_p - math.log(np.exp(log_p).sum()) for log_p in (one, none))

  def terms(values: np.ndarray) -> list[Term]:
    sketches = (Pair(values, log_p, lambda edges: NotImplemented) for log_p in (one, none))
    return [Term(*term) for term in zip(sketches, counts, strict=True)]

  variances = [float(moments([Term(pair, 1)], np.zeros(1)).variance[0]) for pair, _ in terms(exact)]
  whole = likely(terms(exact), _STEPS, _NEGLIGIBLE)
  spacing = max(_FINE * math.sqrt(min(variances)), (whole.high - whole.low) / _MOST_POINTS)
  rounded = terms(spacing * np.floor(exact / spacing))
  return likely(rounded, _STEPS, _NEGLIGIBLE), spacing


def _masses(share: float, z: float, spacing: float, *, above: bool) -> tuple[Masses, Masses]:
  """Bounds on the statistic's masses in a round that the record is in, and in another round."""
  ends = _statistic(share, z, np.array([-_FARTHEST, _FARTHEST + 1 / z])) / spacing
  lattice = Lattice(0.0, spacing, math.floor(ends[0]), math.floor(ends[1]))
  edges = lattice.points()[1:]
  # Any increasing edges will do, since the masses of cells are computed for these edges.
  ratio = np.maximum(np.expm1(np.minimum(edges, 700.0)) / share + 1, 1e-300)
  log_ratio = np.where(edges > 30, edges - math.log(share), np.log(ratio))
  x = np.maximum.accumulate(log_ratio * z + 0.5 / z)
  side = 1 if above else -1
  found = []
  for mean in (1 / z, 0.0):
    mass, error = pairs.normal_masses(x - mean)
    found.append(Masses(lattice, np.maximum(mass + side * error, 0.0), 0.0))
  return found[0], found[1]


def _counted(one: Masses, none: Masses, counts: tuple[int, int]) -> Sequence[tuple[Masses, int]]:
  return [part for part in zip((one, none), counts, strict=True) if part[1]]


def _at_least(found: LatticeComposition, starts: np.ndarray) -> np.ndarray:
  """Lower bounds on masses of groups of successive losses, less what may have wrapped around."""
  weights = np.exp(found.log_scale - found.rounding - found.window.tilt * found.losses)
  # No group has more losses than the first, which has `starts[1]`.
  error = math.sqrt(starts[1]) * found.error + sum(found.outside)
  mass = np.add.reduceat(found.tilted * weights, starts) * (1 - 4 * UNIT * starts[1])
  return mass - error * np.maximum.reduceat(weights, starts)


def _at_most(found: LatticeComposition, starts: np.ndarray) -> np.ndarray:
  """Upper bounds on masses of groups of successive losses; what wrapped around only adds."""
  weights = np.exp(found.log_scale + found.rounding - found.window.tilt * found.losses)
  error = math.sqrt(starts[1]) * found.error
  mass = np.add.reduceat(np.maximum(found.tilted, 0.0) * weights, starts)
  return (mass + error * np.maximum.reduceat(weights, starts)) * (1 + 4 * UNIT * starts[1])
