"""The privacy budget of a run: what its rounds have cost, and how many more it allows."""

import bisect
import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import jax

from jdp import _validate, accounting
from jdp.accounting.seen import refuse_adaptive
from jdp.accounting.statements.filters import PrivacyFilter
from jdp.events import Round
from jdp.events.base import EventBase
from jdp.events.rounds import Event
from jdp.events.whole_runs import overflow_probability
from jdp.guarantees import Observer, rounded_up
from jdp.ledger import Ledger

COST, NO_COST, COST_BY = "central_epsilon", "no_central_epsilon", "central_epsilon_by"
"""In a row of metrics: what a run has cost, why that is None where it is, and the accountant."""

_ENOUGH = 0.98  # the share of the rounds that the noise allows, which the slots must allow too
_UNNOTICED = 1e-3  # the share of delta that overflows may take without a further look


class Budget(NamedTuple):
  """What a run may spend. The fields are the arguments of `train` with the same names."""

  max_epsilon: float | None
  delta: float | None
  privacy_filter: PrivacyFilter | None
  accountant: str


def budget_of(
  max_epsilon: float | None,
  delta: float | None,
  privacy_filter: PrivacyFilter | None,
  accountant: str,
) -> Budget:
  """Refuses numbers out of range, a budget without a delta, and a filter of other claims."""
  if privacy_filter is not None and not max_epsilon is delta is None:
    raise ValueError(
      "Expected no max_epsilon and no delta with a privacy_filter, which has its own, got "
      f"max_epsilon {max_epsilon} and delta {delta}; leave them out."
    )
  if privacy_filter is not None and privacy_filter.observer not in (None, Observer.MODEL):
    raise ValueError(
      "Expected a privacy_filter whose observer is model, got "
      f"{privacy_filter.observer}: a run states what its models cost; leave its observer out."
    )
  _validate.one_of(accounting.ACCOUNTANTS, accountant=accountant)
  if delta is not None:
    _validate.in_range(1e-300, 1 - 1e-9, delta=delta)
  if max_epsilon is not None:
    _validate.non_negative(max_epsilon=max_epsilon)
    if delta is None:
      raise ValueError("Expected delta with max_epsilon, got none; an epsilon is one at a delta.")
  return Budget(max_epsilon, delta, privacy_filter, accountant)


def in_words(budget: Budget) -> str:
  """What a run may spend, in words: this fixes its guarantee. A delta alone is no budget."""
  if budget.privacy_filter is not None:
    epsilon, delta, *_, rule = budget.privacy_filter
    return f"a privacy_filter with epsilon {epsilon!r} at delta {delta!r} by {rule}"
  if budget.max_epsilon is not None:
    return (
      f"max_epsilon {budget.max_epsilon!r} at delta {budget.delta!r} by the accountant "
      f"{budget.accountant!r}"
    )
  return "none"


def central_epsilon(
  ledger: Ledger, delta: float, accountant: str = accounting.ACCOUNTANTS[0]
) -> float:
  """Epsilon of a run to whoever sees the released models.

  It is infinite if a sum, or clients' releases alone, made the models. Local releases then hide
  from whoever sees the models what they hide from the server, as their own guarantee says.
  """
  if ledger.entries and not _has_round(event for event, _ in ledger.entries):
    return math.inf
  return accounting.epsilon(ledger, delta, accountant=accountant, observer=Observer.MODEL)


def why_no_central_epsilon(
  ledger: Ledger, delta: float, accountant: str = accounting.ACCOUNTANTS[0]
) -> str:
  """Why `central_epsilon` is infinite, as a sentence. Empty if it is finite."""
  if ledger.entries and not _has_round(event for event, _ in ledger.entries):
    return "Local releases hide no more from whoever sees the models than from the server."
  return accounting.why_unbounded(ledger, delta, accountant=accountant, observer=Observer.MODEL)


def cost(budget: Budget, ledger: Ledger) -> dict[str, Any]:
  """What a ledger has cost, for a row of metrics. Empty without a delta or a filter.

  With a filter, it is the filter's epsilon. It is None if there is no guarantee, and the row then
  says why.
  """
  if budget.privacy_filter is not None:
    epsilon, by = budget.privacy_filter.epsilon, "the privacy filter"
    admitted = _admitted(budget.privacy_filter, ledger)
    why = "" if admitted else "The filter does not admit what was released."
  elif budget.delta is not None:
    asked = ledger, budget.delta, budget.accountant
    epsilon, by = central_epsilon(*asked), f"{budget.accountant} at delta {budget.delta!r}"
    why = "" if math.isfinite(epsilon) else why_no_central_epsilon(*asked)
  else:
    return {}
  return {COST: None, NO_COST: why, COST_BY: by} if why else {COST: epsilon, COST_BY: by}


def refuse_outgrown_slots(
  budget: Budget, prior: Ledger, events: Sequence[Event], num_rounds: int
) -> None:
  """Refuses a run that would end early because samples outgrow their slots, not because of its
  noise.

  Args:
    budget: the run's budget. Without a maximum, all its rounds must have an epsilon.
    prior: what was released before.
    events: the events of a round, as `jax.eval_shape` gives them. Nothing is refused if rounds
      differ.
    num_rounds: the run's number of rounds.
  """
  delta = budget.delta
  if delta is None or any(map(_varies, events)):
    return
  known = [_unmarked(event) for event in events]
  overflow = sum(_overflow(event) for event in known)
  limit = sys.float_info.max if budget.max_epsilon is None else budget.max_epsilon
  # 700, as exp overflows float64 at 710.
  if num_rounds * overflow * math.exp(min(limit, 700.0)) < _UNNOTICED * delta:
    return

  def allowed(events: Sequence[Event]) -> int:
    def exceeds(count: int) -> bool:
      spent = prior.extend((event, count) for event in events)
      return not central_epsilon(spent, delta, budget.accountant) <= limit

    if not exceeds(num_rounds):
      return num_rounds
    return bisect.bisect_left(range(1, num_rounds + 1), True, key=exceeds)

  by_slots = allowed(known)
  if by_slots < num_rounds and by_slots < _ENOUGH * (
    by_noise := allowed(list(map(_with_slots_for_all, known)))
  ):
    raise ValueError(
      f"Expected slots for the {by_noise} rounds that the noise allows, got a sampler whose slots "
      f"allow {by_slots}: samples outgrow them with a probability of {rounded_up(overflow, 3)} a "
      "round; give it a larger capacity."
    )


def _varies(event: Any) -> bool:
  """Whether an event's cost is known only once its round is computed."""
  if isinstance(event, tuple):
    return any(map(_varies, event))
  if isinstance(event, EventBase):
    return any(_varies(getattr(event, f.name)) for f in fields(event) if f.compare)
  return isinstance(event, jax.ShapeDtypeStruct)


def _unmarked(event: Any) -> Any:
  """The event and all events within it, without number and marks."""
  if isinstance(event, tuple):
    return tuple(map(_unmarked, event))
  if not isinstance(event, EventBase):
    return event
  return type(event)(
    **{f.name: _unmarked(getattr(event, f.name)) for f in fields(event) if f.compare}
  )


def _overflow(event: Event) -> float:
  """The probability that a sample of the event's round outgrows its slots."""
  return overflow_probability(event) if isinstance(event, Round) else 0.0


def _with_slots_for_all(event: Event) -> Event:
  """The event as if no sample could outgrow its slots."""
  if not isinstance(event, Round) or not _overflow(event):
    return event
  sampling: Any = event.sampling  # of a class that has the field
  return replace(event, sampling=replace(sampling, overflow_probability=0.0))


def affordable(
  budget: Budget, ledger: Ledger, recorded: int, events: Sequence[tuple[Event, ...]]
) -> int:
  """How many of the next rounds a budget allows.

  Args:
    budget: the run's budget.
    ledger: what the run has recorded.
    recorded: how many of the next rounds are in the ledger already, as after a kill. Their cost is
      spent, so they count as allowed.
    events: the events of each of the next rounds, on the host.
  """
  if budget.delta is not None:
    refuse_adaptive(itertools.chain(*events))
  if budget.privacy_filter is None and budget.max_epsilon is None:
    return len(events)
  first = min(recorded, len(events))

  def exceeds(count: int) -> bool:
    return _exceeds(budget, ledger, list(itertools.chain(*events[first:count])))

  # Epsilon grows with the number of rounds, so a binary search finds the last one allowed.
  counts = range(first + 1, len(events) + 1)
  return first + bisect.bisect_left(counts, True, key=exceeds)


def _exceeds(budget: Budget, ledger: Ledger, new: Sequence[Event]) -> bool:
  """Whether further events would exceed a budget."""
  if budget.privacy_filter is not None:
    return not _admitted(budget.privacy_filter, ledger.extend((event, 1) for event in new))
  if not _has_round(itertools.chain(new, (event for event, _ in ledger.entries))):
    return bool(new)  # as `central_epsilon`
  assert budget.max_epsilon is not None
  assert budget.delta is not None
  return accounting.would_exceed(
    ledger,
    new,
    budget.max_epsilon,
    budget.delta,
    accountant=budget.accountant,
    observer=Observer.MODEL,
  )


def _admitted(privacy_filter: PrivacyFilter, ledger: Ledger) -> bool:
  """Whether a ledger's events stay within a filter's budget."""
  return privacy_filter.spent(ledger) <= 1


def _has_round(events: Iterable[Event]) -> bool:
  return any(isinstance(event, Round) for event in events)
