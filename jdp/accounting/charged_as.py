"""Events of other packages that cost what a known event does.

`charge_as` says by a rule which one. Everything that asks what a ledger holds looks at the known
event in its place: its cost, its amplification, its groups, which data attain it, its exports and
its refusals. The place where that happens is `known_entries`.
"""

import dataclasses
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from jdp._arguments import checked
from jdp.events import (
  BestOfRuns,
  GroupedSums,
  Round,
  WholeRunEvent,
  query_event_types,
  registered_event_types,
  sampling_event_types,
)

E = TypeVar("E")
_RULES: dict[type, Callable[[Any], Any]] = {}


@checked
def charge_as(event_type: type, rule: Callable[[Any], Any]) -> None:
  """Makes ledgers that hold a registered event accountable: it costs what another event does.

  This is the public call for code outside the package, for events of queries and of samplings. What
  was done must be what the other event's docstring says, or a post-processing of that.

  Args:
    event_type: made by `jdp.events.register`, or `register_sampling`.
    rule: event -> the event that it costs as much as, of a query or a sampling as it is. That one's
      type has an analysis, or a rule. Ask nothing else in it, and change nothing.

  Raises:
    ValueError: if the type was not registered, or has an analysis or a rule.

  >>> from jdp import accounting, events, ledger
  >>> charge_as(events.GaussianSum, lambda event: event)
  Traceback (most recent call last):
  ...
  ValueError: Expected an event type that was registered from outside, got GaussianSum; make it \
one by jdp.events.register or register_sampling.
  """
  from jdp.accounting.analysis import has_sampling_analysis
  from jdp.accounting.dominating_pairs import has_analysis

  if event_type not in registered_event_types():
    raise ValueError(
      f"Expected an event type that was registered from outside, got {event_type.__name__}; make "
      "it one by jdp.events.register or register_sampling."
    )
  if has_analysis(event_type) or has_sampling_analysis(event_type):
    raise ValueError(
      f"Expected an event type without an analysis, got {event_type.__name__}; make it a new event."
    )
  _RULES[event_type] = rule


def has_rule(event_type: type) -> bool:
  """Whether events of this type cost what others do."""
  return event_type in _RULES


def num_rules() -> int:
  """How many rules there are. It grows."""
  return len(_RULES)


def known_entries(entries: Iterable[tuple[E, int]]) -> Iterable[tuple[E, int]]:
  """Counted events, each as the one that it costs as much as."""
  return ((known_event(event), count) for event, count in entries) if _RULES else entries


def known_event(event: Any) -> Any:
  """A ledger's event as the one that it costs as much as."""
  if not (_RULES and isinstance(event, Round)):
    return event
  sampling, query = known_sampling(event.sampling), known_query(event.query)
  if sampling is event.sampling and query is event.query:
    return event
  return dataclasses.replace(event, sampling=sampling, query=query)


def known_sampling(sampling: Any) -> Any:
  """A sampling's event as the one that it costs as much as."""
  return _applied(sampling, sampling_event_types())


def known_query(query: Any) -> Any:
  """A query's event as the one that it costs as much as, its parts too."""
  if not _RULES:
    return query
  query = _applied(query, (*query_event_types(), *typing.get_args(WholeRunEvent)))
  if type(query) is GroupedSums:
    return _with(query, "parts", tuple(map(known_query, query.parts)))
  if type(query) is BestOfRuns:
    return _with(query, "rounds", tuple(map(known_event, query.rounds)))
  return query


def _applied(event: Any, types: tuple[type, ...]) -> Any:
  """What the rules make of an event, one after another."""
  tried: set[type] = set()
  while (kind := type(event)) in _RULES:
    found = _RULES[kind](event)
    tried.add(kind)
    if type(found) not in types or type(found) in tried:
      raise ValueError(
        f"Expected the rule of {kind.__name__} to give an event of the same sort that is "
        f"accounted for, got {type(found).__name__}; mend what charge_as was called with."
      )
    event = found
  return event


def _with(event: Any, name: str, values: tuple[Any, ...]) -> Any:
  """The event with other values of a field, or itself if they are what it has."""
  same = all(a is b for a, b in zip(values, getattr(event, name), strict=True))
  return event if same else dataclasses.replace(event, **{name: values})
