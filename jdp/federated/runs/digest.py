"""Arrays as bytes, and digests that say whether arrays are equal to earlier ones, bit for bit."""

import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

PyTree = Any


def digest(tree: PyTree) -> str:
  """The SHA-256 hash of all leaves of a tree: their places, shapes, types and bits.

  The arrays are read one by one, so the host holds one of them at a time. It is as private as the
  arrays: whoever guesses them can check the guess.

  Args:
    tree: arrays or random keys. Of an array that several processes share, each hashes its part.

  >>> import jax.numpy as jnp
  >>> digest({"x": jnp.zeros(3)}) == digest({"x": jnp.zeros(3)})
  True
  >>> digest({"x": jnp.zeros(3)}) == digest({"x": -jnp.zeros(3)})
  False
  """
  found = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    found.update(jax.tree_util.keystr(path).encode())
    for part in _parts(to_data(leaf)):
      found.update(f"{part.dtype} {part.shape} ".encode())
      found.update(to_bytes(part).data)
  return found.hexdigest()


def is_key(leaf: Any) -> bool:
  """Whether a leaf is an array of random keys."""
  return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def to_data(leaf: Any) -> Any:
  """The leaf as a plain array: a key's data."""
  return jax.random.key_data(leaf) if is_key(leaf) else leaf


def whole(tree: PyTree) -> PyTree:
  """The tree with arrays that each process has whole. All processes call it together."""

  def gathered(leaf: Any) -> Any:
    return multihost_utils.process_allgather(leaf, tiled=True) if _is_divided(leaf) else leaf

  return jax.tree.map(gathered, tree)


def _is_divided(leaf: Any) -> bool:
  """Whether a leaf is an array of which this process has a part only."""
  return isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)


def to_bytes(leaf: Any) -> np.ndarray:
  """The bytes of a leaf, uint8 [n]. Some types of JAX have none by Python's buffer protocol."""
  return np.ascontiguousarray(to_data(leaf)).reshape(-1).view(np.uint8)


def from_bytes(content: np.ndarray, like: PyTree) -> PyTree:
  """The tree whose leaves have these bytes, one after the other, of the form of `like`."""
  leaves, structure = jax.tree.flatten(like)
  made = []
  for leaf in leaves:
    data = to_data(leaf)
    own, content = content[: data.nbytes], content[data.nbytes :]
    array = jnp.asarray(own.view(data.dtype).reshape(data.shape))
    made.append(
      jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if is_key(leaf) else array
    )
  return jax.tree.unflatten(structure, made)


def _parts(leaf: Any) -> Iterator[np.ndarray]:
  """A leaf on the host: whole, or the parts that this process has.

  The copies on several devices are one array, however many there are.
  """
  if _is_divided(leaf):
    yield from (np.asarray(shard.data) for shard in leaf.addressable_shards)
  else:
    # JAX turns float64 into float32 by default. The digest must be the same before and after that.
    yield np.asarray(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype))
