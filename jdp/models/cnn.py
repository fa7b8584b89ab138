"""A small convolutional network, the one that the differential privacy literature trains on MNIST."""

import flax.linen as nn
import jax.numpy as jnp

from jdp import _validate
from jdp.models.base import Model


class _SmallCNN(nn.Module):
  num_classes: int

  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Conv(16, (8, 8), strides=2, padding="SAME")(x))
    x = nn.max_pool(x, (2, 2))
    x = nn.relu(nn.Conv(32, (4, 4), strides=2, padding="VALID")(x))
    x = nn.max_pool(x, (2, 2))
    x = nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1)))
    return nn.Dense(self.num_classes)(x)


def small_cnn(input_shape: tuple[int, ...], num_classes: int) -> Model:
  """Two convolutions and two dense layers; 26,010 parameters on 28 x 28 images of 10 classes.

  The architecture of TensorFlow Privacy's MNIST tutorial, so that results can be compared.

  Args:
    input_shape: (height, width) or (height, width, channels), at least 16 x 16.
    num_classes: at least 2.

  Raises:
    ValueError: if the images are too small for the second convolution.

  >>> model = small_cnn((28, 28), 10)
  >>> sum(x.size for x in jax.tree.leaves(model.init(jax.random.key(0))))
  26010
  """
  _validate.integer(2, num_classes=num_classes)
  if len(input_shape) not in (2, 3) or min(input_shape[:2]) < 16:
    raise ValueError(f"Expected images of at least 16 x 16 pixels, got shape {input_shape}; use logistic_regression.")
  height, width, channels = (*input_shape, 1)[:3]
  network = _SmallCNN(num_classes)

  def images(inputs):
    return inputs.reshape(inputs.shape[0], height, width, channels)

  def init(key):
    return network.init(key, images(jnp.zeros((1, *input_shape))))["params"]

  def apply(params, inputs):
    return network.apply({"params": params}, images(inputs))

  return Model(init, apply)
