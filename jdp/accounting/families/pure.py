"""Laplace sums, responses, releases of pure differential privacy, and unprotected ones."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from jdp.accounting.families.base import (
  LARGEST_LOSS,
  Family,
  Row,
  always_symmetric,
  starts_with_zero,
  unbounded,
)
from jdp.accounting.float_noise import laplace_cut
from jdp.accounting.renyi import closed_forms
from jdp.guarantees import Relation

if TYPE_CHECKING:
  from jdp.accounting.pld.pairs import Pair


def _laplace_loss(row: Row, removed: bool, attained: bool) -> "Pair | None":
  from jdp.accounting.pld import pairs

  return pairs.laplace(*row) if row[0] <= LARGEST_LOSS else None


LAPLACE = Family(
  "Laplace",  # (sensitivity / scale,)
  lambda parameters, orders: closed_forms.laplace(parameters[:, 0], orders),
  lambda parameters: parameters[:, 0],
  lambda row: row[0],
  loss=_laplace_loss,
  is_free=starts_with_zero,
  is_symmetric=always_symmetric,
  is_sum=True,
  may_hide=True,
  cut=lambda row: laplace_cut(row[0]),
  exported=lambda row, relation, dp: (
    dp.LaplaceDpEvent(1 / row[0]) if row[0] < math.inf else dp.NonPrivateDpEvent()
  ),
)


def _response_exported(name: str, noise: float, values: float, relation: Relation, dp: Any) -> Any:
  """dp_accounting's randomised response means what jdp's does under replace-one only."""
  if relation is not Relation.REPLACE_ONE:
    raise ValueError(
      f"Expected relation replace_one to export {name}, got {relation}; leave that event out."
    )
  return dp.RandomizedResponseDpEvent(float(noise), int(values))


def _response_loss(row: Row, removed: bool, attained: bool) -> "Pair | None":
  from jdp.accounting.pld import pairs

  epsilon = float(closed_forms.response_epsilon(np.array(row[0]), np.array(row[1])))
  return (
    pairs.randomized_response(row[0], row[1], epsilon) if RANDOMIZED_RESPONSE.is_tame(row) else None
  )


def _response_rdp(parameters: np.ndarray, orders: np.ndarray) -> np.ndarray:
  return closed_forms.randomized_response(parameters[:, 0], parameters[:, 1], orders)


RANDOMIZED_RESPONSE = Family(
  "randomized response",  # (noise, number of values)
  _response_rdp,
  lambda parameters: closed_forms.response_epsilon(parameters[:, 0], parameters[:, 1]),
  None,
  loss=_response_loss,
  is_free=lambda row: row[0] == 1,
  is_symmetric=always_symmetric,
  may_hide=True,
  exported=lambda row, relation, dp: _response_exported(
    "randomized response", row[0], row[1], relation, dp
  ),
)


def _null_loss(row: Row, removed: bool, attained: bool) -> "Pair | None":
  from jdp.accounting.pld import pairs

  return pairs.null_response(*row, removed=removed) if NULL_RESPONSE.is_tame(row) else None


def _null_exported(row: Row, relation: Relation, dp: Any) -> Any:
  if relation is Relation.ZERO_OUT:
    return dp.RandomizedResponseDpEvent(row[0], int(row[1]))
  return _response_exported("randomized response of a null record", row[0], row[1], relation, dp)


NULL_RESPONSE = Family(
  "randomized response of a null record",  # as RANDOMIZED_RESPONSE: against a uniform answer
  # A uniform answer mixes those of all values, so two values have no smaller divergence.
  _response_rdp,
  lambda parameters: closed_forms.null_response_epsilon(parameters[:, 0], parameters[:, 1]),
  None,
  loss=_null_loss,
  is_free=lambda row: row[0] == 1,
  may_hide=True,
  exported=_null_exported,
)


def _pure_loss(row: Row, removed: bool, attained: bool) -> "Pair | None":
  from jdp.accounting.pld import pairs

  return pairs.pure(*row) if row[0] <= LARGEST_LOSS else None


def _pure_exported(row: Row, relation: Relation, dp: Any) -> Any:
  if row[0] == math.inf:
    return dp.NonPrivateDpEvent()
  noise = 2 * scipy.special.expit(-row[0])
  return _response_exported("pure differential privacy", noise, 2, relation, dp)


PURE = Family(
  "pure differential privacy",  # (epsilon,)
  lambda parameters, orders: closed_forms.pure(parameters[:, 0], orders),
  lambda parameters: parameters[:, 0],
  lambda row: row[0],
  loss=_pure_loss,
  is_free=starts_with_zero,
  is_symmetric=always_symmetric,
  may_hide=True,
  exported=_pure_exported,
)
NON_PRIVATE = Family(
  "no privacy",  # ()
  lambda parameters, orders: np.full((len(parameters), len(orders)), math.inf),
  unbounded,
  lambda row: 0.0,
  is_symmetric=always_symmetric,
  exposed=lambda row: 1.0,
  hides_nothing=True,
  is_published=True,
  exported=lambda row, relation, dp: dp.NonPrivateDpEvent(),
)
