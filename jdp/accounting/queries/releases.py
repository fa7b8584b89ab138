"""Single releases: sums, responses, and what states its own cost (Statements 1.1 to 1.8)."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from jdp import events
from jdp.accounting.analysis import Attained, QueryAnalysis
from jdp.accounting.dominating_pairs import gaussian_pair, real, sum_sensitivity
from jdp.accounting.families.base import DominatingPair, Family
from jdp.accounting.families.releases import (
  CONCENTRATED,
  DISCRETE_GAUSSIAN,
  LAPLACE,
  NON_PRIVATE,
  NULL_RESPONSE,
  PURE,
  RANDOMIZED_RESPONSE,
  SKELLAM,
)
from jdp.accounting.registration import register_query
from jdp.guarantees import Relation


def _gaussian_sum(
  query: events.GaussianSum, relation: Relation, declared: Relation
) -> DominatingPair:
  return gaussian_pair(float(query.stddev), sum_sensitivity(query.clip_norm, relation))


def _laplace_sum(
  query: events.LaplaceSum, relation: Relation, declared: Relation
) -> DominatingPair:
  moved = sum_sensitivity(query.clip_norm, relation)
  return DominatingPair(LAPLACE, (moved / query.scale if query.scale else math.inf,))


def _weighted_average(
  query: events.WeightedAverage, relation: Relation, declared: Relation
) -> DominatingPair:
  least = query.min_total_weight
  # Statement 1.3 of docs/theory/dominating_pairs.md.
  sensitivity = 2 / least if relation is Relation.REPLACE_ONE else max(1 / least, 2 / (least + 1))
  return gaussian_pair(float(query.stddev), float(query.clip_norm) * sensitivity)


def _tree_aggregation(
  query: events.TreeAggregation, relation: Relation, declared: Relation
) -> DominatingPair:
  if relation is Relation.ADD_REMOVE:
    raise ValueError(
      "Expected relation zero_out or replace_one for TreeAggregation, got add_remove: a record "
      "that leaves may change the steps of others; declare zero_out, under which it stays."
    )
  sensitivity = math.sqrt(query.depth) * sum_sensitivity(query.clip_norm, relation)
  return gaussian_pair(float(query.stddev), sensitivity)


def _distributed_gaussian_sum(
  query: events.DistributedGaussianSum, relation: Relation, declared: Relation
) -> DominatingPair:
  if not query.released:
    return DominatingPair(PURE, (0.0,))
  moved = float(query.clip_norm) * _relative_sensitivity(query, relation)
  return gaussian_pair(float(query.stddev), moved)


def _discrete_gaussian_sum(
  query: events.DiscreteGaussianSum, relation: Relation, declared: Relation
) -> DominatingPair:
  factor = _relative_sensitivity(query, relation)
  noise = query.share_stddev, real(int(query.num_shares)), real(query.dim)
  distances = factor * query.l2_norm, factor * query.l1_norm
  return DominatingPair(DISCRETE_GAUSSIAN, (*distances, *noise, float(factor)))


def _skellam_sum(
  query: events.SkellamSum, relation: Relation, declared: Relation
) -> DominatingPair:
  if not query.released:
    return DominatingPair(PURE, (0.0,))
  factor = _relative_sensitivity(query, relation)
  variance = query.share_variance * real(int(query.num_shares)) if query.num_shares else 0.0
  distances = factor * query.l2_norm, factor * query.l1_norm
  return DominatingPair(SKELLAM, (*distances, variance, float(factor)))


def _relative_sensitivity(query: Any, relation: Relation) -> int:
  """How far a sum with noise by its owners moves, in units of the bound on a record."""
  if relation is Relation.ADD_REMOVE:
    raise ValueError(
      f"Expected relation zero_out or replace_one for {type(query).__name__}, got add_remove: a "
      "record's owner who leaves takes a share of the noise along; declare zero_out, under which "
      "the owner stays and contributes zero."
    )
  return 2 if relation is Relation.REPLACE_ONE else 1


def _unless_rounded(event: Any) -> Attained:
  return Attained.NEVER if event.rounded else Attained.UNSAMPLED


def _randomized_response(
  query: events.RandomizedResponse, relation: Relation, declared: Relation
) -> DominatingPair:
  to_null = query.uniform_null and relation is not Relation.REPLACE_ONE
  family = NULL_RESPONSE if to_null else RANDOMIZED_RESPONSE
  return DominatingPair(family, (query.noise, real(query.num_values)))


def _stated(family: Family, parameter: str) -> Callable[[Any, Relation, Relation], DominatingPair]:
  """The analysis of releases that state their own cost, in an attribute named `parameter`."""

  def analysis(query: Any, relation: Relation, declared: Relation) -> DominatingPair:
    if relation is not declared:
      raise ValueError(
        f"Expected relation {declared}, for which the round's {type(query).__name__} is stated, "
        f"got {relation}; ask for that relation, or state the release for the other one."
      )
    return DominatingPair(family, (getattr(query, parameter),))

  return analysis


register_query(
  events.GaussianSum,
  QueryAnalysis(
    _gaussian_sum, is_central=True, adds_up=True, attained=lambda event: Attained.ALWAYS
  ),
)
register_query(
  events.LaplaceSum,
  QueryAnalysis(_laplace_sum, is_central=True, attained=lambda event: Attained.POISSON),
)
register_query(
  events.WeightedAverage, QueryAnalysis(_weighted_average, is_central=True, adds_up=True)
)
register_query(events.TreeAggregation, QueryAnalysis(_tree_aggregation))
register_query(events.GroupedSums, QueryAnalysis(parts=lambda event: event.parts))
register_query(
  events.DistributedGaussianSum,
  QueryAnalysis(_distributed_gaussian_sum, adds_up=True, attained=lambda event: Attained.UNSAMPLED),
)
register_query(
  events.DiscreteGaussianSum, QueryAnalysis(_discrete_gaussian_sum, attained=_unless_rounded)
)
register_query(events.SkellamSum, QueryAnalysis(_skellam_sum, attained=_unless_rounded))
register_query(
  events.RandomizedResponse,
  QueryAnalysis(
    _randomized_response,
    is_central=True,
    attained=lambda event: Attained.SEEN,
    worst=lambda event: dataclasses.replace(event, uniform_null=True),
  ),
)
register_query(events.PureRelease, QueryAnalysis(_stated(PURE, "epsilon"), is_central=True))
register_query(
  events.ConcentratedRelease, QueryAnalysis(_stated(CONCENTRATED, "rho"), is_central=True)
)
register_query(
  events.NonPrivate,
  QueryAnalysis(
    lambda *_: DominatingPair(NON_PRIVATE, ()),
    is_central=True,
    attained=lambda event: Attained.UNSAMPLED,
    protects=False,
  ),
)
