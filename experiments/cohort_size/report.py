"""The report of the size of cohorts: accuracy, error and time against it."""

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from experiments.cohort_size.options import LABELS, CohortSizeOptions
from experiments.cohort_size.round_errors import Variant, all_users_average, round_error
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports import plots, statements, style
from experiments.runner.reports.parts import Part, write_sweep_report
from experiments.runner.reports.statistics import Interval
from experiments.runner.reports.summary import Row, summarise, unprotected, write_results
from experiments.runner.reports.tables import percent, properties, table
from experiments.runner.runs.sweep import Finished
from jdp.guarantees import rounded_up

Cell = Callable[[Row], str]


def report_sizes(
  variants: Sequence[Variant], sweep: Finished[CohortSizeOptions, LearningProblem]
) -> None:
  """Measures rounds, writes results.json, the plots and report.md, and prints the results."""
  workdir, options, problem, results = sweep
  problem = problem._replace(clients=jax.tree.map(jnp.asarray, problem.clients))  # once
  clipped = {variant.run: variant.run != "none" for variant in variants}
  truths = {run: all_users_average(options, problem, own) for run, own in clipped.items()}
  summary = []
  for variant, row in zip(variants, summarise(results), strict=True):
    own = {"run": variant.run, "size": variant.size, "z": variant.plan.noise_multiplier}
    error = round_error(options, problem, variant, truths[variant.run])
    summary.append({**row, **own, "error": error})
  baselines = ["errors of rounds compare their averages with that of all users"]
  write_results(sweep, summary, baselines=baselines + unprotected(summary))
  title = "The size of a cohort"
  write_sweep_report(workdir, "cohort_size", title, options, _parts(options, problem, summary))


def _parts(
  options: CohortSizeOptions, problem: LearningProblem, summary: Sequence[Row]
) -> Iterator[Part]:
  metric = problem.headline

  def accuracy(row: Row) -> str:
    return percent(row[metric])

  yield Part(
    "Accuracy",
    f"{_table(options, summary, accuracy)}\n\n{_FINAL}",
    {"accuracy_against_cohort": _accuracy_figure(options, metric, summary)},
  )
  yield Part(
    "Error of a round's average",
    f"{_table(options, summary, _error)}\n\n{_ERRORS}",
    {"error_against_cohort": _error_figure(options, summary)},
  )
  yield Part("Processor time of a round", f"{_table(options, summary, _time)}\n\n{_TIMES}")
  noise = [
    [f"{size:,}", rounded_up(next(iter(_of_size(summary, size).values()))["z"], 4)]
    for size in options.cohort_sizes
  ]
  yield Part("Noise multipliers", table(["cohort", "z"], noise), printed=False)
  stated = statements.guarantees(summary, "central", options.accountant)
  yield Part("Central guarantees", statements.units(problem.protects) + stated, printed=False)
  yield Part(
    "Local guarantees, one release", statements.guarantees(summary, "release"), printed=False
  )
  yield Part("What was learnt", properties(problem.described), printed=False)


_FINAL = "The last model, on data of nobody who takes part; ± is the 95 % interval of repetitions."
_ERRORS = """The root mean square distance of a round's average to the average of all users'
updates (clipped, but without privacy), of rounds from the first model. In brackets stands that of
the noise alone, by theory, for updates of the norm to which they are clipped. Only a simulation can
know it."""
_TIMES = "Milliseconds of all cores, the median of the same rounds."


def _of_size(summary: Sequence[Row], size: int) -> dict[str, Row]:
  return {row["run"]: row for row in summary if row["size"] == size}


def _table(options: CohortSizeOptions, summary: Sequence[Row], cell: Cell) -> str:
  """A row for each size, a column for each run."""
  rows = (
    [f"{size:,}", *map(cell, _of_size(summary, size).values())] for size in options.cohort_sizes
  )
  return table(["cohort", *(LABELS[run] for run in options.runs)], rows)


def _error(row: Row) -> str:
  noise = f" ({row['error']['noise']:.3g})" if row["error"]["noise"] else ""
  return f"{row['error']['measured']:.3g}{noise}"


def _time(row: Row) -> str:
  return f"{1e3 * row['error']['seconds']:.3g}"


def _accuracy_figure(options: CohortSizeOptions, metric: str, summary: Sequence[Row]) -> Figure:
  made = _figure(options, summary, "", lambda row: row[metric])
  style.metric_axis(made.axes[0].yaxis, metric)
  return made


def _error_figure(options: CohortSizeOptions, summary: Sequence[Row]) -> Figure:
  made = _figure(
    options,
    summary,
    "error of a round's average (L2)",
    lambda row: Interval(row["error"]["measured"], None),
  )
  made.axes[0].set_yscale("log")
  return made


def _figure(
  options: CohortSizeOptions, summary: Sequence[Row], ylabel: str, value: Callable[[Row], Interval]
) -> Figure:
  title = statements.marked(f"{options.dataset}, {options.model}", options)
  made, axes = plots.figure("expected users of a round", ylabel, title)
  axes.set_xscale("log")
  style.marked_values(axes, {size: f"{size:,}" for size in options.cohort_sizes})
  for run, look in style.series(list(options.runs)).items():
    own = [value(row) for row in summary if row["run"] == run]
    plots.points(axes, options.cohort_sizes, own, LABELS[run], look)
  return made
