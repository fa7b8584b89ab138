"""Broken mechanisms, which an audit must refute."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from jdp import mechanisms, random
from jdp.accounting.local.priv_unit import optimal_cap
from jdp.mechanisms import LocalMechanism, registry

GAUSSIAN_DELTA = 0.1  # Large, so that a sample contains many events of this probability.
_NOISE_KEPT = 0.75
_Make = Callable[[float, int], LocalMechanism]


class Broken(NamedTuple):
  """A mechanism that costs more than it states.

  Attributes:
    make: (stated epsilon, dimension of vectors) -> mechanism.
    radius: the norm of the two inputs to tell apart. Above 1 they lie outside the domain.
  """

  make: _Make
  radius: float = 1.0


def _high_cap(epsilon: float, dim: int) -> LocalMechanism:
  stated = mechanisms.priv_unit(dim, epsilon)
  cap = optimal_cap(dim, epsilon)
  # The factory checks gamma and p against its epsilon. A larger epsilon lets them pass: the right
  # cap's probability p, on a smaller cap.
  made = mechanisms.priv_unit(dim, 2 * epsilon + 1, gamma=1.1 * cap.gamma, p=cap.p)
  return made._replace(guarantee=stated.guarantee)


def _quiet_laplace(epsilon: float, dim: int) -> LocalMechanism:
  del dim
  return mechanisms.laplace(epsilon / _NOISE_KEPT, 2.0)._replace(
    guarantee=mechanisms.laplace(epsilon, 2.0).guarantee
  )


def _quiet_gaussian(epsilon: float, dim: int) -> LocalMechanism:
  stated = registry.registered()["gaussian"].make(
    registry.Setting(dim, epsilon, delta=GAUSSIAN_DELTA)
  )
  # The registered mechanism's parameters are its standard deviation.
  made = mechanisms.gaussian(_NOISE_KEPT * stated.parameters, 2.0, GAUSSIAN_DELTA, shape=(dim,))
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
