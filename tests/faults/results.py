"""What the long forms of these tests found, kept in files, and the tables of docs/survival.md.

    python -m tests.faults.results

prints the tables. Each long form replaces its own part of a file, so that it can be run in parts.
"""

import collections
import json
import pathlib
from collections.abc import Iterable, Sequence

from jdp.federated.runs.whole_files import write

FOLDER = pathlib.Path(__file__).parent / "results"
TABLES = {
  "kills": (
    "experiment",
    (
      *("kills", "start-up", "rounds", "ledger", "evaluation", "checkpoint", "end"),
      *("trials", "not equal"),
    ),
  ),
  "fuzz": ("hostile", ("tried", "result", "refused", "fault")),
  "damage": ("what is done to a run", ("cases", "ended with equal bits", "said what to do")),
  "ledger": (
    "what is done to a ledger",
    ("cases", "refused", "read as not closed", "nothing lost or doubled"),
  ),
}


def put(name: str, row: str, part: str, counts: dict[str, int]) -> None:
  """Writes the counts of a part of a table's row, in the place of earlier ones."""
  FOLDER.mkdir(exist_ok=True)
  found = _read(name)
  found.setdefault(row, {})[part] = dict(counts)
  content = json.dumps(dict(sorted(found.items())), indent=1) + "\n"
  write(FOLDER / f"{name}.json", content.encode())  # whole or not at all, if it is stopped


def counts_of(name: str, row: str, part: str) -> collections.Counter[str]:
  """The counts of a part of a table's row; none if it was not tried."""
  return collections.Counter(_read(name).get(row, {}).get(part, {}))


def total(name: str, row: str) -> collections.Counter[str]:
  """The counts of a table's row, of all parts together."""
  return sum(map(collections.Counter, _read(name)[row].values()), collections.Counter())


def table(name: str) -> str:
  """A table of the page."""
  first, columns = TABLES[name]
  lines = [[first, *columns], ["---"] * (1 + len(columns))]
  for row in _read(name):
    counts = total(name, row)
    lines.append([row, *(f"{counts[column]:,}" for column in columns)])
  return _markdown(lines)


def _markdown(lines: Iterable[Sequence[str]]) -> str:
  return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _read(name: str) -> dict[str, dict[str, dict[str, int]]]:
  path = FOLDER / f"{name}.json"
  return json.loads(path.read_text()) if path.exists() else {}


if __name__ == "__main__":
  for name in TABLES:
    print(f"{table(name)}\n")
