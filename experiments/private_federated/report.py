"""The report of private federated learning: results, guarantees and plots."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from matplotlib.figure import Figure

from experiments.private_federated.limits import (
  MAGNITUDES,
  local_names,
  magnitude_figure,
  relative_error,
)
from experiments.private_federated.options import BASELINES, PrivateFederatedOptions
from experiments.runner.federation import Plan
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports import gains, plots, statements, style
from experiments.runner.reports.parts import Part, write_sweep_report
from experiments.runner.reports.statistics import Interval, mean_interval
from experiments.runner.reports.summary import (
  Row,
  curves,
  last_params,
  metric_names,
  rounds_done,
  summarise,
  write_results,
)
from experiments.runner.reports.tables import epsilon, metric, metric_titles, properties, table
from experiments.runner.runs.finished_ledgers import finished_ledger
from experiments.runner.runs.sweep import Finished, Setting
from experiments.runner.runs.workdir import Workdir
from jdp import accounting
from jdp.accounting.local.compressed_priv_unit import shortest_law
from jdp.guarantees import Observer, rounded_up

_Finished = Finished[PrivateFederatedOptions, LearningProblem]
Histories = Mapping[str, Sequence[Sequence[Row]]]
_GUARANTEES = {
  "release": "local ε, one release",
  "local": "local ε, all releases",
  "central": "central ε",
}
_MOMENTS = "by moments"  # the published accountant of the central ε
_LEVELS = ("--", ":", "-.", (0, (3, 1, 1, 1, 1, 1)))  # the lines of baselines and of the start


class NoisySetting(NamedTuple):
  """A row of the table.

  Attributes:
    setting: what is run.
    local_error: root mean squared L2 error that the local mechanism causes in the average of an
      expected cohort. It holds for updates that all have the norm --max_update_norm, and before the
      server's projection.
    central_error: the same error due to the central noise.
  """

  setting: Setting
  local_error: float
  central_error: float


def report_local_and_central(plan: Plan, rows: Sequence[NoisySetting], sweep: _Finished) -> None:
  """Writes results.json, the plots and report.md, and prints the results.

  `rows` is what was run.
  """
  workdir, options, _, results = sweep
  summary = [{**row, "moments": _moments(workdir, row, plan.delta)} for row in summarise(results)]
  write_results(sweep, summary, baselines=_baselines(summary))
  title = "Private federated learning (arXiv 1812.00984, Sections 3.1 and 5)"
  parts = _parts(sweep, plan, rows, summary)
  write_sweep_report(workdir, "private_federated", title, options, parts)


def _parts(
  sweep: _Finished, plan: Plan, rows: Sequence[NoisySetting], summary: Sequence[Row]
) -> Iterator[Part]:
  workdir, options, problem, results = sweep
  histories = curves(sweep)
  start = _initial_metrics(next(iter(histories.values())))
  figures = {
    "accuracy_over_rounds": _rounds_figure(options, problem, histories),
    "accuracy_against_epsilon": _epsilon_figure(options, problem, summary, start[problem.headline]),
  }
  yield Part("Results", _table(summary, start), figures)
  if options.switched_off:
    figure = {"what_limits_it": _limits_figure(options, problem, summary)}
    yield Part("What limits it", _limits(options, problem, summary), figure)
  yield Part("What was guaranteed", statements.units(problem.protects) + _UNIT, printed=False)
  yield Part("Central guarantees", _central(options, summary, results))
  title = statements.marked(f"Private federated learning, {options.dataset}", options)
  yield from gains.attacker_parts(workdir, summary, title)
  yield Part("Local guarantees", _local(options, plan, summary, results), printed=False)
  yield Part("What was measured", _measured(options, problem, plan, summary), printed=False)
  yield Part(
    "What noise does to a round's average", _noise_errors(options, problem, rows), printed=False
  )
  if options.epsilon_directions:
    drawn = magnitude_figure(options.epsilon_magnitude, options.max_update_norm)
    figure = {"relative_error_of_magnitudes": drawn}
    yield Part("Magnitudes", _magnitudes_table(options), figure, printed=False)
  if problem.parts is not None:
    yield from problem.parts(last_params(workdir, summary, problem.init))


def _moments(workdir: Workdir, row: Row, delta: float) -> float | None:
  """The central epsilon of the worst repetition by the moments accountant, as it was published."""
  if row["central"] is None:
    return None
  ledger = finished_ledger(workdir.path / row["setting"] / str(row["worst"]))
  return accounting.epsilon(ledger, delta, accountant="moments", observer=Observer.MODEL)


def _initial_metrics(repetitions: Sequence[Sequence[Row]]) -> dict[str, Interval]:
  """The metrics of the initial models, which are the same in all rows."""
  first = [rows[0] for rows in repetitions]
  return {name: mean_interval([row[name] for row in first]) for name in metric_names(first[0])}


def _baselines(rows: Sequence[Row]) -> list[str]:
  unprotected = [row["setting"] for row in rows if row["central"] is None]
  return [f"the models of baseline {name!r} were trained without privacy" for name in unprotected]


def _table(summary: Sequence[Row], start: Mapping[str, Interval]) -> str:
  """Guarantees and metrics of each row; the first row holds `start`, the initial metrics."""
  titles = metric_titles(start)
  before = ["before the first round", *[""] * (len(_GUARANTEES) + 1)]
  lines = (
    [
      row["label"],
      *(statements.short(row[kind]) for kind in _GUARANTEES),
      "none" if row["moments"] is None else epsilon(row["moments"]),
      *_metric_cells(row, titles),
    ]
    for row in summary
  )
  header = ["run", *_GUARANTEES.values(), _MOMENTS, *titles.values()]
  return table(header, [[*before, *_metric_cells(start, titles)], *lines])


def _limits(
  options: PrivateFederatedOptions, problem: LearningProblem, summary: Sequence[Row]
) -> str:
  """The headline metric at each eps1, beside those of the runs that lack a part."""
  name = problem.headline
  columns = _limits_columns(options, summary)
  header = ["run", *columns]
  lines = [
    [local_names(eps1)[1], *(metric(name, rows[number][name]) for rows in columns.values())]
    for number, eps1 in enumerate(options.epsilon_directions)
  ]
  return f"""The {name.replace("_", " ")} of runs that lack one part each of what limits them.

{table(header, lines)}

Without the local mechanism updates are clipped and sent in the clear; projection and central noise
stay. Without the central noise all else stays. Without the projection its noise stays. Without
clipping a release is the direction's estimate times the exact norm."""


def _limits_columns(
  options: PrivateFederatedOptions, summary: Sequence[Row]
) -> dict[str, list[Row]]:
  """The rows at each eps1: of the full runs, and of those that lack each part."""
  rows = {row["setting"]: row for row in summary}
  names = {"all on": "", **{f"no {part.replace('_', ' ')}": part for part in options.switched_off}}
  return {
    name: [rows[local_names(eps1, part)[0]] for eps1 in options.epsilon_directions]
    for name, part in names.items()
  }


def _limits_figure(
  options: PrivateFederatedOptions, problem: LearningProblem, summary: Sequence[Row]
) -> Figure:
  """The table of `_limits` as curves over eps1, beside the baselines."""
  name, columns = problem.headline, _limits_columns(options, summary)
  figure, axes = plots.figure("ε₁ of one release: local, of its direction", "", _title(options))
  style.metric_axis(axes.yaxis, name)
  style.marked_values(axes, {eps1: rounded_up(eps1) for eps1 in options.epsilon_directions})
  baselines = {row["label"]: row for row in summary if row["setting"] in BASELINES}
  looks = style.distinct([*columns, *baselines])
  for label, rows in columns.items():
    plots.points(axes, options.epsilon_directions, [row[name] for row in rows], label, looks[label])
  for (label, row), line in zip(baselines.items(), _LEVELS, strict=False):
    plots.level(axes, row[name], label, {**looks[label], "linestyle": line})
  return figure


def _magnitudes_table(options: PrivateFederatedOptions) -> str:
  shares = (0.01, 0.03, 0.1, 0.3, 1.0)
  r_max = options.max_update_norm
  lines = []
  for name, make in MAGNITUDES.items():
    error = partial(relative_error, make(options.epsilon_magnitude, r_max))
    lines.append([name, *(f"{error(share * r_max):.3g}" for share in shares)])
  return f"""The root mean squared error of a released magnitude over the magnitude, exact, at ε₂ =
{rounded_up(options.epsilon_magnitude)}. The runs used {options.magnitude_mechanism}.

{table(["mechanism", *(f"{share:g} r_max" for share in shares)], lines)}"""


def _metric_cells(metrics: Mapping[str, Interval], names: Iterable[str]) -> Iterator[str]:
  return (metric(name, metrics[name]) for name in names)


def _title(options: PrivateFederatedOptions) -> str:
  learnt = ", ".join(filter(None, (options.dataset, options.model)))
  return statements.marked(f"Private federated learning, {learnt}", options)


def _rounds_figure(
  options: PrivateFederatedOptions, problem: LearningProblem, histories: Histories
) -> Figure:
  figure, axes = plots.figure("rounds", "", _title(options))
  style.metric_axis(axes.yaxis, problem.headline)
  plots.curves(axes, histories, problem.headline)
  style.only_shares(axes, problem.headline)
  return figure


def _epsilon_figure(
  options: PrivateFederatedOptions,
  problem: LearningProblem,
  summary: Sequence[Row],
  start: Interval,
) -> Figure:
  """The headline metric against eps1, beside the baselines."""
  xlabel = "ε₁ of one release: local, of its direction"
  figure, axes = plots.figure(xlabel, "", _title(options))
  style.metric_axis(axes.yaxis, problem.headline)
  full = {local_names(eps1)[0] for eps1 in options.epsilon_directions}
  local = [row[problem.headline] for row in summary if row["setting"] in full]
  levels = {row["label"]: row[problem.headline] for row in summary if row["setting"] in BASELINES}
  # Pre-trained models are good before any private round: a baseline of its own.
  if options.public_passes:
    levels["before the first round"] = start
  (measured, look), *looks = style.series(["local and central", *levels]).items()
  if local:
    epsilons = options.epsilon_directions
    style.marked_values(axes, {epsilon: rounded_up(epsilon) for epsilon in epsilons})
    plots.points(axes, epsilons, local, measured, look)
  for (label, baseline), line in zip(looks, _LEVELS, strict=False):
    plots.level(axes, levels[label], label, {**baseline, "linestyle": line})
  style.only_shares(axes, problem.headline)
  return figure


_UNIT = f"""The unit is a user with all of its examples. "No guarantee" (ε = ∞) means that the run
is a baseline or has too little noise, so that its last model, which lies in its folder too, may say
anything about the users, or that no round was done.

{statements.not_covered("the test data", "public text, where there is any")}"""


def _central(
  options: PrivateFederatedOptions, summary: Sequence[Row], results: Sequence[Row]
) -> str:
  return f"""Against whoever sees every released model of a run and nothing else, from the
run's `ledger.jsonl`. The server is trusted to sample and to add the noise.

{statements.guarantees(summary, "central", options.accountant)}

{statements.together(results, "central")}"""


def _local(
  options: PrivateFederatedOptions, plan: Plan, summary: Sequence[Row], results: Sequence[Row]
) -> str:
  return f"""Against the server, which sees every release and who made it, so that sampling
amplifies nothing. One release:

{statements.guarantees(summary, "release")}

All releases of a user in a run: they add up, and the participation cap, a public number, is
{plan.sampler.max_participations} of {options.num_rounds} rounds.

{statements.guarantees(summary, "local")}

{statements.together(results, "local")}"""


def _measured(
  options: PrivateFederatedOptions, problem: LearningProblem, plan: Plan, summary: Sequence[Row]
) -> str:
  size, budget = plan.sampler.expected_size, options.max_epsilon
  facts = {
    **problem.described,
    "expected cohort": f"{size:g} of {problem.num_users} users, Poisson sampling",
    "noise multiplier z": rounded_up(plan.noise_multiplier, 4),
    "rounds": rounds_done(summary),
    "budget": "none" if budget is None else f"central ε = {rounded_up(budget)}; see rounds",
    "repetitions": options.seeds,
    "a direction on its way": _sent(options, problem.dim),
  }
  return f"""The last model of each run, on data of nobody who takes part. Means over repetitions,
each with its own samples and noise; ± is the 95 % interval of Student's t.

{properties(facts)}"""


def _sent(options: PrivateFederatedOptions, dim: int) -> str:
  """What a client sends of a direction."""
  if options.uplink == "plain":
    return f"{4 * dim:,} bytes"
  counts = [shortest_law(dim, eps1).num_candidates for eps1 in options.epsilon_directions]
  return ", ".join(f"{count.bit_length() - 1}" for count in counts) + " bits, and a seed of 16"


def _noise_errors(
  options: PrivateFederatedOptions, problem: LearningProblem, rows: Sequence[NoisySetting]
) -> str:
  lines = (
    [row.setting.label, f"{row.local_error:.3g}", f"{row.central_error:.3g}"] for row in rows
  )
  header = ["run", "error from the local mechanism", "error from the central noise"]
  return f"""The root mean square of its L2 error, if every update has the norm
{options.max_update_norm:g} to which updates are clipped. It is spread evenly over the
{problem.dim:,} parameters.

{table(header, lines)}"""
