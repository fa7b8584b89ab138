"""The pairs of measures that are composed, for each family, in one direction."""

import functools
import math
from collections.abc import Callable

import numpy as np

from jdp.accounting.composition import Composition
from jdp.accounting.pair_families import (
  ALLOCATED_GAUSSIAN,
  DISCRETE_GAUSSIAN,
  FIXED_SIZE_GAUSSIAN,
  GAUSSIAN,
  GROUP_GAUSSIAN,
  LAPLACE,
  NON_PRIVATE,
  NULL_RESPONSE,
  PURE,
  RANDOMIZED_RESPONSE,
  SKELLAM,
  TRUNCATED_GAUSSIAN,
  PairFamily,
)
from jdp.accounting.pld import (
  group_gaussian,
  integer_noise,
  pairs,
  random_allocation,
  sampled,
)
from jdp.accounting.pld.integer_noise import Charge, IntegerNoise
from jdp.accounting.pld.pairs import Pair
from jdp.accounting.pld.plan import Term
from jdp.accounting.renyi import closed_forms
from jdp.accounting.sampled_pairs import KNOWN, releases

_LARGEST = 600.0  # of a pure release's epsilon
_LEAST_MULTIPLIER = 1e-3
# Parameters of these begin with (what, multiplier).
_NOISED = (
  GAUSSIAN,
  TRUNCATED_GAUSSIAN,
  FIXED_SIZE_GAUSSIAN,
  ALLOCATED_GAUSSIAN,
  GROUP_GAUSSIAN,
)


def terms(composed: Composition, *, removed: bool, attained: bool = False) -> list[Term] | None:
  """The pairs of all losses, with their counts; None if one has losses too large for this
  accountant.

  Args:
    composed: the ledger's pairs. Unsampled Gaussians become one. Families that are known by their
      Renyi divergences alone become one pair, of their divergences' sum. Such are
      zero-concentrated releases, discrete sums that `integer_noise` has no pair for, and families
      of other packages.
    removed: the direction: runs with a record against runs without it, or the reverse.
    attained: whether the pairs must be those of data sets that exist, rather than pairs that
      dominate all.
  """
  result, precision, others, margin = [], 0.0, {}, 0.0
  for family, (parameters, counts) in composed.groups.items():
    if family in _INTEGERS:
      found, unknown = _of_integers(family, parameters, counts, attained)
      result += [Term(pair, int(count)) for charge, count in found for pair in charge.pairs]
      precision += sum(count * charge.precision for charge, count in found)
      margin += sum(count * charge.margin for charge, count in found)
      if unknown.any():
        others[family] = parameters[unknown], counts[unknown]
      continue
    if not _has_pairs(family):
      others[family] = parameters, counts
      continue
    if family is ALLOCATED_GAUSSIAN:
      parameters, counts = random_allocation.merged(parameters, counts)
    for row, count in zip(map(tuple, parameters.tolist()), map(int, counts.tolist()), strict=True):
      if _is_whole(family, row) and row[1] > 0:
        precision += count / row[1] / row[1]
      elif not is_free(family, row):
        named, numbers = _of_data_sets(family, row) if attained else (family, row)
        pair = _pair(named, numbers, removed, attained) if _is_tame(named, numbers) else None
        if pair is None:
          return None
        result.append(Term(pair, count))
  if precision:
    if not _is_tame(GAUSSIAN, (1.0, precision**-0.5)):
      return None
    pair = _pair(GAUSSIAN, (1.0, precision**-0.5), removed, attained)
    result.append(Term(pair, 1))
  if margin > 1:
    return None
  if margin:
    side = -1.0 if attained else 1.0
    loss = pairs.atoms(np.array([side * 2 * margin]), np.array([math.exp(side * margin)]))
    result.append(Term(loss, 1))
  if others and not attained:
    pair = pairs.renyi(lambda orders: Composition(others).rdp(tuple(orders.tolist())))
    if not len(pair.losses):
      return None
    result.append(Term(pair, 1))
  return result


def _of_data_sets(
  family: PairFamily, row: tuple[float, ...]
) -> tuple[PairFamily, tuple[float, ...]]:
  """The family and parameters of the pair that data sets attain, in one direction."""
  if family is FIXED_SIZE_GAUSSIAN:  # all other records opposite
    return GAUSSIAN, row
  if family is TRUNCATED_GAUSSIAN:  # all other records null: they take its place, and show nothing
    q, z, full, share, *_ = row
    return GAUSSIAN, (((1 - full) * q + full * share) * (1 - 1e-9), z)
  return family, row


def is_symmetric(composed: Composition, *, attained: bool) -> bool:
  """Whether both directions cost the same."""
  directed = {TRUNCATED_GAUSSIAN, GROUP_GAUSSIAN, NULL_RESPONSE}
  directed |= {FIXED_SIZE_GAUSSIAN} if attained else set()
  if any(family in directed or _is_directed(family) for family in composed.groups):
    return False
  return all(
    _is_whole(family, row) or is_free(family, row)
    for family in (GAUSSIAN, ALLOCATED_GAUSSIAN)
    if family in composed.groups
    for row in map(tuple, composed.groups[family][0].tolist())
  )


def _is_whole(family, row):
  """Whether a pair is charged as a Gaussian release that no sampling amplifies."""
  if family is ALLOCATED_GAUSSIAN:  # an epoch costs no more
    return row[0] == 1 or row[1] < random_allocation.LEAST_MULTIPLIER
  return family is GAUSSIAN and row[0] == 1


def _is_directed(family: PairFamily) -> bool:
  """Whether a sample's two directions differ: of a known one, those of what was released."""
  if family.sample is None:
    return False
  return family.sample.how != KNOWN or any(part is NULL_RESPONSE for part, _ in family.sample.parts)


def _has_pairs(family: PairFamily) -> bool:
  """Whether more than Renyi divergences is known."""
  parts = [family] if family.sample is None else [part for part, _ in family.sample.parts]
  return all(part in _PAIRS for part in parts)


def is_free(family: PairFamily, row: tuple[float, ...]) -> bool:
  """Whether a loss is always zero."""
  if family.sample is not None:
    return row[0] == 0 or all(is_free(*pair) for pair in releases(family.sample, row))
  if family is GAUSSIAN and row[1] == math.inf:
    return True
  if family in (RANDOMIZED_RESPONSE, NULL_RESPONSE):
    return row[0] == 1
  return family is not NON_PRIVATE and row[0] == 0


def is_unbounded(family: PairFamily, row: tuple[float, ...]) -> bool:
  """Whether a release hides nothing."""
  if family.sample is not None:
    return row[0] > 0 and any(is_unbounded(*pair) for pair in releases(family.sample, row))
  if family in _NOISED:
    return row[0] > 0 and row[1] == 0
  return family is NON_PRIVATE


def _is_tame(family, row):
  if family.sample is not None:
    return row[0] >= 1e-300 and all(_is_tame(*pair) for pair in releases(family.sample, row))
  if family in _NOISED:
    return row[0] >= 1e-300 and row[1] >= _LEAST_MULTIPLIER
  return bool(family.max_loss(np.array([row]))[0] <= _LARGEST)


@functools.lru_cache(maxsize=256)
def _pair(family, row, removed, attained):
  """The pair; None if a sample's losses are too large."""
  if family.sample is None:
    return _PAIRS[family](*row, removed=removed)
  shown = [
    [_pair(*pair, side, attained) for pair in releases(family.sample, row) if not is_free(*pair)]
    for side in (True, False)
  ]
  return sampled.sampled(family.sample.how, row[0], shown, removed=removed, below=attained)


@functools.lru_cache(maxsize=64)
def _charge(family: PairFamily, row: tuple[float, ...], attained: bool) -> Charge | None:
  noise = _INTEGERS[family](*row)
  return integer_noise.attained(noise) if attained else integer_noise.dominating(noise)


def _of_integers(
  family: PairFamily, parameters: np.ndarray, counts: np.ndarray, attained: bool
) -> tuple[list[tuple[Charge, float]], np.ndarray]:
  """What integer sums are charged, with counts; and which of them are not known to have pairs."""
  charges = [_charge(family, tuple(row), attained) for row in parameters.tolist()]
  found = zip(charges, counts.tolist(), strict=True)
  return [(charge, count) for charge, count in found if charge is not None], np.array(
    [charge is None for charge in charges]
  )


def _gaussian(q, z, *, removed):
  return pairs.sampled_gaussian(q, z, removed=removed)


def _fixed_size(q, z, *, removed):
  return pairs.fixed_size_gaussian(q, z)


def _truncated(q, z, full, share, z_replaced, null, *, removed):
  alone = pairs.sampled_gaussian(q, z, removed=removed)
  if not full * share:
    return alone
  whole = (
    pairs.fixed_size_gaussian(share, z_replaced)
    if null
    else pairs.sampled_gaussian(share, z_replaced, removed=removed)
  )
  return pairs.mixture(((1 - full, alone), (full, whole)))


def _allocated(rounds, z, *, removed):
  return random_allocation.allocated_gaussian(rounds, z, removed=removed)


def _laplace(epsilon, *, removed):
  return pairs.laplace(epsilon)


def _pure(epsilon, *, removed):
  return pairs.pure(epsilon)


def _randomized_response(noise, num_values, *, removed):
  epsilon = float(closed_forms.response_epsilon(np.array(noise), np.array(num_values)))
  return pairs.randomized_response(noise, num_values, epsilon)


def _null_response(noise, num_values, *, removed):
  return pairs.null_response(noise, num_values, removed=removed)


_PAIRS: dict[PairFamily, Callable[..., Pair]] = {
  GAUSSIAN: _gaussian,
  TRUNCATED_GAUSSIAN: _truncated,
  FIXED_SIZE_GAUSSIAN: _fixed_size,
  ALLOCATED_GAUSSIAN: _allocated,
  GROUP_GAUSSIAN: group_gaussian.group_gaussian,
  LAPLACE: _laplace,
  RANDOMIZED_RESPONSE: _randomized_response,
  NULL_RESPONSE: _null_response,
  PURE: _pure,
}

_INTEGERS: dict[PairFamily, Callable[..., IntegerNoise]] = {
  DISCRETE_GAUSSIAN: integer_noise.discrete_gaussian,
  SKELLAM: integer_noise.skellam,
}
