"""Results that are computed once, one by one, whatever was killed in between."""

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from experiments.runner import files

Case = TypeVar("Case")


def kept_rows(
  cases: Sequence[Case], compute: Callable[[Case], Any], path: pathlib.Path
) -> Iterator[Any]:
  """The results of all cases, in order: those in the file, then the others, each put there.

  Args:
    cases: the same in a resumed run.
    compute: case -> JSON data.
    path: JSON Lines, a result a line.
  """
  rows = files.read_rows(path)
  yield from rows
  for number, case in enumerate(cases[len(rows) :], len(rows) + 1):
    print(f"{number}/{len(cases)}: {case}", flush=True)
    rows.append(compute(case))
    files.write_rows(path, rows)
    yield rows[-1]
