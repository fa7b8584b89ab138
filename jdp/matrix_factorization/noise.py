"""Noise for the rounds of a run, correlated as a strategy says: the rows of C^-1 Z, one by one.

A round draws its row of Z anew. The rest of its row of C^-1 Z follows from what is kept from
earlier rounds, or from their keys:

| strategy | kept between rounds |
| --- | --- |
| `bands` of C | the noise of the last bands - 1 rounds |
| buffers | weighted sums of all earlier rounds' noise |
| tree | a level's latest estimate, and what rounding added to the last round's noise |
| bands of C^-1, independent noise | keys of the last bands rounds, which draw their rows again |

All but the last can include the rounding error that a release adds to the noise: `settle` gets the
noise as it was released. Later rounds then cancel the rounding as they cancel noise, and the sum of
a run's rounds holds the rounding of one round only. So the run releases C G + Z, with each row
rounded by itself.

What is kept is as secret as a key: whoever has it can remove the noise of released sums.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp import random
from jdp._arguments import checked
from jdp._loop_carries import vary_like
from jdp.matrix_factorization.banded_matrices import BandedStrategy
from jdp.matrix_factorization.buffered import BufferedStrategy
from jdp.matrix_factorization.strategies import Strategy
from jdp.matrix_factorization.toeplitz import ToeplitzStrategy
from jdp.matrix_factorization.trees import TreeStrategy, node_variances
from jdp.random import draws
from jdp.random.chacha import IMPLS
from jdp.random.draws import combined_normals

PyTree = Any
Key = jax.Array
Step = jax.Array
Kept = Any
Drawn = Any

_KEY_WORDS = 8
_IMPL = IMPLS["chacha20"]


class NoiseSource(NamedTuple):
  """The noise of a run as pure functions, where Z's entries have a standard deviation of 1.

  Attributes:
    init: record (or its shapes) -> what is kept before the first round: float32 arrays like the
      record's, with a leading axis, or key data. Secret.
    draw: (key, t, kept, like) -> (row t of C^-1 Z, drawn). The row is a tree of float32 arrays of
      the shapes of `like`, a record. The key is for this round alone. t is an int32 scalar, the
      number of rounds before this one. Call it in the order of the rounds.
    settle: (drawn, row as it was released) -> what is kept. The released row may differ from the
      drawn one by the rounding of the release.
    fresh: t -> an upper bound on the standard deviation of the part of row t that is in no earlier
      row.
  """

  init: Callable[[PyTree], Kept]
  draw: Callable[[Key, Step, Kept, PyTree], tuple[PyTree, Drawn]]
  settle: Callable[[Drawn, PyTree], Kept]
  fresh: Callable[[Step], float | jax.Array]


@checked
def noise_source(strategy: Strategy) -> NoiseSource:
  """The noise of a strategy's rounds.

  A row of Z is drawn with the key of its round. If it is drawn again later, ChaCha20 draws it with
  256 bits of that key.

  Raises:
    TypeError: if it is not a strategy of `jdp.matrix_factorization`.

  >>> from jdp.matrix_factorization import banded_inverse_square_root
  >>> source = noise_source(banded_inverse_square_root(8, bands=3))
  >>> kept = source.init(jnp.zeros(5))
  >>> row, drawn = source.draw(jax.random.key(0), jnp.int32(0), kept, jnp.zeros(5))
  >>> row.shape, source.settle(drawn, row).shape
  ((5,), (3, 8))
  """
  return _source(strategy)


@functools.singledispatch
def _source(strategy: Strategy) -> NoiseSource:
  raise TypeError(
    f"Expected a strategy of jdp.matrix_factorization, got {type(strategy).__name__}; make one."
  )


@_source.register
def _of_toeplitz(strategy: ToeplitzStrategy) -> NoiseSource:
  if not strategy.memory:
    return _drawn_again(np.trim_zeros(strategy.inverse, "b"))
  bands = strategy.memory + 1
  return _stored_rows(np.broadcast_to(strategy.coefficients[:bands, None], (bands, 1)))


@_source.register
def _of_bands(strategy: BandedStrategy) -> NoiseSource:
  return _stored_rows(strategy.diagonals)


@_source.register
def _of_buffers(strategy: BufferedStrategy) -> NoiseSource:
  """A row is the row of Z minus what the buffers hold: sum_j c_j row[t - j] over j >= 1."""
  scale = strategy.scale.astype(np.float32)
  # A decay close to 1 would lose digits in float32. Its difference from 1 does not.
  loss = (1 - strategy.decay).astype(np.float32)

  def init(record):
    return _zeros(len(scale), record)

  def draw(key, t, kept, like):
    del t
    return jax.tree.map(
      lambda z, w: z - _combined(scale, w), draws.normal_like(key, like), kept
    ), kept

  def settle(drawn, row):
    return jax.tree.map(lambda w, x: w - _per_row(loss, w) * w + x[None], drawn, row)

  return NoiseSource(init, draw, settle, lambda t: 1.0)


@_source.register
def _of_tree(strategy: TreeStrategy) -> NoiseSource:
  """A row is the change of the sum's noise: a new node replaces the nodes to its left.

  Levels that are not replaced are not read. If a round summed over all levels while it updates one,
  XLA would copy them several times.
  """
  levels = strategy.num_rounds.bit_length()
  own = np.asarray(node_variances(levels), np.float32)  # the weight of a node's own noise

  def init(record):
    return jax.tree.map(_zeros_like, record), _zeros(levels, record)

  def draw(key, t, kept, like):
    rounding, estimates = kept
    rounds = t + 1

    def ends(carry):
      level, *_ = carry
      return (rounds >> (level + 1) << (level + 1)) == rounds

    def parent(carry):
      level, right, replaced = carry
      left = jax.tree.map(lambda x: x[level], estimates)
      above = draws.normal_like(jax.random.fold_in(key, level + 1), like)
      weight = jnp.asarray(own)[level + 1]
      node = jax.tree.map(lambda z, x, y: weight * z + (1 - weight) * (x + y), above, left, right)
      return level + 1, node, jax.tree.map(jnp.add, replaced, left)

    leaf = draws.normal_like(jax.random.fold_in(key, 0), like)
    none = jax.tree.map(jnp.zeros_like, leaf)
    begun = jnp.int32(0), *vary_like((leaf, none), key, t, estimates)
    level, node, replaced = lax.while_loop(ends, parent, begun)
    row = jax.tree.map(lambda x, y, more: x - y - more, node, replaced, rounding)
    estimates = jax.tree.map(
      lambda x, new: lax.dynamic_update_index_in_dim(x, new, level, 0), estimates, node
    )
    return row, (row, estimates)

  def settle(drawn, row):
    as_drawn, estimates = drawn
    return jax.tree.map(jnp.subtract, row, as_drawn), estimates

  return NoiseSource(init, draw, settle, lambda t: 1.0)


def _stored_rows(diagonals: np.ndarray) -> NoiseSource:
  """Row t is (Z[t] - sum_j C[t, t - j] row[t - j]) / C[t, t], from the last bands - 1 rows.

  Args:
    diagonals: as for `BandedStrategy`, or [bands, 1] if C is Toeplitz.
  """
  bands, columns = diagonals.shape
  constant = diagonals.astype(np.float32)
  rows = bands - 1

  def entries(lag, t):
    return jnp.asarray(constant)[lag, jnp.clip(t - lag, 0, columns - 1)]

  def init(record):
    return _zeros(rows, record)

  def draw(key, t, kept, like):
    # Row r is stored in place r modulo `rows`. Places that are not yet filled hold zeros.
    lags = (t - 1 - np.arange(rows)) % max(rows, 1) + 1
    weights, scale = entries(lags, t), 1 / entries(0, t)
    row = jax.tree.map(
      lambda z, x: (z - _combined(weights, x)) * scale, draws.normal_like(key, like), kept
    )
    return row, (kept, t)

  def settle(drawn, row):
    kept, t = drawn
    return jax.tree.map(lambda x, new: x.at[t % max(rows, 1)].set(new), kept, row) if rows else kept

  def fresh(t):
    return float(1 / diagonals[0, 0]) if columns == 1 else 1 / entries(0, t)

  return NoiseSource(init, draw, settle, fresh)


def _drawn_again(inverse: np.ndarray) -> NoiseSource:
  """Row t is sum_j inverse[j] Z[t - j], drawn from the key data of the last rounds."""
  bands = len(inverse)
  weights = inverse.astype(np.float32)

  def init(record):
    del record
    return jnp.zeros((bands, _KEY_WORDS), jnp.uint32)

  def draw(key, t, kept, like):
    kept = kept.at[t % bands].set(random.bits(key, (_KEY_WORDS,)))
    latest = jax.random.wrap_key_data(kept[(t - np.arange(bands)) % bands], impl=_IMPL)
    count = jnp.minimum(t + 1, bands)
    leaves, treedef = jax.tree.flatten(like)
    # For each leaf, the keys of all rows. As raw data: otherwise JAX's key-reuse checker would take
    # one leaf's keys for those of all leaves.
    keys = jax.random.key_data(
      jax.vmap(lambda key: jax.random.split(key, len(leaves)), out_axes=1)(latest)
    )
    rows = [
      combined_normals(jax.random.wrap_key_data(own, impl=_IMPL), weights, count, x.shape)
      for own, x in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, rows), kept

  return NoiseSource(init, draw, lambda drawn, row: drawn, lambda t: float(inverse[0]))


def _zeros(rows: int, record: PyTree) -> PyTree:
  """Float32 zeros like a record, with a leading axis of `rows`.

  They lie where the record lies: what is kept for a sharded model is sharded too.
  """
  return jax.tree.map(lambda x: jnp.broadcast_to(_zeros_like(x), (rows, *x.shape)), record)


def _zeros_like(x: jax.Array) -> jax.Array:
  return jnp.zeros_like(x, jnp.float32)


def _combined(weights: jax.typing.ArrayLike, rows: jax.Array) -> jax.Array:
  """sum_i weights[i] rows[i]."""
  return jnp.tensordot(jnp.asarray(weights), rows, axes=1, precision=lax.Precision.HIGHEST)


def _per_row(weights: np.ndarray, rows: jax.Array) -> jax.Array:
  """The weights with axes of length 1, to multiply rows by them."""
  return jnp.asarray(weights).reshape(-1, *(1 for _ in rows.shape[1:]))
