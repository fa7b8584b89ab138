"""Privacy loss distributions, by the package dp_accounting, of the kinds of loss that have one."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jdp.accounting.composition import Composition
from jdp.accounting.pair_families import (
  GAUSSIAN,
  LAPLACE,
  NON_PRIVATE,
  PURE,
  RANDOMIZED_RESPONSE,
  PairFamily,
)
from jdp.accounting.profiles import PrivacyProfile, names_of, rdp_profile
from jdp.accounting.renyi.closed_forms import response_epsilon
from jdp.accounting.renyi.poisson_gaussian import log_mixture

_INTERVAL = 1e-4
_LARGEST = 700.0  # the largest loss whose exponential the package can take
# Of a single loss's grid, for each of which the package takes 10 microseconds and some 500 bytes;
# of a composition's.
_MOST_SINGLE, _MOST_POINTS = 2**19, 2**21
_MOST_ROUNDS = 10**6  # the package counts them one by one
_TAIL = 10.0  # standard deviations of noise outside of which the package moves the mass to infinity
_LOG_TRUNCATED = 35.2  # log of twice the reciprocal of the mass that a composition moves there


def pld_profile(composed: Composition) -> PrivacyProfile:
  """Privacy loss distributions on a grid of 1e-4, rounded pessimistically; Renyi divergences where
  it is too large.

  Too large is a grid of losses that spread over more than 50 (of a noise multiplier below about
  0.3), or over more than 200 together; more than a million equal rounds are too many as well.

  Raises:
    ValueError: if a kind of loss has no distribution: fixed-size samples, concentrated releases.
    ImportError: if dp_accounting is not installed.
  """
  if others := composed.groups.keys() - {*_DISTRIBUTIONS, NON_PRIVATE}:
    known = names_of(_DISTRIBUTIONS)
    raise ValueError(
      f"Expected losses with a distribution for accountant='pld' ({known}), got "
      f"{names_of(others)}; pass accountant='rdp'."
    )
  try:
    from dp_accounting import pld
  except ImportError as error:
    raise ImportError(
      "Expected the package dp_accounting for accountant='pld'; pip install 'jdp[pld]'."
    ) from error
  package = pld.privacy_loss_distribution
  merged = _merged_pairs(composed)
  if any(_is_unbounded(kind, parameters) for kind, parameters, _ in merged):
    return PrivacyProfile(lambda delta: math.inf if delta < 1 else 0.0, lambda epsilon: 1.0)
  if not _fits(merged):
    return rdp_profile(composed)
  total = package.identity(value_discretization_interval=_INTERVAL)
  for kind, parameters, count in merged:
    distribution = _DISTRIBUTIONS[kind](package, *parameters)
    total = total.compose(distribution.self_compose(count) if count > 1 else distribution)
  return PrivacyProfile(total.get_epsilon_for_delta, total.get_delta_for_epsilon)


def _merged_pairs(composed: Composition) -> list[tuple[PairFamily, tuple[float, ...], int]]:
  """The losses that cost something; all Gaussians without sampling are one."""
  items, precision = [], 0.0
  for kind, (parameters, counts) in composed.groups.items():
    for row, count in zip(parameters.tolist(), counts.astype(int).tolist(), strict=True):
      if kind is GAUSSIAN and row[0] == 1 and row[1] > 0:
        precision += count / row[1] / row[1]
      elif not _is_free(kind, row):
        items.append((kind, tuple(row), count))
  return [*items, (GAUSSIAN, (1.0, precision**-0.5), 1)] if precision else items


def _fits(merged: list[tuple[PairFamily, tuple[float, ...], int]]) -> bool:
  """Whether the package has time and memory for the grids."""
  single = max((_single_width(kind, parameters) for kind, parameters, _ in merged), default=0.0)
  if (
    not single <= _INTERVAL * _MOST_SINGLE
    or max((count for *_, count in merged), default=0) > _MOST_ROUNDS
  ):
    return False
  return sum(_width(*item) for item in merged) <= _INTERVAL * _MOST_POINTS


def _width(kind: PairFamily, parameters: tuple[float, ...], count: int) -> float:
  """About how wide the composition's grid becomes, in units of the loss.

  For a single loss's grid of width w, the package bounds the mass outside by Chernoff's inequality
  at the orders +-k / w, k = 1..20. That is about from -35 w / k to D count + 35 w / k, with D the
  divergence of order 1 + k / w, and some more for the rounding to the grid.
  """
  single = max(_single_width(kind, parameters), 2 * _INTERVAL)
  if count == 1:
    return single
  orders = 1 + np.arange(1.0, 21.0) / single
  divergence = kind.rdp(np.array([parameters]), orders)[0]
  rounded = divergence + _INTERVAL * np.sqrt(divergence)
  composed = float(np.min(count * rounded + 2 * _LOG_TRUNCATED / (orders - 1)))
  return max(single, min(count * single, composed))


def _single_width(kind: PairFamily, parameters: tuple[float, ...]) -> float:
  """The width of a single loss's grid."""
  if kind is not GAUSSIAN:
    return 2 * float(kind.max_loss(np.array([parameters]))[0])
  q, z = parameters
  farthest = np.array([1, -1]) * (_TAIL + 0.5 / z) / z
  return 2 * _TAIL / z if q == 1 else float(np.subtract(*log_mixture(q, farthest)))


def _is_free(kind: PairFamily, parameters: Sequence[float]) -> bool:
  if kind is RANDOMIZED_RESPONSE:
    return parameters[0] == 1
  return kind is not NON_PRIVATE and parameters[0] == 0


def _is_unbounded(kind: PairFamily, parameters: tuple[float, ...]) -> bool:
  if kind is GAUSSIAN:
    return parameters[1] == 0
  if kind is RANDOMIZED_RESPONSE:
    return not response_epsilon(*np.array(parameters)) <= _LARGEST
  return kind is NON_PRIVATE or parameters[0] > _LARGEST


def _gaussian(package: Any, q: float, z: float) -> Any:
  return package.from_gaussian_mechanism(
    z, value_discretization_interval=_INTERVAL, sampling_prob=q
  )


def _laplace(package: Any, epsilon: float) -> Any:
  return package.from_laplace_mechanism(1 / epsilon, value_discretization_interval=_INTERVAL)


def _randomized_response(package: Any, noise: float, num_values: float) -> Any:
  return package.from_randomized_response(
    noise, int(num_values), value_discretization_interval=_INTERVAL
  )


def _pure(package: Any, epsilon: float) -> Any:
  parameters = package.common.DifferentialPrivacyParameters(epsilon, 0.0)
  return package.from_privacy_parameters(parameters, value_discretization_interval=_INTERVAL)


_DISTRIBUTIONS: dict[PairFamily, Callable[..., Any]] = {
  GAUSSIAN: _gaussian,
  LAPLACE: _laplace,
  RANDOMIZED_RESPONSE: _randomized_response,
  PURE: _pure,
}
