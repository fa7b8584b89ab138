"""Loss distributions of `jdp.accounting.families.samples`: of all releases of one sample.

The releases' own losses are composed first, each replaced by a measure on one fine lattice
(`discretise`), by sums of products of non-negative masses, so that rounding errors are relative.
The result dominates the composition (or is dominated by it). It has atoms of loss s, with mass p
under P and p e^-s under Q, and a hockey stick H. The sample's hockey stick follows from H and grows
with it:

* removal, (1-q) Q + q P against Q: c -> q H((c - 1 + q) / q). So an atom moves to log(1 - q + q
  e^s) and keeps its Q-mass. What Q has and P has not goes to log(1 - q), and an infinite loss has q
  times its P-mass.
* addition, Q against (1-q) Q + q P: here s = log dQ/dP under Q. An atom moves to -log(1 - q + q
  e^-s) and keeps its mass; an infinite loss becomes -log(1 - q).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jdp.accounting.families.base import FIXED_SIZE, KNOWN, POISSON
from jdp.accounting.pld import discretise
from jdp.accounting.pld.discretise import Lattice, Masses
from jdp.accounting.pld.losses import pairs
from jdp.accounting.pld.losses.pairs import LARGEST_LOSS, UNIT, Pair
from jdp.accounting.renyi.poisson_gaussian import log_mixture

_FINE, _FEWEST, _MOST = 0.01, 2**12, 2**14  # the lattice's spacing, and points
_LOG_BELOW, _LOG_ABOVE = math.log(1e-20), math.log(1e-40)  # Q-mass and P-mass outside of it
_MASS_ERROR = 1e-11  # relative, of sums of at most `_MOST` products and of their sums


class _Atoms(NamedTuple):
  """A measure: losses [N], increasing, their P-masses [N], and the P-mass of an infinite loss."""

  losses: np.ndarray
  p: np.ndarray
  infinite: float


def sampled(
  how: str, q: float, released: Sequence[Sequence[Pair]], *, removed: bool, below: bool
) -> Pair | None:
  """The pair of a record in a sample; None if losses are too large.

  Args:
    how: `KNOWN`, `POISSON` or `FIXED_SIZE`, as in `jdp.accounting.families.samples`.
    q: the probability that the record is in it, in (0, 1).
    released: what a record in the sample is charged, for a removal and for an addition.
    removed: the direction.
    below: whether the pair must be dominated by the true one, rather than dominate it.
  """
  one_side = released[0] if removed else released[1]
  if how == KNOWN and len(one_side) == 1:
    return _seen(q, one_side[0])
  found = [_composed(parts, below) for parts in (released if how == FIXED_SIZE else [one_side])]
  wholes = [whole for whole in found if whole is not None]
  if len(wholes) < len(found):
    return None
  if how == KNOWN:
    return _seen(q, _as_pair(wholes[0]))
  if how == POISSON:
    return _as_pair((_removal if removed else _addition)(q, wholes[0], below))
  removal, addition = _removal(q, wholes[0], below), _addition(q, wholes[1], below)
  return _as_pair(_both_halves(removal, addition))


def composed_pair(parts: Sequence[Pair]) -> Pair | None:
  """A pair that dominates the composition of several; None if losses are too large."""
  found = _composed(parts, below=False)
  return None if found is None else _as_pair(found)


def _seen(q: float, whole: Pair) -> Pair:
  """The pair of a coin of probability q that is shown, with what was released if it is heads."""
  return pairs.mixture(((1 - q, pairs.atoms(np.zeros(1), np.ones(1))), (q, whole)))


def _composed(parts: Sequence[Pair], below: bool) -> _Atoms | None:
  """The composition of pairs as atoms, from below or above; None if losses are too large."""
  ends = [_likely(pair) for pair in parts]
  width = math.hypot(*(high - low for low, high in ends))
  if not sum(max(-low, high) for low, high in ends) < LARGEST_LOSS:
    return None
  spacing = width / min(max(width / _FINE, _FEWEST), _MOST)
  measure: Callable[[Pair, Lattice], Masses] = discretise.lower if below else discretise.upper
  first, offset, p, infinite = 0, 0.0, np.ones(1), 0.0
  for pair, (low, high) in zip(parts, ends, strict=True):
    lattice = Lattice(0.0, spacing, math.floor(low / spacing) - 2, math.ceil(high / spacing) + 2)
    one = measure(pair, lattice)
    total, added = float(p.sum()), float(one.p.sum())
    infinite = infinite * (added + one.infinite) + one.infinite * total
    p = np.convolve(p, one.p)
    first, offset = first + lattice.first, offset + one.lattice.offset
  losses = offset + spacing * (first + np.arange(len(p)))
  side = -1 if below else 1
  losses = losses + side * 8 * UNIT * len(parts) * (1 + np.abs(losses))
  return _Atoms(losses, p * (1 + side * len(parts) * _MASS_ERROR), infinite * (1 + _MASS_ERROR))


def _likely(pair: Pair) -> tuple[float, float]:
  """The losses between which a pair has all but a tiny part: Q-mass below, P-mass above."""
  with np.errstate(divide="ignore"):
    under = np.log(np.cumsum(np.exp(pair.log_p - pair.losses)))
    over = np.log(discretise.sums_from(np.exp(pair.log_p)))
  inside = (under > _LOG_BELOW) & (over > _LOG_ABOVE)
  found = pair.losses[inside]
  return float(found[0]), float(found[-1])


def _removal(q: float, whole: _Atoms, below: bool) -> _Atoms:
  losses, p, infinite = whole
  if not below:  # what Q has and P has not, at a finite loss, above its own of -infinity
    rest = max(0.0, 1.0 - float(np.sum(p * np.exp(-losses))))
    least = float(losses[0]) - 40  # low enough for its P-mass, e^least times `rest`, to be tiny
    losses, p = np.append(least, losses), np.append(rest * math.exp(least), p)
  mixed = (1 - q) * p * np.exp(-losses) + q * p
  return _moved(log_mixture(q, losses), mixed, q * infinite, below)


def _addition(q: float, whole: _Atoms, below: bool) -> _Atoms:
  losses, p, infinite = whole
  moved = -log_mixture(q, -losses)
  return _moved(np.append(moved, -math.log1p(-q)), np.append(p, infinite), 0.0, below)


def _moved(losses: np.ndarray, p: np.ndarray, infinite: float, below: bool) -> _Atoms:
  """The atoms, on the safe side of rounding errors."""
  side = -1 if below else 1
  losses = losses + side * 16 * UNIT * (1 + np.abs(losses))
  return _Atoms(losses, p * (1 + side * 16 * UNIT), infinite * (1 + 16 * UNIT))


def _both_halves(removal: _Atoms, addition: _Atoms) -> _Atoms:
  """The losses above 0 of a removal and those below of an addition; the rest is at 0.

  Between 0 and 1 the stick is a line apart from what losses below 0 add. So there it is above the
  stick of the addition if it is above it at both ends.
  """
  up, down = removal.losses > 0, addition.losses < 0
  above, left_out = removal.p[up], addition.p[~down]
  gain = float(np.sum(above * -np.expm1(-removal.losses[up]))) + removal.infinite
  needed = float(np.sum(left_out * -np.expm1(-addition.losses[~down]))) + addition.infinite
  infinite = removal.infinite + max(0.0, needed - gain)
  mass = float(above.sum()) + infinite
  rest = max(0.0, float(left_out.sum()) + addition.infinite - mass)
  losses = np.concatenate([addition.losses[down], [0.0], removal.losses[up]])
  return _Atoms(losses, np.concatenate([addition.p[down], [rest], above]), infinite)


def _as_pair(found: _Atoms) -> Pair:
  return pairs.dense_atoms(np.append(found.losses, np.inf), np.append(found.p, found.infinite))
