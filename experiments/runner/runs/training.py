"""One training run of an experiment: `jdp.federated.train` with progress and diagnostics.

Its files lie in the folders of a work directory.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax

from experiments.runner import checks, processes
from experiments.runner.options import option
from experiments.runner.runs import sweep_parts
from experiments.runner.runs.progress import Report
from jdp import _validate, accounting
from jdp.federated import FederatedAlgorithm, no_improvement, train
from jdp.federated.runs.run_folder import RunFolder
from jdp.federated.runs.training import Evaluate, Progress, Result
from jdp.federated.runs.whole_files import RowFile
from jdp.guarantees import rounded_up
from jdp.ledger import Ledger
from jdp.queries.base import PyTree

DIAGNOSTICS = "diagnostics.jsonl"


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
  """The options of every experiment that trains."""

  SUBJECT = "Rounds, repetitions, seeds and budget"

  num_rounds: int = option(100, "Rounds of training.", check=checks.count)
  eval_every: int = option(
    10, "Rounds between evaluations, each with a checkpoint.", check=checks.count
  )
  seeds: int = option(1, "Repetitions of every setting.", check=checks.count, most=1000)
  part: str | None = option(
    None,
    "Only this part of the table's runs, as in 3/20, in a work directory of its own. --merge makes "
    "the report of all parts.",
    check=sweep_parts.check_part,
  )
  init_seed: int = checks.seed(0, "Seed of the initial model.")
  data_seed: int = checks.seed(
    0, "Seed of the partition into users and of the order of local training."
  )
  noise_seed: int | None = checks.seed(
    None, "Seed of sampling and noise; whoever knows it can undo them: the run is NOT private."
  )
  max_epsilon: float | None = option(
    None,
    "Stop each run before the round that would take its central epsilon above this.",
    check=_validate.positive,
  )
  accountant: str = option(
    accounting.ACCOUNTANTS[0],
    "By which noise is planned, budgets are kept and central guarantees are stated.",
    choices=accounting.ACCOUNTANTS,
  )
  early_stop: int | None = option(
    None,
    "Stop a run after so many evaluations in a row without a gain in test accuracy. It costs what "
    "all --num_rounds rounds cost, as its length depends on the data, and is recorded so.",
    check=checks.count,
  )
  diagnostics: bool = option(
    False,
    "Write diagnostics.jsonl, which no observer of a deployment could: the run is NOT private.",
  )

  def __post_init__(self):
    """Refuses an early stop that could never come, and a part of what cannot be cut."""
    sweep_parts.refuse_uncut(self.part, self)
    if self.early_stop is not None and self.early_stop * self.eval_every >= self.num_rounds:
      raise ValueError(
        f"Expected --early_stop times --eval_every to be less than --num_rounds={self.num_rounds}, "
        f"got {self.early_stop} times {self.eval_every}, which no evaluation comes after; evaluate "
        "more often."
      )


class Run(NamedTuple):
  """One training run.

  Attributes:
    name: its folder within the work directory.
    algorithm: what is run.
    params: the initial parameters.
    clients: the data of all clients.
    noise_key: key of this run's sampling and noise, and of no other run's.
    data_key: key of its local training.
    evaluate: parameters -> name -> scalar.
    delta: of its central guarantee.
    max_epsilon: the budget, or None.
    prior: what was released about the same users before the first round. It is part of the cost and
      of the ledger.
    headline: the metric that an early stop looks at, the larger the better.
    shard: whether each device gets its share of the clients' data, and no copy of it.
  """

  name: str
  algorithm: FederatedAlgorithm
  params: PyTree
  clients: PyTree
  noise_key: jax.Array
  data_key: jax.Array
  evaluate: Evaluate
  delta: float
  max_epsilon: float | None
  prior: Ledger = Ledger()
  headline: str = "test_accuracy"
  shard: bool = False


def train_run(
  run: Run, folder: pathlib.Path, secret: pathlib.Path, options: TrainingOptions, report: Report
) -> Result:
  """Trains from the point where an earlier process was killed, or from the start.

  Args:
    run: what to train.
    folder: gets `ledger.jsonl` and `metrics.jsonl`. With diagnostics it gets `diagnostics.jsonl`
      too, whose rows are means over the rounds since the last row.
    secret: gets the checkpoints.
    options: number of rounds, rounds between evaluations, accountant, early stop and diagnostics.
    report: told of the progress.
  """
  callbacks: list[Callable[[Progress], None]] = []
  if processes.is_first():
    callbacks = [_DiagnosticsFile(folder)] if options.diagnostics else []
    callbacks.append(_ProgressReporter(run.name, report))
  patience = options.early_stop
  return train(
    run.algorithm,
    run.params,
    run.clients,
    num_rounds=options.num_rounds,
    noise_key=run.noise_key,
    data_key=run.data_key,
    evaluate=run.evaluate,
    evaluate_every=options.eval_every,
    max_epsilon=run.max_epsilon,
    delta=run.delta,
    accountant=options.accountant,
    early_stop=no_improvement(run.headline, patience=patience) if patience else None,
    prior=run.prior,
    workdir=RunFolder(folder, secret, run.name),
    callbacks=callbacks,
    shares=run.shard or None,
  )


class _DiagnosticsFile:
  """The callback that writes `diagnostics.jsonl`."""

  def __init__(self, folder: pathlib.Path):
    self._path = folder / DIAGNOSTICS
    self._file: RowFile | None = None

  def __call__(self, progress: Progress) -> None:
    # The first call is at the start or after a resumption: rows of repeated rounds are dropped.
    if self._file is None:
      self._file = RowFile(self._path, progress.round)
    if progress.diagnostics is not None:
      self._file.append({"round": progress.round, **progress.diagnostics})


class _ProgressReporter:
  """The callback that reports progress: the number of further rounds, and the metrics."""

  def __init__(self, name: str, report: Report):
    self._name, self._report = name, report
    self._round: int | None = None

  def __call__(self, progress: Progress) -> None:
    # Rounds of an earlier process count at once.
    if self._round is None:
      self._report(progress.round, f"{self._name}: round {progress.round}/{progress.num_rounds}")
    else:
      self._report(progress.round - self._round, self._progress_line(progress))
    self._round = progress.round

  def _progress_line(self, progress: Progress) -> str:
    name = f"{self._name} (NOT PRIVATE)" if progress.ledger.caveats else self._name
    values = (
      (key, value)
      for key, value in progress.metrics.items()
      if key != "round" and isinstance(value, int | float)
    )
    printed = {"central_epsilon": partial(rounded_up, digits=4)}
    words = (
      f"{key.replace('_', ' ')} {printed.get(key, _measured)(value)}" for key, value in values
    )
    return f"{name}: round {progress.round}/{progress.num_rounds}, {', '.join(words)}"


def _measured(value: float) -> str:
  return f"{value:.4g}"
