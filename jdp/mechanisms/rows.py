"""Products of the rows of a batch, for sums of releases that are made as matrix products."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jdp.vectors import unit

# Matrix products in true float32, on accelerators too: their default precision would distort the release.
dot = functools.partial(jnp.dot, precision="highest")
dots = jax.vmap(dot)  # row by row; on CPU faster than sums along the rows

_FEW = 8


def weighted_sum(weights: jax.Array, rows: jax.Array) -> jax.Array:
  """sum_i weights_i rows_i, of [n] and [n, d].

  The sum of a few long rows is written out: XLA makes one loop of it and of what it is added to, for all cores.
  """
  if len(rows) > _FEW:
    return dot(weights, rows)
  return functools.reduce(jnp.add, (weight * row for weight, row in zip(weights, rows, strict=True)))


def directions(values: jax.Array) -> tuple[Callable[[jax.Array], jax.Array], Callable[[jax.Array], jax.Array]]:
  """Products with the directions u_i of the rows of values [n, d]: noise -> <noise_i, u_i>, weights -> sum w_i u_i.

  The directions are not written down: as long as no row is extreme, products with the values, divided by
  their lengths, will do. A sum of squares within these bounds has lost nothing, and has no NaN in it; any
  other needs `unit`'s care. Only [n] and [d] results leave the branches: what is larger would be copied.
  """
  values = values.astype(jnp.float32)
  squares = dots(values, values)
  ordinary = jnp.all((squares > 1e-20) & (squares < 1e30))
  lengths = jnp.sqrt(squares)

  def along(noise):
    return lax.cond(ordinary, lambda: dots(noise, values) / lengths, lambda: dots(noise, jax.vmap(unit)(values)))

  def combine(weights):
    return lax.cond(
      ordinary, lambda: weighted_sum(weights / lengths, values), lambda: weighted_sum(weights, jax.vmap(unit)(values))
    )

  return along, combine
