"""Spreads a configuration given as a pytree prefix over all vectors of a record."""

import jax

from jdp.queries.base import PyTree


def broadcast_prefix(name: str, prefix: PyTree, record: PyTree) -> PyTree:
  """A tree like `record` that holds, in place of each leaf, the leaf of `prefix` at or above it.

  Raises:
    ValueError: if `prefix` is not a pytree prefix of the record. The message calls it `name`.
  """
  try:
    return jax.tree.map(
      lambda value, subtree: jax.tree.map(lambda _: value, subtree), prefix, record
    )
  except ValueError as error:
    structures = jax.tree.structure(record), jax.tree.structure(prefix)
    message = "Expected {} to be a pytree prefix of the record, of structure {}, got {}."
    raise ValueError(message.format(name, *structures)) from error
