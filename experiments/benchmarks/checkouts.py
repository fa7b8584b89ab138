"""Times two checkouts of jdp in turn, each in processes of its own.

A machine's speed drifts, and one process cannot import two checkouts. So each case runs in a
process of its own, and one pair after the other is timed.
"""

import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Mapping
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
  """

  script: list[str]
  devices: int | None = 1
  checkout: pathlib.Path = HERE
  python: str = sys.executable


class _Worker:
  """A process that runs its case once for every request."""

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
    self.work = self._read("work")["work"]

  def run(self) -> dict[str, float]:
    """The "seconds" of one run, and its seconds of "cpu" if the worker tells them."""
    self._requests.write("\n")
    self._requests.flush()
    return self._read("seconds")

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


def compare(commands: Mapping[str, Command]) -> list[harness.Timing]:
  """Times processes that take turns; ratios refer to the first command."""
  with contextlib.ExitStack() as stack:
    workers = {name: _Worker(stack, command) for name, command in commands.items()}
    turns = [{name: w.run() for name, w in workers.items()} for _ in range(harness.ROUNDS.value)]
    work = {name: worker.work for name, worker in workers.items()}
  first = next(iter(work))
  timings = []
  for name in work:
    seconds = [turn[name]["seconds"] for turn in turns]
    rates = [work[name] / own for own in seconds]
    # Ratios are taken within one turn: the machine's drift is the same for both.
    ratio = statistics.median(
      rate * turn[first]["seconds"] / work[first] for rate, turn in zip(rates, turns, strict=True)
    )
    cpu = [turn[name]["cpu"] for turn in turns if "cpu" in turn[name]]
    timings.append(
      harness.Timing(
        name,
        statistics.median(seconds),
        statistics.median(rates),
        ratio,
        statistics.median(cpu) if cpu else None,
      )
    )
  return timings


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
