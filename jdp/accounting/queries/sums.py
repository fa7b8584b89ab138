"""Sums with noise by the server (Statements 1.1 to 1.4 and 1.8)."""

import math

from jdp.accounting.analysis import Attained, QueryAnalysis
from jdp.accounting.dominating_pairs import gaussian_pair, sum_sensitivity
from jdp.accounting.families import LAPLACE, DominatingPair
from jdp.accounting.registration import register_query
from jdp.events import GaussianSum, GroupedSums, LaplaceSum, TreeAggregation, WeightedAverage
from jdp.guarantees import Relation


def _gaussian_sum(query: GaussianSum, relation: Relation, declared: Relation) -> DominatingPair:
  return gaussian_pair(float(query.stddev), sum_sensitivity(query.clip_norm, relation))


def _laplace_sum(query: LaplaceSum, relation: Relation, declared: Relation) -> DominatingPair:
  return DominatingPair(
    LAPLACE,
    (sum_sensitivity(query.clip_norm, relation) / query.scale if query.scale else math.inf,),
  )


def _weighted_average(
  query: WeightedAverage, relation: Relation, declared: Relation
) -> DominatingPair:
  least = query.min_total_weight
  # Statement 1.3 of docs/theory/dominating_pairs.md.
  sensitivity = 2 / least if relation is Relation.REPLACE_ONE else max(1 / least, 2 / (least + 1))
  return gaussian_pair(float(query.stddev), float(query.clip_norm) * sensitivity)


def _tree_aggregation(
  query: TreeAggregation, relation: Relation, declared: Relation
) -> DominatingPair:
  if relation is Relation.ADD_REMOVE:
    raise ValueError(
      "Expected relation zero_out or replace_one for TreeAggregation, got add_remove: a record "
      "that leaves may change the steps of others; declare zero_out, under which it stays."
    )
  sensitivity = math.sqrt(query.depth) * sum_sensitivity(query.clip_norm, relation)
  return gaussian_pair(float(query.stddev), sensitivity)


register_query(
  GaussianSum,
  QueryAnalysis(
    _gaussian_sum, is_central=True, adds_up=True, attained=lambda event: Attained.ALWAYS
  ),
)
register_query(
  LaplaceSum,
  QueryAnalysis(_laplace_sum, is_central=True, attained=lambda event: Attained.POISSON),
)
register_query(WeightedAverage, QueryAnalysis(_weighted_average, is_central=True, adds_up=True))
register_query(TreeAggregation, QueryAnalysis(_tree_aggregation))
register_query(GroupedSums, QueryAnalysis(parts=lambda event: event.parts))
