"""The first values of loops under `jax.shard_map`.

A loop's carry keeps its type, and the type says over which mesh axes a value varies. So a loop's
first value must vary over the same axes as its body's result. A constant does not.
"""

import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")


def vary_like(value: T, *sources: Any) -> T:
  """The same arrays, but varying over every mesh axis that any array in the sources varies over.

  Outside `jax.shard_map`, the value is returned. Inside, nothing is computed either: XLA drops a
  choice between equal values. But it may keep a copy of the value.

  Args:
    value: a tree of arrays, but not of keys.
    sources: trees of arrays or keys.

  >>> vary_like(jnp.int32(3), jax.random.key(0)).item()
  3
  """
  if not jax.sharding.get_abstract_mesh().manual_axes:
    return value
  varying = [jnp.zeros_like(x, dtype=bool, shape=()) for x in jax.tree.leaves(sources)]
  mark = functools.reduce(jnp.logical_or, varying, jnp.bool(False))
  return jax.tree.map(lambda x: jnp.where(mark, x, x), value)
