"""Responses, releases that state what they cost, and unprotected ones (Statements 1.5 and 1.7)."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jdp.accounting.analysis import Attained, QueryAnalysis
from jdp.accounting.dominating_pairs import real
from jdp.accounting.families import (
  CONCENTRATED,
  NON_PRIVATE,
  NULL_RESPONSE,
  PURE,
  RANDOMIZED_RESPONSE,
  DominatingPair,
  Family,
)
from jdp.accounting.registration import register_query
from jdp.events import ConcentratedRelease, NonPrivate, PureRelease, RandomizedResponse
from jdp.guarantees import Relation


def _randomized_response(
  query: RandomizedResponse, relation: Relation, declared: Relation
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
  RandomizedResponse,
  QueryAnalysis(
    _randomized_response,
    is_central=True,
    attained=lambda event: Attained.SEEN,
    worst=lambda event: dataclasses.replace(event, uniform_null=True),
  ),
)
register_query(PureRelease, QueryAnalysis(_stated(PURE, "epsilon"), is_central=True))
register_query(ConcentratedRelease, QueryAnalysis(_stated(CONCENTRATED, "rho"), is_central=True))
register_query(
  NonPrivate,
  QueryAnalysis(
    lambda *_: DominatingPair(NON_PRIVATE, ()),
    is_central=True,
    attained=lambda event: Attained.UNSAMPLED,
    protects=False,
  ),
)
