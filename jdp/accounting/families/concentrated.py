"""Zero-concentrated releases, and sums of integers with discrete noise."""

import functools
import math
from typing import Any

import numpy as np

from jdp.accounting.families.base import (
  Charge,
  DominatingPair,
  Family,
  Row,
  always_symmetric,
  starts_with_zero,
  unbounded,
)
from jdp.accounting.float_noise import gaussian_cut
from jdp.accounting.renyi import closed_forms
from jdp.accounting.renyi.discrete_noise import discrete_gaussian_rho, skellam_rdp


def _of_rho(rho: float, dp: Any) -> Any:
  return dp.ZCDpEvent(rho) if rho < np.inf else dp.NonPrivateDpEvent()


CONCENTRATED = Family(
  "zero-concentrated differential privacy",  # (rho,)
  lambda parameters, orders: closed_forms.concentrated(parameters[:, 0], orders),
  unbounded,
  lambda row: row[0],
  is_free=starts_with_zero,
  is_symmetric=always_symmetric,
  exported=lambda row, relation, dp: _of_rho(row[0], dp),
)


def _rho(row: Row) -> float:
  """The rho of zero-concentrated differential privacy of a discrete Gaussian sum."""
  l2, l1, stddev, shares, dim, _ = row
  most = 2.0**60  # beyond 2^53 rho is infinite
  return discrete_gaussian_rho(l2, l1, stddev, int(min(shares, most)), int(min(dim, most)))


@functools.lru_cache(maxsize=64)
def _charge(row: Row, attained: bool) -> Charge | None:
  from jdp.accounting.pld import integer_noise

  return integer_noise.charge(integer_noise.discrete_gaussian(*row), attained=attained)


DISCRETE_GAUSSIAN = Family(
  "discrete Gaussian",  # (L2 distance, L1 distance, stddev of a share, shares, dimensions, units)
  lambda parameters, orders: closed_forms.concentrated(
    np.array([_rho(row) for row in parameters.tolist()]), orders
  ),
  unbounded,
  None,
  ordered=lambda row: DominatingPair(CONCENTRATED, (_rho(row),)),
  charge=_charge,
  is_free=starts_with_zero,
  is_symmetric=always_symmetric,
  cut=lambda row: gaussian_cut(row[2] * math.sqrt(row[3]) / row[0] if row[0] else math.inf),
  exported=lambda row, relation, dp: _of_rho(_rho(row), dp),
)


@functools.lru_cache(maxsize=64)
def _skellam_charge(row: Row, attained: bool) -> Charge | None:
  from jdp.accounting.pld import integer_noise

  return integer_noise.charge(integer_noise.skellam(*row), attained=attained)


SKELLAM = Family(
  "Skellam",  # (L2 distance, L1 distance, variance, units): of a record, in a distance
  lambda parameters, orders: skellam_rdp(
    parameters[:, 0], parameters[:, 1], parameters[:, 2], orders
  ),
  unbounded,
  None,
  charge=_skellam_charge,
  is_free=starts_with_zero,
  is_symmetric=always_symmetric,
  cut=lambda row: gaussian_cut(math.sqrt(row[2]) / row[0] if row[0] else math.inf),
)
