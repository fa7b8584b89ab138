"""The registry of analyses: what is known of an event is found here by its type, and nowhere else.

jdp's own events are registered by the same calls as events from outside, each in the file that
defines its analysis (`jdp.accounting.queries`, `jdp.accounting.samplings`). An event that costs as
much as a known event has a rule instead. Everything that asks what a ledger holds looks at the
known event in its place (`known_entries`).
"""

import dataclasses
import math
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from jdp import events
from jdp._arguments import checked
from jdp.accounting.analysis import Composed, QueryAnalysis, SamplingAnalysis
from jdp.events.queries import (
  QueryEvent,
  query_event_types,
  registered_event_types,
  sampling_event_types,
)
from jdp.events.sampling import SamplingEvent
from jdp.events.whole_runs import WholeRunEvent

E = TypeVar("E")
_QUERIES: dict[type, QueryAnalysis] = {}
_SAMPLINGS: dict[type, SamplingAnalysis] = {}
_RULES: dict[type, Callable[[Any], Any]] = {}
_UNKNOWN = QueryAnalysis()
_READ_BY_LEDGERS = {
  "starts_epoch": math.nan,
  "position": math.nan,
  "index": math.nan,
  "max_participations": None,
}
"""Fields by which ledgers are added and sliced, and what a missing field counts as (nan: none)."""


@checked
def charge_as(event_type: type, rule: Callable[[Any], Any]) -> None:
  """Makes ledgers that hold a registered event accountable: it costs what another event does.

  This is the public call for code outside the package, for events of queries and of samplings. What
  was done must be what the other event's docstring says, or a post-processing of that.

  Args:
    event_type: made by `jdp.events.register`, or `register_sampling`.
    rule: event -> the event that it costs as much as, of the same kind (query or sampling), whose
      type has an analysis or a rule. It must depend on the event alone, and change nothing. If the
      result has `starts_epoch`, `position`, `index` or a `max_participations`, the event has equal
      fields: ledgers are added and sliced by what their own events say.

  Raises:
    ValueError: if the type was not registered, or has an analysis or a rule.

  >>> from jdp import accounting, events, ledger
  >>> charge_as(events.GaussianSum, lambda event: event)
  Traceback (most recent call last):
  ...
  ValueError: Expected an event type that was registered from outside, got GaussianSum; make it \
one by jdp.events.register or register_sampling.
  """
  if event_type not in registered_event_types():
    calls = "jdp.events.register or register_sampling"
    raise _not_of("an event type that was registered from outside", event_type, calls)
  _check_new(event_type, "an event type")
  _RULES[event_type] = rule


@checked
def register_query(event_type: type, analysis: QueryAnalysis) -> None:
  """Makes ledgers that hold a query's event accountable, by mathematics of its own.

  This is the public call for code outside the package. If the event costs as much as a known event,
  `charge_as` says so in a line.

  Args:
    event_type: the type of a query's event, made by `jdp.events.register`.
    analysis: what one release costs, and whether a sample may hide who is in it.

  Raises:
    ValueError: if the type is not a registered query event, or has an analysis or a rule.

  >>> from jdp.events import GaussianSum
  >>> register_query(GaussianSum, QueryAnalysis(lambda event, relation, declared: None))
  Traceback (most recent call last):
  ...
  ValueError: Expected a query event without an analysis, got GaussianSum; make it a new event.
  """
  if event_type not in _query_types():
    raise _not_of("the type of a query's event", event_type, "jdp.events.register")
  _check_new(event_type, "a query event")
  if not (analysis.pair or analysis.parts or analysis.composed):
    raise ValueError(
      f"Expected an analysis with a pair for {event_type.__name__}, got none; without one it costs "
      "nothing that could be told."
    )
  _QUERIES[event_type] = analysis


@checked
def register_sampling(event_type: type, analysis: SamplingAnalysis) -> None:
  """Makes ledgers that hold a sampling's event accountable, by mathematics of its own.

  As `register_query`, for an event that was made by `jdp.events.register_sampling`.

  >>> from jdp.events import PoissonSampling
  >>> register_sampling(PoissonSampling, SamplingAnalysis())
  Traceback (most recent call last):
  ...
  ValueError: Expected a sampling event without an analysis, got PoissonSampling; make it a new \
event.
  """
  if event_type not in sampling_event_types():
    raise _not_of("the type of a sampling's event", event_type, "jdp.events.register_sampling")
  _check_new(event_type, "a sampling event")
  _SAMPLINGS[event_type] = analysis


def has_analysis(event_type: type) -> bool:
  """Whether ledgers that hold events of this type are accountable."""
  return any(event_type in known for known in (_QUERIES, _SAMPLINGS, _RULES))


def _not_of(expected: str, event_type: type, calls: str) -> ValueError:
  return ValueError(f"Expected {expected}, got {event_type.__name__}; make it one by {calls}.")


def _check_new(event_type: type, what: str) -> None:
  if has_analysis(event_type):
    raise ValueError(
      f"Expected {what} without an analysis, got {event_type.__name__}; make it a new event."
    )


def query_analysis(query: QueryEvent) -> QueryAnalysis:
  """The analysis of a query's event.

  Raises:
    ValueError: if it has none.

  >>> from jdp.events import GaussianSum, NonPrivate
  >>> [query_analysis(query).protects for query in (GaussianSum(1.0, 2.0), NonPrivate())]
  [True, False]
  """
  if (found := _QUERIES.get(type(query))) is None:  # its exact type: a subclass may differ
    raise ValueError(
      f"Expected a query that has an analysis, got {type(query).__name__}; record it as a "
      "PureRelease or ConcentratedRelease of what it costs, or as NonPrivate."
    )
  return found


def sampling_analysis(sampling: SamplingEvent) -> SamplingAnalysis:
  """The analysis of a sampling's event.

  Raises:
    ValueError: if it has none.

  >>> from jdp.events import PoissonSampling
  >>> event = PoissonSampling(0.01)
  >>> found = sampling_analysis(event)
  >>> found.inclusion(event), found.fresh_coins
  (0.01, True)
  """
  if (found := _SAMPLINGS.get(type(sampling))) is None:
    raise ValueError(
      f"Expected a sampling that has an analysis, got {type(sampling).__name__}; record the round "
      "as a PoissonSampling of probability 1, which amplifies nothing."
    )
  return found


def parts_of(query: QueryEvent) -> Iterator[tuple[QueryEvent, QueryAnalysis]]:
  """The releases that a query's event stands for, each with what is known of it, if anything is."""
  analysis = _QUERIES.get(type(query), _UNKNOWN)
  if analysis.parts is None:
    yield query, analysis
  else:
    for part in direct_parts(query, analysis):
      yield from parts_of(part)


def direct_parts(query: QueryEvent, analysis: QueryAnalysis) -> tuple[QueryEvent, ...]:
  """The events that a query of several releases consists of.

  Raises:
    ValueError: if there is none.
  """
  found = tuple(analysis.parts(query)) if analysis.parts else ()
  if not found:
    raise charges_nothing(query, "no part", "register_query")
  return found


def charges_nothing(event: QueryEvent | SamplingEvent, got: str, call: str) -> ValueError:
  """The error about an analysis by which a round would be free."""
  return ValueError(
    f"Expected the analysis of {type(event).__name__} to charge a record with something, got "
    f"{got}; mend what {call} was called with."
  )


def protects(query: QueryEvent) -> bool:
  """Whether a query's release hides anything, as far as is known."""
  return _QUERIES.get(type(query), _UNKNOWN).protects


def composed_by(query: QueryEvent) -> Composed | None:
  """The function that charges rounds of the query together; None if they are charged one by one.

  Raises:
    ValueError: if it does not charge all parts of a group.
  """
  found = [(part, one) for part, one in parts_of(query) if one.composed]
  for part, one in found:
    of_all = one.composes_groups and one.composed is found[0][1].composed
    if part is not query and not of_all:
      raise ValueError(
        f"Expected {type(part).__name__} to be its round's only release, got "
        f"{type(query).__name__}; give it a round of its own."
      )
  return found[0][1].composed if found else None


def num_registered() -> int:
  """How many analyses and rules there are. It only grows, so caches compare it."""
  return len(_QUERIES) + len(_SAMPLINGS) + len(_RULES)


def known_entries(entries: Iterable[tuple[E, int]]) -> Iterable[tuple[E, int]]:
  """Counted events, each replaced by the known event that it costs as much as."""
  return ((known_event(event), count) for event, count in entries) if _RULES else entries


def known_event(event: Any) -> Any:
  """The known event that an event costs as much as; so too for the events that it holds."""
  if not _RULES:
    return event
  event = _applied(event) if type(event) in _RULES else event
  held: dict[str, Any] = {}
  for field in dataclasses.fields(event):
    value = getattr(event, field.name)
    several = value if isinstance(value, tuple) else (value,)
    if any(isinstance(inner, events.EventBase) for inner in several):
      known = tuple(map(known_event, several))
      if any(new is not old for new, old in zip(known, several, strict=True)):
        held[field.name] = known if isinstance(value, tuple) else known[0]
  return dataclasses.replace(event, **held) if held else event


def _applied(event: Any) -> Any:
  """What the rules make of an event, one after another."""
  samplings = sampling_event_types()
  types = samplings if type(event) in samplings else _query_types()
  tried: set[type] = set()
  while (kind := type(event)) in _RULES:
    found = _RULES[kind](event)
    tried.add(kind)
    if type(found) not in types or type(found) in tried:
      raise ValueError(
        f"Expected the rule of {kind.__name__} to give an event of the same sort that is "
        f"accounted for, got {type(found).__name__}; mend what charge_as was called with."
      )
    _check_fields_of_ledgers(event, found)
    event = found
  return event


def _check_fields_of_ledgers(event: Any, known: Any) -> None:
  """Refuses an event that ledgers would add or slice in another way than the known one."""
  capped = getattr(known, "max_participations", None) is not None
  for name, missing in _READ_BY_LEDGERS.items():
    value = getattr(known, name, missing)
    own = getattr(event, name) if name in event.__dataclass_fields__ else missing
    unlike = hasattr(known, name) and value != missing and own != value
    uncapped = name == "position" and capped and hasattr(event, name) and not hasattr(known, name)
    if unlike or uncapped:
      kinds = type(event).__name__, type(known).__name__
      raise ValueError(
        f"Expected {kinds[0]} to have the field {name} of the {kinds[1]} that it is charged as, "
        f"got {getattr(event, name, 'none')} for {getattr(known, name, 'none')}; sums and slices "
        "of ledgers read it: make them alike, or mend what charge_as was called with."
      )


def _query_types() -> tuple[type, ...]:
  """The types of what a query, or a whole run, released."""
  return (*query_event_types(), *typing.get_args(WholeRunEvent))
