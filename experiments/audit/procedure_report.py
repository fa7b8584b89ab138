"""The report of audited training procedures: tables and a picture, from rows or their file."""

import pathlib
from collections.abc import Sequence

from matplotlib.figure import Figure

from experiments.audit.options import AuditOptions
from experiments.audit.procedure_audits import Row
from experiments.runner import files
from experiments.runner.reports import plots, style
from experiments.runner.reports.parts import Part
from experiments.runner.reports.tables import table
from jdp.guarantees import rounded_down, rounded_up

RESULTS = "procedures.json"


def save(path: pathlib.Path, sound: Sequence[Row], broken: Sequence[Row]) -> None:
  """Writes the rows to a file."""
  rows = {"sound": sound, "broken": broken}
  files.write_json(path, {name: [row._asdict() for row in own] for name, own in rows.items()})


def load(path: pathlib.Path) -> tuple[list[Row], list[Row]]:
  """The sound and the broken rows of a file that `save` wrote."""
  found = files.read_json(path)
  sound, broken = ([Row(**row) for row in found[name]] for name in ("sound", "broken"))
  return sound, broken


def procedures_part(options: AuditOptions, rows: Sequence[Row], broken: Sequence[Row]) -> Part:
  """The tables of procedures, and a picture of what was proved."""
  above = [row.name for row in rows if is_refuted(row)]
  verdict = f"REFUTED: {'; '.join(above)}." if above else "No stated epsilon is refuted."
  missed = [row.name for row in broken if not is_refuted(row)]
  found = f"NOT FOUND: {'; '.join(missed)}." if missed else "All are refuted."
  text = f"""{tables(rows, broken)}

The last table has procedures with faults that libraries had. {found}

{verdict} The canary sends the clip norm along a coordinate of its own in every round, or nothing
(zero-out). All else is silent, but for the weighted average, where one client sends the opposite.
With adaptive clipping the observer sees the clip norms too. Half of {options.num_runs} runs with
the canary, and half of as many without, choose a threshold, and the others measure it. These bounds
hold together with probability {options.confidence}. The *learned* score is that of a classifier
which sees all models and knows nothing of the procedure. The user of Draw and Discard sends an end
of its domain or the other.

The second table has a smaller delta, which no direct count reaches. It goes by way of mu, so it
presumes that a run is one Gaussian release, as the ledger says. *One run* has
{options.one_run_canaries} canaries, each by a fair coin; a few are guessed, against the trade-off
curve (arXiv 2410.22235) or one epsilon (arXiv 2305.08846, which presumes nothing). These bounds
hold together with probability {options.central_confidence}."""
  return Part("Training procedures", text, {"procedure_audit": _figure(rows)})


def is_refuted(row: Row) -> bool:
  """Whether a bound exceeds what is stated for its delta."""
  many = (row.proved, row.last_model, row.learned)
  strict = (row.gaussian, row.one_run_gaussian, row.one_run)
  return any(own is not None and own > row.stated for own in many) or any(
    own is not None and row.strict_stated is not None and own > row.strict_stated for own in strict
  )


def tables(rows: Sequence[Row], broken: Sequence[Row]) -> str:
  """Three tables in Markdown: direct counts, what curves and one run prove, broken procedures."""
  header = ["procedure", "δ", "stated", "certified", "many runs: at least", "share"]
  direct = table(
    [*header, "last model", "learned"],
    (
      [
        *(row.name, str(row.delta), rounded_up(row.stated, 4), _down(row.certified)),
        *(_down(row.proved), _share(row.proved, row.stated)),
        *(_down(row.last_model), _down(row.learned)),
      ]
      for row in rows
    ),
  )
  strict = [(row, row.strict_stated) for row in rows if row.strict_stated is not None]
  header = ["procedure", "δ", "stated", "many runs, by mu", "share"]
  by_curve = table(
    [*header, "one run, by mu", "one run, one ε"],
    (
      [
        *(row.name, str(row.strict_delta), rounded_up(stated, 4)),
        *(_down(row.gaussian), _share(row.gaussian, stated)),
        *(_down(row.one_run_gaussian), _down(row.one_run)),
      ]
      for row, stated in strict
    ),
  )
  refuted = table(
    ["broken procedure", "δ", "stated", "many runs: at least"],
    ([row.name, str(row.delta), rounded_up(row.stated, 4), _down(row.proved)] for row in broken),
  )
  return f"{direct}\n\n{by_curve}\n\n{refuted}"


def _down(value: float | None) -> str:
  return "" if value is None else str(rounded_down(value, 4))


def _share(value: float | None, stated: float) -> str:
  return "" if value is None else f"{rounded_down(100 * value / stated, 3)} %"


def _figure(rows: Sequence[Row]) -> Figure:
  """Everything as a share of what is stated for the same delta."""
  figure, axes = plots.figure("ε, of the ε stated", "", "Audits: stated, certified, proved")
  style.percent(axes.xaxis)
  points: dict[str, list[tuple[float | None, float | None]]] = {
    "many runs": [(row.proved, row.stated) for row in rows],
    "many runs, last model": [(row.last_model, row.stated) for row in rows],
    "one run, by mu": [(row.one_run_gaussian, row.strict_stated) for row in rows],
    "one run, one ε": [(row.one_run, row.strict_stated) for row in rows],
  }
  for label, look in style.series(list(points)).items():
    found = [
      (proved / stated, place)
      for place, (proved, stated) in enumerate(points[label])
      if proved is not None and stated
    ]
    if found:
      axes.plot(*zip(*found, strict=True), label=label, **{**look, "linestyle": "none"})
  certified = [
    (row.certified / row.stated, place)
    for place, row in enumerate(rows)
    if row.certified is not None
  ]
  if certified:
    lowest, places = zip(*certified, strict=True)
    axes.hlines(places, lowest, 1.0, label="certified interval", **style.REFERENCE)
  axes.set(xlim=(0, 1.05), yticks=range(len(rows)), yticklabels=[row.name for row in rows])
  axes.axvline(1.0, linestyle="--", **style.REFERENCE)
  axes.invert_yaxis()
  return figure
