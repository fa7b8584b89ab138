"""Generalised linear models with their canonical links.

They are linear, logistic, multinomial and Poisson regression.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp.data.clients import Examples
from jdp.models.base import Loss, check_input_shape, check_sizes


class Family(NamedTuple):
  """A distribution of the response in natural form.

  The density at y is e^(y . s - cumulant(s)), up to a factor that depends on y alone.

  Attributes:
    cumulant: scores [n, outputs] -> [n]. Its gradient is the mean (P. McCullagh and J. A. Nelder,
      "Generalized Linear Models", 1989, Section 2.2.2).
    mean: scores [n, outputs] -> expected responses [n, outputs], the inverse of the canonical link.
    curvature: an upper bound on the eigenvalues of the cumulant's second derivative.
    largest_residual: an upper bound on |mean - response| for responses in [0, 1].
  """

  cumulant: Callable[[jax.Array], jax.Array]
  mean: Callable[[jax.Array], jax.Array]
  curvature: float
  largest_residual: float


FAMILIES = {
  # unit variance, identity link
  "linear": Family(lambda s: jnp.sum(s**2, axis=1) / 2, lambda s: s, 1.0, math.inf),
  "logistic": Family(lambda s: jnp.sum(jax.nn.softplus(s), axis=1), jax.nn.sigmoid, 0.25, 1.0),
  "poisson": Family(lambda s: jnp.sum(jnp.exp(s), axis=1), jnp.exp, math.inf, math.inf),
  # No eigenvalue of diag(p) - p p^T, the covariance of one draw, is above 1/2.
  "multinomial": Family(
    lambda s: jax.nn.logsumexp(s, axis=1), lambda s: jax.nn.softmax(s, axis=1), 0.5, 1.0
  ),
}


class GLM(NamedTuple):
  """A generalised linear model as pure functions.

  Parameters are one float32 array [outputs, features].

  Attributes:
    init: key -> parameters, all zero.
    apply: (parameters, inputs [n, ...]) -> scores [n, outputs], before the link.
    predict: (parameters, inputs [n, ...]) -> expected responses [n, outputs].
    loss: (parameters, examples) -> the mean negative log-likelihood of the examples that count, 0
      if none counts. It leaves out the term that depends on the responses alone.
    gradient: (parameters, examples) -> the gradient of `loss`, [outputs, features]. It is the
      average of (expected response - response) times the features.
    smoothness: an upper bound on the eigenvalues of the loss's second derivative, whatever the
      examples: the family's curvature times the number of features.
    gradient_bound: an upper bound on the size of a coordinate of the gradient, whatever the
      examples.
  """

  init: Callable[[jax.Array], jax.Array]
  apply: Callable[[jax.Array, jax.Array], jax.Array]
  predict: Callable[[jax.Array, jax.Array], jax.Array]
  loss: Loss
  gradient: Callable[[jax.Array, Examples], jax.Array]
  smoothness: float
  gradient_bound: float


@checked
def glm(family: str, input_shape: tuple[int, ...], num_outputs: int = 1) -> GLM:
  """A generalised linear model on features and responses in [0, 1].

  Source: arXiv 1807.04369, Sections 3.1 and 3.2.

  Features and responses are clipped to [0, 1] first, and NaN counts as 0. Data scaled to that range
  are unchanged. For finite parameters, the gradient is finite for any data of a client. (For
  Poisson regression the scores must be below 88.) So the coordinates of a logistic or multinomial
  gradient lie in [-1, 1]. One feature adds a column to a multinomial gradient, with an L1 norm of
  at most 2.

  There is no intercept. Append a feature that is always 1: `with_intercept`.

  Args:
    family: "linear", "logistic", "poisson" or "multinomial".
    input_shape: the shape of one input, which is flattened to features.
    num_outputs: the number of responses of one example. For "multinomial", the number of classes
      (>= 2); else 1.

  Returns:
    A `GLM`. For "multinomial" the labels are int32 classes; a label outside the classes fits none.
    Otherwise they are int32 or float32 responses in [0, 1].

  Raises:
    ValueError: if the family is another, or it does not take this number of outputs.

  >>> from jdp.data import Examples
  >>> model = glm("logistic", (2,))
  >>> client = Examples(jnp.array([[1.0, 0.5]]), jnp.array([1.0]), jnp.ones(1))
  >>> model.gradient(model.init(jax.random.key(0)), client).tolist()
  [[-0.5, -0.25]]
  """
  _validate.one_of(tuple(FAMILIES), family=family)
  check_sizes(2 if family == "multinomial" else 1, num_outputs=num_outputs)
  check_input_shape(input_shape)
  if family != "multinomial" and num_outputs != 1:
    raise ValueError(
      f"Expected num_outputs 1 for family {family!r}, got {num_outputs}; use 'multinomial'."
    )
  cumulant, mean, curvature, largest_residual = FAMILIES[family]
  features = math.prod(input_shape)

  def init(key):
    del key  # The loss is convex: zero is as good a start as any.
    return jnp.zeros((num_outputs, features))

  def flat(inputs):
    return _unit_interval(inputs.reshape(inputs.shape[0], features))

  def responses(labels):
    if family == "multinomial":
      return jax.nn.one_hot(labels, num_outputs)
    return _unit_interval(labels.astype(jnp.float32))[:, None]

  def apply(params, inputs):
    return flat(inputs) @ params.T

  def loss(params, examples):
    scores = apply(params, examples.inputs)
    losses = cumulant(scores) - jnp.sum(responses(examples.labels) * scores, axis=1)
    return jnp.sum(losses * _shares(examples.mask))

  def gradient(params, examples):
    inputs = flat(examples.inputs)
    residuals = mean(inputs @ params.T) - responses(examples.labels)
    return (residuals * _shares(examples.mask)[:, None]).T @ inputs

  def predict(params, inputs):
    return mean(apply(params, inputs))

  return GLM(init, apply, predict, loss, gradient, curvature * features, largest_residual)


def with_intercept(inputs: jax.Array) -> jax.Array:
  """`inputs` [..., features] with one more feature, always 1.

  >>> with_intercept(jnp.zeros((1, 2))).tolist()
  [[0.0, 0.0, 1.0]]
  """
  return jnp.concatenate([inputs, jnp.ones((*inputs.shape[:-1], 1))], axis=-1)


def _unit_interval(x: jax.Array) -> jax.Array:
  """x clipped to [0, 1], with 0 for NaN."""
  return jnp.where(x > 0, jnp.minimum(x, 1.0), 0.0)  # x > 0 is false for NaN


def _shares(mask: jax.Array) -> jax.Array:
  """Each example's share of the average: zeros if no example counts."""
  return mask / jnp.maximum(jnp.sum(mask), 1.0)
