"""What is common to all reports: tables, statements of guarantees, how to repeat a run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.runner.statistics import Interval
from experiments.runner.training import TrainingOptions
from jdp.guarantees import AnyGuarantee, ApproxDP, SeparatedDP, compose
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
    return f"{value.epsilon:.4g} ({value.direction:.4g} + {value.magnitude:.4g})"
  if isinstance(value, ApproxDP):
    return f"{value.epsilon:.3f} (δ = {value.delta:.2g})"
  return f"{value.epsilon:.4g}"


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
    labels.setdefault(str(from_json(row[kind])) if row[kind] else "no guarantee", []).append(row["label"])
  return "\n".join(f"- {', '.join(names)}: {statement}." for statement, names in labels.items())


def together(results: Iterable[Mapping[str, Any]], kind: str) -> str:
  """What the runs with such a guarantee cost together: they are about the same users, and compose."""
  stated: list[AnyGuarantee] = [from_json(result[kind]) for result in results if result[kind]]
  return f"All {len(stated)} such runs together, by basic composition: {compose(stated)}." if stated else ""


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
