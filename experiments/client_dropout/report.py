"""The report of the client-dropout experiment: trained runs, then what each scheme costs at the published setting."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.client_dropout import privacy
from experiments.client_dropout.settings import LABELS, Plan
from experiments.runner import files
from experiments.runner.reports import plots
from experiments.runner.reports import tables as reports
from experiments.runner.runs.sweep import curves, summarise
from experiments.runner.runs.workdir import LEDGER, Workdir, environment
from experiments.runner.tasks.task import Task
from jdp import accounting, ledger
from jdp.events import DiscreteGaussianSum, DistributedGaussianSum
from jdp.guarantees import Observer, rounded_up
from jdp.queries.rotation import randomized_hadamard

Row = dict[str, Any]


def write_report(workdir: Workdir, options: Any, task: Task, plan: Plan, results: Sequence[Row]) -> None:
  """Writes results.json, the plots and report.md, and prints the table and where they lie."""
  rows = [{**row, **_realised(workdir, row, options.delta)} for row in summarise(results)]
  files.write_json(
    workdir.path / "results.json",
    {
      "not_private": reports.not_private(options),
      "flags": vars(options),
      "noise_multiplier": plan.noise_multiplier,
      "summary": reports.to_json(rows),
      "runs": results,
    },
  )
  _plot_rounds(workdir, options, results)
  _plot_dropout(workdir, options, rows)
  plots.save(privacy.rounds_figure(), workdir.path / "epsilon_published_setting.png")
  files.write(workdir.path / "report.md", _report(options, task, plan, rows, results).encode())
  stated = f"{_table(rows)}\n\n{reports.guarantees(rows, 'central')}"
  print(f"\n{reports.notice(options)}{stated}\n\n{_claims()}\n\nReport: {workdir.path / 'report.md'}")


def _realised(workdir, row, delta) -> Row:
  """What the ledgers of a setting say: the worst epsilon against the server; of all rounds, noise and abandoned."""
  spent = [ledger.load(workdir.path / row["setting"] / str(seed) / LEDGER) for seed in range(row["seeds"])]
  server = max(accounting.epsilon(one, delta, observer=Observer.SERVER) for one in spent)
  rounds: list[Any] = [entry for one in spent for entry in one.entries]
  events = [(e.query, count) for e, count in rounds if e.observer == Observer.MODEL]
  variances = np.array([_multiplier(query) ** 2 for query, _ in events])
  counts = np.array([count for _, count in events])
  kept = np.array([getattr(query, "released", True) for query, _ in events], bool)
  return {
    "multiplier": float(np.average(variances[kept], weights=counts[kept])) ** 0.5 if kept.any() else None,
    "server": server if math.isfinite(server) else None,
    "abandoned": int(counts[~kept].sum()),
  }


def _multiplier(query: DistributedGaussianSum | DiscreteGaussianSum) -> float:
  if isinstance(query, DiscreteGaussianSum):
    return float(query.share_stddev) * int(query.num_shares) ** 0.5 / float(query.l2_norm)
  return float(query.stddev) / float(query.clip_norm)


def _table(rows) -> str:
  header = ["run", "realised z", "ε against the models' readers", "ε against the server", "abandoned", "test accuracy"]
  return reports.table(
    header,
    (
      [
        row["label"],
        "none" if row["multiplier"] is None else f"{row['multiplier']:.2f}",
        reports.short(row["central"]),
        reports.epsilon(row["server"]),
        f"{row['abandoned']} of {row['rounds'].mean * row['seeds']:.0f}",
        reports.percent(row["test_accuracy"]),
      ]
      for row in rows
    ),
  )


def _plot_rounds(workdir, options, results):
  by_label = curves(workdir, results)
  for metric, ylabel in (("test_accuracy", "test accuracy"), ("central_epsilon", "ε against the models' readers")):
    figure, axes = plots.figure("rounds", ylabel, _title(options))
    measured = {
      label: [[row for row in rows if row[metric] is not None] for rows in group] for label, group in by_label.items()
    }
    plots.curves(axes, measured, metric)
    plots.save(figure, workdir.path / f"{metric}_over_rounds.png")


def _plot_dropout(workdir, options, rows):
  figure, axes = plots.figure("share of clients lost", "test accuracy", _title(options))
  for name in options.schemes:
    intervals = [row["test_accuracy"] for row in rows if row["setting"].rpartition("_")[0] == name]
    plots.points(axes, options.dropouts, intervals, LABELS[name])
  plots.save(figure, workdir.path / "accuracy_against_dropout.png")


def _title(options) -> str:
  label = " (NOT PRIVATE)" if reports.not_private(options) else ""
  return f"Client dropout, {options.dataset} ({options.partition}), {options.dropout_model}{label}"


def _claims() -> str:
  return f"z = {privacy.Z}, {privacy.ROUNDS} rounds, δ = {privacy.DELTA}:\n\n{privacy.claims_table()}"


def _report(options, task, plan, rows, results) -> str:
  dim = randomized_hadamard(task.dim).dim
  return f"""# Distributed noise under client dropout

{reports.notice(options)}{_table(rows)}

![Accuracy against dropout](accuracy_against_dropout.png)
![Accuracy over rounds](test_accuracy_over_rounds.png)
![Epsilon over rounds](central_epsilon_over_rounds.png)

Every round announces all {plan.num_clients} clients. Each trains on its own data, its difference clipped to
C = {options.clip_norm:g} after every batch, and adds its share of noise; some vanish before they report, and their
shares with them. "Realised z" is the root mean square over the rounds of the noise's standard deviation over the bound
on a client, as the ledger holds it; planned was {rounded_up(plan.noise_multiplier, 4)}. The average is over those who
reported.

## What was guaranteed

All data of one user, under zero-out (the user's vector replaced by zero, its noise still added), given
who took part when; by Rényi accounting from the run's `ledger.jsonl`. The server follows the protocol and sees sums
only: secure aggregation is assumed here, not run. All clients add their noise: for those who do not, see below.
Who vanishes must not depend on the data; with --dropout_model=by_size it does, and that tells of itself.

{reports.guarantees(rows, "central")}

{reports.together(results, "central")}

Not covered: the choice of the settings, if these data were looked at for it; attacks on the low-order bits of
float32 noise, and its tails beyond 7.45 standard deviations (the integers' noise has neither); the test examples.

## The publication's comparison

{_claims()}

The publication claims protection better by 15 % and by 50 %, without a formula; ε falls by less, by exact accounting
of its setting. Rounds at a fixed ε go with the variance, 1 / (1 - r) for a dropout of r: nearest to the claims.

## Epsilon against dropout

z = {privacy.Z}, {privacy.ROUNDS} rounds, δ = {privacy.DELTA}, {privacy.CLIENTS} clients, exact; all who report
calibrate. "Calibration outside" reaches the server on its own, which subtracts it. Excess noise is for up to 50 % lost.

{privacy.epsilon_table()}

Rounds at the epsilon of the planned run:

{privacy.rounds_table()}

![Epsilon over rounds at the published setting](epsilon_published_setting.png)

Where clients vanish during the calibration, or are dishonest and leave out their noise:

{privacy.calibration_table()}

## Bits per weight

For {plan.num_clients} clients of {task.dim} weights and the planned noise. Integers are bounded by S in place of C, and
need as much more noise for the same ε: the runs on integers have it.

{privacy.bits_table(dim, plan.num_clients, plan.noise_multiplier)}

## What was measured

Accuracy on the test examples, of the last model of each run. Means over repetitions, each with its own initial
model, dropout and noise; ± is the 95 % interval of Student's t. The clients' noise was drawn at once, from the exact
law of its sum (integers: share by share).

{reports.properties(_measured(options, task, plan))}

{reports.ending("client_dropout", environment())}"""


def _measured(options, task, plan) -> Row:
  return {
    "data": f"{options.dataset}, {plan.num_clients} users ({options.partition})",
    "examples of a user": f"{'' if task.equal else 'up to '}{task.sizes.max()}",
    "model": f"{options.model}, {task.dim} parameters",
    "dropout": options.dropout_model,
    "local training": f"{options.local_epochs} epochs, batches of {options.local_batch_size}, learning rate "
    f"{options.local_learning_rate:g}",
    "noise multiplier z, planned": rounded_up(plan.noise_multiplier, 4),
    **(
      {}
      if plan.grid is None
      else {"integers": f"{options.modulus_bits} bits, S = {rounded_up(_inflation(plan.grid), 4)} C"}
    ),
    "rounds": options.num_rounds,
    "repetitions": options.seeds,
  }


def _inflation(grid) -> float:
  return grid.l2_norm * grid.spacing
