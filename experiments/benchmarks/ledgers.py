"""Times what keeps a run's accounts: ledgers, their epsilons, digests and checkpoints.

Run it as `python -m experiments.benchmarks.ledgers`. `--json=FILE` appends the figures to a file.
`docs/survival.md` shows those of `experiments/benchmarks/results/ledgers.jsonl`.
"""

import contextlib
import functools
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import absl.logging
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from experiments.benchmarks import harness
from jdp.events import GaussianSum, PoissonSampling, Round, ShuffledBatches
from jdp.federated import add_updates, rounds, train
from jdp.federated.runs.budget import central_epsilon
from jdp.federated.runs.digest import digest
from jdp.ledger import DurableLedger, Ledger, load
from jdp.queries import average, gaussian_sum
from jdp.sampling import poisson

_EVENTS = flags.DEFINE_integer("events", 10**6, "Distinct events to load.", lower_bound=1)
_BLOCK = 10
_DELTA = 1e-5
_RUNS: dict[str, Callable[[int], Round]] = {
  "equal rounds": lambda number: Round(PoissonSampling(0.01), GaussianSum(1.0, 1.1)),
  "epochs of 100 rounds": lambda number: Round(
    ShuffledBatches(100, number % 100 == 0), GaussianSum(1.0, 1.1)
  ),
  "distinct rounds": lambda number: Round(
    PoissonSampling(0.01), GaussianSum(1.0, 1.1 + number * 1e-6)
  ),
}
Figures = dict[str, float]
"""Of seconds, seconds of the processor, and gigabytes: those that were measured."""


def timed(function: Callable[[], Any]) -> Figures:
  """What a call takes."""
  before, start = time.process_time(), time.perf_counter()
  function()
  seconds, used = time.perf_counter() - start, time.process_time() - before
  return {"seconds": seconds, "cpu_seconds": used}


def loading(path: pathlib.Path) -> Figures:
  """What it takes to load a file, and the most memory that the process has had."""
  taken = timed(lambda: load(path))
  return {**taken, "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}


def loading_apart(path: pathlib.Path) -> Figures:
  """`loading` in a process of its own, whose memory holds nothing else."""
  command = [sys.executable, "-m", "experiments.benchmarks.ledgers", str(path)]
  return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def block(folder: pathlib.Path, make: Callable[[int], Round], done: int) -> Figures:
  """What recording a block costs after `done` rounds, with the epsilon after it."""
  with contextlib.closing(DurableLedger(folder / str(done), "run")) as durable:
    durable.append(0, *([make(number)] for number in range(done)))
    central_epsilon(durable.ledger, _DELTA)

    def record(first: int) -> None:
      durable.append(first, *([make(number)] for number in range(first, first + _BLOCK)))
      central_epsilon(durable.ledger, _DELTA)

    firsts = range(done, done + 5 * _BLOCK, _BLOCK)
    times = [timed(functools.partial(record, first)) for first in firsts]
  return {"cpu_seconds": min(time["cpu_seconds"] for time in times)}


def evaluated_round(workdir: pathlib.Path | None) -> float:
  """Processor seconds of a small round with an evaluation: the median over many."""
  sampler, ends = poisson(100, 0.5), []
  algorithm = rounds(
    lambda keys, value, own: (own - value, {}),
    average(gaussian_sum(clip_norm=1.0, stddev=4.0), sampler.expected_size),
    sampler,
    add_updates(optax.sgd(0.5)),
    relation="add_remove",
  )
  train(
    algorithm,
    jnp.float32(0),
    jnp.full(100, 0.7),
    num_rounds=50,
    evaluate_every=1,
    workdir=workdir,
    callbacks=[lambda progress: ends.append(time.process_time())],
  )
  return float(np.median(np.diff(ends)[2:]))  # those before compile


def figures(folder: pathlib.Path) -> Iterator[tuple[str, Figures]]:
  """What is timed, and what it took."""
  distinct = _RUNS["distinct rounds"]
  Ledger().extend((distinct(n), 1) for n in range(_EVENTS.value)).save(folder / "saved")
  yield f"loading {_EVENTS.value:,} distinct events", loading_apart(folder / "saved")
  for title, make in _RUNS.items():
    (folder / title).mkdir()
    for done in (1000, 40_000):
      yield (
        f"a block of {_BLOCK} with its epsilon, after {done:,} {title}",
        block(folder / title, make, done),
      )
  data = np.zeros(2**26, np.uint8)
  yield "a digest of 64 MiB", timed(lambda: digest(data))
  kept, alone = evaluated_round(folder / "run"), evaluated_round(None)
  yield "files and checkpoint of a block of one round", {"cpu_seconds": kept - alone}


def main(argv: Sequence[str]) -> None:
  """Prints the figures."""
  absl.logging.set_verbosity(absl.logging.WARNING)  # The checkpointer's messages take time too.
  if len(argv) > 1:
    print(json.dumps(loading(pathlib.Path(argv[1]))))
    return
  with tempfile.TemporaryDirectory() as name:
    for title, found in figures(pathlib.Path(name)):
      print(f"{title}: " + ", ".join(f"{value:.3g} {what}" for what, value in found.items()))
      if harness.JSON.value:
        row = {"title": title, **found, "machine": harness.machine()}
        with pathlib.Path(harness.JSON.value).open("a") as file:
          file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
  app.run(main)
