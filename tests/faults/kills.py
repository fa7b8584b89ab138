"""Kills training experiments at random instants, and compares how they end.

    python -m tests.faults.kills --count 300

Each trial starts an experiment in its smallest setting, kills it (SIGKILL) at up to ten random
instants, each time goes on, and lets it end. What it leaves must equal, byte for byte, what a run
leaves that was never killed: ledgers, metrics, parameters, results and report. The program prints
a row for each experiment. At a difference or an exit with an error it ends with status 1.

A process tells in what phase it is, in memory that it shares with the one that kills it. A part of
the instants is drawn from the time that starting up takes. The others come a random time after a
random change of phase, as rounds, ledger and checkpoints take little time beside starting up. The
counts say in what phases the kills came.

With `--record` the counts of a seed are kept in `tests/faults/results/kills.json`, after each
trial, and a later call goes on from them. Experiments take turns, so that a stop leaves trials of
all of them.

The processes are forked from one that has imported what they need and has started no JAX backend.
Each has one device, for which programs are traced in the least time. Plots are not drawn: they
would take half of a run's time, and hold nothing that a run goes on from.
"""

import argparse
import collections
import contextlib
import importlib
import math
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, MutableSequence
from multiprocessing.sharedctypes import RawArray
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# The imports that cost most, which the processes need not repeat.
import jax
import matplotlib.figure
import orbax.checkpoint  # noqa: F401

from experiments.runner import launch
from jdp.federated.runs import training
from jdp.federated.runs.folder_records import FolderRecords
from tests.faults import results

_ALL = "--seeds=1 --noise_seed=7 --num_rounds=16 --eval_every=2"
EXPERIMENTS = {
  "private_federated": "--examples_per_user=10 --cohort_size=20 --baselines=central "
  "--epsilon_directions= --chunk_size=8 --diagnostics",
  "dp_fedavg": "--examples_per_user=10 --cohort_size=20 --runs=private --vary= "
  "--local_training=gradient --noise_multiplier=1.3",
  "general_approach": "--batch_size=40 --chunk_size=4 --runs=proportional",
  "client_dropout": "--examples_per_user=20 --local_batch_size=20 --chunk_size=1 "
  "--schemes=calibrated --dropouts=0.3",
  "correlated_noise": "--examples_per_user=10 --cohort_size=20 --runs=buffered,tree --bands=4 "
  "--buffers=2 --noise_multiplier=1.3 --chunk_size=8",
  "draw_and_discard": "--rounds_per_pass=2 --instances=4 --batch_sizes= --epsilons=",
}
PHASES = ("start-up", "rounds", "ledger", "evaluation", "checkpoint", "end")
# (where a function is, its name, the phase while it runs, the phase after it; None: that before).
# The first rounds are a part of the start-up, as their program is compiled there.
_FUNCTIONS = (
  (FolderRecords, "__init__", "start-up", "start-up"),
  (FolderRecords, "append_events", "ledger", "rounds"),
  (training, "_measure", "evaluation", None),
  (FolderRecords, "append_row", "evaluation", None),
  (FolderRecords, "save", "checkpoint", None),
  (FolderRecords, "finish", "end", "end"),
)
_KILLS_OF_A_TRIAL = 10
_START_UP_SHARE = 0.2  # of the instants
_MOST_CHANGES = 20  # of phase before a kill: about two blocks of rounds
_SECONDS_AFTER = 1e-3, 1.0  # after the last of them, each order of magnitude alike
_LIMIT_SECONDS = 600


def start(experiment: str, arguments: list[str], log: pathlib.Path, phase: Any) -> int:
  """Forks a process that runs the binary, and returns its id."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # JAX warns of forks: its threads would be lost.
    child = os.fork()
  if child:
    return child
  with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
    os._exit(_run(experiment, arguments, phase))


def _run(experiment: str, arguments: list[str], phase: Any) -> int:
  """Runs a binary as from the command line; returns its exit status."""
  sys.argv = [experiment, *arguments]
  time.perf_counter = lambda: 0.0  # A report may state how long a round takes on this machine.
  matplotlib.figure.Figure.savefig = lambda figure, path, **options: pathlib.Path(path).touch()
  for owner, name, during, after in _FUNCTIONS:
    setattr(owner, name, _telling(getattr(owner, name), phase, during, after))
  try:
    launch.launch(importlib.import_module(f"experiments.{experiment}.__main__").EXPERIMENT)
  except SystemExit as end:
    if end.code is None or isinstance(end.code, int):
      return end.code or 0
    print(end.code, flush=True)
  except BaseException:
    traceback.print_exc()
  return 1


def _telling(
  function: Callable, phase: MutableSequence[int], during: str, after: str | None
) -> Callable:
  """The function, which tells when its phase begins and ends.

  Args:
    function: any.
    phase: (the phase's number, how often it has changed), shared with another process.
    during: the phase while the function runs.
    after: the phase after it. None: the one before it.
  """

  def told(*arguments, **options):
    before = phase[0]
    phase[:] = PHASES.index(during), phase[1] + 1
    result = function(*arguments, **options)
    phase[:] = before if after is None else PHASES.index(after), phase[1] + 1
    return result

  return told


class Trials:
  """The trials of one experiment, in a folder of their own.

  Attributes:
    whole: what a run leaves that was not killed, path -> content.
  """

  def __init__(self, experiment: str, folder: pathlib.Path):
    self._experiment, self._folder = experiment, folder
    self._path = folder / "run"
    self._phase = RawArray("l", 2)
    self._start_up_seconds = 0.0
    folder.mkdir()
    self._go(math.inf, 0.0)
    self.whole = self._contents()

  def trial(self, rng: random.Random) -> collections.Counter[str]:
    """Kills a run again and again, lets it end, and compares what it leaves."""
    self._remove()
    counts = collections.Counter(trials=1)
    for _ in range(_KILLS_OF_A_TRIAL):
      if not self._go(*self._drawn(rng)):
        break
      counts.update(["kills", PHASES[self._phase[0]]])
    else:
      self._go(math.inf, 0.0)
    found = self._contents()
    differing = [n for n in found.keys() | self.whole.keys() if found.get(n) != self.whole.get(n)]
    if differing:
      raise AssertionError(f"{differing} differ from a run that was not killed.")
    if self._path.with_name("run.secret").exists():
      raise AssertionError("Secrets are left behind.")
    return counts

  def _drawn(self, rng: random.Random) -> tuple[int, float]:
    """An instant: (how often the phase has changed, seconds since then)."""
    if rng.random() < _START_UP_SHARE:
      return 0, rng.uniform(0, self._start_up_seconds)
    least, most = map(math.log, _SECONDS_AFTER)
    return rng.randint(1, _MOST_CHANGES), math.exp(rng.uniform(least, most))

  def _go(self, changes: float, seconds: float) -> bool:
    """Starts the run, or goes on with it; whether it was killed before its end."""
    log = self._folder / "log"
    begun = (self._path / "flags.json").exists()
    flags = [*_ALL.split(), *EXPERIMENTS[self._experiment].split()]
    arguments = [f"--workdir={self._path}", *(["--resume"] if begun else flags)]
    self._phase[:] = 0, 0
    child = start(self._experiment, arguments, log, self._phase)
    try:
      self._wait(child, changes, seconds)
    finally:
      # It is there until `waitpid` has asked for it, also if it has ended.
      os.kill(child, signal.SIGKILL)
      status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
      raise AssertionError(f"{self._experiment} ended with {status}:\n{log.read_text()[-3000:]}")
    return status < 0

  def _wait(self, child: int, changes: float, seconds: float) -> None:
    """Waits for the end of a process, or some seconds after so many changes of its phase."""
    begun, instant = time.monotonic(), math.inf
    while (now := time.monotonic()) < instant:
      if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        return
      if now - begun > _LIMIT_SECONDS:
        raise AssertionError(f"{self._experiment} did not end in {_LIMIT_SECONDS} s.")
      if self._phase[1] <= 2:  # what opening the first run's records takes
        self._start_up_seconds = now - begun if changes else self._start_up_seconds
      if instant == math.inf and self._phase[1] >= changes:
        instant = now + seconds
      time.sleep(0.001)

  def _contents(self) -> dict[str, bytes]:
    files = (path for path in self._path.rglob("*") if path.is_file())
    return {str(path.relative_to(self._path)): path.read_bytes() for path in files}

  def _remove(self) -> None:
    for name in ("run", "run.secret"):
      shutil.rmtree(self._folder / name, ignore_errors=True)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--count", type=int, default=300, help="Kills, of all experiments together.")
  parser.add_argument("--seed", type=int, default=0, help="Of the instants.")
  parser.add_argument("--experiments", default=",".join(EXPERIMENTS))
  parser.add_argument("--record", action="store_true", help="Keep the figures that docs show.")
  options = parser.parse_args()
  part, names = f"seed {options.seed}", options.experiments.split(",")
  counts = {
    name: results.counts_of("kills", name, part) if options.record else collections.Counter()
    for name in names
  }
  for name in names:
    importlib.import_module(f"experiments.{name}.__main__")
  jax.config.update("jax_num_cpu_devices", 1)
  trials: dict[str, Trials] = {}
  with tempfile.TemporaryDirectory() as folder:
    if jax.config.jax_compilation_cache_dir is None:
      jax.config.update("jax_compilation_cache_dir", f"{folder}/cache")
    while sum(count["kills"] for count in counts.values()) < options.count:
      name = min(names, key=lambda name: counts[name]["trials"])
      if name not in trials:
        trials[name] = Trials(name, pathlib.Path(folder) / name)
      try:
        rng = random.Random(f"{name} {part} {counts[name]['trials']}")
        counts[name] += trials[name].trial(rng)
      except AssertionError:
        counts[name]["not equal"] += 1
        raise
      finally:
        if options.record:
          results.put("kills", name, part, counts[name])
      print(f"{name}: {_in_words(counts[name])}", file=sys.stderr, flush=True)
  for name, trial in trials.items():
    print(f"{name}: {len(trial.whole)} files equal in every trial; {_in_words(counts[name])}")
  total = sum(counts.values(), collections.Counter())
  print(f"in all: {total['kills']} kills in {total['trials']} trials, all ended with equal bytes")


def _in_words(counts: collections.Counter[str]) -> str:
  return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


if __name__ == "__main__":
  main()
