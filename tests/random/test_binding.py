"""Keys that follow from what they hide: from every bit of it, and from nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import random
from jdp.random import binding, chacha
from jdp.random.chacha import SECURE_IMPLS

_KEY = random.seeded_key(20181204)


def bound(*hidden):
  return np.asarray(jax.random.key_data(binding.bind(jax.random.clone(_KEY), hidden))).tobytes()


@pytest.mark.slow
def test_whatever_differs_gives_another_key():
  zeros = jnp.zeros(3)
  hidden = [
    (),
    (0,),
    (0.0,),
    (1.0,),
    (True,),
    ("a",),
    (None,),
    (zeros,),
    (-zeros,),
    (jnp.zeros(4),),
    (jnp.zeros((3, 1)),),
    (jnp.zeros((1, 3)),),
    (jnp.zeros(3, jnp.int32),),
    (jnp.zeros(3, jnp.bfloat16),),
    (jnp.zeros(3, jnp.uint8),),
    (jnp.zeros(3, bool),),
    (jnp.ones(3, bool),),
    ({"a": zeros},),
    ({"b": zeros},),
    (zeros, zeros),
    ((zeros, zeros),),
    (jnp.full(3, jnp.nan),),
    (jax.random.key(0),),
    (jax.random.key(1),),
    (random.seeded_key(1),),
    *((zeros.at[i].set(2.0**-149),) for i in range(3)),
  ]
  keys = [bound(*each) for each in hidden]
  assert len(set(keys)) == len(keys)
  assert keys == [bound(*each) for each in hidden]


def test_every_bit_of_long_arrays_counts():
  """In chunks, levels and arrays that are hashed alone or together."""
  size = binding._ALONE + 5
  words = np.random.default_rng(0).integers(0, 2**32, size, np.uint32)
  make = jax.jit(lambda *hidden: jax.random.key_data(binding.bind(jax.random.clone(_KEY), hidden)))
  found = {np.asarray(make(words, words[:7])).tobytes()}
  places = [0, 1, 1023, 1024, binding._ALONE - 1, size - 1]
  for place in places:
    for bit in (0, 15, 16, 31):
      changed = words.copy()
      changed[place] ^= np.uint32(1 << bit)
      found.add(np.asarray(make(changed, words[:7])).tobytes())
  swapped = words.copy()
  swapped[:2048] = np.concatenate([words[1024:2048], words[:1024]])  # Chunks change places.
  found.add(np.asarray(make(swapped, words[:7])).tobytes())
  assert len(found) == len(places) * 4 + 2


def test_the_digest_is_the_published_hash():
  generator = np.random.default_rng(1)
  message = generator.integers(0, 2**32, 1500, np.uint32)
  secret = generator.integers(0, 2**32, binding._CHUNK + binding._WORDS, np.uint32)
  padded = np.pad(message, (0, 2048 - 1500)).reshape(2, 1024).astype(object)
  expected = [
    sum(
      ((int(m) % 2**16 + int(k) % 2**16) % 2**16) * (((int(m) >> 16) + (int(k) >> 16)) % 2**16)
      for m, k in zip(chunk, secret[shift:], strict=False)
    )
    % 2**32
    for chunk in padded
    for shift in range(binding._WORDS)
  ]
  assert np.asarray(binding._hashed([message], secret)).tolist() == expected


@pytest.mark.sweep
@pytest.mark.parametrize("impl", ["chacha20", "threefry2x32", "rbg"])
def test_keys_keep_their_type_under_jit_and_vmap(impl):
  key = _KEY if impl == "chacha20" else jax.random.key(0, impl=impl)

  def bind(x):
    return binding.bind(jax.random.clone(key), {"x": x})

  xs = jnp.arange(6.0).reshape(3, 2)
  batch, one = jax.vmap(bind)(xs), [jax.jit(bind)(x) for x in xs]
  assert batch.dtype == key.dtype
  assert all(bool(a == b) for a, b in zip(batch, one, strict=True))
  assert len({jax.random.key_data(k).tobytes() for k in one}) == 3


HELD = {
  "a closure": lambda c: lambda x: x + c,
  "a jitted function": lambda c: jax.jit(lambda x: x + c),
  "its gradient": lambda c: jax.grad(jax.jit(lambda x: (c * x * x).sum())),
  "a vmapped one": lambda c: jax.vmap(jax.jit(lambda x: x + c.sum())),
  "a loop": lambda c: lambda x: jax.lax.scan(lambda s, i: (s + c, i), x, None, length=3),
  "a branch": lambda c: lambda x: jax.lax.cond(x[0] > 0, lambda: x + c, lambda: x),
  "a recomputed one": lambda c: jax.checkpoint(jax.jit(lambda x: jnp.sin(x + c))),
}


@pytest.mark.parametrize("make", HELD.values(), ids=HELD)
def test_a_program_is_told_by_the_arrays_that_it_holds(make):
  x, held = jnp.zeros(3), np.arange(3, dtype=np.float32)
  one, again, other = (
    bound(binding.program(make(c), x)) for c in (held, held.copy(), held + np.float32([0, 0, 1]))
  )
  assert one == again != other


@pytest.mark.parametrize("impl", SECURE_IMPLS)
def test_chacha_takes_four_words_of_the_digest_at_once(impl):
  secret, digest = np.random.default_rng(1).integers(0, 2**32, (2, 8), np.uint32)
  rounds = int(impl.removeprefix("chacha"))
  key = jax.random.key_data(binding._derived(secret, digest, SECURE_IMPLS[impl]))
  expected = secret
  for half in (digest[:4], digest[4:]):
    expected = chacha.blocks(expected[:, None], half[:, None], rounds)[:8, 0]
  assert key.tolist() == expected.tolist()
