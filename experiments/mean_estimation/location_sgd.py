"""Averaged stochastic gradient descent on a location problem, in many dimensions.

The loss is ||x - a||^2 / 2 for a unit vector a of each client, uniform on the sphere. So x* = 0,
H = I and Cov(g) = I / d. The server knows its iterate x, so a client releases a alone, and the
gradient x - Z(a) is unbiased. Noise is the same at all iterates, and arXiv 1812.00984, Corollary
3.2, has n E||mean of the iterates - x*||^2 tend to 1 + E||Z - a||^2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from experiments.mean_estimation.options import MeanEstimationOptions
from experiments.mean_estimation.sgd_asymptotics import Steps, spread
from experiments.runner.estimators import ESTIMATORS
from experiments.runner.files import Row
from experiments.runner.keys import case_key
from experiments.runner.reports.statistics import mean_interval
from jdp.mechanisms import LocalMechanism
from jdp.mechanisms.registry import Setting

_AT_ONCE = 50  # repetitions side by side


class Descent(NamedTuple):
  """One measurement: a mechanism's name, and its parameters."""

  mechanism: str
  dim: int
  epsilon: float


def squared_distances(
  key: jax.Array, mechanism: LocalMechanism, dim: int, steps: Steps, repetitions: int
) -> jax.Array:
  """n ||mean of the iterates - x*||^2 of independent repetitions that start at x*, [repetitions].

  Args:
    key: consumed.
    mechanism: releases unit vectors of `dim` coordinates.
    dim: d.
    steps: n and the step lengths.
    repetitions: run side by side.
  """

  def step(carry, inputs):
    x, total = carry
    number, length = inputs
    data_key, noise_key = jax.random.split(jax.random.fold_in(key, number))
    normal = jax.random.normal(data_key, (repetitions, dim))
    values = normal / jnp.linalg.norm(normal, axis=1, keepdims=True)
    released = jax.vmap(mechanism.privatize)(jax.random.split(noise_key, repetitions), values)
    x = x - length * (x - released)
    return (x, total + x), None

  start = jnp.zeros((repetitions, dim))
  lengths = jnp.asarray(steps.lengths(), jnp.float32)
  (_, total), _ = lax.scan(step, (start, start), (jnp.arange(steps.total), lengths))
  return jnp.sum(total**2, axis=1) / np.float32(steps.total)


def measure(options: MeanEstimationOptions, case: Descent) -> Row:
  """A row of results: the measured mean, beside the prediction for these steps and the limit."""
  mechanism = ESTIMATORS[case.mechanism].make(Setting(case.dim, case.epsilon, 2, 1.0))
  steps = Steps(options.sgd_steps)

  @jax.jit
  def run(key):
    return squared_distances(key, mechanism, case.dim, steps, _AT_ONCE)

  keys = jax.random.split(
    case_key(options.noise_seed, case), -(-options.sgd_repetitions // _AT_ONCE)
  )
  found = np.concatenate([np.asarray(run(key), float) for key in keys]).tolist()
  limit = 1 + mechanism.mean_squared_error(1.0)
  return case._asdict() | {
    "guarantee": str(mechanism.guarantee),
    "measured": mean_interval(found)._asdict(),
    "steps": float(spread(steps, np.ones(1))[0]) * limit,
    "limit": limit,
  }
