"""Random rotations that spread a vector evenly over its coordinates, in d log d operations."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate, random
from jdp.numerics.hadamard import hadamard_transform


class Rotation(NamedTuple):
  """x -> H D x, with random signs D and the orthonormal Hadamard matrix H.

  Source: arXiv 1611.00429, Section 3.

  Attributes:
    dim: the dimension of a rotated vector, the next power of two.
    apply: (key, x [d]) -> [dim], float32. The L2 norm stays the same, to a relative 1e-6. The key
      is public, and consumed.
    invert: (key, y [dim]) -> x [d]. The transpose, with the same key.
  """

  dim: int
  apply: Callable[[jax.Array, jax.Array], jax.Array]
  invert: Callable[[jax.Array, jax.Array], jax.Array]


def randomized_hadamard(dim: int) -> Rotation:
  """The rotation of [d] vectors, padded with zeros to a power of two.

  Over the random signs, each coordinate of H D x has mean zero. Whatever x, it is subgaussian with
  variance proxy |x|^2 / dim (Hoeffding): P(|coordinate| > r) <= 2 e^(-r^2 dim / (2 |x|^2)).

  Args:
    dim: the dimension d. At least 1.

  Raises:
    ValueError: if dim is not a whole number >= 1.

  >>> rotation = randomized_hadamard(3)
  >>> rotated = rotation.apply(jax.random.key(0), jnp.array([0.0, 2.0, 0.0]))
  >>> jnp.abs(rotated).tolist(), jnp.abs(rotation.invert(jax.random.key(0), rotated)).tolist()
  ([1.0, 1.0, 1.0, 1.0], [0.0, 2.0, 0.0])
  """
  _validate.integer(1, dim=dim)
  padded = 1 << (dim - 1).bit_length()

  def signs(key):
    return jnp.where(
      random.bits(key, (padded,)) >> np.uint32(31) == 0, np.float32(1), np.float32(-1)
    )

  def apply(key, x):
    return hadamard_transform(signs(key) * jnp.pad(x.astype(jnp.float32), (0, padded - dim)))

  def invert(key, y):
    return (signs(key) * hadamard_transform(y))[:dim]

  return Rotation(padded, apply, invert)
