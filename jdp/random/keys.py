"""Where keys come from, and what their types say of it.

A key of `secure_key`, and all that is split from it or folded into it, has a type of its own
(`SECURE_IMPLS`). A type is visible inside jit, so that a release can say there whether its noise
came from such a key. It says nothing of who has seen the key since, nor whether another draw was
made with it; and a key wrapped with that type by hand, or by `restore_key`, is taken at its word.
"""

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jdp import _validate
from jdp.random.chacha import IMPLS, SECURE_IMPLS


def secure_key(impl: str = "chacha20") -> jax.Array:
  """A new key of 256 bits from the operating system, for all that a guarantee rests on.

  To store a key, store `jax.random.key_data(key)`, as secret as the noise itself; `restore_key`
  makes the key of it.

  Args:
    impl: "chacha20", "chacha12" or "chacha8" (see `jdp.random.chacha`).

  Returns:
    A typed key, usable with every `jax.random` function but `poisson`.

  Raises:
    ValueError: if `impl` is none of these.

  >>> jax.random.normal(secure_key(), (3,)).shape
  (3,)
  """
  return _key(os.urandom(32), impl, SECURE_IMPLS)


def restore_key(data: ArrayLike, impl: str = "chacha20") -> jax.Array:
  """The key of `secure_key` whose `jax.random.key_data` was stored.

  The caller vouches for the data: they count as the operating system's.

  Args:
    data: [8] uint32.
    impl: as the key was made.

  Raises:
    ValueError: if `impl` is none of `secure_key`'s, or the data are of another shape.

  >>> key = secure_key()
  >>> bool(restore_key(jax.random.key_data(key)) == key)
  True
  """
  words = np.asarray(data, "<u4")
  if words.shape != (8,):
    raise ValueError(
      f"Expected the data of one key, [8], got shape {words.shape}; restore keys one by one."
    )
  return _key(words.tobytes(), impl, SECURE_IMPLS)


def seeded_key(seed: int, impl: str = "chacha20") -> jax.Array:
  """A key made from a number, for runs that must be repeatable. NOT private.

  Whoever guesses the seed knows the noise. Unlike `jax.random.key(seed, impl=...)` it takes numbers
  of any length whether or not 64-bit types are enabled: the key is the SHA-256 hash of the number's
  decimal digits.

  Args:
    seed: a whole number >= 0.
    impl: "chacha20", "chacha12" or "chacha8".

  Returns:
    A typed key.

  Raises:
    ValueError: if `impl` is none of these, or `seed` is not such a number.

  >>> bool(jax.random.key_data(seeded_key(2**100))[0] == jax.random.key_data(seeded_key(2**100))[0])
  True
  """
  _validate.integer(0, seed=seed)
  return _key(hashlib.sha256(str(int(seed)).encode()).digest(), impl, IMPLS)


def is_secure(key: jax.Array) -> bool:
  """Whether `key` is from `secure_key` (or derived from one, or restored): by its type, inside jit
  as outside.

  >>> (
  ...   is_secure(jax.random.split(secure_key())[0]),
  ...   is_secure(seeded_key(0)),
  ...   is_secure(jax.random.key(0)),
  ... )
  (True, False, False)
  """
  return jax.random.key_impl(key) in SECURE_IMPLS.values()


def is_exposed(noise_key: jax.Array, data_key: jax.Array | None = None) -> bool | jax.Array:
  """Whether noise drawn with `noise_key` may be known to others: what an event's `key_exposed`
  says.

  It is if the key is not secure, or is the very key that the data's randomness is drawn with, which
  clients have. A key derived from the other one is not recognised: split one key into both.

  Args:
    noise_key: of the noise.
    data_key: of what is no secret, or None.

  Returns:
    A bool where the types decide; a scalar bool array where the two keys had to be compared.

  >>> key = secure_key()
  >>> is_exposed(jax.random.key(0)), is_exposed(key, jax.random.key(0)), bool(is_exposed(key, key))
  (True, False, True)
  """
  if not is_secure(noise_key):
    return True
  if data_key is None or data_key.dtype != noise_key.dtype:
    return False
  return jnp.all(jax.random.key_data(noise_key) == jax.random.key_data(data_key))


def _key(data: bytes, impl: str, impls: Mapping[str, Any]) -> jax.Array:
  _validate.one_of(tuple(impls), impl=impl)
  return jax.random.wrap_key_data(
    jnp.asarray(np.frombuffer(data, "<u4").astype(np.uint32)), impl=impls[impl]
  )
