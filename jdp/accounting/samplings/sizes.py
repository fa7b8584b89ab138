"""Samples of a fixed size (Statement 2.3), and truncated Poisson samples (Statement 2.2)."""

from typing import Any

from jdp.accounting.analysis import Attained, Pairs, Release, SamplingAnalysis
from jdp.accounting.families.base import FIXED_SIZE, DominatingPair
from jdp.accounting.families.gaussian import FIXED_SIZE_GAUSSIAN, TRUNCATED_GAUSSIAN
from jdp.accounting.families.samples import hidden_pairs, is_bare, one_multiplier
from jdp.accounting.registration import register_sampling
from jdp.events import FixedSizeSampling, TruncatedPoissonSampling
from jdp.guarantees import Relation


def _fixed_charged(
  event: FixedSizeSampling, relation: Relation, release: Release
) -> tuple[Relation, ...]:
  if relation is Relation.ADD_REMOVE:
    raise ValueError(
      "Expected relation replace_one or zero_out for FixedSizeSampling, got add_remove: the size "
      "of the sample would not be that of the data; pass one of them as relation, or sample by "
      "PoissonSampling."
    )
  return (relation,)


def _fixed_amplified(
  event: FixedSizeSampling, released: Pairs, relation: Relation, release: Release
) -> Pairs:
  q = event.sample_size / event.population
  if q == 1:
    return released
  if relation is Relation.REPLACE_ONE:
    return hidden_pairs(FIXED_SIZE, q, released, relation)
  if not all(pair.family.is_sum for pair in released):
    return released
  replaced = release.under(Relation.REPLACE_ONE)
  zeroed, other = one_multiplier(released), one_multiplier(replaced)
  if zeroed is None or other is None:
    return hidden_pairs(FIXED_SIZE, q, replaced, relation)
  return (DominatingPair(FIXED_SIZE_GAUSSIAN, (q, other, zeroed)),)


def _fixed_exported(
  event: FixedSizeSampling, charged: Pairs, inner: Any, relation: Relation
) -> Any:
  import dp_accounting

  if event.sample_size == event.population:
    return inner
  if relation is not Relation.REPLACE_ONE:
    raise ValueError(
      f"Expected relation replace_one for FixedSizeSampling, got {relation}, for which "
      "dp_accounting has no event; pass relation='replace_one', which covers zero_out."
    )
  return dp_accounting.SampledWithoutReplacementDpEvent(event.population, event.sample_size, inner)


def _fixed_attained(event: FixedSizeSampling, sample_known: bool) -> Attained | None:
  if event.sample_size == event.population:
    return Attained.UNSAMPLED
  return Attained.SEEN if sample_known else Attained.ALWAYS


register_sampling(
  FixedSizeSampling,
  SamplingAnalysis(
    inclusion=lambda event: event.sample_size / event.population,
    anew=True,
    amplified=_fixed_amplified,
    charged=_fixed_charged,
    attained=_fixed_attained,
    exported=_fixed_exported,
  ),
)


_ONE_MORE = (
  "that a record more than the N of truncated Poisson samples is there, which costs what an event "
  "with a population of N + 1 does"
)


def _truncated_charged(
  event: TruncatedPoissonSampling, relation: Relation, release: Release
) -> tuple[Relation, ...]:
  released, seen = release.under(relation), release.is_central and release.sample_known
  hides = release.is_central and one_multiplier(released) is not None
  if relation is Relation.ADD_REMOVE and not (hides or seen or is_bare(released)):
    raise ValueError(
      f"Expected relation zero_out for TruncatedPoissonSampling with {release.name}, got "
      "add_remove: of a full sample, a record that leaves makes room for another; pass "
      "relation='zero_out', or sample by PoissonSampling."
    )
  return (relation,)


def _truncated_amplified(
  event: TruncatedPoissonSampling, released: Pairs, relation: Relation, release: Release
) -> Pairs:
  if relation is Relation.REPLACE_ONE:
    raise ValueError(
      "Expected relation add_remove or zero_out for TruncatedPoissonSampling, got replace_one; "
      "pass one of them as relation, or sample by FixedSizeSampling."
    )
  if (multiplier := one_multiplier(released)) is None:
    return released
  if (replaced := one_multiplier(release.under(Relation.REPLACE_ONE))) is None:
    raise ValueError(
      f"Expected a Gaussian {release.name} under replace_one too, where TruncatedPoissonSampling "
      "amplifies it, got another pair; sample by PoissonSampling."
    )
  whole = event.full_probability, event.share_when_full, replaced
  null = float(relation is Relation.ZERO_OUT)
  return (DominatingPair(TRUNCATED_GAUSSIAN, (event.probability, multiplier, *whole, null)),)


def _truncated_exported(
  event: TruncatedPoissonSampling, charged: Pairs, inner: Any, relation: Relation
) -> Any:
  import dp_accounting

  if not isinstance(inner, dp_accounting.GaussianDpEvent):
    return inner
  return dp_accounting.TruncatedSubsampledGaussianDpEvent(
    event.population, event.probability, event.capacity, inner.noise_multiplier
  )


register_sampling(
  TruncatedPoissonSampling,
  SamplingAnalysis(
    inclusion=lambda event: event.inclusion_probability,
    anew=True,
    amplified=_truncated_amplified,
    charged=_truncated_charged,
    attained=lambda event, sample_known: Attained.SEEN if sample_known else Attained.ALWAYS,
    exported=_truncated_exported,
    not_covered=lambda relation: _ONE_MORE if relation is Relation.ADD_REMOVE else "",
  ),
)
