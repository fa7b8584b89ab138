"""Losses of models: classification, regression, and any other loss per example.

Padding changes neither a loss nor its gradient, whatever it holds, and a client without examples
has the loss 0.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jdp import _validate
from jdp._arguments import checked
from jdp.data.clients import Examples
from jdp.models.base import Loss, Model, mean_of_counting, predictions, without_padding

PyTree = Any


@checked
def example_loss(model: Model, losses: Callable[[PyTree, PyTree], jax.Array]) -> Loss:
  """The loss (parameters, examples, key) -> mean of `losses` over the examples that count.

  Without a key, nothing is dropped. The loss is 0 if no example counts. The contents of padding,
  NaN included, change neither the loss nor its gradient.

  Args:
    model: what is trained.
    losses: (predictions [n, ...], labels) -> a loss for each example, float32 [n]. Labels are those
      of the examples: an array of any type, or a pytree of arrays, each with leading axis n.

  Raises:
    ValueError: when the loss is first traced, if `losses` returns another shape than [n].

  >>> from jdp import data, models
  >>> model = models.logistic_regression((3,), 2)
  >>> absolute = example_loss(model, lambda scores, labels: jnp.abs(scores[:, 0] - labels))
  >>> made = data.examples(jnp.ones((4, 3)), [0.5, 1.5, 0.5, 1.5], label_kind="numbers")
  >>> absolute(model.init(jax.random.key(0)), made).item()
  1.0
  """

  def loss(params, examples, key=None):
    inputs, labels, mask = without_padding(examples)
    found = losses(predictions(model, params, inputs, key), labels)
    if jnp.shape(found) != mask.shape:
      raise ValueError(
        f"Expected a loss for each example, of shape {mask.shape}, got shape {jnp.shape(found)}; "
        "average over the other axes, or sum."
      )
    return mean_of_counting(found, mask)

  return loss


@dataclasses.dataclass(frozen=True)
class CrossEntropy:
  """The loss that `cross_entropy` makes.

  Attributes:
    model: what is trained.
    tell: called with the model's number of classes whenever the loss is traced.
  """

  model: Model
  tell: Callable[[int], None] | None = dataclasses.field(default=None, repr=False)

  def __call__(self, params: PyTree, examples: Examples, key: jax.Array | None = None) -> jax.Array:
    """The mean cross-entropy."""

    def losses(scores, labels):
      if self.tell is not None:
        self.tell(scores.shape[-1])
      return optax.losses.softmax_cross_entropy_with_integer_labels(scores, labels)

    return example_loss(self.model, losses)(params, examples, key)


@checked
def cross_entropy(model: Model) -> Loss:
  """The loss (parameters, examples, key) -> mean cross-entropy over the examples that count.

  Without a key, nothing is dropped. The loss is 0 if no example counts. The contents of padding,
  NaN included, change neither the loss nor its gradient.

  >>> from jdp import data, models
  >>> model = models.logistic_regression((3,), 2)
  >>> made = data.examples(jnp.ones((4, 3)), [0, 1, 0, 1])
  >>> round(cross_entropy(model)(model.init(jax.random.key(0)), made).item(), 3)  # of log 2
  0.693
  """
  return CrossEntropy(model)


@checked
def binary_cross_entropy(model: Model) -> Loss:
  """The loss of yes and no: mean cross-entropy of logits with labels in [0, 1].

  The model has one logit for each label: [n] or [n, 1] for labels [n], or [n, k] for k labels of
  each example, whose losses are averaged. Labels may be booleans, whole numbers or floats. See
  `example_loss` for the rest.

  Raises:
    ValueError: when the loss is first traced, if logits and labels differ in shape.

  >>> from jdp import data
  >>> line = Model(lambda key: {"w": jnp.zeros((1, 1))}, lambda params, x: x @ params["w"])
  >>> made = data.examples(jnp.ones((2, 1)), [False, True], label_kind="numbers")
  >>> round(binary_cross_entropy(line)(line.init(jax.random.key(0)), made).item(), 3)  # of log 2
  0.693
  """
  return _elementwise(model, optax.losses.sigmoid_binary_cross_entropy)


@checked
def squared_error(model: Model) -> Loss:
  """The loss of least squares: the mean of (prediction - label)^2.

  Labels are float32 [n], or [n, k] for k numbers of each example, whose losses are averaged. See
  `example_loss` for the rest.

  Raises:
    ValueError: when the loss is first traced, if predictions and labels differ in shape. A model of
      one output, [n, 1], predicts labels [n].

  >>> from jdp import data
  >>> line = Model(lambda key: {"w": jnp.zeros((1, 1))}, lambda params, x: x @ params["w"])
  >>> made = data.examples(jnp.ones((2, 1)), [1.0, 2.0], label_kind="numbers")
  >>> squared_error(line)(line.init(jax.random.key(0)), made).item()
  2.5
  """
  return _elementwise(model, optax.losses.squared_error)


@checked
def huber(model: Model, threshold: float = 1.0) -> Loss:
  """The Huber loss: e^2 / 2 for an error e of up to `threshold` t, and t (|e| - t / 2) beyond.

  Its derivative by a prediction is at most t, so an outlier does not use up a client's clip norm.
  Labels are those of `squared_error`.

  Raises:
    ValueError: if the threshold is not positive. When the loss is first traced: if predictions and
      labels differ in shape.

  >>> from jdp import data
  >>> line = Model(lambda key: {"w": jnp.zeros((1, 1))}, lambda params, x: x @ params["w"])
  >>> made = data.examples(jnp.ones((2, 1)), [0.5, 3.0], label_kind="numbers")
  >>> huber(line)(line.init(jax.random.key(0)), made).item()  # the mean of 0.125 and 2.5
  1.3125
  """
  _validate.positive(threshold=threshold)

  def losses(values, labels):
    errors = jnp.abs(values - labels)
    small = jnp.minimum(errors, threshold)
    return small**2 / 2 + threshold * (errors - small)

  return _elementwise(model, losses)


def _elementwise(model: Model, losses: Callable[[jax.Array, jax.Array], jax.Array]) -> Loss:
  """The loss that is the mean of `losses` over the numbers of an example."""

  def of_examples(values, labels):
    # Without this, [n, 1] minus [n] would be [n, n]: every example compared with every other.
    if values.shape == (*labels.shape, 1):
      values = values[..., 0]
    if values.shape != labels.shape:
      raise ValueError(
        f"Expected predictions of the labels' shape {labels.shape}, got {values.shape}; give the "
        "model one output for each number of a label."
      )
    found = losses(values, labels.astype(values.dtype))
    return jnp.mean(found.reshape(found.shape[0], -1), axis=1)

  return example_loss(model, of_examples)
