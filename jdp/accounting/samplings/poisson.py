"""Poisson samples (Statement 2.1), and those with a cap on a record's rounds (Statement 2.7)."""

from typing import Any

from jdp.accounting.analysis import Attained, Pairs, Release, SamplingAnalysis, Turns
from jdp.accounting.families.samples import POISSON, hidden_pairs
from jdp.accounting.registration import register_sampling
from jdp.accounting.turns import most_apart, shared_fields
from jdp.events import PoissonSampling
from jdp.guarantees import Relation


def poisson_pairs(event: Any, released: Pairs, relation: Relation, release: Release) -> Pairs:
  """The pairs of a record that takes part by a fresh coin of its own."""
  if event.probability == 1:
    return released
  if relation is Relation.REPLACE_ONE:
    raise ValueError(
      f"Expected relation add_remove or zero_out for {type(event).__name__} with {release.name}, "
      "got replace_one: Poisson sampling is analysed under add_remove or zero_out; pass one of "
      "them as relation, or sample by FixedSizeSampling, ShuffledBatches or BallsInBins."
    )
  return hidden_pairs(POISSON, event.probability, released, relation)


def _turns(event: PoissonSampling) -> Turns | None:
  most = event.max_participations
  if most is None:
    return None

  return Turns(
    shared_fields(event),
    lambda rounds: most_apart(rounds, 1, most),
    by_coins=event.probability < 1,
  )


def _exported(event: PoissonSampling, charged: Pairs, inner: Any) -> Any:
  import dp_accounting

  if event.probability == 1:
    return inner
  return dp_accounting.PoissonSampledDpEvent(event.probability, inner)


def _attained(event: PoissonSampling, sample_known: bool) -> Attained | None:
  if event.max_participations is not None:
    return None
  if event.probability == 1:
    return Attained.UNSAMPLED
  return Attained.SEEN if sample_known else Attained.POISSON


register_sampling(
  PoissonSampling,
  SamplingAnalysis(
    inclusion=lambda event: event.probability,
    amplified=poisson_pairs,
    stays=lambda event: True,
    turns=_turns,
    fresh_coins=True,
    attained=_attained,
    exported=_exported,
  ),
)
