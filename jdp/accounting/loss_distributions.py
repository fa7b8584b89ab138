"""Privacy loss distributions, by the package dp_accounting, of the kinds of loss that have one."""

import math
from collections.abc import Callable
from typing import Any

from jdp.accounting.loss_kinds import GAUSSIAN, LAPLACE, NON_PRIVATE, PURE, RANDOMIZED_RESPONSE, LossKind
from jdp.accounting.losses import Losses
from jdp.accounting.profiles import Profile, names_of

_INTERVAL = 1e-4
_LARGEST = 700.0  # the largest loss whose exponential the package can take


def pld_profile(composed: Losses) -> Profile:
  """Privacy loss distributions on a grid of 1e-4, rounded pessimistically.

  Raises:
    ValueError: if a kind of loss has no distribution: fixed-size samples, concentrated releases.
    ImportError: if dp_accounting is not installed.
  """
  if others := composed.groups.keys() - {*_DISTRIBUTIONS, NON_PRIVATE}:
    known = names_of(_DISTRIBUTIONS)
    raise ValueError(
      f"Expected losses with a distribution for accountant='pld' ({known}), got {names_of(others)}; "
      "pass accountant='rdp'."
    )
  try:
    from dp_accounting import pld
  except ImportError as error:
    raise ImportError("Expected the package dp_accounting for accountant='pld'; pip install 'jdp[pld]'.") from error
  package = pld.privacy_loss_distribution
  total = package.identity(value_discretization_interval=_INTERVAL)
  for kind, parameters, count in _merged(composed):
    if _is_unbounded(kind, parameters):
      return Profile(lambda delta: math.inf if delta < 1 else 0.0, lambda epsilon: 1.0)
    distribution = _DISTRIBUTIONS[kind](package, *parameters)
    total = total.compose(distribution.self_compose(count) if count > 1 else distribution)
  return Profile(total.get_epsilon_for_delta, total.get_delta_for_epsilon)


def _merged(composed: Losses) -> list[tuple[LossKind, tuple[float, ...], int]]:
  """The losses that cost something; all Gaussians without sampling are one."""
  items, precision = [], 0.0
  for kind, (parameters, counts) in composed.groups.items():
    for row, count in zip(parameters.tolist(), counts.astype(int).tolist(), strict=True):
      if kind is GAUSSIAN and row[0] == 1 and row[1] > 0:
        precision += count / row[1] ** 2
      elif not _is_free(kind, row):
        items.append((kind, tuple(row), count))
  return [*items, (GAUSSIAN, (1.0, precision**-0.5), 1)] if precision else items


def _is_free(kind, parameters):
  if kind is RANDOMIZED_RESPONSE:
    return parameters[0] == 1
  return kind is not NON_PRIVATE and parameters[0] == 0


def _is_unbounded(kind, parameters):
  if kind is GAUSSIAN:
    return parameters[1] == 0
  if kind is RANDOMIZED_RESPONSE:
    return parameters[0] == 0
  return kind is NON_PRIVATE or parameters[0] > _LARGEST


def _gaussian(package, q, z):
  return package.from_gaussian_mechanism(z, value_discretization_interval=_INTERVAL, sampling_prob=q)


def _laplace(package, epsilon):
  return package.from_laplace_mechanism(1 / epsilon, value_discretization_interval=_INTERVAL)


def _randomized_response(package, noise, num_values):
  return package.from_randomized_response(noise, int(num_values), value_discretization_interval=_INTERVAL)


def _pure(package, epsilon):
  parameters = package.common.DifferentialPrivacyParameters(epsilon, 0.0)
  return package.from_privacy_parameters(parameters, value_discretization_interval=_INTERVAL)


_DISTRIBUTIONS: dict[LossKind, Callable[..., Any]] = {
  GAUSSIAN: _gaussian,
  LAPLACE: _laplace,
  RANDOMIZED_RESPONSE: _randomized_response,
  PURE: _pure,
}
