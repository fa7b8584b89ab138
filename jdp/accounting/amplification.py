"""What drawing a sample does to the loss of a release, by sampling and neighbouring relation.

* A sample amplifies only what looks the same whether the record sits out or is null. Sums with
  noise by the records' owners do not (see below): under every sampling they cost what they cost
  unsampled. So does any query that is not named here.
* Poisson sampling, add/remove or zero-out. Gaussian sums and weighted averages: the pair of arXiv
  1908.10530, Section 3 (a null record contributes what an absent one does, to an average no weight
  either). Laplace sums, and under add/remove every pure release: log(1 + q (e^eps - 1)) for eps
  (arXiv 1807.01647, Theorem 8). Other releases cost what they cost unsampled: given the sample, the
  two runs are equal or neighbours, and divergences are jointly quasi-convex. At q = 1 nothing is
  sampled.
* Samples of fixed size, replace-one. Gaussian sums: arXiv 1808.00087, Theorem 9. Pure releases: as
  above with q = m/N (arXiv 1807.01647, Theorem 9). Concentrated ones: as unsampled. At m = N
  nothing is sampled; then zero-out as well.
* Shuffled batches: no amplification. A record is in at most one batch of an epoch, so under
  zero-out and replace-one, with the same permutation on both sides, one round of an epoch differs,
  by one release. Under add/remove the permutation must be uniform and fresh: put the last record in
  the place of the one that is removed, and the others are permuted uniformly again. If the last
  record was left over, one batch differs, by a replaced record. That needs a public number of
  batches, which both data sets fill. If the last batch is kept, partial, it loses a record, so that
  an epoch is charged a replacement *and* a removal.
* Balls in bins: give the bins away; the record's choice is the same on both sides: one release an
  epoch.

**Noise by the records' owners**, under zero-out or replace-one. Let the release be distributed as P
on one side and P' on the other if the record takes part, and as A if it sits out. Runs that sample
it with probability q are (1 - q) A + q P against (1 - q) A + q P'. The pair of arXiv 1908.10530
bounds them if A = P', as for a null record in a central sum. But a zeroed record leaves its share
of the noise, and the event says how many shares there were, m. Let all other records contribute -S,
and the one in question S or nothing. It comes with m - 1 others, or m others come without it: A is
centred S below P'. For q = 0.01, a multiplier of 1 and epsilon = 1 the pair has delta = 2.7e-9, and
these runs have 1.7e-4. Nor is q the probability of taking part once it is known how many answered:
a client that never drops out is more often among few. What holds is the release's own cost: given
who took part, the runs are equal or neighbours with equal noise, and divergences are jointly
quasi-convex.
"""

import math
from collections.abc import Callable
from typing import Any

from jdp.accounting.dominating_pairs import dominating_pair
from jdp.accounting.pair_families import (
  FIXED_SIZE_GAUSSIAN,
  GAUSSIAN,
  LAPLACE,
  NON_PRIVATE,
  PURE,
  RANDOMIZED_RESPONSE,
  DominatingPair,
  pure_epsilon,
)
from jdp.events import (
  BallsInBins,
  ConcentratedRelease,
  FixedSizeSampling,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  NonPrivate,
  PoissonSampling,
  PureRelease,
  RandomizedResponse,
  Round,
  ShuffledBatches,
  SumQueryEvent,
  WeightedAverage,
)
from jdp.guarantees import Relation

EPOCHS = (ShuffledBatches, BallsInBins)
"""Samplings under which a record takes part in at most one round of an epoch."""

_PURE = (PURE, LAPLACE, RANDOMIZED_RESPONSE)
# Queries whose noise is the same whoever takes part: the others are never amplified.
_CENTRAL = (
  GaussianSum,
  LaplaceSum,
  WeightedAverage,
  RandomizedResponse,
  PureRelease,
  ConcentratedRelease,
  NonPrivate,
)


def amplified_pairs(
  event: Round, relation: Relation, *, sample_known: bool = False
) -> tuple[DominatingPair, ...]:
  """What is charged for a record: per round, or per epoch for the samplings of `EPOCHS`.

  Args:
    event: the round.
    relation: add_remove, zero_out or replace_one.
    sample_known: the observer sees who takes part (because it sees their reports), so that no
      sampling amplifies.

  Raises:
    ValueError: if the pairing of sampling, query and relation has no analysis; it names those that
      have.
  """
  kind = type(event.sampling)
  if kind not in _SAMPLINGS:
    raise ValueError(
      f"Expected a sampling that has an analysis, got {kind.__name__}; record the round as a "
      "PoissonSampling of probability 1, which amplifies nothing."
    )
  if isinstance(event.query, NonPrivate):
    # Under a relation, too, for which its sampling has no analysis.
    return (DominatingPair(NON_PRIVATE, ()),)
  charged = tuple(
    dominating_pair(event.query, r, event.relation)
    for r in _SAMPLINGS[kind](event.sampling, relation)
  )
  if sample_known or isinstance(event.sampling, EPOCHS) or not is_central(event.query):
    return charged
  return tuple(_amplified(event, loss, relation) for loss in charged)


def is_central(query: SumQueryEvent) -> bool:
  """Whether a query's noise is the same whoever takes part, so that a sample may hide who did."""
  if type(query) is GroupedSums:
    return all(map(is_central, query.parts))
  return type(query) in _CENTRAL  # A subclass's noise may be another.


def _poisson(sampling: PoissonSampling, relation: Relation) -> tuple[Relation, ...]:
  return (relation,)


def _fixed_size(sampling: FixedSizeSampling, relation: Relation) -> tuple[Relation, ...]:
  if relation is Relation.ADD_REMOVE:
    raise ValueError(
      "Expected relation replace_one for FixedSizeSampling (zero_out if the sample is the "
      "population), got add_remove: the size of the sample would not be that of the data; pass "
      "relation='replace_one', or sample by Poisson."
    )
  return (relation,)


def _shuffled(sampling: ShuffledBatches, relation: Relation) -> tuple[Relation, ...]:
  if relation is not Relation.ADD_REMOVE:
    return (relation,)
  return (
    (Relation.REPLACE_ONE, Relation.ADD_REMOVE)
    if sampling.keeps_partial
    else (Relation.REPLACE_ONE,)
  )


def _balls_in_bins(sampling: BallsInBins, relation: Relation) -> tuple[Relation, ...]:
  return (relation,)


_SAMPLINGS: dict[type, Callable[[Any, Relation], tuple[Relation, ...]]] = {
  PoissonSampling: _poisson,
  FixedSizeSampling: _fixed_size,
  ShuffledBatches: _shuffled,
  BallsInBins: _balls_in_bins,
}


def _amplified(event: Round, loss: DominatingPair, relation: Relation) -> DominatingPair:
  """The loss of a release when the record is in the sample with probability q only."""
  sampling: Any = event.sampling
  poisson = isinstance(sampling, PoissonSampling)
  q = sampling.probability if poisson else sampling.sample_size / sampling.population
  if q == 1 or loss.family is NON_PRIVATE:
    return loss
  if poisson and relation is Relation.REPLACE_ONE:
    raise ValueError(
      "Expected relation add_remove or zero_out for PoissonSampling with "
      f"{type(event.query).__name__}, got replace_one: Poisson sampling is analysed under "
      "add_remove or zero_out; pass one of them as relation, or sample by FixedSizeSampling, "
      "ShuffledBatches or BallsInBins."
    )
  if not poisson and relation is Relation.ZERO_OUT:
    raise ValueError(
      "Expected relation replace_one for FixedSizeSampling, got zero_out; pass "
      "relation='replace_one', which covers zero_out, or sample by PoissonSampling, "
      "ShuffledBatches or BallsInBins."
    )
  if loss.family is GAUSSIAN:
    return DominatingPair(GAUSSIAN if poisson else FIXED_SIZE_GAUSSIAN, (q, loss.parameters[1]))
  # Under zero-out the null record may cost more than an absent one, but in a sum.
  if loss.family in _PURE and (loss.family is LAPLACE or relation is not Relation.ZERO_OUT):
    return DominatingPair(PURE, (_log_mixture(q, pure_epsilon(loss)),))
  return loss


def _log_mixture(q: float, epsilon: float) -> float:
  """log(1 + q (e^epsilon - 1))."""
  if q == 0:
    return 0.0
  if epsilon > 700:  # where e^epsilon may overflow
    return epsilon + math.log(q + (1 - q) * math.exp(-epsilon))
  return math.log1p(q * math.expm1(epsilon))
