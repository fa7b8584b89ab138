"""Groups in turns (Statement 2.7): min-separation and cyclic Poisson sampling."""

from jdp.accounting.analysis import Pattern, SamplingAnalysis, Turns
from jdp.accounting.registration import register_sampling
from jdp.accounting.samplings.poisson import poisson_pairs
from jdp.accounting.turns import most_apart, most_of_a_group, shared_fields
from jdp.events import CyclicPoissonSampling, MinSeparationSampling


def _apart(event: MinSeparationSampling) -> Turns:
  separation, most = event.min_separation, event.max_participations
  return Turns(shared_fields(event), lambda rounds: most_apart(rounds, separation, most))


def _of_a_group(event: CyclicPoissonSampling) -> Turns:
  number = event.num_groups
  return Turns(shared_fields(event), lambda rounds: most_of_a_group(rounds, number))


register_sampling(
  MinSeparationSampling,
  SamplingAnalysis(
    stays=lambda event: event.by_identity,
    turns=_apart,
    pattern=lambda event, num_rounds: Pattern(event.min_separation, event.max_participations),
  ),
)
register_sampling(
  CyclicPoissonSampling,
  SamplingAnalysis(
    inclusion=lambda event: event.probability,
    anew=True,
    amplified=poisson_pairs,
    stays=lambda event: event.by_identity,
    turns=_of_a_group,
    pattern=lambda event, num_rounds: Pattern(event.num_groups, num_rounds),
    run_probability=lambda event: event.probability,
  ),
)
