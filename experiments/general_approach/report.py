"""The report of the general approach: results, each group's share of the noise, guarantees."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.general_approach.queries import Groups
from experiments.runner.reports import gains, plots, statements, style
from experiments.runner.reports.parts import Part, write_sweep_report
from experiments.runner.reports.summary import Row, curves, rounds_done, summarise, write_results
from experiments.runner.reports.tables import epsilon, percent, properties, table
from experiments.runner.runs.finished_ledgers import finished_ledger
from experiments.runner.runs.workdir import Workdir
from jdp import accounting, ledger
from jdp.events import FixedSizeSampling, GaussianSum, Round

_HEADER = [
  "run",
  "unit",
  "ε by rdp",
  "ε by pld",
  "test accuracy",
  "training accuracy, released",
]


def report_groups(
  workdir: Workdir, options: Any, task: Any, groups: Groups, results: Sequence[Row]
) -> None:
  """Writes results.json, the plot and report.md, and prints the results."""
  rows = summarise(results)
  rounds = {row["setting"]: _first_ledger(workdir, row) for row in rows}
  for row in rows:
    row["pld"] = _pld_epsilon(rounds[row["setting"]], options.delta)
  write_results(workdir, options, rows, results, baselines=_baselines(rows))
  parts = _parts(workdir, options, task, groups, rows, rounds, results)
  title = "A general approach to private iterative training (arXiv 1812.06210)"
  write_sweep_report(workdir, "general_approach", title, options, parts)


def _parts(
  workdir: Workdir,
  options: Any,
  task: Any,
  groups: Groups,
  rows: Sequence[Row],
  rounds: Mapping[str, ledger.Ledger],
  results: Sequence[Row],
) -> Iterator[Part]:
  figures = {"accuracy_over_rounds": _figure(workdir, options, results)}
  yield Part("Results", _table(rows), figures)
  yield Part("What was compared", _COMPARED, printed=False)
  yield Part(
    "How the noise was divided", _DIVIDED + _noise_table(groups, rows, rounds), printed=False
  )
  yield Part("What was guaranteed", _guaranteed(options, rows, results))
  title = statements.marked(f"A general approach, {options.dataset}", options)
  yield from gains.attacker_parts(workdir, rows, title)
  yield Part("What was measured", _measured(options, task, rows), printed=False)


def _first_ledger(workdir: Workdir, row: Row) -> ledger.Ledger:
  """The ledger of a setting's first repetition."""
  return finished_ledger(workdir.path / row["setting"] / "0")


def _pld_epsilon(spent: ledger.Ledger, delta: float) -> float | None:
  """Epsilon by privacy loss distributions; None if it is infinite or there is no such analysis."""
  first = next(iter(spent), None)
  # Fixed-size sampling has no such analysis.
  if not isinstance(first, Round) or isinstance(first.sampling, FixedSizeSampling):
    return None
  found = accounting.epsilon(spent, delta, accountant="pld")
  return found if math.isfinite(found) else None


def _baselines(rows: Sequence[Row]) -> list[str]:
  return [
    f"the model of run {row['setting']!r} was trained without privacy, and its training metrics "
    "carry no noise"
    for row in rows
    if row["central"] is None
  ]


def _table(rows: Sequence[Row]) -> str:
  return table(_HEADER, map(_cells, rows))


def _cells(row: Row) -> list[str]:
  # Round 0 is evaluated before any release, so its training metrics are not released.
  released = "train_accuracy" in row and row["rounds"].mean
  return [
    row["label"],
    row["central"]["unit"] if row["central"] else "none",
    statements.short(row["central"]),
    "none" if row["pld"] is None else epsilon(row["pld"]),
    percent(row["test_accuracy"]),
    percent(row["train_accuracy"]) if released else "none",
  ]


def _figure(workdir: Workdir, options: Any, results: Sequence[Row]) -> Figure:
  title = f"A general approach, {options.dataset}, {options.model}"
  ylabel = "test accuracy" + ("; released training accuracy (dashed)" if options.metrics else "")
  figure, axes = plots.figure("rounds", ylabel, statements.marked(title, options))
  style.percent(axes.yaxis)
  by_label = curves(workdir, results)
  plots.curves(axes, by_label, "test_accuracy")
  if options.metrics:
    _plot_released(axes, by_label)
  return figure


def _plot_released(axes: Axes, by_label: Mapping[str, Any]) -> None:
  """Plots the released training accuracies, dashed, in the colours of the test accuracies."""
  for line, repetitions in zip(list(axes.lines), by_label.values(), strict=True):
    rounds, intervals = plots.merge([rows[1:] for rows in repetitions], "train_accuracy")
    means = [interval.mean for interval in intervals]
    axes.plot(rounds, means, "--", color=line.get_color(), alpha=0.7)


def _noise_table(groups: Groups, rows: Sequence[Row], rounds: Mapping[str, ledger.Ledger]) -> str:
  """A table of each group's bound and noise, as the ledgers state them."""
  cells = []
  for row in rows:
    first = next(iter(rounds[row["setting"]]), None)
    if row["central"] and isinstance(first, Round):
      cells.append([row["label"], *_group_cells(groups, first)])
  names = (f"{name} ({groups.dimensions[name]})" for name in groups.clip_norms)
  return table(["run", *names, "z"], cells)


def _group_cells(groups: Groups, event: Round) -> list[str]:
  """Each group's bound and noise, and the noise multiplier of all groups together (Section 3)."""
  query: Any = event.query
  if isinstance(query, GaussianSum):
    scaled = [f"joint, {query.stddev * scale:.3g}" for scale in groups.clip_norms.values()]
    return [*scaled, f"{query.stddev / query.clip_norm:.4g}"]
  # The groups' losses add up in squares.
  z = 1 / math.hypot(*(part.clip_norm / part.stddev for part in query.parts))
  return [*(f"{part.clip_norm:.3g}, {part.stddev:.3g}" for part in query.parts), f"{z:.4g}"]


_COMPARED = """Every round samples records once, and releases one noised average of all groups of
their vectors. It steps the optimiser, moves the running statistics of batch normalisation, and is
the training metric: dashed lines come from the query's result, not from the data. Test accuracy is
computed from examples that are nobody's record. Joint clipping shortens all groups of a record
together: where gradients are long, the training accuracy that it releases is too low."""

_DIVIDED = """Bound S and standard deviation on the sum, of each group (with its coordinates). Joint
clipping bounds all groups together, each divided by its S. All rows have the same noise multiplier
z together.

"""


def _guaranteed(options: Any, rows: Sequence[Row], results: Sequence[Row]) -> str:
  return f"""Against whoever sees all released values of a run (weights, running statistics,
training metrics) and nothing else, by Rényi accounting from the run's `ledger.jsonl`. The server is
trusted to sample ({options.sampling}) and to add the noise. "No guarantee" (ε = ∞) means that the
run is a baseline.

{statements.guarantees(rows, "central")}

{statements.together_by_unit(results)}

A microbatch's members were fixed before sampling, and it is the microbatch that is protected.

{statements.not_covered("the test examples")}"""


def _measured(options: Any, task: Any, rows: Sequence[Row]) -> str:
  sizes = {kind: r.sampler.expected_size for kind, r in task.records.items()}
  counts = {kind: len(r.examples.labels) for kind, r in task.records.items()}
  facts = {
    "data": options.dataset,
    "records": ", ".join(f"{count} x {kind}" for kind, count in counts.items()),
    "expected sample": ", ".join(f"{size:g} x {kind}" for kind, size in sizes.items()),
    "sampling": f"{options.sampling}, {task.relation.label}",
    "model": options.model,
    "noise multiplier z": str(options.noise_multiplier),
    "rounds": rounds_done(rows),
    "repetitions": options.seeds,
  }
  return f"""Accuracy on the test examples, of the last model of each run. Means over repetitions,
each with its own initial model, samples and noise; ± is the 95 % interval of Student's t.

{properties(facts)}"""
