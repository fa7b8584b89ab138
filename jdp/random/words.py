"""Uniform random words from keys of any type, fast for threefry and ChaCha keys."""

import functools
import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from jdp.random.chacha import PIECE

T = TypeVar("T")

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
# The counter's first word, for `words` and for the few more; JAX's split and fold_in use smaller.
_MANY, _FEW = np.uint32(1 << 31), np.uint32((1 << 31) + 1)
# The most values of a tile. Their words, two each, and the few that they share are one piece of
# ChaCha's stream. A core's cache holds them, and the numbers made of them.
TILE = 8 * PIECE - 8
_LEAST_SHARE = 4  # tiles for each device of a mesh that are worth gathering


def words(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
  """64 random bits for each element of `shape`, as two uint32 arrays (high, low).

  Consumes the key.
  """
  return words_and_few(key, shape, 0)[:2]


def words_and_few(
  key: jax.Array, shape: tuple[int, ...], few: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """`words` of a shape, and `few` more, uint32 [few], that all its elements may share.

  Consumes the key.
  """
  if is_threefry(key):
    index = lax.iota(np.uint32, few)
    return *_threefry_words(key, shape), _threefry_blocks(key, _FEW, index)[0]
  size = math.prod(shape)
  drawn = jax.random.bits(key, (2 * size + few,), np.uint32)
  return drawn[:size].reshape(shape), drawn[size : 2 * size].reshape(shape), drawn[2 * size :]


def is_threefry(key: jax.Array) -> bool:
  """Whether `key` is of JAX's default type."""
  return jax.random.key_impl(key) == "threefry2x32"


def in_tiles(draw: Callable[[jax.Array, int], T], key: jax.Array, shape: tuple[int, ...]) -> T:
  """`draw(key, count)`, a pytree of [count] arrays, for all of `shape`. Consumes the key.

  `key` may be an array of keys, from which each value is made: `draw` then gets as many.

  Draws of more than TILE values (for normals, pairs) are made tile by tile, each from its own key.
  A tile's words are then still in the core's cache when they become numbers. Where JAX computes
  over a mesh (`jax.set_mesh`), each device makes its share of the tiles, in their order. The values
  are the same on any mesh. Threefry words need no tiles, since they never reach memory (see
  `_threefry_words`).
  """
  size = math.prod(shape)
  tiles = 1 if is_threefry(key) else max(1, -(-size // TILE))
  count = -(-size // tiles)
  if tiles == 1:
    drawn = draw(key, size)
  else:
    # The map is over raw key data: under vmap, JAX's key-reuse checker takes a scan over keys for
    # reuse.
    split = functools.partial(jax.random.split, num=tiles)
    for _ in key.shape:
      split = jax.vmap(split, out_axes=1)
    impl, data = jax.random.key_impl(key), jax.random.key_data(split(key))
    drawn = _of_tiles(lambda tile: draw(jax.random.wrap_key_data(tile, impl=impl), count), data)
  return jax.tree.map(lambda x: x.reshape(-1)[:size].reshape(shape), drawn)


def _of_tiles(draw: Callable[[jax.Array], T], tiles: jax.Array) -> T:
  """`draw` of each tile: on each device all of them, or its share where that pays.

  Shares may end with tiles that nobody asked for.
  """
  # On an accelerator many tiles run side by side, to fill it.
  side_by_side = None if jax.default_backend() == "cpu" else 128
  each = functools.partial(lax.map, draw, batch_size=side_by_side)
  mesh, count = jax.sharding.get_abstract_mesh(), len(tiles)
  # Several processes of CPUs have a network between them, which takes longer than to draw.
  near = jax.process_count() == 1 or jax.default_backend() != "cpu"
  pays = near and count >= _LEAST_SHARE * mesh.size > _LEAST_SHARE
  if not pays or set(mesh.axis_types) != {AxisType.Auto}:
    return each(tiles)
  shares = PartitionSpec(mesh.axis_names)
  padding = [(0, -count % mesh.size)] + [(0, 0)] * (tiles.ndim - 1)
  return jax.shard_map(each, in_specs=shares, out_specs=shares)(jnp.pad(tiles, padding))


def _threefry_words(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
  """The two words of one threefry block for each element.

  JAX's own generator runs the rounds as a loop through memory, and keeps one word of the two. Here
  the rounds are unrolled and elementwise from the counter on. XLA fuses them with whatever the
  words become.

  Block `i` has the counter (2^31, i). JAX's split and fold_in use counters below (2^31, 0), so they
  share no block with it. The few words of `words_and_few` are of the counters (2^31 + 1, i).
  """
  size = math.prod(shape)
  if size >= 2**32:
    raise ValueError(
      f"Expected fewer than 2^32 values from one threefry key, got shape {shape}; split the key."
    )
  # Compiled away. It is there for JAX's key-reuse checker, which does not see `key_data`.
  jax.random.bits(key)
  return _threefry_blocks(key, _MANY, lax.iota(np.uint32, size).reshape(shape))


def _threefry_blocks(
  key: jax.Array, domain: np.uint32, index: jax.Array
) -> tuple[jax.Array, jax.Array]:
  return threefry_2x32(jax.random.key_data(key), jnp.full_like(index, domain), index)


def threefry_2x32(key: jax.Array, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Threefry-2x32 with 20 rounds.

  Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

  Args:
    key: [2] uint32.
    high: uint32, the first word of each counter.
    low: uint32 of the same shape, the second word.

  Returns:
    The two words of each block, of the shape of the counters.
  """
  keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
  high, low = high + keys[0], low + keys[1]
  for step in range(5):
    for rotation in _ROTATIONS[step % 2]:
      high = high + low
      low = high ^ ((low << np.uint32(rotation)) | (low >> np.uint32(32 - rotation)))
    # After every four rounds the next words of the key are added.
    high = high + keys[(step + 1) % 3]
    low = low + keys[(step + 2) % 3] + np.uint32(step + 1)
  return high, low
