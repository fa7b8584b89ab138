"""The pair of a run of Poisson samples in which a record takes part k times at most.

Suppose that the record's coins are still thrown, without effect, after it has had its k turns. Let
J be the number of rounds before the head that would be one more (all rounds, if there is none), and
let J be shown. Given J, the record is in a uniform subset of k of these rounds, or of fewer. So the
run has the mixture over J of the pairs of k epochs of balls in floor(J/k) bins (Statement 2.12). As
fewer bins cost more, J is rounded down to a few values.
"""

import functools

import numpy as np
import scipy

from jdp.accounting.pld.losses import pairs, random_allocation
from jdp.accounting.pld.losses.pairs import UNIT, Pair
from jdp.accounting.pld.losses.sampled import composed_pair

# J is rounded down to the quantiles of its law at these levels.
_LEVELS = (1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5)
_MOST_TURNS, _LEAST_PROBABILITY = 64, 1e-9
_WEIGHT_ERROR = 1e-9  # relative error allowed for in weights, besides a few units


def is_amplified(q: float, z: float, most: float, rounds: float) -> bool:
  """Whether the run costs less than `most` unsampled releases, as far as this module knows."""
  known = _LEAST_PROBABILITY <= q < 1 and 1 <= most <= _MOST_TURNS
  return known and z >= random_allocation.LEAST_MULTIPLIER and rounds >= 2 * most


def capped_gaussian(q: float, z: float, most: float, rounds: float, *, removed: bool) -> Pair:
  """The pair of the whole run, when a record is removed or added.

  Args:
    q: the probability of a head.
    z: the multiplier of a round.
    most: k.
    rounds: the number of rounds of the run.
    removed: the direction.
  """
  bins, weights = _bins(q, most, rounds)
  whole = pairs.mixture(
    [(weight, _of_epochs(n, z, most, removed)) for n, weight in zip(bins, weights, strict=True)]
  )
  return pairs.sketched(whole, least=1e-300)


@functools.lru_cache(maxsize=64)  # Longer runs of a plan share most numbers of bins.
def _of_epochs(bins: float, z: float, most: float, removed: bool) -> Pair:
  """The pair of k epochs with this many bins, or of k unsampled releases."""
  unsampled = pairs.sampled_gaussian(1.0, z / most**0.5, removed=removed)
  if bins == 1:
    return unsampled
  epoch = random_allocation.allocated_gaussian(bins, 1, z, removed=removed)
  return composed_pair([epoch] * int(most)) or unsampled


def _bins(q: float, most: float, rounds: float) -> tuple[list[float], list[float]]:
  """Numbers of bins, increasing from 1 on, and upper bounds on the probability of each."""
  # J - k has a negative binomial law: the number of tails before head k + 1.
  values = np.minimum(most + np.ceil(scipy.special.nbdtrik(_LEVELS, most + 1, q)), rounds) // most
  bins = np.unique(np.append(values[values > 1], 1.0))
  ends = scipy.special.betainc(most + 1, (bins[1:] - 1) * most, q)  # the law of J < bins * k
  weights = np.diff(np.concatenate([[0.0], ends, [1.0]]))
  return bins.tolist(), (weights * (1 + _WEIGHT_ERROR) + 16 * UNIT).tolist()
