"""Keys that follow from what their noise hides.

Noise that hides two different sums shows their difference. A process that was killed, a copy of its
folder or an older one that was restored makes the same keys again, and may add up something else
with them. So a key is bound to a digest of what it hides: other sums have other noise, and the same
sum has the same.

**The digest.** Words are cut into chunks. A chunk of words m and secret words k becomes

    sum_i (low(m_i) + low(k_i) mod 2^16) (high(m_i) + high(k_i) mod 2^16) mod 2^32

(NH; Black et al., "UMAC: fast and secure message authentication", CRYPTO 1999), eight times, with k
shifted by a word each time. Two different chunks agree in one of the eight with probability at most
2^-16, and in all with at most 2^-128 (Theorem 4.3 there), whoever chose them without k. The results
are words again, to which the same is done with other k, until eight are left: four times for 1e9
words. These are folded into a new key, one after the other (by ChaCha, four at once): a
pseudorandom function of them (Bellare, Canetti and Krawczyk, FOCS 1996). The new key and all k are
one stream of the key. Shapes and types are part of the words, by their SHA-256 hash. So n sums of
one key that all differ share noise with probability at most 2^-127 n^2.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp._loop_carries import vary_like
from jdp.random.chacha import ROUNDS, absorb
from jdp.random.draws import bits

PyTree = Any

_CHUNK = 1024  # words of a message that become _WORDS
_WORDS = 8  # of a chunk's digest: eight sums, 2^-16 each, give 2^-128
_ALONE = 2**13  # Longer arrays are not copied into one with the others.
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def bind(key: jax.Array, hidden: PyTree) -> jax.Array:
  """A key that follows from `key` and from the bits of `hidden`.

  It takes about a fifth of the time of drawing as many normal numbers as `hidden` has at 100,000,
  and a tenth at a million.

  Args:
    key: of any type. Consumed.
    hidden: arrays, and numbers and texts of Python, which count by their value. Nothing about it
      can be seen from the result without the key. `program` hides code.

  Returns:
    A key of the same type.

  >>> key = jax.random.key(0)
  >>> one, again, other = (bind(jax.random.clone(key), jnp.float32(x)) for x in (1, 1, 2))
  >>> bool(one == again), bool(one == other)
  (True, False)
  """
  leaves, structure = jax.tree.flatten(hidden)
  said = [_ADDRESS.sub("", str(structure)), *map(_described, leaves)]
  structure_hash = hashlib.sha256("\n".join(said).encode()).digest()
  parts = [jnp.asarray(np.frombuffer(structure_hash, "<u4").astype(np.uint32))]
  parts += [_words(leaf) for leaf in leaves if _is_array(leaf)]
  return _bound(key, parts)


@jax.jit
def _bound(key: jax.Array, parts: list[jax.Array]) -> jax.Array:
  """A key from the bits of `key` and a digest of all words."""
  data = jax.random.key_data(key)
  lengths = _secret_lengths([len(part) for part in parts])
  # One stream has the new key and all secret words.
  words = bits(key, (data.size + sum(lengths),))
  new, *secrets = jnp.split(words, np.cumsum([data.size, *lengths])[:-1])
  digest = _digest(secrets, parts)
  return _derived(new.reshape(data.shape), digest, jax.random.key_impl(key))


def _derived(data: jax.Array, digest: jax.Array, impl: Any) -> jax.Array:
  """A key of a type from the words of another, which has no other use, and a digest."""
  if impl in ROUNDS:
    return jax.random.wrap_key_data(absorb(data, digest, ROUNDS[impl]), impl=impl)

  # Over raw key data, as JAX's key-reuse checker takes a loop over keys for reuse.
  def fold(i, data):
    folded = jax.random.fold_in(jax.random.wrap_key_data(data, impl=impl), digest[i])
    return jax.random.key_data(folded)

  folded = lax.fori_loop(0, _WORDS, fold, vary_like(data, digest))
  return jax.random.wrap_key_data(folded, impl=impl)


def program(function: Callable[..., Any], *args: PyTree) -> PyTree:
  """What tells a function's code from other code, to be hidden by `bind`.

  Args:
    function: a function that JAX can trace. Everything that it does counts, including the arrays
      that it holds, except what Python does in callbacks.
    args: its arguments. Their shapes and types count, not their values.

  Returns:
    The text of its program, and the arrays that the program holds.

  >>> key = jax.random.key(0)
  >>> one, other = (
  ...   bind(jax.random.clone(key), program(f, jnp.zeros(2))) for f in (jnp.sin, jnp.cos)
  ... )
  >>> bool(one == other)
  False
  """
  traced = jax.make_jaxpr(function)(*args)
  return _ADDRESS.sub("", str(traced)), list(_held(traced))


def _held(traced: Any) -> Iterator[Any]:
  """The arrays that a program and the programs within it hold."""
  yield from getattr(traced, "consts", ())
  for equation in traced.eqns:
    for value in jax.tree.leaves(equation.params):
      if hasattr(value, "eqns"):
        yield from _held(value)


def _is_array(leaf: Any) -> bool:
  return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _described(leaf: Any) -> str:
  """What tells leaves apart besides their bits."""
  return f"{leaf.dtype} {leaf.shape}" if _is_array(leaf) else f"{type(leaf).__name__} {leaf!r}"


def _words(leaf: Any) -> jax.Array:
  """An array's bits as uint32 [n]."""
  x = jnp.asarray(leaf)
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  if x.dtype == np.bool_:
    return x.reshape(-1).astype(np.uint32)
  width = x.dtype.itemsize
  if width < 4:
    return lax.bitcast_convert_type(x, np.dtype(f"uint{8 * width}")).reshape(-1).astype(np.uint32)
  return lax.bitcast_convert_type(x, np.uint32).reshape(-1)


def _secret_lengths(sizes: list[int]) -> list[int]:
  """The number of secret words of each level, for parts of these sizes."""
  chunks = sum(map(_chunks_alone, sizes))
  lengths = [_CHUNK + _WORDS] * (chunks > 0)
  size = sum(sizes) - chunks * (_CHUNK - _WORDS)
  while size > _WORDS:
    lengths.append(min(size, _CHUNK) + _WORDS)
    size = -(-size // _CHUNK) * _WORDS
  return lengths


def _chunks_alone(size: int) -> int:
  """How many chunks of a part of this size are hashed where they lie."""
  return size // _CHUNK if size > _ALONE else 0


def _digest(secrets: list[jax.Array], parts: list[jax.Array]) -> jax.Array:
  """Eight words that stand for all words of the parts."""
  ends = [_CHUNK * _chunks_alone(len(part)) for part in parts]
  rest = [part[end:] for part, end in zip(parts, ends, strict=True)]
  if any(ends):
    first, *secrets = secrets
    rest += [_hashed([part[:end]], first) for part, end in zip(parts, ends, strict=True) if end]
  for secret in secrets:
    rest = [_hashed(rest, secret)]
  return jnp.concatenate(rest)


def _hashed(parts: list[jax.Array], secret: jax.Array) -> jax.Array:
  """Eight words for each chunk of the parts, which are put together."""
  chunk = len(secret) - _WORDS
  padding = jnp.zeros(-sum(map(len, parts)) % chunk, np.uint32)
  message = jnp.concatenate([*parts, padding]).reshape(-1, chunk)
  low, high = _halves(message)
  keys = _halves(jnp.broadcast_to(secret, (len(message), len(secret))))

  def products(shift):
    k_low, k_high = (lax.slice_in_dim(k, shift, shift + chunk, axis=1) for k in keys)
    return (low + k_low).astype(np.uint32) * (high + k_high).astype(np.uint32)

  # All eight in one pass: XLA would read the message once for each of eight sums.
  sums = lax.reduce(
    tuple(map(products, range(_WORDS))),
    (np.uint32(0),) * _WORDS,
    lambda x, y: tuple(map(lax.add, x, y)),
    (1,),
  )
  return jnp.stack(sums, axis=1).reshape(-1)


def _halves(words: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The low and the high halves of words, as uint16: their sums are modulo 2^16."""
  return words.astype(np.uint16), (words >> np.uint32(16)).astype(np.uint16)
