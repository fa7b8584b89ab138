"""The dominating pair of a query's release that a record takes part in for certain.

It depends on the query and on the neighbouring relation. S bounds a record's contribution. A record
that is added, removed or zeroed moves a sum by S, a replaced one by 2S.

The statements are numbered and proved in `docs/theory/dominating_pairs.md`:

| query | pair | statement |
|---|---|---|
| Gaussian sum | a Gaussian of multiplier sigma / S, or sigma / (2S) | 1.1 |
| Laplace sum (L1 bound) | Laplace distributions S / scale, or 2S / scale, apart | 1.2 |
| weighted average | a Gaussian of sensitivity 2S/W, or max(S/W, 2S/(W+1)) | 1.3 |
| tree aggregation | one Gaussian of all nodes above a leaf | 1.4 |
| randomised response | two values; a value and a uniform answer | 1.5 |
| noise by the records' owners | as such sums, but for add/remove, which is refused | 1.6 |
| pure and concentrated releases | what they state, for their relation | 1.7 |
| grouped sums of one sample | all their pairs; one Gaussian for the Gaussian sums | 1.8 |

A correlated Gaussian sum has the pair of its whole run, if the sampling keeps the plan's pattern.
Ledgers are charged by `jdp.accounting.correlated_runs`. Discrete noise:
`jdp.accounting.renyi.discrete_noise`, `jdp.accounting.pld.integer_noise`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jdp._arguments import checked
from jdp.accounting.charged_as import has_rule, known_query
from jdp.accounting.pair_families import (
  CONCENTRATED,
  DISCRETE_GAUSSIAN,
  GAUSSIAN,
  LAPLACE,
  NON_PRIVATE,
  NULL_RESPONSE,
  PURE,
  RANDOMIZED_RESPONSE,
  SKELLAM,
  DominatingPair,
  PairFamily,
)
from jdp.events import (
  ConcentratedRelease,
  CorrelatedGaussianSum,
  DiscreteGaussianSum,
  DistributedGaussianSum,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  NonPrivate,
  PureRelease,
  QueryEvent,
  RandomizedResponse,
  SkellamSum,
  SumQueryEvent,
  TreeAggregation,
  WeightedAverage,
  query_event_types,
)
from jdp.guarantees import Relation

_TINY, _LARGEST_MULTIPLIER = math.ulp(0.0), 1e100


def dominating_pair(query: QueryEvent, relation: Relation, declared: Relation) -> DominatingPair:
  """The dominating pair of one release that the record takes part in.

  Args:
    query: what was released.
    relation: what is asked for.
    declared: the relation of the round. Pure and concentrated releases are stated for it.

  Raises:
    ValueError: if the query has no analysis under the relation, or is of several releases that are
      not one.
  """
  pairs = release_pairs(query, relation, declared)
  if len(pairs) > 1:
    raise ValueError(
      "Expected one release, or sums that are all Gaussian, got "
      f"{', '.join(pair.family.name for pair in pairs)}; ask for each part."
    )
  return pairs[0]


def release_pairs(
  query: QueryEvent, relation: Relation, declared: Relation
) -> tuple[DominatingPair, ...]:
  """The dominating pairs of all that a query released of a record that takes part, to be composed.

  Groups are pairs of all their parts; their Gaussian sums have one. Arguments and errors are those
  of `dominating_pair`.
  """
  query = known_query(query)
  if type(query) is GroupedSums:
    parts = [pair for part in query.parts for pair in release_pairs(part, relation, declared)]
    return _joined(parts)
  if type(query) not in _ANALYSES:
    raise ValueError(
      f"Expected a query that has an analysis, got {type(query).__name__}; record it as a "
      "PureRelease or ConcentratedRelease of what it costs, or as NonPrivate."
    )
  return (_ANALYSES[type(query)].pair(query, relation, declared),)


def _joined(parts: Sequence[DominatingPair]) -> tuple[DominatingPair, ...]:
  """The pairs of several releases of one sample (Statement 1.8)."""
  if any(part.family is NON_PRIVATE for part in parts):
    return (DominatingPair(NON_PRIVATE, ()),)
  others = [part for part in parts if part.family is not GAUSSIAN]
  gaussians = [part for part in parts if part.family is GAUSSIAN]
  if gaussians:
    # 1/z^2 = sum_g 1/z_g^2, by `hypot`, which does not overflow on the way.
    precision = math.hypot(*(inverse(part.parameters[1]) for part in gaussians))
    others.insert(0, DominatingPair(GAUSSIAN, (1.0, inverse(precision))))
  return tuple(others)


@checked
def noise_multiplier(query: QueryEvent, relation: Relation | str) -> float:
  """The noise multiplier of a Gaussian release: its standard deviation over its sensitivity.

  Args:
    query: what is released or is to be.
    relation: the neighbouring relation. The sensitivity depends on it.

  Raises:
    ValueError: if the release is not Gaussian, or has no analysis under the relation.

  >>> noise_multiplier(GaussianSum(clip_norm=2.0, stddev=1.0), "add_remove")
  0.5
  >>> noise_multiplier(GaussianSum(clip_norm=2.0, stddev=1.0), "replace_one")
  0.25
  """
  relation = Relation(relation)
  pair = dominating_pair(query, relation, relation)
  if pair.family is not GAUSSIAN:
    raise ValueError(
      f"Expected a release with Gaussian noise, got {type(query).__name__}; ask for its epsilon."
    )
  return pair.parameters[1]


def _sum_sensitivity(clip_norm: Any, relation: Relation) -> float:
  """How far one record moves a sum."""
  return float(clip_norm) * (2 if relation is Relation.REPLACE_ONE else 1)


def gaussian_pair(stddev: float, sensitivity: float) -> DominatingPair:
  """The pair of Gaussian noise in a release that the record takes part in for certain.

  A multiplier beyond 1e100 counts as 1e100: its divergences would round to zero.
  """
  # Sampling probability 1: what sampling does comes later.
  return DominatingPair(GAUSSIAN, (1.0, min(stddev / max(sensitivity, _TINY), _LARGEST_MULTIPLIER)))


def _gaussian_sum(query: GaussianSum, relation: Relation, declared: Relation) -> DominatingPair:
  return gaussian_pair(float(query.stddev), _sum_sensitivity(query.clip_norm, relation))


def _correlated_gaussian_sum(
  query: CorrelatedGaussianSum, relation: Relation, declared: Relation
) -> DominatingPair:
  return gaussian_pair(
    query.noise_multiplier, _sum_sensitivity(math.sqrt(query.squared_sensitivity), relation)
  )


def _tree_aggregation(
  query: TreeAggregation, relation: Relation, declared: Relation
) -> DominatingPair:
  if relation is Relation.ADD_REMOVE:
    raise ValueError(
      "Expected relation zero_out or replace_one for TreeAggregation, got add_remove: a record "
      "that leaves may change the steps of others; declare zero_out, under which it stays."
    )
  sensitivity = math.sqrt(query.depth) * _sum_sensitivity(query.clip_norm, relation)
  return gaussian_pair(float(query.stddev), sensitivity)


def _weighted_average(
  query: WeightedAverage, relation: Relation, declared: Relation
) -> DominatingPair:
  least = query.min_total_weight
  # Statement 1.3 of docs/theory/dominating_pairs.md.
  sensitivity = 2 / least if relation is Relation.REPLACE_ONE else max(1 / least, 2 / (least + 1))
  return gaussian_pair(float(query.stddev), float(query.clip_norm) * sensitivity)


def _laplace_sum(query: LaplaceSum, relation: Relation, declared: Relation) -> DominatingPair:
  return DominatingPair(
    LAPLACE,
    (_sum_sensitivity(query.clip_norm, relation) / query.scale if query.scale else math.inf,),
  )


def _randomized_response(
  query: RandomizedResponse, relation: Relation, declared: Relation
) -> DominatingPair:
  to_null = query.uniform_null and relation is not Relation.REPLACE_ONE
  family = NULL_RESPONSE if to_null else RANDOMIZED_RESPONSE
  return DominatingPair(family, (query.noise, _real(query.num_values)))


def _distributed_gaussian_sum(
  query: DistributedGaussianSum, relation: Relation, declared: Relation
) -> DominatingPair:
  if not query.released:
    return DominatingPair(PURE, (0.0,))
  return gaussian_pair(
    float(query.stddev), float(query.clip_norm) * _relative_sensitivity(query, relation)
  )


def _discrete_gaussian_sum(
  query: DiscreteGaussianSum, relation: Relation, declared: Relation
) -> DominatingPair:
  factor = _relative_sensitivity(query, relation)
  noise = query.share_stddev, _real(int(query.num_shares)), _real(query.dim)
  distances = factor * query.l2_norm, factor * query.l1_norm
  return DominatingPair(DISCRETE_GAUSSIAN, (*distances, *noise, float(factor)))


def _skellam_sum(query: SkellamSum, relation: Relation, declared: Relation) -> DominatingPair:
  if not query.released:
    return DominatingPair(PURE, (0.0,))
  factor = _relative_sensitivity(query, relation)
  variance = query.share_variance * _real(int(query.num_shares)) if query.num_shares else 0.0
  distances = factor * query.l2_norm, factor * query.l1_norm
  return DominatingPair(SKELLAM, (*distances, variance, float(factor)))


def _relative_sensitivity(query: SumQueryEvent, relation: Relation) -> int:
  """How far a sum with noise by its owners moves, in units of the bound on a record."""
  if relation is Relation.ADD_REMOVE:
    raise ValueError(
      f"Expected relation zero_out or replace_one for {type(query).__name__}, got add_remove: a "
      "record's owner who leaves takes a share of the noise along; declare zero_out, under which "
      "the owner stays and contributes zero."
    )
  return 2 if relation is Relation.REPLACE_ONE else 1


def _stated(
  family: PairFamily, parameter: str
) -> Callable[[Any, Relation, Relation], DominatingPair]:
  """The analysis of releases that state their own cost, in an attribute named `parameter`."""

  def analysis(query: Any, relation: Relation, declared: Relation) -> DominatingPair:
    if relation is not declared:
      raise ValueError(
        f"Expected relation {declared}, for which the round's {type(query).__name__} is stated, "
        f"got {relation}; ask for that relation, or state the release for the other one."
      )
    return DominatingPair(family, (getattr(query, parameter),))

  return analysis


def inverse(multiplier: float) -> float:
  """1 / multiplier, infinity at 0."""
  return 1 / multiplier if multiplier else math.inf


def _real(number: int) -> float:
  """A whole number as float64, infinity where it has none."""
  return float(number) if number < 2**1000 else math.inf


class QueryAnalysis(NamedTuple):
  """What accounting knows of a query's event.

  Attributes:
    pair: (event, relation asked for, relation that its round declares) -> the `DominatingPair` of
      one release that the record takes part in. Its family is one of
      `jdp.accounting.pair_families`. It raises ValueError for relations under which it is not
      proved.
    is_central: whether the noise is the same whoever takes part, and a null record (of weight 0)
      contributes what an absent one does. Only then does a sample hide who is in it.
  """

  pair: Callable[[Any, Relation, Relation], DominatingPair]
  is_central: bool = False


_ANALYSES: dict[type, QueryAnalysis] = {
  GaussianSum: QueryAnalysis(_gaussian_sum, is_central=True),
  WeightedAverage: QueryAnalysis(_weighted_average, is_central=True),
  LaplaceSum: QueryAnalysis(_laplace_sum, is_central=True),
  RandomizedResponse: QueryAnalysis(_randomized_response, is_central=True),
  PureRelease: QueryAnalysis(_stated(PURE, "epsilon"), is_central=True),
  ConcentratedRelease: QueryAnalysis(_stated(CONCENTRATED, "rho"), is_central=True),
  NonPrivate: QueryAnalysis(lambda *_: DominatingPair(NON_PRIVATE, ()), is_central=True),
  CorrelatedGaussianSum: QueryAnalysis(_correlated_gaussian_sum, is_central=True),
  DistributedGaussianSum: QueryAnalysis(_distributed_gaussian_sum),
  DiscreteGaussianSum: QueryAnalysis(_discrete_gaussian_sum),
  SkellamSum: QueryAnalysis(_skellam_sum),
  TreeAggregation: QueryAnalysis(_tree_aggregation),
}


@checked
def register_query(event_type: type, analysis: QueryAnalysis) -> None:
  """Makes ledgers that hold a registered event accountable, by mathematics of its own.

  This is the public call for code outside the package. Where the event costs what a known one does,
  `jdp.accounting.charge_as` says so in a line.

  Args:
    event_type: of a query's event. It was made by `jdp.events.register`.
    analysis: what one release costs, and whether a sample may hide who is in it.

  Raises:
    ValueError: if the type is no registered query event, or has an analysis.

  >>> register_query(GaussianSum, QueryAnalysis(lambda event, *_: DominatingPair(PURE, (0.0,))))
  Traceback (most recent call last):
  ...
  ValueError: Expected a query event without an analysis, got GaussianSum; make it a new event.
  """
  if event_type not in query_event_types():
    raise ValueError(
      f"Expected the type of a query's event, got {event_type.__name__}; make it one by "
      "jdp.events.register."
    )
  if has_analysis(event_type):
    raise ValueError(
      f"Expected a query event without an analysis, got {event_type.__name__}; make it a new event."
    )
  _ANALYSES[event_type] = analysis


def has_analysis(event_type: type) -> bool:
  """Whether ledgers that hold events of this type are accountable."""
  return event_type in _ANALYSES or event_type is GroupedSums or has_rule(event_type)


def is_central(query: QueryEvent) -> bool:
  """Whether a query's noise is the same whoever takes part, so that a sample may hide who did."""
  query = known_query(query)
  if type(query) is GroupedSums:
    return all(map(is_central, query.parts))
  # Of this very type: a subclass may have other noise.
  return type(query) in _ANALYSES and _ANALYSES[type(query)].is_central
