"""Kills training experiments at random instants, and compares how they end.

    python -m tests.faults.kills --count 300

Each trial starts an experiment in its smallest setting, kills it (SIGKILL) at up to ten random
instants, each time goes on, and lets it end. What it leaves must equal, byte for byte, what a run
leaves that was never killed: ledgers, metrics, parameters, results and report. The program prints
a row for each experiment. At a difference or an exit with an error it ends with status 1. With
`--record` it writes what its seed has shown to `tests/faults/results/kills.json`, after each trial.

The processes are forked from one that has imported what they need and has started no JAX backend.
Plots are not drawn: they would take half of a run's time, and hold nothing that a run goes on from.
"""

import argparse
import collections
import contextlib
import importlib
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

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# The imports that cost most, which the processes need not repeat.
import jax
import matplotlib.figure
import orbax.checkpoint  # noqa: F401
import sklearn.datasets  # noqa: F401

from experiments.runner import launch
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
_KILLS_OF_A_TRIAL = 10
_LIMIT_SECONDS = 600


def start(experiment: str, arguments: list[str], log: pathlib.Path) -> int:
  """Forks a process that runs the binary, and returns its id."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # JAX warns of forks: its threads would be lost.
    child = os.fork()
  if child:
    return child
  with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
    os._exit(_run(experiment, arguments))


def _run(experiment: str, arguments: list[str]) -> int:
  """Runs a binary as from the command line; returns its exit status."""
  sys.argv = [experiment, *arguments]
  time.perf_counter = lambda: 0.0  # A report may state how long a round takes on this machine.
  matplotlib.figure.Figure.savefig = lambda figure, path, **options: pathlib.Path(path).touch()
  try:
    launch.launch(importlib.import_module(f"experiments.{experiment}.__main__").EXPERIMENT)
  except SystemExit as end:
    if end.code is None or isinstance(end.code, int):
      return end.code or 0
    print(end.code, flush=True)
  except BaseException:
    traceback.print_exc()
  return 1


def end(child: int, instant: float) -> int:
  """Waits for a process, and kills it at an instant if it still runs; returns its status."""
  begun = time.monotonic()
  while time.monotonic() - begun < instant:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
      return os.waitstatus_to_exitcode(status)
    time.sleep(min(0.002, instant))
  os.kill(child, signal.SIGKILL)
  return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Trials:
  """The trials of one experiment, in a folder of their own."""

  def __init__(self, experiment: str, folder: pathlib.Path):
    self._experiment, self._folder = experiment, folder
    self._path = folder / "run"
    folder.mkdir()
    self._go(_LIMIT_SECONDS)  # Compiles what the others take from the cache.
    self._remove()
    begun = time.monotonic()
    self._go(_LIMIT_SECONDS)
    self.seconds = time.monotonic() - begun
    self.whole = self._contents()
    self.counts: collections.Counter[str] = collections.Counter()

  def trial(self, rng: random.Random) -> None:
    """Kills a run again and again, lets it end, and compares what it leaves."""
    self._remove()
    for number in range(_KILLS_OF_A_TRIAL):
      begun = time.monotonic()
      if not self._go(rng.uniform(0, self.seconds)):
        # The machine's load changes: later instants are drawn within a run's present length.
        self.seconds = self.seconds if number else time.monotonic() - begun
        break
      self.counts["kills"] += 1
      self.counts[self._reached()] += 1
    else:
      self._go(_LIMIT_SECONDS)
    self.counts["trials"] += 1
    found = self._contents()
    differing = [n for n in found.keys() | self.whole.keys() if found.get(n) != self.whole.get(n)]
    if differing:
      raise AssertionError(f"{differing} differ from a run that was not killed.")
    if self._path.with_name("run.secret").exists():
      raise AssertionError("Secrets are left behind.")

  @property
  def figures(self) -> str:
    """What the trials have shown so far."""
    counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
    return f"{len(self.whole)} files equal in every trial, {self.seconds:.1f} s a run; {counts}"

  def _go(self, instant: float) -> bool:
    """Starts the run, or goes on with it; whether it was killed before its end."""
    log = self._folder / "log"
    begun = (self._path / "flags.json").exists()
    flags = [*_ALL.split(), *EXPERIMENTS[self._experiment].split()]
    arguments = ["--resume"] if begun else flags
    status = end(start(self._experiment, [f"--workdir={self._path}", *arguments], log), instant)
    if status not in (0, -signal.SIGKILL):
      raise AssertionError(f"{self._experiment} ended with {status}:\n{log.read_text()[-3000:]}")
    return status < 0

  def _reached(self) -> str:
    """How far a killed run came."""
    if not (self._path / "flags.json").exists():
      return "before the first round"
    if list(self._path.rglob("result.json")):
      return "after a result"
    return "after a round" if list(self._path.rglob("ledger.jsonl")) else "before the first round"

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
  parser.add_argument("--record", action="store_true", help="Write the figures that docs show.")
  options = parser.parse_args()
  rng = random.Random(options.seed)
  with tempfile.TemporaryDirectory() as folder:
    if jax.config.jax_compilation_cache_dir is None:
      jax.config.update("jax_compilation_cache_dir", f"{folder}/cache")
    names, trials = options.experiments.split(","), {}
    for name in names:
      importlib.import_module(f"experiments.{name}.__main__")
    while sum(trial.counts["kills"] for trial in trials.values()) < options.count:
      name = names.pop(0)
      names.append(name)
      if name not in trials:
        trials[name] = Trials(name, pathlib.Path(folder) / name)
      try:
        trials[name].trial(rng)
      except AssertionError:
        trials[name].counts["not equal"] += 1
        raise
      finally:
        if options.record:
          results.put("kills", name, f"seed {options.seed}", trials[name].counts)
      print(f"{name}: {trials[name].figures}", file=sys.stderr, flush=True)
  for name, trial in trials.items():
    print(f"{name}: {trial.figures}")
  total = sum((trial.counts for trial in trials.values()), collections.Counter())
  print(f"in all: {total['kills']} kills in {total['trials']} trials, all ended with equal bytes")


if __name__ == "__main__":
  main()
