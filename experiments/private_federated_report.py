"""The report of private federated learning: results, guarantees and plots."""

from collections.abc import Sequence
from typing import Any

from experiments.runner import files, plots, reports
from experiments.runner.federation import Plan
from experiments.runner.sweep import curves, summarise
from experiments.runner.task import Task
from experiments.runner.workdir import Workdir, environment

Row = dict[str, Any]
_HEADER = ["run", "local ε, one release", "local ε, all releases", "central ε", "test accuracy"]
_STYLES = {"none": "--", "central": ":"}


def write_report(workdir: Workdir, options: Any, task: Task, plan: Plan, results: Sequence[Row]) -> None:
  """Writes results.json, the plots and report.md, and prints the table and where they lie."""
  rows = summarise(results)
  files.write_json(
    workdir.path / "results.json",
    {
      "not_private": reports.not_private(options) + _baselines(rows),
      "flags": vars(options),
      "summary": reports.to_json(rows),
      "runs": results,
    },
  )
  _plot_curves(workdir, options, results)
  _plot_epsilons(workdir, options, rows)
  files.write(workdir.path / "report.md", _report(options, task, plan, rows, results).encode())
  print(f"\n{reports.notice(options)}{_table(rows)}\n\nReport: {workdir.path / 'report.md'}")
  print(f"Plots: {workdir.path / 'accuracy_over_rounds.png'}, {workdir.path / 'accuracy_against_epsilon.png'}")


def _baselines(rows: Sequence[Row]) -> list[str]:
  unprotected = [row["setting"] for row in rows if row["central"] is None]
  return [f"the models of baseline {name!r} were trained without privacy" for name in unprotected]


def _table(rows: Sequence[Row]) -> str:
  return reports.table(
    _HEADER,
    (
      [
        row["label"],
        reports.short(row["release"]),
        reports.short(row["local"]),
        reports.short(row["central"]),
        reports.percent(row["test_accuracy"]),
      ]
      for row in rows
    ),
  )


def _title(options) -> str:
  label = " (NOT PRIVATE)" if reports.not_private(options) else ""
  return f"Private federated learning, {options.dataset}, {options.model}{label}"


def _plot_curves(workdir, options, results):
  figure, axes = plots.figure("rounds", "test accuracy", _title(options))
  plots.curves(axes, curves(workdir, results), "test_accuracy")
  plots.save(figure, workdir.path / "accuracy_over_rounds.png")


def _plot_epsilons(workdir, options, rows):
  figure, axes = plots.figure("ε₁, local privacy loss of a release's direction", "test accuracy", _title(options))
  local = [row for row in rows if row["setting"] not in _STYLES]
  if local:
    epsilons = options.epsilon_directions
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons], minor=False)
    axes.minorticks_off()
    plots.points(axes, epsilons, [row["test_accuracy"] for row in local], "local and central")
  for row in rows:
    if row["setting"] in _STYLES:
      plots.level(axes, row["test_accuracy"], row["label"], _STYLES[row["setting"]])
  plots.save(figure, workdir.path / "accuracy_against_epsilon.png")


def _report(options, task: Task, plan: Plan, rows, results) -> str:
  return f"""# Private federated learning (arXiv 1812.00984, Sections 3.1 and 5)

{reports.notice(options)}{_table(rows)}

![Test accuracy over rounds](accuracy_over_rounds.png)

![Test accuracy against the local epsilon](accuracy_against_epsilon.png)

## What was guaranteed

The unit is a user with all of its examples. "No guarantee" (ε = ∞) means that the run is a baseline, whose last
model lies in its folder too and may say anything about the users, or that no round was done.

**Central**, against whoever sees every released model of a run and nothing else, by Rényi accounting of the
Poisson-subsampled Gaussian sum (arXiv 1908.10530) from the run's `ledger.jsonl`. The server is trusted to sample and
to add the noise.

{reports.guarantees(rows, "central")}

{reports.together(results, "central")}

**Local**, against the server, which sees every release and who made it, so that sampling amplifies nothing. One
release:

{reports.guarantees(rows, "release")}

All releases of a user in a run: they add up, and the participation cap, a public number, is
{plan.sampler.max_participations} of {options.num_rounds} rounds.

{reports.guarantees(rows, "local")}

{reports.together(results, "local")}

Not covered: the choice of the settings, if these data were looked at for it; attacks on the low-order bits of
float32 noise, and its tails beyond 7.45 standard deviations; the test examples.

## What was measured

Accuracy on the test examples, of the last model of each run. Means over repetitions, each with its own initial
model, samples and noise; ± is the 95 % interval of Student's t.

{reports.properties(_measured(options, task, plan, rows))}

{reports.ending("private_federated", environment(), _randomness(options))}"""


def _randomness(options) -> str:
  if options.noise_seed is not None:
    return "The noise is seeded: the same versions and devices give the same bits."
  return "Noise is drawn from the operating system's entropy (ChaCha20): figures repeat up to their intervals."


def _measured(options, task, plan, rows) -> Row:
  return {
    "data": options.dataset,
    "users": f"{task.num_users}, partition {options.partition}",
    "examples per user": options.examples_per_user or "see --examples_per_user",
    "model": f"{options.model}, {task.dim} parameters",
    "expected cohort": f"{plan.sampler.expected_size:g} of {task.num_users} users, Poisson sampling",
    "noise multiplier z": f"{plan.noise_multiplier:.4g}",
    "rounds": ", ".join(dict.fromkeys(f"{row['rounds'].mean:g}" for row in rows)),
    "budget": "none" if options.max_epsilon is None else f"central ε = {options.max_epsilon:g}; see rounds",
    "repetitions": options.seeds,
  }
