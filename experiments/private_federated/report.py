"""The report of private federated learning: results, guarantees and plots."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from experiments.runner import files
from experiments.runner.federation import Plan
from experiments.runner.reports import plots
from experiments.runner.reports import tables as reports
from experiments.runner.reports.parts import Part, section
from experiments.runner.reports.statistics import Interval, mean_interval
from experiments.runner.runs.sweep import curves, last_params, metric_names, summarise
from experiments.runner.runs.workdir import Workdir, environment
from experiments.runner.tasks.task import Task
from jdp.guarantees import rounded_up

Row = dict[str, Any]
_GUARANTEES = {"release": "local ε, one release", "local": "local ε, all releases", "central": "central ε"}
_STYLES = {"none": "--", "central": ":"}


def write_report(
  workdir: Workdir, options: Any, task: Task, plan: Plan, rows: Sequence[Any], results: Sequence[Row]
) -> None:
  """Writes results.json, the plots and report.md, and prints the table and where they lie.

  Args:
    workdir: gets the files.
    options: the experiment's.
    task: what was learnt.
    plan: who took part, with what noise.
    rows: what was run: `setting`, `local_error` and `central_error`.
    results: of `run_sweep`.
  """
  summary = summarise(results)
  histories = curves(workdir, results)
  start = _before(next(iter(histories.values())))
  table = _table(summary, start)
  files.write_json(
    workdir.path / "results.json",
    {
      "not_private": reports.not_private(options) + _baselines(summary),
      "flags": vars(options),
      "summary": reports.to_json(summary),
      "runs": results,
    },
  )
  _plot_curves(workdir, options, task, histories)
  _plot_epsilons(workdir, options, task, summary, start[task.headline])
  parts = "".join(f"{section(workdir, part)}\n" for part in _further(workdir, task, summary))
  report = _report(options, task, plan, rows, summary, results, table, parts)
  files.write(workdir.path / "report.md", report.encode())
  stated = reports.guarantees(summary, "central")
  print(f"\n{reports.notice(options)}{table}\n\nCentral:\n\n{stated}\n\nReport: {workdir.path / 'report.md'}")
  print(f"Plots: {workdir.path / 'accuracy_over_rounds.png'}, {workdir.path / 'accuracy_against_epsilon.png'}")


def _further(workdir, task, summary) -> Iterable[Part]:
  return task.parts(last_params(workdir, summary, task.init)) if task.parts else ()


def _before(repetitions: Sequence[Sequence[Row]]) -> dict[str, Interval]:
  """The metrics of the models that all runs begin with."""
  first = [rows[0] for rows in repetitions]
  return {name: mean_interval([row[name] for row in first]) for name in metric_names(first[0])}


def _baselines(rows: Sequence[Row]) -> list[str]:
  unprotected = [row["setting"] for row in rows if row["central"] is None]
  return [f"the models of baseline {name!r} were trained without privacy" for name in unprotected]


def _table(summary: Sequence[Row], start: Mapping[str, Interval]) -> str:
  """Guarantees and metrics of each row; first, `start`, the metrics before the first round."""
  before = ["before the first round", *[""] * len(_GUARANTEES), *_cells(start)]
  lines = (
    [row["label"], *(reports.short(row[kind]) for kind in _GUARANTEES), *_cells({name: row[name] for name in start})]
    for row in summary
  )
  return reports.table(["run", *_GUARANTEES.values(), *map(_words, start)], [before, *lines])


def _cells(metrics: Mapping[str, Interval]) -> Iterator[str]:
  for name, interval in metrics.items():
    yield reports.percent(interval) if "accuracy" in name else reports.number(interval)


def _words(metric: str) -> str:
  return metric.replace("_", " ")


def _title(options) -> str:
  label = " (NOT PRIVATE)" if reports.not_private(options) else ""
  return f"Private federated learning, {', '.join(filter(None, (options.dataset, options.model)))}{label}"


def _plot_curves(workdir, options, task, histories):
  figure, axes = plots.figure("rounds", _words(task.headline), _title(options))
  plots.curves(axes, histories, task.headline)
  plots.save(figure, workdir.path / "accuracy_over_rounds.png")


def _plot_epsilons(workdir, options, task, summary, start):
  figure, axes = plots.figure("ε₁, local privacy loss of a release's direction", _words(task.headline), _title(options))
  local = [row for row in summary if row["setting"] not in _STYLES]
  if local:
    epsilons = options.epsilon_directions
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [rounded_up(epsilon) for epsilon in epsilons], minor=False)
    axes.minorticks_off()
    plots.points(axes, epsilons, [row[task.headline] for row in local], "local and central")
  for row in summary:
    if row["setting"] in _STYLES:
      plots.level(axes, row[task.headline], row["label"], _STYLES[row["setting"]])
  if options.public_passes:
    plots.level(axes, start, "before the first round", "-.")
  plots.save(figure, workdir.path / "accuracy_against_epsilon.png")


def _report(options, task: Task, plan: Plan, rows, summary, results, table, parts) -> str:
  return f"""# Private federated learning (arXiv 1812.00984, Sections 3.1 and 5)

{reports.notice(options)}{table}

![Accuracy over rounds](accuracy_over_rounds.png)

![Accuracy against the local epsilon](accuracy_against_epsilon.png)

## What was guaranteed

The unit is a user with all of its examples. "No guarantee" (ε = ∞) means that the run is a baseline, whose last
model lies in its folder too and may say anything about the users, or that no round was done.

**Central**, against whoever sees every released model of a run and nothing else, by Rényi accounting of the
Poisson-subsampled Gaussian sum (arXiv 1908.10530) from the run's `ledger.jsonl`. The server is trusted to sample and
to add the noise.

{reports.guarantees(summary, "central")}

{reports.together(results, "central")}

**Local**, against the server, which sees every release and who made it, so that sampling amplifies nothing. One
release:

{reports.guarantees(summary, "release")}

All releases of a user in a run: they add up, and the participation cap, a public number, is
{plan.sampler.max_participations} of {options.num_rounds} rounds.

{reports.guarantees(summary, "local")}

{reports.together(results, "local")}

Not covered: the choice of the settings, if these data were looked at for it; attacks on the low-order bits of
float32 noise, and its tails beyond 7.45 standard deviations; the test data; public text, where there is any.

## What was measured

The last model of each run, on data of nobody who takes part. Means over repetitions, each with its own samples and
noise; ± is the 95 % interval of Student's t.

{reports.properties(_measured(options, task, plan, summary))}

What noise does to the average of a round: the root mean square of its L2 error, if every update has the norm
{options.max_update_norm:g} to which updates are clipped. It is spread evenly over the {task.dim:,} parameters.

{_errors(rows)}

{parts}{reports.ending("private_federated", environment(), _randomness(options))}"""


def _errors(rows) -> str:
  lines = ([row.setting.label, f"{row.local_error:.3g}", f"{row.central_error:.3g}"] for row in rows)
  return reports.table(["run", "error from the local mechanism", "error from the central noise"], lines)


def _randomness(options) -> str:
  if options.noise_seed is not None:
    return "The noise is seeded: the same versions and devices give the same bits."
  return "Noise is drawn from the operating system's entropy (ChaCha20): figures repeat up to their intervals."


def _measured(options, task, plan, summary) -> Row:
  return {
    **task.described,
    "expected cohort": f"{plan.sampler.expected_size:g} of {task.num_users} users, Poisson sampling",
    "noise multiplier z": rounded_up(plan.noise_multiplier, 4),
    "rounds": ", ".join(dict.fromkeys(f"{row['rounds'].mean:g}" for row in summary)),
    "budget": "none" if options.max_epsilon is None else f"central ε = {rounded_up(options.max_epsilon)}; see rounds",
    "repetitions": options.seeds,
  }
