"""The cost of the language models of arXiv 1710.06963, by its accountant and by today's."""

from typing import NamedTuple

from experiments.runner.reports.tables import by_column, epsilon
from jdp import accounting
from jdp.ledger import Ledger, subsampled_gaussian

# The paper does not state the rounds of its table; all six epsilons agree with this number.
ROUNDS = 5000
DELTA = 1e-9
_BASELINE = 17.62


class Published(NamedTuple):
  """A row of Table 2.

  `cohort` is expected, `epsilon` is as printed, and `accuracy` is AccuracyTop1 in per cent.
  """

  noise: float
  clip_norm: int
  users: int
  cohort: int
  epsilon: float
  accuracy: float

  @property
  def plan(self) -> Ledger:
    """The ledger of its releases, with z = 1."""
    return subsampled_gaussian(self.cohort / self.users, 1.0, ROUNDS)


PUBLISHED = (
  Published(0.003, 15, 763_430, 5000, 4.634, 17.49),
  Published(0.006, 10, 763_430, 1667, 2.314, 17.04),
  Published(0.012, 15, 763_430, 1250, 2.038, 16.33),
  Published(0.003, 15, 100_000_000, 5000, 1.152, 17.49),
  Published(0.006, 10, 100_000_000, 1667, 0.991, 17.04),
  Published(0.012, 15, 100_000_000, 1250, 0.987, 16.33),
)


class Costs(NamedTuple):
  """A row of Table 1: the epsilons, as printed, of 1, 10, ..., 10^6 rounds at users^-1.1."""

  users: float
  cohort: float
  noise_multiplier: float
  epsilons: tuple[str, ...]

  def plan(self, rounds: int) -> Ledger:
    """The ledger of so many rounds."""
    return subsampled_gaussian(self.cohort / self.users, self.noise_multiplier, rounds)


TABLE_1 = (
  Costs(1e5, 1e2, 1.0, ("0.97", "0.98", "1.00", "1.07", "1.18", "2.21", "7.50")),
  Costs(1e6, 1e1, 1.0, ("0.68", "0.69", "0.69", "0.69", "0.69", "0.72", "0.73")),
  Costs(1e6, 1e3, 1.0, ("1.17", "1.17", "1.20", "1.28", "1.39", "2.44", "8.13")),
  Costs(1e6, 1e4, 1.0, ("1.73", "1.92", "2.08", "3.06", "8.49", "32.38", "187.01")),
  Costs(1e6, 1e3, 3.0, ("0.47", "0.47", "0.48", "0.48", "0.49", "0.67", "1.95")),
  Costs(1e9, 1e3, 1.0, ("0.84", "0.84", "0.84", "0.85", "0.88", "0.88", "0.88")),
)


def published_loss(clip_norm: float, noise: float) -> float | None:
  """The points of AccuracyTop1 lost at this S and noise on the average; None for other noise.

  >>> round(published_loss(15, 0.012), 2)
  1.29
  """
  losses = {(float(row.clip_norm), row.noise): _BASELINE - row.accuracy for row in PUBLISHED}
  return losses.get((clip_norm, round(noise, 4)))


def published_table() -> str:
  """Table 2 of arXiv 1710.06963, with today's epsilon beside the published one."""
  rows = []
  for row in PUBLISHED:
    then, now = (
      accounting.epsilon(row.plan, DELTA, accountant=name) for name in ("moments", "rdp")
    )
    rows.append(
      {
        "noise": f"{row.noise}",
        "S": f"{row.clip_norm}",
        "users": f"{row.users:,}",
        "cohort": f"{row.cohort:,}",
        "ε, published": str(row.epsilon),
        "ε, moments": epsilon(then),
        "ε, RDP": epsilon(now),
        "AccuracyTop1": f"{row.accuracy} %",
        "points lost": f"{_BASELINE - row.accuracy:.2f}",
      }
    )
  return (
    f"{by_column(rows)}\n\nδ = {DELTA}, {ROUNDS:,} rounds, z = 1; on other data (Reddit), "
    f"where the model without privacy had {_BASELINE} %."
  )
