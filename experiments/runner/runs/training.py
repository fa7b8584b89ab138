"""Training runs that survive a kill: rounds, ledger, evaluations, checkpoints, and a budget.

The order within a block of rounds keeps the run's claims true at every moment: the rounds are computed, their
events are put on disk, and only then is the model evaluated, saved or built on. Rounds after the last checkpoint
are computed again, with the same keys and so to the same bits, and are not recorded twice.
"""

import bisect
import contextlib
import dataclasses
import itertools
import math
import pathlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.runner import files
from experiments.runner.options import option
from experiments.runner.runs.checkpoints import Checkpoints
from experiments.runner.runs.progress import Report
from experiments.runner.runs.workdir import LEDGER, fingerprint
from jdp import _validate
from jdp.events import Event
from jdp.guarantees import rounded_up
from jdp.ledger import DurableLedger, Ledger, unstack

PyTree = Any
Events = tuple[Event, ...]

_count = partial(_validate.integer, 1)
_seed = partial(_validate.integer, 0)


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
  """The options of every experiment that trains."""

  num_rounds: int = option(100, "Rounds of training.", check=_count)
  eval_every: int = option(10, "Rounds between evaluations, each with a checkpoint.", check=_count)
  seeds: int = option(1, "Repetitions of every setting.", check=_count)
  init_seed: int = option(0, "Seed of the initial model.", check=_seed)
  data_seed: int = option(0, "Seed of the partition into users and of the order of local training.", check=_seed)
  noise_seed: int | None = option(
    None, "Seed of sampling and noise; whoever knows it can undo them: the run is NOT private.", check=_seed
  )
  max_epsilon: float | None = option(
    None, "Stop each run before the round that would take its central epsilon above this.", check=_validate.positive
  )
  diagnostics: bool = option(
    False, "Write diagnostics.jsonl, which no observer of a deployment could: the run is NOT private."
  )
  chunk_size: int = option(16, "Clients computed side by side: few on a CPU, hundreds on a GPU.", check=_count)


class Run(NamedTuple):
  """One training run.

  Attributes:
    name: its folder within the work directory.
    step: the algorithm's `round`, jitted once for all repetitions.
    state: the initial state.
    clients: the data of all clients.
    noise_key: key of the run's sampling and noise, of no other run.
    data_key: key of its local training.
    evaluate: state -> name -> scalar.
    epsilon: ledger -> what the run's released models have cost; infinite without privacy.
    max_epsilon: the budget, or None.
    prior: what was released about the same users before the first round: part of the cost, and of the ledger.
  """

  name: str
  step: Callable[..., tuple[PyTree, Events, Any]]
  state: PyTree
  clients: PyTree
  noise_key: jax.Array
  data_key: jax.Array
  evaluate: Callable[[PyTree], dict[str, jax.Array]]
  epsilon: Callable[[Ledger], float]
  max_epsilon: float | None
  prior: Ledger = Ledger()


class Outcome(NamedTuple):
  """What a run leaves: its last state, its ledger, its last row of metrics, and whether its budget stopped it."""

  state: PyTree
  ledger: Ledger
  metrics: dict[str, Any]
  stopped: bool


def train(run: Run, folder: pathlib.Path, secret: pathlib.Path, options: TrainingOptions, report: Report) -> Outcome:
  """Trains from wherever an earlier process was killed.

  Args:
    run: what to train.
    folder: gets `ledger.jsonl`, `metrics.jsonl` (a row for each evaluation: "round", the metrics, and
      "central_epsilon", which is null where there is no guarantee) and, if asked for, `diagnostics.jsonl` (means
      over the rounds since the last row).
    secret: gets the checkpoints.
    options: number of rounds, of rounds between evaluations, diagnostics.
    report: told of the progress.
  """
  folder.mkdir(parents=True, exist_ok=True)
  ledger_name = f"{run.name} {fingerprint(run.noise_key)}"  # One name, one key: no round is redone with other noise.
  with (
    contextlib.closing(Checkpoints(secret)) as checkpoints,
    contextlib.closing(DurableLedger(folder / LEDGER, ledger_name, run.prior)) as durable,
  ):
    done, state = checkpoints.restore(run.state)
    metrics, diagnostics = (_Rows(folder / f"{name}.jsonl", done) for name in ("metrics", "diagnostics"))
    if not metrics.rows:
      metrics.append(0, _measure(run, state, run.prior))
    report(done, f"{run.name}: round {done}/{options.num_rounds}")
    stopped = False
    while done < options.num_rounds and not stopped:
      planned = min(options.eval_every, options.num_rounds - done)
      block = _advance(run, state, planned)
      count = _affordable(run, durable, done, block.events)
      stopped = count < planned
      if stopped:
        block = _advance(run, state, count)  # The rounds beyond the budget are forgotten.
      if count:
        durable.append(done, *block.events)
        done, state = done + len(block.events), block.state
        spent = durable.ledger
        metrics.append(done, _measure(run, state, spent))
        if options.diagnostics:
          diagnostics.append(done, _mean(block.diagnostics))
        checkpoints.save(done, state)
        name = f"{run.name} (NOT PRIVATE)" if spent.caveats else run.name
        report(count, _news(name, options.num_rounds, metrics.rows[-1]))
    return Outcome(state, durable.ledger, metrics.rows[-1], stopped)


class _Rows:
  """A JSON Lines file of rows by round. Rows after round `done` are dropped: they will be made again."""

  def __init__(self, path: pathlib.Path, done: int):
    self._path = path
    self.rows = [row for row in files.read_rows(path) if row["round"] <= done]

  def append(self, done, row):
    self.rows.append({"round": done, **row})
    files.write_rows(self._path, self.rows)


class _Block(NamedTuple):
  """Some rounds: the state after them, and the events and diagnostics of each."""

  state: PyTree
  events: Sequence[Events]
  diagnostics: Sequence[Any]


def _advance(run, state, count) -> _Block:
  """Computes `count` rounds; the host waits for the devices only at the end."""
  outputs = []
  for _ in range(count):
    state, *output = run.step(run.noise_key, run.data_key, state, run.clients)
    outputs.append(output)
  events, diagnostics = zip(*jax.device_get(outputs), strict=True) if outputs else ((), ())
  return _Block(state, events, diagnostics)


def _affordable(run, durable, done, events) -> int:
  """How many of the rounds after round `done` the budget allows; those on file are spent already."""
  if run.max_epsilon is None:
    return len(events)
  spent = durable.last_round + 1 - done

  def epsilon(count):
    new = ((event, 1) for released in itertools.chain(*events[spent:count]) for event in unstack(released))
    return run.epsilon(durable.ledger.extend(new))

  counts = range(spent + 1, len(events) + 1)
  return spent + bisect.bisect_right(counts, run.max_epsilon, key=epsilon)


def _measure(run, state, ledger):
  metrics = {name: float(value) for name, value in jax.device_get(run.evaluate(state)).items()}
  for name, value in metrics.items():
    if not math.isfinite(value):
      raise ValueError(
        f"Expected finite metrics of {run.name}, got {name} = {value}: its model has diverged; lower a learning rate, "
        "or leave that value out."
      )
  epsilon = run.epsilon(ledger)
  return {**metrics, "central_epsilon": epsilon if math.isfinite(epsilon) else None}


def _mean(diagnostics):
  return {name: float(np.mean([round_[name] for round_ in diagnostics])) for name in diagnostics[0]}


def _news(name, num_rounds, row):
  values = ((key, value) for key, value in row.items() if key != "round" and value is not None)
  printed = {"central_epsilon": partial(rounded_up, digits=4)}
  words = (f"{key.replace('_', ' ')} {printed.get(key, _measured)(value)}" for key, value in values)
  return f"{name}: round {row['round']}/{num_rounds}, {', '.join(words)}"


def _measured(value: float) -> str:
  return f"{value:.4g}"
