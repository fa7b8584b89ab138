"""Arrays as bytes, and digests that say whether arrays are equal to earlier ones, bit for bit."""

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

PyTree = Any
_HEAD_SIZE = 8  # bytes that say how long the list of types and shapes is


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
      found.update(_flat(part).data)
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


def to_bytes(tree: PyTree) -> np.ndarray:
  """The leaves of a tree with their types and shapes, uint8 [n]. Keys are written as key data."""
  leaves = [np.asarray(to_data(leaf)) for leaf in jax.tree.leaves(tree)]
  head = json.dumps([[x.dtype.name, x.shape] for x in leaves]).encode()
  size = len(head).to_bytes(_HEAD_SIZE, "little")
  return np.concatenate([np.frombuffer(size + head, np.uint8), *map(_flat, leaves)])


def from_bytes(content: np.ndarray, like: PyTree) -> PyTree:
  """The tree that `to_bytes` wrote, which has the structure and the shapes of `like`.

  The types are those that were written: a round may widen what a run began with. All but keys are
  NumPy arrays, so that each can be placed in turn.

  Raises:
    ValueError: if the content is not of such a tree.
  """
  leaves, structure = jax.tree.flatten(like)
  end = _HEAD_SIZE + int.from_bytes(content[:_HEAD_SIZE].tobytes(), "little")
  try:
    written = json.loads(content[_HEAD_SIZE:end].tobytes())
  except ValueError:  # what an older version wrote
    written = []
  if [tuple(shape) for _, shape in written] != [np.shape(to_data(leaf)) for leaf in leaves]:
    raise ValueError(
      "Expected a saved state with the arrays of this run's, got others; go on with the code and "
      "the arguments that it was saved with."
    )
  made = []
  for leaf, (name, shape) in zip(leaves, written, strict=True):
    dtype = jnp.dtype(name)
    begin, end = end, end + dtype.itemsize * math.prod(shape)
    array = content[begin:end].view(dtype).reshape(shape)
    if is_key(leaf):
      array = jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    made.append(array)
  return jax.tree.unflatten(structure, made)


def _flat(array: Any) -> np.ndarray:
  """An array's bytes, uint8 [n]. Some types of JAX have none by Python's buffer protocol."""
  return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _parts(leaf: Any) -> Iterator[np.ndarray]:
  """A leaf on the host: whole, or the parts that this process has.

  The copies on several devices are one array, however many there are.
  """
  if _is_divided(leaf):
    yield from (np.asarray(shard.data) for shard in leaf.addressable_shards)
  else:
    # JAX turns float64 into float32 by default. The digest must be the same before and after that.
    yield np.asarray(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype))
