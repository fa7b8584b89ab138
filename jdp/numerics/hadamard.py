"""The Walsh-Hadamard transform in d log d operations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax

# The last levels of a vector are one matrix product. Rows shorter than that would defeat vector
# instructions.
_LAST_LEVELS = 5
_einsum = partial(jnp.einsum, precision="highest")


def hadamard_transform(x: jax.Array) -> jax.Array:
  """H x along the last axis, with H the orthonormal Hadamard matrix in natural (Sylvester) order.

  H is its own inverse. H[i, j] = (-1)^(number of ones in i AND j) / sqrt(d). In float32 the
  relative error is about 1e-7 sqrt(log2 d).

  Args:
    x: float32 [..., d] with d a power of two.

  Returns:
    float32 [..., d].

  Raises:
    ValueError: if d is not a power of two.

  >>> hadamard_transform(jnp.array([1.0, 0.0, 0.0, 0.0])).tolist()
  [0.5, 0.5, 0.5, 0.5]
  """
  shape = x.shape
  last = min(_num_levels(shape[-1], shape), _LAST_LEVELS)
  matrix = jnp.asarray(scipy.linalg.hadamard(1 << last) * 2 ** (-0.5 * last), np.float32)
  rows = _einsum("...ij,jk->...ik", x.reshape(*shape[:-1], -1, 1 << last), matrix)
  return transform_rows(rows).reshape(shape)


@jax.jit  # Outside of a compiled program its loop would be compiled at each call.
def transform_rows(x: jax.Array) -> jax.Array:
  """H x along the last axis but one: orthonormal combinations of rows.

  It is fast for rows of 16 entries and more.

  Args:
    x: float32 [..., n, k] with n a power of two.

  Returns:
    float32 [..., n, k].

  Raises:
    ValueError: if n is not a power of two.

  >>> jnp.round(transform_rows(jnp.array([[1.0, 3.0], [1.0, -1.0]])) * 2**0.5).tolist()
  [[2.0, 2.0], [0.0, 4.0]]
  """
  levels = _num_levels(x.shape[-2], x.shape)
  # One step does two levels of all rows in one pass over memory. It moves the first two bits of the
  # row number to the end, so that all steps are alike and a loop can hold them. Without a loop XLA
  # would fuse steps, and compute the input of a step again for each row that uses it.
  if levels >= 2:
    x = lax.fori_loop(0, levels // 2, lambda _, rows: _step(rows, 2), x)
  if levels % 2:
    x = _step(x, 1)
  return x * np.float32(2 ** (-0.5 * levels))


def _num_levels(count: int, shape: tuple[int, ...]) -> int:
  if count.bit_count() != 1:
    raise ValueError(
      f"Expected the axis of a Hadamard transform to be a power of two, got {count} in shape "
      f"{shape}; pad it with zeros."
    )
  return count.bit_length() - 1


def _step(x: jax.Array, levels: int) -> jax.Array:
  """The unnormalised transform over the first `levels` bits of the row number.

  These bits become the last ones.
  """
  parts = jnp.split(x, 1 << levels, axis=-2)
  for half in (1 << level for level in range(levels)):
    for i in range(len(parts)):
      if not i & half:
        parts[i], parts[i + half] = parts[i] + parts[i + half], parts[i] - parts[i + half]
  return jnp.stack(parts, axis=-2).reshape(x.shape)
