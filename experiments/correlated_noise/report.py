"""The report of correlated noise: what strategies cost, by theory and measured."""

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments.correlated_noise.options import CorrelatedNoiseOptions
from experiments.correlated_noise.strategies import Variant
from experiments.runner.federation import central_delta
from experiments.runner.options import needed
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports import plots, statements
from experiments.runner.reports.parts import Part, write_sweep_report
from experiments.runner.reports.statistics import mean_interval
from experiments.runner.reports.summary import (
  Row,
  curves,
  rounds_done,
  summarise,
  unprotected,
  write_results,
)
from experiments.runner.reports.tables import by_column, metric, properties, table
from experiments.runner.runs.finished_ledgers import finished_ledger
from experiments.runner.runs.sweep import Finished
from experiments.runner.runs.training import TrainingOptions
from experiments.runner.runs.workdir import Workdir
from jdp.events import CorrelatedGaussianSum, Round
from jdp.federated import fixed_denominator, flat_clipping
from jdp.guarantees import Unit, rounded_up
from jdp.ledger import Ledger
from jdp.matrix_factorization import choose_strategy
from jdp.queries import SumQuery
from jdp.queries.base import PyTree

_MEBI = 2**20
_MORE = ("accuracy_top5", "perplexity")  # of a language model, beside the headline
_Finished = Finished[CorrelatedNoiseOptions, LearningProblem]


def report_strategies(variants: Sequence[Variant], sweep: _Finished) -> None:
  """Writes results.json, the plots and report.md, and prints the results."""
  workdir, options, problem, results = sweep
  summary = [
    {**row, **_noise_columns(workdir, options, problem, variant)}
    for variant, row in zip(variants, summarise(results), strict=True)
  ]
  write_results(sweep, summary, baselines=unprotected(summary))
  title = "Correlated noise in federated averaging (arXiv 2306.08153, 2408.08868)"
  write_sweep_report(workdir, "correlated_noise", title, options, _parts(sweep, summary))


def _noise_columns(
  workdir: Workdir, options: CorrelatedNoiseOptions, problem: LearningProblem, variant: Variant
) -> Row:
  """A strategy's noise as the run's ledger states it: its error, memory and time."""
  if variant.strategy is None:
    return {"multiplier": None, "participations": None}
  event = _first_event(finished_ledger(workdir.path / variant.setting.name / "0"))
  query = fixed_denominator(
    flat_clipping(options.clip_norm),
    event.noise_multiplier,
    options.cohort_size,
    relation="zero_out",
    strategy=variant.strategy,
    min_separation=event.min_separation,
    max_participations=event.max_participations,
  )
  unit = event.noise_multiplier * options.clip_norm / options.cohort_size
  theory = unit * np.sqrt(variant.strategy.squared_errors())
  measured = measure(query, jax.eval_shape(problem.init, jax.random.key(0)), options.num_rounds)
  return {
    "multiplier": event.noise_multiplier,
    "sensitivity": math.sqrt(event.squared_sensitivity),
    "participations": event.max_participations,
    "separation": event.min_separation,
    "memory": variant.strategy.memory,
    "megabytes": 4 * variant.strategy.memory * problem.dim / _MEBI,
    "error": float(np.sqrt(np.mean(theory**2))),
    "measured_error": float(np.sqrt(np.mean(measured.errors**2))),
    "errors": theory.tolist(),
    "measured_errors": measured.errors.tolist(),
    "milliseconds": 1e3 * measured.seconds,
  }


def _first_event(ledger: Ledger) -> CorrelatedGaussianSum:
  """The event of the run's first round, after what was released before."""
  return next(
    event.query
    for event in ledger
    if isinstance(event, Round) and isinstance(event.query, CorrelatedGaussianSum)
  )


class Measured(NamedTuple):
  """What a run of a query's noise shows.

  Attributes:
    errors: float64 [n], the standard deviation of the noise of each round's sum so far.
    seconds: the median time of a round.
  """

  errors: np.ndarray
  seconds: float


def measure(query: SumQuery, record: PyTree, num_rounds: int) -> Measured:
  """The noise of a run without clients, over the coordinates of a record."""
  total = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), record)
  release, state = jax.jit(lambda key, state: query.finalize(key, state, total)), query.init(total)
  size = sum(x.size for x in jax.tree.leaves(total))
  so_far, errors, times = np.zeros(size), [], []
  for key in jax.random.split(jax.random.key(0), num_rounds):
    begun = time.perf_counter()
    result, _, state = jax.block_until_ready(release(key, state))
    times.append(time.perf_counter() - begun)
    so_far = so_far + np.concatenate([np.ravel(x).astype(float) for x in jax.tree.leaves(result)])
    errors.append(np.std(so_far))
  return Measured(np.array(errors), statistics.median(times))


def _parts(sweep: _Finished, summary: Sequence[Row]) -> Iterator[Part]:
  _, options, problem, results = sweep
  title = statements.marked(f"Correlated noise, {options.dataset}", options)
  histories = curves(sweep)
  accuracy, axes = plots.figure("rounds", problem.headline.replace("_", " "), title)
  plots.curves(axes, histories, problem.headline)
  figures = {"accuracy_over_rounds": accuracy, "noise_of_the_model": _noise_figure(title, summary)}
  yield Part("Results", _results(problem, summary, next(iter(histories.values()))), figures)
  yield Part("What was guaranteed", guaranteed(options, problem.protects, summary, results))
  if options.target_epsilon is not None and not len(problem.prior):
    yield Part("By theory", _theory(options, problem.num_users), printed=False)
  yield Part("What was measured", _measured(options, problem, summary), printed=False)


def _noise_figure(title: str, summary: Sequence[Row]) -> Figure:
  """The noise of the model over the rounds: lines by theory, points as measured."""
  figure, axes = plots.figure("rounds", "standard deviation of a coordinate's noise", title)
  for row in summary:
    if row["multiplier"] is None:
      continue
    rounds = np.arange(1, len(row["errors"]) + 1)
    (line,) = axes.plot(rounds, row["errors"], label=row["label"])
    every = max(1, len(rounds) // 10)
    axes.plot(rounds[::every], row["measured_errors"][::every], "o", color=line.get_color())
  return figure


def _results(
  problem: LearningProblem, summary: Sequence[Row], histories: Sequence[Sequence[Row]]
) -> str:
  shown = [problem.headline, *(name for name in _MORE if name in summary[0])]
  start = {name: mean_interval([run[0][name] for run in histories]) for name in shown}
  before = {"label": "before the first round", "multiplier": None, **start}
  lines = []
  for row in (before, *summary):
    lines.append(
      {
        "noise": row["label"],
        **_noise_cells(row),
        "ε": statements.short(row["central"]) if "central" in row else "",
        **{name.replace("_", " "): metric(name, row[name]) for name in shown},
      }
    )
  return f"""{by_column(lines)}

"z" is the standard deviation of Z's entries over the clip norm, "sensitivity" how far one user
moves C G. "Error" is the root mean square over the rounds of the noise on a coordinate of the
model, if the server adds the averages up. "Models kept" are arrays of the model's size that the
noise needs between rounds."""


def _noise_cells(row: Row) -> dict[str, str]:
  names = ("z", "sensitivity", "error, theory", "error, measured", "models kept", "MiB")
  if row["multiplier"] is None:
    return dict.fromkeys(names, "")
  bounds = (rounded_up(row["multiplier"], 4), rounded_up(row["sensitivity"], 4))
  errors = (f"{row['error']:.4g}", f"{row['measured_error']:.4g}")
  cells = (*bounds, *errors, str(row["memory"]), f"{row['megabytes']:.2f}")
  return dict(zip(names, cells, strict=True))


def _theory(options: CorrelatedNoiseOptions, num_users: int) -> str:
  """The errors of strategies for this run's target, both ways of taking part, best first."""
  chosen = choose_strategy(
    options.num_rounds,
    population=num_users,
    cohort_size=options.cohort_size,
    target_epsilon=needed(options.target_epsilon),
    delta=central_delta(options, num_users),
    relation="zero_out",
  )
  rows = [
    [
      c.name.replace("_", " "),
      "turns" if c.sampler == "min_separation" else "coins",
      str(c.num_groups),
      rounded_up(c.noise_multiplier, 4),
      f"{c.mean_error * options.clip_norm / options.cohort_size:.4g}",
    ]
    for c in chosen.table
  ]
  return f"""Errors as above at the same target, if groups take turns, whole or each member by its
own coin. No strategy here keeps more than eight models. Noise is calibrated in closed form for
turns and by loss distributions for coins. So it is somewhat less than that of the run, which Renyi
divergences give.

{table(["noise", "who takes part", "groups", "z", "error, theory"], rows)}"""


def guaranteed(
  options: CorrelatedNoiseOptions,
  protects: Mapping[Unit, str],
  summary: Sequence[Row],
  results: Sequence[Row],
) -> str:
  """What the run guarantees, to whom, and what it does not cover.

  Args:
    options: of the run.
    protects: what one user is, where the data has none of its own.
    summary: the report's rows.
    results: of `run_sweep`.
  """
  kept = next((row for row in summary if row["multiplier"] is not None), None)
  who = (
    ""
    if kept is None or options.participation == "coins"
    else f"A user takes part at most {kept['participations']} times, in rounds at least "
    f"{kept['separation']} apart: groups by position take turns.\n"
  )
  return f"""{statements.units(protects)}\
Against whoever sees all released models of a run and nothing else, from the run's
`ledger.jsonl`. A run is one release, whose noise is correlated over the rounds. The server is
trusted to add the noise, and to keep what it needs of it between rounds.
{who}

{statements.guarantees(summary, "central", options.accountant)}

{statements.together_by_scope(results)}

{statements.not_covered("the test data", "public text, where there is any")}"""


def _measured(options: TrainingOptions, problem: LearningProblem, summary: Sequence[Row]) -> str:
  facts = {**problem.described, "rounds": rounds_done(summary), "repetitions": options.seeds}
  times = [
    [row["label"], f"{row['milliseconds']:.2f}"] for row in summary if row["multiplier"] is not None
  ]
  return f"""The metrics are those of the last model of each run. Means over repetitions; ± is the
95 % interval of Student's t. The measured error is that of a run without clients, over all
coordinates of the model, and so is the time that noise and release take on this machine:

{table(["noise", "ms a round"], times)}

{properties(facts)}"""
