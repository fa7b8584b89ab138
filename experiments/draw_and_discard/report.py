"""The report of Draw and Discard's training runs: curves, distances to batching, and one statement per adversary."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.draw_and_discard.privacy import privacy_sections
from experiments.runner import files
from experiments.runner.reports import plots
from experiments.runner.reports import tables as reports
from experiments.runner.reports.statistics import Interval, mean_interval
from experiments.runner.runs.sweep import curves, summarise
from experiments.runner.runs.workdir import Workdir, environment
from jdp.guarantees import rounded_up

Row = dict[str, Any]
_METRICS = {"test_accuracy": "accuracy on the test examples", "test_loss": "loss on the test examples"}


def write_report(workdir: Workdir, options: Any, task: Any, results: Sequence[Row]) -> None:
  """Writes results.json, the plots and report.md, and prints the table and where they lie."""
  rows = summarise(results)
  content = {
    "not_private": reports.not_private(options) + _baselines(rows),
    "flags": vars(options),
    "summary": reports.to_json(rows),
    "runs": results,
    "distances": distances(workdir, options, results),
    "diagnostics": diagnostics(workdir, results) if options.diagnostics else [],
  }
  files.write_json(workdir.path / "results.json", content)
  for metric, label in _METRICS.items():
    _plot_curves(workdir, options, task, results, metric, label)
  private = [row for row in rows if row["release"]]
  sections = [
    "# Draw and Discard (arXiv 1807.04369)",
    f"{reports.notice(options)}{_table(rows)}",
    *(f"![{label}]({metric}.png)" for metric, label in _METRICS.items()),
    *privacy_sections(workdir, options, task, private, results),
    *_measured(options, task, content),
    _repeat(options),
  ]
  files.write(workdir.path / "report.md", "\n\n".join(sections).encode())
  print(f"\n{reports.notice(options)}{_table(rows)}\n\nReport: {workdir.path / 'report.md'}")


def _baselines(rows) -> list[str]:
  return [f"the models of {row['setting']!r} were trained without noise" for row in rows if row["release"] is None]


def _table(rows: Sequence[Row]) -> str:
  header = ["run", "local ε, one release", "local ε, all releases", "test accuracy", "test loss", "instances' variance"]
  return reports.table(
    header,
    (
      [
        row["label"],
        reports.short(row["release"]),
        reports.short(row["local"]),
        reports.percent(row["test_accuracy"]),
        _number(row["test_loss"]),
        f"{row['instance_variance'].mean:.3g}",
      ]
      for row in rows
    ),
  )


def _number(value: Interval | Mapping[str, Any]) -> str:
  mean, half_width = Interval(*value.values()) if isinstance(value, Mapping) else value
  return f"{mean:.3f}" + ("" if half_width is None else f" ± {half_width:.3f}")


def _plot_curves(workdir, options, task, results, metric, label):
  schedule = task.schedule
  per_round = schedule.round_size * options.examples_per_user
  figure, axes = plots.figure("examples seen", label, f"Draw and Discard, {options.dataset}")
  for name, repetitions in curves(workdir, results).items():
    scaled = [[{**row, "round": row["round"] * per_round} for row in rows] for rows in repetitions]
    plots.curves(axes, {name: scaled}, metric)
  if metric == "test_loss":
    axes.set_yscale("log")  # Spread instances begin far out.
  plots.save(figure, workdir.path / f"{metric}.png")


def distances(workdir: Workdir, options: Any, results: Sequence[Row]) -> list[Row]:
  """How far the test accuracy with k instances lies from that with a batch of B, without noise.

  Returns:
    For each k and B: "k", "batch", "difference" (of k's accuracy less B's, averaged over the examples seen)
    and "distance" (the same of the absolute value), `Interval`s over repetitions as JSON data.
  """
  found = curves(workdir, results)
  table = []
  for k in options.instances:
    for size in options.batch_sizes:
      pairs = zip(found[f"k = {k}"], found[f"B = {size}"], strict=True)
      gaps = [_gaps(*pair) for pair in pairs]
      table.append(
        {
          "k": k,
          "batch": size,
          "difference": mean_interval([float(gap.mean()) for gap in gaps])._asdict(),
          "distance": mean_interval([float(np.abs(gap).mean()) for gap in gaps])._asdict(),
        }
      )
  return table


def _gaps(rows, others) -> np.ndarray:
  """Differences in accuracy, but for the first row, where nothing is learnt."""
  pairs = zip(rows[1:], others[1:], strict=True)
  return np.array([row["test_accuracy"] - other["test_accuracy"] for row, other in pairs])


def diagnostics(workdir: Workdir, results: Sequence[Row]) -> list[Row]:
  """Means over each run of what its diagnostics file holds, beside what bounds adversary II."""
  table = []
  for result in results:
    rows = files.read_rows(workdir.path / result["setting"] / str(result["seed"]) / "diagnostics.jsonl")
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0] if name != "round"}
    table.append({"label": result["label"], "seed": result["seed"], **means})
  return table


def _measured(options, task, content) -> list[str]:
  schedule = task.schedule
  decay = (
    f"half after {options.half_after} updates: 1 / (1 + t / {options.half_after})" if options.half_after else "constant"
  )
  order = "in random order" if options.random_returns else "in the order of their draws"
  in_flight = f"{options.in_flight} hold an instance, and return {order}" if options.in_flight else "one"
  facts = {
    "data": options.dataset,
    "users": f"{schedule.num_users} of {options.examples_per_user} examples",
    "model": f"{task.shape[0]} x {task.shape[1]} weights, clip c = {options.clip:g} per {options.unit}",
    "updates": f"{schedule.num_updates}, in {schedule.max_releases} passes",
    "learning rate": f"{options.learning_rate:g}, {decay}; chosen here, not taken from the publication",
    "clients at once": in_flight,
    "instances without noise": f"spread at the start as for ε = {rounded_up(options.spread_epsilon)}, chosen here too",
    "repetitions": options.seeds,
  }
  sections = [
    "## What was measured\n\nThe average of the instances' weights on test examples, over the examples seen. Means "
    "over repetitions, each with its own start, order of the users and noise; ± is the 95 % interval of Student's t. "
    "The loss is on test examples: that on the users' own is theirs, and a diagnostic.\n\n" + reports.properties(facts)
  ]
  if content["distances"]:
    sections.append(_distances(content["distances"]))
  if content["diagnostics"]:
    sections.append(_diagnostics(content["diagnostics"]))
  return sections


def _distances(rows) -> str:
  nearest = {
    k: min((r for r in rows if r["k"] == k), key=lambda r: r["distance"]["mean"])["batch"]
    for k in {r["k"] for r in rows}
  }
  table = reports.table(
    ["k", "B", "accuracy of k less that of B", "distance", "nearest B"],
    (
      [
        str(r["k"]),
        str(r["batch"]),
        _number(r["difference"]),
        _number(r["distance"]),
        "*" if nearest[r["k"]] == r["batch"] else "",
      ]
      for r in rows
    ),
  )
  return (
    "### k instances against batches on the server\n\nThe publication finds k = √B equivalent. The test accuracies' "
    "difference and its absolute value, averaged over the examples seen, both without noise and paired by "
    "repetition; B counts clients. With one learning rate for all, an update moves the average of the instances by a "
    "k-th of a step on average, and a batch by a B-th for each of its clients: as many instances as clients in a "
    f"batch are then equally fast.\n\n{table}"
  )


def _diagnostics(rows) -> str:
  names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in ("label", "seed")]
  table = reports.table(
    ["run", "repetition", *(name.replace("_", " ") for name in names)],
    ([row["label"], str(row["seed"]), *(f"{row[n]:.4g}" if n in row else "" for n in names)] for row in rows),
  )
  return (
    "### Diagnostics: no guarantee, not to be published\n\nTraining loss, and mean losses of adversary II, who knows "
    "the instances before an update: for the two most different values of one coordinate, with its pre-image guessed "
    "from all coordinates (worst), from that coordinate alone, and the largest; and for two clients' real gradients, "
    "all coordinates jointly. None of the first three exceeds ε; where the pre-image is known, the worst mean is "
    f"ε - 1 + e^-ε.\n\n{table}"
  )


def _repeat(options) -> str:
  seeded = (
    "The noise is seeded: the same versions and devices give the same bits."
    if options.noise_seed is not None
    else "Noise is drawn from the operating system's entropy (ChaCha20): figures repeat up to their intervals."
  )
  return f"""## How to repeat it

{reports.repeat("draw_and_discard")}
{seeded} All flags are in `run.flags`, all results in `results.json`.

{reports.properties(environment())}
"""
