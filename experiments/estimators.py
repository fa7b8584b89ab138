"""Local mechanisms for unit vectors beside each other, each made for the same values.

All take vectors of L2 norm 1. What a mechanism of another norm must allow for, a promise about coordinates may lessen:
values that are known to have none above `Setting.max_coordinate` are scaled up into the cube of `priv_unit_linf`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import mechanisms
from jdp.accounting.analytic_gaussian import gaussian_noise_multiplier
from jdp.mechanisms import LocalMechanism

DELTA = 1e-6


class Setting(NamedTuple):
  """What a mechanism is made for.

  Attributes:
    dim: d.
    epsilon: the privacy loss of one release.
    num_projections: k of the mechanisms that report k numbers; of no meaning for others.
    max_coordinate: a public bound on the values' coordinates.
  """

  dim: int
  epsilon: float
  num_projections: int = 2
  max_coordinate: float = 1.0


class Estimator(NamedTuple):
  """A local mechanism as a way to estimate means.

  Attributes:
    make: (setting, public key for what all clients share) -> mechanism.
    projects: whether it reports `num_projections` numbers.
    shares_projection: whether all clients have one projection, whose error does not average out.
    exact: whether the mechanism states its error exactly, not an upper bound.
  """

  make: Callable[[Setting, jax.Array], LocalMechanism]
  projects: bool = False
  shares_projection: bool = False
  exact: bool = True

  def expected_error(self, mechanism: LocalMechanism, values: np.ndarray) -> float:
    """E||mean of the estimates - mean of the values||^2 by the mechanism's own closed form.

    With a shared projection it holds to leading order in 1/k, for dimensions that are powers of two.

    Args:
      mechanism: made by `make`.
      values: [n, d] unit vectors.
    """
    norms = np.asarray(jax.vmap(mechanism.norm)(jnp.asarray(values)), np.float64)
    alone = float(np.mean([mechanism.mean_squared_error(norm) for norm in norms.tolist()]))
    if not self.shares_projection:
      return alone / len(values)
    floor = 1 / mechanism.parameters.c**2 - 1
    return (alone - floor) / len(values) + floor * float(np.sum(np.mean(values, axis=0, dtype=float) ** 2))


def report_bytes(mechanism: LocalMechanism) -> int:
  """Bytes of the arrays that leave the client."""
  report = jax.eval_shape(mechanism.encode, jax.random.key(0), jax.ShapeDtypeStruct(mechanism.shape, np.float32))
  return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(report))


def _in_cube(setting: Setting, _) -> LocalMechanism:
  mechanism, factor = mechanisms.priv_unit_linf(setting.dim, setting.epsilon), np.float32(1 / setting.max_coordinate)
  return mechanism._replace(
    encode=lambda key, value: mechanism.encode(key, value * factor),
    decode=lambda report: mechanism.decode(report) / factor,
    privatize=lambda key, value: mechanism.privatize(key, value * factor) / factor,
    max_norm=mechanism.max_norm / float(factor),
    mean_squared_error=lambda norm: mechanism.mean_squared_error(norm * float(factor)) / float(factor) ** 2,
  )


def _separated(setting: Setting, _) -> LocalMechanism:
  direction = mechanisms.priv_unit(setting.dim, 0.75 * setting.epsilon)
  return mechanisms.separated(direction, mechanisms.scalar_dp(0.25 * setting.epsilon, 1.0))


def _rounded(setting: Setting, _) -> LocalMechanism:
  mechanism = mechanisms.priv_unit(setting.dim, setting.epsilon)
  spacing = 0.5 * math.sqrt(mechanism.mean_squared_error(1.0) / setting.dim)  # half a coordinate's standard deviation
  return mechanisms.on_grid(mechanism, spacing, unbiased=True)


def _gaussian(setting: Setting, _) -> LocalMechanism:
  stddev = 2 * gaussian_noise_multiplier(setting.epsilon, DELTA)
  return mechanisms.gaussian(stddev, 2.0, DELTA, shape=(setting.dim,))


def _fast_proj_unit(setting: Setting, **shared: jax.Array) -> LocalMechanism:
  return mechanisms.fast_proj_unit(setting.dim, setting.epsilon, setting.num_projections, **shared)


ESTIMATORS = {
  "priv_unit": Estimator(lambda s, _: mechanisms.priv_unit(s.dim, s.epsilon)),
  "priv_unit_g": Estimator(lambda s, _: mechanisms.priv_unit_g(s.dim, s.epsilon)),
  "priv_unit_on_grid": Estimator(_rounded, exact=False),
  "proj_unit": Estimator(lambda s, _: mechanisms.proj_unit(s.dim, s.epsilon, s.num_projections), projects=True),
  "fast_proj_unit": Estimator(lambda s, _: _fast_proj_unit(s), projects=True),
  "one_rotation": Estimator(lambda s, key: _fast_proj_unit(s, rotation_key=key), projects=True),
  "one_projection": Estimator(
    lambda s, key: _fast_proj_unit(s, projection_key=key), projects=True, shares_projection=True
  ),
  "separated": Estimator(_separated),
  "hemisphere": Estimator(lambda s, _: mechanisms.hemisphere(s.dim, s.epsilon)),
  # Exact for vertices of the cube; elsewhere too high by at most 1 of dim / m^2.
  "priv_unit_linf": Estimator(_in_cube),
  "gaussian": Estimator(_gaussian),
  "l2_laplace": Estimator(lambda s, _: mechanisms.l2_laplace(s.epsilon, 2.0, shape=(s.dim,))),
  # A unit vector has an L1 norm of up to sqrt(dim).
  "laplace": Estimator(lambda s, _: mechanisms.laplace(s.epsilon, 2 * math.sqrt(s.dim), shape=(s.dim,))),
}
