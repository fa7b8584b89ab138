"""Times a ledger's file: loading it, and what an evaluation costs early and late in a run.

Run it as `python -m experiments.benchmarks.ledgers`.
"""

import contextlib
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from absl import app, flags

from jdp.events import GaussianSum, PoissonSampling, Round, ShuffledBatches
from jdp.federated.runs.budget import central_epsilon
from jdp.ledger import DurableLedger, Ledger, load

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


def loading(path: pathlib.Path) -> str:
  """How long it takes to load a file, and the most memory that the process has had, as text."""
  before, start = time.process_time(), time.perf_counter()
  ledger = load(path)
  seconds, used = time.perf_counter() - start, time.process_time() - before
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
  return (
    f"load of {len(ledger):,} events: {seconds:.2f} s, {used:.2f} s of the processor, "
    f"{peak:.2f} GB at most"
  )


def block_seconds(folder: pathlib.Path, make: Callable[[int], Round], done: int) -> float:
  """What recording a block costs after `done` rounds, with the epsilon after it; waiting apart."""
  times = []
  with contextlib.closing(DurableLedger(folder / str(done), "run")) as durable:
    durable.append(0, *([make(number)] for number in range(done)))
    central_epsilon(durable.ledger, _DELTA)
    for first in range(done, done + 5 * _BLOCK, _BLOCK):
      start = time.process_time()
      durable.append(first, *([make(number)] for number in range(first, first + _BLOCK)))
      central_epsilon(durable.ledger, _DELTA)
      times.append(time.process_time() - start)
  return min(times)


def main(argv: Sequence[str]) -> None:
  """Prints the times."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    if len(argv) > 1:  # in a process of its own, whose memory holds nothing else
      print(loading(pathlib.Path(argv[1])))
      return
    distinct = _RUNS["distinct rounds"]
    Ledger().extend((distinct(n), 1) for n in range(_EVENTS.value)).save(folder / "saved")
    command = [sys.executable, "-m", "experiments.benchmarks.ledgers", str(folder / "saved")]
    subprocess.run(command, check=True)
    for title, make in _RUNS.items():
      (folder / title).mkdir()
      early, late = (block_seconds(folder / title, make, done) for done in (1000, 40_000))
      print(
        f"{title}: a block of {_BLOCK} with its epsilon takes {early * 1e3:.1f} ms after 1,000 "
        f"rounds, {late * 1e3:.1f} ms after 40,000"
      )


if __name__ == "__main__":
  app.run(main)
