"""The registry of local mechanisms, which conformance, estimators, audits and binaries all use.

A mechanism that is registered is audited. Code outside the package registers its own with
`register`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp.accounting.analytic_gaussian import gaussian_noise_multiplier
from jdp.mechanisms.additive import gaussian, l2_laplace, laplace
from jdp.mechanisms.base import LocalMechanism, Report
from jdp.mechanisms.grid import on_grid
from jdp.mechanisms.hemisphere_sampling import hemisphere
from jdp.mechanisms.priv_unit_gaussian import priv_unit_g
from jdp.mechanisms.priv_unit_index import compressed_priv_unit
from jdp.mechanisms.priv_unit_infinity import priv_unit_linf
from jdp.mechanisms.priv_unit_l2 import priv_unit
from jdp.mechanisms.proj_units import fast_proj_unit, proj_unit
from jdp.mechanisms.scalar_dp_grids import scalar_dp, scalar_rel_dp
from jdp.mechanisms.separated_product import SeparatedReport, separated
from jdp.numerics import vectors

Statistics = Callable[[LocalMechanism, np.ndarray], Mapping[str, Callable[[Report], jax.Array]]]


class Setting(NamedTuple):
  """What a mechanism is made for.

  Attributes:
    dim: the dimension d of vectors. It means nothing for scalars.
    epsilon: the privacy loss of one release.
    num_projections: k of the mechanisms that report k numbers. It means nothing for others.
    max_coordinate: a public bound on the values' coordinates.
    delta: the delta of the mechanisms that are not pure.
    public_key: for what all clients share. It may be traced. None stands for a fixed key.
  """

  dim: int
  epsilon: float
  num_projections: int = 2
  max_coordinate: float = 1.0
  delta: float = 1e-6
  public_key: jax.Array | None = None

  @property
  def shared_key(self) -> jax.Array:
    """The public key, or the fixed one."""
    return jax.random.key(0) if self.public_key is None else self.public_key


class RegisteredMechanism(NamedTuple):
  """A mechanism as the registry holds it; see `register`."""

  make: Callable[[Setting], LocalMechanism]
  factory: Callable[..., LocalMechanism]
  radius: Callable[[Setting], float]
  smallest_dim: int
  statistics: Statistics
  estimates_directions: bool
  projects: bool
  shares_projection: bool
  exact: bool


_MECHANISMS: dict[str, RegisteredMechanism] = {}


def register(
  name: str,
  make: Callable[[Setting], LocalMechanism],
  *,
  factory: Callable[..., LocalMechanism] | None = None,
  radius: Callable[[Setting], float] = lambda setting: 1.0,
  smallest_dim: int = 2,
  statistics: Statistics = lambda mechanism, difference: {},
  estimates_directions: bool = False,
  projects: bool = False,
  shares_projection: bool = False,
  exact: bool = True,
) -> None:
  """Makes a local mechanism known to conformance, estimators, audits and binaries.

  Its epsilon is audited with the low-order bits of its reports: dither float noise
  (`jdp.numerics.dither`).

  Args:
    name: what binaries call it.
    make: setting -> mechanism that states `setting.epsilon`.
    factory: the public function that `make` calls. A factory that no entry names is not
      audited. Default: `make`.
    radius: setting -> the largest norm of the values that the mechanism does not clip. The norm is
      the mechanism's own.
    smallest_dim: the least dimension that `make` takes. Audits are sharpest there.
    statistics: (mechanism, difference of two inputs) -> {name: report -> scalar}. Further
      statistics that tell its reports on the two inputs apart.
    estimates_directions: whether it estimates L2 unit vectors of any dimension without bias.
    projects: whether it reports `num_projections` numbers.
    shares_projection: whether all clients have one projection, whose error does not average out.
    exact: whether the mechanism states its error exactly. False means an upper bound.

  Raises:
    ValueError: if the name is taken.

  >>> from jdp.mechanisms import registry
  >>> registry.register("priv_unit", lambda setting: priv_unit(setting.dim, setting.epsilon))
  Traceback (most recent call last):
  ...
  ValueError: Expected a name that no mechanism has, got 'priv_unit'; choose another.
  """
  if name in _MECHANISMS:
    raise ValueError(f"Expected a name that no mechanism has, got {name!r}; choose another.")
  _MECHANISMS[name] = RegisteredMechanism(
    make, factory or make, radius, smallest_dim, statistics,
    estimates_directions, projects, shares_projection, exact,
  )  # fmt: skip


def registered() -> dict[str, RegisteredMechanism]:
  """All registered mechanisms by name, in the order of their registration.

  >>> mechanism = registered()["priv_unit"].make(Setting(dim=100, epsilon=4.0))
  >>> mechanism.shape, round(mechanism.guarantee.epsilon, 6)
  ((100,), 4.0)
  """
  return dict(_MECHANISMS)


def _scaled_priv_unit_linf(setting: Setting) -> LocalMechanism:
  """PrivUnit-infinity on values scaled up from a cube of half-width `max_coordinate`."""
  mechanism = priv_unit_linf(setting.dim, setting.epsilon)
  factor = np.float32(1 / setting.max_coordinate)

  def scaled(value: jax.Array) -> jax.Array:
    return jnp.asarray(value, jnp.float32) * factor

  return mechanism._replace(
    encode=lambda key, value: mechanism.encode(key, scaled(value)),
    decode=lambda report: mechanism.decode(report) / factor,
    privatize=lambda key, value: mechanism.privatize(key, scaled(value)) / factor,
    max_norm=mechanism.max_norm / float(factor),
    mean_squared_error=lambda norm: (
      mechanism.mean_squared_error(norm * float(factor)) / float(factor) ** 2
    ),
  )


def _separated(setting: Setting) -> LocalMechanism:
  direction = priv_unit(setting.dim, 0.75 * setting.epsilon)
  return separated(direction, scalar_dp(0.25 * setting.epsilon, 1.0))


def _top_magnitude(
  mechanism: LocalMechanism, difference: np.ndarray
) -> dict[str, Callable[[Report], jax.Array]]:
  """The direction's projection where the magnitude is the largest.

  This joins the likeliest events of both parts.
  """
  top = mechanism.parameters.magnitude.num_levels

  def direction_at_top(report: SeparatedReport) -> jax.Array:
    return jnp.where(report.magnitude == top, jnp.sum(report.direction * difference), -jnp.inf)

  return {"direction at top magnitude": direction_at_top}


def _nearer_end(
  mechanism: LocalMechanism, difference: np.ndarray
) -> dict[str, Callable[[Report], jax.Array]]:
  """How much nearer a report is to one end than to the opposite one.

  That is the log-likelihood ratio of L2-Laplace noise over epsilon / sensitivity.
  """
  del mechanism
  end = difference / 2

  def nearer(report: jax.Array) -> jax.Array:
    return vectors.l2_norm(report + end) - vectors.l2_norm(report - end)

  return {"nearer end": nearer}


def _half_stddev_grid(setting: Setting) -> LocalMechanism:
  mechanism = priv_unit(setting.dim, setting.epsilon)
  # The spacing is half a coordinate's standard deviation.
  spacing = 0.5 * math.sqrt(mechanism.mean_squared_error(1.0) / setting.dim)
  return on_grid(mechanism, spacing, unbiased=True)


def _half_root_mean_square_grid(setting: Setting) -> LocalMechanism:
  mechanism = priv_unit(setting.dim, setting.epsilon)
  # The spacing is half a coordinate's root mean square.
  return on_grid(mechanism, 0.5 * mechanism.max_norm / math.sqrt(setting.dim))


def _gaussian(setting: Setting) -> LocalMechanism:
  stddev = 2 * gaussian_noise_multiplier(setting.epsilon, setting.delta)
  return gaussian(stddev, 2.0, setting.delta, shape=(setting.dim,))


def _laplace(setting: Setting) -> LocalMechanism:
  # A unit vector has an L1 norm of up to sqrt(dim).
  return laplace(setting.epsilon, 2 * math.sqrt(setting.dim), shape=(setting.dim,))


def _l2_laplace(setting: Setting) -> LocalMechanism:
  return l2_laplace(setting.epsilon, 2.0, shape=(setting.dim,))


def _proj_unit(setting: Setting) -> LocalMechanism:
  return proj_unit(setting.dim, setting.epsilon, setting.num_projections)


def _fast_proj_unit(setting: Setting, **shared: jax.Array) -> LocalMechanism:
  return fast_proj_unit(setting.dim, setting.epsilon, setting.num_projections, **shared)


def _compressed_priv_unit(setting: Setting) -> LocalMechanism:
  return compressed_priv_unit(setting.dim, setting.epsilon, table_key=setting.shared_key)


def _scalar_rel_dp(setting: Setting) -> LocalMechanism:
  return scalar_rel_dp(setting.epsilon, 1.0, num_levels=4, min_value=0.1)


def _on_quarter_grid(
  make: Callable[[Setting], LocalMechanism],
) -> Callable[[Setting], LocalMechanism]:
  """Additive noise on a grid of a quarter of its scale."""

  def on_quarter(setting: Setting) -> LocalMechanism:
    mechanism = make(setting)
    return on_grid(mechanism, 0.25 * mechanism.parameters)

  return on_quarter


def _register_own() -> None:
  """The mechanisms of `jdp.mechanisms`."""
  directions: dict[str, Any] = {"estimates_directions": True}
  shared: dict[str, Any] = directions | {"factory": fast_proj_unit, "projects": True}
  grid: dict[str, Any] = {"factory": on_grid, "exact": False}
  scalar: dict[str, Any] = {"smallest_dim": 1}
  l1_ball: dict[str, Any] = {"radius": lambda s: math.sqrt(s.dim), "smallest_dim": 1}
  cube: dict[str, Any] = {"radius": lambda s: s.max_coordinate} | scalar | directions
  register("priv_unit", lambda s: priv_unit(s.dim, s.epsilon), factory=priv_unit, **directions)
  register(
    "priv_unit_g", lambda s: priv_unit_g(s.dim, s.epsilon), factory=priv_unit_g, **directions
  )
  register(
    "compressed_priv_unit", _compressed_priv_unit, factory=compressed_priv_unit, **directions
  )
  register("priv_unit_on_grid", _half_stddev_grid, **grid, **directions)
  register("proj_unit", _proj_unit, factory=proj_unit, projects=True, **directions)
  register("fast_proj_unit", _fast_proj_unit, **shared)
  register("one_rotation", lambda s: _fast_proj_unit(s, rotation_key=s.shared_key), **shared)
  one = shared | {"shares_projection": True}
  register("one_projection", lambda s: _fast_proj_unit(s, projection_key=s.shared_key), **one)
  register("separated", _separated, factory=separated, statistics=_top_magnitude, **directions)
  register("hemisphere", lambda s: hemisphere(s.dim, s.epsilon), factory=hemisphere, **directions)
  # Its error is exact for vertices of the cube, and elsewhere too high by at most 1 of dim / m^2.
  register("priv_unit_linf", _scaled_priv_unit_linf, factory=priv_unit_linf, **cube)
  register("gaussian", _gaussian, factory=gaussian, smallest_dim=1, **directions)
  register(
    "l2_laplace",
    _l2_laplace,
    factory=l2_laplace,
    smallest_dim=1,
    statistics=_nearer_end,
    **directions,
  )
  register("laplace", _laplace, factory=laplace, **l1_ball, **directions)
  register("laplace_scalar", lambda s: laplace(s.epsilon, 2.0), factory=laplace, smallest_dim=1)
  register("on_grid", _half_root_mean_square_grid, **grid)
  register("laplace_on_grid", _on_quarter_grid(_laplace), **grid, **l1_ball)
  register("gaussian_on_grid", _on_quarter_grid(_gaussian), **grid, smallest_dim=1)
  register("scalar_dp", lambda s: scalar_dp(s.epsilon, 1.0), factory=scalar_dp, **scalar)
  register("scalar_rel_dp", _scalar_rel_dp, factory=scalar_rel_dp, **scalar)


_register_own()
