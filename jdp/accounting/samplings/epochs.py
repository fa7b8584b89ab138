"""Epochs, of which a record is in a fixed number of rounds at most (Statements 2.4 to 2.6, 2.13).

It is enough to bound the run given the permutations (or bins), because divergences are jointly
quasi-convex. Given them, a record takes part in at most one round of an epoch (or k). The run is
the composition of those rounds' releases. These are at most E rounds (or k E), and may be any. In
order of severity, each is dominated by one of the E most severe. Where bins are amplified they are
not revealed. A pair is then that of an epoch whose rounds are all equally severe.

Epochs are counted by the rounds that start one. One more is counted if the first round of all does
not start one (a slice of a run). The count is at least the number of epochs that the rounds fill.
Complete epochs, which lower bounds need, are counted as the fewest that the rounds must contain.
"""

from collections.abc import Iterable
from typing import Any

from jdp.accounting.analysis import Attained, Pairs, Pattern, Release, SamplingAnalysis, Turns
from jdp.accounting.registration import register_sampling
from jdp.events import BallsInBins, RandomAllocation, ShuffledBatches
from jdp.guarantees import Relation

_LARGEST = 2**53  # the most rounds of an epoch that floats count one by one


def _participations(event: Any) -> int:
  """How many rounds of an epoch a record is in."""
  return getattr(event, "participations", 1)


def _turns(event: Any) -> Turns:
  participations = _participations(event)

  def counted(rounds: Iterable[tuple[Any, int]]) -> tuple[int, int]:
    """How many epochs began, and how many rounds there are."""
    events, counts = zip(*rounds, strict=True)
    starts = sum(n for of_round, n in zip(events, counts, strict=True) if of_round.starts_epoch)
    return starts + (not events[0].starts_epoch), sum(counts)

  def most(rounds: Iterable[tuple[Any, int]]) -> int:
    begun, number = counted(rounds)
    return max(begun, -(-number // event.num_batches)) * participations

  def whole(rounds: Iterable[tuple[Any, int]]) -> int:
    begun, number = counted(rounds)
    full = number - begun * (event.num_batches - 1)  # if no epoch is longer than it should be
    return full * participations if 0 < full <= begun and event.num_batches <= _LARGEST else 0

  several = hasattr(event, "participations")
  alone = BallsInBins(event.num_batches // participations, False) if several else None
  keeps_partial = getattr(event, "keeps_partial", False)
  shared = event.num_batches, participations, keeps_partial, event.population
  return Turns((type(event).__name__, *shared), most, of_epochs=True, alone=alone, whole=whole)


def _pattern(event: Any, num_rounds: int) -> Pattern:
  return Pattern(1, num_rounds, event.num_batches, _participations(event))


def _shuffled_charged(
  event: ShuffledBatches, relation: Relation, release: Release
) -> tuple[Relation, ...]:
  if relation is not Relation.ADD_REMOVE:
    return (relation,)
  if event.keeps_partial:
    return Relation.REPLACE_ONE, Relation.ADD_REMOVE
  return (Relation.REPLACE_ONE,)


def _in_bins(event: Any, released: Pairs, relation: Relation, release: Release) -> Pairs:
  """What a record is charged for each of the rounds of an epoch that it is in."""
  if relation is Relation.REPLACE_ONE:
    return released
  rounds, taken = event.num_batches, _participations(event)
  if rounds > _LARGEST:  # More rounds cost no more than fewer.
    rounds, taken = min(rounds // taken, _LARGEST), 1
  return tuple(
    pair.family.in_bins(pair.parameters, float(rounds), float(taken))
    if pair.family.in_bins
    else pair
    for pair in released
  )


def _attained(event: Any, sample_known: bool) -> Attained | None:
  return None if sample_known else Attained.ALWAYS


register_sampling(
  ShuffledBatches,
  SamplingAnalysis(charged=_shuffled_charged, turns=_turns, pattern=_pattern),
)
_OF_BINS = SamplingAnalysis(
  amplified=_in_bins,
  stays=lambda event: True,
  turns=_turns,
  pattern=_pattern,
  attained=_attained,
)
register_sampling(BallsInBins, _OF_BINS)
register_sampling(RandomAllocation, _OF_BINS)  # balls that are each in several bins
