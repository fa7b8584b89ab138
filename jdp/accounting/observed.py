"""All that one observer saw of a ledger, as dominating pairs and what comes on top of them.

A run asks for the cost of its ledger again and again, and the ledger grows. Rounds that are charged
one by one need not be looked at again. They are found in the blocks that ledgers share, and what
they cost together is kept as long as the block (`Stretch`). So the epsilon after many distinct
rounds takes no longer than after a few.
"""

import dataclasses
import functools
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jdp.accounting.composed_rounds import compose_rounds, stands_alone
from jdp.accounting.composition import Composition, compose_both, compose_releases, total_guarantee
from jdp.accounting.registration import known_entries, num_registered, protects, sampling_analysis
from jdp.accounting.seen import events_seen, split
from jdp.events import Round
from jdp.events.rounds import Event
from jdp.guarantees import AnyGuarantee, Observer, Relation, Unit
from jdp.ledger import Ledger
from jdp.ledger.value import Block

_MOST_ALONE = 2**32  # Larger counts are added up with those of equal rounds, and may be refused.


class Observed(NamedTuple):
  """What one observer saw.

  Attributes:
    rounds: the pairs of all rounds.
    guarantee: that of a unit's local releases together, by basic composition. None without any.
    releases: the pairs of a unit's local releases, apart from their deltas. None without any.
    has_caps: whether `observed` has another bound with `capped`.
  """

  rounds: Composition
  guarantee: AnyGuarantee | None
  releases: Composition | None
  has_caps: bool

  @property
  def joint(self) -> Composition:
    """The pairs of rounds and local releases, composed."""
    return self.rounds if self.releases is None else compose_both(self.rounds, self.releases)

  @property
  def delta(self) -> float:
    """The probability of the event outside which local releases have their pairs."""
    return 0.0 if self.guarantee is None else self.guarantee.delta


@dataclasses.dataclass(frozen=True, eq=False)
class Stretch:
  """One event that stands for the rounds of one scope, in a ledger's block, that stand alone.

  Attributes:
    rounds: these rounds, with their counts.
    relation: the relation that they declare.
    unit: the unit that they protect.
    observer: who sees them.
    adaptive: how many of them were chosen from earlier releases.
  """

  rounds: Counter[Round]
  relation: Relation
  unit: Unit
  observer: Observer
  adaptive: int

  @functools.cached_property
  def composed(self) -> Callable[..., Composition]:
    """`compose_rounds` of these rounds. Its results are cached."""
    return functools.cache(functools.partial(compose_rounds, self.rounds))


# Each block's items, with the number of registered analyses and rules when its events were read.
_ITEMS: weakref.WeakKeyDictionary[Block, tuple[int, tuple[tuple[Event | Stretch, int], ...]]] = (
  weakref.WeakKeyDictionary()
)


def _items(ledger: Ledger) -> Iterator[tuple[Event | Stretch, int]]:
  """The ledger's entries, with a stretch for those of a block that stand alone."""
  for block in ledger.blocks:
    if _ITEMS.get(block, (-1,))[0] != num_registered():
      _ITEMS[block] = num_registered(), tuple(_stretched(block.entries))
    yield from _ITEMS[block][1]
  yield from ledger.rest


def _stretched(entries: Sequence[tuple[Event, int]]) -> Iterator[tuple[Event | Stretch, int]]:
  """The entries of a block, with a stretch for those of each scope that stand alone."""
  alone: defaultdict[tuple[Relation, Unit, Observer], Counter[Round]] = defaultdict(Counter)
  adaptive: Counter[tuple[Relation, Unit, Observer]] = Counter()
  found = split(known_entries(entries))
  yield from found.releases
  for event, count in found.rounds:
    if stands_alone(event) and protects(event.query) and count <= _MOST_ALONE:
      scope = event.relation, event.unit, event.observer
      alone[scope][event] += count
      adaptive[scope] += bool(event.adaptive)
    else:
      yield event, count
  for scope, rounds in alone.items():
    yield Stretch(rounds, *scope, adaptive[scope]), 1


def observed(
  ledger: Ledger,
  relation: str | None,
  observer: str | None,
  *,
  adaptive: bool = False,
  capped: bool = False,
) -> Observed:
  """What an observer saw.

  Arguments and errors are as for `events_seen`, and `capped` as for `compose_rounds`.

  Raises:
    ValueError: also if an event has no analysis under the relation.
  """
  rounds, releases, stretches, chosen, known = events_seen(
    list(_items(ledger)), relation, observer, adaptive=adaptive
  )
  parts = tuple(stretch.composed(chosen, sample_known=known) for stretch in stretches)
  alone = Composition({}, sum(part.overflow for part in parts), parts)
  composed = compose_rounds(rounds, chosen, sample_known=known, capped=capped)
  composed = compose_both(composed, alone)
  turns = (sampling_analysis(event.sampling).turns(event.sampling) for event in rounds)
  has_caps = any(found is not None and (found.by_coins or found.alone) for found in turns)
  if not releases:
    return Observed(composed, None, None, has_caps)
  guarantee = total_guarantee(releases)
  _check_local_relation(guarantee.relation, chosen, bool(rounds or stretches))
  return Observed(composed, guarantee, compose_releases(releases), has_caps)


def _check_local_relation(stated: Relation, chosen: Relation, with_rounds: bool) -> None:
  """Refuses a relation that local releases do not cover.

  The null record is a value, so replace-one covers zero-out.
  """
  if chosen not in {stated, Relation.ZERO_OUT if stated is Relation.REPLACE_ONE else stated}:
    raise ValueError(
      f"Expected relation {stated}, which the local releases state, got {chosen}; pass that "
      "relation."
    )
  if with_rounds and chosen is Relation.ADD_REMOVE:
    raise ValueError(
      "Expected relation replace_one or zero_out for rounds and local releases of one observer, "
      "got add_remove: who reports is seen; pass one of them, or account for each observer."
    )
