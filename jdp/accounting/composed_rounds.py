"""The one loop that composes: from the rounds that an observer saw to their dominating pairs.

A round's query has an analysis, and so has its sampling (`jdp.accounting.registration`). Rounds are
charged one by one, for what sampling makes of a release (`jdp.accounting.amplification`), or
together:

* rounds of one sampler, of which a record can be in some only;
* rounds whose query is charged as a run (`QueryAnalysis.composed`).
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any

from jdp.accounting.amplification import amplified_pairs
from jdp.accounting.analysis import Composed, Rounds, Turns
from jdp.accounting.composition import (
  Composition,
  compose_pairs,
  is_ordered,
  least_severe_pair,
  most_severe_pairs,
)
from jdp.accounting.dominating_pairs import is_central
from jdp.accounting.families.base import CountedPairs, DominatingPair, Family, Pairs
from jdp.accounting.registration import charges_nothing, composed_by, sampling_analysis
from jdp.events import Round
from jdp.events.base import shared_fields
from jdp.events.sampling import SamplingEvent
from jdp.events.whole_runs import overflow_probability
from jdp.guarantees import Relation

Charged = Callable[[Round], Pairs]
Tables = defaultdict[tuple[int, Family], Counter[tuple[float, ...]]]


def compose_rounds(
  rounds: Rounds,
  relation: Relation,
  *,
  sample_known: bool = False,
  capped: bool = False,
  attained: bool = False,
) -> Composition:
  """The composition of counted rounds under one relation.

  Args:
    rounds: with their counts, in the order in which they first happened.
    relation: add_remove, zero_out or replace_one.
    sample_known: whether the observer sees who took part.
    capped: takes the second of two ways to charge rounds in turns. Both are bounds. In the second
      way, rounds of a participation cap are charged as releases of a record that takes part until
      the cap, rather than as rounds of their samples; and epochs that were cut short (see
      `Turns.alone`) are charged as whole ones.
    attained: whether rounds in turns count only where data sets attain them: in epochs that
      happened in full, each of which counts as one of the least severe rounds.

  Raises:
    ValueError: if a round has no analysis under the relation.
  """
  items: CountedPairs = []
  in_turns: dict[Hashable, tuple[dict[Hashable, Turns], dict[Round, int]]] = {}
  together: defaultdict[Composed, dict[Round, int]] = defaultdict(dict)
  overflow = 0.0
  for event, count in rounds.items():
    overflow += count * overflow_probability(event)
    composed = composed_by(event.query)
    if composed:
      together[composed][event] = count
    if turns := sampling_analysis(event.sampling).turns(event.sampling):
      _check_fields(event.sampling, turns)
      of_fields, stream = in_turns.setdefault(turns_key(event), ({}, {}))
      of_fields.setdefault(shared_fields(event.sampling), turns)
      stream[event] = count
    elif not composed:
      items += (
        (pair, count) for pair in amplified_pairs(event, relation, sample_known=sample_known)
      )
  for of_fields, stream in in_turns.values():
    found = _dearest_turns(*of_fields.values())
    charged = partial(amplified_pairs, relation=relation, sample_known=sample_known)
    own = {event: count for event, count in stream.items() if not composed_by(event.query)}
    shared = len(own) < len(stream)
    if shared and own and found.of_epochs:
      raise _shared_epochs(own)
    if shared:  # rounds of the run may show which ones a record is in
      charged = partial(charged, certain=True)
    hidden = not (sample_known or shared) and relation is not Relation.REPLACE_ONE
    items += (
      _whole(found, own, charged)
      if attained
      else _of_turns(found, stream, own, charged, capped=capped, hidden=hidden)
    )
  for composed, several in together.items():
    pairs = composed(several, relation, sample_known)
    if not any(count > 0 for _, count in pairs):
      raise charges_nothing(next(iter(several)).query, "no pair", "register_query")
    items += pairs
  return compose_pairs(items, overflow)


def _shared_epochs(own: Rounds) -> ValueError:
  """The error about epochs in which some rounds belong to a run and others do not."""
  event = next(iter(own))
  return ValueError(
    f"Expected rounds by {type(event.sampling).__name__} to be of runs with correlated noise, or "
    f"none of them, got {type(event.query).__name__} among them: which rounds a record was in "
    "would not be known; give each run a sampler, and other sums of its rounds as groups."
  )


def turns_key(event: Round) -> Hashable:
  """A key shared by rounds that are charged together as a record is in only some; else None."""
  turns = sampling_analysis(event.sampling).turns(event.sampling)
  return None if turns is None else (type(event.sampling).__name__, turns.sampler)


def stands_alone(event: Round) -> bool:
  """Whether a round costs the same whatever other rounds there are."""
  alone = sampling_analysis(event.sampling).turns(event.sampling) is None
  return alone and composed_by(event.query) is None


def _check_fields(sampling: SamplingEvent, turns: Turns) -> None:
  """Refuses turns that sums and slices of ledgers, which read only fields, cannot recognise."""
  needed = {"starts_epoch"} if turns.of_epochs else {"position", "max_participations"}
  if not needed & sampling.__dataclass_fields__.keys():
    raise ValueError(
      f"Expected {type(sampling).__name__}, whose records take turns, to have a field "
      f"{' or '.join(sorted(needed))}, got none; ledgers are added and sliced by it: add it."
    )


def _dearest_turns(*several: Turns) -> Turns:
  """The costliest combination of what the events of one sampler say about its turns."""

  def most(rounds: Iterable[tuple[Any, int]]) -> int:
    counted = list(rounds)
    return max(turns.most(counted) for turns in several)

  of_epochs, by_coins = zip(*((turns.of_epochs, turns.by_coins) for turns in several), strict=True)
  return several[0]._replace(most=most, of_epochs=any(of_epochs), by_coins=max(by_coins))


def _of_turns(
  turns: Turns,
  stream: Rounds,
  own: Rounds,
  charged: Callable[..., Pairs],
  *,
  capped: bool,
  hidden: bool,
) -> CountedPairs:
  """The pairs of rounds of one sampler of which a record can be in only some.

  For each family and each charge (a replacement, a removal), the most severe pairs count, as many
  as a record has turns. That dominates every choice of its rounds. Turns are counted over the whole
  stream; `own` holds the rounds that are not charged as a run.
  """
  certain = turns.by_coins > 0 and capped
  items, tables = _tables(turns, own, partial(charged, certain=True) if certain else charged)
  if turns.by_coins and not capped:
    return items
  most = turns.most((event.sampling, count) for event, count in stream.items())
  if turns.by_coins and hidden and (run := _hidden_run(turns.by_coins, most, own, tables)):
    return [(run, 1)]
  short = bool(turns.alone) and any(table.total() < most for table in tables.values())
  if short and not capped:
    _, tables = _tables(
      turns, own, lambda event: charged(dataclasses.replace(event, sampling=turns.alone))
    )
  dearest: CountedPairs = []
  for (_, family), table in tables.items():
    if turns.of_epochs or is_ordered(family, table):
      found = most_severe_pairs(family, table, most)
      if short and capped and table.total() < most:  # as if the epochs had gone on
        found.append((found[0][0], most - table.total()))
      dearest += found
    else:
      dearest += ((DominatingPair(family, row), count) for row, count in table.items())
  return dearest


def _hidden_run(
  probability: float,
  most: int,
  stream: Rounds,
  tables: Mapping[Any, Mapping[tuple[float, ...], int]],
) -> DominatingPair | None:
  """The pair of a run of equal rounds with a cap, where samples hide a record's turns."""
  rows = [(family, row) for (_, family), table in tables.items() for row in table]
  if len(rows) > 1 or not all(is_central(event.query) for event in stream):
    return None
  ((family, row),) = rows
  return family.capped and family.capped(row, probability, most, sum(stream.values()))


def _tables(turns: Turns, stream: Rounds, charged: Charged) -> tuple[CountedPairs, Tables]:
  """All pairs of the rounds, in a list and in a table for each charge and family, with counts."""
  charges: dict[Any, Pairs] = {}  # a cache: rounds often have equal releases
  items: CountedPairs = []
  tables: Tables = defaultdict(Counter)
  for event, count in stream.items():
    released = event.query, event.relation, shared_fields(event.sampling)
    if released not in charges:
      pairs = charged(event)
      charges[released] = tuple(map(_ordered, pairs)) if turns.of_epochs else pairs
    for position, pair in enumerate(charges[released]):
      items.append((pair, count))
      tables[position, pair.family][pair.parameters] += count
  return items, tables


def _whole(turns: Turns, stream: Rounds, charged: Charged) -> CountedPairs:
  """The least severe pair, as often as a record has turns in epochs that happened in full."""
  number = turns.whole((event.sampling, count) for event, count in stream.items())
  _, tables = _tables(turns, stream, charged)
  return [
    (least_severe_pair(family, table), number) for (_, family), table in tables.items() if number
  ]


def _ordered(pair: DominatingPair) -> DominatingPair:
  """The pair, or a pair of an ordered family that dominates it (by Renyi divergences)."""
  return pair.family.ordered(pair.parameters) if pair.family.ordered else pair
