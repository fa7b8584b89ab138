"""Statistics that tell reports apart: functions report -> scalar.

Floats are compared with thresholds. Integers are categories.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jdp.attacks.residues import float_residues

Decode = Callable[[Any], Any]
Statistic = Callable[[Any], jax.Array]

_RESIDUES = ("granularity", "granularity and size", "modulo 16")
_MULTIPLIER = 0x9E3779B1  # odd, so that different words have different products


def default_statistics(direction: Any, decode: Decode) -> dict[str, Statistic]:
  """Projection and length of the estimate, residues of one of its numbers, and equality of reports.

  Args:
    direction: the difference of two inputs, of the estimate's structure. The residues are those of
      the number in which the inputs differ most.
    decode: report -> estimate.
  """
  weights = np.asarray(ravel_pytree(direction)[0], np.float32)
  farthest = int(np.argmax(np.abs(weights)))

  def estimate(report: Any) -> jax.Array:
    return flat(decode(report))

  def residue(name: str) -> Statistic:
    return lambda report: float_residues(estimate(report)[farthest])[name]

  return {
    "projection": lambda report: jnp.sum(estimate(report) * weights),
    "length": lambda report: jnp.sqrt(jnp.sum(jnp.square(estimate(report)))),
    "value": equal_values,
  } | {name: residue(name) for name in _RESIDUES}


def flat(tree: Any) -> jax.Array:
  """The numbers of a pytree, integers too, as one float32 vector."""
  return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)])


def equal_values(report: Any) -> jax.Array:
  """A category, int32, that is the same for equal reports.

  Different reports share a category with probability 2^-32 or so.
  """
  words = jnp.concatenate([jnp.ravel(_bits(leaf)) for leaf in jax.tree.leaves(report)])
  odd = np.cumprod(np.full(words.shape, _MULTIPLIER, np.uint32), dtype=np.uint32)
  return jax.lax.bitcast_convert_type(jnp.sum(words * odd, dtype=jnp.uint32), jnp.int32)


def _bits(leaf: jax.Array) -> jax.Array:
  """uint32 words that two arrays share only if they are equal."""
  leaf = jnp.asarray(leaf)
  if jnp.issubdtype(leaf.dtype, jnp.floating):
    return jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32)
  return leaf.astype(jnp.uint32)
