"""What a client computes is the step it says, of its own examples and of nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import optimize

from jdp.data import Examples, examples
from jdp.federated import gradient_step, local_sgd, proximal_point
from jdp.models import cross_entropy, logistic_regression

FEATURES, CLASSES, COUNT = 4, 3, 7
MODEL = logistic_regression((FEATURES,), CLASSES)
LOSS = cross_entropy(MODEL)
RNG = np.random.default_rng(0)
CLIENT = examples(RNG.normal(size=(COUNT, FEATURES)), RNG.integers(0, CLASSES, COUNT))
PARAMS = {
  "b": jnp.array([0.1, -0.2, 0.3]),
  "w": jnp.asarray(RNG.normal(size=(CLASSES, FEATURES)), jnp.float32),
}
UPDATES = {
  "gradient step": gradient_step(LOSS, 0.5),
  "local SGD": local_sgd(LOSS, 0.5, num_epochs=2, batch_size=3),
  # Few iterations: near the minimum, rounding decides which steps still descend.
  "proximal point": proximal_point(LOSS, 0.5, num_iterations=2),
}
every_update = pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)


def flat(tree):
  """All entries in float64: the biases, then the weights row by row."""
  return np.asarray(ravel_pytree(tree)[0], np.float64)


def run(update, client=CLIENT, seed=0):
  """The difference that an update computes, flat."""
  return flat(jax.jit(update)(jax.random.key(seed), PARAMS, client))


def padded(client, count, filling):
  """The client with `count` more rows that do not count and hold `filling`."""
  inputs = np.concatenate([client.inputs, np.full((count, FEATURES), filling, np.float32)])
  labels = np.concatenate([client.labels, np.full(count, 10**6, np.int32)])
  return Examples(inputs, labels, np.concatenate([client.mask, np.zeros(count, np.float32)]))


def value_and_gradient(x, client=CLIENT):
  """Mean cross-entropy and its gradient at flat parameters, in float64 by the closed form."""
  bias = x[:CLASSES]
  weights = x[CLASSES:].reshape(CLASSES, FEATURES)
  inputs = np.asarray(client.inputs, np.float64)
  logits = inputs @ weights.T + bias
  log_probabilities = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
  rows = np.arange(len(inputs))
  residuals = np.exp(log_probabilities)
  residuals[rows, client.labels] -= 1
  gradient = np.concatenate([residuals.mean(axis=0), (residuals.T @ inputs / len(inputs)).ravel()])
  return -log_probabilities[rows, client.labels].mean(), gradient


def test_gradient_step_is_the_closed_form():
  _, gradient = value_and_gradient(flat(PARAMS))
  np.testing.assert_allclose(run(gradient_step(LOSS, 0.5)), -0.5 * gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [COUNT, 10 * COUNT])
def test_local_sgd_with_one_full_batch_is_a_gradient_step(batch_size):
  sgd = run(local_sgd(LOSS, 0.5, batch_size=batch_size))
  # parameters cancel
  np.testing.assert_allclose(sgd, run(gradient_step(LOSS, 0.5)), rtol=1e-4, atol=1e-7)


def test_local_sgd_of_full_batches_is_gradient_descent():
  x = flat(PARAMS)
  for _ in range(3):
    x = x - 0.5 * value_and_gradient(x)[1]
  sgd = run(local_sgd(LOSS, 0.5, num_epochs=3, batch_size=COUNT))
  np.testing.assert_allclose(sgd, x - flat(PARAMS), rtol=1e-4, atol=1e-6)


def test_an_epoch_sees_every_example_once():
  # The gradient of a linear loss is the same everywhere, so an epoch of single examples adds all of
  # them up.
  def linear(params, client):
    return jnp.sum(client.inputs @ params["w"][0] * client.mask)

  sgd = run(local_sgd(linear, 1.0, batch_size=1, num_epochs=2))[CLASSES : CLASSES + FEATURES]
  np.testing.assert_allclose(sgd, -2 * CLIENT.inputs.sum(axis=0), rtol=1e-5)


@pytest.mark.slow
def test_local_sgd_shuffles_with_its_key():
  update = local_sgd(LOSS, 0.5, batch_size=2)
  np.testing.assert_array_equal(run(update, seed=1), run(update, seed=1))
  assert np.any(run(update, seed=1) != run(update, seed=2))


@pytest.mark.optimised
@pytest.mark.sweep
@every_update
@pytest.mark.parametrize("filling", [0.0, 1e30, np.inf, np.nan])
def test_padding_has_no_effect_whatever_it_holds(update, filling):
  # Not bit for bit: a longer sum may be added up in another order.
  np.testing.assert_allclose(
    run(update, padded(CLIENT, 20, filling)), run(update), rtol=1e-4, atol=1e-6
  )


@pytest.mark.sweep
@every_update
def test_a_client_without_examples_changes_nothing(update):
  nobody = padded(Examples(*(x[:0] for x in CLIENT)), 5, np.nan)
  assert not np.any(run(update, nobody))


def proximal_objective(x, client, learning_rate):
  """What the proximal step minimises, and its gradient."""
  value, gradient = value_and_gradient(x, client)
  off = x - flat(PARAMS)
  return value + off @ off / (2 * learning_rate), gradient + off / learning_rate


@pytest.mark.sweep
@pytest.mark.parametrize("learning_rate", [0.01, 1.0, 10.0])
def test_proximal_point_is_near_the_minimiser(learning_rate):
  arguments = (CLIENT, learning_rate)
  exact = optimize.minimize(
    proximal_objective, flat(PARAMS), arguments, "BFGS", jac=True, options={"gtol": 1e-10}
  )
  step = exact.x - flat(PARAMS)
  off = run(proximal_point(LOSS, learning_rate, num_iterations=100)) - step
  # as near as float32 values of the objective can tell
  assert np.linalg.norm(off) < 1e-2 * np.linalg.norm(step)


@pytest.mark.slow
@pytest.mark.parametrize("learning_rate", [0.01, 1.0, 1e6])
def test_proximal_point_never_overshoots(learning_rate):
  updates = [
    proximal_point(LOSS, learning_rate, num_iterations=iterations) for iterations in (1, 5)
  ]
  for scale in (1.0, 1e2, 1e5):
    client = CLIENT._replace(inputs=np.float32(scale) * CLIENT.inputs)
    steps = [0.0, *(run(update, client) for update in updates)]
    values = [proximal_objective(flat(PARAMS) + step, client, learning_rate)[0] for step in steps]
    assert values[1] < values[0]
    assert np.all(np.diff(values) <= 1e-6 * values[0])


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize(
  "make", [gradient_step, proximal_point, lambda loss, x: local_sgd(loss, x, batch_size=1)]
)
def test_a_bad_learning_rate_is_refused(make, bad):
  with pytest.raises(ValueError, match="Expected learning_rate to be a finite number > 0"):
    make(LOSS, bad)


@pytest.mark.parametrize("name", ["num_epochs", "batch_size", "num_iterations"])
@pytest.mark.parametrize("bad", [0, 1.5])
def test_a_bad_count_is_refused(name, bad):
  make = proximal_point if name == "num_iterations" else local_sgd
  sizes = {} if name == "num_iterations" else {"batch_size": 1}
  with pytest.raises(ValueError, match=f"Expected {name} to be a whole number"):
    make(LOSS, 0.1, **(sizes | {name: bad}))
