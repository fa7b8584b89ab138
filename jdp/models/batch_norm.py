"""Batch normalisation for private training, by the server's statistics, never by a batch's.

Ordinary batch normalisation makes an example's gradient depend on the other examples of its batch.
One more record would then move the contributions of all others.

Here every record is normalised with the running statistics that the server sends. It reports the
moments of its normalised activations together with its gradient. They are one more vector to be
clipped, summed and noised (arXiv 1812.06210, Section 1). The server moves the statistics by the
noised averages.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdp._arguments import checked
from jdp.models.base import Model, check_sizes, mean_of_counting
from jdp.models.cnn import Conv, with_channels

PyTree = Any

VARIANCE_RANGE = (1e-6, 1e6)
"""The range of running variances, whatever is released. So no divisor is zero or infinite."""


class Statistics(NamedTuple):
  """The server's running statistics of a layer's activations.

  Attributes:
    mean: float32 [features].
    variance: float32 [features], within `VARIANCE_RANGE`.
  """

  mean: jax.Array
  variance: jax.Array


class Moments(NamedTuple):
  """The moments of a layer's normalised activations u.

  They are those of a record, or their average over a sample.

  Both are near zero where the statistics fit. So clipping removes little, and the sample's size
  matters little to an average over its expected size.

  Attributes:
    shift: mean of u, float32 [features].
    spread: mean of u^2 - 1, float32 [features].
  """

  shift: jax.Array
  spread: jax.Array


class NormalisedModel(NamedTuple):
  """A classifier with normalised layers, as pure functions.

  Attributes:
    init: key -> weights, a plain pytree of float32 arrays.
    init_statistics: () -> `Statistics` of each normalised layer, by name. The mean is 0 and the
      variance is 1.
    apply: (weights, statistics, inputs [n, ...]) -> (logits [n, num_classes], normalised
      activations [n, ..., features] by layer). Examples do not affect each other.
  """

  init: Callable[[jax.Array], PyTree]
  init_statistics: Callable[[], dict[str, Statistics]]
  apply: Callable[
    [PyTree, Mapping[str, Statistics], jax.Array], tuple[jax.Array, dict[str, jax.Array]]
  ]


@checked
def without_statistics(model: Model) -> NormalisedModel:
  """A model that normalises nothing, in the form of one that does."""
  return NormalisedModel(
    model.init, dict, lambda weights, statistics, inputs: (model.apply(weights, inputs), {})
  )


def record_moments(normalised: Mapping[str, jax.Array], mask: jax.Array) -> dict[str, Moments]:
  """The moments of one record, by layer.

  They are means over its examples that count, and over places. They are zeros if no example counts.

  >>> u = {"layer": jnp.array([[1.0, 2.0], [3.0, 0.0], [9.0, 9.0]])}
  >>> moments = record_moments(u, jnp.array([1.0, 1.0, 0.0]))["layer"]
  >>> moments.shift.tolist(), moments.spread.tolist()
  ([2.0, 1.0], [4.0, 1.0])
  """

  def mean(values):
    by_example = jnp.mean(values, axis=tuple(range(1, values.ndim - 1)))
    return jax.vmap(mean_of_counting, (1, None))(by_example, mask)

  return {name: Moments(mean(u), mean(u**2 - 1.0)) for name, u in normalised.items()}


def move(statistics: Statistics, moments: Moments, rate: float) -> Statistics:
  """The running statistics after a round: a mixture of the old activations and the sample's.

  Its weights are 1 - rate for `statistics`, and rate for `moments`. In normalised units its mean is
  rate * shift, and its variance is 1 + rate * spread - (rate * shift)^2.

  For any true moments that variance is at least 1 - rate. Noise may take it lower, even below zero,
  so 1 - rate is enforced. A variance therefore stays positive and loses at most the share `rate` of
  itself in a round. It also stays within `VARIANCE_RANGE`.

  Args:
    statistics: the statistics before the round.
    moments: the noised average over the sample, from activations normalised with these statistics.
    rate: in (0, 1).

  >>> exact = Moments(jnp.array([2.0]), jnp.array([4.0]))  # mean 2, mean square 5: variance 1
  >>> moved = move(Statistics(jnp.array([0.0]), jnp.array([1.0])), exact, rate=0.5)
  >>> (
  ...   moved.mean.tolist(),
  ...   moved.variance.tolist(),
  ... )  # half at mean 0, half at mean 2, each of variance 1
  ([1.0], [2.0])
  """
  shift = rate * moments.shift
  factor = jnp.maximum(1.0 + rate * moments.spread - shift**2, 1.0 - rate)
  return Statistics(
    statistics.mean + shift * jnp.sqrt(statistics.variance),
    jnp.clip(statistics.variance * factor, *VARIANCE_RANGE),
  )


_CONVOLVED, _HIDDEN = 16, 32  # features of the two normalised layers


class _Affine(nn.Module):
  """A learnt scale and offset of each feature."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    scale = self.param("scale", nn.initializers.ones_init(), x.shape[-1:])
    offset = self.param("offset", nn.initializers.zeros_init(), x.shape[-1:])
    lift = (None,) * (x.ndim - 1)  # explicit, as rank promotion may be forbidden
    return x * scale[lift] + offset[lift]


class _BatchNormCNN(nn.Module):
  """The network of `batch_norm_cnn`."""

  num_classes: int

  @nn.compact
  def __call__(
    self, x: jax.Array, statistics: Mapping[str, Statistics]
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    normalised: dict[str, jax.Array] = {}

    def normalise(name: str, x: jax.Array) -> jax.Array:
      mean, variance = (s[(None,) * (x.ndim - 1)] for s in statistics[name])
      normalised[name] = (x - mean) / jnp.sqrt(variance)
      return nn.relu(_Affine(name=f"{name}_affine")(normalised[name]))

    x = normalise("Conv_0", Conv(_CONVOLVED, (4, 4), 2, "SAME", name="Conv_0")(x))
    x = normalise("Dense_0", nn.Dense(_HIDDEN, name="Dense_0")(x.reshape(x.shape[0], -1)))
    return nn.Dense(self.num_classes, name="Dense_1")(x), normalised


@checked
def batch_norm_cnn(input_shape: tuple[int, ...], num_classes: int) -> NormalisedModel:
  """A convolution and a dense layer, each normalised, and a dense layer on top.

  Args:
    input_shape: (height, width) or (height, width, channels), at least 4 x 4.
    num_classes: at least 2.

  Raises:
    ValueError: if an argument is out of range.

  >>> model = batch_norm_cnn((8, 8), 10)
  >>> weights = model.init(jax.random.key(0))
  >>> logits, normalised = model.apply(weights, model.init_statistics(), jnp.ones((2, 8, 8)))
  >>> logits.shape, {name: u.shape for name, u in normalised.items()}
  ((2, 10), {'Conv_0': (2, 4, 4, 16), 'Dense_0': (2, 32)})
  """
  check_sizes(2, num_classes=num_classes)
  images = with_channels(input_shape, 4, "scale them up, or take a model for inputs of that shape")
  network = _BatchNormCNN(num_classes)

  def init_statistics():
    sizes = {"Conv_0": _CONVOLVED, "Dense_0": _HIDDEN}
    return {name: Statistics(jnp.zeros(size), jnp.ones(size)) for name, size in sizes.items()}

  def init(key):
    return network.init(key, images(jnp.zeros((1, *input_shape))), init_statistics())["params"]

  def apply(weights, statistics, inputs):
    return network.apply({"params": weights}, images(inputs), statistics)

  return NormalisedModel(init, init_statistics, apply)
