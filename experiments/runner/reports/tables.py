"""What is common to all reports: tables, statements of guarantees, how to repeat a run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.runner.reports.statistics import Interval
from experiments.runner.runs.training import TrainingOptions
from jdp.guarantees import AnyGuarantee, ApproxDP, SeparatedDP, compose, rounded_up
from jdp.ledger import from_json


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """A Markdown table, aligned so that it reads well as plain text too.

  >>> print(table(["run", "accuracy"], [["a", "90 %"]]))
  | run | accuracy |
  | --- | -------- |
  | a   | 90 %     |
  """
  lines = [list(header), *map(list, rows)]
  widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
  lines.insert(1, ["-" * width for width in widths])
  padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
  return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def not_private(options: Any) -> list[str]:
  """Why nothing run with such `TrainingOptions` is private, whatever its ledger says; empty if nothing says so."""
  reasons = []
  if options.noise_seed is not None:
    reasons.append(f"sampling and noise came from --noise_seed={options.noise_seed}: whoever knows it can undo them")
  if options.diagnostics:
    reasons.append("--diagnostics wrote diagnostics.jsonl, which tells what is not noised")
  return reasons


def notice(options: TrainingOptions) -> str:
  """The warning that goes before everything else; empty for a run that claims to be private."""
  return warnings(not_private(options))


def warnings(reasons: Iterable[str]) -> str:
  """The reasons against a guarantee, as paragraphs that go before it: of `not_private`, or a `Ledger.caveats`."""
  return "".join(f"**NOT PRIVATE: {reason}.**\n\n" for reason in reasons)


def short(guarantee: Mapping[str, Any] | None) -> str:
  """A guarantee as a table's cell: its epsilon, with its parts or its delta; infinity if there is none.

  >>> short({"type": "SeparatedDP", "direction": 8.0, "magnitude": 10.0})
  '18 (8 + 10)'
  """
  if guarantee is None:
    return "∞"
  value = from_json(guarantee)
  if isinstance(value, SeparatedDP):
    whole, *parts = (rounded_up(part, 4) for part in (value.epsilon, value.direction, value.magnitude))
    return f"{whole} ({' + '.join(parts)})"
  if isinstance(value, ApproxDP):
    return f"{epsilon(value.epsilon)} (δ = {rounded_up(value.delta, 3)})"
  return rounded_up(value.epsilon, 4)


def epsilon(value: float | None) -> str:
  """An accountant's epsilon as a table's cell, rounded up to four digits; infinity if there is none.

  >>> epsilon(1.00049), epsilon(2.0), epsilon(4321.0), epsilon(None)
  ('1.001', '2.000', '4321', '∞')
  """
  return "∞" if value is None or value == math.inf else f"{float(rounded_up(value, 4)):#.4g}".rstrip(".")


def percent(interval: Interval) -> str:
  """A share as a table's cell."""
  return f"{100 * interval.mean:.1f} %" + ("" if interval.half_width is None else f" ± {100 * interval.half_width:.1f}")


def number(interval: Interval) -> str:
  """A number as a table's cell."""
  return f"{interval.mean:.4g}" + ("" if interval.half_width is None else f" ± {interval.half_width:.2g}")


def guarantees(rows: Iterable[Mapping[str, Any]], kind: str) -> str:
  """A list of the settings' guarantees of one kind ("central", "release" or "local") in full, equal ones together."""
  labels: dict[str, list[str]] = {}
  for row in rows:
    statement = f"{from_json(row[kind])}{_public([row], kind)}" if row[kind] else "no guarantee"
    labels.setdefault(statement, []).append(row["label"])
  return "\n".join(f"- {', '.join(names)}: {statement}." for statement, names in labels.items())


def together(results: Iterable[Mapping[str, Any]], kind: str) -> str:
  """What the runs with such a guarantee cost together: they are about the same users, and compose."""
  stated = [result for result in results if result[kind]]
  if not stated:
    return ""
  all_of_them: AnyGuarantee = compose([from_json(result[kind]) for result in stated])
  return f"All {len(stated)} such runs together, by basic composition: {all_of_them}{_public(stated, kind)}."


def _public(rows: Iterable[Mapping[str, Any]], kind: str) -> str:
  """The end of a central guarantee's sentence: what was computed from the protected data and is taken as public."""
  said = dict.fromkeys(row["public"] for row in rows if kind == "central" and row.get("public"))
  return f", taking as public what was computed from the protected data: {'; '.join(said)}" if said else ""


def repeat(experiment: str) -> str:
  """The command that repeats a run, from its folder."""
  return f"    python -m experiments.{experiment} --flagfile=<folder>/run.flags\n"


def ending(experiment: str, environment: Mapping[str, Any], remark: str = "") -> str:
  """The report's last section, of a sweep: how to repeat it, what its folder holds, where it ran."""
  remark = f"{remark}\n" if remark else ""
  return f"""## How to repeat it

From the repository, with the path of this folder:

{repeat(experiment)}
{remark}All flags are in `run.flags` and `flags.json`, all results in `results.json`. The folder
`<setting>/<repetition>` of each run holds its metrics, its ledger and its last parameters (`params.npz`).

{properties(environment)}
"""


def to_json(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Summary rows as JSON data."""
  return [{k: v._asdict() if isinstance(v, Interval) else v for k, v in row.items()} for row in rows]


def properties(values: Mapping[str, Any]) -> str:
  """A table of names and values."""
  return table(["", ""], ([name, str(value)] for name, value in values.items()))
