r"""Clients per second of DP-FedAvg, and examples per second of DP-SGD, beside pfl-research, Opacus and jax_privacy.

    python -m experiments.benchmarks.cohorts --pfl_python=PFL/bin/python --opacus_python=OPACUS/bin/python \
      --jax_privacy_python=JAX_PRIVACY/bin/python

Each peer lives in an environment of its own (`pip install pfl torch`, `pip install opacus`, `pip install jax_privacy
optax flax`); those not named are left out. Every case is a process, and the processes take turns: 500 users of 10
examples, one local step, clipping, Gaussian noise; or batches of 256 single examples.
"""

import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence

from absl import app, flags

from experiments.benchmarks import harness

PYTHONS = {
  "pfl_research": flags.DEFINE_string("pfl_python", None, "Python of an environment with pfl-research and PyTorch."),
  "opacus_ghost": flags.DEFINE_string("opacus_python", None, "Python of an environment with Opacus."),
  "jax_privacy_sgd": flags.DEFINE_string("jax_privacy_python", None, "Python of an environment with jax_privacy."),
}
MODELS = flags.DEFINE_list("models", ["logistic", "mlp", "cnn"], "Models to compare on.")

_PACKAGE = "experiments.benchmarks.peers"
_PEERS = {"federated": ["pfl_research"], "example": ["opacus_ghost", "jax_privacy_sgd"]}
_UNITS = {"federated": "clients", "example": "examples"}


class _Worker:
  """A process that does a run whenever asked."""

  def __init__(self, stack: contextlib.ExitStack, python: str, arguments: list[str], devices: int):
    environment = os.environ | {
      "PYTHONPATH": str(pathlib.Path(__file__).parents[2]),
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    self._process = stack.enter_context(
      subprocess.Popen(
        [python, "-m", *arguments],
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

  def _read(self, name):
    for line in self._answers:  # libraries print too
      if line.startswith(name + " "):
        return float(line.split()[1])
    raise RuntimeError(f"Expected a worker that answers, got exit status {self._process.wait()}.")


def _cases(task: str, model: str) -> dict[str, tuple[str, list[str], int]]:
  """Interpreter, arguments and number of devices of every case by name; the first one is the baseline."""
  cases = {}
  for module in _PEERS[task]:
    if python := PYTHONS[module].value:
      cases[module] = (python, [f"{_PACKAGE}.{module}", task, model], 1)
  cores = os.cpu_count() or 1
  for ghost in (0, 1) if model != "cnn" else (0,):
    for devices in sorted({1, cores}):
      name = f"jdp{', ghost norms' if ghost else ''}, {devices} device{'s' if devices > 1 else ''}"
      cases[name] = (sys.executable, [f"{_PACKAGE}.jdp_rounds", task, model, str(ghost)], devices)
  return cases


def _compare(task: str, model: str) -> list[harness.Timing]:
  with contextlib.ExitStack() as stack:
    workers = {name: _Worker(stack, *case) for name, case in _cases(task, model).items()}
    seconds = [{name: w.seconds() for name, w in workers.items()} for _ in range(harness.ROUNDS.value)]
    work = {name: worker.work for name, worker in workers.items()}
  first = next(iter(work))
  timings = []
  for name in work:
    rates = [work[name] / row[name] for row in seconds]
    ratio = statistics.median(rate * row[first] / work[first] for rate, row in zip(rates, seconds, strict=True))
    timings.append(harness.Timing(name, statistics.median(r[name] for r in seconds), statistics.median(rates), ratio))
  return timings


def main(argv: Sequence[str]) -> None:
  """Prints a table for each task and model; ratios refer to the first row."""
  del argv
  for task, unit in _UNITS.items():
    for model in MODELS.value:
      harness.report(f"{task}, {model}", _compare(task, model), unit, json_path=harness.JSON.value)


if __name__ == "__main__":
  app.run(main)
