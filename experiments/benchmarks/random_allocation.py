"""Epsilons of balls in bins against Poisson samples of equal expected size.

Run it as `python -m experiments.benchmarks.random_allocation`; it takes a minute. In each epoch of
t rounds every record is in one round, or in each with probability 1/t. Both are by privacy loss
distributions, at delta = 1e-5, add/remove. The third is what bins cost if they were seen.
"""

from collections.abc import Sequence

from absl import app

from experiments.runner.reports.tables import epsilon, table
from jdp import accounting
from jdp.events import BallsInBins, GaussianSum, Round
from jdp.ledger import Ledger, subsampled_gaussian

_DELTA = 1e-5
_RUNS = ((10, 1, 0.7), (10, 10, 1.0), (100, 1, 0.7), (100, 1, 1.0), (100, 10, 1.0), (1000, 10, 0.7))


def bins_ledger(num_batches: int, num_epochs: int, noise_multiplier: float) -> Ledger:
  """The ledger of whole epochs of balls in bins."""
  first, later = (
    Round(BallsInBins(num_batches, starts), GaussianSum(1.0, noise_multiplier))
    for starts in (True, False)
  )
  entries = [(first, 1), (later, num_batches - 1)] * num_epochs
  return Ledger().extend(entries)


def _row(num_batches: int, num_epochs: int, z: float) -> list[str]:
  bins = bins_ledger(num_batches, num_epochs, z)
  poisson = subsampled_gaussian(1 / num_batches, z, num_batches * num_epochs)
  found = [accounting.epsilon(run, _DELTA, accountant="pld") for run in (bins, poisson)]
  revealed = accounting.gaussian_epsilon(z * num_epochs**-0.5, _DELTA)
  return [str(num_batches), str(num_epochs), str(z), *map(epsilon, (*found, revealed))]


def main(argv: Sequence[str]) -> None:
  """Prints the table."""
  del argv
  header = ["rounds of an epoch", "epochs", "z", "balls in bins", "Poisson", "bins seen"]
  print(table(header, [_row(*run) for run in _RUNS]))


if __name__ == "__main__":
  app.run(main)
