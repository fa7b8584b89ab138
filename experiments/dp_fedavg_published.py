"""The language models that arXiv 1710.06963 published: what they cost, by its accountant and by today's."""

from experiments.runner.reports import table
from jdp import accounting
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.ledger import Ledger

_PUBLISHED = (  # noise, S, users, expected cohort, epsilon, AccuracyTop1 in per cent
  (0.003, 15, 763_430, 5000, 4.634, 17.49),
  (0.006, 10, 763_430, 1667, 2.314, 17.04),
  (0.012, 15, 763_430, 1250, 2.038, 16.33),
  (0.003, 15, 100_000_000, 5000, 1.152, 17.49),
  (0.006, 10, 100_000_000, 1667, 0.991, 17.04),
  (0.012, 15, 100_000_000, 1250, 0.987, 16.33),
)
_PUBLISHED_ROUNDS = 5000  # not stated for the table; all six epsilons are those of as many rounds
_PUBLISHED_DELTA = 1e-9
_PUBLISHED_BASELINE = 17.62


def published_table() -> str:
  """Table 2 of arXiv 1710.06963, with today's epsilon beside the published one."""
  rows = []
  for noise, clip_norm, users, cohort, published, accuracy in _PUBLISHED:
    event = Round(PoissonSampling(cohort / users), GaussianSum(clip_norm, clip_norm))
    plan = Ledger().append(event, count=_PUBLISHED_ROUNDS)
    then, now = (accounting.epsilon(plan, delta=_PUBLISHED_DELTA, accountant=name) for name in ("moments", "rdp"))
    facts = (f"{noise}", f"{clip_norm}", f"{users:,}", f"{cohort:,}", f"{published:.3f}", f"{then:.3f}", f"{now:.3f}")
    rows.append([*facts, f"{accuracy} %", f"{_PUBLISHED_BASELINE - accuracy:.2f}"])
  names = ("noise", "S", "users", "cohort", "ε, published", "ε, moments", "ε, RDP", "AccuracyTop1", "points lost")
  return (
    f"{table(names, rows)}\n\nδ = {_PUBLISHED_DELTA:g}, {_PUBLISHED_ROUNDS:,} rounds, z = 1; on other data (Reddit), "
    f"where the model without privacy had {_PUBLISHED_BASELINE} %."
  )
