"""Where keys come from."""

import hashlib
import os

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp.random.chacha import IMPLS


def secure_key(impl: str = "chacha20") -> jax.Array:
  """A new key of 256 bits from the operating system, for all that a guarantee rests on.

  To store a key, store `jax.random.key_data(key)`, as secret as the noise
  itself; `jax.random.wrap_key_data(data, impl=jdp.random.IMPLS["chacha20"])`
  restores it.

  Args:
    impl: "chacha20", "chacha12" or "chacha8" (see `jdp.random.chacha`).

  Returns:
    A typed key, usable with every `jax.random` function but `poisson`.

  Raises:
    ValueError: if `impl` is none of these.

  >>> import jax
  >>> jax.random.normal(secure_key(), (3,)).shape
  (3,)
  """
  return _key(os.urandom(32), impl)


def seeded_key(seed: int, impl: str = "chacha20") -> jax.Array:
  """A key made from a number, for runs that must be repeatable. NOT private.

  Whoever guesses the seed knows the noise. Unlike `jax.random.key(seed,
  impl=...)` it takes numbers of any length whether or not 64-bit types are
  enabled: the key is the SHA-256 hash of the number's decimal digits.

  Args:
    seed: a whole number >= 0.
    impl: "chacha20", "chacha12" or "chacha8".

  Returns:
    A typed key.

  Raises:
    ValueError: if `impl` is none of these, or `seed` is not such a number.

  >>> import jax
  >>> bool(jax.random.key_data(seeded_key(2**100))[0] == jax.random.key_data(seeded_key(2**100))[0])
  True
  """
  _validate.integer(0, seed=seed)
  return _key(hashlib.sha256(str(int(seed)).encode()).digest(), impl)


def _key(data: bytes, impl: str) -> jax.Array:
  _validate.one_of(tuple(IMPLS), impl=impl)
  return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(data, "<u4").astype(np.uint32)), impl=IMPLS[impl])
