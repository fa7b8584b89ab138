"""Laplace and integer sums, responses, releases of pure and concentrated differential privacy, and
unprotected ones.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from jdp.accounting.families import base
from jdp.accounting.families.base import Charge, DominatingPair, Family, Row
from jdp.accounting.float_noise import gaussian_cut, laplace_cut
from jdp.accounting.pld.losses import integer_noise, pairs
from jdp.accounting.pld.losses.integer_noise import IntegerNoise
from jdp.accounting.pld.losses.pairs import Pair
from jdp.accounting.renyi import closed_forms
from jdp.accounting.renyi.discrete_noise import discrete_gaussian_rho, skellam_rdp
from jdp.guarantees import Relation

LAPLACE = Family(
  "Laplace",  # (sensitivity / scale,)
  lambda parameters, orders: closed_forms.laplace(parameters[:, 0], orders),
  lambda parameters: parameters[:, 0],
  lambda row: row[0],
  loss=lambda row, removed, attained: pairs.laplace(*row) if row[0] <= pairs.LARGEST_LOSS else None,
  is_free=base.starts_with_zero,
  is_symmetric=base.always_symmetric,
  is_sum=True,
  may_hide=True,
  cut=lambda row: laplace_cut(row[0]),
  exported=lambda row, relation, dp: (
    dp.LaplaceDpEvent(1 / row[0]) if row[0] < math.inf else dp.NonPrivateDpEvent()
  ),
)


def _response_exported(name: str, row: Row, relation: Relation, dp: Any) -> Any:
  """dp_accounting's randomised response means the same as jdp's only under replace-one."""
  if relation is not Relation.REPLACE_ONE:
    raise ValueError(
      f"Expected relation replace_one to export {name}, got {relation}; leave that event out."
    )
  if not row[1] <= 2**53:  # a float says no larger number exactly
    raise ValueError(
      f"Expected at most 2^53 values to export {name}, got {row[1]}; leave that event out."
    )
  return dp.RandomizedResponseDpEvent(float(row[0]), int(row[1]))


def _response_rdp(parameters: np.ndarray, orders: np.ndarray) -> np.ndarray:
  return closed_forms.randomized_response(parameters[:, 0], parameters[:, 1], orders)


def _response_loss(row: Row, removed: bool, attained: bool) -> Pair | None:
  epsilon = float(RANDOMIZED_RESPONSE.max_loss(np.array([row]))[0])
  return (
    pairs.randomized_response(row[0], row[1], epsilon) if epsilon <= pairs.LARGEST_LOSS else None
  )


RANDOMIZED_RESPONSE = Family(
  "randomized response",  # (noise, number of values)
  _response_rdp,
  lambda parameters: closed_forms.response_epsilon(parameters[:, 0], parameters[:, 1]),
  loss=_response_loss,
  is_free=lambda row: row[0] == 1,
  is_symmetric=base.always_symmetric,
  may_hide=True,
  exported=lambda row, relation, dp: _response_exported("randomized response", row, relation, dp),
)


def _null_loss(row: Row, removed: bool, attained: bool) -> Pair | None:
  epsilon = NULL_RESPONSE.max_loss(np.array([row]))[0]
  return pairs.null_response(*row, removed=removed) if epsilon <= pairs.LARGEST_LOSS else None


def _null_exported(row: Row, relation: Relation, dp: Any) -> Any:
  if relation is Relation.ZERO_OUT:
    return dp.RandomizedResponseDpEvent(row[0], int(row[1]))
  return _response_exported("randomized response of a null record", row, relation, dp)


NULL_RESPONSE = Family(
  "randomized response of a null record",  # rows as RANDOMIZED_RESPONSE; against a uniform answer
  # A uniform answer mixes those of all values, so two values have no smaller divergence.
  _response_rdp,
  lambda parameters: closed_forms.null_response_epsilon(parameters[:, 0], parameters[:, 1]),
  loss=_null_loss,
  is_free=lambda row: row[0] == 1,
  may_hide=True,
  exported=_null_exported,
)


def _pure_exported(row: Row, relation: Relation, dp: Any) -> Any:
  if row[0] == math.inf:
    return dp.NonPrivateDpEvent()
  noise = 2 * scipy.special.expit(-row[0])
  return _response_exported("pure differential privacy", (noise, 2.0), relation, dp)


PURE = Family(
  "pure differential privacy",  # (epsilon,)
  lambda parameters, orders: closed_forms.pure(parameters[:, 0], orders),
  lambda parameters: parameters[:, 0],
  lambda row: row[0],
  loss=lambda row, removed, attained: pairs.pure(*row) if row[0] <= pairs.LARGEST_LOSS else None,
  is_free=base.starts_with_zero,
  is_symmetric=base.always_symmetric,
  may_hide=True,
  exported=_pure_exported,
)
NON_PRIVATE = Family(
  "no privacy",  # ()
  lambda parameters, orders: np.full((len(parameters), len(orders)), math.inf),
  severity=lambda row: 0.0,
  is_symmetric=base.always_symmetric,
  exposed=lambda row: 1.0,
  hides_nothing=True,
  is_published=True,
  exported=lambda row, relation, dp: dp.NonPrivateDpEvent(),
)


def _of_rho(rho: float, dp: Any) -> Any:
  return dp.ZCDpEvent(rho) if rho < math.inf else dp.NonPrivateDpEvent()


CONCENTRATED = Family(
  "zero-concentrated differential privacy",  # (rho,)
  lambda parameters, orders: closed_forms.concentrated(parameters[:, 0], orders),
  severity=lambda row: row[0],
  is_free=base.starts_with_zero,
  is_symmetric=base.always_symmetric,
  exported=lambda row, relation, dp: _of_rho(row[0], dp),
)


def _rho(row: Row) -> float:
  """The rho of zero-concentrated differential privacy of a discrete Gaussian sum."""
  l2, l1, stddev, shares, dim, _ = row
  most = 2.0**60  # beyond 2^53 rho is infinite
  return discrete_gaussian_rho(l2, l1, stddev, int(min(shares, most)), int(min(dim, most)))


@functools.lru_cache(maxsize=128)
def _integer_charge(noise: Callable[..., IntegerNoise], row: Row, attained: bool) -> Charge | None:
  """What a release is composed of whose row is that of a function of `integer_noise`."""
  found = noise(*row)
  return integer_noise.attained(found) if attained else integer_noise.dominating(found)


# rho is at least 1 / (2 z^2), so that the cut of these pairs is at least that of the noise.
_BY_RHO = dataclasses.replace(
  CONCENTRATED,
  name="discrete Gaussian by its divergences",  # (rho,)
  cut=lambda row: gaussian_cut(1 / math.sqrt(2 * row[0]) if row[0] else math.inf),
)
DISCRETE_GAUSSIAN = Family(
  "discrete Gaussian",  # (L2 distance, L1 distance, stddev of a share, shares, dimensions, units)
  lambda parameters, orders: closed_forms.concentrated(
    np.array([_rho(row) for row in parameters.tolist()]), orders
  ),
  ordered=lambda row: DominatingPair(_BY_RHO, (_rho(row),)),
  charge=functools.partial(_integer_charge, integer_noise.discrete_gaussian),
  is_free=base.starts_with_zero,
  is_symmetric=base.always_symmetric,
  cut=lambda row: gaussian_cut(row[2] * math.sqrt(row[3]) / row[0] if row[0] else math.inf),
  exported=lambda row, relation, dp: _of_rho(_rho(row), dp),
)


SKELLAM = Family(
  "Skellam",  # (L2 distance, L1 distance, variance, units): of a record, in a distance
  lambda parameters, orders: skellam_rdp(
    parameters[:, 0], parameters[:, 1], parameters[:, 2], orders
  ),
  charge=functools.partial(_integer_charge, integer_noise.skellam),
  is_free=base.starts_with_zero,
  is_symmetric=base.always_symmetric,
  cut=lambda row: gaussian_cut(math.sqrt(row[2]) / row[0] if row[0] else math.inf),
)
