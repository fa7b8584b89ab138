"""Results that are computed once, one by one, also if the process is killed in between."""

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from experiments.runner import files

Case = TypeVar("Case")
Result = TypeVar("Result")


def kept_rows(
  cases: Sequence[Case], compute: Callable[[Case], Result], path: pathlib.Path
) -> Iterator[Result]:
  """The results of all cases, in order.

  Those in the file come first. The others are computed, and each is added to the file.

  Args:
    cases: what to compute. They must be the same in a resumed run.
    compute: case -> JSON data.
    path: a JSON Lines file, one result a line.
  """
  rows = files.read_rows(path)
  yield from rows
  for number, case in enumerate(cases[len(rows) :], len(rows) + 1):
    print(f"{number}/{len(cases)}: {case}", flush=True)
    rows.append(compute(case))
    files.write_rows(path, rows)
    yield rows[-1]
