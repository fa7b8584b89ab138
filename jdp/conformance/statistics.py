"""Statistics that tell reports apart. They are functions report -> scalar.

Floats are compared with thresholds. Integers are categories.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jdp.audits.residues import float_residues
from jdp.conformance.scores import SharedStatistic, Statistic

Decode = Callable[[Any], Any]

_PADDED = 16
_MULTIPLIER = 0x9E3779B1  # odd, so that different words have different products


def default_statistics(direction: Any, decode: Decode | None = None) -> dict[str, Statistic]:
  """Projection and length of the estimate, residues of one of its numbers, and equality of reports.

  Args:
    direction: the difference of two inputs, structured as the estimate. The residues are those of
      the number in which the inputs differ most.
    decode: report -> estimate. None: the report is the estimate.
  """
  weights = np.asarray(ravel_pytree(direction)[0], np.float32)
  weights = np.pad(weights, (0, -len(weights) % _PADDED))
  farthest = np.int32(np.argmax(np.abs(weights)))

  # If reports are estimates, `_padded` itself is one program for all reports of one form.
  estimate = _padded if decode is None else lambda report: _padded(decode(report))
  return {
    "projection": SharedStatistic(estimate, _projection, weights),
    "length": SharedStatistic(estimate, _length),
    "value": equal_values,
    "granularity": SharedStatistic(estimate, _granularity, farthest),
    "granularity and size": SharedStatistic(estimate, _granularity_and_size, farthest),
    "modulo 16": SharedStatistic(estimate, _modulo_16, farthest),
  }


def _padded(tree: Any) -> jax.Array:
  """`flat` padded with zeros to a few sizes, so that estimates share their statistics' programs."""
  numbers = flat(tree)
  return jnp.pad(numbers, (0, -len(numbers) % _PADDED))


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


def _projection(estimate: jax.Array, weights: jax.Array) -> jax.Array:
  return jnp.sum(estimate * weights)


def _length(estimate: jax.Array, constants: Any) -> jax.Array:
  del constants
  return jnp.sqrt(jnp.sum(jnp.square(estimate)))


def _granularity(estimate: jax.Array, index: jax.Array) -> jax.Array:
  return float_residues(estimate[index])["granularity"]


def _granularity_and_size(estimate: jax.Array, index: jax.Array) -> jax.Array:
  return float_residues(estimate[index])["granularity and size"]


def _modulo_16(estimate: jax.Array, index: jax.Array) -> jax.Array:
  return float_residues(estimate[index])["modulo 16"]


def _bits(leaf: jax.Array) -> jax.Array:
  """uint32 words that two arrays share only if they are equal."""
  leaf = jnp.asarray(leaf)
  if jnp.issubdtype(leaf.dtype, jnp.floating):
    return jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32)
  return leaf.astype(jnp.uint32)
