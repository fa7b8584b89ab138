"""Multinomial logistic regression."""

import math

import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp.models.base import Model


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
  _validate.integer(2, num_classes=num_classes)
  features = math.prod(input_shape)

  def init(key):
    del key  # The loss is convex: zero is as good a start as any.
    return {"b": jnp.zeros(num_classes), "w": jnp.zeros((num_classes, features))}

  def apply(params, inputs):
    return inputs.reshape(inputs.shape[0], features) @ params["w"].T + params["b"][None]

  return Model(init, apply)
