"""Multinomial logistic regression."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdp._arguments import checked
from jdp.models.base import Model, check_input_shape, check_sizes


class ClassesFirst(nn.Module):
  """The linear layer W x + b whose weights are [classes, features], started at zero."""

  num_classes: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Logits [n, classes] of features [n, features]."""
    zeros = nn.initializers.zeros_init()
    b = self.param("b", zeros, (self.num_classes,))
    w = self.param("w", zeros, (self.num_classes, x.shape[-1]))
    return x @ w.T + b[None]


@checked
def logistic_regression(input_shape: tuple[int, ...], num_classes: int) -> Model:
  """The generalised linear model softmax(W x + b), started at zero.

  Parameters are {"w": float32 [num_classes, features], "b": float32 [num_classes]}. Classes come
  first, as a short last axis is slow to compute with.

  >>> import jax
  >>> model = logistic_regression((8, 8), 10)
  >>> params = model.init(jax.random.key(0))
  >>> params["w"].shape, model.apply(params, jnp.ones((2, 8, 8))).shape
  ((10, 64), (2, 10))
  """
  check_sizes(2, num_classes=num_classes)
  check_input_shape(input_shape)
  features, layer = math.prod(input_shape), ClassesFirst(num_classes)

  def init(key):
    del key  # The loss is convex: zero is as good a start as any.
    return {"b": jnp.zeros(num_classes), "w": jnp.zeros((num_classes, features))}

  def apply(params, inputs):
    return layer.apply({"params": params}, inputs.reshape(inputs.shape[0], features))

  return Model(init, apply)
