"""Which rounds belong to one run: ledgers ask before they are added, sliced or appended to.

Accounting charges a run as a whole. So rounds of two runs must never look like rounds of one run.
"""

import collections
import dataclasses
import itertools
import typing
from collections.abc import Iterable, Iterator, Sequence

from jdp.events import CorrelatedGaussianSum, LocalRelease, Round
from jdp.events.base import shared_fields
from jdp.events.rounds import Event
from jdp.events.sampling import SamplingEvent
from jdp.guarantees import Observer

Kinds = collections.Counter[tuple[type, Observer]]


def count_kinds(entries: Iterable[tuple[Event, int]]) -> Kinds:
  """How many events there are of each type and observer."""
  counts: Kinds = collections.Counter()
  for event, count in entries:
    counts[type(event), event.observer] += count
  return counts


def refuse_gap(counts: Kinds, entries: Iterable[tuple[Event, int]]) -> None:
  """Refuses an event whose number exceeds the count of the events of its kind before it.

  It adds the entries to `counts`.
  """
  for event, count in entries:
    kind, number = (type(event), event.observer), typing.cast(int, event.number)
    counts[kind] += count
    # The last of the repeated events has counts[kind] - 1 of its kind before it.
    if count and number >= counts[kind]:
      raise ValueError(
        f"Expected the {kind[0].__name__} of round {counts[kind] - count} at most, got that of "
        f"round {number}: the events of rounds between are missing. Append the event of every "
        "round (a scan returns and stacks them, a fori_loop loses them). Resume a run with the "
        "ledger of its earlier rounds."
      )


def refuse_two_caps(*runs: Sequence[tuple[Event, int]]) -> None:
  """Refuses the entries of two runs if both have capped local releases, or capped rounds.

  Each cap counts over its own run. So do the turns of rounds without a position.
  """
  if all(
    any(isinstance(e, LocalRelease) and e.max_releases is not None for e, _ in entries)
    for entries in runs
  ):
    raise ValueError(
      "Expected local releases with max_releases in one of two ledgers that are added, got them in "
      "both; state the cap over both runs (or None), or extend the first ledger if it is one run."
    )
  shared = _capped_samplings(runs[0])
  for entries in runs[1:]:
    others = _capped_samplings(entries)
    # How a registered sampling is charged is not known here: perhaps as one of the other run's.
    known = all(type(one) in typing.get_args(SamplingEvent) for one in shared | others)
    shared = shared & others if known or not others else shared
  if shared:
    raise ValueError(
      "Expected rounds with max_participations, or turns without a position, in one of two ledgers "
      f"that are added, got {type(shared.pop()).__name__} in both; state the cap over both runs "
      "(or None), or extend the first ledger if it is one run."
    )


def _capped_samplings(entries: Sequence[tuple[Event, int]]) -> set[SamplingEvent]:
  """The samplings that let a record be in only some rounds of a run, whichever run it is."""

  def is_capped(sampling: SamplingEvent) -> bool:  # also a registered one with these fields
    if hasattr(sampling, "position"):
      return sampling.position is None
    return getattr(sampling, "max_participations", None) is not None

  return {
    event.sampling
    for event, _ in entries
    if isinstance(event, Round)
    and not isinstance(event.query, CorrelatedGaussianSum)  # whose index tells runs apart
    and is_capped(event.sampling)
  }


class NumberedRuns(typing.NamedTuple):
  """The runs of a ledger whose rounds are numbered, identified by their plans.

  The index of correlated noise tells runs apart. Without it, the sampler's position does.

  Attributes:
    first: plan -> the number of its first event.
    several: the plans that several runs share.
  """

  first: dict[tuple, int]
  several: set[tuple]


def numbered_runs(entries: Iterable[tuple[Event, int]]) -> NumberedRuns:
  """Finds the numbered rounds of entries."""
  found, last = NumberedRuns({}, set()), dict[tuple, int]()
  for event, count in entries:
    for numbered, number in _numbers(event):
      plan = (*shared_fields(numbered), event.observer)  # a round may have an event for each
      if count > 1 or number <= last.get(plan, -1):
        found.several.add(plan)
      found.first.setdefault(plan, number)
      last[plan] = number
  return found


def _numbers(event: typing.Any) -> Iterator[tuple[typing.Any, int]]:
  """What numbers a round (correlated sums, else the sampling), each with its number."""
  if not isinstance(event, Round):
    return
  parts = _correlated_parts(event.query)
  if not parts and (position := getattr(event.sampling, "position", None)) is not None:
    yield event.sampling, int(position)
  for part in parts:
    yield part, int(part.index)


def refuse_later_rounds(run: NumberedRuns, other: NumberedRuns) -> None:
  """Refuses a run without its first round next to another run: the two would count as one."""
  for plan, number in run.first.items():
    if number and other.first:
      raise ValueError(
        f"Expected each of two runs with numbered rounds to begin with round 0, got {plan[0]} of "
        f"round {number} at first; take the whole run, or extend the ledger of its earlier rounds."
      )


def rounds_between(
  entries: Sequence[tuple[Event, int]], start: int, stop: int
) -> list[tuple[Event, int]]:
  """The entries of the rounds from `start` up to `stop` (`Ledger.rounds`).

  Raises:
    ValueError: if nothing tells which events belong to these rounds.
  """
  opens = Round if any(isinstance(event, Round) for event, _ in entries) else Event
  totals = collections.Counter[Observer]()
  for event, count in entries:
    totals[event.observer] += count if isinstance(event, opens) else 0
  numbers = sorted(set(totals.values()) - {0})
  if len(numbers) > 1 and opens is Round and (start > 0 or stop < numbers[-1]):
    raise ValueError(
      "Expected as many rounds against each observer, got "
      f"{' and '.join(f'{number} against {name}' for name, number in sorted(totals.items()))}: "
      "nothing says which are of one round; slice the ledger of a run without its prior."
    )
  kept = list[tuple[Event, int]]()
  ends = collections.Counter[Observer | None]()  # how many rounds each observer has had
  begun = last = 0  # where the rounds since the last release begin and end
  for are_rounds, group in itertools.groupby(entries, lambda entry: isinstance(entry[0], opens)):
    part = [(event, count, event.observer if opens is Round else None) for event, count in group]
    if are_rounds:
      begun = min(ends[observer] for *_, observer in part)
      for event, count, observer in part:
        first, ends[observer] = ends[observer], ends[observer] + count
        kept.append((event, max(0, min(ends[observer], stop) - max(first, start))))
      last = max(ends[observer] for *_, observer in part)
      continue
    if any(begun < bound < last for bound in (start, stop)) and sum(n for _, n, _ in part) > 1:
      raise ValueError(
        f"Expected no start or stop within rounds {begun} to {last - 1}, got {start} and {stop}: "
        "several releases follow them, and nothing says which is of which round; append the events "
        "round by round."
      )
    inside = start <= max(last - 1, 0) < stop
    kept += [(event, count if inside else 0) for event, count, _ in part]
  return [entry for entry in kept if entry[1]]


def with_epochs_started(entries: Iterable[tuple[Event, int]]) -> Iterator[tuple[Event, int]]:
  """The entries, with the first round of each sampling by epochs marked as an epoch's start.

  Rounds of a run with correlated noise stay as they are: their indices tell where epochs start.
  """
  seen = set()
  for event, count in entries:
    sampling: typing.Any = getattr(event, "sampling", None)
    of_run = bool(_correlated_parts(getattr(event, "query", None)))
    if not of_run and "starts_epoch" in getattr(sampling, "__dataclass_fields__", ()):
      starting = dataclasses.replace(sampling, starts_epoch=True)
      sampler = shared_fields(sampling)
      if sampler not in seen:
        seen.add(sampler)
        # Only the first round of the entry is marked. The others stay as they are.
        yield dataclasses.replace(typing.cast(Round, event), sampling=starting), 1
        count -= 1
    yield event, count


def _correlated_parts(query: typing.Any) -> list[typing.Any]:
  """The sums of a query, or of its groups, whose noise is correlated over rounds, with an index."""
  if hasattr(query, "index"):
    return [query]
  return [one for part in getattr(query, "parts", ()) for one in _correlated_parts(part)]
