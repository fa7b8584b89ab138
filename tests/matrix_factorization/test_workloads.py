"""Workloads are what optimisers do; the search for bands has the right errors and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import matrix_factorization as mf
from jdp.matrix_factorization import banded_matrices
from jdp.matrix_factorization.descent import minimize


def by_optax(num_rounds, schedule, momentum, weight_decay):
  """A, a column for each round's unit sum, in float64."""
  chain = optax.chain(
    optax.trace(momentum),
    optax.add_decayed_weights(-weight_decay),  # jdp's server adds its updates
    optax.scale_by_schedule(schedule),
  )
  with jax.enable_x64(), jax.numpy_dtype_promotion("standard"):
    params, state = jnp.zeros(num_rounds), chain.init(jnp.zeros(num_rounds))
    rows = []
    for sums in jnp.eye(num_rounds):
      updates, state = chain.update(sums, state, params)
      params = params + updates
      rows.append(np.asarray(params))
  return np.stack(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("momentum", "weight_decay"), [(0.9, 0.1), (0.0, 0.0), (0.9, 0.0), (0.0, 0.1)]
)
def test_workloads_are_those_of_optax(momentum, weight_decay):
  schedule = optax.cosine_decay_schedule(0.5, 10)
  found = mf.optimizer_workload(
    10,
    learning_rate=lambda t: float(schedule(t)),
    momentum=momentum,
    weight_decay=weight_decay,
  )
  np.testing.assert_allclose(
    found, by_optax(10, schedule, momentum, weight_decay), rtol=1e-6, atol=1e-9
  )
  column = mf.optimizer_workload(
    10, learning_rate=0.5, momentum=momentum, weight_decay=weight_decay
  )
  constant = mf.optimizer_workload(
    10, learning_rate=lambda t: 0.5, momentum=momentum, weight_decay=weight_decay
  )
  np.testing.assert_allclose(column, constant[:, 0], rtol=1e-12)
  np.testing.assert_allclose(constant[1:, 1:], constant[:-1, :-1], rtol=1e-12)


def test_plain_sgd_is_prefix_sums():
  strategy = mf.square_root_toeplitz(20, bands=4)
  np.testing.assert_allclose(
    strategy.squared_errors(mf.optimizer_workload(20)), strategy.squared_errors(), rtol=1e-12
  )


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"momentum": 1.0}, "momentum to be a number in"),
    ({"momentum": np.nan}, "momentum to be a number in"),
    ({"weight_decay": -0.1}, "weight_decay to be a finite number >= 0"),
    ({"learning_rate": -0.1}, "learning_rate to be numbers >= 0"),
    ({"learning_rate": 2.0, "weight_decay": 0.6}, "of at most 1, got others, such as 2.0"),
    ({"learning_rate": lambda t: np.nan}, "learning_rate to be numbers >= 0"),
  ],
)
def test_invalid_optimisers_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    mf.optimizer_workload(5, **arguments)


@pytest.mark.parametrize(
  ("n", "bands", "power"), [(1, 1, 1), (7, 7, 1), (23, 4, 1), (40, 17, 32), (50, 2, 1)]
)
def test_errors_and_gradients_of_the_banded_search(n, bands, power):
  """By dense algebra, and by differences along random directions."""
  rng = np.random.default_rng(5)
  inside = np.arange(bands)[:, None] + np.arange(n) < n
  values = rng.uniform(0.1, 1, inside.shape)
  values[0] += 1
  values = values[inside]
  error, gradient = banded_matrices._error(values, inside, power)
  strategy = banded_matrices.BandedStrategy(banded_matrices._normalised(values, inside))
  inverse = np.linalg.inv(strategy.matrix())
  squared = np.sum(np.cumsum(inverse, axis=0) ** 2, axis=1)
  np.testing.assert_allclose(error, np.mean(squared**power) ** (1 / power), rtol=1e-12)
  for direction in rng.normal(size=(5, len(values))):
    ahead, behind = (
      banded_matrices._error(values + step * direction, inside, power)[0] for step in (1e-5, -1e-5)
    )
    np.testing.assert_allclose(
      (ahead - behind) / 2e-5, gradient @ direction, rtol=1e-6, atol=1e-8 * error
    )


def test_the_search_finds_the_least_of_a_narrow_valley():
  """Rosenbrock's function in 10 dimensions, plus 1."""

  def valley(x):
    rise, along = x[1:] - x[:-1] ** 2, 1 - x[:-1]
    gradient = np.zeros_like(x)
    gradient[:-1] = -400 * x[:-1] * rise - 2 * along
    gradient[1:] += 200 * rise
    return float(1 + np.sum(100 * rise**2 + along**2)), gradient

  np.testing.assert_allclose(minimize(valley, np.full(10, 0.5), tolerance=1e-15), 1.0, atol=1e-4)


@pytest.mark.slow
def test_the_published_gain_of_free_bands():
  """By the search of 1,000 rounds: its seconds are what the benchmark compares."""
  strategy, toeplitz = mf.banded(1000, 32), mf.banded_toeplitz(1000, 32)
  error, other = (
    s.root_mean_squared_error(min_separation=32, max_participations=1) ** 2
    for s in (strategy, toeplitz)
  )
  assert error == pytest.approx(23.554525, rel=1e-6)
  assert error < 0.98 * other


def test_too_large_a_search_is_refused():
  with pytest.raises(ValueError, match="num_rounds times bands of at most 2e"):
    mf.banded(1_000_000, 100)
