"""Very many equal pairs are composed in two stages, each on a lattice of its own.

Of T pairs, n = sqrt(T) are composed on a fine lattice. The result is a measure above, or below, and
so a pair: each mass and each loss is moved by the bound on its error, and what is outside of the
window is infinite, or left out. That pair is composed T / n times, on a lattice that may be sqrt(n)
times as coarse, for the same error. Such lattices have T^(1/4) times fewer points than one for all
T.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from jdp.accounting.pld import discretise
from jdp.accounting.pld.aims import Term, aim
from jdp.accounting.pld.compose import compose
from jdp.accounting.pld.discretise import Lattice, Masses
from jdp.accounting.pld.losses import pairs
from jdp.accounting.pld.losses.pairs import UNIT, Pair
from jdp.accounting.pld.plan import Window, is_tame, lattice, likely

_MANY = 2**20  # two stages are used from this many equal pairs on
_OUTSIDE = 1e-24  # mass outside of the first stage's window
_STEPS = np.geomspace(0.1, 100.0, 40)  # with which that window is looked for
_MOST_POINTS = 2**20  # the most spacings in that window


def staged(
  terms: Sequence[Term],
  tolerance: float,
  replaced: Callable[[Pair, Lattice], Masses],
  *,
  delta: float | None = None,
  epsilon: float | None = None,
) -> list[Term] | None:
  """The terms, with fewer terms above, or below, in place of those that are repeated very often.

  Args:
    terms: the composition.
    tolerance: as for `plan`.
    replaced: `discretise.upper` or `discretise.lower`.
    delta: the delta at which epsilon is asked for, as for `plan`.
    epsilon: the epsilon at which delta is asked for, as for `plan`.

  Returns:
    The terms; None if no term is repeated often enough. Atoms a step apart are on the points of one
    lattice, and need no other.
  """
  many = [term.repeated >= _MANY and not term.pair.step for term in terms]
  if not any(many):
    return None
  aimed = aim(terms, tolerance, delta, epsilon)
  result: list[Term] = []
  for is_many, term, tame in zip(many, terms, aimed.terms, strict=True):
    # Each of the two stages has half of the error.
    fewer = _in_stages(term, tame, aimed.widest / math.sqrt(2), replaced) if is_many else None
    result += [term] if fewer is None else fewer
  return result


def _in_stages(
  term: Term, tame: Term, spacing: float, replaced: Callable[[Pair, Lattice], Masses]
) -> list[Term] | None:
  """The first stage of a term; None if its lattice would be too long.

  Args:
    term: what is composed.
    tame: the same without its rare losses.
    spacing: the spacing of the lattice.
    replaced: as for `staged`.
  """
  number = math.isqrt(term.repeated)
  times, rest = divmod(term.repeated, number)
  points = lattice(tame.pair, 0.0, spacing, _OUTSIDE)
  if not is_tame(points):
    return None
  measure, result = replaced(term.pair, points), []
  for count, repeated in ((number, times), (rest, 1)):
    if not count:
      continue
    window = likely([Term(tame.pair, count)], _STEPS, -math.log(_OUTSIDE))
    if not window.high - window.low <= spacing * _MOST_POINTS:
      return None
    is_upper = replaced is discretise.upper
    result.append(Term(_composed(measure, count, window, is_upper), repeated))
  return result


def _composed(measure: Masses, count: int, window: Window, is_upper: bool) -> Pair:
  """The pair above, or below, the composition of `count` such measures."""
  found = compose([(measure, count)], window)
  side = 1.0 if is_upper else -1.0
  error = found.largest_error + (0.0 if is_upper else sum(found.outside))
  scale = math.exp(found.log_scale + side * found.rounding) * (1 + side * 8 * UNIT)
  p = np.maximum(found.tilted + side * error, 0.0) * scale
  losses, infinite = found.losses + side * found.rounding, 0.0
  if is_upper:
    infinite = found.infinite + found.outside[1] * scale
  whole = pairs.atoms(np.append(losses, math.inf), np.append(p, infinite))
  return pairs.sketched(whole)._replace(has_atoms=False)
