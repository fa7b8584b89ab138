"""Gradients of real data, as vectors to release: one for each image of the digits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jdp import data, models
from jdp.data import Examples


@functools.cache
def gradients(part: str = "train") -> np.ndarray:
  """Gradients of logistic regression at its start, zero. Each is of one image, float32 [n, 650].

  Args:
    part: "train" (1,437 images) or "test" (360).
  """
  digits = data.digits()
  examples: Examples = getattr(digits, part)
  model = models.logistic_regression(digits.input_shape, digits.num_classes)
  gradient = jax.grad(models.cross_entropy(model))
  params = model.init(jax.random.key(0))

  def of_one(example):
    return ravel_pytree(gradient(params, jax.tree.map(lambda x: x[None], example)))[0]

  return np.asarray(jax.jit(jax.vmap(of_one))(jax.tree.map(jnp.asarray, examples)))


def directions() -> np.ndarray:
  """The training images' gradients, each divided by its norm."""
  own = gradients()
  return own / np.linalg.norm(own, axis=1, keepdims=True)
