"""Arguments of public functions, converted once and checked by their annotations.

A number of low precision must not decide how precisely a privacy parameter is computed. So before
any arithmetic a `float` becomes a Python float of the same value, and an `int` a Python int. Values
of another kind are refused with the argument's name.

| annotation | takes | becomes |
|---|---|---|
| `float` | a real number of Python, NumPy or JAX, or an array without axes; no bool | `float` |
| `int` | a whole number, also of NumPy or JAX | `int` |
| `bool` | a bool, also of NumPy or JAX | `bool` |
| an enum | a member, or its value | the member |
| `tuple[X, ...]`, `Sequence[X]` | a sequence or an array of X | a tuple |
| `Iterable[X]` | an iterable of X | a tuple, or an iterator |
| `Mapping[K, X]` | a mapping to X | a dictionary |
| `jax.Array`, `ArrayLike` | an array, traced or not, a number, or nested sequences | what it was |
| `jax.Array`, with a name that ends in `key` or `keys` | keys of `jax.random` | what it was |
| `jax.typing.DTypeLike` | a type of numbers, or its name | what it was |
| a named tuple | what has its fields | what it was |
| another class, `Callable`, `str` | an instance | what it was |
| `Annotated[X, C]` | an instance of the class C | what it was |
| `Scalar`, `Vector`, `Matrix`, `Rows` | real numbers of 0, 1, 2 axes, or 1 at least | an array |
| `AnyVector`, `AnyRows` | elements of any type with one axis, or one at least | an array |
| `Arrays` | a pytree of arrays | what it was |
| `X | Y`, a type variable of X, Y | the first that takes it, arrays first | as that says |
| `Any`, or none | anything | what it was |

Ranges are checked by the function itself (`jdp._validate`).
"""

import collections.abc
import dataclasses
import enum
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np
from numpy.typing import ArrayLike

P = ParamSpec("P")
R = TypeVar("R")


class Axes(NamedTuple):
  """How many axes an array has."""

  words: str
  least: int
  most: float
  numeric: bool = True


Scalar = Annotated[Any, Axes("a number", 0, 0)]
Vector = Annotated[Any, Axes("an array of numbers with one axis", 1, 1)]
Matrix = Annotated[Any, Axes("an array of numbers with two axes", 2, 2)]
Rows = Annotated[Any, Axes("an array of numbers with an axis or more", 1, math.inf)]
AnyVector = Annotated[Any, Axes("an array with one axis", 1, 1, numeric=False)]
AnyRows = Annotated[Any, Axes("an array with an axis or more", 1, math.inf, numeric=False)]
Arrays = Annotated[Any, "a pytree of arrays"]


class _Kind(NamedTuple):
  """The values that an annotation stands for.

  Attributes:
    expected: the kind's name in a message.
    accepts: value -> whether it may be converted.
    convert: (argument's name, accepted value) -> what the function gets.
    settled: types whose values stay as they are, and need no further check.
    error: the exception raised for other values.
    secret: whether a refused value may be a secret, and must not be quoted.
  """

  expected: str
  accepts: Callable[[Any], bool]
  convert: Callable[[str, Any], Any] = lambda name, value: value
  settled: frozenset[type] = frozenset()
  error: type[Exception] = TypeError
  secret: bool = False

  def take(self, name: str, value: Any) -> Any:
    """The converted value of the argument `name`."""
    if type(value) in self.settled:
      return value
    if not self.accepts(value):
      got = type(value).__name__ if self.secret else shown(value)
      raise self.error(f"Expected {name} to be {self.expected}, got {got}.")
    return self.convert(name, value)


def checked(function: Callable[P, R]) -> Callable[P, R]:
  """Makes a function convert and check its arguments by their annotations, as the module says.

  >>> @checked
  ... def half(number: float) -> float:
  ...   return number / 2
  >>> half(np.float16(3)), half(np.int8(100))
  (1.5, 50.0)
  >>> half("3")
  Traceback (most recent call last):
  ...
  ValueError: Expected number to be a number, got '3'.
  """

  # Annotations may name objects defined further down, so they are read at the first call.
  @functools.cache
  def kinds() -> tuple[dict[str, _Kind], dict[str, _Kind], _Kind]:
    signature, hints = inspect.signature(function), _hints(function)
    every = {
      name: (p.kind, _named(name, hints.get(name, Any))) for name, p in signature.parameters.items()
    }
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    others = [kind for place, kind in every.values() if place is inspect.Parameter.VAR_KEYWORD]
    return (
      {name: kind for name, (place, kind) in every.items() if place in places},
      {name: kind for name, (_, kind) in every.items()},
      others[0] if others else _ANYTHING,
    )

  @functools.wraps(function)
  def converted(*args: P.args, **kwargs: P.kwargs) -> R:
    positional, every, other = kinds()
    taken = [
      kind.take(name, value) for (name, kind), value in zip(positional.items(), args, strict=False)
    ]
    named = {name: every.get(name, other).take(name, value) for name, value in kwargs.items()}
    return function(*taken, *args[len(taken) :], **named)  # type: ignore[arg-type]

  return converted


def take(hint: Any, name: str, value: Any) -> Any:
  """The value of an argument `name` with this annotation, converted and checked."""
  return _named(name, hint).take(name, value)


def convert_fields(instance: Any) -> None:
  """Converts the fields of a frozen dataclass, in its `__post_init__`, as `checked` does."""
  for name, kind in _field_kinds(type(instance)).items():  # type: ignore[arg-type]
    value = getattr(instance, name)
    if type(value) not in kind.settled:
      object.__setattr__(instance, name, kind.take(name, value))


@functools.cache
def _field_kinds(cls: type) -> dict[str, _Kind]:
  hints = _hints(cls)
  return {f.name: _named(f.name, hints.get(f.name, Any)) for f in dataclasses.fields(cls)}


def shown(value: Any) -> str:
  """A value in a message: short scalars and strings as they are, only the type of others."""
  if value is None or isinstance(value, str | bool | int | float | np.generic | enum.Enum):
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"
  shape = getattr(value, "shape", None)
  return f"{type(value).__name__}" + (f" of shape {shape}" if isinstance(shape, tuple) else "")


def _hints(annotated: Any) -> dict[str, Any]:
  """The annotations of a function or class; `Any` for a name that only type checkers import."""
  unknown: dict[str, Any] = {}
  while True:
    try:
      return typing.get_type_hints(annotated, localns=unknown, include_extras=True)
    except NameError as error:
      unknown[str(error.name)] = Any


def _named(name: str, hint: Any) -> _Kind:
  """The kind of a parameter: keys are known by their name, as their annotation is an array's."""
  if not name.endswith(("key", "keys")):
    return _kind(hint)
  members = _members(hint)
  if hint is Any:
    return _KEY_TREE
  if jax.Array not in members:
    return _kind(hint)
  return _either([_KEY, *([_NONE] if types.NoneType in members else [])])


@functools.cache
def _kind(hint: Any) -> _Kind:
  """The kind that an annotation stands for."""
  if hint in _KINDS:
    return _KINDS[hint]
  members, origin = _members(hint), typing.get_origin(hint)
  if origin is Annotated:
    note = hint.__metadata__[0]
    return _axes(note) if isinstance(note, Axes) else _instance(note)
  if len(members) > 1:
    return _either(_kinds_of(members))
  if isinstance(hint, TypeVar) and hint.__constraints__:
    return _either([_kind(member) for member in hint.__constraints__])
  if origin is collections.abc.Callable:
    return _FUNCTION
  if origin is tuple or (isinstance(origin, type) and issubclass(origin, collections.abc.Sequence)):
    return _sequence(hint)
  if origin is collections.abc.Iterable:
    return _iterable(_kind(typing.get_args(hint)[0]))
  if origin is collections.abc.Mapping or origin is dict:
    return _mapping(_kind(typing.get_args(hint)[1]))
  return _instance(origin or hint) if isinstance(origin or hint, type) else _ANYTHING


def _members(hint: Any) -> tuple[Any, ...]:
  """The members of a union, or the annotation alone."""
  is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
  return typing.get_args(hint) if is_union else (hint,)


def _kinds_of(members: tuple[Any, ...]) -> list[_Kind]:
  """The kinds of a union's members, arrays first. All members of an `ArrayLike` are one kind."""
  kinds: list[_Kind] = []
  for union in (ArrayLike, jax.typing.ArrayLike):
    # From Python 3.12 on NumPy's `ArrayLike` is an alias, which has no members of its own.
    own = set(typing.get_args(union)) or {union}
    if own <= set(members):
      members = tuple(member for member in members if member not in own)
      kinds = [_ARRAY_LIKE]
  enums = any(isinstance(member, type) and issubclass(member, enum.Enum) for member in members)
  kinds += [_kind(member) for member in members if not (enums and member is str)]
  if not any(kind.error is ValueError for kind in kinds):
    return kinds
  # In a union with a number, an array must be of an array type, never a NumPy scalar.
  return [_STRICT_ARRAY] * (_ARRAY in kinds) + [kind for kind in kinds if kind is not _ARRAY]


def _axes(axes: Axes) -> _Kind:
  """Arrays of numbers with this number of axes; lists become arrays."""

  def accepts(value: Any) -> bool:
    array = _as_array(value)
    if array is None or not axes.least <= len(array.shape) <= axes.most:
      return False
    return not axes.numeric or (_is_numeric(array) and 0 not in array.shape)

  return _Kind(axes.words, accepts, lambda name, value: _as_array(value), error=ValueError)


def _either(kinds: list[_Kind]) -> _Kind:
  """The kind of a union: the first of its kinds that accepts a value."""
  if len(kinds) == 1 or _ANYTHING in kinds:
    return kinds[0] if len(kinds) == 1 else _ANYTHING

  def convert(name: str, value: Any) -> Any:
    return next(kind for kind in kinds if kind.accepts(value)).take(name, value)

  return _Kind(
    " or ".join(dict.fromkeys(kind.expected for kind in kinds)),
    lambda value: any(kind.accepts(value) for kind in kinds),
    convert,
    frozenset().union(*(kind.settled for kind in kinds)),
    ValueError if any(kind.error is ValueError for kind in kinds) else TypeError,
    any(kind.secret for kind in kinds),
  )


def _sequence(hint: Any) -> _Kind:
  """A tuple or a sequence whose elements are all of one kind."""
  inner = typing.get_args(hint)
  if typing.get_origin(hint) is tuple and (len(inner) != 2 or inner[1] is not Ellipsis):
    return _instance(tuple)
  element = _kind(inner[0])

  def convert(name: str, value: Any) -> tuple[Any, ...]:
    return tuple(element.take(f"{name}[{i}]", own) for i, own in enumerate(value))

  return _Kind("a sequence", _is_sequence, convert)


def _iterable(element: _Kind) -> _Kind:
  """Anything that can be iterated once. An iterator stays lazy, anything else becomes a tuple."""

  def convert(name: str, value: Iterable[Any]) -> Iterable[Any]:
    elements = (element.take(f"{name}[{i}]", own) for i, own in enumerate(value))
    return elements if isinstance(value, collections.abc.Iterator) else tuple(elements)

  def accepts(value: Any) -> bool:
    return isinstance(value, collections.abc.Iterable) and not isinstance(value, str | bytes)

  return _Kind(
    "an iterable", lambda value: accepts(value) and getattr(value, "shape", None) != (), convert
  )


def _mapping(element: _Kind) -> _Kind:
  def convert(name: str, value: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: element.take(f"{name}[{key!r}]", own) for key, own in value.items()}

  return _Kind("a mapping", lambda value: isinstance(value, Mapping), convert)


def _instance(cls: Any) -> _Kind:
  """The instances of a class. A protocol takes any callable, a named tuple what has its fields."""
  if issubclass(cls, enum.Enum):
    return _enum(cls)
  expected = f"{'an' if cls.__name__[0] in 'AEIOU' else 'a'} {cls.__name__}"
  if getattr(cls, "_is_protocol", False):
    return _Kind(expected, callable)
  if hasattr(cls, "_fields"):
    needed = [name for name in cls._fields if name not in cls._field_defaults]
    return _Kind(
      expected,
      lambda value: isinstance(value, cls) or all(hasattr(value, name) for name in needed),
      settled=frozenset([cls]),
    )
  return _Kind(expected, lambda value: isinstance(value, cls), settled=frozenset([cls]))


def _enum(cls: type[enum.Enum]) -> _Kind:
  values = [member.value for member in cls]
  return _Kind(
    "one of " + ", ".join(map(str, values)),
    lambda value: isinstance(value, str | cls) and value in values,
    lambda name, value: cls(value),
    frozenset([cls]),
    ValueError,
  )


def _is_scalar(value: Any, *dtypes: Any) -> bool:
  """Whether it is an array or a NumPy scalar that holds one known number of one of these types."""
  dtype = getattr(value, "dtype", None)
  return (
    dtype is not None
    and getattr(value, "shape", None) == ()
    and not isinstance(value, jax.core.Tracer)
    and any(jax.dtypes.issubdtype(dtype, kind) for kind in dtypes)
  )


def _is_real(value: Any) -> bool:
  if isinstance(value, float | int):
    return not isinstance(value, bool)
  return _is_scalar(value, np.floating, np.integer)


def _is_whole(value: Any) -> bool:
  return (isinstance(value, int) and not isinstance(value, bool)) or _is_scalar(value, np.integer)


def _is_key_tree(value: Any) -> bool:
  return all(map(_is_key, jax.tree.leaves(value)))


def _is_key(value: Any) -> bool:
  return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def _is_sequence(value: Any) -> bool:
  if isinstance(value, np.ndarray | jax.Array):
    return value.ndim > 0
  return isinstance(value, collections.abc.Sequence) and not isinstance(value, str | bytes)


def _as_array(value: Any) -> Any:
  """The value as an array if it is one or nested lists of numbers, else None."""
  if hasattr(value, "dtype") and hasattr(value, "shape"):
    return value
  if not isinstance(value, bool | int | float | list | tuple):
    return None
  try:
    return np.asarray(value)
  except (ValueError, TypeError):  # rows of unequal lengths
    return None


def _is_numeric(array: Any, *others: Any) -> bool:
  kinds = (np.floating, np.integer, *others)
  return array is not None and any(jax.dtypes.issubdtype(array.dtype, kind) for kind in kinds)


def _is_array_like(value: Any) -> bool:
  # JAX treats Python integers as int32.
  small = not isinstance(value, int) or -(2**31) <= value < 2**31
  return small and _is_numeric(_as_array(value), np.bool_)


def _is_tree(value: Any) -> bool:
  leaves = jax.tree.leaves(value, is_leaf=lambda leaf: leaf is None)
  return bool(leaves) and all(hasattr(leaf, "shape") and _is_numeric(leaf) for leaf in leaves)


def _is_dtype(value: Any) -> bool:
  try:
    if value is None or isinstance(value, np.ndarray | np.generic | jax.Array):
      return False
    return _is_numeric(jax.ShapeDtypeStruct((), np.dtype(value)), np.bool_)
  except (TypeError, ValueError, SyntaxError):  # SyntaxError, as NumPy parses names
    return False


def _to_float(name: str, value: Any) -> float:
  try:
    return float(value)
  except OverflowError:
    raise ValueError(
      f"Expected {name} to be a number that floats hold, got {shown(value)}."
    ) from None


_ANYTHING = _Kind("anything", lambda value: True)
_FUNCTION = _Kind("a function", callable)
_ARRAY = _Kind("an array", _is_array_like)
_STRICT_ARRAY = _Kind("an array", lambda value: isinstance(value, jax.Array | np.ndarray))
_ARRAY_LIKE = _Kind("an array", _is_array_like, settled=frozenset([np.int32, float]))
_KEY = _Kind("a key of jax.random", _is_key)
_KEY_TREE = _Kind("a pytree of keys of jax.random", _is_key_tree)
_NONE = _Kind("None", lambda value: value is None, settled=frozenset([types.NoneType]))
_KINDS: dict[Any, _Kind] = {
  float: _Kind("a number", _is_real, _to_float, frozenset([float]), ValueError),
  int: _Kind(
    "a whole number", _is_whole, lambda name, value: int(value), frozenset([int]), ValueError
  ),
  bool: _Kind(
    "True or False",
    lambda value: isinstance(value, bool) or _is_scalar(value, np.bool_),
    lambda name, value: bool(value),
    frozenset([bool]),
    ValueError,
  ),
  str: _Kind(
    "a string", lambda value: isinstance(value, str), settled=frozenset([str]), error=ValueError
  ),
  bytes: _Kind("bytes", lambda value: isinstance(value, bytes), secret=True),
  types.NoneType: _NONE,
  Any: _ANYTHING,
  object: _ANYTHING,
  Callable: _FUNCTION,
  Arrays: _Kind("a pytree of arrays", _is_tree),
  jax.Array: _ARRAY,
  np.ndarray: _ARRAY,
  ArrayLike: _ARRAY_LIKE,
  jax.typing.ArrayLike: _ARRAY_LIKE,
  jax.typing.DTypeLike: _Kind("a type of numbers, such as float32", _is_dtype),
  inspect.Parameter.empty: _ANYTHING,
}
