"""Products of the rows of a batch, for sums of releases that are made as matrix products."""

from functools import partial

import jax
import jax.numpy as jnp

from jdp.vectors import unit

# Matrix products in true float32, on accelerators too: their default precision would distort the release.
dot = partial(jnp.dot, precision="highest")
dots = jax.vmap(dot)  # row by row; on CPU faster than sums along the rows


def with_lengths(values: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Rows and their lengths, whose quotients are the rows' directions: as they are, or if one is extreme, of length 1.

  A sum of squares within these bounds has lost nothing, and has no NaN in it: no row needs `unit`'s care.
  """
  values = values.astype(jnp.float32)
  squares = dots(values, values)
  ordinary = jnp.all((squares > 1e-20) & (squares < 1e30))
  return jax.lax.cond(
    ordinary, lambda: (values, jnp.sqrt(squares)), lambda: (jax.vmap(unit)(values), jnp.ones_like(squares))
  )
