"""A network with one hidden layer, for Draw and Discard (arXiv 1807.04369, Section 6.2.2)."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jdp.data import Examples
from jdp.models.base import mean_of_counting
from jdp.queries.base import PyTree


class Network(NamedTuple):
  """A network as pure functions, with the names of `jdp.models.generalised_linear.GLM`.

  Attributes:
    init: key -> parameters.
    predict: (parameters, inputs [n, ...]) -> probabilities [n, classes].
    loss: (parameters, examples) -> the mean cross-entropy of the examples that count.
    gradient: (parameters, examples) -> that of the loss.
    smoothness: infinite, as no bound is known.
    gradient_bound: also infinite.
  """

  init: Callable[[jax.Array], PyTree]
  predict: Callable[[PyTree, jax.Array], jax.Array]
  loss: Callable[[PyTree, Examples], jax.Array]
  gradient: Callable[[PyTree, Examples], PyTree]
  smoothness: float = math.inf
  gradient_bound: float = math.inf


def network(input_shape: tuple[int, ...], num_classes: int, hidden: int) -> Network:
  """A network with one layer of `hidden` rectified units.

  The instances differ by noise alone and share their initial weights, so their hidden units stay
  matched and their weights can be averaged.
  """
  features = math.prod(input_shape)

  def init(key):
    first, second = jax.random.split(key)
    return {
      "hidden": jax.random.normal(first, (features, hidden)) * math.sqrt(2 / features),
      "hidden_bias": jnp.zeros(hidden),
      "output": jax.random.normal(second, (hidden, num_classes)) / math.sqrt(hidden),
      "output_bias": jnp.zeros(num_classes),
    }

  def scores(params, inputs):
    flat = inputs.reshape(inputs.shape[0], features)
    units = jax.nn.relu(flat @ params["hidden"] + params["hidden_bias"][None])
    return units @ params["output"] + params["output_bias"][None]

  def loss(params, examples):
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(
      scores(params, examples.inputs), examples.labels
    )
    return mean_of_counting(losses, examples.mask)

  def predict(params, inputs):
    return jax.nn.softmax(scores(params, inputs), axis=1)

  return Network(init, predict, loss, jax.grad(loss))
