"""Compares local mechanisms: bytes of a report, error and time.

Run it as `python -m experiments.benchmarks.mechanisms`. The error is the mean squared error of the
release of a unit vector or a number. The time is a ratio of rates to drawing as many normal numbers
(`jdp.random.normal`): 0.5 takes twice as long for each coordinate.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from absl import app, flags

import jdp.random
from experiments.benchmarks import harness
from jdp import mechanisms
from jdp.accounting.analytic_gaussian import gaussian_noise_multiplier
from jdp.accounting.local.scalar_dp import best_num_relative_levels

EPSILON = flags.DEFINE_float("epsilon", 8.0, "Privacy loss of one release.", lower_bound=0.01)
DIMS = flags.DEFINE_multi_integer("dim", [1_000, 10_000, 100_000], "Coordinates of a vector.")
VALUES = flags.DEFINE_integer(
  "values", 1_000_000, "Coordinates, or numbers, released in one run.", lower_bound=1
)

_DELTA = 1e-6
# k of fast_proj_unit. proj_unit has a smaller k: for each value it factors a matrix of k times dim.
_PROJECTIONS = 1024


def _gaussian(dim: int, epsilon: float) -> mechanisms.LocalMechanism:
  return mechanisms.gaussian(
    2 * gaussian_noise_multiplier(epsilon, _DELTA), 2.0, _DELTA, shape=(dim,)
  )


def _on_grid(dim: int, epsilon: float) -> mechanisms.LocalMechanism:
  mechanism = mechanisms.priv_unit(dim, epsilon)
  # The spacing of the grid is half the noise on a coordinate.
  return mechanisms.on_grid(mechanism, 0.5 * mechanism.max_norm / math.sqrt(dim))


def _separated(dim: int, epsilon: float) -> mechanisms.LocalMechanism:
  return mechanisms.separated(
    mechanisms.priv_unit(dim, 0.75 * epsilon), mechanisms.scalar_dp(0.25 * epsilon, 1.0)
  )


def _scalar_rel_dp(epsilon: float) -> mechanisms.LocalMechanism:
  levels = best_num_relative_levels(epsilon, 1.0, 0.1)
  return mechanisms.scalar_rel_dp(epsilon, 1.0, num_levels=levels, min_value=0.1)


# (dim, epsilon) -> mechanism on vectors of norm at most 1, in the mechanism's own norm: L-infinity,
# L1 or L2.
VECTORS: dict[str, Callable[[int, float], mechanisms.LocalMechanism]] = {
  "priv_unit": mechanisms.priv_unit,
  "priv_unit_g": mechanisms.priv_unit_g,
  "proj_unit, k = 64": lambda dim, epsilon: mechanisms.proj_unit(dim, epsilon, 64),
  "fast_proj_unit": lambda dim, epsilon: mechanisms.fast_proj_unit(
    dim, epsilon, min(_PROJECTIONS, dim)
  ),
  "priv_unit_linf": mechanisms.priv_unit_linf,
  "separated": _separated,
  "on_grid": _on_grid,
  "hemisphere": mechanisms.hemisphere,
  "laplace": lambda dim, epsilon: mechanisms.laplace(epsilon, 2.0, shape=(dim,)),
  "l2_laplace": lambda dim, epsilon: mechanisms.l2_laplace(epsilon, 2.0, shape=(dim,)),
  "gaussian, delta 1e-6": _gaussian,
}
# epsilon -> mechanism on numbers in [0, 1], or with additive noise in [-1, 1].
SCALARS: dict[str, Callable[[float], mechanisms.LocalMechanism]] = {
  "scalar_dp": lambda epsilon: mechanisms.scalar_dp(epsilon, 1.0),
  "scalar_rel_dp": _scalar_rel_dp,
  "laplace": lambda epsilon: mechanisms.laplace(epsilon, 2.0),
}


def _case(mechanism: mechanisms.LocalMechanism, count: int) -> harness.Case:
  value = jnp.ones(mechanism.shape)
  value = value / mechanism.norm(value)
  release = jax.jit(jax.vmap(mechanism.privatize, (0, None)))
  keys = jax.random.split(jax.random.key(0), count)
  return harness.Case(lambda: release(keys, value), count * value.size)


def _label(name: str, mechanism: mechanisms.LocalMechanism) -> str:
  report = jax.eval_shape(mechanism.encode, jax.random.key(0), jnp.zeros(mechanism.shape))
  size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(report))
  return f"{name:<20} {size:>9,} B {mechanism.mean_squared_error(1.0):>11.4g}"


def _compare(title: str, own: dict[str, mechanisms.LocalMechanism], count: int) -> None:
  dim = max(mechanism.shape[0] if mechanism.shape else 1 for mechanism in own.values())
  normal = jax.jit(jax.vmap(lambda key: jdp.random.normal(key, (dim,))))
  keys = jax.random.split(jax.random.key(0), count)
  cases = {"normal numbers": harness.Case(lambda: normal(keys), count * dim)}
  cases |= {_label(name, mechanism): _case(mechanism, count) for name, mechanism in own.items()}
  timings = harness.compare(cases, baseline="normal numbers", rounds=harness.ROUNDS.value)
  title = f"{title}, epsilon = {EPSILON.value}: mechanism, bytes of a report, mean squared error"
  harness.report(title, timings, "numbers", json_path=harness.JSON.value)


def main(argv: Sequence[str]) -> None:
  """Runs the comparison."""
  del argv
  for dim in DIMS.value:
    own = {name: make(dim, EPSILON.value) for name, make in VECTORS.items()}
    _compare(f"Vectors of {dim:,} coordinates", own, max(1, VALUES.value // dim))
  _compare("Numbers", {name: make(EPSILON.value) for name, make in SCALARS.items()}, VALUES.value)


if __name__ == "__main__":
  app.run(main)
