"""Dithering: float noise is rounded to a grid with a public random shift.

The rounding hides the noise's low-order bits. `jdp.accounting.float_noise` bounds what float32
noise reveals on a grid of `FINEST_SHARE` of its standard deviation or more. The argument needs a
grid that does not depend on the value. A grid with a public shift, drawn beside the value, is such
a grid.

What the shift gains is exactness. The rounding error is uniform on half a spacing to each side,
whatever the value (L. Schuchman, "Dither signals and their effect on quantization noise", 1964). So
there is no bias, and each coordinate gets a variance of spacing^2 / 12.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdp import random

_FLOAT32_DIGITS = np.float32(2**23)  # from here on float32 numbers are whole


def dithered(key: jax.Array, tree: Any, spacing: jax.typing.ArrayLike) -> Any:
  """Rounds every float of a pytree to a grid of `spacing` that is shifted at random.

  Formal guarantee: post-processing of the tree by a function that does not depend on it.

  Args:
    key: the key of the one shift that all coordinates share. Consumed.
    tree: float32 arrays. NaN, infinities and numbers of more than 2^23 spacings stay as they are.
      (Float32 holds such numbers no finer.)
    spacing: the grid's, a float32 scalar >= 0. Public. It may be traced. 0 rounds nothing.

  Returns:
    The tree, float32. Each number is within spacing / 2 of what it was, up to float32 rounding.

  >>> noisy = jnp.float32(0.123456)
  >>> rounded = jax.vmap(lambda key: dithered(key, noisy, 0.5))(
  ...   jax.random.split(jax.random.key(0), 10_000)
  ... )
  >>> bool(jnp.all(abs(rounded - noisy) < 0.2501)), round(float(jnp.mean(rounded)), 2)
  (True, 0.12)
  """
  shift = jax.random.uniform(key, dtype=jnp.float32)
  return jax.tree.map(lambda x: on_shifted_grid(x, shift, spacing), tree)


def public_shifts(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Shifts of grids, in spacings: independent and uniform in [0, 1).

  They are published, and need not be secret: all that counts is that they do not depend on the
  noise. So whatever the key, they are threefry words, from 64 bits of the key. That takes a quarter
  of the time of ChaCha words. Never use them as noise.

  Args:
    key: consumed. No noise may come from it.
    shape: the shape of the result, float32.

  >>> public_shifts(jax.random.key(0), (2, 3)).shape
  (2, 3)
  """
  seed = jax.random.wrap_key_data(random.bits(key, (2,)), impl="threefry2x32")
  words = random.bits(seed, shape)
  return (words >> np.uint32(8)).astype(jnp.float32) * np.float32(2.0**-24)


def on_shifted_grid(x: jax.Array, shift: jax.Array, spacing: jax.typing.ArrayLike) -> jax.Array:
  """Rounds `x` to the grid of the numbers (k + shift) spacing, with k whole.

  It is `dithered` with shifts that are drawn elsewhere. With a shift for each coordinate, uniform
  in [0, 1), the rounding errors are independent of each other and of all x together. Then a *sum*
  of several releases is that of real noise with independent noise added, and reveals no more.

  >>> on_shifted_grid(jnp.float32(7.0), jnp.float32(0.25), 2.0).item()
  6.5
  """
  spacing = jnp.float32(spacing)
  position = x / spacing
  on_grid = (jnp.round(position - shift) + shift) * spacing
  # A comparison with NaN is False, so NaN, infinities and a spacing of 0 leave x as it is.
  return jnp.where(jnp.abs(position) < _FLOAT32_DIGITS, on_grid, x)
