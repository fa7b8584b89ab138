"""Why a ledger has no epsilon."""

import math

from jdp._arguments import checked
from jdp.accounting.accountant import epsilon
from jdp.accounting.observed import observed
from jdp.accounting.pair_families import NON_PRIVATE
from jdp.guarantees import rounded_down, rounded_up
from jdp.ledger import Ledger


@checked
def why_unbounded(
  ledger: Ledger,
  delta: float,
  *,
  accountant: str = "rdp",
  relation: str | None = None,
  observer: str | None = None,
) -> str:
  """Says in words why `jdp.accounting.epsilon` of the same arguments is infinite.

  Errors are those of `epsilon`. The words are empty where it is finite.

  >>> from jdp.events import GaussianSum, PoissonSampling, Round
  >>> outgrown = Round(PoissonSampling(0.1, overflow_probability=1e-9), GaussianSum(1.0, 2.0))
  >>> print(why_unbounded(Ledger().append(outgrown, count=3000), 1e-6))
  samples outgrow their slots with a probability of 3e-06, which no epsilon covers at delta=1e-06
  """
  scope = {"accountant": accountant, "relation": relation, "observer": observer}
  if math.isfinite(epsilon(ledger, delta, **scope)):
    return ""
  seen = observed(ledger, relation, observer)
  if NON_PRIVATE in seen.joint.groups:
    return "something was released without noise"
  if seen.delta >= delta > 0:
    return f"local releases have no guarantee with a probability of {rounded_up(seen.delta, 3)}"
  if seen.rounds.overflow:
    return outgrown_slots(seen.rounds.overflow, delta)
  return f"the {accountant} accountant finds none at delta={delta}"


def outgrown_slots(overflow: float, delta: float) -> str:
  """Says which epsilons hold at most where samples outgrow their slots with such a probability."""
  covered = delta / overflow - 1  # above e^epsilon
  most = f" above {rounded_down(math.log(covered), 3)}" if covered > 1 else ""
  return (
    f"samples outgrow their slots with a probability of {rounded_up(overflow, 3)}, which no epsilon"
    f"{most} covers at delta={delta}"
  )
