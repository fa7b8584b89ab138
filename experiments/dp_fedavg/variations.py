"""What `--vary` asks for: rows of the table that differ in some options."""

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

_MOST_ROWS = 1000


class Axis(NamedTuple):
  """One `--vary`: options that change together.

  Attributes:
    names: of the options.
    values: what each of them becomes, for each row.
  """

  names: tuple[str, ...]
  values: tuple[tuple[str, ...], ...]


def parse(text: str, known: Collection[str]) -> Axis:
  """Reads one `--vary`.

  Args:
    text: `OPTION=VALUE,VALUE`. Options that change together, and their values, are joined by
      colons.
    known: the options that can be varied.

  Raises:
    ValueError: if it is not of this form, names another option or repeats a value.

  >>> parse("clip_norm=0.1,1", ["clip_norm"])
  Axis(names=('clip_norm',), values=(('0.1',), ('1',)))
  >>> parse("clip_norm:noise_multiplier=1:0.5,2:1", ["clip_norm", "noise_multiplier"]).values
  (('1', '0.5'), ('2', '1'))
  """
  left, _, right = text.partition("=")
  names, values = tuple(left.split(":")), tuple(tuple(v.split(":")) for v in right.split(","))
  if unknown := [name for name in names if name not in known]:
    raise ValueError(
      f"Expected --vary of options of averaging, got {unknown[0]}; choose from {', '.join(known)}."
    )
  if not right or any(len(value) != len(names) for value in values):
    raise ValueError(
      f"Expected {len(names)} joined by colons in each value of --vary={left}, got "
      f"{right or 'none'}; write --vary={left}={':'.join(['VALUE'] * len(names))}."
    )
  if len(set(values)) < len(values):
    raise ValueError(f"Expected --vary={left} without repetitions, got {right}; leave them out.")
  return Axis(names, values)


def combinations(axes: Iterable[Axis]) -> list[dict[str, str]]:
  """All combinations of the axes' values, each as option -> value; one without options if no axis.

  >>> combinations([Axis(("a",), (("1",), ("2",))), Axis(("b",), (("3",),))])
  [{'a': '1', 'b': '3'}, {'a': '2', 'b': '3'}]

  Raises:
    ValueError: if an option stands in two axes, or there are more than a thousand combinations.
  """
  axes = list(axes)
  names = [name for axis in axes for name in axis.names]
  if len(set(names)) < len(names):
    raise ValueError(f"Expected each option in one --vary, got {', '.join(names)}; join them.")
  parts = ([dict(zip(axis.names, value, strict=True)) for value in axis.values] for axis in axes)
  found = list(itertools.islice(itertools.product(*parts), _MOST_ROWS + 1))
  if len(found) > _MOST_ROWS:
    raise ValueError(f"Expected --vary of at most {_MOST_ROWS} rows, got more; make more runs.")
  return [{name: value for part in row for name, value in part.items()} for row in found]


def described(row: Mapping[str, str]) -> str:
  """What a row differs in, for readers.

  >>> described({"clip_norm": "0.1", "noise_multiplier": "2"})
  'clip norm 0.1, noise multiplier 2'
  """
  return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.items())
