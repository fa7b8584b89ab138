"""Products of matrices whose derivative is fast on a CPU.

XLA's fast products take the rows of the left matrix and the columns of the right one. A CPU is up
to three times as slow if it reads across the rows of a large matrix instead. Writing the transpose
of that matrix first costs less, and computing the transposed product still less. Other processors
read either way equally well.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jdp._equations import with_derivative


def turned(matrix: jax.Array) -> jax.Array:
  """The transpose of a matrix. On a CPU it is written to memory."""
  return jax.lax.platform_dependent(
    matrix, cpu=lambda x: jax.lax.optimization_barrier(x.T), default=jnp.transpose
  )


def _narrow_first(rows: jax.Array, by_rows: jax.Array) -> jax.Array:
  """`rows.T @ by_rows`, so that a CPU reads along the rows of the left, wider factor.

  XLA must not fuse the transposes, or it computes the product in the other order after all.
  """
  keep = jax.lax.optimization_barrier
  return keep(keep(by_rows).T @ keep(rows)).T


def _product(data: jax.Array, weights: jax.Array) -> jax.Array:
  """See `product`."""
  return data @ weights


def _forward(data: jax.Array, weights: jax.Array) -> tuple[jax.Array, Any]:
  """The product, and what its derivative needs."""
  return data @ weights, (data, weights)


def _backward(kept: Any, by_result: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The derivatives by both factors."""
  data, weights = kept
  rows, by_rows = (x.reshape(-1, x.shape[-1]) for x in (data, by_result))
  by_weights = jax.lax.platform_dependent(
    rows, by_rows, cpu=_narrow_first, default=lambda rows, by_rows: rows.T @ by_rows
  )
  return by_result @ weights.T, by_weights


product = with_derivative(_product, _forward, _backward)
"""(data [..., k], weights [k, n]) -> their product [..., n]."""
