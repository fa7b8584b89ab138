"""Which rounds have data sets that attain the pair of distributions that they are charged as.

Lower bounds are for these alone: the others are left out, as if they had released nothing. One pair
of neighbouring data sets attains all of them together, in each direction: the record contributes
the most, the others nothing (or, to a sample of fixed size, the opposite).

* Attained: Gaussian sums, and groups of them, under Poisson sampling (if it is truncated, not the
  pair itself: `families`), fixed-size sampling or none; Laplace sums, and groups of both, under
  Poisson sampling; these and randomised response of a sample that the observer sees; these,
  Gaussian sums with noise by their owners, and releases without protection, where nothing is
  sampled. Discrete sums of integers, by records that move up
  to four coordinates (`integer_noise`), where nothing is sampled; before any reduction modulo a
  number.
* Randomised response of a null or absent record: whatever is released of it, some value differs
  from that by no less than from a uniform answer. For a uniform answer is the mean, over all
  permutations of the values, of any other, and hockey sticks are jointly convex.
* Not known to be: pure and concentrated releases (which state a bound), weighted averages (whose
  sensitivity is a bound), discrete sums of rounded numbers (whose bound few roundings reach),
  batches of epochs, samples that pass over records that took part often, runs with correlated noise
  (whose sensitivity is a bound), and whatever a sample does not amplify. Nor is any round of a
  ledger with local releases: what records contribute to its sums may be random.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping

from jdp.accounting.analysis import sampling_analysis
from jdp.accounting.composition import Composition, compose_rounds
from jdp.events import (
  DiscreteGaussianSum,
  DistributedGaussianSum,
  FixedSizeSampling,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  NonPrivate,
  PoissonSampling,
  QueryEvent,
  RandomizedResponse,
  Round,
  SkellamSum,
  TruncatedPoissonSampling,
)
from jdp.guarantees import Relation

_SUMS = (GaussianSum, LaplaceSum)
_BY_OWNERS = (DistributedGaussianSum, DiscreteGaussianSum, SkellamSum)


def attained_losses(
  rounds: Mapping[Round, int], relation: Relation, *, sample_known: bool
) -> Composition:
  """The losses of counted rounds that data sets attain, all rounds of a ledger without local
  releases; arguments as for `jdp.accounting.composition.compose_rounds`.
  """
  kept: Counter[Round] = Counter()
  for event, count in rounds.items():
    if _is_attained(event, sample_known):
      kept[_with_null(event)] += count
  return compose_rounds(kept, relation, sample_known=sample_known)


def _is_attained(event: Round, sample_known: bool) -> bool:
  query, sampling = event.query, event.sampling
  kind = type(sampling)
  if kind not in (PoissonSampling, FixedSizeSampling, TruncatedPoissonSampling):
    return False
  if sampling_analysis(sampling).turns(sampling):
    return False
  parts = query.parts if type(query) is GroupedSums else (query,)
  kinds = {type(part) for part in parts}
  if kinds == {GaussianSum}:
    return True
  if kind is not TruncatedPoissonSampling and sampling_analysis(sampling).takes_all(sampling):
    rounded = any(getattr(part, "rounded", False) for part in parts)
    allowed = {*_SUMS, *_BY_OWNERS, NonPrivate}
    return not rounded and (kinds <= allowed or type(query) is RandomizedResponse)
  if sample_known:
    return kinds <= {*_SUMS} or type(query) is RandomizedResponse
  return kind is PoissonSampling and kinds <= {*_SUMS}


def _with_null(event: Round) -> Round:
  """The round as if the least was released of null records."""
  query: QueryEvent = event.query
  if type(query) is not RandomizedResponse:
    return event
  return dataclasses.replace(event, query=dataclasses.replace(query, uniform_null=True))
