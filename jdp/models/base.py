"""The form of a model, and the loss that clients minimise."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jdp import _validate
from jdp._arguments import checked
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


@checked
def half_precision(model: Model) -> Model:
  """The model computed in bfloat16, for clients.

  Parameters, gradients, clipping and sums stay float32. It takes half the memory. It is several
  times as fast where the processor multiplies bfloat16 matrices, and slower elsewhere. What a
  client computes is rounded to a relative 2^-8. The guarantee does not depend on that.
  """

  def half(x):
    return x.astype(jnp.bfloat16)

  def apply(params, inputs):
    return model.apply(jax.tree.map(half, params), half(inputs)).astype(jnp.float32)

  return Model(model.init, apply)


@checked
def cross_entropy(model: Model) -> Loss:
  """The loss (parameters, examples) -> mean cross-entropy over the examples that count.

  It is 0 if none does. The contents of padding, NaN included, change neither the loss nor its
  gradient.
  """

  def loss(params, examples):
    inputs, labels, mask = without_padding(examples)
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(
      model.apply(params, inputs), labels
    )
    return mean_of_counting(losses, mask)

  return loss


def without_padding(examples: Examples) -> tuple[jax.Array, jax.Array, jax.Array]:
  """(inputs, labels, mask) with zeros in place of the contents of padding.

  Padding is cleared before the model sees it. In the gradient, the mask's zero times a NaN input
  would be NaN.
  """
  counts = examples.mask > 0
  inputs = jnp.where(counts.reshape(-1, *[1] * (examples.inputs.ndim - 1)), examples.inputs, 0.0)
  return inputs, jnp.where(counts, examples.labels, 0), jnp.asarray(examples.mask)


def mean_of_counting(values: jax.Array, mask: jax.Array) -> jax.Array:
  """The mean of values [n] over the examples that count, 0 if none does."""
  return jnp.sum(values * mask) / jnp.maximum(jnp.sum(mask), 1.0)


@checked
def accuracy(
  model: Model, params: PyTree, examples: Examples, *, batch_size: int = 1000
) -> jax.Array:
  """The share of examples classified correctly, computed in batches of bounded memory."""

  def correct(example):
    inputs, labels, mask = example
    return jnp.where(jnp.argmax(model.apply(params, inputs[None])[0]) == labels, mask, 0.0)

  _validate.integer(1, batch_size=batch_size)
  batch_size = min(batch_size, max(1, len(examples.labels)))
  return jnp.sum(jax.lax.map(correct, tuple(examples), batch_size=batch_size)) / jnp.sum(
    examples.mask
  )
