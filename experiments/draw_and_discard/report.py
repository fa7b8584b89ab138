"""The report of Draw and Discard's training runs: curves, distances to batching, adversaries."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.draw_and_discard.options import DrawAndDiscardOptions
from experiments.draw_and_discard.privacy import FinishedStream, privacy_parts
from experiments.draw_and_discard.stream import StreamTask
from experiments.runner import files
from experiments.runner.options import needed
from experiments.runner.problems.images import data_name
from experiments.runner.reports import plots, statements, style, tables
from experiments.runner.reports.parts import Part, write_sweep_report
from experiments.runner.reports.statistics import Interval, mean_interval
from experiments.runner.reports.summary import Row, curves, summarise, write_results
from experiments.runner.reports.tables import percent, properties, table
from experiments.runner.runs.training import DIAGNOSTICS
from experiments.runner.runs.workdir import Workdir
from jdp.federated.runs.run_folder import METRICS
from jdp.guarantees import rounded_up

_METRICS = {
  "test_accuracy": "accuracy on the test examples",
  "test_loss": "loss on the test examples",
}


def report_training(sweep: FinishedStream) -> None:
  """Writes results.json, the plots and report.md, and prints the results."""
  workdir, options, _, results = sweep
  rows = summarise(results)
  further = {
    "distances": distances(sweep),
    "diagnostics": diagnostics(workdir, results) if options.diagnostics else [],
  }
  write_results(sweep, rows, baselines=_baselines(rows), further=further)
  title = "Draw and Discard (arXiv 1807.04369)"
  write_sweep_report(workdir, "draw_and_discard", title, options, _parts(sweep, rows, further))


def _parts(
  sweep: FinishedStream, rows: Sequence[Row], further: Mapping[str, Sequence[Row]]
) -> Iterator[Part]:
  figures = {metric: _figure(sweep, metric, label) for metric, label in _METRICS.items()}
  yield Part("Results", results_table(rows), figures)
  yield from privacy_parts(sweep, [row for row in rows if row["release"]])
  yield Part("What was measured", _measured(sweep.options, sweep.problem), printed=False)
  if further["distances"]:
    title = "k instances against batches on the server"
    yield Part(title, _distances(further["distances"]), printed=False)
  if further["diagnostics"]:
    title = "Diagnostics: no guarantee, not to be published"
    figures = {"training_loss": _training_loss(sweep)}
    yield Part(title, diagnostics_text(further["diagnostics"]), figures, printed=False)


def _baselines(rows: Sequence[Row]) -> list[str]:
  unprotected = [row["setting"] for row in rows if row["release"] is None]
  return [f"the models of {name!r} were trained without noise" for name in unprotected]


def results_table(rows: Sequence[Row]) -> str:
  """The last metrics of each setting, with its guarantees where any setting has some."""
  private = any(row["release"] for row in rows)
  guarantees = ("local ε, one release", "local ε, all releases") if private else ()
  measured = ("test accuracy", "of averaged predictions", "test loss", "instances' variance")
  lines = (
    [
      row["label"],
      *(statements.short(row[name]) for name in ("release", "local") if private),
      percent(row["test_accuracy"]),
      percent(row["prediction_accuracy"]),
      _number(row["test_loss"]),
      f"{row['instance_variance'].mean:.3g}",
    ]
    for row in rows
  )
  return table(["run", *guarantees, *measured], lines)


def _number(value: Interval | Row) -> str:
  mean, half_width = Interval(*value.values()) if isinstance(value, dict) else value
  return f"{mean:.3f}" + ("" if half_width is None else f" ± {half_width:.3f}")


def _figure(sweep: FinishedStream, metric: str, label: str) -> Figure:
  """A metric over the examples seen."""
  title = f"Draw and Discard, {sweep.options.dataset}"
  figure, axes = plots.figure("examples seen", label, title)
  plots.curves(axes, _over_examples(sweep), metric)
  if tables.is_share(metric):
    style.percent(axes.yaxis)
  if metric == "test_loss":
    axes.set_yscale("log")  # Spread instances start with a very large loss.
  return figure


def _over_examples(sweep: FinishedStream, file: str = METRICS) -> dict[str, list[list[Row]]]:
  """`curves` with the number of examples seen in place of the number of rounds."""
  per_round = sweep.problem.schedule.round_size * needed(sweep.options.examples_per_user)
  return {
    label: [[{**row, "round": row["round"] * per_round} for row in rows] for rows in repetitions]
    for label, repetitions in curves(sweep, file).items()
  }


def _training_loss(sweep: FinishedStream) -> Figure:
  """The training loss over the examples seen, as the publication plots it: a diagnostic."""
  figure, axes = plots.figure(
    "examples seen", "loss on the training examples: a diagnostic", "Draw and Discard, not private"
  )
  plots.curves(axes, _over_examples(sweep, DIAGNOSTICS), "train_loss")
  axes.set_yscale("log")
  return figure


def at_rates(options: DrawAndDiscardOptions, label: str) -> list[str]:
  """The labels of a run without noise at --learning_rate and at each of --further_rates."""
  return [label, *(f"{label}, η = {rate:g}" for rate in needed(options.further_rates))]


def distances(sweep: FinishedStream) -> list[Row]:
  """The distance between the test accuracies with k instances and with a batch of B, without noise.

  Each is at its best learning rate, by the mean accuracy at the end.

  Returns:
    A row for each k and B. It holds "k", "batch", the labels "best_k" and "best_batch" of the runs
    compared, "difference" and "distance". The difference is
    k's accuracy less B's, averaged over the examples seen. The distance is the average of its
    absolute value. Both are `Interval`s over repetitions as JSON data.
  """
  options, found, rows = sweep.options, curves(sweep), []

  def best(label: str) -> str:
    ends = {
      name: np.mean([run[-1]["test_accuracy"] for run in found[name]])
      for name in at_rates(options, label)
    }
    return max(ends, key=ends.__getitem__)

  for k in needed(options.instances):
    for size in needed(options.batch_sizes):
      chosen = {"best_k": best(f"k = {k}"), "best_batch": best(f"B = {size}")}
      pairs = zip(*(found[name] for name in chosen.values()), strict=True)
      gaps = [_accuracy_gaps(*pair) for pair in pairs]
      rows.append(
        {
          "k": k,
          "batch": size,
          **chosen,
          "difference": mean_interval([float(gap.mean()) for gap in gaps])._asdict(),
          "distance": mean_interval([float(np.abs(gap).mean()) for gap in gaps])._asdict(),
        }
      )
  return rows


def _accuracy_gaps(rows: Sequence[Row], others: Sequence[Row]) -> np.ndarray:
  """Differences in accuracy; the first row is left out, as nothing is learnt there."""
  pairs = zip(rows[1:], others[1:], strict=True)
  return np.array([row["test_accuracy"] - other["test_accuracy"] for row, other in pairs])


def diagnostics(workdir: Workdir, results: Sequence[Row]) -> list[Row]:
  """The mean over each run of every number in its diagnostics file, and its last training loss."""
  found = []
  for result in results:
    rows = files.read_rows(workdir.path / result["setting"] / str(result["seed"]) / DIAGNOSTICS)
    names = [name for name in rows[0] if name != "round"]
    means = {name: float(np.mean([row[name] for row in rows])) for name in names}
    row = {"label": result["label"], "seed": result["seed"], **means}
    found.append({**row, "last_train_loss": rows[-1]["train_loss"]})
  return found


def _hidden(options: DrawAndDiscardOptions) -> str:
  return f" of a network with {options.hidden} hidden units" if options.hidden else ""


def _measured(options: DrawAndDiscardOptions, task: StreamTask) -> str:
  schedule = task.schedule
  decay = (
    f"half after {options.half_after} updates: 1 / (1 + t / {options.half_after})"
    if options.half_after
    else "constant"
  )
  order = "in random order" if options.random_returns else "in the order of their draws"
  in_flight = (
    f"{options.in_flight} hold an instance, and return {order}" if options.in_flight else "one"
  )
  facts = {
    "data": data_name(options),
    "users": f"{schedule.num_users} of {options.examples_per_user} examples",
    "model": f"{task.num_weights} weights{_hidden(options)}, clip c = {options.clip:g} per "
    f"{options.unit}",
    "updates": f"{schedule.num_updates}, in {schedule.max_releases} passes",
    "learning rate": f"{options.learning_rate:g}, {decay}; chosen here, not taken from the "
    "publication",
    "clients at once": in_flight,
    "instances without noise": "spread at the start as for "
    f"ε = {rounded_up(needed(options.spread_epsilon))}, chosen here too",
    "repetitions": options.seeds,
  }
  return f"""The average of the instances' weights on test examples, over the examples seen. Means
over repetitions, each with its own start, order of the users and noise; ± is the 95 % interval of
Student's t. The loss is on test examples: that on the users' own is theirs, and a diagnostic.

{properties(facts)}"""


def _distances(rows: Sequence[Row]) -> str:
  header = ["instances", "batch", "accuracy of k less that of B", "distance", "nearest B"]
  lines = []
  for row in rows:
    nearest = min(
      (other for other in rows if other["k"] == row["k"]), key=lambda r: r["distance"]["mean"]
    )
    gaps = (_number(row["difference"]), _number(row["distance"]))
    lines.append([row["best_k"], row["best_batch"], *gaps, "*" if row is nearest else ""])
  return f"""The publication finds k = √B equivalent. The test accuracies' difference and its
absolute value, averaged over the examples seen, both without noise and paired by repetition; B
counts clients. Each is at its best learning rate of those run. At one rate for all, an update moves
the average of the instances by a k-th of a step on average, and a batch by a B-th for each of its
clients: as many instances as clients in a batch are then equally fast.

{table(header, lines)}"""


def diagnostics_text(rows: Sequence[Row]) -> str:
  """The training loss at the end of each setting, and what adversary II learns of noisy ones."""
  losses: dict[str, list[float]] = {}
  for row in rows:
    losses.setdefault(row["label"], []).append(row["last_train_loss"])
  ends = ([label, _number(mean_interval(values))] for label, values in losses.items())
  text = f"""The average model's loss on all users' examples, at the evaluations. No observer of a
deployment could compute it, and no guarantee covers it.

{table(["run", "training loss at the end"], ends)}"""
  every = dict.fromkeys(name for row in rows for name in row)
  names = [name for name in every if name.startswith("adversary_2")]
  if not names:
    return text
  lines = (
    [row["label"], str(row["seed"]), *(f"{row[n]:.4g}" if n in row else "" for n in names)]
    for row in rows
  )
  header = ["run", "repetition", *(name.replace("_", " ") for name in names)]
  return f"""{text}

Mean losses of adversary II, who knows the instances before an update: for the two most different
values of one coordinate, with its pre-image guessed from all coordinates (worst), from that
coordinate alone, and the largest; and for two clients' real gradients, all coordinates jointly.
None of the first three exceeds ε; where the pre-image is known, the worst mean is ε - 1 + e^-ε.

{table(header, lines)}"""
