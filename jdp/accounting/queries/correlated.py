"""Runs with correlated noise: what all rounds of one plan cost together.

A run releases G + C^-1 Z, a function of C G + Z (`jdp.events.correlated`). So its rounds are not
composed. They are one Gaussian release of multiplier z / sens, where sens bounds how far a record
moves C G. It is charged once, however many of its rounds are recorded. If an index occurs m times
there were at least m runs, and m are charged. Runs of different plans are composed.

The statements are numbered and proved in `docs/theory/correlated_noise.md`: a run is one release
(4.1), its sensitivity (4.2), other sums of the same samples (4.3), amplification under cyclic
Poisson sampling (4.4), what data sets attain (4.5), noise by the records' owners (4.6, 4.7).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from jdp.accounting import dominating_pairs
from jdp.accounting.amplification import check_known, check_stays
from jdp.accounting.analysis import Pattern, QueryAnalysis, Rounds
from jdp.accounting.families.base import CountedPairs, DominatingPair
from jdp.accounting.families.gaussian import GAUSSIAN
from jdp.accounting.families.releases import NON_PRIVATE
from jdp.accounting.registration import parts_of, register_query, sampling_analysis
from jdp.events import CorrelatedGaussianSum, DistributedCorrelatedSum, Round
from jdp.events.base import shared_fields
from jdp.guarantees import Relation


def run_pairs(rounds: Rounds, relation: Relation, sample_known: bool) -> CountedPairs:
  """The pairs of all runs that counted rounds with correlated noise belong to, with their counts.

  Args:
    rounds: the rounds, whose queries are correlated.
    relation: add_remove, zero_out or replace_one.
    sample_known: whether the observer sees who took part.

  Raises:
    ValueError: if a run has no analysis under the relation.
  """
  runs: defaultdict[tuple, list[_Row]] = defaultdict(list)
  plans: defaultdict[tuple, list[_Row]] = defaultdict(list)
  for event, count in rounds.items():
    row = _row(event, count)
    shared = tuple(map(shared_fields, row.parts))
    runs[shared].append(row)
    for plan in shared:
      plans[plan].append(row)
  for rows in plans.values():
    _check_sampling(rows)
  items = []
  for rows in runs.values():
    pair, turns = _one_run(rows, relation, sample_known)
    times: Counter[int] = Counter()
    for row in rows:
      times[row.number] += row.times
    items.append((pair, turns * max(times.values())))  # there were at least this many runs
  return items


class _Row(NamedTuple):
  """A round of a run.

  Attributes:
    event: the event of the round.
    times: how often it happened.
    parts: its sums with correlated noise.
    number: its index in its run.
  """

  event: Round
  times: int
  parts: list[CorrelatedGaussianSum]
  number: int


def _row(event: Round, count: int) -> _Row:
  """The row of a counted round."""
  parts: list[Any] = [part for part, one in parts_of(event.query) if one.composed is run_pairs]
  indices = {int(part.index) for part in parts}
  if len(indices) > 1:
    raise ValueError(
      f"Expected correlated sums of one round to have one index, got {sorted(indices)}; begin "
      "their runs together."
    )
  return _Row(event, count, parts, indices.pop())


def _one_run(
  rows: Sequence[_Row], relation: Relation, sample_known: bool
) -> tuple[DominatingPair, int]:
  """The pair of one run, and how often it counts."""
  plan = rows[0].parts
  others = max(_other_sums(row, relation) for row in rows)
  if math.isinf(others) or any(part.noise_multiplier == 0 for part in plan):
    return DominatingPair(NON_PRIVATE, ()), 1
  sampling: Any = rows[0].event.sampling
  if not all(dominating_pairs.is_central(part) for part in plan):
    _check_owners_stay(relation)
  check_stays(sampling, relation, " with correlated noise")
  if sample_known:
    check_known(sampling, relation)
  analysis = sampling_analysis(sampling)
  pattern = _aligned(analysis.pattern(sampling, max(part.num_rounds for part in plan)), rows)
  probability = analysis.run_probability(sampling)
  reached = max(row.number for row in rows) + 1
  moved = 2 if relation is Relation.REPLACE_ONE else 1
  amplified = (
    not sample_known
    and relation is not Relation.REPLACE_ONE
    and all(part.bands <= pattern.separation for part in plan)
    and all(dominating_pairs.is_central(row.event.query) for row in rows)
  )
  if probability is not None and amplified:
    columns = (part.largest_column_norm / part.noise_multiplier for part in plan)
    multiplier = dominating_pairs.gaussian_pair(1.0, math.hypot(others, *columns)).parameters[1]
    return DominatingPair(GAUSSIAN, (probability, multiplier)), pattern.within(reached)
  moves = (moved * _sensitivity(part, pattern, reached) / part.noise_multiplier for part in plan)
  others *= math.sqrt(pattern.within(reached))
  return dominating_pairs.gaussian_pair(1.0, math.hypot(others, *moves)), 1


def attained_runs(rounds: Rounds, relation: Relation, sample_known: bool) -> CountedPairs:
  """The pairs that data sets attain in whole runs; arguments as for `run_pairs`, without groups.

  A run with a missing round counts as if it had released nothing (Statement 4.5).
  """
  times: defaultdict[tuple, Counter[int]] = defaultdict(Counter)
  latest: dict[tuple, Any] = {}
  event: Any
  for event, count in rounds.items():
    if getattr(event.sampling, "position", None) in (None, event.query.index):
      plan = shared_fields(event.query)
      latest[plan] = event
      times[plan][int(event.query.index)] += count
  in_all: CountedPairs = []
  in_turns: CountedPairs = []
  for plan, event in latest.items():
    query, moved = event.query, math.sqrt(_attained_square(event, sample_known))
    if moved and query.noise_multiplier and len(times[plan]) == query.num_rounds:
      moved *= 2 if relation is Relation.REPLACE_ONE else 1
      pair = dominating_pairs.gaussian_pair(query.noise_multiplier, moved)
      found = in_all if _takes_all(event, sample_known) else in_turns
      found.append((pair, min(times[plan].values())))
  # Only one run of groups in turns counts: the longest columns of others may be other groups'.
  return in_all + sorted(in_turns, key=lambda item: item[0].parameters[1] ** 2 / item[1])[:1]


def _attained_square(event: Any, sample_known: bool) -> float:
  """How far some record moves C G, squared; 0 if that is not known."""
  sampling, plan = event.sampling, event.query
  if _takes_all(event, sample_known):
    within = plan.bands <= plan.min_separation
    return plan.squared_sensitivity if within else plan.largest_column_norm**2
  pattern = sampling_analysis(sampling).pattern(sampling, plan.num_rounds)
  begun = getattr(sampling, "position", None) is not None
  reached = begun and plan.num_rounds <= pattern.open_rounds
  return plan.largest_column_norm**2 if reached else 0.0


def _takes_all(event: Round, sample_known: bool) -> bool:
  """Whether every record is in every sample, for certain."""
  analysis = sampling_analysis(event.sampling)
  attained = analysis.attained(event.sampling, sample_known)
  return analysis.takes_all(event.sampling) and attained is not None


def _other_sums(row: _Row, relation: Relation) -> float:
  """How far one record moves the other sums of a round, over their noise."""
  moves = []
  for part, one in parts_of(row.event.query):
    if one.composed is run_pairs:
      continue
    family, parameters = dominating_pairs.dominating_pair(part, relation, row.event.relation)
    multiplier = 0.0 if family.hides_nothing else family.multiplier(parameters)
    if multiplier is None:
      raise ValueError(
        f"Expected Gaussian sums beside a correlated one, got {type(part).__name__}; release it "
        "from a sample of its own."
      )
    moves.append(dominating_pairs.inverse(multiplier))
  return math.hypot(*moves)


def _check_sampling(rows: Sequence[_Row]) -> None:
  """Refuses a plan's rounds if a record may have been in more of them, or closer, than stated."""
  if (number := len({shared_fields(row.event.sampling) for row in rows})) > 1:
    raise ValueError(
      "Expected all rounds of a run with correlated noise to be sampled alike, got "
      f"{number} samplings; give each run a sampler, and each sampler a run."
    )
  positions = ((getattr(row.event.sampling, "position", None), row.number) for row in rows)
  if len({at - index for at, index in positions if at is not None}) > 1:
    raise ValueError(
      "Expected the sampler's position to grow with the index of a run's rounds, got others: a "
      "record's rounds may be closer than the plan has it; carry the sampler's state from round "
      "to round."
    )


def _aligned(pattern: Pattern, rows: Sequence[_Row]) -> Pattern:
  """The pattern, with how many rounds of its first epoch were before the run.

  If no recorded round starts an epoch, it is the most that the other rounds allow. If epochs do not
  start every `pattern.epoch` rounds of the run, nothing is known of them.
  """
  if pattern.epoch == 1:
    return pattern
  starts, others = set[int](), set[int]()
  for row in rows:
    starting = bool(getattr(row.event.sampling, "starts_epoch", False))
    (starts if starting else others).add(-row.number % pattern.epoch)
  possible = starts or range(pattern.epoch - 1, -1, -1)
  skipped = next((number for number in possible if number not in others), None)
  if skipped is None or len(starts) > 1:
    return pattern._replace(epoch=1, per_epoch=1)
  return pattern._replace(skipped=skipped)


def _sensitivity(plan: CorrelatedGaussianSum, pattern: Pattern, reached: int) -> float:
  """How far a record moves the first `reached` rows of C G."""
  bounds = []
  if (
    pattern.separation >= plan.min_separation
    and pattern.within(plan.num_rounds) <= plan.max_participations
  ):
    bounds.append(math.sqrt(plan.squared_sensitivity))
  turns = pattern.within(reached)
  products = turns + 2 * pattern.meeting(turns, plan.bands)
  bounds.append(math.sqrt(products) * plan.largest_column_norm)
  return min(bounds)


def _check_owners_stay(relation: Relation) -> None:
  """Refuses the relation under which a record's owner takes noise along (Statement 1.6)."""
  if relation is Relation.ADD_REMOVE:
    raise ValueError(
      "Expected relation zero_out or replace_one for DistributedCorrelatedSum, got add_remove: a "
      "record's owner who leaves takes its noise along; declare zero_out, under which the owner "
      "stays and contributes zero."
    )


def _correlated_sum(
  query: CorrelatedGaussianSum, relation: Relation, declared: Relation
) -> DominatingPair:
  if not dominating_pairs.is_central(query):
    _check_owners_stay(relation)
  sensitivity = dominating_pairs.sum_sensitivity(math.sqrt(query.squared_sensitivity), relation)
  return dominating_pairs.gaussian_pair(query.noise_multiplier, sensitivity)


register_query(
  CorrelatedGaussianSum,
  QueryAnalysis(
    _correlated_sum,
    is_central=True,
    adds_up=True,
    composed=run_pairs,
    composes_groups=True,
    composed_attained=attained_runs,
  ),
)
register_query(
  DistributedCorrelatedSum,
  QueryAnalysis(_correlated_sum, adds_up=True, composed=run_pairs, composes_groups=True),
)
