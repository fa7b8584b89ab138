"""The report of DP-FedAvg: a table of noise, epsilon and accuracy with curves and guarantees."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.dp_fedavg.averages import OF_BASELINES, Federation
from experiments.dp_fedavg.comparisons import (
  Noised,
  epsilons_of_plans,
  loss_of_plans,
  predicted_by_spent,
  predicted_loss,
  predicted_right,
)
from experiments.dp_fedavg.options import AverageOptions, DPFedAvgOptions
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.problems.prior import describe_start
from experiments.runner.problems.text_options import TEXT
from experiments.runner.published_language_models import published_table
from experiments.runner.reports import gains, plots, statements, style
from experiments.runner.reports.parts import Part, write_sweep_report
from experiments.runner.reports.statistics import mean_interval
from experiments.runner.reports.summary import (
  Row,
  curves,
  last_params,
  rounds_done,
  summarise,
  unprotected,
  write_results,
)
from experiments.runner.reports.tables import by_column, epsilon, percent, points, properties
from experiments.runner.runs.finished_ledgers import finished_ledger
from experiments.runner.runs.sweep import Finished, Setting
from experiments.runner.runs.workdir import Workdir
from jdp import accounting, ledger
from jdp.events import GaussianSum, GroupedSums, Round, WeightedAverage
from jdp.events.queries import QueryEvent
from jdp.guarantees import Unit, rounded_up


class Variant(NamedTuple):
  """A row of the table.

  Attributes:
    setting: what is run.
    options: its options. They differ from the experiment's where --vary changes them.
    federation: who takes part, with what noise; None without privacy.
  """

  setting: Setting
  options: DPFedAvgOptions
  federation: Federation | None


_Finished = Finished[DPFedAvgOptions, LearningProblem]
_PLANNED = ["planned users", "planned cohort", "planned ε, rdp", "planned ε, moments"]


def report_averaging(variants: Sequence[Variant], sweep: _Finished) -> None:
  """Writes results.json, the plots and report.md, and prints the results."""
  workdir, options, problem, results = sweep
  histories = curves(sweep)
  smoothed = {
    label: [smoothed_end(run, problem.headline, options.smoothing) for run in runs]
    for label, runs in histories.items()
  }
  summary = _summary(workdir, problem, variants, results, smoothed)
  write_results(sweep, summary, baselines=unprotected(summary))
  first = summary[0]["label"]
  start = _initial_metric(problem, histories[first], smoothed[first])
  parts = _parts(sweep, variants, summary, histories, start)
  title = "Federated averaging with user-level privacy (arXiv 1710.06963)"
  write_sweep_report(workdir, "dp_fedavg", title, options, parts)


def smoothed_end(rows: Sequence[Row], metric: str, window: int) -> float:
  """The mean of a run's last `window` evaluations of trained models.

  For an untrained run it is the run's only evaluation.

  >>> smoothed_end(
  ...   [{"round": 0, "x": 0.0}, {"round": 5, "x": 0.6}, {"round": 10, "x": 0.8}], "x", 5
  ... )
  0.7
  """
  trained = [row for row in rows if row["round"] > 0][-window:]
  return float(np.mean([row[metric] for row in trained or rows]))


def _initial_metric(
  problem: LearningProblem, runs: Sequence[Sequence[Row]], smoothed: Sequence[float]
) -> Row:
  """The initial models' headline metric, and its difference to the first row's last evaluations."""
  first = [run[0][problem.headline] for run in runs]
  gained = [value - end for value, end in zip(first, smoothed, strict=True)]
  return {"value": mean_interval(first), "difference": mean_interval(gained)}


def _summary(
  workdir: Workdir,
  problem: LearningProblem,
  variants: Sequence[Variant],
  results: Sequence[Row],
  last: Mapping[str, Sequence[float]],
) -> list[Row]:
  """A row for each setting: what `summarise` says, and what the table adds to it.

  Args:
    workdir: where the ledgers lie.
    problem: what was learnt, from whom.
    variants: what was run.
    results: of `run_sweep`.
    last: by label, `smoothed_end` of each repetition.
  """
  # Repetitions are paired: they share initial models and local randomness with the first row's.
  reference = last[variants[0].setting.label]
  summary = []
  for variant, summed in zip(variants, summarise(results), strict=True):
    values = last[summed["label"]]
    differences = [value - other for value, other in zip(values, reference, strict=True)]
    summary.append(
      {
        **summed,
        "smoothed": mean_interval(values),
        "smoothed_each": list(values),
        "difference": mean_interval(differences),
        "records": problem.num_records(Unit((summed["central"] or {"unit": "user"})["unit"])),
        **_noise_columns(workdir, variant, summed),
      }
    )
  return summary


def _noise_columns(workdir: Workdir, variant: Variant, summed: Row) -> Row:
  """The noise by the ledger, and the cost of the plan that the noise belongs to."""
  federation = variant.federation
  if federation is None:
    return {
      "clip_norm": None,
      "stddev": None,
      "noise_multiplier": None,
      "cohort": variant.options.cohort_size,
      "planned": None,
    }
  spent = finished_ledger(workdir.path / variant.setting.name / "0")
  # The ledger begins with the prior's events; the first after them is of the first round.
  first = next(itertools.islice(spent, len(federation.prior), None), None)
  clip_norm = stddev = None
  if isinstance(first, Round):
    clip_norm, stddev = first_noise(first.query, federation.expected_weight)
  # A plan of its own means that the noise of a larger cohort was simulated.
  simulated = federation.planned is not federation.actual
  return {
    "clip_norm": clip_norm,
    "stddev": stddev,
    "noise_multiplier": federation.actual.noise_multiplier,
    "cohort": federation.actual.sampler.expected_size,
    "planned": _planned_row(federation, round(summed["rounds"].mean)) if simulated else None,
  }


def first_noise(query: QueryEvent, expected_weight: float) -> tuple[float, float]:
  """The clip norm S and the noise's standard deviation on a coordinate of the average.

  Both come from a query's event.

  >>> from jdp.events import GaussianSum
  >>> first_noise(GaussianSum(0.5, 2.0), 100.0)
  (0.5, 0.02)
  """
  if isinstance(query, GroupedSums):
    sums = [part for part, name in zip(query.parts, query.labels, strict=True) if name != "count"]
    clip_norms, stddevs = zip(*(first_noise(part, expected_weight) for part in sums), strict=True)
    return math.hypot(*clip_norms), stddevs[-1]
  # The event of a weighted average states the noise of the average itself.
  assert isinstance(query, GaussianSum | WeightedAverage)
  denominator = 1.0 if isinstance(query, WeightedAverage) else expected_weight
  return float(query.clip_norm), float(query.stddev) / denominator


def _planned_row(federation: Federation, num_rounds: int) -> Row:
  """The plan whose noise was used, with its epsilons by two accountants; null where infinite."""
  plan, users = federation.planned, federation.planned_users
  q = plan.sampler.expected_size / users
  spent = federation.prior + ledger.subsampled_gaussian(q, plan.noise_multiplier, num_rounds)
  epsilons = {
    name: accounting.epsilon(spent, plan.delta, accountant=name) for name in ("rdp", "moments")
  }
  return {
    "users": users,
    "cohort": plan.sampler.expected_size,
    "noise_multiplier": plan.noise_multiplier,
    "delta": plan.delta,
    **{name: value if math.isfinite(value) else None for name, value in epsilons.items()},
  }


def _parts(
  sweep: _Finished,
  variants: Sequence[Variant],
  summary: Sequence[Row],
  histories: Mapping[str, Sequence[Sequence[Row]]],
  start: Row,
) -> Iterator[Part]:
  workdir, options, problem, results = sweep
  title = statements.marked(f"DP-FedAvg, {options.dataset}", options)
  figure, axes = plots.figure("rounds", "", title)
  style.metric_axis(axes.yaxis, problem.headline)
  plots.curves(axes, histories, problem.headline)
  text = _results(options, problem, summary, start)
  pairs = list(_pairs(variants, summary))
  yield Part("Results", text, {"accuracy_over_rounds": figure})
  if options.dataset in TEXT:
    yield Part("Words predicted right", predicted_right(summary, start["value"]))
    if lost := loss_of_plans([(clean, row) for _, clean, row in pairs]):
      yield Part("Loss beside the published one", lost)
    if options.report_epsilons:
      by_spent = predicted_by_spent(histories, options.report_epsilons)
      yield Part("Words predicted right by ε spent", by_spent)
  if plans := epsilons_of_plans(summary, options.plan_rounds):
    yield Part("ε of the plans", plans)
  if noised := list(_noised(workdir, problem, summary, pairs)):
    yield Part("What noise costs", predicted_loss(problem, noised))
  yield Part("What was guaranteed", _guarantees(options, problem, summary, results))
  yield from gains.attacker_parts(workdir, summary, title)
  if problem.parts is not None:
    yield from problem.parts(last_params(workdir, summary, problem.init))
  if options.dataset in TEXT:
    yield Part("The published configurations", published_table())
  yield Part("What was measured", _measured(options, problem, summary), printed=False)


def _results(
  options: DPFedAvgOptions, problem: LearningProblem, summary: Sequence[Row], start: Row
) -> str:
  simulated = any(row["planned"] for row in summary)
  lines = [_row_cells(row, options, problem, simulated=simulated) for row in summary]
  before = {
    **dict.fromkeys(lines[0], ""),
    "run": "before the first round",
    problem.headline.replace("_", " "): percent(start["value"]),
    "difference to the first run": points(start["difference"]),
  }
  return f"{by_column([before, *lines])}{_SIMULATED if simulated else ''}"


def _row_cells(
  row: Row, options: DPFedAvgOptions, problem: LearningProblem, *, simulated: bool
) -> dict[str, str]:
  """The cells by column; some columns are there in some reports alone."""
  mean = f"mean of the last {options.smoothing} evaluations"
  return {
    "run": row["label"],
    "noise": _number(row["stddev"]),
    "S": _number(row["clip_norm"]),
    "users": str(row["records"]),
    "cohort": f"{row['cohort']:g}",
    "ε of this run": statements.short(row["central"]),
    **(_planned_cells(row["planned"]) if simulated else {}),
    problem.headline.replace("_", " "): percent(row[problem.headline]),
    **({mean: percent(row["smoothed"])} if options.smoothing > 1 else {}),
    "difference to the first run": points(row["difference"]),
  }


_SIMULATED = """

"Noise" is the standard deviation on a coordinate of the average: here that of the *planned*
cohort's. "ε of this run" is what the users of this run were promised; "planned ε" is what users of
the plan would be, and nobody was: it is there to say which guarantee such accuracy goes with, as
far as a small cohort's average is as good as a large one's."""


def _number(value: float | None) -> str:
  return "none" if value is None else f"{value:.4g}"


def _planned_cells(planned: Row | None) -> dict[str, str]:
  if planned is None:
    return dict.fromkeys(_PLANNED, "none")
  by_rdp = f"{epsilon(planned['rdp'])} (δ = {rounded_up(planned['delta'], 3)})"
  cells = (str(planned["users"]), f"{planned['cohort']:g}", by_rdp, epsilon(planned["moments"]))
  return dict(zip(_PLANNED, cells, strict=True))


def _pairs(
  variants: Sequence[Variant], summary: Sequence[Row]
) -> Iterator[tuple[DPFedAvgOptions, Row, Row]]:
  """Rows whose training was done without privacy too: the options, that row, and the row."""
  rows = list(zip(variants, summary, strict=True))
  for variant, row in rows:
    given = {name: getattr(variant.options, name) for name in OF_BASELINES}
    clean = next(
      (
        other
        for baseline, other in rows
        if baseline.federation is None
        and all(getattr(baseline.options, name) == value for name, value in given.items())
      ),
      None,
    )
    if clean and row["stddev"]:  # so little noise too that no epsilon is finite
      yield variant.options, clean, row


def _noised(
  workdir: Workdir,
  problem: LearningProblem,
  summary: Sequence[Row],
  pairs: Sequence[tuple[DPFedAvgOptions, Row, Row]],
) -> Iterator[Noised]:
  """The rows whose noise plain averaging adds, and whose training was done without privacy too."""
  params = last_params(workdir, summary, problem.init)
  for options, clean, row in pairs:
    if (row["central"] or {"unit": Unit.USER})["unit"] == Unit.USER and _adds(options):
      stddev = row["stddev"] * options.server_learning_rate
      yield Noised(row, stddev, row["rounds"].mean, clean, params[clean["label"]])


def _adds(options: AverageOptions) -> bool:
  """Whether the server adds every round's average, with noise of one size."""
  return options.server_optimizer == "sgd" and options.clip_decay == 1


def _guarantees(
  options: DPFedAvgOptions, problem: LearningProblem, summary: Sequence[Row], results: Sequence[Row]
) -> str:
  not_covered = statements.not_covered("the test data", "public text, where there is any")
  return f"""{statements.units(problem.protects)}\
Against whoever sees all released models of a run and nothing else, from the run's `ledger.jsonl`.
The server is trusted to sample, which it does by Poisson sampling, and to add the noise. "No
guarantee" (ε = ∞) means that the run is a baseline, or has too little noise. Its last model lies in
its folder too and may say anything.

{statements.guarantees(summary, "central", options.accountant)}

{statements.together_by_scope(results)}

{not_covered}{_prior_releases(options, problem)}"""


def _prior_releases(options: DPFedAvgOptions, problem: LearningProblem) -> str:
  """A paragraph on what was released before the first round; empty if nothing was."""
  if options.warm_start is not None:
    start = options.warm_start
  elif problem.prior.entries:
    start = "the count of the words, in `vocabulary`"
  else:
    return ""
  return f"\n\n{describe_start(start, problem, options, public=options.warm_start_public)}"


def _measured(options: DPFedAvgOptions, problem: LearningProblem, summary: Sequence[Row]) -> str:
  last = f", of the mean of the last {options.smoothing} evaluations after round 0"
  one_start = options.warm_start or options.public_passes
  own = (
    "samples and noise, all from one initial model"
    if one_start
    else "initial model, samples and noise"
  )
  facts = {
    **problem.described,
    **({"begun with": options.warm_start} if options.warm_start else {}),
    "rounds": rounds_done(summary),
    "repetitions": options.seeds,
  }
  return f"""The {problem.headline.replace("_", " ")} of the last model of each run. Means over
repetitions, each with its own {own}; ± is the 95 % interval of Student's t. Differences are in
points, between repetitions with the same initial model and local
randomness{last if options.smoothing > 1 else ""}.

{properties(facts)}"""
