"""The best of a random number of runs, whose rounds have analyses of their own."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jdp.accounting.analysis import QueryAnalysis
from jdp.accounting.composed_rounds import compose_rounds, stands_alone
from jdp.accounting.composition import Composition
from jdp.accounting.dp_events import dp_accounting_or_refuse, round_event
from jdp.accounting.families import DominatingPair, Family, always_symmetric, unbounded
from jdp.accounting.registration import register_query, sampling_analysis
from jdp.accounting.renyi.repeated_runs import best_of_runs
from jdp.events import BestOfRuns, Round
from jdp.guarantees import Relation

if TYPE_CHECKING:
  from dp_accounting import DpEvent


def best_of(one: Composition, mean_runs: float, shape: float) -> DominatingPair:
  """The pair of the best of a random number of runs, each of which costs a composition.

  It is known by its divergences alone. What samples of the runs overflow is no part of it.
  """
  curve = best_of_runs(one.rdp, one.max_loss(), mean_runs, shape)

  def rdp(parameters: np.ndarray, orders: np.ndarray) -> np.ndarray:
    return np.tile(curve(tuple(orders.tolist())), (len(parameters), 1))

  kind = Family("the best of some runs", rdp, unbounded, None, is_symmetric=always_symmetric)
  return DominatingPair(kind, ())


def _of_round(event: Round, relation: Relation, sample_known: bool) -> DominatingPair:
  """The pair of a `BestOfRuns`. Overflows are counted by its event."""
  query: Any = event.query
  sampling, analysis = event.sampling, sampling_analysis(event.sampling)
  if not (analysis.fresh_coins and analysis.takes_all(sampling)):
    raise ValueError(
      f"Expected PoissonSampling of probability 1 for BestOfRuns, got {type(sampling).__name__}; "
      "its rounds say how they were sampled."
    )
  rounds: Counter[Round] = Counter()
  for inner, count in zip(query.rounds, query.counts, strict=True):
    if (inner.unit, inner.observer) != (event.unit, event.observer):
      raise ValueError(
        "Expected rounds of the unit and observer of their BestOfRuns, got others; make the event "
        "by jdp.accounting.best_of_runs."
      )
    rounds[inner] += count
  one = compose_rounds(rounds, relation, sample_known=sample_known)
  return best_of(one, query.mean_runs, query.shape)


def _composed(
  rounds: Mapping[Round, int], relation: Relation, sample_known: bool
) -> list[tuple[DominatingPair, int]]:
  return [(_of_round(event, relation, sample_known), count) for event, count in rounds.items()]


def _exported(event: Round, relation: Relation, sample_known: bool) -> "DpEvent":
  """The event of the best of some runs, whose rounds have events of their own."""
  compose_rounds({event: 1}, relation, sample_known=sample_known)  # for its errors
  query: Any = event.query
  if not all(map(stands_alone, query.rounds)):
    raise ValueError(
      "Expected runs whose rounds are charged one by one, got epochs, turns or correlated noise; "
      "leave that event out."
    )
  dp = dp_accounting_or_refuse()
  run = [
    dp.SelfComposedDpEvent(round_event(inner, relation, sample_known), count)
    for inner, count in zip(query.rounds, query.counts, strict=True)
  ]
  return dp.dp_event.RepeatAndSelectDpEvent(dp.ComposedDpEvent(run), query.mean_runs, query.shape)


register_query(
  BestOfRuns,
  QueryAnalysis(composed=_composed, exported=_exported),
)
