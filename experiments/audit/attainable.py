"""What the best event could prove of local mechanisms whose output distributions are known."""

from collections.abc import Callable

import numpy as np
import scipy

from jdp.audits.bounds import epsilon_bound
from jdp.audits.channels import (
  attainable_bound,
  binned_channel,
  cap_channel,
  gaussian_cap_channel,
  l2_laplace_channel,
)
from jdp.mechanisms.registry import Setting, registered

_CELLS = np.linspace(-8, 8, 801)  # in standard deviations


def attainable(name: str, setting: Setting, num_samples: int, confidence: float) -> float | None:
  """`attainable_bound` of a registered mechanism on opposite ends; None if it has no channel here.

  Args:
    name: in the registry.
    setting: what it is made for.
    num_samples: reports of each input that measure the event.
    confidence: of the bound.
  """
  if name not in CHANNELS:
    return None
  delta = registered()[name].make(setting).guarantee.delta
  return attainable_bound(CHANNELS[name](setting), num_samples, epsilon_bound(confidence, delta))


def _priv_unit(setting: Setting) -> np.ndarray:
  cap = registered()["priv_unit"].make(setting).parameters
  return cap_channel(setting.dim, cap.gamma, cap.p)


def _priv_unit_g(setting: Setting) -> np.ndarray:
  cap = registered()["priv_unit_g"].make(setting).parameters
  return gaussian_cap_channel(cap.gamma, cap.p)


def _gaussian(setting: Setting) -> np.ndarray:
  stddev = registered()["gaussian"].make(setting).parameters
  return binned_channel([scipy.stats.norm(end, stddev) for end in (1, -1)], stddev * _CELLS)


def _laplace(setting: Setting) -> np.ndarray:
  """The ends differ in one coordinate, in which the noise's scale is their distance / epsilon."""
  return binned_channel([scipy.stats.laplace(end, 1 / setting.epsilon) for end in (0, 1)], [0, 1])


def _l2_laplace(setting: Setting) -> np.ndarray:
  if setting.dim == 1:
    return _laplace(setting)
  return l2_laplace_channel(setting.dim, setting.epsilon)


CHANNELS: dict[str, Callable[[Setting], np.ndarray]] = {
  "priv_unit": _priv_unit,
  "priv_unit_g": _priv_unit_g,
  "gaussian": _gaussian,
  "l2_laplace": _l2_laplace,
  "laplace": _laplace,
  "laplace_scalar": _laplace,
}
