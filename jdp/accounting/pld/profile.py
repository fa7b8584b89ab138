"""The accountant: profiles of losses from above, and epsilons from below."""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from jdp.accounting.composition import Composition
from jdp.accounting.pld import bounds, discretise
from jdp.accounting.pld.aims import Term
from jdp.accounting.pld.bounds import Stick
from jdp.accounting.pld.compose import LatticeComposition, compose
from jdp.accounting.pld.discretise import Lattice, Masses
from jdp.accounting.pld.losses.pairs import LARGEST_LOSS, Pair
from jdp.accounting.pld.plan import plan
from jdp.accounting.pld.stages import staged
from jdp.accounting.pld.terms import terms_of
from jdp.accounting.profiles import PrivacyProfile, rdp_profile, smaller

TOLERANCE = 5e-4
_FINER, _FEW = 5, 2**20  # tolerances tried for a lower bound; for more pairs than this, only one
_GUESSES = 4  # guesses of an epsilon, each half of the one before
_COARSE = 16  # a direction that may cost less is tried with this many times the tolerance


def tightest_profile(composed: Composition, tolerance: float = TOLERANCE) -> PrivacyProfile:
  """The least of the upper bounds from privacy loss distributions and from Renyi divergences."""
  return smaller(pld_profile(composed, tolerance), rdp_profile(composed))


def pld_profile(composed: Composition, tolerance: float = TOLERANCE) -> PrivacyProfile:
  """Upper bounds from privacy loss distributions.

  Ten billion rounds of a sampled Gaussian take half a second. For more than some 10^12 a lattice
  would have too many points, and the bounds are those from Renyi divergences. Any number of
  unsampled Gaussians counts as one Gaussian.

  Args:
    composed: the losses.
    tolerance: the relative width between both bounds on epsilon that lattices are chosen for; the
      upper one is within about a third of it.
  """
  if _is_unbounded(composed):
    return PrivacyProfile(lambda delta: math.inf if delta < 1 else 0.0, lambda epsilon: 1.0)
  directions = _directions(composed, attained=False)
  if directions and not any(directions):
    return PrivacyProfile(lambda delta: 0.0, lambda epsilon: 0.0)

  def epsilon(delta):
    if not 0 < delta < 1:
      return math.inf if delta <= 0 else 0.0
    found, about = 0.0, functools.partial(by_divergences.epsilon, delta)
    for terms in directions:
      # A coarse bound shows that a direction costs less than another.
      if not (found and _upper_epsilon(terms, _COARSE * tolerance, delta, about) <= found):
        found = max(found, _upper_epsilon(terms, tolerance, delta, about))
    return found if found < math.inf else about()

  def delta(epsilon):
    about = by_divergences.delta(epsilon)
    found = max(_upper_delta(terms, tolerance, epsilon, about) for terms in directions)
    # 0 would be an underflow, not a bound.
    return min(1.0, max(found, math.ulp(0.0))) if found < math.inf else about

  by_divergences = rdp_profile(composed)
  return PrivacyProfile(epsilon, delta) if directions else by_divergences


def upper_sticks(composed: Composition, deltas: Sequence[float]) -> list[list[Stick]]:
  """For each direction that may cost more, upper bounds on the hockey stick.

  Each bound is planned for one of the deltas. There is none where a lattice would have too many
  points, where nothing is hidden and where nothing is shown.
  """
  directions = [] if _is_unbounded(composed) else _directions(composed, attained=False)
  result = []
  for terms in filter(None, directions):
    sticks = (_upper_stick(terms, TOLERANCE, delta=delta) for delta in deltas)
    result.append([stick for stick in sticks if stick is not None])
  return result


def lower_epsilon(
  composed: Composition, delta: float, upper: float, tolerance: float = TOLERANCE
) -> float:
  """An epsilon below which no guarantee at `delta` holds, if the losses are those of data sets that
  exist.

  Args:
    composed: the losses.
    delta: in [0, 1].
    upper: an epsilon at which a guarantee holds; the lattices are planned for it.
    tolerance: as for `pld_profile`.

  Returns:
    A lower bound; 0 if none is found. Infinity if a release hides nothing, and delta is below the
    probability that such a release is of a sample with the record.
  """
  if _is_unbounded(composed):
    return math.inf if delta < _shown(composed) else 0.0
  if not (0 < delta < 1 and 0 < upper < math.inf):
    return 0.0
  found = 0.0
  for terms in _directions(composed, attained=True):
    if found < (1 - tolerance) * upper:
      found = max(found, _lower_epsilon(terms, tolerance, delta, upper))
  return found


def _directions(composed: Composition, *, attained: bool) -> list[list[Term]]:
  """The terms of each direction that may cost more than the other; none if losses are too large.

  If `attained`, a direction whose losses are too large is left out.
  """
  symmetric = all(family.is_symmetric(row, attained) for (family, row), _ in composed.pairs())
  sides = (True,) if symmetric else (True, False)
  found = [terms_of(composed, removed=side, attained=attained) for side in sides]
  shown = [several for several in found if several is not None]
  return shown if attained or len(shown) == len(found) else []


def _is_unbounded(composed: Composition) -> bool:
  return any(family.exposed(row) > 0 for (family, row), _ in composed.pairs())


def _shown(composed: Composition) -> float:
  """A lower bound on the probability that a sample with the record has a release hiding nothing."""
  log_hidden = 0.0
  for (family, row), count in composed.pairs():
    exposed = family.exposed(row)
    log_hidden += count * math.log1p(-exposed) if exposed < 1 else -math.inf
  return -math.expm1(log_hidden) * (1 - 1e-12)  # rounded down


def _upper_epsilon(
  terms: list[Term], tolerance: float, delta: float, about: Callable[[], float]
) -> float:
  if _total_variation(terms) <= delta:
    return 0.0  # No tilt is right for losses that are so rare, and a plan may miss by a lot.
  found, bound = _planned(terms, tolerance, discretise.upper, delta=delta), math.inf
  if found is not None:
    bound = bounds.upper(found[0]).epsilon(delta)
    if not bound > 0 or 0.7 < bound / max(found[1], 1e-300) < 1.4:  # planned for about this
      return bound
  # Rare large losses mislead the saddle point for a delta, not that for an epsilon. Plans for more
  # than the true epsilon have a window where plans for the true one have none.
  most = about()
  for asked in (bound, *(most / 2**halved for halved in range(_GUESSES))):
    if asked < math.inf and not asked <= bound / 2 < math.inf:
      again = _upper_stick(terms, tolerance, delta=delta, epsilon=asked)
      bound = bound if again is None else min(bound, again.epsilon(delta))
  return bound


def _total_variation(terms: list[Term]) -> float:
  """An upper bound on delta at 0: the distances of all pairs, added up."""
  total = 0.0
  for pair, count in terms:
    p, q, p_error, q_error = (float(of[1]) for of in pair.cells(np.zeros(1)))
    total += count * (p - q + p_error + q_error)
  return total * (1 + len(terms) * 2.0**-50)


def _upper_delta(terms: list[Term], tolerance: float, epsilon: float, about: float) -> float:
  planned = functools.partial(_upper_stick, terms, tolerance)
  first = planned(epsilon=epsilon)
  # An epsilon above all losses has no plan; delta is at most that at a smaller epsilon.
  largest = sum(count * float(pair.losses[-1]) for pair, count in terms)
  if first is None and 1.01 * largest < min(epsilon, LARGEST_LOSS):
    epsilon = max(1.01 * largest, 0.0)
    first = planned(epsilon=epsilon)
  # One loss alone may say nothing of very many rounds; nor may a plan for more than they have.
  for asked in ({"delta": about, "epsilon": epsilon}, {"delta": about}):
    if first is None and 0 < about < 1:
      first = planned(**asked)
  if first is None:
    return math.inf
  found = [first.delta(epsilon)]
  # The plans for that delta give a delta that agrees with `_upper_epsilon`.
  for asked in ({"delta": found[0]}, {"delta": found[0], "epsilon": epsilon}):
    if 0 < found[0] < 1 and (again := planned(**asked)):
      found.append(again.delta(epsilon))
  return min((bound for bound in found if not math.isnan(bound)), default=math.inf)


def _lower_epsilon(terms: list[Term], tolerance: float, delta: float, upper: float) -> float:
  if not terms:
    return 0.0
  found = 0.0
  # A coarse lattice may show nothing at all of rare large losses.
  for finer in (tolerance / 4**number for number in range(_FINER)):
    for asked in ({"delta": delta, "epsilon": upper}, {"delta": delta}):
      if found >= (1 - 2 * tolerance) * upper:
        break
      if planned := _planned(terms, finer, discretise.lower, **asked):
        found = max(found, bounds.lower(planned[0]).epsilon(delta))
    if found or sum(term.repeated for term in terms) > _FEW:
      break
  return found


def _upper_stick(terms: Sequence[Term], tolerance: float, **asked: float) -> Stick | None:
  """The upper bound on the hockey stick that is planned for what is asked; None without a plan."""
  planned = _planned(terms, tolerance, discretise.upper, **asked)
  return None if planned is None else bounds.upper(planned[0])


def _planned(
  terms: Sequence[Term],
  tolerance: float,
  replaced: Callable[[Pair, Lattice], Masses],
  **asked: float,
) -> tuple[LatticeComposition, float] | None:
  """The planned composition, and the epsilon that it is planned for; None if there is no plan."""
  chosen = plan(terms, tolerance, **asked)
  if chosen is None or not chosen.is_fine:
    fewer = staged(terms, tolerance, replaced, **asked)
    if fewer is not None and (coarser := plan(fewer, tolerance, **asked)) is not None:
      terms, chosen = fewer, coarser
  if chosen is None:
    return None
  measures = zip(terms, chosen.lattices, strict=True)
  parts = [(replaced(pair, lattice), count) for (pair, count), lattice in measures]
  return compose(parts, chosen.window), chosen.epsilon
