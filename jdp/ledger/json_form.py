"""Events as JSON data."""

import dataclasses
import typing
from collections.abc import Iterable
from typing import Any

from jdp import guarantees
from jdp.events import EVENT_TYPES, Event


def to_json(value: Any) -> Any:
  """An event as JSON data.

  A dataclass becomes its fields and its type's name. A tuple becomes a list.
  """
  if isinstance(value, tuple):
    return [to_json(v) for v in value]
  if not dataclasses.is_dataclass(value):
    return value
  fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare}
  # Fields that take no part in equality are left out, except the mark of an exposed key.
  exposed = {"key_exposed": True} if getattr(value, "key_exposed", False) else {}
  return {"type": type(value).__name__, **fields, **exposed}


def from_json(data: Any) -> Any:
  """The event that `to_json` described. Its checks run again."""
  if isinstance(data, list):
    return tuple(map(from_json, data))
  if not isinstance(data, dict):
    return data
  fields = {name: from_json(value) for name, value in data.items() if name != "type"}
  kind: Any = EVENT_TYPES.get(data["type"]) or _GUARANTEES.get(data["type"])
  if kind is None:
    raise ValueError(f"Expected an event type this version of jdp knows, got {data['type']!r}.")
  return kind(**fields)


_GUARANTEES = {kind.__name__: kind for kind in typing.get_args(guarantees.AnyGuarantee)}


def entries_to_json(entries: Iterable[tuple[Event, int]]) -> list[list[Any]]:
  """Counted events as JSON data."""
  return [[to_json(event), count] for event, count in entries]


def entries_from_json(data: Iterable[Any]) -> list[tuple[Event, int]]:
  """The counted events that `entries_to_json` described."""
  return [(from_json(event), count) for event, count in data]
