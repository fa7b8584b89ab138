"""The events that one epsilon is about: those that one observer saw, and what else it sees."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from jdp import _validate
from jdp.accounting.registration import known_entries, protects
from jdp.events import LocalRelease, Round
from jdp.guarantees import Observer, Relation

S = TypeVar("S", bound=Any)  # an event, or what stands for several of one scope
_MOST = 2**53  # above it a count is not a float64


class Seen(NamedTuple):
  """What one epsilon is about.

  Attributes:
    rounds: the rounds that the observer saw, each with its count.
    releases: the local releases that it saw, each with its count.
    others: the other entries, each of which stands for several rounds.
    relation: the relation to analyse them under.
    sample_known: whether the observer sees who takes part in the rounds: the server does, and
      whoever sees reports of users.
  """

  rounds: Mapping[Round, int]
  releases: Mapping[LocalRelease, int]
  others: Sequence[Any]
  relation: Relation
  sample_known: bool


class Split(NamedTuple):
  """A ledger's counted entries by what they are."""

  rounds: list[tuple[Round, int]]
  releases: list[tuple[LocalRelease, int]]
  others: list[tuple[Any, int]]


def split(entries: Iterable[tuple[Any, int]]) -> Split:
  """Splits entries into a ledger's two kinds of events, and what stands for several events."""
  found = Split([], [], [])
  for event, count in entries:
    if isinstance(event, Round):
      found.rounds.append((event, count))
    elif isinstance(event, LocalRelease):
      found.releases.append((event, count))
    else:
      found.others.append((event, count))
  return found


def events_seen(
  entries: Sequence[tuple[S, int]],
  relation: str | None,
  observer: str | None,
  *,
  adaptive: bool = False,
) -> Seen:
  """The events that one observer saw, the relation to analyse them under, and what else it sees.

  Args:
    entries: at least one counted event, or what stands for several events of one scope.
    relation: the relation asked for. None: the only one that those events declare. What was
      released without protection costs the same under all. Its relation is ignored if anything else
      is there.
    observer: the observer asked for. None: the only one there is.
    adaptive: whether events may have been chosen from what earlier ones released. The sum of their
      costs is then not a guarantee by itself.

  Raises:
    ValueError: if None leaves a choice, the observer saw nothing or the events protect different
      units. Also if events were chosen adaptively, and `adaptive` is false.
  """
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
  rounds, releases, others = split(seen.items())
  # Rounds without protection declare a relation as well, but cost the same under each.
  free = {event for event, _ in rounds if not protects(event.query)}
  named = _choose("relation", Relation, relation, {e.relation for e in seen.keys() - free or seen})
  known = chosen == Observer.SERVER or bool(releases)
  several = [event for event, _ in others]
  return Seen(dict(rounds), dict(releases), several, Relation(named), known)


def refuse_adaptive(events: Iterable[Any]) -> None:
  """Refuses adaptive events: the sum of their costs is not a guarantee."""
  if number := sum(int(event.adaptive) for event in events):
    raise ValueError(
      "Expected events whose sampling and noise were fixed before the run, got "
      f"{number} kinds chosen from earlier releases, which composition theorems do not cover; "
      "admit each by jdp.accounting.renyi_filter or gaussian_filter, whose budget is the "
      "guarantee, or ask jdp.accounting.odometer."
    )


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
