"""The form of a model, and the loss that clients minimise."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jdp.data.clients import Examples

PyTree = Any


class Model(NamedTuple):
  """A classifier as pure functions.

  Attributes:
    init: key -> parameters, a plain pytree of float32 arrays.
    apply: (parameters, inputs [n, ...]) -> logits [n, num_classes].
  """

  init: Callable[[jax.Array], PyTree]
  apply: Callable[[PyTree, jax.Array], jax.Array]


Loss = Callable[[PyTree, Examples], jax.Array]


def cross_entropy(model: Model) -> Loss:
  """The loss (parameters, examples) -> mean cross-entropy over the examples that count, 0 if none does.

  What padding holds changes neither the loss nor its gradient, NaN included.
  """

  def loss(params, examples):
    counts = examples.mask > 0
    # Cleared before the model sees it: in the gradient, the mask's zero times a NaN input would be NaN.
    inputs = jnp.where(counts.reshape(-1, *[1] * (examples.inputs.ndim - 1)), examples.inputs, 0.0)
    logits = model.apply(params, inputs)
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, jnp.where(counts, examples.labels, 0))
    return jnp.sum(losses * examples.mask) / jnp.maximum(jnp.sum(examples.mask), 1.0)

  return loss


def accuracy(model: Model, params: PyTree, examples: Examples, *, batch_size: int = 1000) -> jax.Array:
  """The share of examples classified correctly, in batches of bounded memory."""

  def correct(example):
    inputs, labels, mask = example
    return jnp.where(jnp.argmax(model.apply(params, inputs[None])[0]) == labels, mask, 0.0)

  return jnp.sum(jax.lax.map(correct, tuple(examples), batch_size=batch_size)) / jnp.sum(examples.mask)
