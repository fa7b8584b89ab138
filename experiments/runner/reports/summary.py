"""The results of a sweep: merged repetitions, their histories, and the file that holds them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from experiments.runner import files
from experiments.runner.files import Row
from experiments.runner.reports.statements import not_private
from experiments.runner.reports.statistics import Interval, mean_interval
from experiments.runner.runs.sweep import Finished
from experiments.runner.runs.workdir import Workdir
from jdp.federated.runs.budget import COST, COST_BY, NO_COST
from jdp.federated.runs.run_folder import METRICS
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


def curves(sweep: Finished[Any, Any], file: str = METRICS) -> dict[str, list[list[Row]]]:
  """The rows of each setting's repetitions, by label: their metrics, or those of another file."""
  rows: dict[str, list[list[Row]]] = {}
  for result in sweep.results:
    path = sweep.workdir.path / result["setting"] / str(result["seed"]) / file
    rows.setdefault(result["label"], []).append(files.read_rows(path))
  return rows


def unprotected(rows: Iterable[Row]) -> list[str]:
  """Why no guarantee covers all models: those of a summary's settings without a central one."""
  return [
    f"the models of {row['setting']!r} were trained without privacy"
    for row in rows
    if row["central"] is None
  ]


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
  sweep: Finished[Any, Any],
  rows: Iterable[Row],
  *,
  baselines: Iterable[str] = (),
  further: Mapping[str, object] = {},
) -> None:
  """Writes `results.json`.

  Args:
    sweep: what was run; its folder gets the file.
    rows: a summary; `Interval`s become JSON data.
    baselines: the results that no guarantee covers, besides those that the options exclude.
    further: entries of the experiment's own.
  """
  content = {
    "not_private": [*not_private(sweep.options), *baselines],
    "flags": vars(sweep.options),
    "summary": [_to_json(row) for row in rows],
    "runs": sweep.results,
    **further,
  }
  files.write_json(sweep.workdir.path / "results.json", content)


def _to_json(row: Row) -> Row:
  return {k: v._asdict() if isinstance(v, Interval) else v for k, v in row.items()}
