"""Integers modulo 2^b, as secure aggregation adds them up."""

import jax
import jax.numpy as jnp
import numpy as np


def reduce(integers: jax.Array, modulus_bits: int) -> jax.Array:
  """Reduces int32 or uint32 integers modulo 2^b, for b in [1, 32].

  The result is uint32 in [0, 2^b).

  >>> reduce(jnp.array([-1, 257]), 8).tolist()
  [255, 1]
  """
  return integers.astype(jnp.uint32) & np.uint32(2**modulus_bits - 1)


def centred(residues: jax.Array, modulus_bits: int) -> jax.Array:
  """The representatives in [-2^(b-1), 2^(b-1)) of residues modulo 2^b, int32.

  >>> centred(jnp.array([255, 1], jnp.uint32), 8).tolist()
  [-1, 1]
  """
  unused = np.uint32(32 - modulus_bits)
  return jax.lax.bitcast_convert_type(
    residues.astype(jnp.uint32) << unused, jnp.int32
  ) >> unused.astype(np.int32)
