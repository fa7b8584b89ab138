"""What a run cost by its ledger: the guarantees that its report states."""

import math
from typing import NamedTuple

from jdp import accounting
from jdp.events import LocalRelease, Round
from jdp.federated.runs.budget import central_epsilon
from jdp.guarantees import AnyGuarantee, ApproxDP, Observer
from jdp.ledger import Ledger


class Costs(NamedTuple):
  """The guarantees of a run; None for one that does not exist.

  Attributes:
    central: of the whole run, per user. Its observer sees the released models.
    beside: its epsilon by another accountant (`other_accountant`), None if that has none.
    release: of one release, per user. Its observer is the server.
    local: of all of a user's releases, per user. Its observer is the server.
  """

  central: ApproxDP | None
  beside: float | None
  release: AnyGuarantee | None
  local: AnyGuarantee | None


def other_accountant(accountant: str) -> str:
  """The accountant that reports name beside the one that was chosen.

  >>> other_accountant("tightest"), other_accountant("rdp")
  ('rdp', 'tightest')
  """
  return "tightest" if accountant == "rdp" else "rdp"


def costs(ledger: Ledger, delta: float, accountant: str) -> Costs:
  """The guarantees of a run."""
  central = _central(ledger, delta, accountant)
  other = _central(ledger, delta, other_accountant(accountant)) if central else None
  both = central, other.epsilon if other else None
  # All releases of a run are by one mechanism, so the first one states it.
  releases = [event for event, _ in ledger.entries if isinstance(event, LocalRelease)]
  if releases and math.isfinite(releases[0].guarantee.epsilon):
    return Costs(*both, releases[0].guarantee, accounting.local_guarantee(ledger))
  return Costs(*both, None, None)


def _central(ledger: Ledger, delta: float, accountant: str) -> ApproxDP | None:
  rounds = [event for event, _ in ledger.entries if isinstance(event, Round)]
  epsilon = central_epsilon(ledger, delta, accountant)
  if not rounds or not math.isfinite(epsilon):
    return None
  return ApproxDP(
    epsilon, delta, relation=rounds[0].relation, unit=rounds[0].unit, observer=Observer.MODEL
  )
