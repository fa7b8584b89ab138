"""Times of jdp's accountant and of dp_accounting's, measured side by side.

Run it as `python -m experiments.benchmarks.accounting`.
"""

import statistics
import time
from collections.abc import Callable

import absl.logging
import dp_accounting
import numpy as np
from dp_accounting import rdp

from jdp import accounting
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.ledger import Ledger, subsampled_gaussian


def seconds(run: Callable[[], object], repeats: int) -> float:
  """Median wall time of one call, after one to warm up."""
  run()
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    run()
    times.append(time.perf_counter() - start)
  return statistics.median(times)


def sampled_gaussian(q: float, z: float) -> dp_accounting.DpEvent:
  """The event that dp_accounting composes."""
  return dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))


def their_epsilon(events: list[tuple[float, float]], count: int, delta: float) -> float:
  """Epsilon by dp_accounting of `count` times each (q, z)."""
  accountant = rdp.RdpAccountant()
  for q, z in events:
    accountant.compose(sampled_gaussian(q, z), count)
  return accountant.get_epsilon(delta)


def their_calibration(epsilon: float, delta: float, q: float, num_rounds: int) -> float:
  """The noise multiplier that dp_accounting finds."""
  return dp_accounting.calibrate_dp_mechanism(
    rdp.RdpAccountant,
    lambda z: dp_accounting.SelfComposedDpEvent(sampled_gaussian(q, z), num_rounds),
    epsilon,
    delta,
    dp_accounting.LowerEndpointAndGuess(0, 1),
  )


def main() -> None:
  """Prints one line for each task."""
  absl.logging.set_verbosity(absl.logging.ERROR)
  rng = np.random.default_rng(0)
  events = list(zip(rng.uniform(1e-3, 0.1, 10_000).tolist(), rng.uniform(0.5, 5.0, 10_000).tolist(), strict=True))
  ledger = Ledger().extend((Round(PoissonSampling(q), GaussianSum(1.0, z)), 1) for q, z in events)
  run, plan = subsampled_gaussian(0.01, 1.0, 10_000), (2.0, 1e-6, 0.001, 5000)

  def report(task, ours, theirs):
    print(f"{task:<42} jdp {1e3 * ours:9.2f} ms   dp_accounting {1e3 * theirs:11.1f} ms   {theirs / ours:7.0f} x")

  ours = seconds(lambda: accounting.epsilon(run, 1e-5), 20)
  report("epsilon (q=.01, z=1, T=1e4)", ours, seconds(lambda: their_epsilon([(0.01, 1.0)], 10_000, 1e-5), 10))
  ours = seconds(lambda: accounting.calibrate_noise_multiplier(*plan), 10)
  report("calibrate (eps=2, q=.001, T=5000)", ours, seconds(lambda: their_calibration(*plan), 5))
  ours = seconds(lambda: accounting.epsilon(ledger, 1e-5), 3)
  theirs = 100 * seconds(lambda: their_epsilon(events[:100], 1, 1e-5), 1)
  report("10,000 distinct events (theirs: 100 x 100)", ours, theirs)


if __name__ == "__main__":
  main()
