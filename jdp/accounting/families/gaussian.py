"""Gaussian releases: of samples, of the bins of an epoch, of groups.

All have rows that begin with what is sampled, and the noise multiplier z.
"""

import math
from typing import Any

import numpy as np

from jdp.accounting.families import base
from jdp.accounting.families.base import Charge, DominatingPair, Family, Row
from jdp.accounting.float_noise import gaussian_cut
from jdp.accounting.pld import capped, pairs, random_allocation
from jdp.accounting.pld.group_gaussian import group_gaussian
from jdp.accounting.pld.pairs import Pair
from jdp.accounting.pld.replaced_gaussian import replaced_gaussian
from jdp.accounting.renyi.fixed_size_gaussian import rdp_fixed_size_gaussian, rdp_truncated_gaussian
from jdp.accounting.renyi.poisson_gaussian import rdp_of_pairs
from jdp.accounting.renyi.replaced_gaussian import rdp_replaced_gaussian
from jdp.guarantees import Relation

_LEAST_MULTIPLIER = 1e-3


def _is_tame(row: Row) -> bool:
  return row[0] >= 1e-300 and row[1] >= _LEAST_MULTIPLIER


def _exposed(row: Row) -> float:
  return min(row[0], 1.0) if row[1] == 0 else 0.0


def _is_free(row: Row) -> bool:
  return row[0] == 0 or row[1] == math.inf


def _charge(row: Row, attained: bool) -> Charge | None:
  """Any number of unsampled Gaussians is one."""
  return Charge(multiplier=row[1]) if row[0] == 1 and row[1] > 0 else None


def _loss(row: Row, removed: bool, attained: bool) -> Pair | None:
  return pairs.sampled_gaussian(*row, removed=removed) if _is_tame(row) else None


def _exported(row: Row, relation: Relation, dp: Any) -> Any:
  inner = dp.GaussianDpEvent(row[1]) if row[1] else dp.NonPrivateDpEvent()
  return dp.PoissonSampledDpEvent(row[0], inner) if row[0] < 1 else inner


def _sampled(how: str, q: float, row: Row) -> DominatingPair:
  return DominatingPair(FIXED_SIZE_GAUSSIAN if how == base.FIXED_SIZE else GAUSSIAN, (q, row[1]))


def _in_bins(row: Row, rounds: float) -> DominatingPair:
  return DominatingPair(ALLOCATED_GAUSSIAN, (rounds, row[1]))


def _capped(row: Row, q: float, most: int, rounds: int) -> DominatingPair:
  return DominatingPair(CAPPED_GAUSSIAN, (q, row[1], float(most), float(rounds)))


def _in_group(row: Row, size: int) -> DominatingPair:
  if row[0] == 1:
    return DominatingPair(GAUSSIAN, (1.0, row[1] / size))
  return DominatingPair(GROUP_GAUSSIAN, (*row, float(size)))


GAUSSIAN = Family(
  "Poisson-sampled Gaussian",  # (q, z); q = 1: not sampled
  lambda parameters, orders: rdp_of_pairs(parameters[:, 0], parameters[:, 1], orders),
  base.unbounded,
  lambda row: (row[0], -row[1]),
  loss=_loss,
  charge=_charge,
  is_free=_is_free,
  is_symmetric=lambda row, attained: row[0] == 1 or _is_free(row),
  exposed=_exposed,
  multiplier=lambda row: row[1] if row[0] == 1 else None,
  sampled=_sampled,
  in_bins=_in_bins,
  capped=_capped,
  in_group=_in_group,
  is_sum=True,
  is_published=True,
  cut=lambda row: gaussian_cut(row[1]),
  exported=_exported,
)


def _fixed_size_loss(row: Row, removed: bool, attained: bool) -> Pair | None:
  if attained:  # all other records opposite
    return _loss(row, removed, attained)
  return pairs.fixed_size_gaussian(*row) if _is_tame(row) else None


FIXED_SIZE_GAUSSIAN = Family(
  "Gaussian sum of a fixed-size sample",  # (share of the population, z)
  lambda parameters, orders: rdp_fixed_size_gaussian(parameters[:, 0], parameters[:, 1], orders),
  base.unbounded,
  None,
  loss=_fixed_size_loss,
  is_free=base.starts_with_zero,
  is_symmetric=lambda row, attained: not attained,
  exposed=_exposed,
  cut=lambda row: gaussian_cut(row[1]),
)


REPLACED_GAUSSIAN = Family(
  "Poisson-sampled Gaussian of a replaced record",  # (q, z of one that takes part for certain)
  lambda parameters, orders: rdp_replaced_gaussian(parameters[:, 0], parameters[:, 1], orders),
  base.unbounded,
  lambda row: (row[0], -row[1]),
  loss=lambda row, removed, attained: replaced_gaussian(*row) if _is_tame(row) else None,
  is_free=_is_free,
  is_symmetric=base.always_symmetric,
  exposed=_exposed,
  cut=lambda row: gaussian_cut(row[1]),
)


def _truncated_loss(row: Row, removed: bool, attained: bool) -> Pair | None:
  q, z, full, share, z_replaced, null = row
  if attained:  # all other records null: they take its place, and show nothing
    return _loss((((1 - full) * q + full * share) * (1 - 1e-9), z), removed, attained)
  if not _is_tame(row):
    return None
  alone = pairs.sampled_gaussian(q, z, removed=removed)
  if not full * share:
    return alone
  whole = (
    pairs.fixed_size_gaussian(share, z_replaced)
    if null
    else pairs.sampled_gaussian(share, z_replaced, removed=removed)
  )
  return pairs.mixture(((1 - full, alone), (full, whole)))


TRUNCATED_GAUSSIAN = Family(
  # (q, z, probability that the others fill the sample; then: share, z of a replacement, whether the
  # record becomes null, 1, or leaves, 0)
  "Gaussian of a truncated Poisson sample",
  rdp_truncated_gaussian,
  base.unbounded,
  None,
  loss=_truncated_loss,
  is_free=base.starts_with_zero,
  exposed=_exposed,
  cut=lambda row: gaussian_cut(row[1] / 2),  # one record comes and another goes
)


def _is_one_release(row: Row) -> bool:
  """Whether an epoch is charged what one release costs."""
  return row[0] == 1 or row[1] < random_allocation.LEAST_MULTIPLIER


def _allocated_charge(row: Row, attained: bool) -> Charge | None:
  return Charge(multiplier=row[1]) if _is_one_release(row) and row[1] > 0 else None


def _allocated_loss(row: Row, removed: bool, attained: bool) -> Pair | None:
  return random_allocation.allocated_gaussian(*row, removed=removed) if _is_tame(row) else None


ALLOCATED_GAUSSIAN = Family(
  "Gaussian sums of an epoch's bins",  # (rounds of the epoch, z of each): a record is in one
  # By divergences they cost what one round does: these are jointly quasi-convex.
  lambda parameters, orders: rdp_of_pairs(np.ones(len(parameters)), parameters[:, 1], orders),
  base.unbounded,
  lambda row: (-row[0], -row[1]),
  loss=_allocated_loss,
  charge=_allocated_charge,
  merged=random_allocation.merged,
  is_symmetric=lambda row, attained: _is_one_release(row),
  exposed=_exposed,
  is_published=True,
  cut=lambda row: gaussian_cut(row[1]),
  exported=lambda row, relation, dp: _exported((1.0, row[1]), relation, dp),  # as if revealed
)


def _capped_charge(row: Row, attained: bool) -> Charge | None:
  return None if capped.is_amplified(*row) else Charge(multiplier=row[1] / math.sqrt(row[2]))


CAPPED_GAUSSIAN = Family(
  # (q, z, most rounds of a record, rounds); by divergences it costs as many unsampled releases
  "Gaussian sums of Poisson samples with a cap",
  lambda parameters, orders: rdp_of_pairs(
    np.ones(len(parameters)), parameters[:, 1] / np.sqrt(parameters[:, 2]), orders
  ),
  base.unbounded,
  None,
  loss=lambda row, removed, attained: capped.capped_gaussian(*row, removed=removed),
  charge=_capped_charge,
  is_free=_is_free,
  is_symmetric=lambda row, attained: not capped.is_amplified(*row),
  exposed=_exposed,
  is_published=True,
  cut=lambda row: row[2] * gaussian_cut(row[1]),
)


def _group_loss(row: Row, removed: bool, attained: bool) -> Pair | None:
  return group_gaussian(*row, removed=removed) if _is_tame(row) else None


GROUP_GAUSSIAN = Family(
  "Poisson-sampled Gaussian of a group",  # (q, z, size); by loss distributions only
  lambda parameters, orders: np.full((len(parameters), len(orders)), math.inf),
  base.unbounded,
  None,
  loss=_group_loss,
  is_free=base.starts_with_zero,
  exposed=_exposed,
  cut=lambda row: gaussian_cut(row[1] / row[2]),
)
