"""The report of DP-FedAvg: the table of (sigma, S, users, cohort, epsilon, accuracy), curves, guarantees."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.runner import files
from experiments.runner.published_language_models import published_table
from experiments.runner.reports import plots
from experiments.runner.reports import tables as reports
from experiments.runner.reports.parts import Part, write_parts
from experiments.runner.reports.statistics import Interval, mean_interval
from experiments.runner.runs.sweep import curves, last_params, summarise
from experiments.runner.runs.workdir import LEDGER, Workdir, environment
from experiments.runner.tasks.prior import describe_start
from experiments.runner.tasks.task import Task
from experiments.runner.tasks.text_options import TEXT
from jdp import accounting, ledger
from jdp.events import GroupedSums, WeightedAverage
from jdp.guarantees import rounded_up

Row = dict[str, Any]
_PLANNED = ["planned users", "planned cohort", "planned ε", "planned ε, moments"]


def write_report(workdir: Workdir, options: Any, task: Task, rows: Sequence[Any], results: Sequence[Row]) -> None:
  """Writes results.json, the plots and report.md, and prints them as they come.

  Args:
    workdir: gets the files.
    options: the experiment's.
    task: what was learnt.
    rows: what was run: `setting`, `options` and `federation`.
    results: of `run_sweep`.
  """
  histories = curves(workdir, results)
  smoothed = {
    label: [smoothed_end(run, task.headline, options.smoothing) for run in runs] for label, runs in histories.items()
  }
  summary = _summary(workdir, rows, results, smoothed)
  files.write_json(
    workdir.path / "results.json",
    {
      "not_private": _not_private(options, summary),
      "flags": vars(options),
      "summary": reports.to_json(summary),
      "runs": results,
    },
  )
  start = _start(task, histories[summary[0]["label"]], smoothed[summary[0]["label"]])
  parts = _parts(workdir, options, task, summary, results, histories, start)
  write_parts(workdir, "Federated averaging with user-level privacy (arXiv 1710.06963)", "dp_fedavg", parts)


def smoothed_end(rows: Sequence[Row], metric: str, window: int) -> float:
  """The mean of a run's last `window` evaluations, of trained models only; of an untrained run its one evaluation.

  >>> smoothed_end([{"round": 0, "x": 0.0}, {"round": 5, "x": 0.6}, {"round": 10, "x": 0.8}], "x", 5)
  0.7
  """
  trained = [row for row in rows if row["round"] > 0][-window:]
  return float(np.mean([row[metric] for row in trained or rows]))


def _start(task, runs, smoothed) -> Row:
  """The headline metric of the initial models, and how far from it the first row's runs got."""
  first = [run[0][task.headline] for run in runs]
  gained = [value - end for value, end in zip(first, smoothed, strict=True)]
  return {"value": mean_interval(first), "difference": mean_interval(gained)}


def _summary(workdir, rows, results, last) -> list[Row]:
  """A row for each setting, with what `summarise` says, and what the table adds to it.

  Args:
    workdir: where the ledgers lie.
    rows: what was run.
    results: of `run_sweep`.
    last: by label, for each repetition, `smoothed_end`.
  """
  reference = last[rows[0].setting.label]
  summary = []
  for row, summed in zip(rows, summarise(results), strict=True):
    values = last[summed["label"]]
    differences = [value - other for value, other in zip(values, reference, strict=True)]
    summary.append(
      {
        **summed,
        "smoothed": mean_interval(values),
        "difference": mean_interval(differences),
        **_noise(workdir, row, summed),
      }
    )
  return summary


def _noise(workdir, row, summed) -> Row:
  """What the ledger says about the noise, and what the plan that it belongs to would have cost."""
  federation = row.federation
  if federation is None:
    return {"clip_norm": None, "stddev": None, "cohort": row.options.cohort_size, "planned": None}
  spent = ledger.load(workdir.path / row.setting.name / "0" / LEDGER)
  first: Any = next(itertools.islice(spent, len(federation.prior), None), None)
  clip_norm, stddev = (None, None) if first is None else first_noise(first.query, federation.expected_weight)
  simulated = federation.planned is not federation.actual
  return {
    "clip_norm": clip_norm,
    "stddev": stddev,
    "cohort": federation.actual.sampler.expected_size,
    "planned": _planned(federation, round(summed["rounds"].mean)) if simulated else None,
  }


def first_noise(query: Any, expected_weight: float) -> tuple[float, float]:
  """(S, standard deviation of the noise on a coordinate of the average) of a round, by its query's event.

  >>> from jdp.events import GaussianSum
  >>> first_noise(GaussianSum(0.5, 2.0), 100.0)
  (0.5, 0.02)
  """
  if isinstance(query, GroupedSums):
    sums = [part for part, name in zip(query.parts, query.labels, strict=True) if name != "count"]
    clip_norms, stddevs = zip(*(first_noise(part, expected_weight) for part in sums), strict=True)
    return math.hypot(*clip_norms), stddevs[-1]
  denominator = 1.0 if isinstance(query, WeightedAverage) else expected_weight  # The former's is in its noise.
  return query.clip_norm, query.stddev / denominator


def _planned(federation, num_rounds: int) -> Row:
  """The plan whose noise was used, and its epsilons, by two accountants; null if it is not private."""
  plan, users = federation.planned, federation.planned_users
  q = plan.sampler.expected_size / users
  spent = federation.prior + ledger.subsampled_gaussian(q, plan.noise_multiplier, num_rounds)
  epsilons = {name: accounting.epsilon(spent, plan.delta, accountant=name) for name in ("rdp", "moments")}
  return {
    "users": users,
    "cohort": plan.sampler.expected_size,
    "noise_multiplier": plan.noise_multiplier,
    "delta": plan.delta,
    **{name: epsilon if math.isfinite(epsilon) else None for name, epsilon in epsilons.items()},
  }


def _not_private(options, summary) -> list[str]:
  unprotected = [row["setting"] for row in summary if row["central"] is None]
  return reports.not_private(options) + [f"the models of {name!r} were trained without privacy" for name in unprotected]


def _parts(workdir, options, task, summary, results, histories, start) -> Iterator[Part]:
  label = " (NOT PRIVATE)" if reports.not_private(options) else ""
  figure, axes = plots.figure("rounds", task.headline.replace("_", " "), f"DP-FedAvg, {options.dataset}{label}")
  plots.curves(axes, histories, task.headline)
  yield Part("Results", _results(options, task, summary, start), "accuracy_over_rounds", figure)
  yield Part("What was guaranteed", _guarantees(options, task, summary, results))
  if task.parts is not None:
    yield from task.parts(last_params(workdir, summary, task.init))
  if options.dataset in TEXT:
    yield Part("The published configurations", published_table())
  yield Part("What was measured", _measured(options, task, summary))
  yield Part("Where", reports.properties(environment()))


def _results(options, task, summary, start) -> str:
  simulated = any(row["planned"] for row in summary)
  smoothed = f"mean of the last {options.smoothing} evaluations"
  header = [
    "run",
    "noise",
    "S",
    "users",
    "cohort",
    "ε of this run",
    *(_PLANNED if simulated else ()),
    task.headline.replace("_", " "),
    *([smoothed] if options.smoothing > 1 else ()),
    "difference to the first run",
  ]
  no_mean = [""] if options.smoothing > 1 else []
  at_first = [reports.percent(start["value"]), *no_mean, _points(start["difference"])]
  lines = [
    ["before the first round", *[""] * (len(header) - 1 - len(at_first)), *at_first],
    *(
      [
        row["label"],
        _number(row["stddev"]),
        _number(row["clip_norm"]),
        str(len(task.sizes)),
        f"{row['cohort']:g}",
        reports.short(row["central"]),
        *(_planned_cells(row["planned"]) if simulated else ()),
        reports.percent(row[task.headline]),
        *([reports.percent(row["smoothed"])] if options.smoothing > 1 else ()),
        _points(row["difference"]),
      ]
      for row in summary
    ),
  ]
  return f"{reports.notice(options)}{reports.table(header, lines)}{_SIMULATED if simulated else ''}"


_SIMULATED = """

"Noise" is the standard deviation on a coordinate of the average: here that of the *planned* cohort's. "ε of this run"
is what the users of this run were promised; "planned ε" is what users of the plan would be, and nobody was: it is there
to say which guarantee such accuracy goes with, as far as a small cohort's average is as good as a large one's."""


def _number(value: float | None) -> str:
  return "none" if value is None else f"{value:.4g}"


def _planned_cells(planned: Mapping[str, Any] | None) -> list[str]:
  if planned is None:
    return ["none"] * len(_PLANNED)
  epsilons = [reports.epsilon(planned[name]) for name in ("rdp", "moments")]
  return [
    str(planned["users"]),
    f"{planned['cohort']:g}",
    f"{epsilons[0]} (δ = {rounded_up(planned['delta'], 3)})",
    epsilons[1],
  ]


def _points(interval: Interval) -> str:
  """A difference of shares, in percentage points."""
  error = "" if interval.half_width is None else f" ± {100 * interval.half_width:.2f}"
  return f"{100 * interval.mean:+.2f}{error}"


def _guarantees(options, task, summary, results) -> str:
  return f"""Against whoever sees all released models of a run and nothing else, by Rényi accounting from the run's
`ledger.jsonl`. The server is trusted to sample, which it does by Poisson sampling, and to add the noise. "No
guarantee" (ε = ∞) means that the run is a baseline, whose last model lies in its folder too and may say anything.

{reports.guarantees(summary, "central")}

{_together(results)}

Not covered: the choice of the settings, if these data were looked at for it; attacks on the low-order bits of float32
noise, and its tails beyond 7.45 standard deviations; the test data; public text, where there is
any.{_before(options, task)}"""


def _before(options, task) -> str:
  """What was released before the first round."""
  if options.warm_start is not None:
    start = options.warm_start
  elif task.prior.entries:
    start = "the count of the words, in `vocabulary`"
  else:
    return ""
  return f"\n\n{describe_start(start, task, options)}"


def _together(results) -> str:
  """What the runs about one kind of unit cost together."""
  units = dict.fromkeys(result["central"]["unit"] for result in results if result["central"])
  same = ([r for r in results if r["central"] and r["central"]["unit"] == unit] for unit in units)
  return "\n\n".join(reports.together(group, "central") for group in same)


def _measured(options, task, summary) -> str:
  smoothed = f", of the mean of the last {options.smoothing} evaluations after round 0" if options.smoothing > 1 else ""
  one_start = options.warm_start or options.public_passes
  own = "samples and noise, all from one initial model" if one_start else "initial model, samples and noise"
  facts = {
    **task.described,
    **({"begun with": options.warm_start} if options.warm_start else {}),
    "rounds": ", ".join(dict.fromkeys(f"{row['rounds'].mean:g}" for row in summary)),
    "repetitions": options.seeds,
  }
  return f"""The {task.headline.replace("_", " ")} of the last model of each run. Means over repetitions, each with its
own {own}; ± is the 95 % interval of Student's t. Differences are in points, between
repetitions with the same initial model and local randomness{smoothed}.

{reports.properties(facts)}

All flags are in `run.flags` and `flags.json`, all results in `results.json`. The folder `<setting>/<repetition>` of
each run holds its metrics, its ledger and its last parameters (`params.npz`)."""
