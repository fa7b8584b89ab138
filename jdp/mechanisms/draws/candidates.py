"""Public candidates on the sphere, and the choice of one of them by its number."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp import random
from jdp.numerics.row_products import precise_dot, row_dots
from jdp.numerics.vectors import unit

_WORD = 32  # candidates that share a word of labels
_BLOCK_NUMBERS, _BLOCK_ROWS = 2**22, 2**8  # numbers made at once, within a factor of 2; candidates


class Candidates(NamedTuple):
  """N directions that a public key and a client's public seed stand for.

  Candidate i is Q u_i. The table u_1, ..., u_N is independent and uniform on the sphere, and the
  same for all clients. Q is the client's own: it flips signs at random, and shifts all coordinates
  around. It is orthogonal and does not depend on the table, so for each client the candidates are
  independent and uniform.

  Attributes:
    labels: (seed, u [d]) -> uint32 [N / 32], whether <candidate, u> >= gamma, one bit for each. The
      table is made in blocks and not kept. Under vmap over clients it is made once for all.
    candidate: (seed, index) -> [d], unit vector.
  """

  labels: Callable[[jax.Array, jax.Array], jax.Array]
  candidate: Callable[[jax.Array, jax.Array], jax.Array]


def candidates(key: jax.Array, dim: int, count: int, gamma: float) -> Candidates:
  """The candidates of a public key, consumed, which may be traced. `count` is a power of two."""
  # Random words, from which keys are made as often as they are needed.
  seeds = jax.random.bits(key, (2, 2), np.uint32)
  rows = max(_WORD, min(count, _BLOCK_ROWS, 1 << (_BLOCK_NUMBERS // dim).bit_length()))

  def key_of(which, number):
    own = jax.random.wrap_key_data(seeds[which], impl="threefry2x32")
    return jax.random.fold_in(own, number)

  def normals(index):
    return random.normal(key_of(0, index), (dim,))

  def turn(seed):
    bits = random.bits(key_of(1, seed), (dim + 1,))
    return 1 - 2 * (bits[1:] >> np.uint32(31)).astype(jnp.float32), bits[0] % np.uint32(dim)

  @jax.jit
  def labels(seed, u):
    signs, shift = turn(seed)
    own = signs * jnp.roll(u, -shift.astype(jnp.int32))  # <Q u_i, u> = <u_i, Q^T u>

    def block(first):
      table = jax.vmap(normals)(first + jnp.arange(rows, dtype=np.uint32))
      inside = precise_dot(table, own) >= gamma * jnp.sqrt(row_dots(table, table))
      places = jnp.arange(_WORD, dtype=np.uint32)[None]
      bits = inside.reshape(-1, _WORD).astype(np.uint32) << places
      return jnp.sum(bits, axis=1, dtype=np.uint32)

    return lax.map(block, jnp.arange(0, count, rows, dtype=np.uint32)).reshape(-1)

  @jax.jit
  def candidate(seed, index):
    signs, shift = turn(seed)
    return jnp.roll(signs * unit(normals(index)), shift.astype(jnp.int32))

  return Candidates(labels, candidate)


def size(labels: jax.Array) -> jax.Array:
  """The number of ones among labels, int32."""
  return jnp.sum(lax.population_count(labels).astype(jnp.int32))


def nth_one(labels: jax.Array, rank: jax.Array) -> jax.Array:
  """The place of the one that has `rank` ones before it, uint32.

  >>> int(nth_one(jnp.array([0b101, 0b10], np.uint32), jnp.int32(2)))
  33
  """
  ends = jnp.cumsum(lax.population_count(labels).astype(jnp.int32))
  word = jnp.sum(ends <= rank)
  bits = labels[word] >> jnp.arange(_WORD, dtype=np.uint32) & np.uint32(1)
  before = ends[word] - jnp.sum(bits, dtype=jnp.int32)
  place = jnp.sum(before + jnp.cumsum(bits.astype(jnp.int32)) <= rank)
  return (_WORD * word + place).astype(np.uint32)


def below(key: jax.Array, count: jax.Array) -> jax.Array:
  """A whole number in [0, count), int32, for a count in [1, 2^31) that may be traced.

  It is floor(w count / 2^64) for 64 random bits w. Each number has its probability to a relative
  count 2^-64.
  """
  high, low = random.bits(key, (2,))
  count = count.astype(np.uint32)
  carried, rest = _high_product(low, count), high * count
  overflow = (rest + carried < carried).astype(np.uint32)
  return (_high_product(high, count) + overflow).astype(jnp.int32)


def _high_product(a: jax.Array, b: jax.Array) -> jax.Array:
  """The high word of a b."""
  half, mask = np.uint32(16), np.uint32(0xFFFF)
  a1, a0, b1, b0 = a >> half, a & mask, b >> half, b & mask
  middle = a1 * b0 + (a0 * b0 >> half)
  return a1 * b1 + (middle >> half) + (a0 * b1 + (middle & mask) >> half)
