"""From records to groups of records: what a run costs a user who has several examples.

Data sets that differ in k records are k steps apart, each from one data set to a neighbour. If each
step is (eps_j, delta_j)-differentially private, P_j(A) <= e^eps_j P_(j-1)(A) + delta_j for all
events A, then all of them together are (eps, delta)-differentially private with

  eps = sum_j eps_j,  delta = delta_k + e^eps_k (delta_(k-1) + e^eps_(k-1) (...)).

Each step may take its (eps_j, delta_j) from anywhere on the run's trade-off curve. The best choices
follow one false-positive rate through the steps, and take the curve's tangent at each. That is the
curve composed with itself (arXiv 1905.02383). For Gaussian releases it is exact: the
sensitivity grows k-fold.

Gaussian sums of Poisson samples have a pair of their own for a group, under add/remove or zero-out:
`jdp.accounting.pld.losses.group_gaussian`. The better of both results is taken.
"""

import math

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.composition import compose_pairs
from jdp.accounting.observed import Observed, observed
from jdp.accounting.pld.profile import tightest_profile
from jdp.accounting.profiles import with_overflow, with_release
from jdp.accounting.registration import known_entries, parts_of, sampling_analysis
from jdp.accounting.seen import split
from jdp.accounting.statements.trade_off_curves import tangents
from jdp.ledger import Ledger

_LEAST_RATE = 1e-60  # the least false-positive rate that is followed
_POINTS, _REFINEMENTS = 100, 3  # false-positive rates that are followed; grids, each finer
_LARGEST_GROUP = 64  # the largest size with a pair; time grows with it
_MOST_FOLLOWED = 10**4  # steps, each some milliseconds
_LINES = 4000  # the most lines of a curve that are kept: any of them bound it


@checked
def group_epsilon(
  ledger: Ledger,
  delta: float,
  *,
  group_size: int,
  relation: str | None = None,
  observer: str | None = None,
) -> float:
  """The epsilon for groups of records: of a user with that many examples, say.

  Formal guarantee: (epsilon, delta)-differential privacy for data sets that differ in at most
  `group_size` records, all of them added, all removed, all zeroed or all replaced, as the relation
  says. It comes from privacy loss distributions. It is tight for Gaussian releases from Poisson
  samples (for groups up to 64) or from all records, and an upper bound for others.

  Args:
    ledger: what was done. Its unit is one record.
    delta: in [1e-30, 1].
    group_size: k >= 1, public, and enforced: no group has more records.
    relation: add_remove, zero_out or replace_one. None: the only one that the events declare.
    observer: server, clients or model. None: the ledger's only one.

  Returns:
    The bound. It is infinite if none is found.

  Raises:
    ValueError: as `jdp.accounting.epsilon`.

  >>> from jdp import accounting
  >>> from jdp.ledger import subsampled_gaussian
  >>> run = subsampled_gaussian(1.0, 10.0, 1)
  >>> round(group_epsilon(run, 1e-5, group_size=4), 2)
  1.55
  >>> round(accounting.gaussian_epsilon(10.0 / 4, 1e-5), 2)
  1.55
  """
  _validate.in_range(1e-30, 1.0, delta=delta)
  _validate.in_range(1, _MOST_FOLLOWED, group_size=group_size)
  if not ledger.entries or delta == 1:
    return 0.0
  with np.errstate(all="ignore"):
    seen = observed(ledger, relation, observer)
    curves = tangents(seen, _LEAST_RATE)
    found = max(_group_epsilon(*_thinned(*curve), delta, group_size) for curve in curves)
    if group_size <= _LARGEST_GROUP and _has_group_pairs(ledger, seen):
      found = min(found, _by_group_pairs(seen, delta, group_size))
  added = seen.delta + seen.rounds.overflow + seen.rounds.cut
  pure = group_size * seen.joint.max_loss if added == 0 else math.inf
  return min(found, pure)


def _has_group_pairs(ledger: Ledger, seen: Observed) -> bool:
  """Whether all events are Gaussian releases of Poisson samples, each with noise of its own.

  Other events may be charged as such, and yet let members of a group add up across rounds.
  """
  rounds, releases, _ = split(known_entries(ledger.entries))
  return not releases and all(
    [family.in_group for family in seen.joint.groups]
    + [sampling_analysis(event.sampling).fresh_coins for event, _ in rounds]
    + [one.adds_up for event, _ in rounds for _, one in parts_of(event.query)]
  )


def _by_group_pairs(seen: Observed, delta: float, group_size: int) -> float:
  """The epsilon of the groups' own pairs."""
  pairs = compose_pairs(
    (family.in_group(row, group_size), int(count))
    for (family, row), count in seen.joint.pairs()
    if family.in_group is not None
  )
  profile = with_release(tightest_profile(pairs), 0.0, pairs.cut)
  return with_overflow(profile, seen.rounds.overflow).epsilon(delta)


def _group_epsilon(
  deltas: np.ndarray, log_slopes: np.ndarray, delta: float, group_size: int
) -> float:
  """The epsilon in one direction."""
  found, grid = math.inf, np.geomspace(_LEAST_RATE, 1.0, _POINTS)
  for _ in range(_REFINEMENTS):
    epsilons, totals = _followed(deltas, log_slopes, grid, group_size)
    private = totals <= delta  # NaN is not
    if not private.any():
      return found
    found = min(found, float(np.min(epsilons[private])))
    best = int(np.argmin(np.where(private, epsilons, math.inf)))
    grid = np.geomspace(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)], _POINTS)
  return max(found, 0.0)


def _followed(
  deltas: np.ndarray, log_slopes: np.ndarray, rates: np.ndarray, group_size: int
) -> tuple[np.ndarray, np.ndarray]:
  """The epsilons [A] and deltas [A] that following each rate through the steps gives."""
  slopes, epsilons, totals = np.exp(log_slopes), np.zeros(len(rates)), np.zeros(len(rates))
  for _ in range(group_size):
    chosen = np.array([np.argmin(deltas + slopes * rate) for rate in rates])
    rates = deltas[chosen] + slopes[chosen] * rates
    # Rounded up by more than a step's errors.
    totals = (deltas[chosen] + slopes[chosen] * totals) * (1 + 1e-14)
    epsilons = epsilons + log_slopes[chosen] + 1e-14 * np.abs(log_slopes[chosen])
  return epsilons, totals


def _thinned(deltas: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Some of the lines: their deltas, and the logarithms of their slopes, rounded up."""
  finite = np.isfinite(deltas) & (slopes > 0)
  chosen = np.flatnonzero(finite)[np.argsort(slopes[finite])]
  chosen = chosen[:: -(-len(chosen) // _LINES)]
  return deltas[chosen], np.log(slopes[chosen]) + 1e-12
