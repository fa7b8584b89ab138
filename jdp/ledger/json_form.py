"""Events as JSON data, one by one or many at once.

Many events that differ in numbers alone are one form: the JSON data of the first of them, with a
column of values, `{"column": [...]}`, in the place of each number that differs.
"""

import dataclasses
import functools
import itertools
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jdp import guarantees
from jdp.events import EVENT_TYPES, Event

_LONGEST = 1000  # rows in one group, so that no line of a file grows without limit
_GUARANTEES = {kind.__name__: kind for kind in typing.get_args(guarantees.AnyGuarantee)}


def to_json(value: Any) -> Any:
  """An event as JSON data.

  A dataclass becomes its fields and its type's name. A tuple becomes a list.
  """
  if isinstance(value, tuple):
    return [to_json(v) for v in value]
  if not dataclasses.is_dataclass(value):
    return value
  fields = {name: to_json(getattr(value, name)) for name in _compared(type(value))}  # type: ignore[arg-type]
  # Fields that take no part in equality are left out, except the mark of an exposed key.
  exposed = {"key_exposed": True} if getattr(value, "key_exposed", False) else {}
  return {"type": type(value).__name__, **fields, **exposed}


@functools.cache
def _compared(kind: Any) -> tuple[str, ...]:
  """The names of the fields that take part in equality."""
  return tuple(field.name for field in dataclasses.fields(kind) if field.compare)


def from_json(data: Any) -> Any:
  """The event that `to_json` described, or a list of those of a form. Their checks run again."""
  if isinstance(data, list):
    return _make(lambda **parts: tuple(parts.values()), {str(n): v for n, v in enumerate(data)})
  if not isinstance(data, dict):
    return data
  if "column" in data:
    return _Column(data["column"])
  kind: Any = EVENT_TYPES.get(data["type"]) or _GUARANTEES.get(data["type"])
  if kind is None:
    raise ValueError(f"Expected an event type this version of jdp knows, got {data['type']!r}.")
  return _make(kind, {name: value for name, value in data.items() if name != "type"})


class _Column(list):
  """The values of many events in one place."""


def _make(kind: Callable[..., Any], data: Mapping[str, Any]) -> Any:
  """What `kind` makes of the fields, or the list of what it makes of each row of the columns."""
  fields = {name: from_json(value) for name, value in data.items()}
  columns = {name: value for name, value in fields.items() if isinstance(value, _Column)}
  if not columns:
    return kind(**fields)
  # Only what differs is made anew, so that many events share what they have in common.
  return _Column(
    kind(**{**fields, **dict(zip(columns, row, strict=True))})
    for row in zip(*columns.values(), strict=True)
  )


def to_forms(rows: Iterable[Sequence[Event]]) -> Iterator[tuple[int, list[Any]]]:
  """(number of rows, the form of each event in them) for successive rows that differ in numbers.

  Args:
    rows: each is some events, such as those of a round.
  """
  described = ([to_json(event) for event in row] for row in rows)
  split = ((data, *_without_numbers(data)) for data in described)
  for _, group in itertools.groupby(split, key=lambda row: row[1]):
    while rest := list(itertools.islice(group, _LONGEST)):
      columns = map(_column, zip(*(numbers for *_, numbers in rest), strict=True))
      yield len(rest), _with_columns(rest[0][0], columns)


def from_forms(size: int, forms: Sequence[Any]) -> list[tuple[Event, ...]]:
  """The rows that `to_forms` described.

  Equal rows are one object.

  Raises:
    ValueError: if a column has not `size` values.
  """
  events = [from_json(form) for form in forms]
  if not any(isinstance(event, _Column) for event in events):
    return [tuple(events)] * size
  columns = (e if isinstance(e, _Column) else [e] * size for e in events)
  return list(zip(*columns, strict=True))


def _without_numbers(data: Any) -> tuple[Any, list[Any]]:
  """JSON data in a form that can be compared, and the numbers (and truth values) taken out."""
  numbers: list[Any] = []

  def walk(part: Any) -> Any:
    if isinstance(part, dict):
      return tuple((name, walk(value)) for name, value in part.items())
    if isinstance(part, list):
      return tuple(map(walk, part))
    if isinstance(part, str):
      return part
    numbers.append(part)
    return None

  return walk(data), numbers


def _column(values: Sequence[Any]) -> Any:
  """A column, or the value itself if all are the same. Minus zero is not zero, nor is True one."""
  return {"column": list(values)} if len(set(map(repr, values))) > 1 else values[0]


def _with_columns(data: Any, columns: Iterator[Any]) -> Any:
  """JSON data with the columns in the places of its numbers."""
  if isinstance(data, dict):
    return {name: _with_columns(value, columns) for name, value in data.items()}
  if isinstance(data, list):
    return [_with_columns(value, columns) for value in data]
  return data if isinstance(data, str) else next(columns)
