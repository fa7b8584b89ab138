"""Times jdp's accountant beside dp_accounting's.

Run it as `python -m experiments.benchmarks.accounting`.

jdp keeps what it computed. So every turn has events and targets that were never asked for.
"""

from collections.abc import Callable, Sequence

import absl.logging
import dp_accounting
import numpy as np
from absl import app
from dp_accounting import pld, rdp

from experiments.benchmarks import harness
from jdp import accounting
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.ledger import Ledger, subsampled_gaussian


def sampled_gaussian(q: float, z: float) -> dp_accounting.DpEvent:
  """The event that dp_accounting composes."""
  return dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))


def their_epsilon(
  events: list[tuple[float, float]], count: int, delta: float, make: type = rdp.RdpAccountant
) -> float:
  """Epsilon by an accountant of dp_accounting of the events (q, z), each composed `count` times."""
  accountant = make()
  for q, z in events:
    accountant.compose(sampled_gaussian(q, z), count)
  return accountant.get_epsilon(delta)


def their_calibration(
  epsilon: float, delta: float, q: float, num_rounds: int, make: type = rdp.RdpAccountant
) -> float:
  """The noise multiplier that dp_accounting finds."""
  return dp_accounting.calibrate_dp_mechanism(
    make,
    lambda z: dp_accounting.SelfComposedDpEvent(sampled_gaussian(q, z), num_rounds),
    epsilon,
    delta,
    dp_accounting.LowerEndpointAndGuess(0, 1),
  )


def _compare(
  title: str,
  ours: Callable[[], object],
  theirs: Callable[[], object],
  *,
  rounds: int,
  share: float = 1.0,
) -> None:
  cases = {"dp_accounting": harness.Case(theirs, share), "jdp": harness.Case(ours, 1.0)}
  timings = harness.compare(cases, baseline="dp_accounting", rounds=rounds)
  harness.report(title, timings, "tasks", json_path=harness.JSON.value)


def _new_ledgers(rng: np.random.Generator, count: int) -> Callable[[], Ledger]:
  """A function that makes a ledger of so many distinct events, others at every call."""

  def make() -> Ledger:
    return Ledger().extend(
      (Round(PoissonSampling(q), GaussianSum(1.0, z)), 1) for q, z in _distinct(rng, count)
    )

  return make


def _distinct(rng: np.random.Generator, count: int) -> list[tuple[float, float]]:
  """Events (q, z), of which no accountant can group any."""
  return list(
    zip(rng.uniform(1e-3, 0.1, count).tolist(), rng.uniform(0.5, 5.0, count).tolist(), strict=True)
  )


def main(argv: Sequence[str]) -> None:
  """Prints one table for each task."""
  del argv
  absl.logging.set_verbosity(absl.logging.ERROR)
  rng = np.random.default_rng(0)

  def near(value: float) -> float:
    return value * (1 + 1e-6 * rng.uniform())

  def run() -> Ledger:
    return subsampled_gaussian(0.01, near(1.0), 10_000)

  def calibrated(accountant: str) -> float:
    return accounting.calibrate_noise_multiplier(
      near(2.0), 1e-6, 0.001, 5000, accountant=accountant
    )

  plan, few = (2.0, 1e-6, 0.001, 5000), _distinct(rng, 100)
  _compare(
    "epsilon (q=.01, z=1, T=1e4)",
    lambda: accounting.epsilon(run(), 1e-5),
    lambda: their_epsilon([(0.01, 1.0)], 10_000, 1e-5),
    rounds=10,
  )
  _compare(
    "calibrate (eps=2, delta=1e-6, q=.001, T=5000)",
    lambda: calibrated("rdp"),
    lambda: their_calibration(*plan),
    rounds=5,
  )
  many = _new_ledgers(rng, 10_000)
  _compare(
    "10,000 distinct events (dp_accounting: 100 of them)",
    lambda: accounting.epsilon(many(), 1e-5),
    lambda: their_epsilon(few, 1, 1e-5),
    rounds=3,
    share=0.01,
  )
  _compare(
    "epsilon by loss distributions (q=.01, z=1, T=1e4)",
    lambda: accounting.epsilon(run(), 1e-5, accountant="pld"),
    lambda: their_epsilon([(0.01, 1.0)], 10_000, 1e-5, pld.PLDAccountant),
    rounds=5,
  )
  _compare(
    "both ends of the interval (dp_accounting: its upper one)",
    lambda: accounting.epsilon_interval(run(), 1e-5),
    lambda: their_epsilon([(0.01, 1.0)], 10_000, 1e-5, pld.PLDAccountant),
    rounds=5,
  )
  _compare(
    "calibrate by loss distributions (eps=2, delta=1e-6, q=.001, T=5000)",
    lambda: calibrated("pld"),
    lambda: their_calibration(*plan, pld.PLDAccountant),
    rounds=3,
  )
  thousand = _new_ledgers(rng, 1000)
  _compare(
    "1,000 distinct events by loss distributions (dp_accounting: 10 of them)",
    lambda: accounting.epsilon(thousand(), 1e-5, accountant="pld"),
    lambda: their_epsilon(few[:10], 1, 1e-5, pld.PLDAccountant),
    rounds=1,
    share=0.01,
  )


if __name__ == "__main__":
  app.run(main)
