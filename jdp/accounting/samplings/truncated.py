"""Truncated Poisson samples (Statement 2.2)."""

from typing import Any

from jdp.accounting.analysis import Attained, Pairs, Release, SamplingAnalysis
from jdp.accounting.families import TRUNCATED_GAUSSIAN, DominatingPair
from jdp.accounting.families.samples import is_bare
from jdp.accounting.registration import register_sampling
from jdp.events import TruncatedPoissonSampling
from jdp.guarantees import Relation


def _multiplier(released: Pairs) -> float | None:
  """The noise multiplier of a release, if it is one Gaussian."""
  return released[0].family.multiplier(released[0].parameters) if len(released) == 1 else None


def _charged(
  event: TruncatedPoissonSampling, relation: Relation, release: Release
) -> tuple[Relation, ...]:
  released, seen = release.under(relation), release.is_central and release.sample_known
  hides = release.is_central and _multiplier(released) is not None
  if relation is Relation.ADD_REMOVE and not (hides or seen or is_bare(released)):
    raise ValueError(
      f"Expected relation zero_out for TruncatedPoissonSampling with {release.name}, got "
      "add_remove: of a full sample, a record that leaves makes room for another; pass "
      "relation='zero_out', or sample by PoissonSampling."
    )
  return (relation,)


def _amplified(
  event: TruncatedPoissonSampling, released: Pairs, relation: Relation, release: Release
) -> Pairs:
  if relation is Relation.REPLACE_ONE:
    raise ValueError(
      "Expected relation add_remove or zero_out for TruncatedPoissonSampling, got replace_one; "
      "pass one of them as relation, or sample by FixedSizeSampling."
    )
  if (multiplier := _multiplier(released)) is None:
    return released
  if (replaced := _multiplier(release.under(Relation.REPLACE_ONE))) is None:
    raise ValueError(
      f"Expected a Gaussian {release.name} under replace_one too, where TruncatedPoissonSampling "
      "amplifies it, got another pair; sample by PoissonSampling."
    )
  whole = event.full_probability, event.share_when_full, replaced
  null = float(relation is Relation.ZERO_OUT)
  return (DominatingPair(TRUNCATED_GAUSSIAN, (event.probability, multiplier, *whole, null)),)


def _exported(event: TruncatedPoissonSampling, charged: Pairs, inner: Any) -> Any:
  import dp_accounting

  if not isinstance(inner, dp_accounting.GaussianDpEvent):
    return inner
  return dp_accounting.TruncatedSubsampledGaussianDpEvent(
    event.population, event.probability, event.capacity, inner.noise_multiplier
  )


def _attained(event: TruncatedPoissonSampling, sample_known: bool) -> Attained | None:
  return Attained.SEEN if sample_known else Attained.ALWAYS


register_sampling(
  TruncatedPoissonSampling,
  SamplingAnalysis(
    inclusion=lambda event: event.inclusion_probability,
    anew=True,
    amplified=_amplified,
    charged=_charged,
    attained=_attained,
    exported=_exported,
  ),
)
