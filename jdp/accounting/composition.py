"""From the ledger's events to the privacy losses that an accountant composes.

`events_seen` finds the events that one epsilon is about: those that one observer saw.
`compose_rounds` replaces rounds by what dominates them under one relation, in two steps that know
nothing of each other: the query gives the loss of a release (`jdp.accounting.dominating_pairs`),
the sampling says what drawing the sample does to it (`jdp.accounting.amplification`). Counts enter
here, and epochs.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jdp import _validate
from jdp.accounting.amplification import EPOCHS, amplified_pairs
from jdp.accounting.pair_families import DominatingPair, PairFamily
from jdp.events import Event, NonPrivate, Round
from jdp.guarantees import Observer, Relation
from jdp.ledger import Ledger

E = TypeVar("E", bound=Event)
_MOST = 2**53  # above it a count is no float64


class Composition(NamedTuple):
  """Losses with independent randomness, equal ones counted together.

  Attributes:
    groups: for each kind the parameters of its losses, float64 [E, P], and how many there were of
      each, float64 [E].
    overflow: sum over all rounds of the probability that a sample outgrew its capacity.
  """

  groups: Mapping[PairFamily, tuple[np.ndarray, np.ndarray]]
  overflow: float = 0.0

  def rdp(self, orders: tuple[float, ...]) -> np.ndarray:
    """The divergences [A] of all losses together, each a number >= 0 or infinity.

    Raises:
      ValueError: if that of a kind is none.
    """
    return self._total(
      np.zeros(len(orders)), lambda kind, parameters: kind.rdp(parameters, np.array(orders))
    )

  def max_loss(self) -> float:
    """The epsilon of pure differential privacy, by basic composition; infinite if there is none.

    Raises:
      ValueError: if that of a kind is no number >= 0.
    """
    return float(self._total(np.zeros(()), lambda kind, parameters: kind.max_loss(parameters)))

  def _total(
    self, total: np.ndarray, cost: Callable[[PairFamily, np.ndarray], np.ndarray]
  ) -> np.ndarray:
    """The sum of all losses' costs. Every analysis passes here: NaN must never look like a small
    number later.
    """
    with np.errstate(all="ignore"):  # What overflows is infinite, an upper bound.
      for kind, (parameters, counts) in self.groups.items():
        costs = cost(kind, parameters)
        if not np.all(costs >= 0):
          wrong = parameters[~np.all((costs >= 0).reshape(len(parameters), -1), axis=1)][0]
          raise ValueError(
            f"Expected the analysis of {kind.name} to give numbers >= 0, got others for the "
            f"parameters {wrong.tolist()}; record the release as NonPrivate until its analysis is "
            "mended."
          )
        total = total + counts @ costs
    return total


def compose_pairs(
  items: Iterable[tuple[DominatingPair, int]], overflow: float = 0.0
) -> Composition:
  """Losses from pairs (loss, count)."""
  tables: defaultdict[PairFamily, Counter[tuple[float, ...]]] = defaultdict(Counter)
  for (kind, parameters), count in items:
    if not all(parameter >= 0 for parameter in parameters):
      raise ValueError(
        f"Expected parameters of {kind.name} that are numbers >= 0, got {parameters}; mend the "
        "analysis of the query."
      )
    tables[kind][parameters] += count
  groups = {
    kind: (
      np.array(list(table), float).reshape(len(table), -1),
      np.array(list(table.values()), float),
    )
    for kind, table in tables.items()
  }
  return Composition(groups, overflow)


def compose_both(first: Composition, second: Composition) -> Composition:
  """Both together."""
  groups = {**first.groups}
  for kind, group in second.groups.items():
    parts = [groups[kind], group] if kind in groups else [group]
    groups[kind] = np.concatenate([p for p, _ in parts]), np.concatenate([n for _, n in parts])
  return Composition(groups, first.overflow + second.overflow)


def most_severe_pairs(
  kind: PairFamily, table: Mapping[tuple[float, ...], int], number: int
) -> list[tuple[DominatingPair, int]]:
  """The `number` most severe of counted losses of one kind.

  Raises:
    ValueError: if the kind is not ordered and the losses differ.
  """
  if len(table) > 1 and kind.severity is None:
    raise ValueError(
      f"Expected the rounds of an epoch to have equal parameters of {kind.name}, got "
      f"{sorted(table)[:2]}; record them as PureRelease, which can be compared."
    )
  result = []
  for parameters in sorted(table, key=kind.severity, reverse=True):
    taken = min(table[parameters], number)
    number -= taken
    result += [(DominatingPair(kind, parameters), taken)] if taken else []
  return result


def compose_rounds(
  rounds: Mapping[Round, int], relation: Relation, *, sample_known: bool = False
) -> Composition:
  """The losses of counted rounds under one relation.

  Args:
    rounds: with their counts, in the order in which they first happened.
    relation: add_remove, zero_out or replace_one.
    sample_known: whether the observer sees who took part.

  Raises:
    ValueError: if a round has no analysis under the relation.
  """
  items: list[tuple[DominatingPair, int]] = []
  streams: defaultdict[tuple, dict[Round, int]] = defaultdict(dict)
  overflow = 0.0
  for event, count in rounds.items():
    sampling = event.sampling
    overflow += count * getattr(sampling, "overflow_probability", 0.0)
    if isinstance(sampling, EPOCHS):
      partial = getattr(sampling, "keeps_partial", False)
      streams[type(sampling), sampling.num_batches, partial, sampling.population][event] = count
    else:
      items += (
        (loss, count) for loss in amplified_pairs(event, relation, sample_known=sample_known)
      )
  for stream in streams.values():
    items += _of_epochs(stream, relation)
  return compose_pairs(items, overflow)


def _of_epochs(stream: Mapping[Round, int], relation: Relation) -> list[tuple[DominatingPair, int]]:
  """The losses of one sampler's rounds: the most severe of them, as many as there were epochs.

  It is enough to bound the run given the permutations (or bins), coupled as
  `jdp.accounting.amplification` says, for divergences are jointly quasi-convex. Given them, a
  record takes part in one round of an epoch at most and the run is the composition of those rounds'
  releases. They are E rounds or fewer, whichever they are; in order of severity each is dominated
  by one of the E most severe. Of each kind of loss E are counted, and of each charge (a
  replacement, a removal): that is above every choice.

  Epochs are counted by the rounds that start one, with one more if the first round of all does not
  (a slice of a run), and are never fewer than the rounds fill.
  """
  samplings: list[Any] = [event.sampling for event in stream]
  first = samplings[0]
  starts = sum(
    count
    for sampling, count in zip(samplings, stream.values(), strict=True)
    if sampling.starts_epoch
  )
  epochs = max(starts + (not first.starts_epoch), -(-sum(stream.values()) // first.num_batches))
  charges: defaultdict[tuple[int, PairFamily], Counter[tuple[float, ...]]] = defaultdict(Counter)
  for event, count in stream.items():
    for position, (kind, parameters) in enumerate(amplified_pairs(event, relation)):
      charges[position, kind][parameters] += count
  return [
    item for (_, kind), table in charges.items() for item in most_severe_pairs(kind, table, epochs)
  ]


def events_seen(
  ledger: Ledger, relation: str | None, observer: str | None
) -> tuple[Mapping[Event, int], Relation]:
  """The events that one observer saw, each with its count, and the relation to analyse them under.

  Args:
    ledger: holds at least one event.
    relation: the relation asked for, or None: the only one that those events declare. What was
      released without protection costs the same under all, and is not asked if anything else is
      there.
    observer: the observer asked for, or None: the only one there is.

  Raises:
    ValueError: if None leaves a choice, if the observer saw nothing, or if the events protect
      different units.
  """
  counts: Counter[Event] = Counter()
  for event, count in ledger.entries:
    counts[event] += count
  if counts and max(counts.values()) > _MOST:
    raise ValueError(
      "Expected every event at most 2^53 times, got more; account for a shorter run."
    )
  observers = {event.observer for event in counts}
  chosen = _choose("observer", Observer, observer, observers)
  if chosen not in observers:
    raise ValueError(
      f"Expected observer to be one of the ledger's, {_names(observers)}, got {chosen}; pass one "
      "that saw something."
    )
  seen = {event: count for event, count in counts.items() if event.observer == chosen}
  if len(units := {event.unit for event in seen}) > 1:
    raise ValueError(
      f"Expected events that protect one unit, got {_names(units)}; keep a ledger for each."
    )
  protected = [event for event in seen if not isinstance(getattr(event, "query", None), NonPrivate)]
  return seen, Relation(
    _choose("relation", Relation, relation, {event.relation for event in protected or seen})
  )


def events_of_type(kind: type[E], events: Mapping[Event, int]) -> dict[E, int]:
  """The counted events of one type."""
  return {event: count for event, count in events.items() if isinstance(event, kind)}


def _choose(name: str, kind: type[StrEnum], requested: str | None, present: Set[str]) -> str:
  """What was asked for; if nothing was, the only one present."""
  if requested is not None:
    _validate.one_of(list(kind), **{name: requested})
    return requested
  if len(present) > 1:
    raise ValueError(
      f"Expected {name} to be given, as the ledger has {_names(present)}; pass one of them."
    )
  return next(iter(present))


def _names(members: Iterable[str]) -> str:
  return ", ".join(sorted(members))
