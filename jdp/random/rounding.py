"""Random rounding of fractions to integers, by discrete Gaussian distributions about them.

A fraction f / K is rounded to the integer x with P(x) proportional to e^(-(x - f/K)^2 / (2 v)), of
the variance v = `VARIANCE`. So the mean is the fraction itself to 1e-32, and the distribution is
the same about every fraction up to a shift. A discrete Gaussian variable, added to the rounded
value, thus makes a discrete Gaussian variable about the fraction (Statement 4.6 of
`docs/theory/correlated_noise.md`).

Draws are as exact as those of `jdp.random.discrete`, and cost as much. Integers farther than 31
from the fraction's floor do not occur (they have a probability below 2^-160).
"""

import jax
import jax.numpy as jnp
import numpy as np

from jdp.random import integer_distributions
from jdp.random.draws import bits

DENOMINATOR = 64
"""K, the denominator of all fractions."""
VARIANCE = 4.0
"""v, the variance of the rounded value about the fraction."""
FARTHEST = 31
"""How far from a fraction's floor its rounding may be."""


@jax.jit
def gaussian_rounding(key: jax.Array, numerators: jax.Array) -> jax.Array:
  """Rounds fractions to integers at random, int32 of any shape to int32 of the same.

  Args:
    key: of any type, consumed.
    numerators: f, of fractions f / `DENOMINATOR` below or above zero.

  >>> gaussian_rounding(jax.random.key(0), jnp.array([-640, 640])).shape
  (2,)
  """
  tables = integer_distributions.about_fractions(DENOMINATOR, VARIANCE, FARTHEST)
  rows, rests = (jnp.asarray(part) for part in tables)
  size, of_rests = np.uint32(rows.shape[1]), np.int32(rests.shape[1] + 1)
  key, rests_key = jax.random.split(key)
  # The barrier keeps XLA from computing the words once for each use.
  word, high, low = jax.lax.optimization_barrier(tuple(bits(key, (3, *numerators.shape))))
  whole = jnp.floor_divide(numerators, np.int32(DENOMINATOR))
  fraction = numerators - whole * np.int32(DENOMINATOR)
  # The size is a power of two.
  column = (word & (size - np.uint32(1))).astype(np.int32)
  threshold_high, threshold_low, other = jnp.moveaxis(
    rows.reshape(-1, 3)[fraction * size.astype(np.int32) + column], -1, 0
  )
  below = (high < threshold_high) | ((high == threshold_high) & (low < threshold_low))
  place = jnp.where(below, column, other.astype(np.int32))

  def from_rests(place):
    # The barrier keeps XLA from doing this before the loop.
    place, own_fraction, data = jax.lax.optimization_barrier(
      (place, fraction, jax.random.key_data(rests_key))
    )
    own_key = jax.random.wrap_key_data(data, impl=jax.random.key_impl(rests_key))
    further = bits(own_key, (integer_distributions.REST_WORDS, *numerators.shape))

    def reached(bound):  # whether the further words, as one number, are at least the bound
      at_least: jax.Array | bool = True
      for own, part in zip(further[::-1], jnp.moveaxis(bound, -1, 0)[::-1], strict=True):
        at_least = (own > part) | ((own == part) & at_least)
      return at_least

    def look(number, total):
      return total + reached(rests[own_fraction, number]).astype(np.int32)

    looked_up = jax.lax.fori_loop(0, rests.shape[1], look, jnp.zeros_like(place))
    return jnp.where(place == of_rests, looked_up, place)

  # A loop and no branch: under vmap it stays one that nearly never runs.
  place = jax.lax.while_loop(lambda place: jnp.any(place == of_rests), from_rests, place)
  return whole + place - np.int32(FARTHEST)
