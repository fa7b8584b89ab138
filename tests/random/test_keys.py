"""ChaCha as a JAX key type, and where keys come from."""

import copy
import math
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdp.random
from jdp.random import chacha
from jdp.random.chacha import IMPLS
from jdp.random.keys import client_key, is_exposed
from jdp.random.words import TILE, in_tiles, threefry_2x32, words
from tests.helpers import statistical

NUM_WORDS = 2**20  # 32-bit words in the tests of bits


def little_endian(text):
  return np.frombuffer(bytes.fromhex(text), "<u4").astype(np.uint32)


def one_block(key, tail, rounds=20):
  """The words of one block; key and tail in hexadecimal, as RFC 8439 prints them."""
  key, tail = (jnp.asarray(little_endian(x))[:, None] for x in (key, tail))
  return np.asarray(chacha.blocks(key, tail, rounds))[:, 0]


ZERO_KEY = "00" * 32
RFC_8439 = {
  "2.3.2": (
    bytes(range(32)).hex(),
    "01000000 000000090000004a00000000",
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
  ),
  "A.1 #1": (
    ZERO_KEY,
    "00" * 16,
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
  ),
  "A.1 #2": (
    ZERO_KEY,
    "01" + "00" * 15,
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
  ),
  "A.1 #3": (
    "00" * 31 + "01",
    "01" + "00" * 15,
    "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
    "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
  ),
  "A.1 #4": (
    "00ff" + "00" * 30,
    "02" + "00" * 15,
    "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
    "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
  ),
  "A.1 #5": (
    ZERO_KEY,
    "00" * 15 + "02",
    "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
    "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
  ),
}
FEWER_ROUNDS = {  # the zero key, draft-strombergson-chacha-test-vectors-01, TC1
  8: "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
  "984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42",
  12: "9bf49a6a0755f953811fce125f2683d50429c3bb49e074147e0089a52eae155f"
  "0564f879d27ae3c02ce82834acfa8c793a629f2ca0de6919610be82f411326be",
}


@pytest.mark.sweep
@pytest.mark.parametrize("vector", RFC_8439)
def test_block_function_agrees_with_rfc_8439(vector):
  key, tail, expected = RFC_8439[vector]
  np.testing.assert_array_equal(one_block(key, tail), little_endian(expected))


@pytest.mark.parametrize("rounds", FEWER_ROUNDS)
def test_fewer_rounds(rounds):
  np.testing.assert_array_equal(
    one_block(ZERO_KEY, "00" * 16, rounds), little_endian(FEWER_ROUNDS[rounds])
  )


def test_unrolled_threefry_is_jax_threefry():
  key = jnp.array([1, 2], np.uint32)
  high = jnp.arange(9, dtype=np.uint32)
  low = jnp.arange(9, 18, dtype=np.uint32)
  expected = jax.extend.random.threefry_2x32(key, jnp.concatenate([high, low]))
  np.testing.assert_array_equal(jnp.concatenate(threefry_2x32(key, high, low)), expected)


def expected_words(key, domain, counters):
  """The keystream of one domain, block by block, straight from the block function."""
  counters = np.asarray(counters, np.uint64)
  tails = [counters % 2**32, counters >> 32, 0 * counters, 0 * counters + domain]
  keys = np.broadcast_to(np.asarray(jax.random.key_data(key))[:, None], (8, len(counters)))
  return np.asarray(
    chacha.blocks(jnp.asarray(keys), jnp.asarray(np.stack(tails).astype(np.uint32)), 20)
  ).T


@pytest.mark.slow
@pytest.mark.parametrize(
  ("pieces", "size"), [*((1, n) for n in (1, 5, 16, 17, 65, 257)), (2, chacha.PIECE), (3, 3000)]
)
def test_bits_split_and_fold_in_use_the_blocks_that_the_proof_names(pieces, size):
  key, count = jdp.random.seeded_key(1), pieces * size
  counters = (chacha.PIECE * np.arange(pieces)[:, None] + np.arange(size)).reshape(-1)
  bits = jax.random.bits(jax.random.clone(key), (16 * count - 3,))
  word_by_word = (
    expected_words(key, 0, counters).reshape(pieces, size, 16).swapaxes(1, 2).reshape(-1)
  )
  np.testing.assert_array_equal(bits, word_by_word[:-3])
  children = jax.random.key_data(jax.random.split(jax.random.clone(key), 2 * count - 1))
  np.testing.assert_array_equal(children, expected_words(key, 1, counters).reshape(-1, 8)[:-1])
  for data in (0, 7, 2**32 - 1):
    folded = jax.random.key_data(jax.random.fold_in(key, np.uint32(data)))
    np.testing.assert_array_equal(folded, expected_words(key, 2, [data])[0, :8])


def test_counters_do_not_wrap():
  """The counters of a piece beyond 2^42 blocks, which no test could draw."""
  piece = 2**32 // chacha.PIECE * 1000 + 3
  low, high = chacha.counters(jnp.zeros(1, np.uint32), jnp.array([piece], np.uint32), chacha.PIECE)
  counters = (np.asarray(high, np.uint64) << 32 | np.asarray(low, np.uint64))[0]
  np.testing.assert_array_equal(
    counters, piece * chacha.PIECE + np.arange(chacha.PIECE, dtype=np.uint64)
  )


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["chacha20", "threefry2x32"])
def test_no_key_and_no_word_pair_repeats_in_the_tree_of_a_run(impl):
  """Rounds by fold_in, clients by split, two draws each. Chance repeats among 64-bit pairs:
  probability below 1e-8.
  """
  key = jax.random.key(3) if impl == "threefry2x32" else jdp.random.seeded_key(3, impl)
  rounds = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(8, dtype=np.uint32))
  clients = jax.vmap(lambda k: jax.random.split(k, 50))(rounds)
  uses = jax.vmap(jax.vmap(lambda k: jax.random.split(k, 3)))(jax.random.clone(clients))
  draws = jax.vmap(jax.vmap(jax.vmap(lambda k: jdp.random.bits(k, (32,)))))(jax.random.clone(uses))
  # beside their own children
  own = jax.vmap(jax.vmap(lambda k: jdp.random.bits(k, (32,))))(jax.random.clone(clients))
  data = [*map(jax.random.key_data, (rounds, clients, uses)), draws, own]
  pairs = np.concatenate([np.asarray(x).reshape(-1, 2) for x in data])
  assert len(np.unique(pairs, axis=0)) == len(pairs)


@pytest.mark.slow
def test_tiles_of_one_draw_share_no_words():
  """65,521 words of 64 bits in three tiles: two are equal by chance with probability 2e-10."""
  count = 2 * TILE + 1
  high, low = in_tiles(lambda key, size: words(key, (size,)), jdp.random.seeded_key(4), (count,))
  drawn = np.asarray(high).astype(np.uint64) << 32 | np.asarray(low)
  assert len(np.unique(drawn)) == count


@pytest.mark.slow
def test_what_an_accelerator_computes_side_by_side_are_the_same_words(monkeypatch):
  key, count = jdp.random.seeded_key(5), 3 * TILE - 2
  keys = jax.random.key_data(jax.random.split(jax.random.clone(key), 7))

  def drawn():
    streams = chacha._streams(
      keys, jnp.zeros(7, np.uint32), domain=0, count=chacha.PIECE + 3, rounds=8
    )
    return streams, *in_tiles(lambda k, size: words(k, (size,)), jax.random.clone(key), (count,))

  one_after_the_other = drawn()
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  jax.tree.map(np.testing.assert_array_equal, drawn(), one_after_the_other)


@pytest.mark.slow
def test_split_and_bits_of_one_key_share_nothing_when_it_is_used_twice_after_all(key):
  """The default key too: jdp's draws keep away from the counters of JAX's split and fold_in."""
  for k in (key, jdp.random.seeded_key(0)):
    first = {
      int(k)
      for k in np.asarray(jax.random.key_data(jax.random.split(jax.random.clone(k), 500))).reshape(
        -1
      )
    }
    second = {int(word) for word in np.asarray(jdp.random.bits(jax.random.clone(k), (2000,)))}
    # words of 32 bits meet by chance: at most 8000 * 2000 / 2^32 = 0.004 expected a key
    assert len(first & second) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["chacha20", "chacha8"])
def test_bits_are_uniform(impl):
  words = np.asarray(jax.random.bits(jdp.random.seeded_key(5, impl), (NUM_WORDS,)))
  bytes_ = np.bincount(words.view(np.uint8), minlength=256)
  law = np.full(256, 1 / 256)
  tilted = law * (1 + 0.02 * (-1.0) ** np.arange(256))
  statistical.assert_frequencies(bytes_, law, catches=tilted)
  for bit in range(32):
    statistical.assert_proportion(np.sum(words >> bit & 1), NUM_WORDS, 0.5, catches=0.01)
  signs = np.stack([2.0 * (words >> bit & 1) - 1 for bit in range(0, 32, 4)], axis=1)
  statistical.assert_uncorrelated(signs, catches=0.01)
  statistical.assert_uncorrelated(np.stack([signs[1:, 0], signs[:-1, 0]], axis=1), catches=0.01)


def test_widths_hold_the_same_bits():
  key = jdp.random.seeded_key(6)
  words = np.asarray(jax.random.bits(jax.random.clone(key), (6,), np.uint32))
  for dtype in (np.uint8, np.uint16):
    small = np.asarray(jax.random.bits(jax.random.clone(key), (3, 4), dtype))
    np.testing.assert_array_equal(small.reshape(-1), words.view(dtype)[:12])
  with enable_x64():
    wide = np.asarray(jax.random.bits(jax.random.clone(key), (3,), np.uint64))
  np.testing.assert_array_equal(wide, words.view(np.uint64))


def enable_x64():
  return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


@pytest.mark.slow
def test_jax_samplers_take_these_keys():
  samplers = {
    "uniform": lambda k: jax.random.uniform(k, (20,)),
    "gamma": lambda k: jax.random.gamma(k, jnp.float32(2), (20,)),
    "permutation": lambda k: jax.random.permutation(k, 20),
    "categorical": lambda k: jax.random.categorical(k, jnp.zeros(50), shape=(20,)),
  }
  keys = jax.random.split(jax.random.key(0, impl=IMPLS["chacha8"]), len(samplers))
  for key, (name, sample) in zip(keys, samplers.items(), strict=True):
    drawn = np.asarray(jax.jit(sample)(key))
    assert drawn.shape == (20,), name
    assert np.all(np.isfinite(drawn)), name
    assert len(np.unique(drawn)) > 3, name


def test_key_data_restores_a_key():
  key = jdp.random.secure_key("chacha12")
  assert jax.random.key_data(key).shape == (8,)
  again = jax.random.wrap_key_data(np.array(jax.random.key_data(key)), impl=IMPLS["chacha12"])
  np.testing.assert_array_equal(jax.random.bits(key, (5,)), jax.random.bits(again, (5,)))


@pytest.mark.parametrize(
  "traced",
  [
    lambda draw: jax.jit(draw)(),
    lambda draw: jax.lax.scan(lambda carry, _: (carry, draw()), 0, length=2),
    lambda draw: jax.eval_shape(draw),
  ],
)
def test_a_secure_key_is_no_constant_of_a_program(traced):
  """Two calls of the program would have one noise."""
  with pytest.raises(ValueError, match=r"Expected secure_key\(\) outside of jit"):
    traced(lambda: jax.random.normal(jdp.random.secure_key()))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg", "chacha20"])
def test_what_a_client_draws_begins_alike_in_every_shape_and_batch(impl):
  make = jdp.random.seeded_key if impl == "chacha20" else partial(jax.random.key, impl=impl)

  def draw(key, count):
    return jax.random.uniform(jax.random.clone(key), (count, 5))

  keys = jax.random.split(client_key(make(0)), 3)
  short, long = (jax.vmap(partial(draw, count=count))(keys) for count in (4, 70))
  np.testing.assert_array_equal(long[:, :4], short)
  np.testing.assert_array_equal(short, np.stack([draw(key, 4) for key in keys]))
  assert len(np.unique(short)) == short.size


def test_keys_of_other_bits_make_other_client_keys():
  data = np.zeros((9, 8), np.uint32)
  data[np.arange(8), np.arange(8)] = 1
  made = [client_key(jax.random.wrap_key_data(row, impl=IMPLS["chacha20"])) for row in data]
  assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in made}) == 9


def test_a_setting_under_which_padding_changes_draws_is_refused():
  with (
    jax.threefry_partitionable(False),
    pytest.raises(ValueError, match="Expected jax_threefry_partitionable"),
  ):
    client_key(jax.random.key(0))


def test_secure_keys_differ():
  data = np.stack([np.asarray(jax.random.key_data(jdp.random.secure_key())) for _ in range(8)])
  assert len(np.unique(data)) == data.size  # 64 words: a false failure with probability 5e-7
  ones = sum(int(word).bit_count() for word in data.reshape(-1))
  assert abs(ones - data.size * 16) < 6 * math.sqrt(data.size * 8)  # 6 standard deviations: 2e-9


def test_seeded_keys_are_repeatable_and_differ():
  data = {
    seed: tuple(map(int, jax.random.key_data(jdp.random.seeded_key(seed))))
    for seed in (0, 1, 2**32, 2**100)
  }
  assert len(set(data.values())) == 4
  assert data[1] == tuple(map(int, jax.random.key_data(jdp.random.seeded_key(1))))


@pytest.mark.slow
def test_seed_of_a_jax_key_does_not_depend_on_x64():
  impl = IMPLS["chacha20"]
  for seed in (0, 7, -7):
    narrow = np.asarray(jax.random.key_data(jax.random.key(seed, impl=impl)))
    with enable_x64():
      np.testing.assert_array_equal(narrow, jax.random.key_data(jax.random.key(seed, impl=impl)))


@pytest.mark.parametrize(
  "make", [jdp.random.secure_key, lambda impl: jdp.random.seeded_key(0, impl)]
)
def test_unknown_kind_of_key_is_refused(make):
  with pytest.raises(ValueError, match="one of chacha20, chacha12, chacha8, got 'chacha7'"):
    make("chacha7")


@pytest.mark.parametrize("seed", [-1, 0.5, float("nan")])
def test_bad_seed_is_refused(seed):
  with pytest.raises(ValueError, match="whole number"):
    jdp.random.seeded_key(seed)


def test_a_noise_key_among_the_clients_keys_is_exposed():
  """One key in common suffices, whatever the shapes."""
  keys = jax.random.split(jdp.random.secure_key(), 3)
  for noise, data, exposed in (
    (0, [1, 0], True),
    ([1, 0], 0, True),
    ([1, 0], [0, 2], True),
    (0, [[1], [0]], True),
    (2, [1, 0], False),
    ([2], [1, 0], False),
  ):
    noise_key, data_key = (jax.random.clone(keys)[np.array(index)] for index in (noise, data))
    assert bool(is_exposed(noise_key, data_key)) == exposed


@pytest.mark.parametrize("make", [jdp.random.secure_key, partial(jdp.random.seeded_key, 0)])
def test_keys_stay_out_of_pickles(make):
  key = make()
  with pytest.raises(ValueError, match=r"store jax\.random\.key_data"):
    pickle.dumps({"state": key})
  assert bool(copy.deepcopy(key) == key)
