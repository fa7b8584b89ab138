"""Reconstruction of images from a convolutional network's initial gradients, by optimisation."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from experiments.runner.keys import case_key
from jdp import data, models
from jdp.attacks.gradient_matching import Candidates, match_gradient
from jdp.attacks.reconstruction import pixel_prior, principal_prior
from jdp.data.datasets import Dataset
from jdp.guarantees import rounded_up
from jdp.mechanisms import priv_unit

_SMALLEST = 16
_PUBLIC = 1000  # Images whose gradients the attacker compares with the release.
_STARTS = 8


class Picture(NamedTuple):
  """The reconstructions of the users' images from one view.

  Attributes:
    label: of the view.
    found: [users, height, width].
    cosines: [users], between an image and its reconstruction.
    labels_found: bool [users], whether the label was found.
  """

  label: str
  found: np.ndarray
  cosines: np.ndarray
  labels_found: np.ndarray


class Pictures(NamedTuple):
  """The users' images, their reconstructions in each view, and the size of a gradient.

  Images are [users, height, width].
  """

  images: np.ndarray
  views: list[Picture]
  size: int


class _View(NamedTuple):
  """Estimates of gradients' directions, [users, size], and the noise variance of a coordinate."""

  label: str
  estimate: jax.Array
  variance: float
  public: bool = True


def pictures(
  dataset: Dataset,
  epsilons: Sequence[float],
  users: int,
  *,
  releases: int,
  components: int,
  num_steps: int,
  seed: int,
) -> Pictures:
  """Attacks releases of PrivUnit: one of each user at each epsilon.

  At the first private epsilon it attacks further views too. Smaller images are enlarged to 16 x 16.
  With public images, the prior is their principal components. The attack then starts at those
  images whose gradients are nearest to the release. Without public images, it starts at grey with
  every label.

  Args:
    dataset: the users are test images drawn at random; the training images are public.
    epsilons: infinity stands for the gradient's direction itself.
    users: number of users.
    releases: number of releases in the view of repeated ones.
    components: number of principal components of the prior.
    num_steps: of the optimiser.
    seed: of the users, the network and the noise.
  """
  train, test = enlarged(dataset.train), enlarged(dataset.test)
  own = np.random.default_rng(seed).permutation(len(test.labels))[:users]
  images, labels = np.asarray(test.inputs)[own], np.asarray(test.labels)[own]
  gradient_of = _gradient(images.shape[1:], dataset.num_classes, seed)
  gradients = jax.jit(jax.vmap(gradient_of))
  exact = _normalised(gradients(images.reshape(users, -1), labels))
  prior = principal_prior(train.inputs, components)
  public_labels = jnp.asarray(train.labels[:_PUBLIC], np.int32)
  public_images = jnp.asarray(train.inputs[:_PUBLIC]).reshape(-1, images[0].size)
  public = _normalised(gradients(public_images, public_labels))

  def nearest(release):
    best = jnp.argsort(-(public @ release))[:_STARTS]
    return Candidates(public_labels[best], public_images[best])

  grey = jnp.full((dataset.num_classes, images[0].size), 0.5)
  everything = Candidates(jnp.arange(dataset.num_classes, dtype=np.int32), grey)
  informed = jax.jit(match_gradient(gradient_of, prior, num_steps=num_steps))
  blind = jax.jit(match_gradient(gradient_of, pixel_prior(images[0].size), num_steps=num_steps))

  def attacked(view: _View) -> Picture:
    rows = []
    for release in view.estimate:
      coordinates = components if view.public else images[0].size
      candidates = nearest(release) if view.public else everything
      # It makes the minimum the posterior mode under normal noise: see `match_gradient`.
      penalty = coordinates * view.variance / (2 * float(jnp.linalg.norm(release)))
      match = (informed if view.public else blind)(release, penalty, candidates)
      rows.append((np.asarray(match.input), int(candidates.labels[match.candidate])))
    found = np.array([row[0] for row in rows]).reshape(images.shape)
    return Picture(
      view.label, found, _cosines(found, images), np.array([row[1] for row in rows]) == labels
    )

  return Pictures(
    images, [attacked(view) for view in _views(exact, epsilons, releases, seed)], exact.shape[1]
  )


def _views(
  exact: jax.Array, epsilons: Sequence[float], releases: int, seed: int
) -> Iterator[_View]:
  """The views of the users' gradients: one release at each epsilon, and further ones.

  The first private epsilon has three more: no prior, repeated releases, and the sum over the users.
  """
  users, size = exact.shape
  private = [epsilon for epsilon in epsilons if math.isfinite(epsilon)]
  if len(private) < len(epsilons):
    yield _View("∞", exact, 0.0)
    yield _View("∞, no prior", exact, 0.0, public=False)
  for epsilon in private:
    mechanism = priv_unit(size, epsilon)
    release = jax.jit(jax.vmap(mechanism.privatize))
    variance = mechanism.mean_squared_error(1.0) / size
    key = case_key(seed, epsilon)
    count = releases if epsilon == private[0] else 1
    keys, label = jax.random.split(key, (count, users)), rounded_up(epsilon)
    released = [release(keys[i], exact) for i in range(count)]
    yield _View(label, released[0], variance)
    if count > 1:
      yield _View(f"{label}, no prior", released[0], variance, public=False)
      yield _View(
        f"{label}, {count} releases", sum(released[1:], released[0]) / count, variance / count
      )
    if count > 1 and users > 1:
      # The attacker knows the other users' directions, and subtracts them from the sum.
      others = jnp.sum(exact, axis=0) - exact
      whole = jnp.sum(released[0], axis=0)
      yield _View(f"{label}, sum of {users},\nothers known", whole - others, users * variance)


def enlarged(examples: data.Examples) -> data.Examples:
  """Images of at least 16 x 16 pixels, which the network needs, by linear interpolation."""
  height, width = (max(_SMALLEST, size) for size in examples.inputs.shape[1:3])
  inputs = jax.image.resize(examples.inputs, (len(examples.inputs), height, width), "linear")
  return examples._replace(inputs=np.asarray(inputs))


def _gradient(
  shape: tuple[int, ...], num_classes: int, seed: int
) -> Callable[[jax.Array, jax.Array], jax.Array]:
  """The flat gradient of the network's loss at its initial parameters: (image, label) -> [size]."""
  model = models.small_cnn(shape, num_classes)
  gradient = jax.grad(models.cross_entropy(model))
  params = jax.jit(model.init)(jax.random.key(seed))

  def gradient_of(image, label):
    example = data.Examples(image.reshape(1, *shape), label[None], jnp.ones(1))
    return ravel_pytree(gradient(params, example))[0]

  return gradient_of


def _normalised(rows: jax.Array) -> jax.Array:
  return rows / jnp.maximum(jnp.linalg.norm(rows, axis=1, keepdims=True), 1e-20)


def _cosines(found: np.ndarray, images: np.ndarray) -> np.ndarray:
  inner = np.sum(found * images, axis=(1, 2))
  return inner / np.maximum(
    np.linalg.norm(found, axis=(1, 2)) * np.linalg.norm(images, axis=(1, 2)), 1e-20
  )
