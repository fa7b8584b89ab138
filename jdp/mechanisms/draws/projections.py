"""Random projections R^d -> R^k that clients and a server can both make from a public seed."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp import random
from jdp.numerics.hadamard import transform_rows
from jdp.numerics.row_products import precise_dot

Seed = jax.Array


class Projection(NamedTuple):
  """A distribution of k x d matrices W, the first columns of orthonormal rows with E||W u||^2 =
  k/D; W^T in two steps.

  W^T = finish spread, linear both: what follows from a client's own seed, and what all clients
  share. So a sum of many W_i^T z_i is `finish` of the sum of `spread`s.

  Attributes:
    seed_words: the length of a seed.
    project: (seed uint32 [seed_words], vector [d]) -> W vector, [k].
    spread: (seed, z [k]) -> the first step of W^T z.
    finish: -> the second step, [d].
  """

  seed_words: int
  project: Callable[[Seed, jax.Array], jax.Array]
  spread: Callable[[Seed, jax.Array], jax.Array]
  finish: Callable[[jax.Array], jax.Array]


def haar(dim: int, num_projections: int) -> Projection:
  """Orthonormal rows that span a uniformly random subspace; O(dim k^2) operations for each seed."""

  def draw(seed):
    # Normals, whose distribution no rotation changes: of their factorisation the span alone
    # matters, not the signs.
    return jnp.linalg.qr(random.normal(_key(seed), (dim, num_projections)))[0]

  return Projection(
    seed_words=2,
    project=lambda seed, vector: precise_dot(vector, draw(seed)),
    spread=lambda seed, z: precise_dot(draw(seed), z),
    finish=lambda vector: vector,
  )


def folded_hadamard(dim: int, num_projections: int, rotation_key: jax.Array | None) -> Projection:
  """F H S of vectors padded with zeros to D = `padded_dim(dim, k)` and cut into blocks of k.

  S flips signs at random, H is the Hadamard transform across the blocks (of the first entries, of
  the second, ...). F flips signs again, shifts each block around by a random amount and adds the
  blocks up, over sqrt(D/k). With a `rotation_key` all seeds have the same S, and `spread` costs no
  transform.
  """
  k, width = num_projections, padded_dim(dim, num_projections)
  num_blocks = width // k
  scale = np.float32(math.sqrt(k / width))
  shared = None if rotation_key is None else _sign_bits(rotation_key, num_blocks, k)

  def draw(seed):
    rotation_key, sign_key, shift_key = jax.random.split(_key(seed), 3)
    rotation = _sign_bits(rotation_key, num_blocks, k) if shared is None else shared
    return (
      rotation,
      _sign_bits(sign_key, num_blocks, k),
      jax.random.randint(shift_key, (num_blocks,), 0, k),
    )

  def project(seed, vector):
    rotation, signs, shifts = draw(seed)
    blocks = jnp.pad(vector, (0, width - dim)).reshape(num_blocks, k)
    blocks = _flip(transform_rows(_flip(blocks, rotation)), signs)
    return scale * jnp.sum(_windows(jnp.concatenate([blocks, blocks], axis=1), k - shifts), axis=0)

  def unfold(seed, z):
    rotation, signs, shifts = draw(seed)
    # As a product, which XLA computes on its own; else the noise in z would be drawn again for each
    # of its copies.
    scaled = precise_dot(jnp.array([scale, 0.0]), jnp.stack([z, jnp.zeros_like(z)]))
    twice = jnp.broadcast_to(jnp.concatenate([scaled, scaled]), (num_blocks, 2 * k))
    return rotation, _flip(_windows(twice, shifts), signs)

  def rotate_back(rotation, blocks):
    return _flip(transform_rows(blocks), rotation).reshape(-1)[:dim]

  if shared is None:
    return Projection(
      2, project, lambda seed, z: rotate_back(*unfold(seed, z)), lambda vector: vector
    )
  return Projection(
    2, project, lambda seed, z: unfold(seed, z)[1], lambda total: rotate_back(shared, total)
  )


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


def padded_dim(dim: int, num_projections: int) -> int:
  """The least k 2^i that is at least `dim`."""
  return num_projections << (-(-dim // num_projections) - 1).bit_length()


def _key(seed):
  return jax.random.wrap_key_data(seed, impl="threefry2x32")


def _windows(rows, starts):
  """Half of each row of [n, 2k], from its start on: a contiguous piece, which is copied faster than
  entries.
  """
  size = rows.shape[1] // 2
  return jax.vmap(lambda row, start: lax.dynamic_slice_in_dim(row, start, size))(rows, starts)


def _sign_bits(key, num_blocks, size):
  """Words that hold a bit for each entry of [num_blocks, size]: of 32 blocks side by side, and of
  their entries.
  """
  return jax.random.bits(key, (-(-num_blocks // 32), size), np.uint32)


def _flip(blocks, bits):
  """The blocks, with the sign of each entry changed where its bit is 1."""
  signs = (bits[:, None, :] << jnp.arange(32, dtype=np.uint32)[None, :, None]) & np.uint32(1 << 31)
  signs = signs.reshape(-1, blocks.shape[1])[: blocks.shape[0]]
  return lax.bitcast_convert_type(lax.bitcast_convert_type(blocks, np.uint32) ^ signs, np.float32)
