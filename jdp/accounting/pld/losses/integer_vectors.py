"""The pair that dominates all moves by integer vectors within bounds: Statement 1.9.

A vector's pair is the product of its coordinates' pairs. Each of those is replaced by an upper
measure on one lattice, and these are convolved: sums of products of non-negative masses. The hockey
sticks of all vectors are convex, and so is their maximum, which is the stick of one pair. It takes
the largest value at each of the lattice's points, and chords between them are above the maximum.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jdp.accounting.pld import discretise
from jdp.accounting.pld.discretise import Lattice, sums_from
from jdp.accounting.pld.losses import pairs
from jdp.accounting.pld.losses.pairs import UNIT, Pair

Vector = tuple[int, ...]
_MOST_VECTORS = 256  # looked at, each by its coordinates in descending order
_MASS_ERROR = 1e-11  # relative error of a convolution
_NEGLIGIBLE = 1e-40  # mass that is moved up
_SKETCH = 600  # atoms


class _Measure(NamedTuple):
  """P-masses of losses spacing * (first, first + 1, ...), and that of an infinite loss."""

  first: int
  p: np.ndarray
  infinite: float


def largest_vectors(squared: int, absolute: int, dim: int, largest: int) -> list[Vector] | None:
  """The integer vectors within bounds whose coordinates cannot grow, by their non-zero coordinates.

  Signs and order do not matter. None if there are too many to look at.

  Args:
    squared: the bound on the squared L2 norm.
    absolute: the bound on the L1 norm.
    dim: the number of coordinates.
    largest: the bound on each.

  >>> largest_vectors(4, 4, 3, 2)
  [(2,), (1, 1, 1)]
  """
  result: list[Vector] = []
  pending: list[Vector] = [()]
  for _ in range(_MOST_VECTORS):
    if not pending:
      return result
    vector = pending.pop()
    left, units = squared - sum(k * k for k in vector), absolute - sum(vector)
    grown = [k for k in vector if k < largest and 2 * k + 1 <= left]
    room = len(vector) < dim and left >= 1
    if vector and not (units >= 1 and (grown or room)):
      result.append(vector)
    if room:
      most = min(vector[-1] if vector else largest, units, math.isqrt(left))
      pending += [(*vector, k) for k in range(1, most + 1)]
  return None


def worst_of(vectors: Sequence[Vector], coordinate: Callable[[int], Pair], spacing: float) -> Pair:
  """The pair that dominates moves by each of the vectors.

  Args:
    vectors: by their coordinates, in descending order.
    coordinate: a distance -> the pair of one coordinate that moves by it: a few atoms, and an
      infinite loss.
    spacing: the spacing of the lattice.
  """
  known: dict[Vector, _Measure] = {(): _Measure(0, np.ones(1), 0.0)}

  def measure(vector):
    if vector not in known:
      one = (vector[-1],)
      if vector == one:
        known[one] = _trimmed(_on_lattice(coordinate(*one), spacing))
      else:
        known[vector] = _trimmed(_both(measure(vector[:-1]), measure(one)))
    return known[vector]

  found = [measure(vector) for vector in vectors]
  first = min(one.first for one in found) - 1
  number = max(one.first + len(one.p) for one in found) - first
  losses = spacing * (first + np.arange(number))
  sticks = zip(*(_stick(one, first, losses) for one in found), strict=True)
  values, weights = map(np.array, sticks)
  return _of_sticks(losses, values, weights, max(one.infinite for one in found), spacing)


def _on_lattice(pair: Pair, spacing: float) -> _Measure:
  ends = pair.losses[0] / spacing, pair.losses[-1] / spacing
  lattice = Lattice(0.0, spacing, math.floor(ends[0]) - 1, math.ceil(ends[1]) + 1)
  found = discretise.upper(pair, lattice)
  return _Measure(lattice.first, found.p, found.infinite)


def _both(one: _Measure, other: _Measure) -> _Measure:
  p = np.convolve(one.p, other.p) * (1 + _MASS_ERROR)
  total = float(other.p.sum()) + other.infinite
  infinite = one.infinite * total + other.infinite * float(one.p.sum())
  return _Measure(one.first + other.first, p, infinite * (1 + _MASS_ERROR))


def _trimmed(measure: _Measure) -> _Measure:
  """Moves a negligible mass of the smallest losses up to the rest, of the largest to infinity."""
  first, p, infinite = measure
  begin = int(np.searchsorted(np.cumsum(p), _NEGLIGIBLE))
  end = len(p) - int(np.searchsorted(np.cumsum(p[::-1]), _NEGLIGIBLE))
  kept = p[begin:end].copy()
  kept[0] += p[:begin].sum()
  return _Measure(first + begin, kept, infinite + float(p[end:].sum()))


def _stick(measure: _Measure, first: int, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """A hockey stick at e^losses [N], and the Q-masses [N] above each: sums of positive numbers."""
  p = np.zeros(len(losses))
  p[measure.first - first : measure.first - first + len(measure.p)] = measure.p
  weight = np.append(sums_from((p * np.exp(-losses))[1:]), 0.0)
  width = np.append(np.exp(losses[:-1]) * np.expm1(np.diff(losses)), 0.0)
  return measure.infinite + sums_from(width * weight) * (1 + _MASS_ERROR), weight


def _of_sticks(
  losses: np.ndarray, values: np.ndarray, weights: np.ndarray, infinite: float, spacing: float
) -> Pair:
  """The pair of the largest of hockey sticks [K, N] at e^losses [N].

  Args:
    losses: increasing.
    values: the sticks' values.
    weights: the Q-masses above the points: minus the sticks' slopes.
    infinite: the value at which the sticks end.
    spacing: the spacing of the losses.
  """
  x, largest = np.exp(losses), np.argmax(values, axis=0)
  here, at = largest[:-1], np.arange(len(losses) - 1)
  best = values[largest, np.arange(len(losses))]
  slopes = -weights[here, at]
  # Where another stick is the largest at the next point, the chord is between the two.
  change = here != largest[1:]
  slopes[change] = (np.diff(best) / np.diff(x))[change]
  # Left of the first point no stick of probabilities is steeper than -1.
  slopes = np.concatenate([[-1.0 - 1e-9], slopes, [0.0]])
  q = np.maximum(np.diff(slopes), 0.0) + 16 * UNIT * np.abs(slopes[:-1])
  p = x * q * (1 + len(values) * _MASS_ERROR)
  lifted = losses + 8 * UNIT * (1 + np.abs(losses))
  found = pairs.atoms(np.append(lifted, math.inf), np.append(p, infinite), spacing)
  return pairs.sketched(found, pairs.group_starts(len(found.losses), _SKETCH))
