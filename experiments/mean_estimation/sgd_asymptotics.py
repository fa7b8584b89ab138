"""The cost of privacy for stochastic gradient descent in the limit (arXiv 1812.00984, Section 3.2).

Let x_n be the average of n steps with unbiased private gradients Z of g. Let the steps have length
rate k^-decay with decay in (1/2, 1). Then sqrt(n) (x_n - x*) -> N(0, H^-1 (Cov(g) + E[Cov(Z | g)])
H^-1).

This module uses least squares, where each part is known. Features are s_j sqrt(h_j) with random
signs s, so H = diag(h). All features have norm 1 if the h_j sum to 1. Labels are <features, x*>
+- 1. At x* a gradient is then +- the features: it has norm 1 and covariance H.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp.mechanisms import LocalMechanism, gaussian, priv_unit, scalar_dp, separated

CURVATURES = np.array([0.5, 0.3, 0.2])
# Three times the gradients' norm at x*, so clipping is rare. Also, 1 must not be a level of
# ScalarDP's grid: the variance has a kink at a level. It would be far larger at the iterates than
# at x*.
MAX_NORM = 3.0
_DIM = len(CURVATURES)


class Steps(NamedTuple):
  """The step sizes: step k of `total` has length rate k^-decay."""

  total: int
  rate: float = 1.0
  decay: float = 0.55

  def lengths(self) -> np.ndarray:
    """The lengths of all steps, float64 [total]."""
    return self.rate * np.arange(1, self.total + 1, dtype=float) ** -self.decay


class Release(NamedTuple):
  """How gradients are released, and what this adds to their covariance at x*.

  Attributes:
    mechanism: releases gradients. None leaves them in the clear.
    along: the variance that Z given g has along g's direction due to Z's magnitude.
    isotropic: the rest of Cov(Z | g) is `isotropic` times the identity.
  """

  mechanism: LocalMechanism | None
  along: float = 0.0
  isotropic: float = 0.0

  def noise(self) -> np.ndarray:
    """The diagonal of Cov(g) + E[Cov(Z | g)], [d].

    Directions have covariance H, as gradients do.
    """
    return (1 + self.along) * CURVATURES + self.isotropic


def releases() -> dict[str, Release]:
  """Gradients in the clear, by separated mechanisms and with additive noise."""
  direction, magnitude = priv_unit(_DIM, 4.0), scalar_dp(4.0, MAX_NORM)
  both = separated(direction, magnitude)
  along = magnitude.mean_squared_error(1.0)
  stddev = 1.0
  return {
    "no privacy": Release(None),
    "PrivUnit 4 + ScalarDP 4": Release(both, along, (both.mean_squared_error(1.0) - along) / _DIM),
    "normal noise, stddev 1": Release(
      gaussian(stddev, 2 * MAX_NORM, 1e-6, shape=(_DIM,)), isotropic=stddev**2
    ),
  }


def limit(noise: np.ndarray) -> np.ndarray:
  """The diagonal of the limiting covariance H^-1 noise H^-1, [d]."""
  return noise / CURVATURES**2


def spread(steps: Steps, curvatures: np.ndarray) -> np.ndarray:
  """n Var(mean of the iterates) over the variance of a gradient, along each eigenvector, [d].

  It tends to 1 / h^2 for the eigenvalue h, as n grows.

  >>> [round(float(spread(Steps(n), np.ones(1))[0]), 3) for n in (100, 10_000)]
  [1.071, 1.008]
  """
  lengths = steps.lengths()[:, None]
  # n weight_j = length_j (1 + c_{j+1} + c_{j+1} c_{j+2} + ...), c_k = 1 - length_k h.
  tail, squares = np.zeros(len(curvatures)), np.zeros(len(curvatures))
  for j in reversed(range(steps.total)):
    following = 1 - lengths[j + 1] * curvatures if j + 1 < steps.total else 0.0
    tail = 1 + following * tail
    squares += (lengths[j] * tail) ** 2
  return squares / steps.total


def covariance(noise: np.ndarray, steps: Steps) -> np.ndarray:
  """The diagonal of the covariance of sqrt(n) (x_n - x*) after these steps from x*, [d].

  It tends to `limit` as n grows. It is the covariance of the linear recursion, whose noise is that
  at x* and not that at the iterates.

  >>> np.round(covariance(CURVATURES, Steps(10_000)) / limit(CURVATURES), 2).tolist()
  [1.02, 1.03, 1.05]
  """
  return noise * spread(steps, CURVATURES)


def averages(
  key: jax.Array, mechanism: LocalMechanism | None, steps: Steps, repetitions: int
) -> jax.Array:
  """sqrt(n) (x_n - x*) of independent repetitions that start at x*, [repetitions, d].

  Args:
    key: consumed.
    mechanism: releases gradients, or None.
    steps: n and the step lengths.
    repetitions: run side by side.
  """
  lengths = jnp.asarray(steps.lengths(), jnp.float32)
  features = jnp.asarray(np.sqrt(CURVATURES), jnp.float32)

  def gradient(key, x):
    data_key, noise_key = jax.random.split(key)
    signs = jax.random.rademacher(data_key, (_DIM + 1,), jnp.float32)
    row = signs[:_DIM] * features
    # x is the distance from x*, and the label's noise is the last sign.
    exact = row * (jnp.sum(row * x) - signs[_DIM])
    return exact if mechanism is None else mechanism.privatize(noise_key, exact)

  def step(carry, inputs):
    x, total = carry
    number, length = inputs
    keys = jax.random.split(jax.random.fold_in(key, number), repetitions)
    x = x - length * jax.vmap(gradient)(keys, x)
    return (x, total + x), None

  start = jnp.zeros((repetitions, _DIM))
  (_, total), _ = lax.scan(step, (start, start), (jnp.arange(steps.total), lengths))
  return total / np.float32(np.sqrt(steps.total))
