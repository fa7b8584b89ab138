"""Which rounds have data sets that attain the pair of distributions that they are charged as.

Lower bounds are for these alone: the others are left out, as if they had released nothing. One pair
of neighbouring data sets attains all of them together, in each direction: the record contributes
the most, the others nothing (or, to a sample of fixed size, the opposite).

* Attained: Gaussian sums, and groups of them, under Poisson sampling, fixed-size sampling or none;
  Laplace sums, randomised response, and Gaussian sums with noise by their owners, where nothing is
  sampled; releases without protection. Discrete sums, by records that move up to four coordinates
  (`integer_noise`), where nothing is sampled; as integers, before any reduction modulo a number.
* Not known to be: pure and concentrated releases (which state a bound), weighted averages (whose
  sensitivity is a bound), batches of epochs, runs with correlated noise (whose sensitivity is a
  bound), and whatever a sample does not amplify.
"""

from collections.abc import Mapping

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
  RandomizedResponse,
  Round,
  SkellamSum,
)
from jdp.guarantees import Relation

_UNSAMPLED = (
  LaplaceSum,
  RandomizedResponse,
  DistributedGaussianSum,
  DiscreteGaussianSum,
  SkellamSum,
)


def attained_losses(
  rounds: Mapping[Round, int], relation: Relation, *, sample_known: bool
) -> Composition:
  """The losses of counted rounds that data sets attain; arguments as for
  `jdp.accounting.composition.compose_rounds`.
  """
  kept = {event: count for event, count in rounds.items() if _is_attained(event, sample_known)}
  return compose_rounds(kept, relation, sample_known=sample_known)


def _is_attained(event: Round, sample_known: bool) -> bool:
  query, sampling = event.query, event.sampling
  if type(query) is NonPrivate:
    return True
  if type(sampling) is PoissonSampling:
    whole = sampling.probability == 1
  elif type(sampling) is FixedSizeSampling:
    whole = sampling.sample_size == sampling.population
  else:
    return False
  parts = query.parts if type(query) is GroupedSums else (query,)
  if all(type(part) is GaussianSum for part in parts):
    return whole or not sample_known
  return whole and type(query) in _UNSAMPLED
