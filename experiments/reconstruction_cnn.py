"""Reconstruction of images from gradients of a convolutional network at its start, by optimisation."""

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jdp import data, models
from jdp.attacks.gradient_matching import match_gradient
from jdp.attacks.reconstruction import principal_prior
from jdp.mechanisms import priv_unit

_SMALLEST = 16


class Pictures(NamedTuple):
  """Images and what the attack made of them.

  Attributes:
    images: [users, height, width].
    found: [epsilons, users, height, width].
    cosines: [epsilons, users], between an image and its reconstruction.
    labels_found: [epsilons, users], whether the label was.
    size: of the gradient.
  """

  images: np.ndarray
  found: np.ndarray
  cosines: np.ndarray
  labels_found: np.ndarray
  size: int


def pictures(
  dataset: data.Dataset, epsilons: Sequence[float], users: int, components: int, num_steps: int, seed: int
) -> Pictures:
  """Attacks one release of PrivUnit for each user and epsilon, infinity for the gradient's direction itself.

  Smaller images are enlarged to 16 x 16. The attacker's prior: principal components of the training images.
  """
  train, test = enlarged(dataset.train), enlarged(dataset.test)
  own = np.random.default_rng(seed).permutation(len(test.labels))[:users]
  images, labels = np.asarray(test.inputs)[own], np.asarray(test.labels)[own]
  shape = images.shape[1:]
  model = models.small_cnn(shape, dataset.num_classes)
  gradient, params = jax.grad(models.cross_entropy(model)), jax.jit(model.init)(jax.random.key(seed))

  def gradient_of(image, label):
    example = data.Examples(image.reshape(1, *shape), label[None], jnp.ones(1))
    return ravel_pytree(gradient(params, example))[0]

  exact = jax.jit(jax.vmap(gradient_of))(images.reshape(users, -1), labels)
  prior = principal_prior(train.inputs, components)
  candidates = jnp.arange(dataset.num_classes, dtype=np.int32)
  attack = jax.jit(match_gradient(gradient_of, candidates, prior, num_steps=num_steps))
  found, right = [], []
  for epsilon in epsilons:
    released, penalty = exact, 0.0
    if math.isfinite(epsilon):
      mechanism = priv_unit(exact.shape[1], epsilon)
      key = jax.random.fold_in(jax.random.key(seed), np.uint32(zlib.crc32(repr(epsilon).encode())))
      released = jax.jit(jax.vmap(mechanism.privatize))(jax.random.split(key, users), exact)
      penalty = _penalty(mechanism.mean_squared_error(1.0), exact.shape[1], components)
    matches = [attack(row, penalty) for row in released]
    found.append([np.asarray(match.input).reshape(shape) for match in matches])
    right.append([bool(match.candidate == label) for match, label in zip(matches, labels, strict=True)])
  array = np.array(found)
  return Pictures(images, array, _cosines(array, images), np.array(right), exact.shape[1])


def enlarged(examples: data.Examples) -> data.Examples:
  """Images of at least 16 x 16 pixels, which the network needs, by linear interpolation."""
  height, width = (max(_SMALLEST, size) for size in examples.inputs.shape[1:3])
  inputs = jax.image.resize(examples.inputs, (len(examples.inputs), height, width), "linear")
  return examples._replace(inputs=np.asarray(inputs))


def _penalty(mean_squared_error, size, components):
  """That of the posterior mode: k s^2 / (2 ||Z||), of noise with variance s^2 in a coordinate."""
  return components * mean_squared_error / size / (2 * math.sqrt(1 + mean_squared_error))


def _cosines(found, images):
  inner = np.sum(found * images, axis=(2, 3))
  return inner / np.maximum(np.linalg.norm(found, axis=(2, 3)) * np.linalg.norm(images, axis=(1, 2)), 1e-20)
