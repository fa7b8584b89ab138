"""What is composed: dominating pairs with independent randomness, and a unit's local releases.

Equal pairs are counted together. Local releases add up by the basic theorem, and as pairs.
"""

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jdp._arguments import checked
from jdp.accounting.families.base import CountedPairs, DominatingPair, Family
from jdp.accounting.families.releases import PURE
from jdp.accounting.float_noise import NEGLIGIBLE
from jdp.accounting.seen import events_seen, split
from jdp.events import LocalRelease
from jdp.guarantees import AnyGuarantee, compose
from jdp.ledger import Ledger

Tables = defaultdict[Family, Counter[tuple[float, ...]]]


@dataclasses.dataclass(frozen=True, eq=False)
class Composition:
  """Dominating pairs with independent randomness, equal ones counted together.

  Attributes:
    own: for each family the parameters of its pairs, float64 [E, P], and the count of each, float64
      [E].
    overflow: sum over all rounds of the probability that a sample outgrew its capacity.
    parts: compositions besides its own pairs. They cache their costs, which are then not summed up
      again for every ledger that has them.
  """

  own: Mapping[Family, tuple[np.ndarray, np.ndarray]]
  overflow: float = 0.0
  parts: tuple["Composition", ...] = ()

  @functools.cached_property
  def groups(self) -> Mapping[Family, tuple[np.ndarray, np.ndarray]]:
    """All pairs, including those of its parts, in the form of `own`."""
    if not self.parts:
      return self.own
    tables: Tables = defaultdict(Counter)
    for part in (*self.parts, self):
      for (family, row), count in _items(part.own):
        tables[family][row] += count
    return _arrays(tables)

  def pairs(self) -> Iterator[tuple[DominatingPair, float]]:
    """All pairs, each with its count."""
    return _items(self.groups)

  def rdp(self, orders: tuple[float, ...]) -> np.ndarray:
    """The divergences [A] of all pairs together, each a number >= 0 or infinity.

    Raises:
      ValueError: if a family gives anything else.
    """
    own = self._total(
      np.zeros(len(orders)), lambda family, parameters: family.rdp(parameters, np.array(orders))
    )
    return sum((part._kept_rdp(orders) for part in self.parts), start=own)

  @functools.cached_property
  def _kept_rdp(self) -> Callable[[tuple[float, ...]], np.ndarray]:
    return functools.lru_cache(maxsize=1024)(self.rdp)

  @functools.cached_property
  def max_loss(self) -> float:
    """The epsilon of pure differential privacy, by basic composition; infinite if there is none.

    Raises:
      ValueError: if a family gives no number >= 0.
    """
    own = self._total(np.zeros(()), lambda family, parameters: family.max_loss(parameters))
    return float(own) + sum(part.max_loss for part in self.parts)

  @functools.cached_property
  def cut(self) -> float:
    """The mass that neighbours cannot send as float noise is bounded; negligible cuts left out."""
    total = sum(part.cut for part in self.parts)
    for (family, row), count in _items(self.own):
      cut = family.cut(row)
      total += count * cut if cut > NEGLIGIBLE else 0.0
    return min(1.0, total)

  def _total(
    self, total: np.ndarray, cost: Callable[[Family, np.ndarray], np.ndarray]
  ) -> np.ndarray:
    """The sum of its own pairs' costs.

    Every analysis passes here, so NaN is refused here: it must never look like a small number
    later.
    """
    with np.errstate(all="ignore"):  # Overflow gives infinity, an upper bound.
      for family, (parameters, counts) in self.own.items():
        costs = cost(family, parameters)
        if not np.all(costs >= 0):
          wrong = parameters[~np.all((costs >= 0).reshape(len(parameters), -1), axis=1)][0]
          raise ValueError(
            f"Expected the analysis of {family.name} to give numbers >= 0, got others for the "
            f"parameters {wrong.tolist()}; record the release as NonPrivate until its analysis is "
            "mended."
          )
        total = total + counts @ costs
    return total


def compose_pairs(
  items: Iterable[tuple[DominatingPair, int]], overflow: float = 0.0
) -> Composition:
  """The composition of (pair, count) items."""
  tables: Tables = defaultdict(Counter)
  for (family, parameters), count in items:
    if not all(parameter >= 0 for parameter in parameters):
      raise ValueError(
        f"Expected parameters of {family.name} that are numbers >= 0, got {parameters}; mend the "
        "analysis of the query."
      )
    tables[family][parameters] += count
  return Composition(_arrays(tables), overflow)


def _items(
  groups: Mapping[Family, tuple[np.ndarray, np.ndarray]],
) -> Iterator[tuple[DominatingPair, Any]]:
  for family, (rows, counts) in groups.items():
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
      yield DominatingPair(family, tuple(row)), count


def _arrays(tables: Tables) -> dict[Family, tuple[np.ndarray, np.ndarray]]:
  """Each family's counted parameters as two arrays."""
  return {
    family: (
      np.array(list(table), float).reshape(len(table), -1),
      np.array(list(table.values()), float),
    )
    for family, table in tables.items()
  }


def compose_both(first: Composition, second: Composition) -> Composition:
  """Concatenates two compositions."""
  groups = {**first.own}
  for family, group in second.own.items():
    parts = [groups[family], group] if family in groups else [group]
    groups[family] = np.concatenate([p for p, _ in parts]), np.concatenate([n for _, n in parts])
  return Composition(groups, first.overflow + second.overflow, (*first.parts, *second.parts))


def is_ordered(family: Family, table: Mapping[tuple[float, ...], int]) -> bool:
  """Whether, of any two of these pairs of a family, one is known to dominate the other."""
  if len(table) == 1 or family.severity is None:
    return len(table) == 1
  # Rows of equal severity, or that differ in more places than it has numbers, are not comparable.
  costs = np.array(sorted(map(_severity(family), table)))
  different = sum(len({*column}) > 1 for column in zip(*table, strict=True))
  grow = np.all(costs[1:] >= costs[:-1]) and np.all(np.any(costs[1:] > costs[:-1], axis=1))
  return bool(different <= costs.shape[1] and grow)


def _severity(family: Family) -> Callable[[tuple[float, ...]], tuple[float, ...]]:
  return lambda row: tuple(np.ravel(family.severity(row)).tolist()) if family.severity else ()


def most_severe_pairs(
  family: Family, table: Mapping[tuple[float, ...], int], number: int
) -> CountedPairs:
  """The `number` most severe of counted pairs of one family.

  Raises:
    ValueError: if the pairs are not ordered.
  """
  if table and not is_ordered(family, table):
    raise ValueError(
      f"Expected the rounds of an epoch to have equal parameters of {family.name}, got "
      f"{sorted(table)[:2]}; record them as PureRelease, which can be compared."
    )
  result = []
  for parameters in sorted(table, key=_severity(family), reverse=True):
    taken = min(table[parameters], number)
    number -= taken
    result += [(DominatingPair(family, parameters), taken)] if taken else []
  return result


def least_severe_pair(family: Family, table: Mapping[tuple[float, ...], int]) -> DominatingPair:
  """The least severe of pairs of one family, which are ordered."""
  return DominatingPair(family, min(table, key=_severity(family)))


@checked
def local_guarantee(ledger: Ledger, observer: str | None = None) -> AnyGuarantee:
  """The guarantee of all local releases that one observer saw from one unit.

  Epsilons add up (and deltas, and the parts of a separated guarantee). A unit makes at most
  `max_releases` releases, so only that many count. The most expensive ones count, part by part,
  because the guarantee must hold whichever rounds the unit took part in. Rounds of central
  mechanisms are not counted.

  Args:
    ledger: holds at least one `LocalRelease`.
    observer: the observer. None: the only observer of local releases.

  Returns:
    A `SeparatedDP` if every release is separated, a `PureDP` if none has a delta, else an
    `ApproxDP`. It is for the releases' relation, unit and observer.

  Raises:
    ValueError: if there is no local release. Also if observers (None given), relations, units or
      caps differ.

  >>> from jdp.guarantees import SeparatedDP
  >>> event = LocalRelease(SeparatedDP(8.0, 2.0), max_releases=3)
  >>> print(local_guarantee(Ledger().append(event, count=1000)))
  (24, 6)-separated, 30-DP per value (replace one), against the server
  """
  entries = split(ledger.entries).releases
  if not entries:
    raise ValueError(
      "Expected a ledger with local releases, got none; ask `epsilon` what rounds cost."
    )
  return total_guarantee(events_seen(entries, None, observer).releases)


def compose_releases(releases: Mapping[LocalRelease, int]) -> Composition:
  """The pairs of the most expensive releases that a unit may make, apart from their deltas.

  An (epsilon, delta)-DP release is an epsilon-DP release except in an event of probability delta
  (arXiv 1311.0776). So the releases together have these pairs, except in an event whose probability
  is the sum of the deltas, that of `total_guarantee`.
  """
  table: Counter[tuple[float, ...]] = Counter()
  for release, count in releases.items():
    table[(release.guarantee.epsilon,)] += count
  (cap,) = {release.max_releases for release in releases}
  return compose_pairs(most_severe_pairs(PURE, table, table.total() if cap is None else cap))


def total_guarantee(releases: Mapping[LocalRelease, int]) -> AnyGuarantee:
  """The guarantee of counted releases, of which a unit makes no more than their common cap."""
  caps = {release.max_releases for release in releases}
  if len(caps) > 1:
    raise ValueError(
      f"Expected local releases with one participation cap, got max_releases {caps}; record the "
      "cap over all of them."
    )
  everything = compose([release.guarantee.repeat(count) for release, count in releases.items()])
  cap = caps.pop()
  if cap is None:
    return everything
  # The cap holds for each part (epsilon, delta, ...) alone: the largest values of each add up.
  counted = {
    part: min(getattr(everything, part), _sum_of_largest(part, releases, cap))
    for part in everything.parts()
  }
  return dataclasses.replace(everything, **counted)


def _sum_of_largest(part: str, releases: Mapping[LocalRelease, int], cap: int) -> float:
  """What the `cap` largest values of a part add up to."""
  result = 0.0
  for value, count in sorted(
    ((getattr(release.guarantee, part), n) for release, n in releases.items()), reverse=True
  ):
    taken = min(count, cap)
    if taken:  # Zero times infinity is NaN.
      result += taken * value
    cap -= taken
  return result
