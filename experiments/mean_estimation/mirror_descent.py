"""Averaged mirror descent beside gradient descent, where gradients are bounded in each coordinate.

The loss is ||x - a||^2 / 2 for a vertex a of the cube [-1, 1]^d of each client, with independent
coordinates of mean x*. The server knows its iterate x, so a client releases a alone, by a
mechanism for the cube or for directions, and the gradient x - Z(a) is unbiased.

Let n steps have one length, and begin at 0. Under ||x||_p^2 / 2, with 1/p + 1/q = 1,

    E||average - x*||^2 <= ||x*||_p G sqrt((q - 1) / n)

for the best length, if G^2 bounds the gradients' mean squared q-norm. That is the regret bound of
`jdp.federated.p_norm_descent`, as here <gradient, x - x*> has the mean ||x - x*||^2. G is taken
from the releases alone, which are far larger than the iterates.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from experiments.mean_estimation.options import MeanEstimationOptions
from experiments.runner.estimators import ESTIMATORS
from experiments.runner.files import Row
from experiments.runner.keys import case_key
from experiments.runner.reports.statistics import mean_interval
from jdp.federated import p_norm_descent
from jdp.mechanisms import LocalMechanism
from jdp.mechanisms.registry import Setting

_LARGE = 4  # entries of the sparse optimum that are not 0


def _euclidean(dim: int) -> float:
  del dim
  return 2.0


def _logarithmic(dim: int) -> float:
  return max(2.0, 2 * math.log(dim))


class Method(NamedTuple):
  """How clients release vertices, and how the server descends.

  Attributes:
    mechanism: a name in `ESTIMATORS`. All releases have coordinates of one size, or one L2 norm.
    order: d -> q of the dual norm; 2 is gradient descent.
  """

  mechanism: str
  order: Callable[[int], float]


METHODS = {
  "PrivUnit, gradient descent": Method("priv_unit", _euclidean),
  "PrivUnit-infinity, gradient descent": Method("priv_unit_linf", _euclidean),
  "PrivUnit-infinity, mirror descent": Method("priv_unit_linf", _logarithmic),
}
OPTIMA = ("sparse", "dense")


class MirrorCase(NamedTuple):
  """One measurement: a name in `METHODS`, where the optimum lies, and the releases' parameters."""

  method: str
  optimum: str
  dim: int
  epsilon: float


def optimum(kind: str, dim: int) -> np.ndarray:
  """x*, of L2 norm 1: with four entries of 1/2, or with d entries of one size; signs alternate.

  >>> optimum("sparse", 6).tolist()
  [0.5, -0.5, 0.5, -0.5, 0.0, 0.0]
  """
  count = min(_LARGE, dim) if kind == "sparse" else dim
  found = np.zeros(dim)
  found[:count] = (-1.0) ** np.arange(count) / math.sqrt(count)
  return found


def bound(case: MirrorCase, mechanism: LocalMechanism, steps: int) -> tuple[float, float]:
  """(best step length, bound on E||average - x*||^2) of so many steps.

  Args:
    case: what is measured.
    mechanism: of the case, for vertices scaled to unit vectors.
    steps: n.
  """
  q = METHODS[case.method].order(case.dim)
  # All releases have one L2 norm, and where q > 2 all coordinates one size.
  squared = case.dim * (1 + mechanism.mean_squared_error(1.0))
  largest = math.sqrt(squared) * case.dim ** (1 / q - 1 / 2)
  size = float(np.linalg.norm(optimum(case.optimum, case.dim), q / (q - 1)))
  return size / (largest * math.sqrt((q - 1) * steps)), size * largest * math.sqrt((q - 1) / steps)


def expected(case: MirrorCase, mechanism: LocalMechanism, steps: int) -> float:
  """E||average - x*||^2 of gradient descent, exactly: its iterates are linear in the releases."""
  length, _ = bound(case, mechanism, steps)
  kept = (1 - length) ** np.arange(steps)  # of a distance, after so many steps
  variance = case.dim * (1 + mechanism.mean_squared_error(1.0)) - 1  # of a release
  return float(np.mean(kept) ** 2 + variance * np.mean((1 - kept) ** 2) / steps)


def squared_distances(
  key: jax.Array,
  target: jax.Array,
  case: MirrorCase,
  mechanism: LocalMechanism,
  steps: int,
  repetitions: int,
) -> jax.Array:
  """||mean of the iterates - x*||^2 of independent repetitions that start at 0, [repetitions].

  Args:
    key: consumed.
    target: x*, float32, that of the case. As an argument, so that optima with steps of one length
      share a compiled program.
    case: what is measured.
    mechanism: of the case, for vertices scaled to unit vectors.
    steps: of the length that is best in theory.
    repetitions: run side by side.
  """
  scale = np.float32(math.sqrt(case.dim))
  length, _ = bound(case, mechanism, steps)
  optimizer = p_norm_descent(length, METHODS[case.method].order(case.dim))

  def step(carry, number):
    x, state, total = carry
    data_key, noise_key = jax.random.split(jax.random.fold_in(key, number))
    positive = jax.random.uniform(data_key, x.shape) < (1 + target[None]) / 2
    vertices = jnp.where(positive, np.float32(1), np.float32(-1))
    keys = jax.random.split(noise_key, repetitions)
    released = scale * jax.vmap(mechanism.privatize)(keys, vertices / scale)
    updates, state = jax.vmap(optimizer.update)(x - released, state, x)
    return (x + updates, state, total + x), None

  start = jnp.zeros((repetitions, case.dim))
  first = (start, jax.vmap(optimizer.init)(start), start)
  (_, _, total), _ = lax.scan(step, first, jnp.arange(steps))
  return jnp.sum((total / np.float32(steps) - target[None]) ** 2, axis=1)


def measure(options: MeanEstimationOptions, case: MirrorCase) -> Row:
  """A row of results: the measured mean, beside the bound."""
  name, steps = METHODS[case.method].mechanism, options.sgd_steps
  mechanism = ESTIMATORS[name].make(Setting(case.dim, case.epsilon, 2, case.dim**-0.5))
  run = jax.jit(
    lambda key, target: squared_distances(
      key, target, case, mechanism, steps, options.sgd_repetitions
    )
  )
  target = jnp.asarray(optimum(case.optimum, case.dim), jnp.float32)
  found = np.asarray(run(case_key(options.noise_seed, case), target), float).tolist()
  exact = METHODS[case.method].order(case.dim) == 2
  return case._asdict() | {
    "guarantee": str(mechanism.guarantee),
    "measured": mean_interval(found)._asdict(),
    "expected": expected(case, mechanism, steps) if exact else None,
    "bound": bound(case, mechanism, steps)[1],
  }
