"""Rounds whose users are read from a file, beside rounds of users in memory.

    python -m experiments.benchmarks.sources --folder=FOLDER --make
    python -m experiments.benchmarks.sources --folder=FOLDER --json=FILE --plot=FILE.png

The first makes a file of 1,000,000 users, of 4 to 44 examples of 64 numbers each. The second trains
an MLP on the first so many of them by DP-FedAvg, in a new process for each case. It reports

* the seconds from opening to the end of the first round, compiling included;
* clients a second, in rounds after that;
* the largest resident memory, beyond what the same process has with 20,000 users in memory, but for
  those users themselves.

`--plot` draws the rows of `--json`; with `--users=` it does nothing else.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from absl import app, flags
from matplotlib import pyplot as plt

from experiments.benchmarks import harness
from jdp import data, models
from jdp.federated import dp_fedavg, train

_FOLDER = flags.DEFINE_string("folder", None, "Where the users are.", required=True)
_MAKE = flags.DEFINE_bool("make", False, "Make the users.")
_USERS = flags.DEFINE_list("users", ["1000", "10000", "100000", "1000000"], "Users of a run.")
_COHORTS = flags.DEFINE_list("cohorts", ["1000", "10000"], "Expected clients of a round.")
_IN_MEMORY = flags.DEFINE_integer("in_memory", 100_000, "The most users to hold in memory.")
_PLOT = flags.DEFINE_string("plot", None, "A picture of what the file --json holds.")
_CASE = flags.DEFINE_string("case", None, "Measure this case alone, in this process.")

_MADE, _FEATURES, _CLASSES, _MOST = 1_000_000, 64, 10, 32


class FileUsers:
  """Users whose examples stand in a row in two files, with an index of where each begins.

  Args:
    folder: of the files.
    count: the first so many users.
  """

  def __init__(self, folder: pathlib.Path, count: int):
    self._starts = np.load(folder / "starts.npy")[: count + 1].tolist()
    self._inputs, self._labels = (
      os.open(folder / name, os.O_RDONLY) for name in ("inputs.f32", "labels.i32")
    )

  def __len__(self) -> int:
    return len(self._starts) - 1

  def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    first, last = self._starts[number : number + 2]
    bytes_of_row, count = 4 * _FEATURES, last - first
    inputs = os.pread(self._inputs, count * bytes_of_row, first * bytes_of_row)
    labels = os.pread(self._labels, 4 * count, 4 * first)
    rows = np.frombuffer(inputs, np.float32).reshape(count, _FEATURES)
    return rows, np.frombuffer(labels, np.int32)


def make(folder: pathlib.Path) -> None:
  """Writes the users, some at a time."""
  rng, sizes = np.random.default_rng(0), []
  weights = rng.normal(size=(_FEATURES, _CLASSES)).astype(np.float32)
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / "inputs.f32").open("wb") as inputs, (folder / "labels.i32").open("wb") as labels:
    for _ in range(_MADE // 10_000):
      own = 4 + rng.binomial(40, 0.32, 10_000)
      rows = rng.standard_normal((int(own.sum()), _FEATURES), np.float32)
      inputs.write(rows.tobytes())
      labels.write(np.argmax(rows @ weights, axis=1).astype(np.int32).tobytes())
      sizes.append(own)
  np.save(folder / "starts.npy", np.concatenate([[0], np.cumsum(np.concatenate(sizes))]))


def measure(where: str, users: int, cohort: int) -> dict[str, Any]:
  """What a run takes whose users are read, or are in memory, in this process."""
  source, begun = FileUsers(pathlib.Path(_FOLDER.value), users), time.perf_counter()
  if where == "read":
    clients: Any = data.clients_from_source(source, max_examples=_MOST)
  else:
    pairs = (source[number] for number in range(users))
    clients = data.clients_from_pairs(pairs, max_examples=_MOST)
  model = models.from_flax(
    nn.Sequential([nn.Dense(128), nn.relu, nn.Dense(_CLASSES)]), (_FEATURES,)
  )
  block = max(1, 5_000 // cohort)
  algorithm = dp_fedavg(
    models.cross_entropy(model),
    clients,
    cohort_size=cohort,
    clip_norm=1.0,
    noise_multiplier=1.0,
    num_rounds=1 + 6 * block,
  )
  params, ends = model.init(jax.random.key(0)), []
  train(algorithm, params, clients, num_rounds=1, evaluate_every=block)
  ends = [time.perf_counter()]
  train(
    algorithm,
    params,
    clients,
    evaluate_every=block,
    callbacks=[lambda progress: ends.append(time.perf_counter())],
  )
  del ends[1]  # the second run's beginning
  seconds = np.diff(ends[2:-1])
  return {
    "first round": ends[0] - begun,
    "clients a second": block * cohort / float(np.median(seconds)),
    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
  }


def _in_a_process(case: str) -> dict[str, Any]:
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"--xla_force_host_platform_device_count={os.cpu_count()}",
  }
  command = [sys.executable, "-m", __spec__.name, f"--folder={_FOLDER.value}", f"--case={case}"]
  done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
  return json.loads(done.stdout.splitlines()[-1])


def _cases() -> list[str]:
  sizes = [(int(users), int(cohort)) for users in _USERS.value for cohort in _COHORTS.value]
  fitting = [(users, cohort) for users, cohort in sizes if cohort <= users / 2]
  held = [case for case in fitting if case[0] <= _IN_MEMORY.value]
  return [
    f"{where},{users},{cohort}"
    for where, own in (("in memory", held), ("read", fitting))
    for users, cohort in own
  ]


def draw(rows: list[dict[str, Any]], path: str) -> None:
  """Draws the rate against the number of users."""
  figure, axes = plt.subplots(figsize=(6, 3.5))
  for where, line in (("in memory", "--"), ("read", "-")):
    for cohort, color in zip(_COHORTS.value, ("C0", "C1"), strict=False):
      own = [row for row in rows if (row["users are"], row["cohort"]) == (where, int(cohort))]
      axes.plot(
        [row["users"] for row in own],
        [row["clients a second"] for row in own],
        line,
        color=color,
        marker="o",
        label=f"{where}, {int(cohort):,} a round",
      )
  axes.set_xscale("log")
  axes.set_ylim(bottom=0)
  axes.set_xlabel("users")
  axes.set_ylabel("clients a second")
  axes.legend()
  figure.tight_layout()
  figure.savefig(path, dpi=150)


def main(argv: list[str]) -> None:
  """Makes the users, or measures all cases."""
  del argv
  if _MAKE.value:
    make(pathlib.Path(_FOLDER.value))
    return
  if _CASE.value is not None:
    where, users, cohort = _CASE.value.split(",")
    print(json.dumps(measure(where, int(users), int(cohort))))
    return
  for case in _cases() if _USERS.value else ():
    where, users, cohort = case.split(",")
    found = _in_a_process(case)
    row = {"users are": where, "users": int(users), "cohort": int(cohort), **found}
    print(json.dumps(row))
    harness.append({**row, "machine": harness.machine()}, harness.JSON.value)
  if _PLOT.value and harness.JSON.value:
    draw(harness.read(harness.JSON.value), _PLOT.value)


if __name__ == "__main__":
  app.run(main)
