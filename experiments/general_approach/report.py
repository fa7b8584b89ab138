"""The report of the general approach: results, what each group got of the noise, guarantees, plots."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.general_approach.queries import Groups
from experiments.runner import files
from experiments.runner.reports import plots
from experiments.runner.reports import tables as reports
from experiments.runner.runs.sweep import curves, summarise
from experiments.runner.runs.workdir import LEDGER, Workdir, environment
from jdp import accounting, ledger
from jdp.events import FixedSizeSampling, GaussianSum, Round

Row = dict[str, Any]
_HEADER = ["run", "unit", "ε by rdp", "ε by pld", "test accuracy", "training accuracy, released"]


def write_report(workdir: Workdir, options: Any, task: Any, groups: Groups, results: Sequence[Row]) -> None:
  """Writes results.json, the plots and report.md, and prints the table and where they lie."""
  rows = summarise(results)
  rounds = {row["setting"]: _rounds(workdir, row) for row in rows}
  for row in rows:
    row["pld"] = _pld(rounds[row["setting"]], options.delta)
  files.write_json(
    workdir.path / "results.json",
    {
      "not_private": reports.not_private(options) + _baselines(rows),
      "flags": vars(options),
      "summary": reports.to_json(rows),
      "runs": results,
    },
  )
  _plot(workdir, options, results)
  files.write(workdir.path / "report.md", _report(options, task, groups, rows, rounds, results).encode())
  stated = f"{_table(rows)}\n\n{reports.guarantees(rows, 'central')}"
  print(f"\n{reports.notice(options)}{stated}\n\nReport: {workdir.path / 'report.md'}")
  print(f"Plot: {workdir.path / 'accuracy_over_rounds.png'}")


def _rounds(workdir, row) -> ledger.Ledger:
  """The ledger of a setting's first repetition."""
  return ledger.load(workdir.path / row["setting"] / "0" / LEDGER)


def _pld(spent: ledger.Ledger, delta: float) -> float | None:
  """Epsilon by privacy loss distributions; None where there is none, or no such analysis."""
  first = next(iter(spent), None)
  if not isinstance(first, Round) or isinstance(first.sampling, FixedSizeSampling):
    return None
  epsilon = accounting.epsilon(spent, delta, accountant="pld")
  return epsilon if math.isfinite(epsilon) else None


def _baselines(rows) -> list[str]:
  return [
    f"the model of run {row['setting']!r} was trained without privacy, and its training metrics carry no noise"
    for row in rows
    if row["central"] is None
  ]


def _table(rows) -> str:
  return reports.table(
    _HEADER,
    (
      [
        row["label"],
        row["central"]["unit"] if row["central"] else "none",
        reports.short(row["central"]),
        "none" if row["pld"] is None else reports.epsilon(row["pld"]),
        reports.percent(row["test_accuracy"]),
        reports.percent(row["train_accuracy"]) if "train_accuracy" in row and row["rounds"].mean else "none",
      ]
      for row in rows
    ),
  )


def _plot(workdir, options, results):
  figure, axes = plots.figure("rounds", "accuracy: test (solid), released training (dashed)", _title(options))
  by_label = curves(workdir, results)
  plots.curves(axes, by_label, "test_accuracy")
  if options.metrics:
    _plot_released(axes, by_label)
  plots.save(figure, workdir.path / "accuracy_over_rounds.png")


def _plot_released(axes, by_label: Mapping[str, Any]) -> None:
  """The released training accuracies, dashed, in the colours of the test accuracies; nothing is released at round 0."""
  for line, repetitions in zip(list(axes.lines), by_label.values(), strict=True):
    rounds, intervals = plots.merge([rows[1:] for rows in repetitions], "train_accuracy")
    axes.plot(rounds, [interval.mean for interval in intervals], "--", color=line.get_color())


def _title(options) -> str:
  label = " (NOT PRIVATE)" if reports.not_private(options) else ""
  return f"A general approach, {options.dataset}, {options.model}{label}"


def _noise(groups: Groups, rows, rounds) -> str:
  """What the ledgers say about each group."""
  cells = []
  for row in rows:
    first = next(iter(rounds[row["setting"]]), None)
    if row["central"] and isinstance(first, Round):
      cells.append([row["label"], *_group_cells(groups, first)])
  return reports.table(["run", *(f"{name} ({groups.dimensions[name]})" for name in groups.clip_norms), "z"], cells)


def _group_cells(groups: Groups, event: Round) -> list[str]:
  """Each group's bound and noise, and the noise multiplier of all together (Section 3)."""
  query: Any = event.query
  if isinstance(query, GaussianSum):
    scaled = [f"joint, {query.stddev * scale:.3g}" for scale in groups.clip_norms.values()]
    return [*scaled, f"{query.stddev / query.clip_norm:.4g}"]
  z = 1 / math.hypot(*(part.clip_norm / part.stddev for part in query.parts))
  return [*(f"{part.clip_norm:.3g}, {part.stddev:.3g}" for part in query.parts), f"{z:.4g}"]


def _report(options, task, groups, rows, rounds, results) -> str:
  return f"""# A general approach to private iterative training (arXiv 1812.06210)

{reports.notice(options)}{_table(rows)}

![Accuracy over rounds](accuracy_over_rounds.png)

Every round samples records once, and releases one noised average of all groups of their vectors. It steps the
optimiser, moves the running statistics of batch normalisation, and is the training metric: dashed lines come from the
query's result, not from the data. Test accuracy is computed from examples that are nobody's record. Joint clipping
shortens all groups of a record together: where gradients are long, the training accuracy that it releases is too low.

## How the noise was divided

Bound S and standard deviation on the sum, of each group (with its coordinates). Joint clipping bounds all groups
together, each divided by its S. All rows have the same noise multiplier z together.

{_noise(groups, rows, rounds)}

## What was guaranteed

Against whoever sees all released values of a run (weights, running statistics, training metrics) and nothing else, by
Rényi accounting from the run's `ledger.jsonl`. The server is trusted to sample ({options.sampling}) and to add the
noise. "No guarantee" (ε = ∞) means that the run is a baseline.

{reports.guarantees(rows, "central")}

{_together(results)}

A microbatch's members were fixed before sampling, and it is the microbatch that is protected.

Not covered: the choice of the settings, if these data were looked at for it; attacks on the low-order bits of
float32 noise, and its tails beyond 7.45 standard deviations; the test examples.

## What was measured

Accuracy on the test examples, of the last model of each run. Means over repetitions, each with its own initial
model, samples and noise; ± is the 95 % interval of Student's t.

{reports.properties(_measured(options, task, rows))}

{reports.ending("general_approach", environment())}"""


def _together(results) -> str:
  """What the runs about one kind of unit cost together."""
  units = dict.fromkeys(result["central"]["unit"] for result in results if result["central"])
  same = ([r for r in results if r["central"] and r["central"]["unit"] == unit] for unit in units)
  return "\n\n".join(reports.together(group, "central") for group in same)


def _measured(options, task, rows) -> Row:
  sizes = {kind: r.sampler.expected_size for kind, r in task.records.items()}
  return {
    "data": options.dataset,
    "records": ", ".join(f"{len(r.examples.labels)} x {kind}" for kind, r in task.records.items()),
    "expected sample": ", ".join(f"{size:g} x {kind}" for kind, size in sizes.items()),
    "sampling": f"{options.sampling}, {task.relation.label}",
    "model": options.model,
    "noise multiplier z": str(options.noise_multiplier),
    "rounds": ", ".join(dict.fromkeys(f"{row['rounds'].mean:g}" for row in rows)),
    "repetitions": options.seeds,
  }
