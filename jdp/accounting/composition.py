"""From a ledger's events to the dominating pairs that an accountant composes.

`events_seen` finds the events that one epsilon is about: those that one observer saw.
`compose_rounds` replaces rounds by what dominates them under one relation. It takes two
independent steps:

* The query gives the pair of a release (`jdp.accounting.dominating_pairs`).
* The sampling says what drawing the sample does to it (`jdp.accounting.amplification`).

This module adds the counts and the epochs. Rounds with correlated noise cost what their runs do
(`jdp.accounting.queries.correlated`).
"""

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from enum import StrEnum
from typing import Any, NamedTuple, TypeGuard, TypeVar

import numpy as np

from jdp import _validate
from jdp.accounting.amplification import amplified_pairs
from jdp.accounting.analysis import Composed, Turns
from jdp.accounting.dominating_pairs import release_pairs
from jdp.accounting.families import DominatingPair, Family
from jdp.accounting.float_noise import NEGLIGIBLE
from jdp.accounting.registration import composed_by, known_entries, protects, sampling_analysis
from jdp.events import Event, LocalRelease, Round
from jdp.events.whole_runs import overflow_probability
from jdp.guarantees import Observer, Relation
from jdp.ledger import Ledger

S = TypeVar("S", bound=Any)  # an event, or what stands for several of one scope
Tables = defaultdict[Family, Counter[tuple[float, ...]]]
_MOST = 2**53  # above it a count is no float64


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


def most_severe_pairs(
  family: Family, table: Mapping[tuple[float, ...], int], number: int
) -> list[tuple[DominatingPair, int]]:
  """The `number` most severe of counted pairs of one family.

  Raises:
    ValueError: if the family is not ordered and the pairs differ.
  """
  if len(table) > 1 and family.severity is None:
    raise ValueError(
      f"Expected the rounds of an epoch to have equal parameters of {family.name}, got "
      f"{sorted(table)[:2]}; record them as PureRelease, which can be compared."
    )
  result = []
  for parameters in sorted(table, key=family.severity, reverse=True):
    taken = min(table[parameters], number)
    number -= taken
    result += [(DominatingPair(family, parameters), taken)] if taken else []
  return result


def compose_rounds(
  rounds: Mapping[Round, int],
  relation: Relation,
  *,
  sample_known: bool = False,
  capped: bool = False,
) -> Composition:
  """The composition of counted rounds under one relation.

  Args:
    rounds: with their counts, in the order in which they first happened.
    relation: add_remove, zero_out or replace_one.
    sample_known: whether the observer sees who took part.
    capped: whether rounds of a participation cap are charged as releases of a record that takes
      part until the cap, rather than as rounds of their samples. Both are bounds.

  Raises:
    ValueError: if a round has no analysis under the relation.
  """
  items: list[tuple[DominatingPair, int]] = []
  in_turns: dict[Hashable, tuple[Turns, dict[Round, int]]] = {}
  together: defaultdict[Composed, dict[Round, int]] = defaultdict(dict)
  overflow = 0.0
  for event, count in rounds.items():
    overflow += count * overflow_probability(event)
    if composed := composed_by(event.query):
      together[composed][event] = count
    elif turns := sampling_analysis(event.sampling).turns(event.sampling):
      in_turns.setdefault(turns.sampler, (turns, {}))[1][event] = count
    else:
      items += (
        (pair, count) for pair in amplified_pairs(event, relation, sample_known=sample_known)
      )
  for turns, stream in in_turns.values():
    items += _of_turns(turns, stream, relation, sample_known, capped)
  for composed, several in together.items():
    items += composed(several, relation, sample_known)
  return compose_pairs(items, overflow)


def stands_alone(event: Event) -> TypeGuard[Round]:
  """Whether a round costs the same whatever other rounds there are."""
  return (
    isinstance(event, Round)
    and sampling_analysis(event.sampling).turns(event.sampling) is None
    and composed_by(event.query) is None
  )


def _of_turns(
  turns: Turns,
  stream: Mapping[Round, int],
  relation: Relation,
  sample_known: bool,
  capped: bool,
) -> list[tuple[DominatingPair, int]]:
  """The pairs of rounds of one sampler of which a record can be in some only.

  The most severe pairs count, as many as it has turns, of each family and of each charge (a
  replacement, a removal). That is above every choice of its rounds.
  """
  charges: dict[Any, tuple[DominatingPair, ...]] = {}  # of what is often the same for all rounds
  charged = {}
  for event in stream:
    if (released := (event.query, event.relation)) not in charges:
      pairs = amplified_pairs(event, relation, sample_known=sample_known)
      if turns.by_coins and capped:
        pairs = release_pairs(event.query, relation, event.relation)
      charges[released] = tuple(map(_ordered, pairs)) if turns.of_epochs else pairs
    charged[event] = charges[released]
  if turns.by_coins and not capped:
    return [(pair, count) for event, count in stream.items() for pair in charged[event]]
  most = turns.most((event.sampling, count) for event, count in stream.items())
  return _dearest(stream, charged, most, all_if_unordered=not turns.of_epochs)


def _dearest(
  stream: Mapping[Round, int],
  charged: Mapping[Round, tuple[DominatingPair, ...]],
  number: int,
  *,
  all_if_unordered: bool,
) -> list[tuple[DominatingPair, int]]:
  """Of the rounds' pairs, the `number` most severe of each family and of each charge."""
  charges: defaultdict[tuple[int, Family], Counter[tuple[float, ...]]] = defaultdict(Counter)
  for event, count in stream.items():
    for position, (family, parameters) in enumerate(charged[event]):
      charges[position, family][parameters] += count
  return [
    item
    for (_, family), table in charges.items()
    for item in (
      [(DominatingPair(family, parameters), count) for parameters, count in table.items()]
      if all_if_unordered and family.severity is None and len(table) > 1
      else most_severe_pairs(family, table, number)
    )
  ]


def _ordered(pair: DominatingPair) -> DominatingPair:
  """The pair, or one of an ordered family that it is dominated by (as Renyi divergences see it)."""
  return pair.family.ordered(pair.parameters) if pair.family.ordered else pair


class Seen(NamedTuple):
  """What one epsilon is about.

  Attributes:
    events: that the observer saw, each with its count.
    relation: to analyse them under.
    sample_known: whether the observer sees who takes part in the rounds: the server does, and
      whoever sees reports of users.
  """

  events: Mapping[Any, int]
  relation: Relation
  sample_known: bool


def events_seen(
  ledger: Ledger, relation: str | None, observer: str | None, *, adaptive: bool = False
) -> Seen:
  """The events that one observer saw, the relation to analyse them under, and what else it sees.

  Args:
    ledger: holds at least one event.
    relation: the relation asked for. None: the only one that those events declare. What was
      released without protection costs the same under all. Its relation is ignored if anything else
      is there.
    observer: the observer asked for. None: the only one there is.
    adaptive: whether events may have been chosen from what earlier ones released. What adds them up
      is then no guarantee by itself.

  Raises:
    ValueError: if None leaves a choice, the observer saw nothing or the events protect different
      units. Also if events were chosen adaptively, and may not.
  """
  return seen_among(ledger.entries, relation, observer, adaptive=adaptive)


def seen_among(
  entries: Sequence[tuple[S, int]], relation: str | None, observer: str | None, *, adaptive: bool
) -> Seen:
  """`events_seen` of entries, which are events or stand for several of one scope."""
  counts: Counter[S] = Counter()
  for event, count in known_entries(entries):
    counts[event] += count
  if counts and max(counts.values()) > _MOST:
    raise ValueError(
      "Expected every event at most 2^53 times, got more; account for a shorter run."
    )
  # One epsilon is for one observer, one unit and one relation.
  observers = {event.observer for event in counts}
  chosen = _choose("observer", Observer, observer, observers)
  if chosen not in observers:
    raise ValueError(
      f"Expected observer to be one of the ledger's, {_names(observers)}, got {chosen}; pass one "
      "that saw something."
    )
  seen = {event: count for event, count in counts.items() if event.observer == chosen}
  if not adaptive:
    refuse_adaptive(event for event, _ in entries if event.observer == chosen)
  if len(units := {event.unit for event in seen}) > 1:
    raise ValueError(
      f"Expected events that protect one unit, got {_names(units)}; keep a ledger for each."
    )
  # NonPrivate rounds declare a relation as well, but cost the same under each.
  protected = [event for event in seen if not isinstance(event, Round) or protects(event.query)]
  named = _choose("relation", Relation, relation, {event.relation for event in protected or seen})
  known = chosen == Observer.SERVER or any(isinstance(event, LocalRelease) for event in seen)
  return Seen(seen, Relation(named), known)


def refuse_adaptive(events: Iterable[Any]) -> None:
  """Refuses events of which the sum of the costs is no guarantee."""
  if number := sum(int(event.adaptive) for event in events):
    raise ValueError(
      "Expected events whose sampling and noise were fixed before the run, got "
      f"{number} kinds chosen from earlier releases, which composition theorems do not cover; "
      "admit each by jdp.accounting.renyi_filter or gaussian_filter, whose budget is the "
      "guarantee, or ask jdp.accounting.odometer."
    )


def events_of_type(event_type: type[S], events: Mapping[Any, int]) -> dict[S, int]:
  """The counted events of one type."""
  return {event: count for event, count in events.items() if isinstance(event, event_type)}


def _choose(name: str, choices: type[StrEnum], requested: str | None, present: Set[str]) -> str:
  """The requested member, or the only one present if none is requested."""
  if requested is not None:
    _validate.one_of(list(choices), **{name: requested})
    return requested
  if len(present) > 1:
    raise ValueError(
      f"Expected {name} to be given, as the ledger has {_names(present)}; pass one of them."
    )
  return next(iter(present))


def _names(members: Iterable[str]) -> str:
  return ", ".join(sorted(members))
