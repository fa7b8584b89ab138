"""What privacy costs stochastic gradient descent in the limit (arXiv 1812.00984, Section 3.2).

The average x_n of n steps with unbiased private gradients Z of g has sqrt(n) (x_n - x*) -> N(0,
H^-1 (Cov(g) + E[Cov(Z | g)]) H^-1), for steps of length rate k^-decay with decay in (1/2, 1). Here
on least squares where each part is known: features s_j sqrt(h_j) of random signs s, so H = diag(h),
all of norm 1 if the h_j sum to 1, and labels <features, x*> +- 1. At x* a gradient is then +-
the features: of norm 1, with covariance H.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp.mechanisms import LocalMechanism, gaussian, priv_unit, scalar_dp, separated

CURVATURES = np.array([0.5, 0.3, 0.2])
# Clipping hardly ever meets gradients three times as long as at x*; and 1 is no level of ScalarDP's
# grid, next to which its variance would have a kink, and be far larger where the iterates are than
# at x*.
MAX_NORM = 3.0
_DIM = len(CURVATURES)


class Steps(NamedTuple):
  """Step k of `total` has length rate k^-decay."""

  total: int
  rate: float = 1.0
  decay: float = 0.55

  def lengths(self) -> np.ndarray:
    """[total], float64."""
    return self.rate * np.arange(1, self.total + 1, dtype=float) ** -self.decay


class Release(NamedTuple):
  """How gradients are released, and what that adds to their covariance at x*.

  Attributes:
    mechanism: None: in the clear.
    along: the variance of Z along g's direction that Z's magnitude has, given g.
    isotropic: the rest of Cov(Z | g) is `isotropic` times the identity.
  """

  mechanism: LocalMechanism | None
  along: float = 0.0
  isotropic: float = 0.0

  def noise(self) -> np.ndarray:
    """The diagonal of Cov(g) + E[Cov(Z | g)], [d]: directions have covariance H, as gradients
    do.
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


def covariance(noise: np.ndarray, steps: Steps) -> np.ndarray:
  """The diagonal of the covariance of sqrt(n) (x_n - x*) after these steps from x*, [d]; limit as n
  grows.

  That of the linear recursion: noise as it is at x*, not where the iterates are.

  >>> np.round(covariance(CURVATURES, Steps(10_000)) / limit(CURVATURES), 2).tolist()
  [1.02, 1.03, 1.05]
  """
  lengths = steps.lengths()[:, None]
  # n weight_j = length_j (1 + c_{j+1} + c_{j+1} c_{j+2} + ...), c_k = 1 - length_k h.
  tail, squares = np.zeros(_DIM), np.zeros(_DIM)
  for j in reversed(range(steps.total)):
    following = 1 - lengths[j + 1] * CURVATURES if j + 1 < steps.total else np.zeros(_DIM)
    tail = 1 + following * tail
    squares += (lengths[j] * tail) ** 2
  return noise * squares / steps.total


def averages(
  key: jax.Array, mechanism: LocalMechanism | None, steps: Steps, repetitions: int
) -> jax.Array:
  """sqrt(n) (x_n - x*) of independent repetitions from x*, [repetitions, d].

  Args:
    key: consumed.
    mechanism: releases gradients, or None.
    steps: n and the step lengths.
    repetitions: run side by side.
  """
  lengths, features = (
    jnp.asarray(steps.lengths(), jnp.float32),
    jnp.asarray(np.sqrt(CURVATURES), jnp.float32),
  )

  def gradient(key, x):
    data_key, noise_key = jax.random.split(key)
    signs = jax.random.rademacher(data_key, (_DIM + 1,), jnp.float32)
    row = signs[:_DIM] * features
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
