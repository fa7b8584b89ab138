"""Losses on a lattice: a pair's upper and lower measure, rounding errors on the safe side.

Let the other losses of a composition be given. A pair's share in the composition's hockey stick is
E_Q psi(e^L), with psi convex, not decreasing, and 0 at 0. So a measure may replace the pair's if
all such psi have a larger mean under it (for the upper bound) or a smaller mean (for the lower);
the masses need not add up to 1. It is enough that its hockey stick h(c) = E_Q (e^L - c)_+ is above
the pair's for all c >= 0, or below.

* Above: each loss is split between the two points around it so that its masses under P *and* under
  Q are kept ("connect the dots", arXiv 2207.04380). What is above the lattice keeps its Q-mass at
  the last point, and the rest of its P-mass moves to infinity. What is below goes to the first
  point.
* Below: losses are merged, cell by cell, which is post-processing: the hockey stick is a polygon
  with one kink in each cell. A polygon below it with kinks at the lattice's points is found by
  lowering its values there (`_below_dots`). Atoms on the lattice stay. What is above the lattice is
  rounded down to the last point, what is below is dropped.

With a density that varies little within a cell the variance of L grows by spacing^2 / 6 above and
falls by spacing^2 / 3 below. Rounding errors of cells' masses move mass up, or down, by their
bound.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy

from jdp.accounting.pld.losses.pairs import UNIT, Pair


class Lattice(NamedTuple):
  """Losses offset + spacing * (first, first + 1, ..., last)."""

  offset: float
  spacing: float
  first: int
  last: int

  def points(self) -> np.ndarray:
    """The losses, float64 [N]."""
    return self.offset + self.spacing * np.arange(self.first, self.last + 1)

  def ends(self) -> tuple[float, float]:
    """The first and the last loss."""
    return self.offset + self.spacing * self.first, self.offset + self.spacing * self.last


class Masses(NamedTuple):
  """P-masses of losses on a lattice.

  Attributes:
    lattice: where they are.
    p: float64 [N], non-negative.
    infinite: P-mass of an infinite loss.
  """

  lattice: Lattice
  p: np.ndarray
  infinite: float


def upper(pair: Pair, lattice: Lattice) -> Masses:
  """A measure that dominates the pair."""
  edges = lattice.points()
  cells, scale = pair.cells(edges), np.exp(edges)
  p, q = cells.p[1:], cells.q[1:] * scale  # times e^L of each cell's lower edge
  error = cells.p_error[1:] + cells.q_error[1:] * scale + _rounding(lattice) * p
  mass = p + error
  gain = np.clip(p - q + 2 * error, 0.0, None)
  moved = np.minimum(gain / -math.expm1(-lattice.spacing), mass)[:-1]
  total = np.zeros(len(edges))
  total[:-1] += mass[:-1] - moved
  total[1:] += moved
  total[0] += cells.p[0] + cells.p_error[0]
  total[-1] += max(mass[-1] - gain[-1], 0.0)
  return Masses(lattice, total * (1 + 8 * UNIT), float(gain[-1]))


def lower(pair: Pair, lattice: Lattice) -> Masses:
  """A measure that the pair dominates."""
  # Shifted down by more than rounding errors, so that an atom on the lattice is just above its
  # point, and stays there.
  slack = 8 * _rounding(lattice)
  lattice = lattice._replace(offset=lattice.offset - slack)
  points, spacing = lattice.points(), lattice.spacing
  edges = np.stack([points, points + 2 * slack], axis=1).ravel() if pair.has_atoms else points
  cells, scale = pair.cells(edges), np.exp(edges)
  p, q = cells.p[1:], cells.q[1:] * scale
  error = cells.p_error[1:] + cells.q_error[1:] * scale + 2 * _rounding(lattice) * p
  mass = np.maximum(p - error, 0.0)
  moved = np.clip((p - q - 2 * error) / -math.expm1(-spacing), 0.0, mass)
  stay = mass[0::2] if pair.has_atoms else np.zeros_like(points)
  mass, moved = (mass[1::2], moved[1::2]) if pair.has_atoms else (mass, moved)
  stay[-1] += mass[-1]  # above the last point losses are rounded down to it
  return Masses(lattice, _below_dots(stay, (mass - moved)[:-1], moved[:-1], points, spacing), 0.0)


def _below_dots(stay, kept, moved, losses, spacing):
  """The P-masses of a function below the hockey stick of atoms on the lattice, and of cells' merged
  losses.

  Args:
    stay: masses [N] of the atoms.
    kept: the masses [N - 1] that each cell leaves at its lower point if it is split.
    moved: the masses [N - 1] that it moves to its upper point.
    losses: the losses of the points, [N].
    spacing: the distance between them.

  Between two dots the merged loss's stick is the larger of the tangents at the dots. It is below
  the chord by `gap` at the kink. So dots that are lowered by that much have a chord below the
  stick. The stick ends in zero and begins as a line: no dot needs to be below these. The greatest
  convex minorant of the dots is the result's stick.
  """
  x, width = np.exp(losses), np.exp(losses[:-1]) * math.expm1(spacing)
  q = (stay + np.append(kept, 0.0) + _after_zero(moved)) / x
  up = moved * math.exp(-spacing)
  merged = np.maximum(kept + up, np.finfo(float).tiny)
  # A product of two masses would underflow where delta is below 1e-154.
  gap, share = math.expm1(spacing) * kept * (up / merged), kept / merged
  lowered = np.maximum(np.append(gap, 0.0), _after_zero(gap))
  head, tail = np.cumsum(q), sums_from(q)
  above_line = _after_zero(np.cumsum(width * head[:-1]))
  above_zero = np.append(sums_from(width * tail[1:]), 0.0)
  lowered, end = _ended(lowered, above_zero, gap, share)
  backwards, begin = _ended(lowered[::-1], above_line[::-1], gap[::-1], (up / merged)[::-1])
  lowered, begin = backwards[::-1], len(x) - 1 - begin
  too_low = np.any(lowered > above_zero) or np.any(lowered > above_line)
  if begin + 2 >= end or too_low:  # too few points for this: every loss is rounded down
    return stay + np.append(kept + moved, 0.0)
  slopes = -tail[1:] - np.diff(lowered) / width
  slopes[end:] = 0.0
  slopes[end - 1] = -(above_zero - lowered)[end - 1] * (1 - 1e-9) / width[end - 1]
  slopes[: begin + 1] = -tail[0]
  slopes[begin] += (above_line - lowered)[begin + 1] / width[begin]
  slopes, weights = np.concatenate([-tail[:1], slopes]), np.concatenate([x[:1], width])
  if np.any(np.diff(slopes) < 0):
    slopes = scipy.optimize.isotonic_regression(slopes, weights=weights).x
  mass = np.diff(np.append(slopes, 0.0))
  return np.maximum(x * (mass + 16 * UNIT * slopes), 0.0)


def _ended(lowered, height, gap, share):
  """By how much dots are lowered if all from some index on are zero; and that index, at most the
  last one.

  The dot before it is lowered by what the gap then asks for there, but at most by its own height.
  """
  below = height < lowered
  end = int(np.argmax(below)) if below.any() else len(height) - 1
  lowered = np.append(lowered[:end], height[end:])
  with np.errstate(divide="ignore", invalid="ignore"):
    needed = (gap[end - 1] - (1 - share[end - 1]) * height[end]) / share[end - 1]
  lowered[end - 1] = min(max(lowered[end - 1], needed), height[end - 1])
  return lowered, end


def _after_zero(values):
  return np.concatenate([[0.0], values])


def sums_from(values: np.ndarray) -> np.ndarray:
  """The sums of the values from each index on."""
  return np.cumsum(values[::-1])[::-1]


def _rounding(lattice: Lattice) -> float:
  """A bound on the rounding errors of the lattice's points, and of exponentials of such losses."""
  return 4 * UNIT * (1 + max(abs(float(end)) for end in lattice.ends()))
