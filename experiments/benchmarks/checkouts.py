"""Two checkouts of jdp side by side: the same work in processes that take turns.

A machine's speed drifts, and two checkouts cannot be imported by one process. So each case runs in
a process of its own, and one pair after the other is timed.
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
    script: a file of `peers`, with its arguments; it answers as `peers.serve` does.
    devices: how many it simulates.
    checkout: whose packages it imports, and whose script it runs; this one's if that has none.
    python: its interpreter.
  """

  script: list[str]
  devices: int = 1
  checkout: pathlib.Path = HERE
  python: str = sys.executable


class _Worker:
  """A process that does a run whenever asked."""

  def __init__(self, stack: contextlib.ExitStack, command: Command):
    name, *arguments = command.script
    own = command.checkout / _PEERS / name
    environment = os.environ | {
      "PYTHONPATH": str(command.checkout),
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": f"--xla_force_host_platform_device_count={command.devices}",
    }
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
    self.work = self._read("work")

  def seconds(self) -> float:
    """What one run takes."""
    self._requests.write("\n")
    self._requests.flush()
    return self._read("seconds")

  def _read(self, name: str) -> float:
    for line in self._answers:  # libraries print too
      if line.startswith(name + " "):
        return float(line.split()[1])
    raise RuntimeError(f"Expected a worker that answers, got exit status {self._process.wait()}.")


def compare(commands: Mapping[str, Command]) -> list[harness.Timing]:
  """Times processes that take turns; ratios refer to the first."""
  with contextlib.ExitStack() as stack:
    workers = {name: _Worker(stack, command) for name, command in commands.items()}
    seconds = [
      {name: w.seconds() for name, w in workers.items()} for _ in range(harness.ROUNDS.value)
    ]
    work = {name: worker.work for name, worker in workers.items()}
  first = next(iter(work))
  timings = []
  for name in work:
    rates = [work[name] / row[name] for row in seconds]
    ratio = statistics.median(
      rate * row[first] / work[first] for rate, row in zip(rates, seconds, strict=True)
    )
    timings.append(
      harness.Timing(
        name, statistics.median(r[name] for r in seconds), statistics.median(rates), ratio
      )
    )
  return timings


def before_and_after(commands: Mapping[str, Command], baseline: str) -> list[harness.Timing]:
  """Each command in the checkout `baseline` and in this one; ratios are those of the two in
  turn.
  """
  before = pathlib.Path(baseline).resolve()
  if not (before / "jdp").is_dir():
    raise ValueError(f"Expected --baseline to be a checkout of jdp, got {before}.")
  timings = []
  for name, command in commands.items():
    timings += compare(
      {f"{name}, before": command._replace(checkout=before), f"{name}, after": command}
    )
  return timings
