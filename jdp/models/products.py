"""Products of matrices whose derivative is fast on a CPU.

XLA's fast products take the rows of the left matrix and the columns of the right one. A CPU is up
to three times as slow where it reads across the rows instead, and writing the transpose first costs
less. Other processors read either way.
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
  return by_result @ weights.T, turned(rows) @ by_rows


product = with_derivative(_product, _forward, _backward)
"""(data [..., k], weights [k, n]) -> their product [..., n]."""
