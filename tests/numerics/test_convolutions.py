"""Convolutions with the channels last: the same bits, in the layout that is fast in loops."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jdp import federated, models
from jdp.data import Examples
from jdp.numerics.convolutions import channels_last

FAST = re.compile(r"dim_labels=b0*1*2*f_0*1*2*io->b0*1*2*f\b")


class Network(nn.Module):
  """Strided, dilated and plain convolutions, one of them in a jitted part."""

  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Conv(4, (3, 3), (2, 2))(x))
    x = jax.jit(nn.silu)(nn.Conv(4, (3, 3), kernel_dilation=2)(x))
    return nn.Dense(3)(x.reshape(x.shape[0], -1))


def layouts(compiled):
  """The layout of each convolution of a compiled program."""
  return re.findall(r"dim_labels=[^\s,]+", compiled.as_text())


@pytest.mark.parametrize(
  "options",
  [
    {"dimension_numbers": ("NCHW", "OIHW", "NCHW")},
    {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "window_strides": (2, 1)},
    {"dimension_numbers": ("CHWN", "IHWO", "CNHW"), "rhs_dilation": (1, 2)},
    {"dimension_numbers": ("NHWC", "OHWI", "NCHW"), "padding": ((0, 1), (2, 0))},
    {
      "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
      "lhs_dilation": (2, 2),
      "padding": ((1, 1), (0, 1)),
    },
  ],
)
def test_gradients_keep_their_bits(options):
  options = {"window_strides": (1, 1), "padding": "SAME"} | options
  data_axes, kernel_axes, _ = options["dimension_numbers"]
  sizes = dict(zip("NCHW", (2, 3, 8, 7), strict=True))
  windows = dict(zip("OIHW", (5, 3, 3, 2), strict=True))
  keys = jax.random.split(jax.random.key(0))
  data = jax.random.normal(keys[0], [sizes[axis] for axis in data_axes])
  kernel = jax.random.normal(keys[1], [windows[axis] for axis in kernel_axes])

  def loss(data, kernel):
    return jnp.sum(jnp.sin(lax.conv_general_dilated(data, kernel, **options)))

  gradient = jax.grad(loss, (0, 1))
  for arranged, plain in zip(
    jax.jit(channels_last(gradient))(data, kernel), jax.jit(gradient)(data, kernel), strict=True
  ):
    assert jnp.array_equal(arranged, plain)


def test_grouped_channels_are_left_as_they_are():
  def loss(kernel, data):
    layout = ("NHWC", "HWIO", "NHWC")
    result = lax.conv_general_dilated(
      data, kernel, (1, 1), "SAME", feature_group_count=2, dimension_numbers=layout
    )
    return jnp.sum(nn.relu(result))

  arguments = jax.random.normal(jax.random.key(0), (3, 3, 2, 4)), jnp.ones((2, 6, 6, 4))
  gradient = jax.grad(loss)
  assert jnp.array_equal(channels_last(gradient)(*arguments), gradient(*arguments))


@pytest.mark.parametrize("update", ["gradient_step", "local_sgd", "example_gradient"])
def test_no_round_has_another_layout_in_its_loop(update):
  """Of a network of flax, whose gradients JAX makes in other layouts."""
  model = models.from_flax(Network(), (16, 16, 2))
  loss, params = models.cross_entropy(model), model.init(jax.random.key(0))
  shape = (6,) if update == "example_gradient" else (6, 4)
  clients = Examples(jnp.ones((*shape, 16, 16, 2)), jnp.zeros(shape, jnp.int32), jnp.ones(shape))
  step = {
    "gradient_step": lambda: federated.gradient_step(loss, 0.1),
    "local_sgd": lambda: federated.local_sgd(loss, 0.1, batch_size=2),
    "example_gradient": lambda: federated.example_gradient(loss),
  }[update]()

  def updates(params, clients):
    return lax.map(lambda client: step(jax.random.key(1), params, client), clients)

  found = layouts(jax.jit(updates).lower(params, clients).compile())
  assert len(found) >= 5
  assert [layout for layout in found if not FAST.fullmatch(layout)] == []
