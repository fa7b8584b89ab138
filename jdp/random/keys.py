"""Where keys come from, and what their types say about it.

A key of `secure_key` has a type of its own (`SECURE_IMPLS`), and so has every key that is split
from it or folded into it. A type is visible inside jit. So a release can say there whether its
noise came from such a key.

The type has limits. It does not say who has seen the key since, nor whether another draw was made
with it. A key that is wrapped with that type by hand, or by `restore_key`, counts as secure.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jdp import _validate
from jdp._arguments import checked
from jdp.random.chacha import IMPLS, SECURE_IMPLS

E = TypeVar("E", bound=Any)  # an event


@checked
def secure_key(impl: str = "chacha20") -> jax.Array:
  """A new key of 256 bits from the operating system, for all that a guarantee rests on.

  To store a key, store `jax.random.key_data(key)`, which is as secret as the noise itself.
  `restore_key` makes the key from it. Keys of ChaCha refuse to be pickled: a pickle of a run's
  state would carry the secret to wherever the state goes.

  Args:
    impl: "chacha20", "chacha12" or "chacha8" (see `jdp.random.chacha`).

  Returns:
    A typed key, usable with every `jax.random` function but `poisson`.

  Raises:
    ValueError: if `impl` is none of these, or the call is traced. Inside jit the key would be a
      constant of the program, so that every call has the same noise.

  >>> jax.random.normal(secure_key(), (3,)).shape
  (3,)
  """
  key = _key(os.urandom(32), impl, SECURE_IMPLS)
  if isinstance(key, jax.core.Tracer):
    raise ValueError(
      "Expected secure_key() outside of jit and scan, got a call that is traced: the program would "
      "hold one key for all its calls; make the key outside, and pass it as an argument."
    )
  return key


@checked
def restore_key(data: ArrayLike, impl: str = "chacha20") -> jax.Array:
  """The key of `secure_key` whose `jax.random.key_data` was stored.

  The caller vouches for the data: they count as the operating system's.

  Args:
    data: [8] uint32.
    impl: the one that the key was made with.

  Raises:
    ValueError: if `impl` is none of `secure_key`'s, or the data are of another shape.

  >>> key = secure_key()
  >>> bool(restore_key(jax.random.key_data(key)) == key)
  True
  """
  words = np.asarray(data)
  if words.shape != (8,) or words.dtype.kind not in "iu":
    raise ValueError(
      f"Expected the data of one key, [8] words, got {words.dtype} of shape {words.shape}; restore "
      "keys one by one."
    )
  return _key(words.astype("<u4").tobytes(), impl, SECURE_IMPLS)


@checked
def seeded_key(seed: int, impl: str = "chacha20") -> jax.Array:
  """A key made from a number, for runs that must be repeatable. NOT private.

  Whoever guesses the seed knows the noise. The key is the SHA-256 hash of the number's decimal
  digits. So it takes numbers of any length whether or not 64-bit types are enabled, unlike
  `jax.random.key(seed, impl=...)`.

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


@checked
def is_secure(key: jax.Array) -> bool:
  """Whether `key` is from `secure_key`, derived from such a key, or restored.

  Its type tells, inside jit as outside.

  >>> (
  ...   is_secure(jax.random.split(secure_key())[0]),
  ...   is_secure(seeded_key(0)),
  ...   is_secure(jax.random.key(0)),
  ... )
  (True, False, False)
  """
  return jax.random.key_impl(key) in SECURE_IMPLS.values()


@checked
def is_exposed(noise_key: jax.Array, data_key: jax.Array | None = None) -> bool | jax.Array:
  """Whether others may know the noise drawn with `noise_key`: an event's `key_exposed`.

  They may know it in two cases: the key is not secure, or it also draws the data's randomness.
  Clients have the latter key. For arrays of keys, one key in common suffices. A key derived from
  the data's key is not recognised, so split one key into both.

  Args:
    noise_key: the key of the noise, or an array of keys.
    data_key: the key of randomness that is not secret, an array of keys, or None.

  Returns:
    A bool where the types decide. A scalar bool array where the two keys had to be compared.

  >>> key = secure_key()
  >>> is_exposed(jax.random.key(0)), is_exposed(key, jax.random.key(0)), bool(is_exposed(key, key))
  (True, False, True)
  """
  if not is_secure(noise_key):
    return True
  if data_key is None or data_key.dtype != noise_key.dtype:
    return False
  own, others = (jax.random.key_data(key).reshape(-1, 8) for key in (noise_key, data_key))
  return jnp.any(jnp.all(own[:, None] == others[None], axis=-1))


@checked
def marked(event: E, noise_key: jax.Array, data_key: jax.Array | None = None) -> E:
  """The event of noise that was drawn with a key, which says whether the key is not secret.

  This is the one place that sets `key_exposed`. The event keeps a mark that it already has.
  `SumQuery` marks what `finalize` returns, so a query need not.

  Args:
    event: an event of `jdp.events`.
    noise_key: see `is_exposed`.
    data_key: see `is_exposed`.

  Raises:
    TypeError: if `event` is not an event that can be marked.

  >>> from jdp.events import PureRelease
  >>> marked(PureRelease(1.0), seeded_key(0)).key_exposed
  True
  """
  if not hasattr(event, "key_exposed"):
    raise TypeError(
      f"Expected an event with a field `key_exposed`, got a {type(event).__name__}; take one of "
      "jdp.events, or register one of your own by jdp.events.register."
    )
  if event.key_exposed is True:
    return event
  exposed = is_exposed(noise_key, data_key)
  if exposed is False:
    return event
  if event.key_exposed is not False:
    exposed = event.key_exposed | exposed
  return dataclasses.replace(event, key_exposed=exposed)


def client_key(key: jax.Array) -> jax.Array:
  """A threefry key made of a key of any type, for what clients draw in local training.

  Draws by it do not depend on other clients. Those of a longer shape begin with those of a shorter
  one, so a client draws the same however far it is padded. Under vmap they are those of a loop.
  Neither holds for every type: ChaCha's draws depend on the whole shape, and JAX draws a batch of
  "rbg" keys from the first key alone. The key is not secret.

  Args:
    key: consumed. A threefry key is returned as it is.

  Raises:
    ValueError: if JAX is set to draw threefry's bits in another order.
  """
  if not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
    raise ValueError(
      "Expected jax_threefry_partitionable as JAX sets it, got False: one client's padding would "
      "change what others draw; leave it True."
    )
  if jax.random.key_impl(key) == "threefry2x32":
    return key
  words = jax.random.key_data(key)
  made = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
  for word in words[2:]:
    made = jax.random.fold_in(made, word)
  return made


def _key(data: bytes, impl: str, impls: Mapping[str, Any]) -> jax.Array:
  """The key of 32 bytes of data, of the type that `impls` has under `impl`."""
  _validate.one_of(tuple(impls), impl=impl)
  return jax.random.wrap_key_data(
    jnp.asarray(np.frombuffer(data, "<u4").astype(np.uint32)), impl=impls[impl]
  )
