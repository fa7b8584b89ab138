"""Callbacks of `jdp.federated.train`: progress on a terminal, and metrics for other programs.

A callback is a function of `Progress`. Whatever it shows is as public as the metrics themselves:
give `evaluate` no protected data that nothing makes private. No callback writes a time. A round's
duration tells how many users were in its sample.
"""

import csv
import itertools
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from jdp.federated.runs.training import Progress

Callback = Callable[[Progress], None]


def progress_bar() -> Callback:
  """A bar of rounds with the last metrics: on a terminal that of tqdm, elsewhere plain lines.

  Raises:
    ImportError: on a terminal, if tqdm is not installed.
  """
  if not sys.stderr.isatty():
    return lambda progress: print(_line(progress), file=sys.stderr, flush=True)
  from tqdm import tqdm  # an optional dependency

  bars: list[Any] = []

  def show(progress: Progress) -> None:
    if not bars:
      bars.append(tqdm(total=progress.num_rounds, unit=" rounds", dynamic_ncols=True))
    bar = bars[0]
    bar.update(progress.round - bar.n)
    bar.set_description(_line(progress))
    if progress.round == progress.num_rounds:
      bar.close()

  return show


def csv_file(path: str | os.PathLike) -> Callback:
  """A CSV file with a row for each evaluation. A file that exists is replaced at the first one."""
  path, rows = pathlib.Path(path), list[dict[str, Any]]()

  def write(progress: Progress) -> None:
    rows.append(progress.metrics)
    # Whole each time: a run that was resumed begins with rows of its own.
    with path.open("w", newline="") as file:
      writer = csv.DictWriter(file, list(dict.fromkeys(itertools.chain(*rows))))
      writer.writeheader()
      writer.writerows(rows)

  return write


def tensorboard(folder: str | os.PathLike) -> Callback:
  """Event files for TensorBoard, one scalar for each metric.

  Raises:
    ImportError: if tensorboardX is not installed.
  """
  try:
    from tensorboardX import SummaryWriter
  except ModuleNotFoundError as error:
    raise ImportError("Expected tensorboardX, got none; run: pip install tensorboardX.") from error
  writer = SummaryWriter(os.fspath(folder), flush_secs=1)  # By default it waits for minutes.

  def write(progress: Progress) -> None:
    for name, value in _scalars(progress).items():
      writer.add_scalar(name, value, progress.round)

  return write


def weights_and_biases(run: Any) -> Callback:
  """Metrics logged to a run of Weights & Biases, such as `wandb.init(project=...)` returns.

  Args:
    run: has `log(metrics, step=round)`, as loggers of other programs have.

  >>> class Printed:
  ...   def log(self, metrics, step):
  ...     print(step, metrics)
  >>> from jdp.ledger import Ledger
  >>> row = {"round": 10, "accuracy": 0.5, "central_epsilon": None}
  >>> weights_and_biases(Printed())(Progress(10, 20, {}, row, Ledger(), None))
  10 {'accuracy': 0.5}
  """
  return lambda progress: run.log(_scalars(progress), step=progress.round)


def _scalars(progress: Progress) -> dict[str, float]:
  """The metrics that are numbers, without the round."""
  return {
    name: value for name, value in progress.metrics.items() if name != "round" and value is not None
  }


def _line(progress: Progress) -> str:
  """The round and its metrics."""
  metrics = ", ".join(f"{name} {value:.4g}" for name, value in _scalars(progress).items())
  return f"round {progress.round} of {progress.num_rounds}: {metrics}".rstrip(": ")
