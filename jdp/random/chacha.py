"""ChaCha as JAX key types."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl

_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4").astype(np.uint32)
_BITS, _SPLIT, _FOLD_IN, _SEED = (np.uint32(i) for i in range(4))


def _rotate(x, count):
  return (x << np.uint32(count)) | (x >> np.uint32(32 - count))


def _quarter_round(a, b, c, d):
  a = a + b
  d = _rotate(d ^ a, 16)
  c = c + d
  b = _rotate(b ^ c, 12)
  a = a + b
  d = _rotate(d ^ a, 8)
  c = c + d
  b = _rotate(b ^ c, 7)
  return a, b, c, d


def block(key, counter, rounds):
  """16 words of each ChaCha block; key: 8 arrays, counter: 4 arrays (words 12 to 15). [..., 16]."""
  start = [*(jnp.uint32(c) for c in _CONSTANTS), *key, *counter]
  shape = jnp.broadcast_shapes(*(s.shape for s in start))
  start = [jnp.broadcast_to(s, shape) for s in start]

  def double_round(_, s):
    s = list(s)
    for i in range(4):
      s[i], s[4 + i], s[8 + i], s[12 + i] = _quarter_round(s[i], s[4 + i], s[8 + i], s[12 + i])
    for i in range(4):
      j = [i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4]
      s[j[0]], s[j[1]], s[j[2]], s[j[3]] = _quarter_round(*(s[k] for k in j))
    return tuple(s)

  end = lax.fori_loop(0, rounds // 2, double_round, tuple(start))
  return jnp.stack([a + b for a, b in zip(start, end, strict=True)], axis=-1)


def _blocks(key, lo, hi, domain, rounds):
  return block(list(key), [lo, hi, jnp.zeros_like(lo), jnp.full_like(lo, domain)], rounds)


def _words(key, count, domain, rounds):
  index = lax.iota(np.uint32, -(-count // 16))
  return _blocks(key, index, jnp.zeros_like(index), domain, rounds).reshape(-1)[:count]


def _define(rounds):
  def seed(value):
    lo = lax.convert_element_type(value, np.uint32)
    hi = lax.convert_element_type(lax.shift_right_arithmetic(value, lax.full_like(value, 31)), np.uint32)
    if value.dtype.itemsize == 8:
      hi = lax.convert_element_type(lax.shift_right_arithmetic(value, lax.full_like(value, 32)), np.uint32)
    return _blocks(jnp.zeros(8, np.uint32), lo, hi, _SEED, rounds)[:8]

  def split(key, shape):
    return _words(key, 8 * math.prod(shape), _SPLIT, rounds).reshape(*shape, 8)

  def fold_in(key, data):
    lo = lax.convert_element_type(data, np.uint32)
    return _blocks(key, lo, jnp.zeros_like(lo), _FOLD_IN, rounds)[:8]

  def random_bits(key, width, shape):
    size = math.prod(shape)
    words = _words(key, -(-size * width // 32), _BITS, rounds)
    if width == 64:
      words = lax.bitcast_convert_type(words.reshape(-1, 2), np.uint64)
    elif width < 32:
      words = lax.bitcast_convert_type(words, np.dtype(f"uint{width}")).reshape(-1)[:size]
    return words.reshape(shape)

  name = f"chacha{rounds}"
  return define_prng_impl(
    key_shape=(8,), seed=seed, split=split, random_bits=random_bits, fold_in=fold_in, name=name, tag=name
  )


IMPLS = {f"chacha{rounds}": _define(rounds) for rounds in (20, 12, 8)}
