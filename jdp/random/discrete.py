"""Exact draws on the integers: discrete Gaussian, discrete Laplace and Skellam distribution.

Unlike draws of floats, these fit a proof on integers. The distribution drawn from is known exactly,
and is exactly symmetric about zero. Every integer has the probability that the named distribution
gives it, to a relative 2^-100, up to the magnitude at which draws end: as far out as those of
floats (`jdp.random.integer_distributions`).

Every draw takes 96 random bits and one look into a table. With a probability below 2^-64 it takes
288 more, which all such draws of a tile share, and looks into another table. That loop and the
address of the look-up depend on the value. As for any table, the latter is a side channel for
anyone who shares the processor's cache.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.random import integer_distributions
from jdp.random.draws import bits
from jdp.random.words import in_tiles, words_and_few


@checked
def discrete_gaussian(key: jax.Array, stddev: float, shape: tuple[int, ...] = ()) -> jax.Array:
  """Draws with P(x) proportional to e^(-x^2 / (2 stddev^2)) on the integers.

  Source: arXiv 2004.00010, Definition 1. From stddev = 1 on, the variance is stddev^2 to a relative
  1e-6. Below, it is smaller.

  Args:
    key: of any type, consumed.
    stddev: the parameter sigma, a host float in (0, 15000].
    shape: the shape of the result.

  Returns:
    Independent draws, int32. Magnitudes beyond 17.4 stddev (probability 2^-215) do not occur.

  Raises:
    ValueError: if stddev is not positive, or too large for a table.

  >>> discrete_gaussian(jax.random.key(0), 3.0, (2, 2)).dtype
  dtype('int32')
  """
  _validate.positive(stddev=stddev)
  return _table_draws(key, integer_distributions.discrete_gaussian(float(stddev)), shape)


@checked
def discrete_laplace(key: jax.Array, scale: float, shape: tuple[int, ...] = ()) -> jax.Array:
  """Draws with P(x) proportional to e^(-|x| / scale) on the integers.

  Source: arXiv 2004.00010, Section 5.2.

  Args:
    key: of any type, consumed.
    scale: a host float in (0, 1600].
    shape: the shape of the result.

  Returns:
    Independent draws, int32. Magnitudes beyond 155.3 scale (probability 2^-223) do not occur.

  Raises:
    ValueError: if scale is not positive, or too large for a table.

  >>> discrete_laplace(jax.random.key(0), 3.0, (2, 2)).shape
  (2, 2)
  """
  _validate.positive(scale=scale)
  return _table_draws(key, integer_distributions.discrete_laplace(float(scale)), shape)


@checked
def skellam(key: jax.Array, variance: float, shape: tuple[int, ...] = ()) -> jax.Array:
  """Differences of two Poisson variables of mean variance / 2 (arXiv 2110.04995, Section 2).

  A sum of independent Skellam variables is a Skellam variable, and the variances add up. So shares
  of noise add up exactly.

  Args:
    key: of any type, consumed.
    variance: a host float in [1e-6, 2.2e8].
    shape: the shape of the result.

  Returns:
    Independent draws, int32. Magnitudes of probability 2^-215 together do not occur.

  Raises:
    ValueError: if the variance is out of range.

  >>> skellam(jax.random.key(0), 9.0, (2, 2)).shape
  (2, 2)
  """
  _validate.in_range(1e-6, 1e9, variance=variance)
  return _table_draws(key, integer_distributions.skellam(float(variance)), shape)


def _table_draws(
  key: jax.Array, table: integer_distributions.AliasTable, shape: tuple[int, ...]
) -> jax.Array:
  """Draws from a table: each takes a column, a coin for the column, and a sign."""
  # As many rests as columns, a power of two: tables of about one size share a compiled program.
  missing = len(table.rows) - len(table.rests)
  rests = np.pad(table.rests, ((0, missing), (0, 0)), constant_values=np.iinfo(np.uint32).max)
  return _padded_draws(key, table.rows, rests, np.int32(len(table.rests)), shape)


@partial(jax.jit, static_argnames=("shape",))
def _padded_draws(
  key: jax.Array, rows: jax.Array, rests: jax.Array, last: jax.Array, shape: tuple[int, ...]
) -> jax.Array:
  """Draws from a table of magnitudes up to `last`. Its rests from `last` on are padding."""
  size, of_rests = np.uint32(len(rows)), last + np.int32(1)

  def draw(key, count):
    column_key, coin_key = jax.random.split(key)
    word, (high, low, few) = (
      bits(column_key, (count,)),
      words_and_few(coin_key, (count,), integer_distributions.REST_WORDS),
    )
    # The barrier keeps XLA from computing the words once for each use.
    word, high, low = jax.lax.optimization_barrier((word, high, low))
    # The size is a power of two. The last bits of the word choose the column, the first the sign.
    column = word & (size - np.uint32(1))
    threshold_high, threshold_low, other = jnp.moveaxis(rows[column], -1, 0)
    below = (high < threshold_high) | ((high == threshold_high) & (low < threshold_low))
    magnitude = jnp.where(below, column, other).astype(np.int32)
    drawn = jnp.where(word >> np.uint32(31) == 0, magnitude, -magnitude)

    def from_rests(drawn):
      # The barrier keeps XLA from doing this before the loop, for all.
      few_here, drawn = jax.lax.optimization_barrier((few, drawn))
      reached = True  # whether the few words, as one number, are at least the distribution function
      for own, bound in zip(few_here[::-1], rests.T[::-1], strict=True):
        reached = (own > bound) | ((own == bound) & reached)
      magnitude = jnp.minimum(jnp.sum(reached, dtype=np.int32), last)
      return jnp.where(abs(drawn) == of_rests, jnp.sign(drawn) * magnitude, drawn)

    # A loop and no branch: under vmap it stays one that nearly never runs.
    return jax.lax.while_loop(lambda drawn: (abs(drawn) == of_rests).any(), from_rests, drawn)

  return in_tiles(draw, key, shape)
