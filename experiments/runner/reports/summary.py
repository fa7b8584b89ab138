"""The results of a sweep: merged repetitions, their histories, and the file that holds them."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np

from experiments.runner import files
from experiments.runner.files import Row
from experiments.runner.reports.statements import not_private
from experiments.runner.reports.statistics import Interval, mean_interval
from experiments.runner.runs.training import TrainingOptions
from experiments.runner.runs.workdir import Workdir
from jdp.federated.runs.budget import COST, COST_BY, NO_COST
from jdp.models import load_params
from jdp.queries.base import PyTree

_NO_METRICS = {"round", COST, NO_COST, COST_BY}


def summarise(results: Sequence[Row]) -> list[Row]:
  """Merges repetitions: one row for each setting, in order.

  Returns:
    A row holds "setting", "label", "public" and "seeds". It holds `Interval`s of "rounds" and of
    every metric. Its "central", "beside", "release" and "local" are those of the repetition with
    the largest central epsilon, whose seed is "worst". "no_central" says why it has none, if it has
    none.
  """
  rows = []
  for name in dict.fromkeys(result["setting"] for result in results):
    group = [result for result in results if result["setting"] == name]
    # The repetition with the largest central epsilon; a missing guarantee is infinite.
    worst = max(group, key=lambda row: row["central"]["epsilon"] if row["central"] else np.inf)
    metrics = metric_names(worst["metrics"])
    intervals = {key: mean_interval([row["metrics"][key] for row in group]) for key in metrics}
    rounds = mean_interval([result["rounds"] for result in group])
    kept = {
      key: worst[key] for key in ("setting", "label", "central", "beside", "release", "local")
    }
    counts = {"public": worst.get("public", ""), "seeds": len(group), "rounds": rounds}
    counts["worst"], counts["no_central"] = worst["seed"], worst["metrics"].get(NO_COST, "")
    rows.append({**kept, **counts, **intervals})
  return rows


def metric_names(row: Row) -> list[str]:
  """The names of the evaluation's metrics in a row of `metrics.jsonl`."""
  return [name for name in row if name not in _NO_METRICS]


def curves(workdir: Workdir, results: Sequence[Row]) -> dict[str, list[list[Row]]]:
  """The metrics of each setting's repetitions, by label."""
  rows: dict[str, list[list[Row]]] = {}
  for result in results:
    path = workdir.path / result["setting"] / str(result["seed"]) / "metrics.jsonl"
    rows.setdefault(result["label"], []).append(files.read_rows(path))
  return rows


def last_params(
  workdir: Workdir, rows: Iterable[Row], init: Callable[[jax.Array], PyTree]
) -> dict[str, PyTree]:
  """The last parameters of the first repetition of each setting, by label.

  Args:
    workdir: where the runs lie.
    rows: with "setting" and "label", as `summarise` returns them.
    init: key -> parameters of this structure.
  """
  like = jax.eval_shape(init, jax.random.key(0))
  paths = {row["label"]: workdir.path / row["setting"] / "0" / "params.npz" for row in rows}
  return {label: load_params(path, like) for label, path in paths.items()}


def rounds_done(rows: Iterable[Row]) -> str:
  """The settings' numbers of rounds, each once."""
  return ", ".join(dict.fromkeys(f"{row['rounds'].mean:g}" for row in rows))


def write_results(
  workdir: Workdir,
  options: TrainingOptions,
  rows: Iterable[Row],
  results: Sequence[Row],
  *,
  baselines: Iterable[str] = (),
  further: Mapping[str, object] = {},
) -> None:
  """Writes `results.json`.

  Args:
    workdir: gets the file.
    options: of the experiment.
    rows: a summary; `Interval`s become JSON data.
    results: of `run_sweep`.
    baselines: the results that no guarantee covers, besides those that the options exclude.
    further: entries of the experiment's own.
  """
  content = {
    "not_private": [*not_private(options), *baselines],
    "flags": vars(options),
    "summary": [_to_json(row) for row in rows],
    "runs": results,
    **further,
  }
  files.write_json(workdir.path / "results.json", content)


def _to_json(row: Row) -> Row:
  return {k: v._asdict() if isinstance(v, Interval) else v for k, v in row.items()}
