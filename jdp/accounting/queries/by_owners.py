"""Sums with noise by the records' owners (Statement 1.6)."""

from typing import Any

from jdp.accounting.analysis import Attained, QueryAnalysis
from jdp.accounting.dominating_pairs import gaussian_pair, real
from jdp.accounting.families import DISCRETE_GAUSSIAN, PURE, SKELLAM, DominatingPair
from jdp.accounting.registration import register_query
from jdp.events import DiscreteGaussianSum, DistributedGaussianSum, SkellamSum
from jdp.guarantees import Relation


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
  noise = query.share_stddev, real(int(query.num_shares)), real(query.dim)
  distances = factor * query.l2_norm, factor * query.l1_norm
  return DominatingPair(DISCRETE_GAUSSIAN, (*distances, *noise, float(factor)))


def _skellam_sum(query: SkellamSum, relation: Relation, declared: Relation) -> DominatingPair:
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


register_query(
  DistributedGaussianSum,
  QueryAnalysis(_distributed_gaussian_sum, adds_up=True, attained=lambda event: Attained.UNSAMPLED),
)
register_query(DiscreteGaussianSum, QueryAnalysis(_discrete_gaussian_sum, attained=_unless_rounded))
register_query(SkellamSum, QueryAnalysis(_skellam_sum, attained=_unless_rounded))
