"""Many events that differ in numbers are written as columns, and read as if one by one."""

import copy
import dataclasses
import itertools

import numpy as np
import pytest

from jdp.events import EventBase, GaussianSum, PoissonSampling, Round
from jdp.events.base import EVENT_TYPES
from jdp.ledger.json_form import _SEPARATELY_CHECKED, from_forms, from_json, to_forms, to_json
from tests.helpers.ledgers.example_events import EVENTS

BAD = [-1, -0.5, 0, 0.0, 0.5, 1e308, float("inf"), float("nan"), None, True]

KINDS = _SEPARATELY_CHECKED | set(EVENT_TYPES.values())
NUMBERS = {
  int: [*range(16), 100, 10**6, 2**31 - 1],
  float: [
    *(0.0, 1e-12, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 50.0, 1e9),
    float("inf"),
  ],
}


def held_by(value, kind):
  """The events of a type in events that hold others."""
  if isinstance(value, list | tuple):
    return [event for inner in value for event in held_by(inner, kind)]
  if not dataclasses.is_dataclass(value):
    return []
  inner = [getattr(value, field.name) for field in dataclasses.fields(value)]
  return [*([value] if type(value) is kind else []), *held_by(inner, kind)]


def numbers_in(data, path=()):
  """The paths to the numbers in JSON data."""
  if isinstance(data, dict):
    return [p for name, value in data.items() for p in numbers_in(value, (*path, name))]
  if isinstance(data, list):
    return [p for n, value in enumerate(data) for p in numbers_in(value, (*path, n))]
  return [] if isinstance(data, str) else [path]


def put(data, path, value):
  """A copy of the data with another value at the path."""
  data = copy.deepcopy(data)
  inner = data
  for step in path[:-1]:
    inner = inner[step]
  inner[path[-1]] = value
  return data


def made(make):
  """What is made, as it prints, or that it is refused."""
  try:
    return repr(make())
  except (TypeError, ValueError):
    return "refused"


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: str(to_json(e))[:60])
def test_a_column_is_checked_as_its_events_are(event):
  """Whatever stands in the middle of a column is refused or taken as it is in an event alone."""
  data = to_json(event)
  for path in numbers_in(data):
    value = data
    for step in path:
      value = value[step]
    for other in BAD:
      values = [value, other, value]
      column = made(lambda p=path, v=values: from_forms(3, [put(data, p, {"column": v})]))
      alone = [made(lambda p=path, v=one: (from_json(put(data, p, v)),)) for one in values]
      expected = "refused" if "refused" in alone else f"[{', '.join(alone)}]"
      assert column == expected, (path, other)


@pytest.mark.parametrize("kind", sorted(KINDS, key=lambda kind: kind.__name__))
def test_no_two_fields_are_checked_together_unless_all_rows_are_made(kind):
  """What a constructor accepts in each of two fields alone, it accepts in both, and else not."""

  def accepts(values):
    return made(lambda: kind(**values)) != "refused"

  together = False
  for event in held_by(EVENTS, kind):
    values = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    numbers = [name for name, value in values.items() if type(value) in (int, float)]
    taken = {
      name: [x for x in NUMBERS[type(values[name])] if accepts({**values, name: x})]
      for name in numbers
    }
    for a, b in itertools.combinations(numbers, 2):
      pairs = itertools.product(taken[a], taken[b])
      together = together or not all(accepts({**values, a: x, b: y}) for x, y in pairs)
  assert together == (kind not in _SEPARATELY_CHECKED)


def test_columns_and_rows_are_inverse():
  rng = np.random.default_rng(0)
  rows = []
  for number in rng.integers(0, len(EVENTS), 300).tolist():
    event = EVENTS[number]
    if isinstance(event, Round) and isinstance(event.query, GaussianSum):
      query = dataclasses.replace(event.query, stddev=float(rng.choice([0.0, 1.0, 1e-300, 0.7])))
      event = dataclasses.replace(event, query=query, key_exposed=bool(rng.integers(2)))
    rows += [(event, *EVENTS[: number % 3])] * int(rng.integers(1, 4))
  groups = list(to_forms(rows))
  back = [row for size, forms in groups for row in from_forms(size, forms)]
  assert repr(back) == repr(rows)
  assert [to_json(event) for row in back for event in row] == [
    to_json(event) for row in rows for event in row
  ]
  assert len(groups) < len(rows)


@pytest.mark.parametrize("value", ["x", [1.0], {"type": "NonPrivate"}])
def test_a_column_of_anything_but_numbers_is_refused(value):
  with pytest.raises(ValueError, match="Expected a column of numbers, got"):
    from_json(put(to_json(EVENTS[0]), ("query", "stddev"), {"column": [1.0, value]}))


@pytest.mark.parametrize("columns", [([1.0, 2.0], [1.0]), ([1.0], [1.0]), ([1.0, 2.0, 3.0],) * 2])
def test_columns_of_other_lengths_are_refused(columns):
  form = to_json(Round(PoissonSampling(0.1), GaussianSum(1.0, 1.0)))
  form["query"].update(clip_norm={"column": columns[0]}, stddev={"column": columns[1]})
  with pytest.raises(ValueError, match="zip"):
    from_forms(2, [form, form["query"]] if len(columns[0]) == 2 else [form, to_json(EVENTS[2])])


def test_an_event_of_ones_own_is_made_by_its_constructor(monkeypatch):
  """It may look at several numbers at once, or compute others."""
  from jdp import events

  # Before the class is made, so that undoing it leaves no such event to other tests.
  monkeypatch.setitem(EVENT_TYPES, "Ratio", object)

  @events.base.event
  class Ratio(EventBase):
    a: float
    b: float

    def __post_init__(self):
      if not self.a < self.b:
        raise ValueError("Expected a < b.")

  data = {"type": "Ratio", "a": {"column": [1.0, 2.0]}, "b": {"column": [3.0, 1.5]}}
  with pytest.raises(ValueError, match="Expected a < b"):
    from_forms(2, [data])
