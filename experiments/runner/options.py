"""An experiment's options: a frozen dataclass whose fields are its flags.

A field made by `option` carries its help, its check, and the choice that it belongs to. Flags are
read once, in the binary's main; everything else works on the dataclass. A preset is a flagfile. A
flag on the command line overrides the preset.
"""

import dataclasses
import pathlib
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from absl import flags

from jdp import _validate
from jdp._arguments import shown, take

flags.disclaim_key_flags()  # Flags belong to the binary that defines them through `define`.

Options = TypeVar("Options")
Value = TypeVar("Value")
_KEY = "option"
_MOST_ELEMENTS = 1000  # of a list
_LONGEST_TEXT, _LONGEST_NAME = 4096, 255  # bytes, as for the paths of most file systems


class Spec(NamedTuple):
  """The arguments of `option`."""

  default: object
  help: str
  choices: Collection[str] | Callable[[], Collection[str]] | None
  check: Callable[..., None] | None
  when: Mapping[str, Collection[str]]
  group: str | None
  most: int
  may_be_empty: bool
  repeated: bool
  may_be_equal: bool

  @property
  def allowed(self) -> Collection[str]:
    """The texts that it, or each of its elements, may be, as there are now; none: any text."""
    return (self.choices() if callable(self.choices) else self.choices) or ()

  def applies(self, values: Mapping[str, object]) -> bool:
    """Whether the choices that it belongs to are made."""
    return all(values[name] in choices for name, choices in self.when.items())


def option(
  default: object,
  help: str,  # noqa: A002  # absl's name for it
  *,
  choices: Collection[str] | Callable[[], Collection[str]] | None = None,
  check: Callable[..., None] | None = None,
  when: Mapping[str, Collection[str]] | None = None,
  group: str | None = None,
  most: int = 1_000_000,
  may_be_empty: bool = False,
  repeated: bool = False,
  may_be_equal: bool = False,
) -> Any:
  """A dataclass field that becomes a flag.

  Args:
    default: its value if it is not given. None stands for no value, or for one that depends on the
      data (`help` says which).
    help: its meaning and unit.
    choices: the strings that it, or each of its elements, may be, or a function that gives them
      when the flags are defined.
    check: called as check(**{name: value}) on it, or on each of its elements; raises ValueError.
    when: the choices that it belongs to: {"optimizer": ("momentum",)}. Without one of these choices
      it is None, and giving it is refused.
    group: a name. Exactly one option of a group is given.
    most: the largest whole number that it, or each of its elements, may be. More rounds, users or
      repetitions than that are a slip of the keyboard, and would fill the memory.
    may_be_empty: whether a list may be empty, though its default is not.
    repeated: whether the flag is given again for each element, which may hold commas then.
    may_be_equal: whether elements of a list may be equal, as those of different things may.
  """
  empty = may_be_empty or default == ()
  spec = Spec(default, help, choices, check, when or {}, group, most, empty, repeated, may_be_equal)
  return dataclasses.field(default=None if when or group else default, metadata={_KEY: spec})


def option_of(options_type: type, name: str, *, when: Mapping[str, Collection[str]]) -> Any:
  """The option of that name of another class, where it belongs to a choice."""
  spec = specs_of(options_type)[name]._replace(when=when)
  return dataclasses.field(default=None, metadata={_KEY: spec})


def resolve(
  options_type: type[Options],
  given: Mapping[str, object],
  preset: Mapping[str, object] | None = None,
) -> Options:
  """The options that a preset and a command line ask for, checked.

  What the preset says about a choice that the command line has changed is dropped.

  Args:
    options_type: a frozen dataclass of `option` fields.
    given: name -> value, from the command line.
    preset: name -> value, from a preset's file.

  Raises:
    ValueError: if a value is out of range or a given option belongs to a choice that is not made.
      Also if not exactly one option of a group is given.

  >>> @dataclasses.dataclass(frozen=True)
  ... class Example:
  ...   optimizer: str = option("sgd", "The optimiser.", choices=("sgd", "momentum"))
  ...   decay: float | None = option(0.9, "Its momentum.", when={"optimizer": ("momentum",)})
  >>> resolve(Example, {}, preset={"optimizer": "momentum"})
  Example(optimizer='momentum', decay=0.9)
  >>> resolve(Example, {"decay": 0.5})
  Traceback (most recent call last):
  ...
  ValueError: Expected --decay only with --optimizer=momentum, got --optimizer=sgd; leave it out.
  """
  specs = specs_of(options_type)
  # An option given on the command line replaces the preset's choice within its group.
  rivals = {specs[name].group for name in given} - {None}
  preset = {
    name: value for name, value in (preset or {}).items() if specs[name].group not in rivals
  }
  chosen = {**preset, **given}
  values = {name: _resolved(name, specs, chosen) for name in specs}
  for name in given:
    _refuse_orphan(name, specs[name], values)
  for group in {spec.group for spec in specs.values()} - {None}:
    _check_group({name: values[name] for name, spec in specs.items() if spec.group == group})
  return options_type(
    **{n: _checked(options_type, n, spec, values[n]) for n, spec in specs.items()}
  )


def needed(value: Value | None) -> Value:
  """An option's value where it is needed: the choice that it belongs to is made.

  >>> needed(8)
  8

  Raises:
    ValueError: if it has none.
  """
  if value is None:
    raise ValueError("Expected the option of a choice that is made, got none.")
  return value


def define(options_type: type, values: flags.FlagValues) -> None:
  """Defines one flag for each field."""
  for name, spec in specs_of(options_type).items():
    kind, is_list = _element_type(options_type, name)
    described = _describe(spec)
    if spec.repeated:
      flags.DEFINE_multi_string(name, None, described, flag_values=values)
    elif is_list:
      flags.DEFINE_list(name, None, described, flag_values=values)
    elif spec.allowed:
      flags.DEFINE_enum(name, None, list(spec.allowed), described, flag_values=values)
    else:
      _DEFINERS[kind](name, None, described, flag_values=values)


def given(options_type: type, values: flags.FlagValues) -> dict[str, object]:
  """The options that were given as flags, by name."""
  return {
    name: _parse(options_type, name, values[name].value)
    for name in specs_of(options_type)
    if values[name].present and values[name].value is not None
  }


def read_flagfile(options_type: type, path: pathlib.Path) -> dict[str, object]:
  """The options in a flagfile, by name."""
  return read_flags(options_type, [f"--flagfile={path}"])


def read_flags(options_type: type, arguments: Sequence[str]) -> dict[str, object]:
  """The options in arguments such as "--seeds=2", by name."""
  values = flags.FlagValues()
  define(options_type, values)
  values(["", *arguments])
  return given(options_type, values)


def to_flagfile(options: object) -> str:
  """A flagfile that gives exactly these options."""
  values = ((name, spec, getattr(options, name)) for name, spec in specs_of(type(options)).items())
  return "".join(
    f"--{name}={written(element)}\n"
    for name, spec, value in values
    for element in ((value or ("",)) if spec.repeated else (value,))
    if element is not None
  )


def from_json(options_type: type[Options], data: Mapping[str, object]) -> Options:
  """The options whose `dataclasses.asdict` was written as JSON, checked as flags are.

  Raises:
    ValueError: if a name, a type or a value is none that flags can give.
  """
  values = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
  if set(values) != set(specs_of(options_type)):
    names = ", ".join(sorted(set(values) ^ set(specs_of(options_type))))
    raise ValueError(f"Expected the options of {options_type.__name__}, got others: {names}.")
  given = {name: value for name, value in values.items() if value is not None}
  for name, value in given.items():
    _check_type(options_type, name, value)
  made = resolve(options_type, given)
  for name, value in values.items():
    if getattr(made, name) != value:
      raise ValueError(f"Expected --{name}={getattr(made, name)} beside the others, got {value}.")
  return made


_DEFINERS: dict[type, Callable] = {
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  bool: flags.DEFINE_boolean,
  str: flags.DEFINE_string,
}


def specs_of(options_type: type) -> dict[str, Spec]:
  """What `option` was told of each field, by name."""
  return {field.name: field.metadata[_KEY] for field in dataclasses.fields(options_type)}


def _element_type(options_type: type, name: str) -> tuple[type, bool]:
  """The type of a field's value or elements, and whether it is a tuple; `None` is left out."""
  hint = typing.get_type_hints(options_type)[name]
  if isinstance(hint, types.UnionType):
    (hint,) = (kind for kind in typing.get_args(hint) if kind is not types.NoneType)
  return (typing.get_args(hint)[0], True) if typing.get_origin(hint) is tuple else (hint, False)


def _parse(options_type: type, name: str, value: Any) -> object:
  kind, is_list = _element_type(options_type, name)
  if not is_list:
    return value
  try:
    return tuple(map(kind, filter(None, value)))  # An empty element clears a preset's.
  except ValueError as error:
    raise ValueError(
      f"Expected --{name} to be a list of numbers such as 2,8, got {_shortened(','.join(value))}."
    ) from error


def _check_type(options_type: type, name: str, value: object) -> None:
  """Refuses a value of another type than the flag's."""
  kind, is_list = _element_type(options_type, name)
  types = (float, int) if kind is float else (kind,)
  elements = value if is_list and isinstance(value, tuple) else (value,)
  if is_list != isinstance(value, tuple) or any(type(e) not in types for e in elements):
    expected = f"a list of {kind.__name__}" if is_list else kind.__name__
    raise ValueError(f"Expected --{name} to be {expected}, got {value!r}.")


def written(value: object) -> str:
  """A value as a flag has it."""
  return ",".join(map(written, value)) if isinstance(value, tuple) else str(value)


def _shortened(text: str) -> str:
  return text if len(text) <= 100 else f"{text[:90]}..."


def _describe(spec: Spec) -> str:
  belongs = f" Only with {conditions(spec)}." if spec.when else ""
  default = "" if spec.default is None else f" Default: {written(spec.default)}."
  return spec.help + belongs + default


def conditions(spec: Spec) -> str:
  """The choices that it belongs to, as flags."""
  return " and ".join(f"--{name}={' or '.join(choices)}" for name, choices in spec.when.items())


def _resolved(name: str, specs: Mapping[str, Spec], chosen: Mapping[str, object]) -> object:
  """What was chosen, or the default.

  It is None if a choice that it belongs to, perhaps by its own default, is not made.
  """
  spec = specs[name]
  # A choice may itself belong to another choice, so its value is resolved first.
  if not spec.applies({other: _resolved(other, specs, chosen) for other in spec.when}):
    return None
  return chosen.get(name, spec.default)


def _refuse_orphan(name: str, spec: Spec, values: Mapping[str, object]) -> None:
  if not spec.applies(values):
    got = " and ".join(f"--{other}={values[other]}" for other in spec.when)
    raise ValueError(f"Expected --{name} only with {conditions(spec)}, got {got}; leave it out.")


def _check_group(values: Mapping[str, object]) -> None:
  count = sum(value is not None for value in values.values())
  if count != 1:
    names = " and ".join(f"--{name}" for name in values)
    raise ValueError(f"Expected exactly one of {names}, got {count or 'none'}.")


def _checked(options_type: type, name: str, spec: Spec, value: object) -> object:
  """The value, of its field's type and within its bounds."""
  if value is None:
    return None
  kind, is_list = _element_type(options_type, name)
  given = _checked_list(name, spec, value) if is_list else (value,)
  elements = tuple(take(kind, f"--{name}", element) for element in given)
  for element in elements:
    if spec.allowed:
      _validate.one_of(spec.allowed, **{f"--{name}": element})
    elif kind is str:
      check_text(**{f"--{name}": element})
    if kind is int and element > spec.most:
      raise ValueError(f"Expected --{name} of at most {spec.most}, got {shown(element)}.")
    if spec.check:
      spec.check(**{f"--{name}": element})
  return elements if is_list else elements[0]


def _checked_list(name: str, spec: Spec, value: object) -> Sequence[object]:
  if not isinstance(value, tuple | list):
    raise ValueError(f"Expected --{name} to be a list, got {shown(value)}.")
  if not value and not spec.may_be_empty:
    raise ValueError(f"Expected --{name} of at least one element, got none; leave it out.")
  if len(value) > _MOST_ELEMENTS:
    raise ValueError(
      f"Expected --{name} of at most {_MOST_ELEMENTS} elements, got {len(value)}; make more runs."
    )
  if not spec.may_be_equal and len(set(map(repr, value))) < len(value):
    raise ValueError(f"Expected --{name} without repetitions, got {_shortened(written(value))}.")
  return value


def check_text(**values: str) -> None:
  """Refuses text that is neither a file's name nor a word: too long, or unprintable."""
  for name, text in values.items():
    try:
      size, longest = len(text.encode()), max(len(part.encode()) for part in text.split("/"))
    except UnicodeEncodeError:
      raise ValueError(f"Expected {name} in UTF-8, got other bytes; rename it.") from None
    if not text.isprintable() or size > _LONGEST_TEXT or longest > _LONGEST_NAME:
      raise ValueError(
        f"Expected {name} to be printable, of at most {_LONGEST_NAME} bytes a name and "
        f"{_LONGEST_TEXT} in all, got {shown(text)}."
      )
