"""The one loop that composes: from the rounds that an observer saw to their dominating pairs.

A round's query has an analysis, and so has its sampling (`jdp.accounting.registration`). Rounds are
charged one by one, for what sampling makes of a release (`jdp.accounting.amplification`), or
together:

* rounds of one sampler, of which a record can be in some only;
* rounds whose query is charged as a run (`QueryAnalysis.composed`).
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from jdp.accounting.amplification import amplified_pairs
from jdp.accounting.analysis import Composed, Turns, shared_fields
from jdp.accounting.composition import Composition, compose_pairs, is_ordered, most_severe_pairs
from jdp.accounting.dominating_pairs import is_central
from jdp.accounting.families import DominatingPair, Family
from jdp.accounting.registration import charges_nothing, composed_by, sampling_analysis
from jdp.events import Round
from jdp.events.whole_runs import overflow_probability
from jdp.guarantees import Relation


def compose_rounds(
  rounds: Mapping[Round, int],
  relation: Relation,
  *,
  sample_known: bool = False,
  capped: bool = False,
) -> Composition:
  """The composition of counted rounds under one relation.

  Args:
    rounds: with their counts, in the order in which they first happened.
    relation: add_remove, zero_out or replace_one.
    sample_known: whether the observer sees who took part.
    capped: whether rounds of a participation cap are charged as releases of a record that takes
      part until the cap, rather than as rounds of their samples. Both are bounds.

  Raises:
    ValueError: if a round has no analysis under the relation.
  """
  items: list[tuple[DominatingPair, int]] = []
  in_turns: dict[Hashable, tuple[dict[Hashable, Turns], dict[Round, int]]] = {}
  together: defaultdict[Composed, dict[Round, int]] = defaultdict(dict)
  overflow = 0.0
  for event, count in rounds.items():
    overflow += count * overflow_probability(event)
    if composed := composed_by(event.query):
      together[composed][event] = count
    elif turns := sampling_analysis(event.sampling).turns(event.sampling):
      shared = shared_fields(event.sampling)
      of_fields, stream = in_turns.setdefault((shared[0], turns.sampler), ({}, {}))
      of_fields.setdefault(shared, turns)
      stream[event] = count
    else:
      items += (
        (pair, count) for pair in amplified_pairs(event, relation, sample_known=sample_known)
      )
  for of_fields, stream in in_turns.values():
    items += _of_turns(_dearest_turns(*of_fields.values()), stream, relation, sample_known, capped)
  for composed, several in together.items():
    pairs = composed(several, relation, sample_known)
    if not any(count > 0 for _, count in pairs):
      raise charges_nothing(next(iter(several)).query, "no pair", "register_query")
    items += pairs
  return compose_pairs(items, overflow)


def stands_alone(event: Round) -> bool:
  """Whether a round costs the same whatever other rounds there are."""
  alone = sampling_analysis(event.sampling).turns(event.sampling) is None
  return alone and composed_by(event.query) is None


def _dearest_turns(*several: Turns) -> Turns:
  """Of what the events of one sampler say of its rounds, that by which they cost the most."""

  def most(rounds: Iterable[tuple[Any, int]]) -> int:
    counted = list(rounds)
    return max(turns.most(counted) for turns in several)

  of_epochs, by_coins = zip(*((turns.of_epochs, turns.by_coins) for turns in several), strict=True)
  return Turns(several[0].sampler, most, of_epochs=any(of_epochs), by_coins=max(by_coins))


def _of_turns(
  turns: Turns, stream: Mapping[Round, int], relation: Relation, sample_known: bool, capped: bool
) -> list[tuple[DominatingPair, int]]:
  """The pairs of rounds of one sampler of which a record can be in some only.

  The most severe pairs count, as many as it has turns, of each family and of each charge (a
  replacement, a removal). That is above every choice of its rounds.
  """
  charges: dict[Any, tuple[DominatingPair, ...]] = {}  # of what is often the same for all rounds
  tables: defaultdict[tuple[int, Family], Counter[tuple[float, ...]]] = defaultdict(Counter)
  items: list[tuple[DominatingPair, int]] = []
  for event, count in stream.items():
    released = event.query, event.relation, shared_fields(event.sampling)
    if released not in charges:
      certain = turns.by_coins > 0 and capped
      pairs = amplified_pairs(event, relation, sample_known=sample_known, certain=certain)
      charges[released] = tuple(map(_ordered, pairs)) if turns.of_epochs else pairs
    for position, pair in enumerate(charges[released]):
      items.append((pair, count))
      tables[position, pair.family][pair.parameters] += count
  if turns.by_coins and not capped:
    return items
  most = turns.most((event.sampling, count) for event, count in stream.items())
  hidden = turns.by_coins and not sample_known and relation is not Relation.REPLACE_ONE
  if hidden and (run := _hidden_run(turns.by_coins, most, stream, tables)):
    return [(run, 1)]
  dearest: list[tuple[DominatingPair, int]] = []
  for (_, family), table in tables.items():
    if turns.of_epochs or is_ordered(family, table):
      dearest += most_severe_pairs(family, table, most)
    else:
      dearest += ((DominatingPair(family, row), count) for row, count in table.items())
  return dearest


def _hidden_run(
  probability: float,
  most: int,
  stream: Mapping[Round, int],
  tables: Mapping[Any, Mapping[tuple[float, ...], int]],
) -> DominatingPair | None:
  """The pair of a run of equal rounds with a cap, where samples hide a record's turns."""
  rows = [(family, row) for (_, family), table in tables.items() for row in table]
  if len(rows) > 1 or not all(is_central(event.query) for event in stream):
    return None
  ((family, row),) = rows
  return family.capped and family.capped(row, probability, most, sum(stream.values()))


def _ordered(pair: DominatingPair) -> DominatingPair:
  """The pair, or one of an ordered family that it is dominated by (as Renyi divergences see it)."""
  return pair.family.ordered(pair.parameters) if pair.family.ordered else pair
