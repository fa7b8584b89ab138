"""Callbacks of `jdp.federated.train`: progress on a terminal, and metrics for other programs.

A callback is a function of `Progress`. Whatever it shows is as public as the metrics themselves:
give `evaluate` no protected data that nothing makes private. A round's duration tells how many
users were in its sample: times go to the console (`wall_clock`) and to traces (`profile`), and to
no file of metrics.
"""

import csv
import itertools
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jdp.federated.runs.training import Progress
from jdp.models.parameter_files import save_params

Callback = Callable[[Progress], None]


def progress_bar() -> Callback:
  """A bar of rounds with the last metrics: tqdm's bar on a terminal, plain lines elsewhere.

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


def wall_clock() -> Callback:
  """Tells the console how long the first block of rounds took, with compiling, and what is left.

  The times tell how large samples were: keep them apart from what is published.

  >>> from jdp.ledger import Ledger
  >>> show = wall_clock()
  >>> for number in (0, 10, 20):  # it writes to the standard error
  ...   show(Progress(number, 30, {}, {"round": number}, Ledger(), None, []))
  """
  seen: list[tuple[int, float]] = []

  def show(progress: Progress) -> None:
    seen.append((progress.round, time.monotonic()))
    place = f"round {progress.round} of {progress.num_rounds}"
    print(f"{place}: {_times(seen, progress.num_rounds)}", file=sys.stderr, flush=True)

  return show


def _times(seen: Sequence[tuple[int, float]], num_rounds: int) -> str:
  """How long the rounds took, from (round, seconds) of each call."""
  done, now = seen[-1]
  if len(seen) == 1:
    return "compiling"
  if len(seen) == 2:
    return f"{now - seen[0][1]:.1f} s for {done - seen[0][0]} rounds, with compiling"
  each = (now - seen[1][1]) / (done - seen[1][0])
  return f"{each:.2g} s a round, about {each * (num_rounds - done):.0f} s left"


def csv_file(path: str | os.PathLike) -> Callback:
  """A CSV file with a row for each evaluation. A run that is resumed has its earlier rows in it."""
  path = pathlib.Path(path)

  def write(progress: Progress) -> None:
    with path.open("w", newline="") as file:
      writer = csv.DictWriter(file, list(dict.fromkeys(itertools.chain(*progress.rows))))
      writer.writeheader()
      writer.writerows(progress.rows)

  return write


def best_params(path: str | os.PathLike, metric: str, *, largest: bool = True) -> Callback:
  """Keeps the parameters of the row whose metric is best, for `jdp.models.load_params`.

  The choice is private if the metric is: compute it from public examples, or make it a release.

  Args:
    path: an `.npz` file, replaced whenever a row is better than all before it.
    metric: the metric's name in the rows.
    largest: whether the largest value is best (an accuracy); else the smallest is (a loss).
  """

  def write(progress: Progress) -> None:
    values = [row[metric] if largest else -row[metric] for row in progress.rows]
    if max(values) > max(values[:-1], default=-math.inf):
      save_params(path, progress.params)

  return write


def profile(folder: str | os.PathLike) -> Callback:
  """A trace of the second block of rounds by `jax.profiler`, for TensorBoard or Perfetto.

  The first block compiles. The trace holds times, which tell how large samples were: keep it apart
  from what is published.
  """
  calls = itertools.count()

  def trace(progress: Progress) -> None:
    number = next(calls)
    if number == 1:
      jax.profiler.start_trace(os.fspath(folder))
    elif number == 2:
      jax.profiler.stop_trace()

  return trace


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

  def write(number: int, metrics: dict[str, float]) -> None:
    for name, value in metrics.items():
      writer.add_scalar(name, value, number)

  return _each_row(write)


def weights_and_biases(run: Any) -> Callback:
  """Metrics logged to a run of Weights & Biases, such as `wandb.init(project=...)` returns.

  Args:
    run: has `log(metrics, step=round)`, as loggers of other programs have.

  >>> class Printed:
  ...   def log(self, metrics, step):
  ...     print(step, metrics)
  >>> from jdp.ledger import Ledger
  >>> row = {"round": 10, "accuracy": 0.5, "central_epsilon": None}
  >>> weights_and_biases(Printed())(Progress(10, 20, {}, row, Ledger(), None, [row]))
  10 {'accuracy': 0.5}
  """
  return _each_row(lambda number, metrics: run.log(metrics, step=number))


def _each_row(write: Callable[[int, dict[str, float]], None]) -> Callback:
  """Writes every row once: at the start those from before the run was resumed."""
  written = 0

  def write_new(progress: Progress) -> None:
    nonlocal written
    for row in progress.rows[written:]:
      write(row["round"], _scalars(row))
    written = len(progress.rows)

  return write_new


def _scalars(row: Mapping[str, Any]) -> dict[str, float]:
  """The metrics that are numbers, without the round."""
  return {
    name: value for name, value in row.items() if name != "round" and isinstance(value, int | float)
  }


def _line(progress: Progress) -> str:
  """The round and its metrics."""
  metrics = ", ".join(f"{name} {value:.4g}" for name, value in _scalars(progress.metrics).items())
  return f"round {progress.round} of {progress.num_rounds}: {metrics}".rstrip(": ")
