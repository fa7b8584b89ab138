"""The privacy budget of a run: what its rounds have cost, and how many more it allows."""

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jdp import _validate, accounting
from jdp.accounting import PrivacyFilter
from jdp.accounting.composition import refuse_adaptive
from jdp.events import Event, Round
from jdp.guarantees import Observer
from jdp.ledger import Ledger


class Budget(NamedTuple):
  """What a run may spend. The arguments of `train` of the same names."""

  max_epsilon: float | None
  delta: float | None
  privacy_filter: PrivacyFilter | None


def budget_of(
  max_epsilon: float | None, delta: float | None, privacy_filter: PrivacyFilter | None
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
  if delta is not None:
    _validate.in_range(1e-300, 1 - 1e-9, delta=delta)
  if max_epsilon is not None:
    _validate.non_negative(max_epsilon=max_epsilon)
    if delta is None:
      raise ValueError("Expected delta with max_epsilon, got none; an epsilon is one at a delta.")
  return Budget(max_epsilon, delta, privacy_filter)


def in_words(budget: Budget) -> str:
  """What a run may spend, in words: what fixes its guarantee. A delta alone is no budget."""
  if budget.privacy_filter is not None:
    epsilon, delta, *_, rule = budget.privacy_filter
    return f"a privacy_filter with epsilon {epsilon!r} at delta {delta!r} by {rule}"
  if budget.max_epsilon is not None:
    return f"max_epsilon {budget.max_epsilon!r} at delta {budget.delta!r}"
  return "none"


def central_epsilon(ledger: Ledger, delta: float) -> float:
  """Epsilon of a run to whoever sees the released models.

  It is infinite if a sum, or clients' releases alone, made the models. Local releases hide as much
  from whoever sees the models as from the server, which their own guarantee says.
  """
  if ledger.entries and not _has_round(event for event, _ in ledger.entries):
    return math.inf
  return accounting.epsilon(ledger, delta, observer=Observer.MODEL)


def spent(budget: Budget, ledger: Ledger) -> float | None:
  """The epsilon of what a ledger holds, None if there is no guarantee. A filter's is its own."""
  if budget.privacy_filter is not None:
    return budget.privacy_filter.epsilon if _admitted(budget.privacy_filter, ledger) else None
  assert budget.delta is not None
  epsilon = central_epsilon(ledger, budget.delta)
  return epsilon if math.isfinite(epsilon) else None


def affordable(
  budget: Budget, ledger: Ledger, recorded: int, events: Sequence[tuple[Event, ...]]
) -> int:
  """How many of the next rounds a budget allows.

  Args:
    budget: of the run.
    ledger: what the run has recorded.
    recorded: how many of the next rounds are in the ledger already, as after a kill. They are
      spent, and count as allowed.
    events: of each of the next rounds, on the host.
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
    ledger, new, budget.max_epsilon, budget.delta, observer=Observer.MODEL
  )


def _admitted(privacy_filter: PrivacyFilter, ledger: Ledger) -> bool:
  """Whether a ledger's events stay within a filter's budget."""
  return privacy_filter.spent(ledger) <= 1


def _has_round(events: Iterable[Event]) -> bool:
  return any(isinstance(event, Round) for event in events)
