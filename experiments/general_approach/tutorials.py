"""The rows of TensorFlow Privacy's MNIST tutorial, and a run beside its row.

They are in the README of that library's tutorials (https://github.com/tensorflow/privacy): DP-SGD
with batches of 256 of the 60,000 training images, at delta 1e-5.
"""

from typing import NamedTuple

from experiments.general_approach.options import GeneralApproachOptions
from experiments.runner.reports.statistics import Interval
from experiments.runner.reports.tables import epsilon, percent, table
from jdp import accounting
from jdp.ledger import Ledger, subsampled_gaussian

BATCH_SIZE, EXAMPLES = 256, 60_000
_ACCOUNTANTS = {"moments": "by moments", "rdp": "by RDP", "pld": "by PLD"}


class Tutorial(NamedTuple):
  """A row of the tutorial: flags, epochs, and the epsilon and test accuracy that it publishes."""

  learning_rate: float
  noise_multiplier: float
  clip_norm: float
  epochs: int
  epsilon: float
  accuracy: float

  @property
  def rounds(self) -> int:
    """Batches in its epochs, rounded up."""
    return -(-self.epochs * EXAMPLES // BATCH_SIZE)

  def ledger(self, rounds: int) -> Ledger:
    """The ledger of so many rounds."""
    return subsampled_gaussian(BATCH_SIZE / EXAMPLES, self.noise_multiplier, rounds)


TUTORIALS = (
  Tutorial(0.25, 1.3, 1.5, 15, 1.19, 0.950),
  Tutorial(0.15, 1.1, 1.0, 60, 3.01, 0.966),
)


def tutorial_of(options: GeneralApproachOptions) -> Tutorial | None:
  """The row whose flags the options have; None if it is none of them."""
  data = (options.dataset, options.model, options.batch_size)
  query = (options.runs, options.sampling, options.layers, options.metrics, options.class_shares)
  plain = (("proportional",), ("poisson",), False, False, False)
  if data != ("mnist", "cnn", BATCH_SIZE) or query != plain:
    return None
  flags = (options.learning_rate, options.noise_multiplier, options.gradient_clip_norm)
  return next((row for row in TUTORIALS if row[:3] == flags), None)


def tutorial_table(row: Tutorial, rounds: int, delta: float, accuracy: Interval) -> str:
  """So many rounds with this accuracy, beside the row; and what all its rounds would cost."""

  def line(name: str, count: int, epsilons: list[str], reached: str) -> list[str]:
    return [name, f"{count:,}", f"{count * BATCH_SIZE / EXAMPLES:.1f}", *epsilons, reached]

  def ours(name: str, count: int, reached: str) -> list[str]:
    spent = row.ledger(count)
    found = (accounting.epsilon(spent, delta, accountant=one) for one in _ACCOUNTANTS)
    return line(name, count, [epsilon(value) for value in found], reached)

  lines = [ours("here", rounds, percent(accuracy))]
  if rounds != row.rounds:
    lines.append(ours("all rounds, not run", row.rounds, ""))
  lines.append(line("published", row.rounds, [f"{row.epsilon}", "", ""], percent(row.accuracy)))
  header = ["run", "rounds", "epochs", *(f"ε {name}" for name in _ACCOUNTANTS.values())]
  return table([*header, "test accuracy"], lines)
