"""Amplification by sampling: the dominating pairs that a round is charged.

A sample amplifies a release only if the release looks the same whether the record sits out or is
null. Sums with noise from the records' owners do not. Under every sampling they cost what they cost
unsampled. The same holds for any query whose analysis does not say that it is central.

The statements are numbered and proved in `docs/theory/amplification.md`:

| sampling | a record is charged | statement |
|---|---|---|
| Poisson | the mixture of all that the sample released with nothing | 2.1 |
| truncated Poisson | a mixture of that and a sample of fixed size | 2.2 |
| fixed size | the same both ways; by Renyi divergences arXiv 1808.00087 | 2.3 |
| shuffled batches | one release an epoch; a replacement where a record leaves | 2.4 |
| balls in bins | one release an epoch; less where bins stay hidden, by "pld" | 2.5 |
| random allocation | k epochs of balls in floor(t/k) bins | 2.6 |
| groups in turns, caps | the dearest of the rounds it can be in | 2.7 |
| one that the observer sees | a coin that is shown, and every round it is in | 2.8 |
| any, noise by the records' owners | what it costs unsampled | 2.9 |
"""

from collections.abc import Callable
from typing import Any

from jdp.accounting.dominating_pairs import dominating_pair, is_central, release_pairs
from jdp.accounting.pair_families import (
  ALLOCATED_GAUSSIAN,
  FIXED_SIZE_GAUSSIAN,
  GAUSSIAN,
  NON_PRIVATE,
  TRUNCATED_GAUSSIAN,
  DominatingPair,
)
from jdp.accounting.sampled_pairs import FIXED_SIZE, HIDDEN, KNOWN, POISSON, SUMS, sampled_pair
from jdp.events import (
  BallsInBins,
  CyclicPoissonSampling,
  FixedSizeSampling,
  MinSeparationSampling,
  NonPrivate,
  PoissonSampling,
  RandomAllocation,
  Round,
  ShuffledBatches,
  TruncatedPoissonSampling,
)
from jdp.guarantees import Relation

EPOCHS = (ShuffledBatches, BallsInBins, RandomAllocation)
"""Samplings under which a record takes part in a fixed number of rounds of an epoch, at most."""


def amplified_pairs(
  event: Round, relation: Relation, *, sample_known: bool = False
) -> tuple[DominatingPair, ...]:
  """The pairs that a record is charged: per round, or per epoch for the samplings of `EPOCHS`.

  Args:
    event: the round.
    relation: add_remove, zero_out or replace_one.
    sample_known: the observer sees who takes part (because it sees their reports). No sampling
      amplifies then.

  Raises:
    ValueError: if the combination of sampling, query and relation has no analysis. The message
      names combinations that have one.
  """
  sampling_type = type(event.sampling)
  if sampling_type not in _SAMPLINGS:
    raise ValueError(
      f"Expected a sampling that has an analysis, got {sampling_type.__name__}; record the round "
      "as a PoissonSampling of probability 1, which amplifies nothing."
    )
  if isinstance(event.query, NonPrivate):
    # Infinite under every relation, so the sampling's own analysis is not asked.
    return (DominatingPair(NON_PRIVATE, ()),)
  if sample_known:
    check_known(event.sampling, relation)
  if isinstance(event.sampling, TruncatedPoissonSampling):
    return _truncated(event, relation, sample_known)
  charged = tuple(
    release_pairs(event.query, r, event.relation)
    for r in _SAMPLINGS[sampling_type](event.sampling, relation)
  )
  if not is_central(event.query):
    return tuple(pair for released in charged for pair in released)
  if isinstance(event.sampling, EPOCHS):
    return tuple(
      pair if sample_known else _of_epoch(event.sampling, pair, relation)
      for released in charged
      for pair in released
    )
  return tuple(
    pair
    for released in charged
    for pair in (
      _known(event.sampling, released) if sample_known else _amplified(event, released, relation)
    )
  )


def check_known(sampling: Any, relation: Relation) -> None:
  """Refuses a relation under which an observer who sees the sample sees the record."""
  if relation is Relation.ADD_REMOVE and inclusion(sampling) < 1:
    raise ValueError(
      "Expected relation zero_out or replace_one for an observer who sees who takes part, got "
      "add_remove: a record shows that it is there by taking part, so no epsilon holds at a delta "
      "below the probability that it ever does; pass one of them as relation, or account for the "
      "observer of the model."
    )


def inclusion(sampling: Any) -> float:
  """The probability that a record is in a round's sample, which its own data do not change.

  For groups in turns it is that of a record whose turn it may be. It is 0 for samplings of
  `EPOCHS`, whose rounds are not charged one by one.
  """
  if isinstance(sampling, PoissonSampling | CyclicPoissonSampling):
    return sampling.probability
  if isinstance(sampling, FixedSizeSampling):
    return sampling.sample_size / sampling.population
  if isinstance(sampling, TruncatedPoissonSampling):
    return sampling.inclusion_probability
  return 0.0


def participations(sampling: Any) -> int:
  """The most rounds of an epoch that a record takes part in, for a sampling of `EPOCHS`."""
  return sampling.participations if isinstance(sampling, RandomAllocation) else 1


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


def _allocated(
  sampling: BallsInBins | RandomAllocation, relation: Relation
) -> tuple[Relation, ...]:
  return (relation,)


def _cyclic(
  sampling: MinSeparationSampling | CyclicPoissonSampling, relation: Relation
) -> tuple[Relation, ...]:
  if relation is Relation.ADD_REMOVE and not sampling.by_identity:
    raise ValueError(
      f"Expected relation zero_out or replace_one for {type(sampling).__name__} of groups that are "
      "not by identity, got add_remove: a record that leaves may change the rounds of others; pass "
      "one of them as relation, or group by identity (jdp.sampling.groups_by_identity)."
    )
  return (relation,)


# For each sampling: the relations under which the releases of one record are charged.
_SAMPLINGS: dict[type, Callable[[Any, Relation], tuple[Relation, ...]]] = {
  PoissonSampling: _poisson,
  TruncatedPoissonSampling: _poisson,
  FixedSizeSampling: _fixed_size,
  ShuffledBatches: _shuffled,
  BallsInBins: _allocated,
  RandomAllocation: _allocated,
  MinSeparationSampling: _cyclic,
  CyclicPoissonSampling: _cyclic,
}


def _known(sampling: Any, released: tuple[DominatingPair, ...]) -> tuple[DominatingPair, ...]:
  """The pairs of releases of a sample that the observer sees."""
  q = inclusion(sampling)
  if q == 1 or isinstance(sampling, MinSeparationSampling) or _is_bare(released):
    return released
  return (sampled_pair(KNOWN, q, released),)


def _is_bare(released: tuple[DominatingPair, ...]) -> bool:
  """Whether nothing is hidden of a record in the sample."""
  return any(pair.family is NON_PRIVATE for pair in released)


def _amplified(
  event: Round, released: tuple[DominatingPair, ...], relation: Relation
) -> tuple[DominatingPair, ...]:
  """The pairs of releases that the record takes part in with probability q only, all or none."""
  sampling: Any = event.sampling
  if isinstance(sampling, MinSeparationSampling):
    return released
  poisson = isinstance(sampling, PoissonSampling | CyclicPoissonSampling)
  q = inclusion(sampling)
  if q == 1 or _is_bare(released):
    return released
  if poisson and relation is Relation.REPLACE_ONE:
    raise ValueError(
      f"Expected relation add_remove or zero_out for {type(sampling).__name__} with "
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
  families = {pair.family for pair in released}
  if families == {GAUSSIAN}:
    return (DominatingPair(GAUSSIAN if poisson else FIXED_SIZE_GAUSSIAN, (q, released[0][1][1])),)
  # Under zero-out a null record may cost more than an absent one, except in a sum.
  if families <= (SUMS if relation is Relation.ZERO_OUT else HIDDEN):
    return (sampled_pair(POISSON if poisson else FIXED_SIZE, q, released),)
  return released


def _truncated(event: Round, relation: Relation, sample_known: bool) -> tuple[DominatingPair, ...]:
  """The pairs of releases of a truncated Poisson sample."""
  sampling: Any = event.sampling
  released = release_pairs(event.query, relation, event.relation)
  central = is_central(event.query)
  if _is_bare(released):
    return released
  if sample_known and central:
    return _known(sampling, released)
  gaussian = central and len(released) == 1 and released[0].family is GAUSSIAN
  if relation is Relation.ADD_REMOVE and not gaussian:
    raise ValueError(
      f"Expected relation zero_out for TruncatedPoissonSampling with {type(event.query).__name__}, "
      "got add_remove: of a full sample, a record that leaves makes room for another; pass "
      "relation='zero_out', or sample by PoissonSampling."
    )
  if central and relation is Relation.REPLACE_ONE:
    raise ValueError(
      "Expected relation add_remove or zero_out for TruncatedPoissonSampling, got replace_one; "
      "pass one of them as relation, or sample by FixedSizeSampling."
    )
  if not gaussian:
    return released
  replaced = dominating_pair(event.query, Relation.REPLACE_ONE, event.relation).parameters[1]
  whole = sampling.full_probability, sampling.share_when_full, replaced
  null = float(relation is Relation.ZERO_OUT)
  multiplier = released[0].parameters[1]
  return (DominatingPair(TRUNCATED_GAUSSIAN, (sampling.probability, multiplier, *whole, null)),)


def _of_epoch(sampling: Any, pair: DominatingPair, relation: Relation) -> DominatingPair:
  """The pair of that part of an epoch in which a record takes part in one release."""
  hidden = not isinstance(sampling, ShuffledBatches) and relation is not Relation.REPLACE_ONE
  if not hidden or pair.family is not GAUSSIAN:
    return pair
  # As many rounds cost no more than any fewer; a float holds no whole number of 400 digits.
  part = min(sampling.num_batches // participations(sampling), 2**53)
  return DominatingPair(ALLOCATED_GAUSSIAN, (float(part), pair.parameters[1]))
