"""Local training: a client's trained model minus the server's (arXiv 1710.06963, Algorithm 1)."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from jdp import _validate
from jdp._arguments import checked
from jdp.data.clients import Examples
from jdp.models.base import Loss, keyed
from jdp.numerics.convolutions import channels_last
from jdp.random.keys import client_key

PyTree = Any
Project = Callable[[PyTree], PyTree]


def no_projection(difference: PyTree) -> PyTree:
  """The projection that changes nothing."""
  return difference


class LocalUpdate(Protocol):
  """Local training as a pure function."""

  def __call__(
    self, key: jax.Array, params: PyTree, client: Examples, project: Project = no_projection
  ) -> PyTree:
    """The client's model after training minus the server's.

    Args:
      key: drives the order of the examples, and dropout. Consumed.
      params: the server's model.
      client: the client's examples.
      project: brings the difference back within its bound between local steps. What is returned
        need not be projected, as the query clips it.
    """


@dataclasses.dataclass(frozen=True)
class GradientStep:
  """The `LocalUpdate` of one gradient step.

  It is a value, so that an engine may compute the step in other ways.
  """

  loss: Loss
  learning_rate: float

  def __call__(
    self, key: jax.Array, params: PyTree, client: Examples, project: Project = no_projection
  ) -> PyTree:
    """-learning_rate * gradient."""
    del project
    gradient = channels_last(jax.grad(keyed(self.loss)))(params, client, key)
    return jax.tree.map(lambda g: -self.learning_rate * g, gradient)


@checked
def gradient_step(loss: Loss, learning_rate: float) -> GradientStep:
  """One gradient step on all of the client's examples: -learning_rate * gradient (FedSGD).

  >>> def loss(params, client):
  ...   return jnp.sum((params - client) ** 2)
  >>> step = gradient_step(loss, learning_rate=0.25)
  >>> step(jax.random.key(0), jnp.zeros(2), jnp.array([1.0, 2.0])).tolist()
  [0.5, 1.0]
  """
  _validate.positive(learning_rate=learning_rate)
  return GradientStep(loss, learning_rate)


@checked
def example_gradient(loss: Loss) -> GradientStep:
  """Minus the gradient, where a client is one example without a leading axis (DP-SGD).

  >>> from jdp import models
  >>> model = models.logistic_regression((2,), 2)
  >>> step = example_gradient(models.cross_entropy(model))
  >>> example = Examples(jnp.array([2.0, 4.0]), jnp.int32(1), jnp.float32(1))
  >>> step(jax.random.key(0), model.init(jax.random.key(1)), example)["w"].tolist()
  [[-1.0, -2.0], [1.0, 2.0]]
  """

  # Losses take examples along a leading axis.
  def loss_of_one(params, example, key):
    return keyed(loss)(params, jax.tree.map(lambda x: jnp.asarray(x)[None], example), key)

  return GradientStep(loss_of_one, 1.0)


@checked
def local_sgd(
  loss: Loss, learning_rate: float, *, num_epochs: int = 1, batch_size: int
) -> LocalUpdate:
  """Several epochs of SGD over the client's examples, in random batches (FedAvg).

  Batches are filled with the client's own examples. Padding comes last and takes no steps, so the
  amount of padding changes no bit. Where clients are computed one by one, padding costs no steps
  either.

  >>> from jdp import data, models
  >>> model = models.logistic_regression((2,), 2)
  >>> update = local_sgd(models.cross_entropy(model), 0.5, num_epochs=2, batch_size=4)
  >>> client = data.examples(jnp.ones((6, 2)), jnp.ones(6, jnp.int32))
  >>> moved = update(jax.random.key(0), model.init(jax.random.key(1)), client)
  >>> moved["w"].shape, bool(moved["b"][1] > moved["b"][0])
  ((2, 2), True)
  """
  _validate.positive(learning_rate=learning_rate)
  _validate.integer(1, num_epochs=num_epochs, batch_size=batch_size)
  gradient_of = channels_last(jax.grad(keyed(loss)))

  def update(key, params, client, project=no_projection):
    key = client_key(key)  # whose longer draws begin with its shorter ones
    num_examples = client.mask.shape[0]
    padding = -num_examples % batch_size
    client = jax.tree.map(lambda x: jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)), client)
    num_batches = -(-jnp.sum(client.mask > 0, dtype=jnp.int32) // batch_size)

    def epoch(number, difference):
      # Padding sorts behind all examples.
      places = jax.random.uniform(jax.random.fold_in(key, number), client.mask.shape)
      order = jnp.argsort(jnp.where(client.mask > 0, places, jnp.inf))
      loss_key = jax.random.fold_in(key, num_epochs + number)

      def step(place, difference):
        batch = jax.lax.dynamic_slice_in_dim(order, place * batch_size, batch_size)
        current = jax.tree.map(jnp.add, params, difference)
        examples = jax.tree.map(lambda x: x[batch], client)
        gradient = gradient_of(current, examples, jax.random.fold_in(loss_key, place))
        return project(jax.tree.map(lambda d, g: d - learning_rate * g, difference, gradient))

      return jax.lax.fori_loop(0, num_batches, step, difference)

    return jax.lax.fori_loop(0, num_epochs, epoch, jax.tree.map(jnp.zeros_like, params))

  return update


@checked
def proximal_point(loss: Loss, learning_rate: float, *, num_iterations: int = 10) -> LocalUpdate:
  """A stochastic proximal-point step: the minimiser of loss(x) + ||x - x_0||^2 / (2 learning_rate).

  It is approximated by gradient descent with backtracking, started at x_0. Unlike a gradient step
  it never overshoots, whatever the learning rate.

  >>> def loss(params, client):
  ...   return jnp.sum((params - client) ** 2) / 2
  >>> update = proximal_point(loss, learning_rate=3.0, num_iterations=20)
  >>> step = update(jax.random.key(0), jnp.zeros(2), jnp.array([1.0, 2.0]))
  >>> [round(x, 3) for x in step.tolist()]
  [0.75, 1.5]
  """
  _validate.positive(learning_rate=learning_rate)
  _validate.integer(1, num_iterations=num_iterations)
  # 40 halvings find a descending step for gradients up to 1e12 times too steep.
  search = optax.scale_by_backtracking_linesearch(
    40, decrease_factor=0.5, max_learning_rate=learning_rate
  )
  optimizer = optax.chain(optax.sgd(1.0), search)

  loss_of = keyed(loss)

  def update(key, params, client, project=no_projection):
    del project

    # One key for all steps, so that all descend the same function.
    def objective(current):
      distances = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), current, params)
      return loss_of(current, client, jax.random.clone(key)) + sum(jax.tree.leaves(distances)) / (
        2 * learning_rate
      )

    def step(carry, _):
      current, state = carry
      value, gradient = channels_last(jax.value_and_grad(objective))(current)
      updates, state = optimizer.update(
        gradient, state, current, value=value, grad=gradient, value_fn=objective
      )
      return (optax.apply_updates(current, updates), state), None

    (trained, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), length=num_iterations)
    return jax.tree.map(jnp.subtract, trained, params)

  return update
