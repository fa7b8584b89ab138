"""Statistics that tell reports apart: report -> scalar.

Floats are compared with thresholds; integers are categories.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

Decode = Callable[[Any], Any]
Statistic = Callable[[Any], jax.Array]

_MODULUS = 16
_OF_ZERO = 1000  # the granularity of zero, which every grid holds
_MULTIPLIER = 0x9E3779B1  # odd, so that different words have different products


def default_statistics(direction: Any, decode: Decode, *, residues: bool) -> dict[str, Statistic]:
  """Projection and length of the estimate; equal values and residues of the report.

  Args:
    direction: of the difference of two inputs, of the estimate's structure.
    decode: report -> estimate.
    residues: whether to look at low-order bits too, and at which values occur at all. If not, projection and
      length are rounded to 9 bits: a threshold next to the largest value would tell by rounding errors, too.
  """
  weights = np.asarray(ravel_pytree(direction)[0], np.float32)
  farthest = int(np.argmax(np.abs(weights)))

  def estimate(report: Any) -> jax.Array:
    return flat(decode(report))

  def seen(number: jax.Array) -> jax.Array:
    return number if residues else jax.lax.reduce_precision(number, exponent_bits=8, mantissa_bits=8)

  statistics: dict[str, Statistic] = {
    "projection": lambda report: seen(jnp.sum(estimate(report) * weights)),
    "length": lambda report: seen(jnp.sqrt(jnp.sum(jnp.square(estimate(report))))),
  }
  if residues:
    statistics |= {
      "value": equal_values,
      "granularity": lambda report: granularity(estimate(report)[farthest]),
      "modulo": lambda report: _bits(estimate(report)[farthest]).astype(jnp.int32) % _MODULUS,
    }
  return statistics


def flat(tree: Any) -> jax.Array:
  """The real numbers of a pytree, its integers too, as one float32 vector."""
  return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)])


def equal_values(report: Any) -> jax.Array:
  """A category, int32, that is the same for equal reports, and for others with probability 2^-32 or so."""
  words = jnp.concatenate([jnp.ravel(_bits(leaf)) for leaf in jax.tree.leaves(report)])
  odd = np.cumprod(np.full(words.shape, _MULTIPLIER, np.uint32), dtype=np.uint32)
  return jax.lax.bitcast_convert_type(jnp.sum(words * odd, dtype=jnp.uint32), jnp.int32)


def granularity(number: jax.Array) -> jax.Array:
  """The place of a float32's last digit that is not zero: the largest e for which it is a multiple of 2^e, int32.

  Floats next to zero are finer: noise added to 1 shows there that it was.

  >>> granularity(jnp.float32(0.75)).item(), granularity(jnp.float32(12.0)).item()
  (-2, 2)
  """
  mantissa, exponent = jnp.frexp(number)
  digits = jnp.abs(mantissa * 2.0**24).astype(jnp.uint32)
  trailing = jax.lax.population_count((digits & (~digits + np.uint32(1))) - np.uint32(1)).astype(jnp.int32)
  return jnp.where(digits == 0, _OF_ZERO, trailing + exponent - 24)


def _bits(leaf: jax.Array) -> jax.Array:
  """uint32 words that two arrays share only if they are equal."""
  leaf = jnp.asarray(leaf)
  if jnp.issubdtype(leaf.dtype, jnp.floating):
    return jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32)
  return leaf.astype(jnp.uint32)
