"""A sweep cut into parts, as the tasks of an array job: each computes its share of the runs."""

import re

_PART = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})")
_CUT = {
  "task": ("training", "stream"),
  "select": (),
  "vocabulary": ("public",),
  "layout": ("rule",),
}
"""Options by which runs can depend on each other, and the choices with which they do not."""


def number_and_count(part: str) -> tuple[int, int]:
  """Which part of how many.

  >>> number_and_count("3/20")
  (3, 20)

  Raises:
    ValueError: if it is not such a text, or there is no such part.
  """
  found = _PART.fullmatch(part)
  number, count = map(int, found.groups()) if found else (1, 0)
  if number > count:
    raise ValueError(f"Expected --part as in 3/20, the third of twenty, got {part}.")
  return number, count


def check_part(**given: str) -> None:
  """The check of the option."""
  for part in given.values():
    number_and_count(part)


def own_runs(part: str | None, num_runs: int) -> range:
  """The numbers of a part's runs, from 0: they take turns, so no part has two more than another.

  >>> list(own_runs("2/3", 8))
  [1, 4, 7]
  >>> list(own_runs(None, 3))
  [0, 1, 2]
  """
  number, count = number_and_count(part) if part else (1, 1)
  return range(number - 1, num_runs, count)


def refuse_uncut(part: str | None, options: object) -> None:
  """Refuses a part of what must be computed whole.

  Args:
    part: which, or None.
    options: of the experiment.

  Raises:
    ValueError: if runs depend on each other, or on a release that each part would make again.
  """
  for name, allowed in _CUT.items():
    value = getattr(options, name, None)
    if part is not None and value is not None and value not in allowed:
      raise ValueError(
        f"Expected no --part with --{name}={value}, which all runs share, got --part="
        f"{part}; leave it out."
      )
