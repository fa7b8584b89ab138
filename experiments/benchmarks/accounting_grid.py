"""Compares jdp's epsilons with dp_accounting's over a large grid of runs.

Run it as `python -m experiments.benchmarks.accounting_grid`. It takes minutes; with `--stride=N` it
takes every N-th run. Every run is a Poisson-sampled Gaussian sum, (q, z, rounds, delta). There are
two comparisons:

* With dp_accounting's RDP accountant. It shows tightness: jdp's epsilon is never above it by more
  than 0.1 % (and 1e-6).
* With dp_accounting's privacy loss distributions, where these have converged and fit the time. They
  have converged where a grid ten times as fine moves them by less than 1 %. It shows validity:
  jdp's epsilon is never below.

It ends with a status of 1 if either fails.
"""

import itertools
import math
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import absl.logging
import dp_accounting
from absl import app, flags
from dp_accounting import pld, rdp

from jdp import accounting
from jdp.ledger import subsampled_gaussian

STRIDE = flags.DEFINE_integer("stride", 1, "Take every so many runs.", lower_bound=1)
SECONDS = flags.DEFINE_float("seconds", 300.0, "Time for loss distributions.", lower_bound=0.0)

PROBABILITIES = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 1.0)
MULTIPLIERS = (0.3, 0.5, 0.7, 1.0, 1.5, 3.0, 10.0, 50.0, 200.0)
ROUNDS = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)
DELTAS = (1e-5, 1e-9)


class Run(NamedTuple):
  """One point of the grid."""

  q: float
  z: float
  rounds: int
  delta: float


class Summary(NamedTuple):
  """What a comparison found.

  Attributes:
    compared: how many runs.
    failures: those that fail, with jdp's epsilon and the other.
    ratios: jdp's epsilon over the other, sorted, where both are positive and finite.
  """

  compared: int
  failures: list[tuple[Run, float, float]]
  ratios: list[float]


def grid(stride: int = 1) -> list[Run]:
  """The runs, or every `stride`-th of them."""
  return [Run(*run) for run in itertools.product(PROBABILITIES, MULTIPLIERS, ROUNDS, DELTAS)][
    ::stride
  ]


def ours(run: Run) -> float:
  """Epsilon by jdp's RDP accountant."""
  return accounting.epsilon(subsampled_gaussian(*run[:3]), run.delta)


def theirs(run: Run, accountant: dp_accounting.PrivacyAccountant) -> float:
  """Epsilon by an accountant of dp_accounting."""
  event = dp_accounting.PoissonSampledDpEvent(run.q, dp_accounting.GaussianDpEvent(run.z))
  return float(accountant.compose(event, run.rounds).get_epsilon(run.delta))


def against_rdp(runs: Sequence[Run]) -> Summary:
  """Compares with dp_accounting's RDP accountant.

  jdp's epsilon may not be above it by more than 0.1 %, with an absolute floor of 1e-6.
  """
  pairs = [(run, ours(run), theirs(run, rdp.RdpAccountant())) for run in runs]
  return _summary(pairs, [pair for pair in pairs if not pair[1] <= 1.001 * pair[2] + 1e-6])


def against_loss_distributions(runs: Sequence[Run], seconds: float) -> Summary:
  """Compares with converged privacy loss distributions; jdp's epsilon may not be below them.

  The cheapest runs come first, until the time is up.
  """
  # A distribution's support, and with it the time, grows with the privacy loss. Epsilon ranks the
  # runs by cost well enough.
  ranked = sorted((epsilon, run) for run in runs if 0.01 < (epsilon := ours(run)) < 30)
  end, pairs = time.monotonic() + seconds, []
  for epsilon, run in ranked:
    if time.monotonic() > end:
      break
    coarse, fine = (
      theirs(run, pld.PLDAccountant(value_discretization_interval=h)) for h in (1e-3, 1e-4)
    )
    if fine > 0 and abs(coarse / fine - 1) < 0.01:
      pairs.append((run, epsilon, fine))
  return _summary(pairs, [pair for pair in pairs if not pair[1] >= pair[2]])


def _summary(
  pairs: list[tuple[Run, float, float]], failures: list[tuple[Run, float, float]]
) -> Summary:
  finite = [(a, b) for _, a, b in pairs if 0 < a < math.inf and 0 < b < math.inf]
  return Summary(len(pairs), failures, sorted(a / b for a, b in finite))


def report(title: str, summary: Summary) -> None:
  """Prints a comparison."""
  compared, failures, ratios = summary
  print(f"\n{title}: {compared} runs compared, {len(failures)} fail")
  if ratios:
    least, median, most = ratios[0], ratios[len(ratios) // 2], ratios[-1]
    print(f"jdp's epsilon over the other: least {least:.4f}, median {median:.4f}, most {most:.4f}")
  for run, epsilon, other in failures:
    print(f"  FAILS {run}: {epsilon} against {other}")


def main(argv: Sequence[str]) -> None:
  """Prints both comparisons."""
  del argv
  absl.logging.set_verbosity(absl.logging.ERROR)
  runs = grid(STRIDE.value)
  by_rdp = against_rdp(runs)
  report("dp_accounting's RDP accountant", by_rdp)
  by_distributions = against_loss_distributions(runs, SECONDS.value)
  report("its converged loss distributions", by_distributions)
  if by_rdp.failures or by_distributions.failures:
    sys.exit(1)


if __name__ == "__main__":
  app.run(main)
