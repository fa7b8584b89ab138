"""Gaussian releases of samples, of the bins of an epoch, and of groups.

All have rows that begin with what is sampled, and the noise multiplier z.
"""

import math
from typing import Any

import numpy as np

from jdp.accounting.families import base
from jdp.accounting.families.base import Charge, DominatingPair, Family, Row
from jdp.accounting.float_noise import gaussian_cut
from jdp.accounting.pld.losses import allocated_lower, capped, fixed_size, pairs, random_allocation
from jdp.accounting.pld.losses.group_gaussian import group_gaussian
from jdp.accounting.pld.losses.pairs import Pair
from jdp.accounting.pld.losses.replaced_gaussian import replaced_gaussian
from jdp.accounting.renyi.fixed_size_gaussian import rdp_fixed_size_gaussian, rdp_truncated_gaussian
from jdp.accounting.renyi.poisson_gaussian import rdp_of_pairs
from jdp.accounting.renyi.replaced_gaussian import rdp_replaced_gaussian
from jdp.guarantees import Relation

_LEAST_MULTIPLIER = 1e-3
_MOST_SAMPLED, _MOST_PROBABILITIES = 256, 16  # in one composition: each pair takes a millisecond


def _is_tame(row: Row) -> bool:
  return row[0] >= 1e-300 and row[1] >= _LEAST_MULTIPLIER


def _exposed(row: Row) -> float:
  return min(row[0], 1.0) if row[1] == 0 else 0.0


def _is_free(row: Row) -> bool:
  return row[0] == 0 or row[1] == math.inf


def _charge(row: Row, attained: bool) -> Charge | None:
  """Unsampled Gaussians need no loss distribution: together they are one Gaussian."""
  return Charge(multiplier=row[1]) if row[0] == 1 and row[1] > 0 else None


def _loss(row: Row, removed: bool, attained: bool) -> Pair | None:
  return pairs.sampled_gaussian(*row, removed=removed) if _is_tame(row) else None


def _merged(
  parameters: np.ndarray, counts: np.ndarray, attained: bool
) -> tuple[np.ndarray, np.ndarray]:
  """Fewer pairs: samples with nearly the same probability and multiplier count as one kind."""
  several = np.all((parameters > 0) & (parameters < (1.0, np.inf)), axis=1)
  rows = parameters[several]
  if len(rows) <= _MOST_SAMPLED:
    return parameters, counts
  values, cell = np.unique(rows[:, 0], return_inverse=True)
  if len(values) > _MOST_PROBABILITIES:
    cell = _cells(rows[:, 0], _MOST_PROBABILITIES)
  most = _MOST_SAMPLED // min(len(values), _MOST_PROBABILITIES)
  _, cell = np.unique(cell * most + _cells(rows[:, 1], most), return_inverse=True)
  # Each cell's bound: the largest q with the least z; if attained, the least q with the largest z.
  merged = np.tile((1.0, 0.0) if attained else (0.0, np.inf), (cell.max() + 1, 1))
  (np.minimum if attained else np.maximum).at(merged[:, 0], cell, rows[:, 0])
  (np.maximum if attained else np.minimum).at(merged[:, 1], cell, rows[:, 1])
  return (
    np.concatenate([parameters[~several], merged]),
    np.concatenate([counts[~several], np.bincount(cell, counts[several])]),
  )


def _cells(values: np.ndarray, number: int) -> np.ndarray:
  """The cell, from 0 to `number` - 1, in which each value > 0 lies on a geometric lattice."""
  place = np.log(values / values.min())
  # 1e-9 in case all values are equal; 1e-6 keeps the largest value in the last cell.
  return np.floor(place / max(place.max(), 1e-9) * (number - 1e-6)).astype(int)


def _exported(row: Row, relation: Relation, dp: Any) -> Any:
  inner = dp.GaussianDpEvent(row[1]) if row[1] else dp.NonPrivateDpEvent()
  return dp.PoissonSampledDpEvent(row[0], inner) if row[0] < 1 else inner


def _sampled(how: str, q: float, row: Row) -> DominatingPair:
  if how == base.FIXED_SIZE:
    return DominatingPair(FIXED_SIZE_GAUSSIAN, (q, row[1], row[1]))
  return DominatingPair(GAUSSIAN, (q, row[1]))


def _in_bins(row: Row, rounds: float, taken: float) -> DominatingPair:
  return DominatingPair(ALLOCATED_GAUSSIAN, (rounds, taken, row[1]))


def _capped(row: Row, q: float, most: int, rounds: int) -> DominatingPair:
  return DominatingPair(CAPPED_GAUSSIAN, (q, row[1], float(most), float(rounds)))


def _in_group(row: Row, size: int) -> DominatingPair:
  if row[0] == 1:
    return DominatingPair(GAUSSIAN, (1.0, row[1] / size))
  return DominatingPair(GROUP_GAUSSIAN, (*row, float(size)))


GAUSSIAN = Family(
  "Poisson-sampled Gaussian",  # (q, z); q = 1: not sampled
  lambda parameters, orders: rdp_of_pairs(parameters[:, 0], parameters[:, 1], orders),
  severity=lambda row: (row[0], -row[1]),
  loss=_loss,
  charge=_charge,
  merged=_merged,
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
  pair = fixed_size.attained if attained else fixed_size.fixed_size_gaussian
  return pair(*row, removed=removed) if _is_tame(row) else None


FIXED_SIZE_GAUSSIAN = Family(
  # (share of the population, z of a replaced record, z of the record in question)
  "Gaussian sum of a fixed-size sample",
  lambda parameters, orders: np.minimum(
    rdp_fixed_size_gaussian(parameters[:, 0], parameters[:, 1], orders),
    rdp_of_pairs(np.ones(len(parameters)), parameters[:, 2], orders),
  ),
  loss=_fixed_size_loss,
  is_free=base.starts_with_zero,
  is_symmetric=lambda row, attained: row[1] == row[2],
  exposed=_exposed,
  cut=lambda row: gaussian_cut(row[1]),
)


REPLACED_GAUSSIAN = Family(
  "Poisson-sampled Gaussian of a replaced record",  # (q, z of one that takes part for certain)
  lambda parameters, orders: rdp_replaced_gaussian(parameters[:, 0], parameters[:, 1], orders),
  severity=lambda row: (row[0], -row[1]),
  loss=lambda row, removed, attained: replaced_gaussian(*row) if _is_tame(row) else None,
  is_free=_is_free,
  is_symmetric=base.always_symmetric,
  exposed=_exposed,
  cut=lambda row: gaussian_cut(row[1]),
)


def _truncated_loss(row: Row, removed: bool, attained: bool) -> Pair | None:
  q, z, full, share, z_replaced, null = row
  # All other records are null: they take its place, and show nothing. 1e-9: rounded down.
  if attained:
    return _loss((((1 - full) * q + full * share) * (1 - 1e-9), z), removed, attained)
  if not _is_tame(row):
    return None
  alone = pairs.sampled_gaussian(q, z, removed=removed)
  if not full * share:
    return alone
  whole = (
    fixed_size.fixed_size_gaussian(share, z_replaced, z, removed=removed)
    if null
    else pairs.sampled_gaussian(share, z_replaced, removed=removed)
  )
  return pairs.mixture(((1 - full, alone), (full, whole)))


TRUNCATED_GAUSSIAN = Family(
  # (q, z, probability that the others fill the sample; then: share, z of a replacement, whether the
  # record becomes null, 1, or leaves, 0)
  "Gaussian of a truncated Poisson sample",
  rdp_truncated_gaussian,
  loss=_truncated_loss,
  is_free=base.starts_with_zero,
  exposed=_exposed,
  cut=lambda row: gaussian_cut(row[1] / 2),  # one record comes and one goes: twice as far
)


def _is_seen(row: Row) -> bool:
  """Whether part of an epoch is charged as if the observer saw which rounds the record is in."""
  return row[0] == row[1] or row[2] < random_allocation.LEAST_MULTIPLIER


def _allocated_charge(row: Row, attained: bool) -> Charge | None:
  if attained:
    found = allocated_lower.has_pair(*row)
    return None if found else Charge(multiplier=allocated_lower.multiplier_of_mean(*row))
  return Charge(multiplier=row[2] / math.sqrt(row[1])) if _is_seen(row) and row[2] > 0 else None


def _allocated_loss(row: Row, removed: bool, attained: bool) -> Pair | None:
  if not row[2]:
    return None
  if attained and row[1] > 1:
    return allocated_lower.allocated_lower(*row, removed=removed)
  return random_allocation.allocated_gaussian(*row, removed=removed, below=attained)


ALLOCATED_GAUSSIAN = Family(
  # (rounds of the epoch, rounds that a record is in, z of each): the pair of one that it is in
  "Gaussian sums of an epoch's bins",
  # By divergences it costs an unsampled release: divergences are jointly quasi-convex.
  lambda parameters, orders: rdp_of_pairs(np.ones(len(parameters)), parameters[:, 2], orders),
  severity=lambda row: -row[2],
  loss=_allocated_loss,
  charge=_allocated_charge,
  merged=random_allocation.merged,
  is_symmetric=lambda row, attained: row[0] == row[1] if attained else _is_seen(row),
  exposed=lambda row: float(row[2] == 0),
  is_published=True,
  cut=lambda row: gaussian_cut(row[2]),
  exported=lambda row, relation, dp: _exported((1.0, row[2]), relation, dp),  # as if revealed
)


def _capped_charge(row: Row, attained: bool) -> Charge | None:
  return None if capped.is_amplified(*row) else Charge(multiplier=row[1] / math.sqrt(row[2]))


CAPPED_GAUSSIAN = Family(
  # (q, z, most rounds of a record, rounds); by divergences it costs that many unsampled releases
  "Gaussian sums of Poisson samples with a cap",
  lambda parameters, orders: rdp_of_pairs(
    np.ones(len(parameters)), parameters[:, 1] / np.sqrt(parameters[:, 2]), orders
  ),
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
  loss=_group_loss,
  is_free=base.starts_with_zero,
  exposed=_exposed,
  cut=lambda row: gaussian_cut(row[1] / row[2]),
)
