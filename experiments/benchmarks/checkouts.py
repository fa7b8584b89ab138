"""Times two checkouts of jdp in turn, each in processes of its own.

A machine's speed drifts, and one process cannot import two checkouts. So each case runs in a
process of its own, and one pair after the other is timed.
"""

import contextlib
import os
import pathlib
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from absl import flags

from experiments.benchmarks import harness

HERE = pathlib.Path(__file__).resolve().parents[2]
BASELINE = flags.DEFINE_string(
  "baseline", None, "Another checkout of jdp, whose speed this one's is compared with."
)

_PEERS = pathlib.Path("experiments", "benchmarks", "peers")


class Command(NamedTuple):
  """What a process runs.

  Attributes:
    script: a file of `peers` with its arguments. It answers as `peers.serve` does.
    devices: how many it simulates. None: as many as it makes itself.
    checkout: the checkout whose packages it imports, and whose script it runs. Without such a
      script there, it runs this checkout's.
    python: its interpreter.
    case: the name of what is timed, if the process serves several. Commands that differ in nothing
      else share a process.
  """

  script: tuple[str, ...]
  devices: int | None = 1
  checkout: pathlib.Path = HERE
  python: str = sys.executable
  case: str = ""


class Turn(NamedTuple):
  """One run of a case.

  Attributes:
    work: units of work that were done.
    seconds: that passed.
    cpu: the time of all the process's threads on a core. None if it does not tell.
  """

  work: float
  seconds: float
  cpu: float | None

  @property
  def rate(self) -> float:
    """Units of work per second."""
    return self.work / self.seconds


class _Worker:
  """A process that runs a case once for every request."""

  def __init__(self, stack: contextlib.ExitStack, command: Command):
    name, *arguments = command.script
    own = command.checkout / _PEERS / name
    environment = os.environ | {
      "PYTHONPATH": str(command.checkout),
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": f"--xla_force_host_platform_device_count={command.devices}",
    }
    if command.devices is None:
      del environment["XLA_FLAGS"]
    self._process = stack.enter_context(
      subprocess.Popen(
        [command.python, own if own.exists() else HERE / _PEERS / name, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
      )
    )
    assert self._process.stdin is not None
    assert self._process.stdout is not None
    self._requests, self._answers = self._process.stdin, self._process.stdout
    stack.callback(self._requests.close)

  def wait(self) -> None:
    """Waits until all is warm."""
    self._work = self._read("work")["work"]

  def run(self, case: str) -> Turn:
    """Runs a case."""
    self._requests.write(f"{case}\n")
    self._requests.flush()
    said = self._read("seconds")
    return Turn(said.get("work", self._work), said["seconds"], said.get("cpu"))

  def _read(self, last: str) -> dict[str, float]:
    """What the worker says, by name, until it says `last`."""
    said: dict[str, float] = {}
    for line in self._answers:
      name, _, value = line.partition(" ")
      if name in ("work", "cpu", "seconds"):  # Libraries print to stdout too.
        said[name] = float(value)
      if last in said:
        return said
    raise RuntimeError(f"Expected a worker that answers, got exit status {self._process.wait()}.")


def take_turns(commands: Mapping[str, Command]) -> list[dict[str, Turn]]:
  """Runs every command once in each turn, in an order that changes from turn to turn."""
  shuffled = random.Random(0).sample
  with contextlib.ExitStack() as stack:
    processes = {command._replace(case="") for command in commands.values()}
    workers = {process: _Worker(stack, process) for process in processes}
    for worker in workers.values():
      worker.wait()
    return [
      {
        name: workers[commands[name]._replace(case="")].run(commands[name].case)
        for name in shuffled(list(commands), len(commands))
      }
      for _ in range(harness.ROUNDS.value)
    ]


def summary(turns: Sequence[Mapping[str, Turn]], names: Iterable[str]) -> list[harness.Timing]:
  """Medians over the turns, in the order of the names; ratios refer to the first."""
  first, *_ = names = list(names)
  timings = []
  for name in names:
    own = [turn[name] for turn in turns]
    cpu = [turn.cpu for turn in own if turn.cpu is not None]
    timings.append(
      harness.Timing(
        name,
        statistics.median(turn.seconds for turn in own),
        statistics.median(turn.rate for turn in own),
        # Ratios are taken within one turn: the machine's drift is the same for both.
        statistics.median(turn[name].rate / turn[first].rate for turn in turns),
        statistics.median(cpu) if cpu else None,
      )
    )
  return timings


def compare(commands: Mapping[str, Command]) -> list[harness.Timing]:
  """Times processes that take turns; ratios refer to the first command."""
  return summary(take_turns(commands), commands)


def before_and_after(commands: Mapping[str, Command], baseline: str) -> list[harness.Timing]:
  """Times each command in the checkout `baseline` and in this one; ratios are within one turn."""
  before = pathlib.Path(baseline).resolve()
  if not (before / "jdp").is_dir():
    raise ValueError(f"Expected --baseline to be a checkout of jdp, got {before}.")
  timings = []
  for name, command in commands.items():
    timings += compare(
      {f"{name}, before": command._replace(checkout=before), f"{name}, after": command}
    )
  return timings
