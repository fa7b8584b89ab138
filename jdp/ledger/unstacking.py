"""Events as a jitted step or a scan returns them, on the host."""

import itertools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from jdp.events.base import EVENT_TYPES, NO_NUMBER
from jdp.events.rounds import Event


def unstack(event: Event) -> list[Event]:
  """The events of one jitted step or scan, on the host with Python floats.

  Args:
    event: The event. Its arrays are scalars, or have one leading axis of rounds, of equal length.

  Raises:
    TypeError: if it is not an event.
    ValueError: if a value is invalid, or if there are several axes. Also if the numbers of rounds
      (where there are any) do not increase along an axis. Such events come from several runs
      (`vmap` over seeds), each of which has a ledger.
  """
  if type(event) not in EVENT_TYPES.values():
    raise TypeError(f"Expected an event of jdp.events, got {type(event).__name__}.")
  leaves, treedef = jax.tree.flatten(event)
  events = _events(treedef, zip(*_rows(leaves), strict=True))
  numbers = [e.number for e in events if e.number != NO_NUMBER]
  for before, number in itertools.pairwise(numbers):
    if number <= before:
      raise ValueError(
        f"Expected numbers of rounds to increase, got {number} after {before}; if these are events "
        "of several runs, give each run a ledger of its own, with jax.tree.map(lambda x: x[run], "
        "events); if they are of one run, keep one event for each number."
      )
  return events


def _rows(leaves: Iterable[ArrayLike]) -> list[list[Any]]:
  """Each leaf as a list of its values in each round."""
  arrays = [np.asarray(leaf) for leaf in leaves]
  shapes = {array.shape for array in arrays} - {()}
  if len(shapes) > 1:
    raise ValueError(
      f"Expected one axis, of rounds, in all arrays of an event, got shapes {sorted(shapes)}."
    )
  shape = shapes.pop() if shapes else ()
  if len(shape) > 1:
    raise ValueError(
      f"Expected event arrays with at most one axis, of rounds, got shape {shape}; after a scan of "
      "scans, make one axis with jax.tree.map(lambda x: x.reshape(-1), events); after runs side by "
      "side (vmap), give each run a ledger of its own."
    )
  count = shape[0] if shape else 1
  return [array.tolist() if array.shape else [array.tolist()] * count for array in arrays]


def _events(treedef: Any, rows: Iterable[tuple[Any, ...]]) -> list[Any]:
  """An event for each row of leaves.

  Rows that differ only in the event's number, which is its first leaf, are checked once. Their
  events share everything else.
  """
  alike: dict[tuple[Any, ...], Event] = {}

  def made(row: tuple[Any, ...]) -> Event:
    number, *others = row
    # The constructor may number an event that has no number, so these are made separately.
    key = (number == NO_NUMBER, *others)
    if key in alike:
      return _numbered(alike[key], number)
    alike[key] = event = _rebuild(jax.tree.unflatten(treedef, row))
    return event

  return [made(row) for row in rows]


def _numbered(event: Event, number: int) -> Event:
  """The event with another number, without calling the constructor: the rest was checked."""
  copied = object.__new__(type(event))
  vars(copied).update(vars(event), number=number)
  return copied


def _rebuild(event: Any) -> Any:
  """Makes an event again from concrete values, inner events first, so that its checks run."""
  if isinstance(event, tuple):
    return tuple(map(_rebuild, event))
  # The exact type, not isinstance: anything but a registered event type stays as it is.
  if EVENT_TYPES.get(type(event).__name__) is not type(event):
    return event
  return type(event)(**{name: _rebuild(value) for name, value in vars(event).items()})
