"""Products of the rows of a batch, for sums of releases that are made as matrix products."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jdp.numerics.vectors import unit

# Matrix products in true float32. The default precision of accelerators would distort the release.
precise_dot = functools.partial(jnp.dot, precision="highest")
row_dots = jax.vmap(precise_dot)  # one product a row; on CPU faster than sums along the rows

_FEW = 8  # rows, up to which a sum is written out


def weighted_row_sum(weights: jax.Array, rows: jax.Array) -> jax.Array:
  """The sum of weights_i rows_i, of weights [n] and rows [n, d].

  The sum of a few long rows is written out. Then XLA makes one loop of it and of what it is added
  to, and uses all cores.
  """
  if len(rows) > _FEW:
    return precise_dot(weights, rows)
  return functools.reduce(
    jnp.add, (weight * row for weight, row in zip(weights, rows, strict=True))
  )


def row_directions(values: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The directions of the rows of values [n, d], as quotients u_i = rows_i / lengths_i.

  The result is rows [n, d] and lengths [n]. The rows are the values themselves, in float32, unless
  one of them is extreme. A sum of squares within the bounds below has lost nothing, and has no NaN
  in it. If any row is outside, it needs `unit`'s care, and all rows become unit vectors.

  JAX cannot differentiate this backwards, because of its loop.
  """
  values = values.astype(jnp.float32)
  squares = row_dots(values, values)
  some_extreme = ~jnp.all((squares > 1e-20) & (squares < 1e30))

  def normalised(_, rows_squares):
    rows = jax.vmap(unit)(rows_squares[0])
    return rows, row_dots(rows, rows)

  # A loop of no or one step, because what a branch returns would be written once more.
  rows, squares = lax.fori_loop(0, some_extreme.astype(jnp.int32), normalised, (values, squares))
  return rows, jnp.sqrt(squares)
