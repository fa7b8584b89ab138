"""Random projections R^d -> R^k that clients and a server can both make from a public seed."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp import random
from jdp.mechanisms.hadamard import hadamard_transform
from jdp.mechanisms.rows import dot

Seed = jax.Array


class Projection(NamedTuple):
  """A distribution of k x d matrices W, scaled so that E||W u||^2 = k/d, and W^T in two steps.

  W^T = finish spread, linear both: what follows from a client's own seed, and what all clients share. So a sum of
  many W_i^T z_i is `finish` of the sum of `spread`s.

  Attributes:
    seed_words: the length of a seed.
    project: (seed uint32 [seed_words], vector [d]) -> W vector, [k].
    spread: (seed, z [k]) -> the first step of W^T z.
    finish: -> the second step, [d].
    stretch: the largest ||W^T z|| / ||z||.
  """

  seed_words: int
  project: Callable[[Seed, jax.Array], jax.Array]
  spread: Callable[[Seed, jax.Array], jax.Array]
  finish: Callable[[jax.Array], jax.Array]
  stretch: float


def haar(dim: int, num_projections: int) -> Projection:
  """Orthonormal rows that span a uniformly random subspace; O(dim k^2) operations for each seed."""

  def draw(seed):
    # Normals, whose law no rotation changes: of their factorisation the span alone matters, not the signs.
    return jnp.linalg.qr(random.normal(_key(seed), (dim, num_projections)))[0]

  return Projection(
    seed_words=2,
    project=lambda seed, vector: dot(vector, draw(seed)),
    spread=lambda seed, z: dot(draw(seed), z),
    finish=lambda vector: vector,
    stretch=1.0,
  )


def folded_hadamard(dim: int, num_projections: int, rotation_key: jax.Array | None) -> Projection:
  """sqrt(k/D) F R: R flips signs at random and applies a Hadamard transform of size D >= dim, a power of two.

  F flips signs at random again, cuts the D numbers into blocks of k, shifts each block around by a random
  amount and adds the blocks up. With a `rotation_key` all seeds have the same R, and `spread` costs no transform.

  Returns:
    A `Projection` on vectors of `dim` numbers, padded with zeros to D = `padded_dim(dim)`.
  """
  width, k = padded_dim(dim), num_projections
  num_blocks = -(-width // k)
  padding = num_blocks * k - width
  scale = np.float32(math.sqrt(k / width))
  shared = None if rotation_key is None else _sign_bits(rotation_key, width)

  def draw(seed):
    rotation_key, sign_key, shift_key = jax.random.split(_key(seed), 3)
    own = _sign_bits(rotation_key, width) if shared is None else shared
    return own, _sign_bits(sign_key, width), jax.random.randint(shift_key, (num_blocks, 1), 0, k)

  def project(seed, vector):
    rotation, signs, shifts = draw(seed)
    rotated = hadamard_transform(_flip(jnp.pad(vector, (0, width - dim)), rotation))
    blocks = jnp.pad(_flip(rotated, signs), (0, padding)).reshape(num_blocks, k)
    sources = (jnp.arange(k)[None, :] - shifts) % k
    return scale * jnp.sum(jnp.take_along_axis(blocks, sources, axis=1), axis=0)

  def unfold(seed, z):
    rotation, signs, shifts = draw(seed)
    # As a product, which XLA computes on its own; else the noise in z would be drawn again for each of its copies.
    scaled = dot(jnp.full(2, scale / 2), jnp.stack([z, z]))
    copies = scaled[(jnp.arange(k)[None, :] + shifts) % k]
    return rotation, _flip(copies.reshape(-1)[:width], signs)

  def rotate_back(rotation, vector):
    return _flip(hadamard_transform(vector), rotation)[:dim]

  stretch = math.sqrt(num_blocks * k / width)
  if shared is None:
    return Projection(2, project, lambda seed, z: rotate_back(*unfold(seed, z)), lambda vector: vector, stretch)
  return Projection(2, project, lambda seed, z: unfold(seed, z)[1], lambda total: rotate_back(shared, total), stretch)


def share(projection: Projection, key: jax.Array) -> Projection:
  """The projection with one public seed for all, made from `key`."""
  seed = draw_seed(key, projection.seed_words)
  return projection._replace(
    seed_words=0,
    project=lambda _, vector: projection.project(seed, vector),
    spread=lambda _, z: z,
    finish=lambda total: projection.finish(projection.spread(seed, total)),
  )


def draw_seed(key: jax.Array, seed_words: int) -> Seed:
  """A new seed, which is public: of random words, not of a key that other keys came from."""
  return jax.random.bits(key, (seed_words,), np.uint32)


def padded_dim(dim: int) -> int:
  """The least power of two that is at least `dim`."""
  return 1 << (dim - 1).bit_length()


def _key(seed):
  return jax.random.wrap_key_data(seed, impl="threefry2x32")


def _sign_bits(key, size):
  return jax.random.bits(key, (-(-size // 32),), np.uint32)


def _flip(vector, bits):
  """The vector, with the sign of each entry changed where its bit is 1."""
  signs = (bits[:, None] << jnp.arange(32, dtype=np.uint32)[None, :]) & np.uint32(1 << 31)
  flipped = lax.bitcast_convert_type(vector, np.uint32) ^ signs.reshape(-1)[: vector.size]
  return lax.bitcast_convert_type(flipped, np.float32)
