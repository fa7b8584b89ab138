"""Draws, inside jit, the coordinates in which a random vertex of the cube agrees with a given one.

The number of agreements is drawn by inversion of a table of 64-bit integers. Float32 could not hold
that table: at d = 1e6 one count has a probability of 1e-3 or less. Which coordinates agree is a
uniformly random subset. It is exact, and found by selection instead of sorting.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp import random
from jdp._loop_carries import vary_like
from jdp.accounting.local.priv_unit_linf import Cube, log_probability
from jdp.mechanisms.draws.quantiles import anywhere_or_top

_TOP_BIT = 31


class _CountDistribution(NamedTuple):
  """A distribution on the integers start, start + 1, ...

  `high` and `low` are the two words of the probability below each integer, in units of 2^-64.
  """

  start: int
  high: np.ndarray
  low: np.ndarray

  def __call__(self, high: jax.Array, low: jax.Array) -> jax.Array:
    """Inverts the distribution at a uniform 64-bit word.

    Returns the last count with at most that much probability below it, int32 scalar.
    """
    size = len(self.high)
    steps = size.bit_length()
    table = jnp.asarray(np.stack([self.high, self.low]))

    # The words of a probability are compared in order, high before low: JAX has no 64-bit integers
    # by default. `index` is the last known entry that is not above the given word.
    def bisect(step, index):
      trial = index + (1 << (steps - 1 - step))
      own_high, own_low = table[:, jnp.minimum(trial, size - 1)]
      reached = (own_high < high) | ((own_high == high) & (own_low <= low))
      return jnp.where(reached & (trial < size), trial, index)

    return self.start + lax.fori_loop(0, steps, bisect, vary_like(jnp.int32(0), high, low))


def _count_distribution(dim: int, low: int) -> _CountDistribution:
  """The distribution of N given N >= low, without counts of a probability below 2^-64."""
  likeliest = max(low, dim // 2)
  reach = 6 * math.isqrt(dim) + 6  # the probability beyond it is less than e^-72
  counts = np.arange(max(low, likeliest - reach), min(dim, likeliest + reach) + 1)
  log_weights = log_probability(dim, counts)
  weights = np.exp(log_weights - log_weights.max())
  weights = np.ldexp(weights / math.fsum(weights), 64)
  start = int(counts[weights >= 1][0])
  units = [int(weight) for weight in weights[weights >= 1]]
  # Units are rounded down, so that no vertex gets more than its share. They must add up to 2^64:
  # the likeliest count gets what rounding left, less than 1e-9 of it.
  units[likeliest - start] += 2**64 - sum(units)
  words = np.array(list(itertools.accumulate(units[:-1], initial=0)), np.uint64)
  return _CountDistribution(
    start, (words >> np.uint64(32)).astype(np.uint32), words.astype(np.uint32)
  )


def count_sampler(cube: Cube) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
  """Makes the sampler key -> (anywhere, N), where N, an int32 scalar, is the number of agreements.

  N is Binomial(d, 1/2) given N >= L. `anywhere` says that the vertex is to be drawn from all of the
  cube instead, so that it has N >= L with probability p.
  """
  top = _count_distribution(cube.dim, cube.threshold)
  return anywhere_or_top(
    cube.log_q,
    cube.logit_p,
    jax.jit(lambda key: top(*random.bits(key, (2,)))),
  )


def random_vertex(key: jax.Array, dim: int) -> jax.Array:
  """A uniformly random vertex of the cube, as bool [dim]."""
  words = random.bits(key, (-(-dim // 32),))
  return ((words[:, None] >> lax.iota(np.uint32, 32)[None]) & np.uint32(1)).reshape(-1)[:dim] == 1


@partial(jax.jit, static_argnames="size")
def random_subset(key: jax.Array, size: int, count: jax.Array) -> jax.Array:
  """A uniformly random subset of `count` of `size` things, as bool [size].

  Each thing draws a random word of 32 bits, and those with the smallest words are chosen. If things
  tie for the last places, the tied ones draw again until none tie. The order of the chosen does not
  matter, so every subset is equally likely, exactly.
  """

  def undecided(state):
    _, _, candidates, missing = state
    return (missing > 0) & (missing < jnp.sum(candidates, dtype=np.int32))

  def draw(state):
    turn, chosen, candidates, missing = state
    words = random.bits(jax.random.fold_in(key, turn), (size,))
    bound, below = _largest_bound(words, candidates, missing)
    chosen = chosen | (candidates & (words < bound))
    return turn + 1, chosen, candidates & (words == bound), missing - below

  sets = jnp.zeros(size, bool), jnp.ones(size, bool), jnp.asarray(count, np.int32)
  start = jnp.int32(0), *vary_like(sets, key, count)
  _, chosen, candidates, missing = lax.while_loop(undecided, draw, start)
  return chosen | (candidates & (missing > 0))


def _largest_bound(
  words: jax.Array, candidates: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The largest bound b with at most `count` candidates below it, and their number n, as (b, n).

  If n is `count`, b is any such bound.
  """

  def unfinished(state):
    bit, _, below = state
    return (bit >= 0) & (below < count)

  # From the top down, a bit is kept if at most `count` candidates are then below the bound.
  def set_bit(state):
    bit, bound, below = state
    trial = bound | (np.uint32(1) << bit.astype(np.uint32))
    under = jnp.sum(candidates & (words < trial), dtype=np.int32)
    fits = under <= count
    return bit - 1, jnp.where(fits, trial, bound), jnp.where(fits, under, below)

  nothing = vary_like((jnp.uint32(0), jnp.int32(0)), words, candidates, count)
  _, bound, below = lax.while_loop(unfinished, set_bit, (jnp.int32(_TOP_BIT), *nothing))
  return bound, below
