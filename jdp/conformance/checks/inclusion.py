"""The law of who takes part: counts of a sampler's rounds against exact binomial limits.

Every stated law says that some events of a round, or of an epoch, have known probabilities, and
that others never happen. How often an event of probability p happened in n independent trials is
binomial. So the test is exact, and shares its error among all counts.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.conformance.protocol import Finding, Sampling, Witness, finding, not_applicable, refusal
from jdp.events import (
  BallsInBins,
  CyclicPoissonSampling,
  FixedSizeSampling,
  MinSeparationSampling,
  PoissonSampling,
  ShuffledBatches,
)

_CONSEQUENCE = (
  "Amplification by sampling is stated for another law: epsilon is not that of the accountant."
)


class Count(NamedTuple):
  """How often events happened that all have one probability.

  Attributes:
    name: what happened, with {} for the number of the event.
    times: int [events], how often.
    trials: independent trials of each.
    probability: the stated one; 0 and 1 leave no doubt.
  """

  name: str
  times: np.ndarray
  trials: int
  probability: float


@checked
def check_sampling(
  part: Sampling, seed: int = 0, *, num_rounds: int = 2000, error: float = 1e-6
) -> list[Finding]:
  """Single records, pairs, consecutive rounds and sizes come as often as the stated law says.

  Args:
    part: what is checked. Populations of 8 to 64 records tell most.
    seed: of the sampler.
    num_rounds: drawn. Of an epoch's rounds, whole epochs count.
    error: the most probable that each check fails a correct implementation. A share p of a record
      that is off by about 6 sqrt(p (1 - p) / num_rounds) is seen.

  Returns:
    A finding for each kind of count.

  Raises:
    ValueError: if the members are no bool [num_rounds, population], or the law is none of
      `jdp.events`.
  """
  _validate.in_range(1e-300, 0.5, error=error)
  try:
    members = np.asarray(part.draw(seed, num_rounds))
  except Exception as raised:  # in another library's own words
    return [refusal(part, "all", raised)]
  if members.dtype != bool or members.ndim != 2 or len(members) != num_rounds:
    raise ValueError(
      f"Expected members of {part.call} to be bool [{num_rounds}, population], got "
      f"{members.dtype} {members.shape}; say of each record whether it took part."
    )
  return [_compared(part, count, error) for count in _counts(part.law, members)]


def _compared(part: Sampling, count: Count, error: float) -> Finding:
  """The finding about counts of one kind: the least likely one has to be likely enough."""
  check, p = count.name.replace(" {}", ""), count.probability
  if not count.trials:
    return not_applicable(part, check, "too few rounds were drawn for one trial")
  below = scipy.stats.binom.cdf(count.times, count.trials, p)
  above = scipy.stats.binom.sf(count.times - 1, count.trials, p)
  # Twice a tail at most, and a union bound over all counts of the check.
  likely = np.minimum(below, above) * 2 * count.times.size
  worst = int(np.argmin(likely))
  note = f"{count.times.size} counts of {count.trials} trials"
  exact = p in (0.0, 1.0)
  if likely[worst] >= (1.0 if exact else error):
    return finding(part, check, None, false_failure=0.0 if exact else error, note=note)
  witness = Witness(
    f"{count.name.format(worst)}, {count.trials} times",
    f"{count.trials * p:.6g} expected",
    f"{count.times[worst]} found",
    _CONSEQUENCE,
  )
  return finding(part, check, witness, false_failure=0.0 if exact else error, note=note)


@functools.singledispatch
def _counts(law: Any, members: np.ndarray) -> Iterator[Count]:
  raise ValueError(
    f"Expected a law that is a sampling event of jdp.events, got {type(law).__name__}."
  )


@_counts.register
def _of_poisson(law: PoissonSampling, members: np.ndarray) -> Iterator[Count]:
  q, population = law.probability, members.shape[1]
  yield from _of_single_rounds(members, q, q * q)
  yield _sizes(members, q, population)


@_counts.register
def _of_fixed_size(law: FixedSizeSampling, members: np.ndarray) -> Iterator[Count]:
  m, population = law.sample_size, law.population
  together = m * (m - 1) / max(population * (population - 1), 1)
  yield from _of_single_rounds(members, m / population, together)
  yield _always("rounds of the fixed size", members.sum(axis=1) == m)


@_counts.register
def _of_balls(law: BallsInBins, members: np.ndarray) -> Iterator[Count]:
  epochs = _epochs(members, law.num_batches)
  yield _always("epochs with each record once", epochs.sum(axis=1) == 1)
  yield from _of_single_rounds(epochs[:, 0], 1 / law.num_batches, 1 / law.num_batches**2)
  yield _sizes(epochs[:, 0], 1 / law.num_batches, members.shape[1])


@_counts.register
def _of_shuffled(law: ShuffledBatches, members: np.ndarray) -> Iterator[Count]:
  epochs, population = _epochs(members, law.num_batches), members.shape[1]
  once = epochs.sum(axis=1)
  # The law does not name the size of batches, but it is fixed.
  size = int(epochs[:1, 0].sum())
  yield _always("epochs with each record once", once == 1 if law.keeps_partial else once <= 1)
  together = size * (size - 1) / max(population * (population - 1), 1)
  yield from _of_single_rounds(epochs[:, 0], size / population, together)
  yield _always("first batches of the fixed size", epochs[:, 0].sum(axis=1) == size)


@_counts.register
def _of_min_separation(law: MinSeparationSampling, members: np.ndarray) -> Iterator[Count]:
  yield _always("records in at most k rounds", members.sum(axis=0) <= law.max_participations)
  yield _always("records whose rounds are b apart", _gaps(members) >= law.min_separation)


@_counts.register
def _of_cyclic(law: CyclicPoissonSampling, members: np.ndarray) -> Iterator[Count]:
  turns = _epochs(members, law.num_groups)
  per_turn = turns.sum(axis=0)  # [groups, population]
  yield _always("records in the rounds of one group", (per_turn > 0).sum(axis=0) <= 1)
  own = np.asarray(turns.any(axis=1))  # whether a record took part in its turn, [turns, population]
  yield Count("record {} in its turn", own.sum(axis=0), len(own), law.probability)
  again = own[0 : 2 * (len(own) // 2) : 2] & own[1::2]
  yield Count("record {} in two turns", again.sum(axis=0), len(again), law.probability**2)


def _of_single_rounds(members: np.ndarray, single: float, pair: float) -> Iterator[Count]:
  """Counts of records, of pairs in a round, and of records in two consecutive rounds."""
  rounds, population = members.shape
  yield Count("record {} in a round", members.sum(axis=0), rounds, single)
  together = members.T.astype(np.int64) @ members.astype(np.int64)
  pairs = together[np.triu_indices(population, 1)]
  if pairs.size:
    yield Count("pair {} of records in a round", pairs, rounds, pair)
  # Disjoint pairs of rounds are independent trials.
  again = members[0 : 2 * (rounds // 2) : 2] & members[1::2][: rounds // 2]
  yield Count("record {} in two consecutive rounds", again.sum(axis=0), len(again), single**2)


def _sizes(members: np.ndarray, probability: float, population: int) -> Count:
  """The count of rounds whose size is near the mean: a binomial size is, as often as stated."""
  sizes, law = members.sum(axis=1), scipy.stats.binom(population, probability)
  low, high = law.ppf(0.16), law.ppf(0.84)
  near = np.array([np.count_nonzero((sizes >= low) & (sizes <= high))])
  return Count("sizes near the mean", near, len(sizes), float(law.cdf(high) - law.cdf(low - 1)))


def _always(name: str, happened: np.ndarray) -> Count:
  """The count of what must always happen."""
  return Count(name, np.array([np.count_nonzero(happened)]), happened.size, 1.0)


def _epochs(members: np.ndarray, length: int) -> np.ndarray:
  """Whole epochs, bool [epochs, length, population]."""
  whole = len(members) // length
  return members[: whole * length].reshape(whole, length, members.shape[1])


def _gaps(members: np.ndarray) -> np.ndarray:
  """Of each record, the fewest rounds from one participation to the next; all if there is none."""
  gaps = (np.diff(np.flatnonzero(own), append=2 * len(own)) for own in members.T)
  return np.array([min(gap, default=len(members)) for gap in gaps])
