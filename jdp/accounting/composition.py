"""Dominating pairs with independent randomness, composed: equal ones are counted together."""

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from jdp.accounting.families import DominatingPair, Family
from jdp.accounting.float_noise import NEGLIGIBLE

Tables = defaultdict[Family, Counter[tuple[float, ...]]]


@dataclasses.dataclass(frozen=True, eq=False)
class Composition:
  """Dominating pairs with independent randomness, equal ones counted together.

  Attributes:
    own: for each family the parameters of its pairs, float64 [E, P], and the count of each, float64
      [E].
    overflow: sum over all rounds of the probability that a sample outgrew its capacity.
    parts: what comes beside its own pairs. They keep what they cost, so that it is not summed up
      again for every ledger that has them.
  """

  own: Mapping[Family, tuple[np.ndarray, np.ndarray]]
  overflow: float = 0.0
  parts: tuple["Composition", ...] = ()

  @functools.cached_property
  def groups(self) -> Mapping[Family, tuple[np.ndarray, np.ndarray]]:
    """All pairs, those of its parts too, in the form of its own."""
    if not self.parts:
      return self.own
    tables: Tables = defaultdict(Counter)
    for part in (*self.parts, self):
      for family, (parameters, counts) in part.own.items():
        for row, count in zip(parameters.tolist(), counts.tolist(), strict=True):
          tables[family][tuple(row)] += count
    return _arrays(tables)

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

  def max_loss(self) -> float:
    """The epsilon of pure differential privacy, by basic composition; infinite if there is none.

    Raises:
      ValueError: if a family gives no number >= 0.
    """
    return self._max_loss

  @functools.cached_property
  def _max_loss(self) -> float:
    own = self._total(np.zeros(()), lambda family, parameters: family.max_loss(parameters))
    return float(own) + sum(part.max_loss() for part in self.parts)

  @functools.cached_property
  def cut(self) -> float:
    """The mass that neighbours cannot send, as float noise ends, without negligible parts."""
    total = sum(part.cut for part in self.parts)
    for family, (parameters, counts) in self.own.items():
      for row, count in zip(parameters.tolist(), counts.tolist(), strict=True):
        cut = family.cut(tuple(row))
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
  """Whether of any two of a family's pairs one is known to dominate the other."""
  if len(table) == 1 or family.severity is None:
    return len(table) == 1
  costs = np.array(sorted(map(_severity(family), table)))
  different = sum(len({*column}) > 1 for column in zip(*table, strict=True))
  grow = np.all(costs[1:] >= costs[:-1]) and np.all(np.any(costs[1:] > costs[:-1], axis=1))
  return bool(different <= costs.shape[1] and grow)


def _severity(family: Family) -> Callable[[tuple[float, ...]], tuple[float, ...]]:
  return lambda row: tuple(np.ravel(family.severity(row)).tolist()) if family.severity else ()


def most_severe_pairs(
  family: Family, table: Mapping[tuple[float, ...], int], number: int
) -> list[tuple[DominatingPair, int]]:
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
