"""Events as JSON data, one by one or many at once.

Many events that differ only in numbers are one form: the JSON data of the first event, with a
column of values, `{"column": [...]}`, in place of each number that differs.
"""

import collections
import dataclasses
import functools
import itertools
import operator
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jdp import _validate, guarantees
from jdp.events import (
  CorrelatedGaussianSum,
  DistributedCorrelatedSum,
  FixedSizeSampling,
  RandomAllocation,
)
from jdp.events.base import EVENT_TYPES, MARKS
from jdp.events.rounds import Event

# The most rows in one group. It limits the length of a file's line, and what is read from it.
_LONGEST = 1000
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
  # Fields that do not count in equality are left out, except marks.
  return {"type": type(value).__name__, **fields, **dict.fromkeys(_marks(value), True)}


def _marks(value: Any) -> tuple[str, ...]:
  """The names of the marks that an event has."""
  return tuple(name for name in MARKS if getattr(value, name, False))


@functools.cache
def _compared(kind: Any) -> tuple[str, ...]:
  """The names of the fields that count in equality."""
  return tuple(field.name for field in dataclasses.fields(kind) if field.compare)


def from_json(data: Any) -> Any:
  """The event that `to_json` described, or the list of events of a form. Their checks run again."""
  if isinstance(data, list):
    return _make(lambda **parts: tuple(parts.values()), {str(n): v for n, v in enumerate(data)})
  if not isinstance(data, dict):
    return data
  if "column" in data:
    return _Column(_checked_numbers(data["column"]))
  kind: Any = EVENT_TYPES.get(data["type"]) or _GUARANTEES.get(data["type"])
  if kind is None:
    raise ValueError(f"Expected an event type this version of jdp knows, got {data['type']!r}.")
  return _make(kind, {name: value for name, value in data.items() if name != "type"})


def _checked_numbers(column: Sequence[Any]) -> Sequence[Any]:
  """The column. Refuses values that `to_forms` never puts into columns."""
  if others := set(map(type, column)) - {int, float, bool, type(None)}:
    names = ", ".join(sorted(kind.__name__ for kind in others))
    raise ValueError(f"Expected a column of numbers, got {names}.")
  return column


class _Column(list):
  """The values of many events in one place."""


def _make(kind: Callable[..., Any], data: Mapping[str, Any]) -> Any:
  """The object that `kind` makes of the fields, or a list with one for each row of the columns."""
  fields = {name: from_json(value) for name, value in data.items()}
  columns = {name: value for name, value in fields.items() if isinstance(value, _Column)}
  if not columns:
    return kind(**fields)
  # Only the fields that differ are made anew, so that many events share the others.
  rows = list(zip(*columns.values(), strict=True))
  if kind in _SEPARATELY_CHECKED and all(map(_is_plain, columns.values())):
    extremes = {row for column in columns.values() for row in _extremes(column)}
    made = {n: kind(**{**fields, **dict(zip(columns, rows[n], strict=True))}) for n in extremes}
    # If the constructor converted a value, it has to make all the events.
    if all(getattr(made[n], name) is columns[name][n] for n in made for name in columns):
      return _copies(made[min(made)], columns)
  return _Column(kind(**{**fields, **dict(zip(columns, row, strict=True))}) for row in rows)


# Types that check each number by itself, and only that it lies in an interval. If a column's least
# and largest numbers are accepted, so are those between.
_SEPARATELY_CHECKED = {*EVENT_TYPES.values(), *_GUARANTEES.values()} - {
  FixedSizeSampling,
  RandomAllocation,
  CorrelatedGaussianSum,
  DistributedCorrelatedSum,
}


def _is_plain(column: _Column) -> bool:
  """Whether the values are numbers of one type, none of them NaN, or events of one type."""
  kinds = set(map(type, column))
  # Only NaN differs from itself.
  return len(kinds) == 1 and (kinds <= _SEPARATELY_CHECKED or all(map(operator.eq, column, column)))


def _extremes(column: _Column) -> set[int]:
  """The places of a column's least and largest numbers. Any place for events: they are checked."""
  if not isinstance(column[0], int | float):
    return {0}
  return {column.index(min(column)), column.index(max(column))}


def _copies(like: Any, columns: Mapping[str, _Column]) -> _Column:
  """Copies of an event or a guarantee, with the columns' values in the fields that they name.

  They are made without the constructor, which would take most of the time of reading a long ledger.
  """
  size, kind = len(next(iter(columns.values()))), type(like)
  # A default value is an attribute of the class, so copies need not hold it.
  set_apart = {n: v for n, v in vars(like).items() if getattr(kind, n, ...) is not v}
  fields = {name: itertools.repeat(value) for name, value in set_apart.items()}
  copies = _Column(map(object.__new__, itertools.repeat(kind, size)))
  for name, column in {**fields, **columns}.items():
    # `map` calls the setter of each copy in C, and the empty deque discards the results.
    collections.deque(map(object.__setattr__, copies, itertools.repeat(name), column), maxlen=0)
  return copies


def to_forms(rows: Iterable[Sequence[Event]]) -> Iterator[tuple[int, list[Any]]]:
  """(number of rows, the form of each event in them) for successive rows that differ in numbers.

  Args:
    rows: each holds some events, such as those of a round.
  """

  def split(row: Sequence[Event]) -> tuple[Any, Sequence[Event], list[Any]]:
    numbers: list[Any] = []
    return _without_numbers(tuple(row), numbers), row, numbers

  for _, group in itertools.groupby(map(split, rows), key=operator.itemgetter(0)):
    while rest := list(itertools.islice(group, _LONGEST)):
      columns = map(_column, zip(*(numbers for *_, numbers in rest), strict=True))
      yield len(rest), [_with_columns(to_json(event), columns) for event in rest[0][1]]


def from_forms(size: int, forms: Sequence[Any]) -> list[tuple[Event, ...]]:
  """The rows that `to_forms` described.

  Equal rows are one object.

  Raises:
    ValueError: if a column does not have `size` values, or `to_forms` never makes this size.
  """
  _validate.integer(1, size=size)
  _validate.in_range(1, _LONGEST, size=size)
  events = [from_json(form) for form in forms]
  if not any(isinstance(event, _Column) for event in events):
    return [tuple(events)] * size
  columns = (e if isinstance(e, _Column) else [e] * size for e in events)
  return list(zip(*columns, strict=True))


def _without_numbers(value: Any, numbers: list[Any]) -> Any:
  """An event's compared part. Its numbers (and truth values) are moved to `numbers`."""
  if isinstance(value, tuple):
    return tuple(_without_numbers(part, numbers) for part in value)
  if isinstance(value, str):
    return value
  if not dataclasses.is_dataclass(value):
    numbers.append(value)
    return None
  kind = type(value)
  parts = [
    _without_numbers(getattr(value, name), numbers)
    for name in _compared(kind)  # type: ignore[arg-type]
  ]
  marks = _marks(value)
  numbers += [True] * len(marks)
  return (kind, marks, *parts)


def _column(values: Sequence[Any]) -> Any:
  """A column, or the value itself if all are the same. -0.0 differs from 0.0, and True from 1."""
  return {"column": list(values)} if len(set(map(repr, values))) > 1 else values[0]


def _with_columns(data: Any, columns: Iterator[Any]) -> Any:
  """JSON data with the columns in place of its numbers."""
  if isinstance(data, dict):
    return {name: _with_columns(value, columns) for name, value in data.items()}
  if isinstance(data, list):
    return [_with_columns(value, columns) for value in data]
  return data if isinstance(data, str) else next(columns)
