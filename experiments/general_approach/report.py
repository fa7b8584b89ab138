"""The report of the general approach: results, each group's share of the noise, guarantees."""

import math
from collections.abc import Iterator, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.general_approach.options import GeneralApproachOptions
from experiments.general_approach.queries import Groups
from experiments.general_approach.records import GroupsTask
from experiments.general_approach.tutorials import tutorial_of, tutorial_table
from experiments.runner.problems.images import data_name
from experiments.runner.reports import gains, plots, statements, style
from experiments.runner.reports.parts import Part, write_sweep_report
from experiments.runner.reports.summary import Row, curves, rounds_done, summarise, write_results
from experiments.runner.reports.tables import epsilon, percent, properties, table
from experiments.runner.runs.costs import other_accountant
from experiments.runner.runs.finished_ledgers import finished_ledger
from experiments.runner.runs.sweep import Finished
from experiments.runner.runs.training import TrainingOptions
from experiments.runner.runs.workdir import Workdir
from jdp import ledger
from jdp.events import DiscreteGaussianSum, GaussianSum, GroupedSums, Round
from jdp.events.queries import QueryEvent
from jdp.guarantees import rounded_up

_Finished = Finished[GeneralApproachOptions, GroupsTask]
_RELEASED = {
  "train_accuracy": "training accuracy, released",
  "class_shares_error": "error of class shares",
}


def report_groups(groups: Groups, seconds: Mapping[str, float], sweep: _Finished) -> None:
  """Writes results.json, the plot and report.md, and prints the results.

  `seconds` are the processor times of a round by setting, or empty.
  """
  workdir, options, _, results = sweep
  rows = summarise(results)
  rounds = {row["setting"]: _first_ledger(workdir, row) for row in rows}
  for row in rows:
    row["processor_seconds"] = seconds.get(row["setting"])
  write_results(sweep, rows, baselines=_baselines(rows))
  title = "A general approach to private iterative training (arXiv 1812.06210)"
  parts = _parts(sweep, groups, rows, rounds)
  write_sweep_report(workdir, "general_approach", title, options, parts)


def _parts(
  sweep: _Finished, groups: Groups, rows: Sequence[Row], rounds: Mapping[str, ledger.Ledger]
) -> Iterator[Part]:
  workdir, options, task, results = sweep
  figures = {"accuracy_over_rounds": _figure(sweep)}
  yield Part("Results", _table(options, rows), figures)
  if row := tutorial_of(options):
    (own,) = rows
    done, reached = round(own["rounds"].mean), own["test_accuracy"]
    yield Part("Beside what was published", tutorial_table(row, done, options.delta, reached))
  if any(row["processor_seconds"] is not None for row in rows):
    yield Part("Speed", _speed(options, rows))
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


def _baselines(rows: Sequence[Row]) -> list[str]:
  return [
    f"the model of run {row['setting']!r} was trained without privacy, and its training metrics "
    "carry no noise"
    for row in rows
    if row["central"] is None
  ]


def _table(options: TrainingOptions, rows: Sequence[Row]) -> str:
  # Round 0 is evaluated before any release, so its training metrics are not released.
  released = [name for name in _RELEASED if any(name in row for row in rows)]
  accountants = options.accountant, other_accountant(options.accountant)
  epsilons = (f"ε by {name}" for name in accountants)
  titles = (_RELEASED[name] for name in released)
  header = ["run", "unit, relation", *epsilons, "test accuracy", *titles]
  return table(header, (_cells(row, released) for row in rows))


def _cells(row: Row, released: Sequence[str]) -> list[str]:
  guarantee = row["central"]
  return [
    row["label"],
    f"{guarantee['unit']}, {guarantee['relation'].replace('_', '/')}" if guarantee else "none",
    statements.short(guarantee),
    epsilon(row["beside"]),
    percent(row["test_accuracy"]),
    *(percent(row[name]) if name in row and row["rounds"].mean else "none" for name in released),
  ]


def _speed(options: GeneralApproachOptions, rows: Sequence[Row]) -> str:
  lines = (
    [
      row["label"],
      percent(row["test_accuracy"]),
      f"{1000 * row['processor_seconds']:.3g} ms",
      f"{row['rounds'].mean * row['processor_seconds']:.3g} s",
    ]
    for row in rows
  )
  size = options.chunk_size
  chunks = "the default layout" if size is None else f"chunks of {size}"
  return f"""{table(["run", "test accuracy", "processor time of a round", "of all rounds"], lines)}

All cores together, mean of {options.timed_rounds} rounds without compilation, in {chunks}."""


def _figure(sweep: _Finished) -> Figure:
  options = sweep.options
  title = f"A general approach, {options.dataset}, {options.model}"
  ylabel = "test accuracy" + ("; released training accuracy (dashed)" if options.metrics else "")
  figure, axes = plots.figure("rounds", ylabel, statements.marked(title, options))
  style.percent(axes.yaxis)
  by_label = curves(sweep)
  plots.curves(axes, by_label, "test_accuracy")
  if options.metrics:
    _plot_released(axes, by_label)
  return figure


def _plot_released(axes: Axes, by_label: Mapping[str, Sequence[Sequence[Row]]]) -> None:
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
  query = event.query
  z = rounded_up(_multiplier(query), 4)
  if isinstance(query, GaussianSum):
    return [*(f"joint, {query.stddev * scale:.3g}" for scale in groups.clip_norms.values()), z]
  assert isinstance(query, GroupedSums)
  return [*map(_group_cell, query.parts), z]


def _group_cell(query: QueryEvent) -> str:
  if isinstance(query, GroupedSums):  # Adaptive clipping: the sum, and the count beside it.
    return f"{_group_cell(dict(zip(query.labels, query.parts, strict=True))['sum'])} at first"
  if isinstance(query, DiscreteGaussianSum):
    stddev = query.share_stddev * math.sqrt(query.num_shares)
    return f"{query.l2_norm:.3g}, {stddev:.3g} (integers)"
  assert isinstance(query, GaussianSum)
  return f"{query.clip_norm:.3g}, {query.stddev:.3g}"


def _multiplier(query: QueryEvent) -> float:
  """The noise multiplier of what was released. Groups' losses add up in squares."""
  if isinstance(query, GroupedSums):
    return 1 / math.hypot(*(1 / _multiplier(part) for part in query.parts))
  if isinstance(query, DiscreteGaussianSum):
    return query.share_stddev * math.sqrt(query.num_shares) / query.l2_norm
  assert isinstance(query, GaussianSum)
  return float(query.stddev) / float(query.clip_norm)


_COMPARED = """Every round samples records once, and releases one noised average of all groups of
their vectors. It steps the optimiser, moves the running statistics of batch normalisation, and is
the training metric: dashed lines come from the query's result, not from the data. Test accuracy is
computed from examples that are nobody's record. Joint clipping shortens all groups of a record
together: where gradients are long, the training accuracy that it releases is too low."""

_DIVIDED = """Bound S and standard deviation on the sum, of each group (with its coordinates). Joint
clipping bounds all groups together, each divided by its S. All rows have the same noise multiplier
z together.

"""


def _guaranteed(
  options: GeneralApproachOptions, rows: Sequence[Row], results: Sequence[Row]
) -> str:
  return f"""Against whoever sees all released values of a run (weights, running statistics,
training metrics) and nothing else, from the run's `ledger.jsonl`. The server is trusted
to sample ({", ".join(options.sampling)}) and to add the noise. "No guarantee" (ε = ∞) means that
the run is a baseline, or has too little noise.

{statements.guarantees(rows, "central", options.accountant)}

{statements.together_by_scope(results)}

A microbatch's members were fixed before sampling, and it is the microbatch that is protected.

{statements.not_covered("the test examples")}"""


def _measured(options: GeneralApproachOptions, task: GroupsTask, rows: Sequence[Row]) -> str:
  counts = {kind: records.examples.labels.shape for kind, records in task.records.items()}
  facts = {
    "data": data_name(options),
    "records": ", ".join(f"{count} x {kind} of {size}" for kind, (count, size) in counts.items()),
    "expected sample": f"{options.batch_size} examples",
    "sampling": ", ".join(options.sampling),
    "model": options.model,
    "noise multiplier z": str(options.noise_multiplier),
    "rounds": rounds_done(rows),
    "repetitions": options.seeds,
  }
  return f"""Accuracy on the test examples, of the last model of each run. Means over repetitions,
each with its own initial model, samples and noise; ± is the 95 % interval of Student's t.

{properties(facts)}"""
