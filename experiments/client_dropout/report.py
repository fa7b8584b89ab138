"""The report of client dropout: trained runs, then each scheme's cost at the published setting."""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from experiments.client_dropout import correlated, errors, masked, privacy
from experiments.client_dropout.options import LABELS, LOST, ClientDropoutOptions, DropoutOptions
from experiments.client_dropout.settings import INTEGERS, NoisePlan, lines
from experiments.runner.problems.images import data_name
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports import plots, statements, style
from experiments.runner.reports.parts import Part, write_sweep_report
from experiments.runner.reports.summary import Row, curves, last_params, summarise, write_results
from experiments.runner.reports.tables import by_column, epsilon, percent, properties, table
from experiments.runner.runs.costs import other_accountant
from experiments.runner.runs.finished_ledgers import finished_ledger
from experiments.runner.runs.kept_rows import kept_rows
from experiments.runner.runs.sweep import Finished
from experiments.runner.runs.training import TrainingOptions
from experiments.runner.runs.workdir import Workdir
from jdp import accounting
from jdp.events import DistributedGaussianSum, Round, SkellamSum
from jdp.events.queries import QueryEvent
from jdp.guarantees import Observer, rounded_up
from jdp.numerics.rotations import randomized_hadamard
from jdp.queries.base import PyTree
from jdp.queries.distributed.integer_sums import Grid

_EPSILON = "ε of the run so far, against the models' readers"
_Finished = Finished[ClientDropoutOptions, LearningProblem]


def report_dropout(plan: NoisePlan, sweep: _Finished) -> None:
  """Writes results.json, the plots and report.md, and prints the results."""
  workdir, options, _, results = sweep
  rows = [{**row, **_realised(workdir, row, options)} for row in summarise(results)]
  planned = {"noise_multiplier": plan.noise_multiplier}
  baselines = ["the errors of survivors' averages"] if options.average_errors else []
  write_results(sweep, rows, baselines=baselines, further=planned)
  title = "Distributed noise under client dropout"
  write_sweep_report(workdir, "client_dropout", title, options, _parts(sweep, plan, rows))


def _parts(sweep: _Finished, plan: NoisePlan, rows: list[Row]) -> Iterator[Part]:
  workdir, options, problem, results = sweep
  figures = {"accuracy_against_dropout": _dropout_figure(options, rows), **_rounds_figures(sweep)}
  yield Part("Results", _table(options, rows), figures)
  yield Part("What was compared", _compared(options, plan), printed=False)
  yield Part("What was guaranteed", _guaranteed(options, rows, results))
  if options.average_errors:
    params = next(iter(last_params(workdir, rows[:1], problem.init).values()))
    survivors = {"survivors_over_rounds": errors.survivors_figure(options, problem)}
    yield Part("Survivors and their average", _losses(options, problem, params), survivors)
  if any(name in INTEGERS for name in options.schemes):
    yield Part("Floats and integers", _floats_and_integers(options, problem, plan, rows))
  if options.masked_clients is not None:
    yield Part("Sums that open under masks", _masked(workdir, options, problem, plan))
  if options.correlated_groups is not None:
    yield Part("Correlated integers in training", _correlated(workdir, options, problem))
    of_sums = {"errors_of_sums": correlated.errors_figure(options, problem)}
    yield Part(
      "Errors of correlated integers", _correlated_errors(workdir, options, problem), of_sums
    )
    yield Part("Exact epsilons of small runs", _enumerated(workdir))
    yield Part("Bytes of correlated integers", _correlated_bytes(options, problem))
  yield Part("The publication's comparison", _claims())
  yield Part("Variances of the noise", _variances())
  published = {"epsilon_published_setting": privacy.rounds_figure()}
  yield Part("Epsilon against dropout", _against_dropout(), published, printed=False)
  yield Part("Bits per weight", _bits(problem, plan), printed=False)
  yield Part("What was measured", _measured(options, problem, plan), printed=False)


def _realised(workdir: Workdir, row: Row, options: ClientDropoutOptions) -> Row:
  """What a setting's ledgers say.

  These are its realised noise, the worst epsilon against the server, and the number of abandoned
  rounds.
  """
  spent = [
    finished_ledger(workdir.path / row["setting"] / str(seed)) for seed in range(row["seeds"])
  ]
  server = max(
    accounting.epsilon(one, options.delta, accountant=options.accountant, observer=Observer.SERVER)
    for one in spent
  )
  events = [
    (event.query, count)
    for one in spent
    for event, count in one.entries
    if isinstance(event, Round) and event.observer == Observer.MODEL
  ]
  variances = np.array([_multiplier(query) ** 2 for query, _ in events])
  counts = np.array([count for _, count in events])
  # An abandoned round releases nothing, so its noise does not count in the realised multiplier. An
  # event without `released` is of a round that cannot be abandoned.
  kept = np.array([getattr(query, "released", True) for query, _ in events], bool)
  return {
    "multiplier": float(np.average(variances[kept], weights=counts[kept])) ** 0.5
    if kept.any()
    else None,
    "server": server if math.isfinite(server) else None,
    "abandoned": int(counts[~kept].sum()),
  }


def _multiplier(query: QueryEvent) -> float:
  if isinstance(query, SkellamSum):
    return (query.share_variance * int(query.num_shares)) ** 0.5 / query.l2_norm
  assert isinstance(query, DistributedGaussianSum)
  return float(query.stddev) / float(query.clip_norm)


def _table(options: TrainingOptions, rows: Sequence[Row]) -> str:
  return by_column(
    {
      "run": row["label"],
      "realised z": "none" if row["multiplier"] is None else f"{row['multiplier']:.2f}",
      "ε against readers of the models": statements.short(row["central"]),
      f"by {other_accountant(options.accountant)}": epsilon(row["beside"]),
      "ε against the server": epsilon(row["server"]),
      "abandoned": f"{row['abandoned']} of {row['rounds'].mean * row['seeds']:.0f}",
      "test accuracy": percent(row["test_accuracy"]),
    }
    for row in rows
  )


def _rounds_figures(sweep: _Finished) -> dict[str, Figure]:
  """Accuracy and epsilon over the rounds."""
  by_label, figures = curves(sweep), {}
  for metric in ("test_accuracy", "central_epsilon"):
    figure, axes = plots.figure("rounds", _EPSILON, _title(sweep.options))
    if metric != "central_epsilon":
      style.metric_axis(axes.yaxis, metric)
    measured = {
      label: [[row for row in rows if row[metric] is not None] for rows in group]
      for label, group in by_label.items()
    }
    plots.curves(axes, measured, metric)
    figures[f"{metric}_over_rounds"] = figure
  return figures


def _dropout_figure(options: ClientDropoutOptions, rows: Sequence[Row]) -> Figure:
  figure, axes = plots.figure("clients lost", "", _title(options))
  style.percent(axes.xaxis)
  style.metric_axis(axes.yaxis, "test_accuracy")
  found = lines(options)
  labels = {line.name: f"{LABELS[line.scheme]}{line.lost}" for line in found}
  looks = style.series(list(labels.values()))
  for name, label in labels.items():
    own = [row["test_accuracy"] for row in rows if row["setting"].rpartition("_")[0] == name]
    plots.points(axes, options.dropouts, own, label, looks[label])
  return figure


def _title(options: ClientDropoutOptions) -> str:
  data = f"{data_name(options)} ({options.partition})"
  lost = ", ".join(LOST[name] for name in options.dropout_models)
  return statements.marked(f"Client dropout, {data}, lost: {lost}", options)


def _compared(options: DropoutOptions, plan: NoisePlan) -> str:
  return f"""Every round announces all {plan.num_clients} clients. Each trains on its own data, its
difference clipped to C = {options.clip_norm:g} after every batch, and adds its share of noise; some
vanish before they report, and their shares with them. "Realised z" is the root mean square over the
rounds of the noise's standard deviation over the bound on a client, as the ledger holds it; planned
was {rounded_up(plan.noise_multiplier, 4)}. The average is over those who reported."""


def _guaranteed(options: TrainingOptions, rows: Sequence[Row], results: Sequence[Row]) -> str:
  return f"""All data of one user, under zero-out (the user's vector replaced by zero, its noise
still added), given who took part when, from the run's `ledger.jsonl`. The server follows the
protocol and sees sums only: secure aggregation is assumed here, not run. All clients add their
noise: for those who do not, see below. Who vanishes must not depend on the data; with
--dropout_models=by_size it does, and that tells of itself.

{statements.guarantees(rows, "central", options.accountant)}

{statements.together(results, "central")}

{statements.not_covered("the test examples")}"""


def _losses(options: ClientDropoutOptions, problem: LearningProblem, params: PyTree) -> str:
  return f"""{errors.DRAWS} rounds each, without noise, from the last model of the first run. The
error of the survivors' average is by the length of everybody's average. Its bias is the mean error;
what chance leaves of so many rounds is taken off. NOT private: no guarantee covers this table.

{errors.losses_table(options, problem, params)}"""


def _floats_and_integers(
  options: ClientDropoutOptions, problem: LearningProblem, plan: NoisePlan, rows: Sequence[Row]
) -> str:
  integers = rounded_up(plan.grid_stddev or 0.0, 4)
  return f"""The error is the root mean square per weight of what noise, and rounding to integers,
add to a round's sum: measured on made-up updates in {errors.NOISES} rounds, whether or not they
would be abandoned. Planned were {rounded_up(plan.noise_multiplier, 4)} for floats and {integers}
for integers, whose bound is larger.

{errors.noise_table(options, problem, plan, rows)}"""


def _masked(
  workdir: Workdir, options: ClientDropoutOptions, problem: LearningProblem, plan: NoisePlan
) -> str:
  train = partial(masked.trained, options, problem, plan.noise_multiplier, workdir.path)
  cases = list(itertools.product(options.masked_thresholds, options.dropouts))
  rows = kept_rows(cases, train, workdir.path / "masked.jsonl")
  return f"""The first {options.masked_clients} users, the planned z, one repetition. A report and a
calibration are integers of {options.modulus_bits} bits with Skellam noise, under masks shared with
neighbours; one sum of both opens, if enough neighbours of every client answer. A round with fewer
than {options.min_clients} clients at a stage is abandoned. A client sends a
report and a calibration. Milliseconds are the processor's, of all parties' work by the number of
clients, without network and key agreement.

{masked.masked_table(options, problem, rows)}"""


def _correlated(workdir: Workdir, options: ClientDropoutOptions, problem: LearningProblem) -> str:
  train = partial(correlated.trained, options, problem, workdir.path)
  cases = list(itertools.product(correlated.NOISES, options.dropouts))
  rows = kept_rows(cases, train, workdir.path / "correlated.jsonl")
  return f"""{problem.num_users} users in {options.correlated_groups} groups that take turns, for
{options.num_rounds} rounds, with noise by all users in every round, for up to
{percent(options.max_dropout, 0)} lost. Those who are lost leave for good, each before a round drawn
at random. One repetition. The error is that of a coordinate of the sum over rounds, by theory, root
mean square over the rounds. Epsilon is that of the tightest accountant, under zero-out.

{correlated.training_table(rows)}"""


def _correlated_errors(
  workdir: Workdir, options: ClientDropoutOptions, problem: LearningProblem
) -> str:
  def compute(_: None) -> list[Row]:
    return correlated.error_rows(options, problem.num_users)

  (rows,) = kept_rows([None], compute, workdir.path / "correlated_errors.jsonl")
  return f"""The error of the sums over rounds by that of a central run with the same strategy and
guarantee, which nobody's loss touches: root mean square over {options.num_rounds} rounds. Measured
on one run without records.

{correlated.error_table(rows)}"""


def _enumerated(workdir: Workdir) -> str:
  cases = correlated.ENUMERATED
  rows = kept_rows(cases, correlated.enumeration_row, workdir.path / "enumerated.jsonl")
  (coarse,) = kept_rows([None], correlated.coarse_row, workdir.path / "coarse.jsonl")
  return f"""Runs on one number, by the probabilities of all sums that the server may see.

{correlated.enumeration_table(rows)}

One client, of a variance of 2 in units of the grid, and records of 1 at most in two rounds, on a
lattice that is too coarse for the query:

{table(["rounding of the half", "exact ε"], [[name, f"{found:.3f}"] for name, found in coarse])}"""


def _correlated_bytes(options: ClientDropoutOptions, problem: LearningProblem) -> str:
  return f"""What one of {problem.num_users} clients sends in a round, beside the keys of secure
aggregation.

{correlated.bytes_table(options, problem)}"""


def _variances() -> str:
  return f"""z = {privacy.Z}, {privacy.CLIENTS} clients announced, in units of C². The publication's
Table 1 is a picture whose figures are not in the text that we have; these follow from its
description.

{privacy.variances_table()}"""


def _claims() -> str:
  return f"""z = {privacy.Z}, {privacy.ROUNDS} rounds, δ = {privacy.DELTA}:

{privacy.claims_table()}

The publication claims protection better by 15 % and by 50 %, without a formula; ε falls by less, by
exact accounting of its setting. Rounds at a fixed ε go with the variance, 1 / (1 - r) for a dropout
of r: nearest to the claims."""


def _against_dropout() -> str:
  return f"""z = {privacy.Z}, {privacy.ROUNDS} rounds, δ = {privacy.DELTA}, {privacy.CLIENTS}
clients, exact; all who report calibrate. "Calibration outside" reaches the server on its own, which
subtracts it. Excess noise is for up to 50 % lost.

{privacy.epsilon_table()}

Rounds at the epsilon of the planned run:

{privacy.rounds_table()}

Where clients vanish during the calibration, or are dishonest and leave out their noise:

{privacy.calibration_table()}"""


def _bits(problem: LearningProblem, plan: NoisePlan) -> str:
  dim = randomized_hadamard(problem.dim).dim
  return f"""For {plan.num_clients} clients of {problem.dim} weights and the planned noise. Integers
are bounded by S in place of C, and need as much more noise for the same ε: the runs on integers
have it.

{privacy.bits_table(dim, plan.num_clients, plan.noise_multiplier)}"""


def _measured(options: ClientDropoutOptions, problem: LearningProblem, plan: NoisePlan) -> str:
  training = (
    f"{options.local_epochs} epochs, batches of {options.local_batch_size}, "
    f"learning rate {options.local_learning_rate:g}"
  )
  facts = {
    "data": f"{data_name(options)}, {plan.num_clients} users ({options.partition})",
    "examples of a user": f"{'' if problem.equal else 'up to '}{np.asarray(problem.sizes).max()}",
    "model": f"{options.model}, {problem.dim} parameters",
    "dropout": ", ".join(LOST[name] for name in options.dropout_models),
    "local training": training,
    "noise multiplier z, planned": rounded_up(plan.noise_multiplier, 4),
    **({} if plan.grid is None else {"integers": _integers(options, plan.grid)}),
    "rounds": options.num_rounds,
    "repetitions": options.seeds,
  }
  return f"""Accuracy on the test examples, of the last model of each run. Means over repetitions,
each with its own initial model, dropout and noise; ± is the 95 % interval of Student's t. The
clients' noise was drawn at once, from the exact distribution of its sum.

{properties(facts)}"""


def _integers(options: DropoutOptions, grid: Grid) -> str:
  return f"{options.modulus_bits} bits, S = {rounded_up(grid.l2_norm * grid.spacing, 4)} C"
