"""The accountant: profiles of losses from above, and epsilons from below."""

import math
from collections.abc import Callable, Sequence

from jdp.accounting.composition import Composition
from jdp.accounting.pld import bounds, discretise
from jdp.accounting.pld.bounds import Stick
from jdp.accounting.pld.compose import LatticeComposition, compose
from jdp.accounting.pld.discretise import Lattice, Masses
from jdp.accounting.pld.pairs import Pair
from jdp.accounting.pld.plan import Plan, Term, plan
from jdp.accounting.pld.terms import terms_of
from jdp.accounting.profiles import PrivacyProfile, rdp_profile, smaller

TOLERANCE = 5e-4
_LARGEST = 600.0  # a loss whose exponential is safely a float64
_COARSE = 16  # times the tolerance, with which a direction is tried that may cost less


def pld_profile(composed: Composition, tolerance: float = TOLERANCE) -> PrivacyProfile:
  """Upper bounds from privacy loss distributions, or from Renyi divergences where they are smaller.

  That is where a lattice would have too many points. Ten million rounds of a sampled Gaussian take
  half a second. Of more the lattice is coarser than the tolerance asks for, and of more
  than some ten billion there is none. Any number of unsampled Gaussians is one Gaussian.

  Args:
    composed: the losses.
    tolerance: the width of both bounds on epsilon, relative, that lattices are chosen for; the
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
    found = 0.0
    for terms in directions:
      # A coarse bound shows that a direction costs less than another.
      if not (found and _upper_epsilon(terms, _COARSE * tolerance, delta) <= found):
        found = max(found, _upper_epsilon(terms, tolerance, delta))
    return found

  def delta(epsilon):
    found = max(_upper_delta(terms, tolerance, epsilon) for terms in directions)
    return min(1.0, max(found, math.ulp(0.0)))  # what underflows is not zero

  return (
    smaller(PrivacyProfile(epsilon, delta), rdp_profile(composed))
    if directions
    else rdp_profile(composed)
  )


def upper_sticks(composed: Composition, deltas: Sequence[float]) -> list[list[Stick]]:
  """For each direction that may cost more, upper bounds on the hockey stick.

  Each bound is planned for one of the deltas. There is none where a lattice would have too many
  points, where nothing is hidden and where nothing is shown.
  """
  directions = [] if _is_unbounded(composed) else _directions(composed, attained=False)
  return [
    [
      bounds.upper(_composition(terms, chosen, discretise.upper))
      for chosen in (plan(terms, TOLERANCE, delta=delta) for delta in deltas)
      if chosen is not None
    ]
    for terms in directions
    if terms
  ]


def lower_epsilon(
  composed: Composition, delta: float, upper: float, tolerance: float = TOLERANCE
) -> float:
  """An epsilon below which no guarantee at `delta` holds, if the losses are those of data sets that
  exist.

  Args:
    composed: the losses.
    delta: in [0, 1].
    upper: an epsilon at which one holds, by which the lattices are planned.
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
  """The terms of each direction that may cost more than the other; none if losses are too large."""
  symmetric = all(
    family.is_symmetric(tuple(row), attained)
    for family, (rows, _) in composed.groups.items()
    for row in rows.tolist()
  )
  sides = (True,) if symmetric else (True, False)
  found = [terms_of(composed, removed=side, attained=attained) for side in sides]
  return [several for several in found if several is not None] if None not in found else []


def _is_unbounded(composed: Composition) -> bool:
  return any(
    family.exposed(tuple(row)) > 0
    for family, (rows, _) in composed.groups.items()
    for row in rows.tolist()
  )


def _shown(composed: Composition) -> float:
  """At most the probability that a sample with the record has a release which hides nothing."""
  log_hidden = 0.0
  for family, (rows, counts) in composed.groups.items():
    for row, count in zip(map(tuple, rows.tolist()), counts.tolist(), strict=True):
      exposed = family.exposed(row)
      log_hidden += count * math.log1p(-exposed) if exposed < 1 else -math.inf
  return -math.expm1(log_hidden) * (1 - 1e-12)


def _upper_epsilon(terms: list[Term], tolerance: float, delta: float) -> float:
  chosen = plan(terms, tolerance, delta=delta)
  if chosen is None:
    return math.inf
  bound = bounds.upper(_composition(terms, chosen, discretise.upper)).epsilon(delta)
  if not bound > 0 or 0.7 < bound / max(chosen.epsilon, 1e-300) < 1.4:
    return bound
  # Rare large losses mislead the saddle point for a delta, not that for an epsilon.
  chosen = plan(terms, tolerance, delta=delta, epsilon=bound) if bound < math.inf else None
  again = (
    math.inf
    if chosen is None
    else bounds.upper(_composition(terms, chosen, discretise.upper)).epsilon(delta)
  )
  return min(bound, again)


def _upper_delta(terms: list[Term], tolerance: float, epsilon: float) -> float:
  chosen = plan(terms, tolerance, epsilon=epsilon)
  # A larger epsilon than all losses has no plan; delta is at most that at a smaller one.
  largest = sum(count * float(pair.losses[-1]) for pair, count in terms)
  if chosen is None and 1.01 * largest < min(epsilon, _LARGEST):
    epsilon = max(1.01 * largest, 0.0)
    chosen = plan(terms, tolerance, epsilon=epsilon)
  if chosen is None:
    return math.inf
  bound = bounds.upper(_composition(terms, chosen, discretise.upper)).delta(epsilon)
  # The plan for that delta gives a delta that agrees with `_upper_epsilon`.
  chosen = plan(terms, tolerance, delta=bound) if 0 < bound < 1 else None
  again = (
    math.nan
    if chosen is None
    else bounds.upper(_composition(terms, chosen, discretise.upper)).delta(epsilon)
  )
  return min(value for value in (bound, again, math.inf) if not math.isnan(value))


def _lower_epsilon(terms: list[Term], tolerance: float, delta: float, upper: float) -> float:
  found = 0.0
  for asked in ({"delta": delta, "epsilon": upper}, {"delta": delta}):
    chosen = (
      plan(terms, tolerance, **asked) if terms and found < (1 - 2 * tolerance) * upper else None
    )
    if chosen is not None:
      found = max(found, bounds.lower(_composition(terms, chosen, discretise.lower)).epsilon(delta))
  return found


def _composition(
  terms: Sequence[Term], chosen: Plan, replaced: Callable[[Pair, Lattice], Masses]
) -> LatticeComposition:
  parts = [
    (replaced(pair, lattice), count)
    for (pair, count), lattice in zip(terms, chosen.lattices, strict=True)
  ]
  return compose(parts, chosen.window)
