"""Samples of a fixed size, drawn anew for each round (Statement 2.3)."""

from typing import Any

from jdp.accounting.analysis import Attained, Pairs, Release, SamplingAnalysis
from jdp.accounting.families.samples import FIXED_SIZE, hidden_pairs
from jdp.accounting.registration import register_sampling
from jdp.events import FixedSizeSampling
from jdp.guarantees import Relation


def _inclusion(event: FixedSizeSampling) -> float:
  return event.sample_size / event.population


def _charged(
  event: FixedSizeSampling, relation: Relation, release: Release
) -> tuple[Relation, ...]:
  if relation is Relation.ADD_REMOVE:
    raise ValueError(
      "Expected relation replace_one for FixedSizeSampling (zero_out if the sample is the "
      "population), got add_remove: the size of the sample would not be that of the data; pass "
      "relation='replace_one', or sample by Poisson."
    )
  return (relation,)


def _amplified(
  event: FixedSizeSampling, released: Pairs, relation: Relation, release: Release
) -> Pairs:
  q = _inclusion(event)
  if q == 1:
    return released
  if relation is Relation.ZERO_OUT:
    raise ValueError(
      "Expected relation replace_one for FixedSizeSampling, got zero_out; pass "
      "relation='replace_one', which covers zero_out, or sample by PoissonSampling, "
      "ShuffledBatches or BallsInBins."
    )
  return hidden_pairs(FIXED_SIZE, q, released, relation)


def _exported(event: FixedSizeSampling, charged: Pairs, inner: Any) -> Any:
  import dp_accounting

  if event.sample_size == event.population:
    return inner
  return dp_accounting.SampledWithoutReplacementDpEvent(event.population, event.sample_size, inner)


def _attained(event: FixedSizeSampling, sample_known: bool) -> Attained | None:
  if event.sample_size == event.population:
    return Attained.UNSAMPLED
  return Attained.SEEN if sample_known else Attained.ALWAYS


register_sampling(
  FixedSizeSampling,
  SamplingAnalysis(
    inclusion=_inclusion,
    anew=True,
    amplified=_amplified,
    charged=_charged,
    attained=_attained,
    exported=_exported,
  ),
)
