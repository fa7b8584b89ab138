"""PrivUnit's direction as the number of a public candidate: its bits, its error, its speed.

    python -m experiments.benchmarks.compressed_reports --json=FILE
    python -m experiments.benchmarks.compressed_reports --table=FILE

For each dimension and epsilon a row has

* the bits of a number, for a squared error of at most 1.05 times PrivUnit's, and the error;
* the fewest bits that any code of PrivUnit's report needs, and the bits of the vector;
* how many reports a second clients of one table make, in batches. A client takes N dim
  multiplications, so where these are more than `--work`, nothing is run;
* how far the table that all share adds to the error of the mean of `--clients` reports: the squared
  error of the mean over that of independent reports, less 1, with its standard error over tables.
  Inputs are equal, which is the worst case. It is measured where a table takes little work.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from experiments.benchmarks import harness
from experiments.benchmarks.cohorts import TABLE
from experiments.runner.reports.tables import table
from jdp.accounting.local.compressed_priv_unit import information, shortest_law
from jdp.accounting.local.priv_unit import optimal_cap
from jdp.guarantees import rounded_up
from jdp.mechanisms import compressed_priv_unit

DIMS = flags.DEFINE_multi_integer("dim", [1000, 10_000, 100_000, 1_000_000], "Coordinates.")
EPSILONS = flags.DEFINE_multi_float("epsilon", [2.0, 4.0, 8.0, 16.0], "Of one report.")
WORK = flags.DEFINE_float("work", 3e9, "Numbers in the candidates of a table, at most.")
CLIENTS = flags.DEFINE_integer("clients", 1000, "Of a batch.", lower_bound=2)
TABLES = flags.DEFINE_integer("tables", 40, "Whose means are compared.", lower_bound=2)
_LITTLE = 2e7  # numbers in a table for which means are compared
_MOST_NUMBERS = 4e7  # of a batch's inputs


def measure(dim: int, epsilon: float) -> dict[str, Any]:
  """A row of the table."""
  law, best = shortest_law(dim, epsilon), optimal_cap(dim, epsilon)
  row = {
    "dim": dim,
    "epsilon": epsilon,
    "bits": law.num_candidates.bit_length() - 1,
    "information": information(law.cap),
    "vector_bits": 32 * dim,
    "error_over_priv_unit": math.expm1(-2 * law.cap.log_m) / math.expm1(-2 * best.log_m),
    "epsilon_without_candidates": law.cap.epsilon,
  }
  numbers = law.num_candidates * dim
  if numbers <= WORK.value:
    row["reports_per_second"] = _rate(dim, epsilon, numbers)
  if numbers <= _LITTLE:
    row["shared"], row["shared_error"] = _shared(dim, epsilon)
  return row


def _reports(dim: int, epsilon: float, count: int) -> Any:
  """(table's key, a key) -> the reports of as many clients with one input, compiled."""
  value = jnp.ones(dim)

  def run(table_key, key):
    mechanism = compressed_priv_unit(dim, epsilon, table_key=table_key)
    reports = jax.vmap(lambda own: mechanism.encode(own, value))(jax.random.split(key, count))
    return reports, mechanism

  return run


def _rate(dim: int, epsilon: float, numbers: float) -> float:
  """Reports a second, the best of a few batches. The table is made anew in each."""
  count = max(1, min(CLIENTS.value, int(_MOST_NUMBERS // dim)))
  run = jax.jit(lambda *keys: _reports(dim, epsilon, count)(*keys)[0])
  seconds = []
  for turn in range(2 if numbers > 1e9 else 6):
    start = time.perf_counter()
    jax.block_until_ready(run(jax.random.key(turn), jax.random.key(-1 - turn)))
    seconds.append(time.perf_counter() - start)
  return count / min(seconds[1:])


def _shared(dim: int, epsilon: float) -> tuple[float, float]:
  """What the table adds to the squared error of a mean, and the standard error of that."""

  @jax.jit
  def error_of_mean(table_key, key):
    reports, mechanism = _reports(dim, epsilon, CLIENTS.value)(table_key, key)
    mean = jnp.mean(jax.vmap(mechanism.decode)(reports), axis=0)
    return jnp.sum((mean - jnp.ones(dim) / math.sqrt(dim)) ** 2)

  alone = math.expm1(-2 * shortest_law(dim, epsilon).cap.log_m) / CLIENTS.value
  found = np.array(
    [
      float(error_of_mean(jax.random.key(turn), jax.random.key(10**6 + turn))) / alone - 1
      for turn in range(TABLES.value)
    ]
  )
  return float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(len(found)))


def report(rows: Sequence[Mapping[str, Any]]) -> str:
  """The Markdown of a file's rows."""
  head = (
    "d", "ε", "bits", "at least", "vector", "error / PrivUnit's", "reports/s", "a table adds, %",
  )  # fmt: skip
  return table(head, map(_cells, rows))


def _cells(row: Mapping[str, Any]) -> list[str]:
  rate = row.get("reports_per_second")
  shared = row.get("shared")
  return [
    f"{row['dim']:,}",
    str(rounded_up(row["epsilon"])),
    str(row["bits"]),
    f"{row['information']:.1f}",
    f"{row['vector_bits']:,}",
    f"{row['error_over_priv_unit']:.3f}",
    "not run" if rate is None else f"{rate:,.3g}",
    "not run" if shared is None else f"{100 * shared:.1f} ± {100 * row['shared_error']:.1f}",
  ]


def main(argv: Sequence[str]) -> None:
  """Prints the table, of a file or of what it measures."""
  del argv
  if TABLE.value:
    print(report(harness.read(TABLE.value)))
    return
  rows = []
  for dim in DIMS.value:
    for epsilon in EPSILONS.value:
      rows.append(measure(dim, epsilon))
      harness.append(rows[-1], harness.JSON.value)
      print(rows[-1], flush=True)
  print(report(rows))


if __name__ == "__main__":
  app.run(main)
