"""Rounds whose users are read from a file, beside rounds of users in memory.

    python -m experiments.benchmarks.sources --folder=FOLDER --make
    python -m experiments.benchmarks.sources --folder=FOLDER --json=FILE --plot=FILE.png

The first makes 1,000,000 users of 4 to 44 examples of 64 numbers (4.3 GB), and 342,477 users in a
file of StackOverflow's schema (3 GB). The second trains an MLP of 76,810 weights on the first so
many users by DP-FedAvg, and a small LSTM on StackOverflow's, in a new process for each case. It
reports

* the seconds from opening to the end of the first round, compiling included;
* clients a second, in the rounds after it;
* the peak of resident memory.

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

from experiments.benchmarks import harness, made_users
from jdp import data, models
from jdp.federated import dp_fedavg, train

_FOLDER = flags.DEFINE_string("folder", None, "Where the users are.", required=True)
_MAKE = flags.DEFINE_bool("make", False, "Make the users.")
_USERS = flags.DEFINE_list("users", ["1000", "10000", "100000", "1000000"], "Users of a run.")
_COHORTS = flags.DEFINE_list("cohorts", ["100", "1000", "10000"], "Expected clients of a round.")
_IN_MEMORY = flags.DEFINE_integer("in_memory", 100_000, "The most users to hold in memory.")
_PLOT = flags.DEFINE_string("plot", None, "A picture of what the file --json holds.")
_THREADS = flags.DEFINE_integer("threads", 1, "Threads that read.", lower_bound=1)
_CASE = flags.DEFINE_string("case", None, "Measure this case alone, in this process.")

_MOST = 32  # examples of a user
_BLOCKS = 6  # of rounds, which are timed
_CLIENTS = {"StackOverflow": 100}  # of such a block


class FileUsers:
  """Users who stand in a row in a file, with an index of where each begins.

  Args:
    folder: of the file.
    count: the first so many users.
  """

  def __init__(self, folder: pathlib.Path, count: int):
    self._starts = np.load(folder / "starts.npy")[: count + 1].tolist()
    self._file = os.open(folder / "users.bin", os.O_RDONLY)

  def __len__(self) -> int:
    return len(self._starts) - 1

  def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    first, last = self._starts[number : number + 2]
    count, size = last - first, made_users.EXAMPLE_BYTES
    found = os.pread(self._file, count * size, first * size)
    inputs = np.frombuffer(found, np.float32, count * made_users.FEATURES)
    labels = np.frombuffer(found, np.int32, count, inputs.nbytes)
    return inputs.reshape(count, made_users.FEATURES), labels


def _numbers(where: str, users: int) -> tuple[Any, models.Loss, Any]:
  """(clients, loss, parameters) of the MLP."""
  source = FileUsers(pathlib.Path(_FOLDER.value), users)
  if where == "read":
    clients: Any = data.clients_from_source(source, max_examples=_MOST, num_threads=_THREADS.value)
  else:
    clients = data.clients_from_pairs(map(source.__getitem__, range(users)), max_examples=_MOST)
  net = nn.Sequential([nn.Dense(1024), nn.relu, nn.Dense(made_users.CLASSES)])
  model = models.from_flax(net, (made_users.FEATURES,))
  return clients, models.cross_entropy(model), model.init(jax.random.key(0))


def _stackoverflow(where: str, users: int) -> tuple[Any, models.Loss, Any]:
  """(clients, loss, parameters) of the LSTM, for users of at most 640 tokens."""
  del where
  words = data.Vocabulary(tuple(made_users.word_list()))
  texts = data.stackoverflow(pathlib.Path(_FOLDER.value, "stackoverflow.sqlite"))[:users]
  source = data.text_source(words, texts, tokens_per_user=20 * _MOST, unroll=20)
  clients = data.clients_from_source(
    source, max_examples=_MOST, label_kind="words", names=source.names
  )
  model = models.language_model(len(words), embedding=32, hidden=64)
  return clients, models.next_word_loss(model), model.init(jax.random.key(0))


def measure(where: str, users: int, cohort: int) -> dict[str, Any]:
  """What a run takes whose users are read, or are in memory, in this process."""
  begun = time.perf_counter()
  made = _stackoverflow if where == "StackOverflow" else _numbers
  clients, loss, params = made(where, users)
  block = max(1, _CLIENTS.get(where, 5_000) // cohort)
  algorithm = dp_fedavg(
    loss,
    clients,
    cohort_size=cohort,
    clip_norm=1.0,
    noise_multiplier=1.0,
    num_rounds=(1 + _BLOCKS) * block,
  )
  train(algorithm, params, clients, num_rounds=1, evaluate_every=block)
  first, ends = time.perf_counter() - begun, []
  train(
    algorithm,
    params,
    clients,
    evaluate_every=block,
    callbacks=[lambda progress: ends.append(time.perf_counter())],
  )
  # Neither the run's beginning nor its first block.
  seconds = float(np.median(np.diff(ends[1:])))
  return {
    "first round": first,
    "clients a second": block * cohort / seconds,
    "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
  }


def _in_a_process(case: str) -> dict[str, Any]:
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"--xla_force_host_platform_device_count={os.cpu_count()}",
  }
  options = [f"--folder={_FOLDER.value}", f"--threads={_THREADS.value}", f"--case={case}"]
  command = [sys.executable, "-m", __spec__.name, *options]
  done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
  return json.loads(done.stdout.splitlines()[-1])


def _cases() -> list[str]:
  sizes = [(int(users), int(cohort)) for users in _USERS.value for cohort in _COHORTS.value]
  cases = [
    f"{where},{users},{cohort}"
    for users, cohort in sizes
    for where, most in (("in memory", _IN_MEMORY.value), ("read", users))
    if cohort <= users / 2 and users <= most
  ]
  return [*cases, f"StackOverflow,{made_users.STACKOVERFLOW_USERS},100"]


def draw(rows: list[dict[str, Any]], path: str) -> None:
  """Draws the rate against the number of users."""
  figure, axes = plt.subplots(figsize=(6, 3.5))
  for where, line in (("in memory", "--"), ("read", "-")):
    for cohort, color in zip(_COHORTS.value, ("C0", "C1", "C2"), strict=False):
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
    folder = pathlib.Path(_FOLDER.value)
    folder.mkdir(parents=True, exist_ok=True)
    made_users.make_numbers(folder)
    made_users.make_stackoverflow(folder)
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
