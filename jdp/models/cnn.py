"""A small convolutional network: the usual one for MNIST in the differential privacy literature.

Clients differ in their weights' gradients. So vmap turns each convolution into one small
convolution per client, and XLA computes these one by one on CPU. Written as patches and a matrix
product, they stay one batched product, which is 3 to 20 times faster there.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jdp._arguments import checked
from jdp.models.base import Model, check_input_shape, check_sizes
from jdp.models.products import product


class Conv(nn.Module):
  """`nn.Conv` in two dimensions, as a product of patches and weights.

  It has the same parameters and results.
  """

  features: int
  kernel_size: tuple[int, int]
  stride: int
  padding: str

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [n, height, width, channels] to [n, height', width', features]."""
    shape = (*self.kernel_size, x.shape[-1], self.features)
    kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
    bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
    strides = (self.stride, self.stride)
    pads = jax.lax.padtype_to_pads(x.shape[1:3], self.kernel_size, strides, self.padding)
    patches = _patches(jnp.pad(x, ((0, 0), *pads, (0, 0))), self.kernel_size, self.stride)
    return product(patches, kernel.reshape(-1, self.features)) + bias[None, None, None]


def _patches(x: jax.Array, kernel_size: tuple[int, ...], stride: int) -> jax.Array:
  """All patches of images, without padding.

  It maps [n, height, width, channels] to [n, height', width', size of a patch]. The size is kernel
  height * kernel width * channels.
  """
  rows, columns = (
    np.arange(0, size - width + 1, stride)[:, None] + np.arange(width)
    for size, width in zip(x.shape[1:3], kernel_size, strict=True)
  )
  # Slices copy whole rows of the kernel. A gather would copy number by number.
  x = jnp.stack(
    [x[:, :, own[0] : own[-1] + 1].reshape(*x.shape[:2], -1) for own in columns], axis=2
  )
  return jnp.concatenate([x[:, own[0] : own[-1] + 1 : stride] for own in rows.T], axis=-1)


def _max_pool(x: jax.Array) -> jax.Array:
  """`nn.max_pool(x, (2, 2))` with stride 1.

  Its gradient needs no windows.
  """
  x = jnp.maximum(x[:, 1:], x[:, :-1])
  return jnp.maximum(x[:, :, 1:], x[:, :, :-1])


class _SmallCNN(nn.Module):
  """The network of `small_cnn`."""

  num_classes: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = _max_pool(nn.relu(Conv(16, (8, 8), 2, "SAME", name="Conv_0")(x)))
    x = _max_pool(nn.relu(Conv(32, (4, 4), 2, "VALID", name="Conv_1")(x)))
    x = nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1)))
    return nn.Dense(self.num_classes)(x)


def with_channels(
  input_shape: tuple[int, ...], least: int, otherwise: str
) -> Callable[[jax.Array], jax.Array]:
  """The function that gives images [n, *input_shape] an axis of channels if they have none.

  Args:
    input_shape: (height, width) or (height, width, channels).
    least: the least height and width.
    otherwise: what to do with other inputs, for the message.

  Raises:
    ValueError: if inputs are of another shape, or the images are too small or too large.
  """
  check_input_shape(input_shape)
  if len(input_shape) not in (2, 3) or min(input_shape[:2]) < least:
    raise ValueError(
      f"Expected images of at least {least} x {least} pixels, got input_shape {input_shape}; "
      f"{otherwise}."
    )
  shape = (*input_shape, 1)[:3]
  return lambda inputs: inputs.reshape(inputs.shape[0], *shape)


@checked
def small_cnn(input_shape: tuple[int, ...], num_classes: int) -> Model:
  """Two convolutions and two dense layers, the architecture of TensorFlow Privacy's MNIST tutorial.

  So results can be compared. It has 26,010 parameters on 28 x 28 images of 10 classes.

  Args:
    input_shape: (height, width) or (height, width, channels), at least 16 x 16.
    num_classes: at least 2.

  Raises:
    ValueError: if the images are too small for the second convolution.

  >>> import jax
  >>> model = small_cnn((28, 28), 10)
  >>> sum(x.size for x in jax.tree.leaves(model.init(jax.random.key(0))))
  26010
  """
  check_sizes(2, num_classes=num_classes)
  images = with_channels(input_shape, 16, "use logistic_regression")
  network = _SmallCNN(num_classes)

  def init(key):
    return network.init(key, images(jnp.zeros((1, *input_shape))))["params"]

  def apply(params, inputs):
    return network.apply({"params": params}, images(inputs))

  return Model(init, apply)
