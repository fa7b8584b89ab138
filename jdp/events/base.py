"""What all events have in common, and how a class becomes one."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np
from jax.typing import ArrayLike

from jdp import _validate
from jdp._arguments import convert_fields

EVENT_TYPES: dict[str, type] = {}
"""Every event type, by the name that ledger files use for it."""

NO_NUMBER = np.int32(-1)
"""The number of an event to which no number was given."""

_ALWAYS_LEAVES = ("number", "index")  # these tell the rounds of a scan apart

MARKS = ("key_exposed", "adaptive")
"""Fields that do not count in equality, but that ledgers and their files keep."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EventBase:
  """The fields that every event has in addition to what happened.

  They do not count in equality: rounds that cost the same are equal. An event has the marks
  (`key_exposed`, `adaptive`) of every event that it holds.

  Attributes:
    number: The number of the event's round, an int32 scalar, or -1. A `Round` without a number
      takes its query's. It is always a leaf of the pytree. So a scan stacks every event that it
      returns, even a constant one.
    key_exposed: Whether the release's noise came from a key that `jdp.random.secure_key` did not
      make, or that drew something else too. Then the event's guarantee does not hold against anyone
      who knows or guesses that key.
    adaptive: Whether its noise multiplier, its sampling, or that it happened at all was chosen from
      what earlier events released. An epsilon that adds up such events is not a guarantee. Only a
      filter or an odometer (`jdp.accounting.renyi_filter`, `odometer`) states one. A clip norm that
      follows earlier releases is not adaptive in this sense if the noise is in proportion.
  """

  number: ArrayLike = dataclasses.field(default=NO_NUMBER, compare=False, repr=False)
  key_exposed: bool | jax.Array = dataclasses.field(default=False, compare=False, repr=False)
  adaptive: bool = dataclasses.field(default=False, compare=False, repr=False)


@dataclass_transform(frozen_default=True)
def event(cls: type[T]) -> type[T]:
  """Makes `cls` a frozen dataclass, a pytree, and known to the ledger's file by its name."""
  if not issubclass(cls, EventBase):
    raise ValueError(
      f"Expected a subclass of EventBase, got {cls.__name__}; derive it from EventBase, as a scan "
      "loses events without a number."
    )
  kind: Any = dataclasses.dataclass(frozen=True)(_converting(cls))
  names = tuple(f.name for f in dataclasses.fields(kind))

  def is_leaf(name: str, value: Any) -> bool:
    return (
      name in _ALWAYS_LEAVES or isinstance(value, jax.Array | np.ndarray) or _holds_events(value)
    )

  def flatten(event: Any) -> tuple[list[Any], tuple[Any, Any]]:
    values = {name: getattr(event, name) for name in names}
    # Decided value by value, as a field may hold a constant in one run and a schedule in another.
    dynamic = tuple(name for name, value in values.items() if is_leaf(name, value))
    static = tuple((name, value) for name, value in values.items() if name not in dynamic)
    return [values[name] for name in dynamic], (dynamic, static)

  def unflatten(names_and_static: tuple[Any, Any], leaves: Iterable[Any]) -> Any:
    dynamic, static = names_and_static
    # Without the constructor: its checks would fail on tracers and on JAX's placeholders.
    event = object.__new__(kind)
    for name, value in (*zip(dynamic, leaves, strict=True), *static):
      object.__setattr__(event, name, value)
    return event

  jax.tree_util.register_pytree_node(kind, flatten, unflatten)
  EVENT_TYPES[kind.__name__] = kind
  return kind


def if_known(check: Callable[..., None], **values: Any) -> None:
  """Checks the values of fields that are not arrays.

  Arrays hold what varies over rounds, traced inside jit. The ledger checks them when they arrive.
  """
  check(**{name: value for name, value in values.items() if not isinstance(value, jax.Array)})


def whole_if_given(**values: Any) -> None:
  """Requires each value to be a whole number >= 1, or None."""
  _validate.integer(1, **{name: value for name, value in values.items() if value is not None})


def check_noised_sum(event: Any) -> None:
  """Checks the bound and the noise of a sum, whose fields are `clip_norm` and `stddev`."""
  if_known(_validate.positive, clip_norm=event.clip_norm)
  if_known(_validate.non_negative, stddev=event.stddev)


def _converting(cls: type[T]) -> type[T]:
  """Makes the constructor of `cls` convert its fields, check them, and take over their marks."""
  check: Callable[[Any], None] = getattr(cls, "__post_init__", lambda event: None)
  kinds = [kind for kind in cls.__mro__ if kind not in (EventBase, object)]
  names = [name for kind in kinds for name in vars(kind).get("__annotations__", ())]

  def __post_init__(event: Any) -> None:  # noqa: N807  # a dataclass calls it by this name
    convert_fields(event)
    check(event)
    for name in names:
      value = getattr(event, name)
      if isinstance(value, EventBase):
        _take_marks(event, value)
      elif type(value) is tuple and _holds_events(value):
        for inner in value:
          _take_marks(event, inner)

  cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
  return cls


def _holds_events(value: Any) -> bool:
  """Whether a field's value is an event, or a tuple of events."""
  inner = value if isinstance(value, tuple) else (value,)
  return bool(inner) and all(isinstance(v, EventBase) for v in inner)


def _take_marks(event: Any, inner: Any) -> None:
  """Gives an event the marks of one that it holds."""
  for mark in MARKS:
    if (theirs := getattr(inner, mark)) is not False:
      object.__setattr__(event, mark, _either(getattr(event, mark), theirs))


def _either(own: Any, inner: Any) -> Any:
  """Whether one of two marks is set. Each is a bool where it is known, else an array."""
  if own is True:
    return own
  return inner if own is False or inner is True else own | inner


_OF_ONE_ROUND = {
  *("clip_norm", "index", "position", "starts_epoch"),
  *(field.name for field in dataclasses.fields(EventBase)),
}
"""Fields of a run's events that differ between its rounds."""


def shared_fields(event: Any) -> tuple[Any, ...]:
  """The values that the events of all rounds of one run, or their samplings, have in common."""
  return type(event).__name__, *_values_shared(tuple(event.__dataclass_fields__))(event)


@functools.cache
def _values_shared(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
  """Reads the fields of an event that do not differ between the rounds of a run."""
  shared = [name for name in names if name not in _OF_ONE_ROUND]
  if len(shared) > 1:
    return operator.attrgetter(*shared)
  return lambda event: tuple(getattr(event, name) for name in shared)
