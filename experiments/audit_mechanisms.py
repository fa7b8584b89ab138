"""The local mechanisms that are audited, and broken ones that an audit must find out."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from jdp import accounting, mechanisms, random
from jdp.accounting.cap import optimal_cap
from jdp.mechanisms import LocalMechanism

GAUSSIAN_DELTA = 0.01  # events of this probability are seen often enough
_QUIET = 0.75
_Make = Callable[[float, int], LocalMechanism]


class Broken(NamedTuple):
  """A mechanism that states less than it costs.

  Attributes:
    make: (the epsilon that it states, dimension of vectors) -> mechanism.
    radius: of the two inputs that tell: above 1 they lie outside the domain.
  """

  make: _Make
  radius: float = 1.0


def _gaussian(epsilon: float, dim: int) -> LocalMechanism:
  stddev = 2 * accounting.gaussian_noise_multiplier(epsilon, GAUSSIAN_DELTA)
  return mechanisms.gaussian(stddev, 2.0, GAUSSIAN_DELTA, shape=(dim,))


def _on_grid(epsilon: float, dim: int) -> LocalMechanism:
  mechanism = mechanisms.priv_unit(dim, epsilon)
  return mechanisms.on_grid(mechanism, 0.5 * mechanism.max_norm / math.sqrt(dim))  # half a coordinate's noise


def _separated(epsilon: float, dim: int) -> LocalMechanism:
  return mechanisms.separated(mechanisms.priv_unit(dim, epsilon / 2), mechanisms.scalar_dp(epsilon / 2, 1.0))


MECHANISMS: dict[str, _Make] = {  # (epsilon, dimension of vectors) -> mechanism
  "priv_unit": lambda epsilon, dim: mechanisms.priv_unit(dim, epsilon),
  "priv_unit_g": lambda epsilon, dim: mechanisms.priv_unit_g(dim, epsilon),
  "priv_unit_linf": lambda epsilon, dim: mechanisms.priv_unit_linf(dim, epsilon),
  "hemisphere": lambda epsilon, dim: mechanisms.hemisphere(dim, epsilon),
  "proj_unit": lambda epsilon, dim: mechanisms.proj_unit(dim, epsilon, dim // 2),
  "fast_proj_unit": lambda epsilon, dim: mechanisms.fast_proj_unit(dim, epsilon, dim // 2),
  "on_grid": _on_grid,
  "separated": _separated,
  "scalar_dp": lambda epsilon, dim: mechanisms.scalar_dp(epsilon, 1.0),
  "scalar_rel_dp": lambda epsilon, dim: mechanisms.scalar_rel_dp(epsilon, 1.0, num_levels=4, min_value=0.1),
  "laplace": lambda epsilon, dim: mechanisms.laplace(epsilon, 2.0),
  "laplace_vector": lambda epsilon, dim: mechanisms.laplace(epsilon, 2.0, shape=(dim,)),
  "l2_laplace": lambda epsilon, dim: mechanisms.l2_laplace(epsilon, 2.0, shape=(dim,)),
  "gaussian": _gaussian,
}


def _high_cap(epsilon: float, dim: int) -> LocalMechanism:
  stated = mechanisms.priv_unit(dim, epsilon)
  cap = optimal_cap(dim, epsilon)
  # An epsilon that the factory lets pass, for the probability of the right cap on a smaller one.
  made = mechanisms.priv_unit(dim, 2 * epsilon + 1, gamma=1.1 * cap.gamma, p=cap.p)
  return made._replace(guarantee=stated.guarantee)


def _quiet_laplace(epsilon: float, dim: int) -> LocalMechanism:
  del dim
  return mechanisms.laplace(epsilon / _QUIET, 2.0)._replace(guarantee=mechanisms.laplace(epsilon, 2.0).guarantee)


def _quiet_gaussian(epsilon: float, dim: int) -> LocalMechanism:
  stated = _gaussian(epsilon, dim)
  made = mechanisms.gaussian(_QUIET * stated.parameters, 2.0, GAUSSIAN_DELTA, shape=(dim,))
  return made._replace(guarantee=stated.guarantee)


def _clipped_late(epsilon: float, dim: int) -> LocalMechanism:
  del dim
  stated = mechanisms.laplace(epsilon, 2.0)

  def encode(key, value):
    return jnp.clip(value + 2 / epsilon * random.laplace(key, value.shape), -1.0, 1.0)

  return stated._replace(encode=encode, privatize=encode)


BROKEN: dict[str, Broken] = {
  "priv_unit, gamma 10 % too high": Broken(_high_cap),
  "laplace, a quarter of the noise missing": Broken(_quiet_laplace),
  "gaussian, a quarter of the noise missing": Broken(_quiet_gaussian),
  "laplace, clipped after the noise": Broken(_clipped_late, radius=10.0),
}
