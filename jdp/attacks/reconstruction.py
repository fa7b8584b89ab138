"""Reconstruction in closed form: what a released gradient tells about the input behind it.

The gradient of a generalised linear model at one example is an outer product, residual x (1,
features). It is a multiple of the user's data (arXiv 1812.00984, Section 1).

The attacker is the server. It knows the model and the mechanism, and may have a prior from public
data. It forms an unbiased estimate of the gradient from one of these:

* one release;
* the mean of repeated releases of the same gradient;
* a released sum, minus what it believes about the other gradients.

Then it attacks:

* without noise, `input_of_gradient` is exact;
* with noise, `gaussian_attack` takes the posterior mean under a Gaussian prior and normal noise of
  the estimate's variance. It is as good as any linear attack, whatever the distribution of the
  noise;
* for directions alone, `nearest_in_cap` combines an estimate with a prior that is uniform on a cap.

What an attack achieves is not a guarantee; `jdp.accounting.local.reconstruction` bounds all
attacks.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.typing import ArrayLike

from jdp import _validate
from jdp._arguments import Matrix, Rows, checked
from jdp.numerics.vectors import unit

_MOST_NUMBERS = 2**26  # in an array that a factory makes


class GaussianPrior(NamedTuple):
  """What an attacker believes of an input before any release: a normal distribution on a subspace.

  Attributes:
    mean: float32 [d]. The subspace passes through it.
    basis: float32 [k, d], orthonormal rows.
    variances: float32 [k], > 0, of the coordinates in the basis. The variance orthogonal to the
      basis is zero.
  """

  mean: jax.Array
  basis: jax.Array
  variances: jax.Array


class Reconstruction(NamedTuple):
  """What an attack returns.

  Attributes:
    input: float32 [d].
    candidate: int32 scalar, the number of the candidate (label) that it chose.
  """

  input: jax.Array
  candidate: jax.Array


@checked
def pixel_prior(dim: int) -> GaussianPrior:
  """The prior for `dim` pixels without data: independent, mean 1/2 and variance 1/12.

  It says only that pixels lie in [0, 1]: these are the moments of the uniform distribution.

  >>> pixel_prior(2).mean.tolist()
  [0.5, 0.5]
  """
  _validate.in_range(1, _MOST_NUMBERS, dim=dim)
  return GaussianPrior(jnp.full(dim, 0.5), jnp.eye(dim), jnp.full(dim, 1 / 12))


@checked
def principal_prior(inputs: Rows, num_components: int) -> GaussianPrior:
  """The prior from the mean and the principal components of public inputs.

  Args:
    inputs: [n, ...], flattened to d features; public.
    num_components: k, at most the rank of the centred inputs.

  Raises:
    ValueError: if the inputs have fewer components of positive variance, or are not finite.

  >>> prior = principal_prior(np.array([[0.0, 1.0], [2.0, 1.0]]), 1)
  >>> prior.mean.tolist(), np.abs(prior.basis).tolist(), prior.variances.tolist()
  ([1.0, 1.0], [[1.0, 0.0]], [2.0])
  """
  _validate.integer(1, num_components=num_components)
  values = np.asarray(inputs, np.float64)
  if not np.all(np.isfinite(values)):
    raise ValueError("Expected inputs of finite numbers, got others; leave those examples out.")
  flat = values.reshape(len(values), -1)
  mean = flat.mean(axis=0)
  _, lengths, basis = np.linalg.svd(flat - mean, full_matrices=False)
  # Centring leaves a singular value that is zero up to rounding: it does not count.
  rank = int(np.sum(lengths > 1e-6 * lengths[0]))
  if not num_components <= rank:
    raise ValueError(
      f"Expected num_components of at most {rank}, the rank of the inputs, got {num_components}."
    )
  variances = lengths[:num_components] ** 2 / (len(flat) - 1)
  return GaussianPrior(
    *(jnp.asarray(x, jnp.float32) for x in (mean, basis[:num_components], variances))
  )


@checked
def lowest_frequencies(shape: tuple[int, int], count: int) -> np.ndarray:
  """The projection to an image's lowest frequencies, which give a general sense of it.

  Args:
    shape: (height, width) of an image.
    count: k, 1 <= k <= height * width.

  Returns:
    float32 [k, height * width] with orthonormal rows. They are those of the two-dimensional cosine
    transform (DCT-II) in order of i + j, (0, 0) first.

  >>> lowest_frequencies((2, 2), 1).tolist()
  [[0.5, 0.5, 0.5, 0.5]]
  """
  _check_count(shape, count)
  rows, columns = (scipy.fft.dct(np.eye(size), norm="ortho", axis=0) for size in shape)
  return _first_products(rows, columns, np.add.outer(*map(np.arange, shape)), count)


@checked
def coarsest_wavelets(shape: tuple[int, int], count: int) -> np.ndarray:
  """The projection to an image's coarsest Haar wavelets, another general sense of it.

  Along each axis neighbours are joined in pairs, as long as their number is even. So the means of
  blocks come first: of 4 x 4 pixels for 28 x 28, which 49 wavelets span. Then follow the details of
  each scale, coarse before fine.

  Args:
    shape: (height, width) of an image.
    count: k, 1 <= k <= height * width. Scales are whole at 49 of 28 x 28, and at 1, 4, 16 of 8 x 8.

  Returns:
    float32 [k, height * width] with orthonormal rows.

  Raises:
    ValueError: if there are fewer pixels than k.

  Source: arXiv 1812.00984, Section 2.3, names the first level of a wavelet hierarchy. The wavelets
  are A. Haar's (Mathematische Annalen 69, 1910).

  >>> coarsest_wavelets((2, 2), 1).tolist(), coarsest_wavelets((1, 4), 2).tolist()
  ([[0.5, 0.5, 0.5, 0.5]], [[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, -0.5, -0.5]])
  """
  _check_count(shape, count)
  (rows, row_scales), (columns, column_scales) = map(_haar, shape)
  return _first_products(rows, columns, np.maximum.outer(row_scales, column_scales), count)


def _check_count(shape: tuple[int, int], count: int) -> None:
  """Refuses more coordinates than an image has pixels, or none."""
  height, width = shape
  if not 1 <= count <= height * width:
    raise ValueError(f"Expected count in [1, {height * width}], the number of pixels, got {count}.")


def _haar(size: int) -> tuple[np.ndarray, np.ndarray]:
  """(orthonormal rows [size, size], their scales [size]): 1 over the size of a constant piece."""
  means, details, scales = np.eye(size), [], []
  while len(means) % 2 == 0:  # ends at one mean of all pixels, or earlier
    first, second = means[::2], means[1::2]
    scales.append(np.full(len(first), len(means) / size))
    details.append((first - second) / math.sqrt(2))
    means = (first + second) / math.sqrt(2)
  scales.append(np.full(len(means), len(means) / size))
  return np.concatenate([means, *reversed(details)]), np.concatenate(scales[::-1])


def _first_products(
  rows: np.ndarray, columns: np.ndarray, order: np.ndarray, count: int
) -> np.ndarray:
  """The products of two bases that come first in an order [height, width], float32 [count, d]."""
  first = np.argsort(order.ravel(), kind="stable")[:count]
  return np.kron(rows, columns)[first].astype(np.float32)


@checked
def input_of_gradient(gradient: Matrix) -> jax.Array:
  """The input, from a noiseless gradient of a generalised linear model with an intercept.

  Row c of the gradient is residual_c (x, 1), so its features over its intercept are x. The result
  is the average over the rows, weighted by the squares of the intercepts. It is exact to float32's
  rounding. If all residuals are zero, the gradient tells nothing and the result is zero. Do not use
  it with noise, which it would divide by.

  Args:
    gradient: [outputs, features + 1], the intercept's column last.

  Returns:
    float32 [features].

  >>> input_of_gradient(jnp.outer(jnp.array([-0.5, 0.5]), jnp.array([0.25, 0.75, 1.0]))).tolist()
  [0.25, 0.75]
  """
  rows = jnp.asarray(gradient)
  intercepts = rows[:, -1]
  square = jnp.sum(intercepts**2)
  return intercepts @ rows[:, :-1] / jnp.where(square > 0, square, 1.0)


@checked
def residuals_at_zero(num_classes: int) -> np.ndarray:
  """The residuals of multinomial regression at parameters of zero: softmax(0) - onehot(label).

  Returns:
    float32 [num_classes, num_classes], a row for each label.

  >>> residuals_at_zero(2).tolist()
  [[-0.5, 0.5], [0.5, -0.5]]
  """
  _validate.in_range(2, math.isqrt(_MOST_NUMBERS), num_classes=num_classes)
  return (1 / num_classes - np.eye(num_classes)).astype(np.float32)


@checked
def gaussian_attack(
  residuals: Matrix, prior: GaussianPrior
) -> Callable[[jax.Array, ArrayLike], Reconstruction]:
  """The posterior mean of the input, from a noisy gradient and candidates for its residual.

  A candidate r for the residual makes the observation linear in the input. r^T G / |r|^2 is (x, 1)
  plus noise of variance `noise_variance` / |r|^2. The attack compares the evidence of the
  candidates, and returns the posterior mean under the best one. It is exact for independent normal
  noise. For other noise of that covariance it is the best linear estimate.

  Args:
    residuals: [m, outputs], the candidates, none zero. For a model at its start they are
      `residuals_at_zero`.
    prior: the prior of inputs, over the features.

  Returns:
    (gradient [outputs, features + 1], noise_variance) -> `Reconstruction`. The gradient is an
    unbiased estimate, the intercept's column last. Its noise has variance `noise_variance` > 0 in
    each coordinate. That is E||Z - g||^2 / size for a local release, and 1/n of it for the mean of
    n releases.

  >>> attack = gaussian_attack(residuals_at_zero(2), pixel_prior(2))
  >>> found = attack(jnp.outer(jnp.array([0.5, -0.5]), jnp.array([0.25, 0.75, 1.0])), 1e-6)
  >>> found.candidate.item(), [round(x, 3) for x in found.input.tolist()]
  (1, [0.25, 0.75])
  """
  candidates = jnp.asarray(residuals, jnp.float32)

  def of_candidate(residual, gradient, noise_variance):
    square = jnp.sum(residual**2)
    matched = residual @ gradient / square  # (x, 1) plus noise
    surprise = matched - jnp.append(prior.mean, 1.0)
    signal = prior.basis @ surprise[:-1]
    ratio = prior.variances * square / noise_variance
    # The log evidence, minus a term that all candidates share: that of a model in which noise alone
    # explains |matched|^2.
    gain = jnp.sum(matched**2) - jnp.sum(surprise**2) + jnp.sum(signal**2 * ratio / (1 + ratio))
    evidence = 0.5 * (square / noise_variance * gain - jnp.sum(jnp.log1p(ratio)))
    return evidence, prior.mean + (signal * ratio / (1 + ratio)) @ prior.basis

  def attack(gradient, noise_variance):
    evidence, inputs = jax.vmap(of_candidate, (0, None, None))(candidates, gradient, noise_variance)
    best = jnp.argmax(evidence).astype(jnp.int32)
    return Reconstruction(inputs[best], best)

  return attack


def nearest_in_cap(direction: jax.Array, center: jax.Array, angle: ArrayLike) -> jax.Array:
  """The unit vector nearest to a direction among those within an angle of `center`.

  It serves an attacker whose prior is uniform on a cap around `center`. The likelihood of a release
  must fall with the angle to `direction`. This holds for PrivUnit, for the hemisphere, and for
  every noise whose density depends on the L2 norm alone.

  Take a cap no larger than half the sphere. Then the result is at least as close to every vector in
  the cap as `direction` was. With a smaller angle (the cap's minus that of the ball of success),
  the whole ball around the result lies in the cap. Which of the two guesses is better depends on
  the noise. With no cap, `direction` itself is the best guess.

  Args:
    direction: [d], of any length. The first basis vector replaces one that has no direction.
    center: [d], a unit vector.
    angle: in radians. An angle below zero counts as zero, which gives the centre itself.

  Returns:
    float32 [d], a unit vector.

  >>> [
  ...   round(x, 3)
  ...   for x in nearest_in_cap(jnp.array([0.0, 1.0]), jnp.array([1.0, 0.0]), np.pi / 3).tolist()
  ... ]
  [0.5, 0.866]
  """
  u = unit(direction)
  angle = jnp.maximum(jnp.asarray(angle, jnp.float32), 0.0)
  height = jnp.sum(u * center)
  sideways = unit(u - height * center)
  inside = height >= jnp.cos(angle)
  return jnp.where(inside, u, unit(jnp.cos(angle) * center + jnp.sin(angle) * sideways))


def succeeds(estimate: jax.Array, target: jax.Array, alpha: float) -> jax.Array:
  """Whether a reconstruction is alpha-good: two vectors [d], normalised, are at most alpha apart.

  >>> bool(succeeds(jnp.array([3.0, 0.0]), jnp.array([1.0, 1.0]), 0.77))
  True
  """
  return jnp.sum((unit(estimate) - unit(target)) ** 2) <= alpha**2
