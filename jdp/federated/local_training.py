"""What a client computes: its locally trained model less the server's (arXiv 1812.00984, Section 3.1)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jdp import _validate
from jdp.data.clients import Examples
from jdp.models.base import Loss

PyTree = Any
LocalUpdate = Callable[[jax.Array, PyTree, Examples], PyTree]  # (key, parameters, client's examples) -> difference


def gradient_step(loss: Loss, learning_rate: float) -> LocalUpdate:
  """One gradient step on all of the client's examples: -learning_rate * gradient."""
  _validate.positive(learning_rate=learning_rate)

  def update(key, params, client):
    del key
    return jax.tree.map(lambda g: -learning_rate * g, jax.grad(loss)(params, client))

  return update


def local_sgd(loss: Loss, learning_rate: float, *, num_epochs: int = 1, batch_size: int) -> LocalUpdate:
  """Several epochs of SGD over the client's examples, in random batches.

  Batches are filled with the client's own examples, padding comes last: how far a client is padded changes
  nothing, and a batch that holds only padding is a step of zero.
  """
  _validate.positive(learning_rate=learning_rate)
  _validate.integer(1, num_epochs=num_epochs, batch_size=batch_size)

  def update(key, params, client):
    num_examples = client.labels.shape[0]
    num_batches = -(-num_examples // batch_size)
    padding = num_batches * batch_size - num_examples
    client = jax.tree.map(lambda x: jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)), client)

    def step(current, batch):
      gradient = jax.grad(loss)(current, jax.tree.map(lambda x: x[batch], client))
      return jax.tree.map(lambda p, g: p - learning_rate * g, current, gradient), None

    def epoch(current, number):
      places = jax.random.uniform(jax.random.fold_in(key, number), client.mask.shape)
      places = jnp.where(client.mask > 0, places, jnp.inf)
      return jax.lax.scan(step, current, jnp.argsort(places).reshape(num_batches, batch_size))

    trained, _ = jax.lax.scan(epoch, params, jnp.arange(num_epochs))
    return jax.tree.map(jnp.subtract, trained, params)

  return update


def proximal_point(loss: Loss, learning_rate: float, *, num_iterations: int = 10) -> LocalUpdate:
  """A stochastic proximal-point step: the minimiser of loss(x) + ||x - x_0||^2 / (2 learning_rate).

  Approximated by gradient descent with backtracking, started at x_0; unlike a gradient
  step it never overshoots, whatever the learning rate.
  """
  _validate.positive(learning_rate=learning_rate)
  _validate.integer(1, num_iterations=num_iterations)
  # 40 halvings find a descending step for gradients up to 1e12 times too steep.
  search = optax.scale_by_backtracking_linesearch(40, decrease_factor=0.5, max_learning_rate=learning_rate)
  optimizer = optax.chain(optax.sgd(1.0), search)

  def update(key, params, client):
    del key

    def objective(current):
      distances = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), current, params)
      return loss(current, client) + sum(jax.tree.leaves(distances)) / (2 * learning_rate)

    def step(carry, _):
      current, state = carry
      value, gradient = jax.value_and_grad(objective)(current)
      updates, state = optimizer.update(gradient, state, current, value=value, grad=gradient, value_fn=objective)
      return (optax.apply_updates(current, updates), state), None

    (trained, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), length=num_iterations)
    return jax.tree.map(jnp.subtract, trained, params)

  return update
