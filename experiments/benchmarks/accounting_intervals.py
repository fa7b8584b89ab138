"""Intervals of epsilon by jdp's privacy loss distributions against dp_accounting's estimates, over
random runs.

Run it as `python -m experiments.benchmarks.accounting_intervals`; 300 runs take minutes, most of
them dp_accounting's. Every run is a Poisson-sampled Gaussian sum, (q, z, rounds, delta). Each of
jdp's intervals must

* meet the interval from dp_accounting's optimistic estimate to its pessimistic one, on its grid of
  `--step`;
* be no wider than a thousandth of its upper end, or 1e-4.

It ends with a status of 1 if one does not.
"""

import math
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from absl import app, flags
from dp_accounting.pld import privacy_loss_distribution

from jdp import accounting
from jdp.ledger import subsampled_gaussian

RUNS = flags.DEFINE_integer("runs", 300, "How many.", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "Of the random runs.")
STEP = flags.DEFINE_float("step", 1e-3, "dp_accounting's grid.", lower_bound=1e-6)


class Run(NamedTuple):
  """Rounds of a Poisson-sampled Gaussian sum, and the delta asked about."""

  q: float
  z: float
  rounds: int
  delta: float


class Result(NamedTuple):
  """Both intervals, and the seconds that each took.

  Attributes:
    run: the run.
    ours: jdp's.
    theirs: dp_accounting's, from the optimistic to the pessimistic estimate.
    seconds: jdp's, then dp_accounting's.
  """

  run: Run
  ours: tuple[float, float]
  theirs: tuple[float, float]
  seconds: tuple[float, float]

  def meets(self) -> bool:
    """Whether the intervals meet."""
    return self.ours[0] <= self.theirs[1] and self.theirs[0] <= self.ours[1]

  def is_narrow(self) -> bool:
    """Whether jdp's is as narrow as asked."""
    lower, upper = self.ours
    return upper - lower <= max(1e-3 * upper, 1e-4)


def random_runs(number: int, seed: int) -> list[Run]:
  """Random runs, uniform on logarithmic scales, with an epsilon that a grid of dp_accounting's can
  hold.
  """
  rng = np.random.default_rng(seed)
  runs: list[Run] = []
  low, high = np.log([1e-4, 0.5, 1, 1e-9]), np.log([1, 20, 1e4, 1e-3])
  while len(runs) < number:
    q, z, rounds, delta = np.exp(rng.uniform(low, high)).tolist()
    run = Run(q, z, int(rounds), delta)
    if 0.02 < accounting.epsilon(subsampled_gaussian(q, z, run.rounds), delta) < 15:
      runs.append(run)
  return runs


def theirs(run: Run, step: float) -> tuple[float, float]:
  """dp_accounting's estimates, the optimistic first."""

  def epsilon(pessimistic: bool) -> float:
    once = privacy_loss_distribution.from_gaussian_mechanism(
      run.z,
      sampling_prob=run.q,
      value_discretization_interval=step,
      pessimistic_estimate=pessimistic,
      use_connect_dots=pessimistic,
    )
    return float(once.self_compose(run.rounds).get_epsilon_for_delta(run.delta))

  return epsilon(False), epsilon(True)


def compare(run: Run, step: float) -> Result:
  """Both intervals of one run."""
  times = [time.perf_counter()]
  ours = accounting.epsilon_interval(subsampled_gaussian(run.q, run.z, run.rounds), run.delta)
  times.append(time.perf_counter())
  other = theirs(run, step)
  times.append(time.perf_counter())
  return Result(run, ours, other, (times[1] - times[0], times[2] - times[1]))


def report(results: Sequence[Result]) -> None:
  """Prints what was found."""
  widths = sorted(
    (upper - lower) / upper for (lower, upper) in (r.ours for r in results) if 0 < upper < math.inf
  )
  print(f"{len(results)} runs; {sum(r.meets() for r in results)} intervals meet dp_accounting's")
  print(f"relative widths: median {widths[len(widths) // 2]:.1e}, most {widths[-1]:.1e}")
  print(f"{sum(r.is_narrow() for r in results)} are within 1e-3 of the upper end, or 1e-4")
  print(
    "above dp_accounting's pessimistic estimate: "
    f"{sum(r.ours[1] > r.theirs[1] * (1 + 1e-9) for r in results)}"
  )
  for who, column in (("jdp (both ends)", 0), ("dp_accounting (both)", 1)):
    seconds = sorted(r.seconds[column] for r in results)
    print(
      f"{who}: median {1e3 * seconds[len(seconds) // 2]:.1f} ms, most {1e3 * seconds[-1]:.1f} ms"
    )
  for result in results:
    if not (result.meets() and result.is_narrow()):
      print(f"  FAILS {result.run}: {result.ours} against {result.theirs}")


def main(argv: Sequence[str]) -> None:
  """Compares random runs."""
  del argv
  results = [compare(run, STEP.value) for run in random_runs(RUNS.value, SEED.value)]
  report(results)
  if not all(result.meets() and result.is_narrow() for result in results):
    sys.exit(1)


if __name__ == "__main__":
  app.run(main)
