"""What a ledger guarantees, as a sentence and as data: against whom, of what, what is left out.

Where it guarantees nothing, `why_unbounded` says why.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.accountant import epsilon, epsilon_interval, profile_of
from jdp.accounting.composed_rounds import compose_rounds
from jdp.accounting.observed import Observed, observed
from jdp.accounting.registration import known_entries, sampling_analysis
from jdp.accounting.seen import Seen, events_seen, split
from jdp.events import Round
from jdp.guarantees import ApproxDP, Observer, Relation, rounded_down, rounded_up
from jdp.ledger import Ledger

SETTINGS_ARE_NOT_COVERED = "the choice of the settings, if these data were looked at for it"
_OTHERS_ARE_NOT_COVERED = {
  Observer.MODEL: "whoever sees reports or who took part, such as the server"
}


class PrivacyStatement(NamedTuple):
  """An epsilon with all that it needs to mean something. Its text is a sentence.

  Attributes:
    guarantee: epsilon and delta with relation, unit and observer. None if there is none.
    interval: the interval that contains the least epsilon (`jdp.accounting.epsilon_interval`).
    accountant: the accountant that proved epsilon; for "tightest", the one whose bound it is.
    by_rdp: epsilon by Renyi divergences, infinity if they have no bound.
    num_events: the number of this observer's events.
    population: N, the public numbers of records that the events name, in order.
    not_covered: what the guarantee does not cover.
    caveats: why it does not hold (`Ledger.caveats`).
    reason: why there is no guarantee. Empty if there is one.
    observer: the observer against whom it holds.
  """

  guarantee: ApproxDP | None
  interval: tuple[float, float]
  accountant: str
  by_rdp: float
  num_events: int
  population: tuple[int, ...]
  not_covered: tuple[str, ...]
  caveats: tuple[str, ...]
  reason: str
  observer: Observer

  @property
  def holds(self) -> bool:
    """Whether there is a guarantee."""
    return self.guarantee is not None

  def __str__(self) -> str:
    """The sentence, with the caveats before it."""
    caveats = "".join(f"NOT PRIVATE: {caveat}. " for caveat in self.caveats)
    if self.guarantee is None:
      return f"{caveats}No guarantee against the observer {self.observer}: {self.reason}"
    records = f", N = {' and '.join(map(str, self.population))}" if self.population else ""
    beside = "" if self.accountant == "rdp" else f'{rounded_up(self.by_rdp, 3)} by "rdp"; '
    return (
      f"{caveats}{self.guarantee}, from {self.num_events} events{records}, by the accountant "
      f'"{self.accountant}" ({beside}the least epsilon lies from '
      f"{rounded_down(self.interval[0], 3)} to {rounded_up(self.interval[1], 3)}). Not covered: "
      f"{'; '.join(self.not_covered)}."
    )

  def data(self) -> dict[str, Any]:
    """The same for JSON. Numbers are not rounded. An epsilon that does not exist is None: JSON has
    no infinity.

    >>> from jdp.ledger import subsampled_gaussian
    >>> (said,) = privacy_statements(subsampled_gaussian(0.01, 1.1, 1000), 1e-5)
    >>> said.data()["relation"], said.data()["unit"], round(said.data()["epsilon"], 3)
    ('add_remove', 'user', 1.515)
    """
    said = self._asdict() | {"observer": str(self.observer)}
    del said["guarantee"]
    stated = self.guarantee
    return said | {
      "interval": tuple(map(_finite, self.interval)),
      "by_rdp": _finite(self.by_rdp),
      "epsilon": None if stated is None else stated.epsilon,
      "delta": None if stated is None else stated.delta,
      "relation": None if stated is None else str(stated.relation),
      "unit": None if stated is None else str(stated.unit),
    }


def _finite(epsilon: float) -> float | None:
  return epsilon if epsilon < math.inf else None


@checked
def privacy_statements(
  ledger: Ledger, delta: float, *, accountant: str = "tightest", relation: str | None = None
) -> tuple[PrivacyStatement, ...]:
  """What a ledger guarantees, to each observer who saw something.

  Formal guarantee: each statement's own. They are about different observers and are never added.

  Args:
    ledger: what was done.
    delta: in [0, 1].
    accountant: see `jdp.accounting.epsilon`.
    relation: add_remove, zero_out or replace_one. None: the only one that the events declare.

  Returns:
    A statement for each observer, by name. If an accountant refuses, it has the reason instead of a
    guarantee.

  Raises:
    ValueError: if an argument is invalid.

  >>> from jdp.ledger import subsampled_gaussian
  >>> (said,) = privacy_statements(subsampled_gaussian(0.01, 1.1, 1000), 1e-5)
  >>> print(said)  # doctest: +NORMALIZE_WHITESPACE
  (1.51544, 1e-05)-DP per user (add/remove), against whoever sees the models, from 1000 events, by
  the accountant "pld" (1.72 by "rdp"; the least epsilon lies from 1.51 to 1.52). Not covered:
  whoever sees reports or who took part, such as the server; the choice of the settings, if these
  data were looked at for it.
  """
  epsilon(Ledger(), delta, accountant=accountant)  # refuses bad arguments
  if relation is not None:
    _validate.one_of(tuple(Relation), relation=relation)
  observers = sorted({event.observer for event, _ in ledger.entries})
  return tuple(_stated(ledger, delta, accountant, relation, observer) for observer in observers)


def _stated(
  ledger: Ledger, delta: float, accountant: str, relation: str | None, observer: Observer
) -> PrivacyStatement:
  entries = known_entries(ledger.entries)
  own = [(event, count) for event, count in entries if event.observer == observer]
  samplings = [event.sampling for event, _ in split(own).rounds]
  named = {getattr(sampling, "population", None) for sampling in samplings}
  guarantee, interval, reason = None, (0.0, math.inf), ""
  left_out: set[str] = set()
  spent = by_rdp = math.inf
  scope: dict[str, Any] = {"relation": relation, "observer": observer}
  try:
    spent = epsilon(ledger, delta, accountant=accountant, **scope)
    by_rdp = epsilon(ledger, delta, accountant="rdp", **scope)
    chosen = events_seen(own, relation, observer).relation
    if spent < math.inf:
      unit = own[0][0].unit
      guarantee = ApproxDP(spent, delta, relation=chosen, unit=unit, observer=observer)
      interval = epsilon_interval(ledger, delta, **scope)
      left_out = {sampling_analysis(sampling).not_covered(chosen) for sampling in samplings}
    else:
      reason = why_unbounded(ledger, delta, accountant=accountant, **scope)
  except ValueError as refusal:
    reason = str(refusal)
  return PrivacyStatement(
    guarantee,
    interval,
    _proved_by(accountant, spent, by_rdp),
    by_rdp,
    sum(count for _, count in own),
    tuple(sorted(count for count in named if count is not None)),
    tuple(
      filter(
        None, (_OTHERS_ARE_NOT_COVERED.get(observer), *sorted(left_out), SETTINGS_ARE_NOT_COVERED)
      )
    ),
    ledger.caveats,
    reason,
    observer,
  )


def _proved_by(accountant: str, spent: float, by_rdp: float) -> str:
  """The name of the accountant whose bound an epsilon is."""
  if accountant != "tightest":
    return accountant
  return "rdp" if by_rdp <= spent else "pld"


@checked
def why_unbounded(
  ledger: Ledger,
  delta: float,
  *,
  accountant: str = "tightest",
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
that is part of delta = 1e-06: epsilon would be at least 7.7, where it is above delta. Give the \
sampler a larger capacity.
  """
  if epsilon(ledger, delta, accountant=accountant, relation=relation, observer=observer) < math.inf:
    return ""
  with np.errstate(all="ignore"):
    events = events_seen(ledger.entries, relation, observer)
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
  if (cut := seen.rounds.cut) > delta:
    yield (
      f"The draws of the noise end: a neighbour cannot send {rounded_up(cut)} of what is released, "
      f"above delta = {rounded_down(delta)}. Add more noise, or ask for a larger delta."
    )
  yield f"The accountant {accountant!r} finds no bound. Ask another one, or of a shorter run."


def _hides_nothing(event: Round, seen: Seen) -> bool:
  """Whether a round by itself costs infinity, at every delta."""
  composed = compose_rounds({event: 1}, seen.relation, sample_known=seen.sample_known)
  return bool(np.isinf(composed.rdp((1.01,))[0]))
