"""The law of who takes part: counts of a sampler's rounds against exact binomial limits.

Every stated law says that some events of a round, or of an epoch, have known probabilities, and
that others never happen. How often an event of probability p happened in n independent trials is
binomial. So the test is exact, and shares its error among all counts.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from jdp import _validate
from jdp._arguments import checked
from jdp.conformance.protocol import Finding, Sampling, Witness, finding, not_applicable, raised
from jdp.events import (
  BallsInBins,
  CyclicPoissonSampling,
  FixedSizeSampling,
  MinSeparationSampling,
  PoissonSampling,
  RandomAllocation,
  ShuffledBatches,
  TruncatedPoissonSampling,
)

_CONSEQUENCE = (
  "Amplification by sampling is stated for another law: epsilon is not that of the accountant."
)
_LAGS = (1, 2, 3, 4)  # distances in rounds at which two rounds are compared
# -log of the probability that two stretches of rounds are equal, if rounds are independent. Batches
# of one epoch are not, which takes away up to two thirds. There are some 1e7 pairs of stretches.
_UNLIKE = 150.0
_NEVER = 1e-12  # above 1e7 pairs times e^-50, the probability that a third of _UNLIKE leaves


class Count(NamedTuple):
  """How often events happened that all have the same probability.

  Attributes:
    name: what happened, with {} for the number of the event.
    times: int [..., events], how often each happened; each of several ways to count has an axis.
    trials: the number of independent trials of each event.
    probability: the stated probability, or one for each event; 0 and 1 leave no doubt.
  """

  name: str
  times: np.ndarray
  trials: int
  probability: float | np.ndarray


@checked
def check_sampling(
  part: Sampling, seed: int = 0, *, num_rounds: int = 2000, error: float = 1e-6
) -> list[Finding]:
  """Single records, pairs, successive rounds and sizes occur as often as the stated law says.

  No stretch of rounds occurs twice, in a run or in the run of the next seed. Deterministic laws are
  exempt.

  Args:
    part: what is checked. Populations of 8 to 64 records make the checks sharpest.
    seed: the sampler's seed.
    num_rounds: the number of rounds drawn. For samplings by epochs, only whole epochs count.
    error: the largest probability that each check fails a correct implementation. It detects a
      record's share p that is off by about 6 sqrt(p (1 - p) / num_rounds).

  Returns:
    A finding for each kind of count, and one of "reuse". A resumed run, if it is wrapped, goes
    through the same checks.

  Raises:
    ValueError: if the members are not bool [num_rounds, population], or the law is not one of
      `jdp.events`, or has another population.
  """
  _validate.in_range(1e-300, 0.5, error=error)
  found = _checked_run(part, part.draw, seed, num_rounds, error)
  if part.resumed is None:
    return [*found, not_applicable(part, "resumed", "no resumption is wrapped")]
  again = _checked_run(part, part.resumed, seed, num_rounds, error)
  return [*found, *(own._replace(check=f"{own.check}, resumed") for own in again)]


def _checked_run(
  part: Sampling,
  draw: Callable[[int, int], ArrayLike],
  seed: int,
  num_rounds: int,
  error: float,
) -> list[Finding]:
  try:
    runs = [np.asarray(draw(seed + i, num_rounds)) for i in range(2)]
  except Exception as own_error:  # of any type, from another library
    return [raised(part, "all", own_error)]
  for members in runs:
    _check_members(part, members, num_rounds)
  counts = [_compared(part, count, error) for count in _counts(part.law, runs[0])]
  return [*counts, _reuse(part, *runs)]


def _check_members(part: Sampling, members: np.ndarray, num_rounds: int) -> None:
  population = getattr(part.law, "population", None)
  expected = f"[{num_rounds}, {'population' if population is None else population}]"
  shape = members.shape
  fits = members.ndim == 2 and shape[0] == num_rounds and population in (None, shape[1])
  if members.dtype != bool or not fits:
    raise ValueError(
      f"Expected members of {part.call} to be bool {expected}, got {members.dtype} {shape}; "
      "say of each record whether it took part."
    )


def _reuse(part: Sampling, own: np.ndarray, other: np.ndarray) -> Finding:
  """No stretch of rounds occurs twice, however far apart.

  A stretch is so long that chance does not repeat it. At a rate q, two rounds of n records agree
  with probability (q^2 + (1 - q)^2)^n or so.
  """
  rate, (num_rounds, population) = float(own.mean()), own.shape
  differ = -population * math.log(rate**2 + (1 - rate) ** 2)
  length = math.ceil(_UNLIKE / differ) if differ else num_rounds
  if isinstance(part.law, MinSeparationSampling) or 4 * length > num_rounds:
    return not_applicable(part, "reuse", "who takes part may follow from public data alone")
  seen: dict[bytes, str] = {}
  for run, members in (("", own), (" of the next seed", other)):
    packed = np.packbits(members, axis=1)
    for t in range(num_rounds - length + 1):
      stretch, name = packed[t : t + length].tobytes(), f"rounds {t} to {t + length - 1}{run}"
      if stretch in seen:
        witness = Witness(
          f"{seen[stretch]} and {name}", "different records", "the same records", _CONSEQUENCE
        )
        return finding(part, "reuse", witness, false_failure=_NEVER)
      seen[stretch] = name
  note = f"{len(seen)} stretches of {length} rounds"
  return finding(part, "reuse", None, false_failure=_NEVER, note=note)


def _compared(part: Sampling, count: Count, error: float) -> Finding:
  """The finding about counts of one kind: even the least likely one must be likely enough."""
  check = count.name.replace(" {}", "")
  p = np.broadcast_to(count.probability, count.times.shape)
  if not count.trials:
    return not_applicable(part, check, "too few rounds were drawn for one trial")
  below = scipy.stats.binom.cdf(count.times, count.trials, p)
  above = scipy.stats.binom.sf(count.times - 1, count.trials, p)
  # Twice a tail at most, and a union bound over all counts of the check.
  likely = np.minimum(below, above) * 2 * count.times.size
  worst = np.unravel_index(np.argmin(likely), likely.shape)
  exact, witness = bool(np.all(np.isin(p, (0.0, 1.0)))), None
  if not likely[worst] >= (1.0 if exact else error):
    witness = Witness(
      f"{count.name.format(worst[-1])}, {count.trials} times",
      f"{count.trials * p[worst]:.6g} expected",
      f"{count.times[worst]} found",
      _CONSEQUENCE,
    )
  note = f"{count.times.size} counts of {count.trials} trials"
  return finding(part, check, witness, false_failure=0.0 if exact else error, note=note)


@functools.singledispatch
def _counts(law: Any, members: np.ndarray) -> Iterator[Count]:
  raise ValueError(
    "Expected a law whose counts are known, a sampling event of jdp.events itself, got "
    f"{type(law).__name__}; name the event that it is charged as."
  )


@_counts.register
def _of_poisson(law: PoissonSampling, members: np.ndarray) -> Iterator[Count]:
  q, population = law.probability, members.shape[1]
  yield from _of_single_rounds(members, q, q * q)
  yield _sizes(members, q, population)


@_counts.register
def _of_truncated_poisson(law: TruncatedPoissonSampling, members: np.ndarray) -> Iterator[Count]:
  population, drawn = law.population, np.arange(law.population + 1)
  size = np.minimum(drawn, law.capacity)
  weights = scipy.stats.binom.pmf(drawn, population, law.probability)
  together = float(weights @ (size * (size - 1))) / max(population * (population - 1), 1)
  yield from _of_single_rounds(members, law.inclusion_probability, together)
  yield _always("samples within the capacity", members.sum(axis=1) <= law.capacity)


@_counts.register
def _of_fixed_size(law: FixedSizeSampling, members: np.ndarray) -> Iterator[Count]:
  m, population = law.sample_size, law.population
  together = m * (m - 1) / max(population * (population - 1), 1)
  yield from _of_single_rounds(members, m / population, together)
  yield _always("rounds of the fixed size", members.sum(axis=1) == m)


@_counts.register
def _of_allocation(law: BallsInBins | RandomAllocation, members: np.ndarray) -> Iterator[Count]:
  b, k = law.num_batches, getattr(law, "participations", 1)
  epochs = _epochs(members, b)
  yield _always(f"epochs with each record {k} times", epochs.sum(axis=1) == k)
  yield from _of_single_rounds(epochs[:, 0], k / b, (k / b) ** 2)
  yield _sizes(epochs[:, 0], k / b, members.shape[1])
  if b > 1:
    both = (epochs[:, 0] & epochs[:, -1]).sum(axis=0)
    yield Count("record {} in both ends of an epoch", both, len(epochs), k * (k - 1) / (b * b - b))


@_counts.register
def _of_shuffled(law: ShuffledBatches, members: np.ndarray) -> Iterator[Count]:
  epochs, population = _epochs(members, law.num_batches), members.shape[1]
  once = epochs.sum(axis=1)
  # The law does not state the batch size, but the size is fixed.
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
  """Counts of records, of pairs in a round, and of records in two rounds one to four apart."""
  rounds, population = members.shape
  yield Count("record {} in a round", members.sum(axis=0), rounds, single)
  together = members.T.astype(np.int64) @ members.astype(np.int64)
  pairs = together[np.triu_indices(population, 1)]
  if pairs.size:
    yield Count("pair {} of records in a round", pairs, rounds, pair)
  for lag in _LAGS:
    # Disjoint pairs of rounds are independent trials: t with t + lag, in blocks of 2 lag rounds.
    # The blocks begin at round 0, or at round lag.
    blocks = max((rounds - lag) // (2 * lag), 0)
    parted = [
      members[first : first + 2 * lag * blocks].reshape(blocks, 2, lag, population)
      for first in (0, lag)
    ]
    again = np.stack([(own[:, 0] & own[:, 1]).sum(axis=(0, 1)) for own in parted])
    yield Count(f"record {{}} in two rounds {lag} apart", again, blocks * lag, single**2)


def _sizes(members: np.ndarray, probability: float, population: int) -> Count:
  """The counts of rounds with at least k records, for each k: sizes are binomial."""
  least = np.arange(1, population + 1)
  times = (members.sum(axis=1)[:, None] >= least).sum(axis=0)
  law = scipy.stats.binom.sf(least - 1, population, probability)
  return Count("sizes above {}", times, len(members), law)


def _always(name: str, happened: np.ndarray) -> Count:
  """The count of what must always happen."""
  return Count(name, np.array([np.count_nonzero(happened)]), happened.size, 1.0)


def _epochs(members: np.ndarray, length: int) -> np.ndarray:
  """Whole epochs, bool [epochs, length, population]."""
  whole = len(members) // length
  return members[: whole * length].reshape(whole, length, members.shape[1])


def _gaps(members: np.ndarray) -> np.ndarray:
  """For each record, the fewest rounds from one participation to the next; all if there is none."""
  gaps = (np.diff(np.flatnonzero(own), append=2 * len(own)) for own in members.T)
  return np.array([min(gap, default=len(members)) for gap in gaps])
