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
  """A distribution of k x d matrices W whose transposes are computed in two steps.

  W is the first d columns of a k x D matrix with orthonormal rows and E||W u||^2 = k/D for unit
  vectors u. W^T is `finish` after `spread`, both linear. `spread` depends on a client's own seed;
  `finish` is shared by all clients. So a sum of many W_i^T z_i is `finish` of the sum of the
  `spread`s.

  Attributes:
    seed_words: the length of a seed.
    project: computes W vector, [k], from a seed, uint32 [seed_words], and a vector [d].
    spread: computes the first step of W^T z from a seed and z [k].
    finish: computes W^T z, [d], from the result of the first step.
  """

  seed_words: int
  project: Callable[[Seed, jax.Array], jax.Array]
  spread: Callable[[Seed, jax.Array], jax.Array]
  finish: Callable[[jax.Array], jax.Array]


def haar(dim: int, num_projections: int) -> Projection:
  """Orthonormal rows that span a uniformly random subspace.

  Making W takes O(dim k^2) operations for each seed.
  """

  def draw(seed):
    # No rotation changes the distribution of normals, so their span is uniformly random. The signs
    # of the factorisation do not matter, because only the span does.
    return jnp.linalg.qr(random.normal(_key_of_seed(seed), (dim, num_projections)))[0]

  return Projection(
    seed_words=2,
    project=lambda seed, vector: precise_dot(vector, draw(seed)),
    spread=lambda seed, z: precise_dot(draw(seed), z),
    finish=lambda vector: vector,
  )


def folded_hadamard(dim: int, num_projections: int, rotation_key: jax.Array | None) -> Projection:
  """W = F H S, two random sign flips around a Hadamard transform, folded to k coordinates.

  Vectors are padded with zeros to D = `padded_dim(dim, k)` and cut into blocks of k. The three
  factors are:

  * S flips signs at random.
  * H is the Hadamard transform across the blocks (of the first entries, of the second, ...).
  * F flips signs again, shifts each block around by a random amount and adds the blocks up, over
    sqrt(D/k).

  With a `rotation_key` all seeds have the same S, and `spread` costs no transform.
  """
  k, width = num_projections, padded_dim(dim, num_projections)
  num_blocks = width // k
  scale = np.float32(math.sqrt(k / width))
  shared = None if rotation_key is None else _sign_bits(rotation_key, num_blocks, k)

  def draw(seed):
    rotation_key, sign_key, shift_key = jax.random.split(_key_of_seed(seed), 3)
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
    # A product, because XLA computes it on its own. Otherwise XLA would draw the noise in z again
    # for each of its copies.
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
  """A new public seed.

  It consists of random words, never of a key from which other keys were made.
  """
  return jax.random.bits(key, (seed_words,), np.uint32)


def padded_dim(dim: int, num_projections: int) -> int:
  """The least k 2^i that is at least `dim`."""
  return num_projections << (-(-dim // num_projections) - 1).bit_length()


def _key_of_seed(seed: Seed) -> jax.Array:
  return jax.random.wrap_key_data(seed, impl="threefry2x32")


def _windows(rows: jax.Array, starts: jax.Array) -> jax.Array:
  """Half of each row of [n, 2k], from that row's start on.

  The half is contiguous: a slice is copied faster than single entries.
  """
  size = rows.shape[1] // 2
  return jax.vmap(lambda row, start: lax.dynamic_slice_in_dim(row, start, size))(rows, starts)


def _sign_bits(key: jax.Array, num_blocks: int, size: int) -> jax.Array:
  """Random words with one bit for each entry of [num_blocks, size].

  One word holds the bits of 32 neighbouring blocks at one entry.
  """
  return jax.random.bits(key, (-(-num_blocks // 32), size), np.uint32)


def _flip(blocks: jax.Array, bits: jax.Array) -> jax.Array:
  """The blocks with the sign of each entry changed where its bit is 1."""
  # Each bit is moved to the place of a float32's sign. An exclusive or then flips the sign.
  signs = (bits[:, None, :] << jnp.arange(32, dtype=np.uint32)[None, :, None]) & np.uint32(1 << 31)
  signs = signs.reshape(-1, blocks.shape[1])[: blocks.shape[0]]
  return lax.bitcast_convert_type(lax.bitcast_convert_type(blocks, np.uint32) ^ signs, np.float32)
