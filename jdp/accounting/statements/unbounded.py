"""Why a ledger has no finite epsilon."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from jdp._arguments import checked
from jdp.accounting.accountant import epsilon, profile_of
from jdp.accounting.composed_rounds import compose_rounds
from jdp.accounting.observed import Observed, observed
from jdp.accounting.seen import Seen, events_seen
from jdp.events import Round
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
  """Why no finite epsilon is stated at a delta, as a sentence. Empty if one is.

  Arguments and errors are those of `jdp.accounting.epsilon`. Where that refuses, its error is the
  reason.

  >>> from jdp.events import GaussianSum, PoissonSampling, Round
  >>> event = Round(PoissonSampling(0.01, overflow_probability=1e-12), GaussianSum(1.0, 0.8))
  >>> print(why_unbounded(Ledger().append(event, count=5000), 1e-6))
  Samples outgrow their slots with a probability of 5e-09 in all, and (1 + e^epsilon) times \
that is part of delta = 1e-06: epsilon would be at least 8.39, where it is above delta. Give the \
sampler a larger capacity.
  """
  if epsilon(ledger, delta, accountant=accountant, relation=relation, observer=observer) < math.inf:
    return ""
  with np.errstate(all="ignore"):
    events = events_seen(ledger, relation, observer)
    return next(_reasons(events, observed(ledger, relation, observer), delta, accountant))


def _reasons(events: Seen, seen: Observed, delta: float, accountant: str) -> Iterator[str]:
  """The reasons that apply, the first one first."""
  bare = sum(_hides_nothing(event, events) * count for event, count in events.rounds.items())
  bare += sum(n for event, n in events.releases.items() if event.guarantee.epsilon == math.inf)
  if bare:
    yield f"Nothing protects {bare} of the releases: without noise no epsilon is finite."
  if seen.delta > delta:
    yield (
      f"The local releases' own deltas are {rounded_up(seen.delta)} in all, above delta = "
      f"{rounded_down(delta)}. Ask for a larger delta."
    )
  if overflow := seen.rounds.overflow:
    free = seen._replace(rounds=dataclasses.replace(seen.rounds, overflow=0.0))
    least = profile_of(free, accountant).epsilon(delta)
    if least < math.inf:
      yield (
        f"Samples outgrow their slots with a probability of {rounded_up(overflow)} in all, and (1 "
        f"+ e^epsilon) times that is part of delta = {rounded_down(delta)}: epsilon would be at "
        f"least {rounded_down(least, 3)}, where it is above delta. Give the sampler a larger "
        "capacity."
      )
  if delta == 0:
    yield "Some release has no epsilon at delta = 0. Ask for a larger delta."
  yield f"The accountant {accountant!r} finds no bound. Ask another one, or of a shorter run."


def _hides_nothing(event: Round, seen: Seen) -> bool:
  """Whether a round costs infinity alone, at every delta."""
  composed = compose_rounds({event: 1}, seen.relation, sample_known=seen.sample_known)
  return bool(np.isinf(composed.rdp((1.01,))[0]))
