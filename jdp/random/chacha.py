"""ChaCha20, ChaCha12 and ChaCha8 as JAX key types.

A key of one of these types works under jit, vmap, scan and shard_map. It works with all of
`jax.random` but `poisson`, which JAX ties to threefry.

The block function is that of RFC 8439, Section 2.3. The words that the RFC calls counter and nonce
are laid out as in Bernstein's original. The counter has 64 bits, so that no array is large enough
to wrap it. The nonce has 64 bits too: one word names the purpose (the domain) of the block, and the
other is zero.

**No block is ever used twice.** A block is determined by (key, nonce, counter).

* Two purposes of one key (bits, split, fold_in) differ in the nonce.
* Within bits and split, the counter is the position in the output. The pieces of a long output
  leave gaps. Within fold_in, it is the number folded in. A counter repeats only if the same purpose
  is asked for twice of the same key, which is key reuse. JAX's checker (`jax_debug_key_reuse`)
  finds it for bits and split. A `fold_in` of the same number is the same key by definition.
* A key that absorbs a message has no other use, so the message may be its whole counter and nonce.
* Different keys: every derived key is 256 bits of a block that no other key or output shares. It is
  a pseudorandom function of its parent and its place in the tree. If ChaCha is one, n keys of a run
  contain two equal ones with probability at most n^2 / 2^257.

ChaCha20 is the conservative choice; fewer rounds are faster. J.-P. Aumasson ("Too Much Crypto",
IACR ePrint 2019/1492) counts attacks on seven rounds and none on eight. He argues for eight.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend.random import define_prng_impl

_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4").astype(np.uint32)
_BITS, _SPLIT, _FOLD_IN, _SEED = range(4)  # the domains
# the columns that row r takes its words from, at the end of `_round`
_TURN = np.array([[(row - column) % 4 for column in range(4)] for row in range(4)])
# Blocks in a piece of a stream. Their state (256 KiB) stays in the second-level cache of a core.
PIECE = 2**12


def _width(count: int) -> int:
  """How many blocks are computed where `count` are needed: small counts share one width.

  XLA compiles the loop once for each width that a program has. One block keeps a width of its own,
  as XLA makes one function of so small a loop. More blocks are not padded: what becomes of their
  words would take longer, at 63 blocks by a fifth.
  """
  return count if count == 1 else max(count, 16)


def _at_a_time() -> int:
  """How many blocks are computed side by side. It affects the speed alone."""
  return PIECE if jax.default_backend() == "cpu" else 2**18


@partial(jax.jit, static_argnames=("rounds",))  # lowered once for all streams of a width
def blocks(keys: jax.Array, tails: jax.Array, rounds: int) -> jax.Array:
  """The ChaCha block function (RFC 8439, Section 2.3), for many blocks at once.

  Args:
    keys: [8, n] uint32.
    tails: [4, n] uint32, the last four words of the initial states: counter and nonce.
    rounds: an even number of rounds.

  Returns:
    [16, n] uint32. The words come first, so that every operation runs along whole vectors.
  """
  count = tails.shape[1]
  head = jnp.broadcast_to(jnp.asarray(_CONSTANTS)[:, None], (4, count))
  # Zeros, which XLA drops: under shard_map, all that a loop carries must vary over the same axes.
  zeros = (keys[:1] ^ tails[:1]) & np.uint32(0)
  start = tuple(rows | zeros for rows in (head, keys[:4], keys[4:], tails))
  # With two rounds in the loop's body, the second writes back into the buffer that the first read.
  # With one, XLA copies. For few blocks that takes little time, and half as much is compiled.
  at_a_time = 2 if count > 16 else 1

  def body(_, rows):
    for _ in range(at_a_time):
      rows = _round(*rows)
    return rows

  end = lax.fori_loop(0, rounds // at_a_time, body, start)
  return jnp.concatenate(end) + jnp.concatenate(start)


def _round(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> tuple[jax.Array, ...]:
  """One column round, after which row r is turned left by r and the columns are mirrored.

  The RFC alternates column rounds with diagonal rounds. A diagonal round is a column round on rows
  turned left, which are turned right again afterwards. A column round does not notice that the
  columns are mirrored. Mirroring them makes the second turn equal to the first. So all rounds are
  alike, and after an even number of them everything is back in its place.
  """
  a, b, c, d = _half_quarter(a, b, c, d, 16, 12)
  a, b, c, d = _half_quarter(a, b, c, d, 8, 7)
  rows = zip((a, b, c, d), _TURN, strict=True)
  return tuple(
    row.at[turn].get(mode="promise_in_bounds", wrap_negative_indices=False) for row, turn in rows
  )


def _half_quarter(
  a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array, first: int, second: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Half of the quarter round of all columns: two additions and two rotations."""
  a = a + b
  d = _rotate(d ^ a, first)
  c = c + d
  return a, _rotate(b ^ c, second), c, d


def _rotate(x: jax.Array, bits: int) -> jax.Array:
  """32-bit words rotated left."""
  return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def counters(starts: jax.Array, pieces: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
  """The 64-bit counters (low, high) of the first `size` <= PIECE blocks of pieces.

  Each is uint32 [n, size]. Piece p of a stream counts from p PIECE. PIECE is a power of two, so
  nothing carries. `starts` [n] is zero except for streams of one block.
  """
  low = (starts + pieces * np.uint32(PIECE))[:, None] + lax.iota(np.uint32, size)[None, :]
  return low, jnp.broadcast_to((pieces // np.uint32(2**32 // PIECE))[:, None], low.shape)


def _streams(
  keys: jax.Array, starts: jax.Array, *, domain: int, count: int, rounds: int
) -> jax.Array:
  """At least `count` blocks of one domain of each key: [n, pieces, 16, blocks in a piece].

  `keys` is [n, 8] and `starts` is [n]. Streams are cut into equal pieces of at most PIECE blocks.
  The pieces of all streams are computed a group at a time.
  """
  pieces = -(-count // PIECE)
  size = -(-count // pieces)
  total = keys.shape[0] * pieces
  # A group is about as many blocks as are computed side by side. Groups are equal, the last padded.
  groups = max(1, -(-total // max(1, _at_a_time() // size)))
  group = -(-total // groups)

  def grouped(x):
    return jnp.pad(x, [(0, groups * group - total)] + [(0, 0)] * (x.ndim - 1)).reshape(
      groups, group, *x.shape[1:]
    )

  def words_of(keys_starts_numbers):
    keys, starts, numbers = keys_starts_numbers
    low, high = counters(starts, numbers, size)
    tails = jnp.stack([low, high, jnp.zeros_like(low), jnp.full_like(low, domain)]).reshape(4, -1)
    padding = [(0, 0), (0, _width(group * size) - group * size)]
    each = jnp.pad(jnp.repeat(keys.T, size, axis=1), padding)
    words = blocks(each, jnp.pad(tails, padding), rounds)[:, : group * size]
    return words.reshape(16, group, size).swapaxes(0, 1)

  numbers = jnp.tile(lax.iota(np.uint32, pieces), keys.shape[0])
  each = (jnp.repeat(keys, pieces, axis=0), jnp.repeat(starts, pieces), numbers)
  if groups == 1:
    return words_of(each).reshape(-1, pieces, 16, size)
  words = lax.map(words_of, tuple(grouped(x) for x in each))
  return words.reshape(groups * group, 16, size)[:total].reshape(-1, pieces, 16, size)


def _by_rows(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
  """A function of arrays of equally many rows; under vmap, it is called once with all rows."""
  by_rows = custom_vmap(function)

  @by_rows.def_vmap
  def _(batch: int, is_batched: Any, *args: jax.Array) -> tuple[jax.Array, bool]:
    batches = [
      x if b else jnp.broadcast_to(x, (batch, *x.shape))
      for x, b in zip(args, is_batched, strict=True)
    ]
    outer = batches[0].shape[:2]
    words = by_rows(*(x.reshape(math.prod(outer), *x.shape[2:]) for x in batches))
    return words.reshape(*outer, *words.shape[1:]), True

  return by_rows


@partial(jax.jit, static_argnames=("domain", "count", "rounds"))
def _stream(key: jax.Array, start: jax.Array, **static: Any) -> jax.Array:
  """`_streams` for one key; under vmap, one `_streams` for all keys."""
  return _by_rows(partial(_streams, **static))(key[None], start[None])[0]


@partial(jax.jit, static_argnames=("rounds",))
def absorb(key: jax.Array, message: jax.Array, rounds: int) -> jax.Array:
  """A key that is a pseudorandom function of a message; each is uint32 [8].

  One half of the message is the counter and nonce of a block. That block begins with the key of the
  next, which takes the other half. The caller uses `key` for nothing else.
  """

  def both_halves(keys, messages):
    keys, messages = keys.T, messages.T
    for half in (messages[:4], messages[4:]):
      keys = blocks(keys, half, rounds)[:8]
    return keys.T

  return _by_rows(both_halves)(key[None], message[None])[0]


class _Seed:
  """A key type's function from seeds to keys. As part of the type, it keeps keys out of pickles."""

  def __init__(self, function: Callable[[Any], jax.Array]):
    self._function = function

  def __call__(self, value: Any) -> jax.Array:
    return self._function(value)

  def __reduce__(self) -> Any:
    raise ValueError(
      "Expected no ChaCha key in what is pickled, got one: the pickle would hold the secret of all "
      "noise drawn with it; store jax.random.key_data(key) where secrets are kept, and make the "
      "key by jdp.random.restore_key."
    )


def _define(rounds: int, *, secure: bool = False) -> Any:
  """The key type of ChaCha with a number of rounds.

  A secure type refuses seeds: its keys come from the operating system alone.
  """

  def stream(key, domain, count):
    return _stream(key, np.uint32(0), domain=domain, count=max(1, count), rounds=rounds)

  def first_half(key, domain, start):
    return _stream(key, start, domain=domain, count=1, rounds=rounds)[0, :8, 0]

  def no_seed(value):
    raise ValueError(
      f"Expected a {name} key from jdp.random.secure_key, got a seed; take jdp.random.seeded_key."
    )

  def seed(value):
    # A 32-bit seed is sign-extended: two shifts by 16 make its high word.
    low, high = (v.astype(np.uint32) for v in (value, value >> 16 >> 16))
    return first_half(jnp.pad(jnp.stack([low, high]), (0, 6)), _SEED, np.uint32(0))

  def fold_in(key, data):
    return first_half(key, _FOLD_IN, data.astype(np.uint32))

  def split(key, shape):
    count = math.prod(shape)
    words = stream(key, _SPLIT, -(-count // 2))  # a block holds two keys
    halves = words.reshape(words.shape[0], 2, 8, words.shape[2])
    return halves.transpose(0, 3, 1, 2).reshape(-1, 8)[:count].reshape(*shape, 8)

  def random_bits(key, width, shape):
    count = math.prod(shape)
    num_words = -(-count * width // 32)
    words = stream(key, _BITS, -(-num_words // 16)).reshape(-1)[:num_words]
    if width == 64:
      words = lax.bitcast_convert_type(words.reshape(-1, 2), np.uint64)
    elif width < 32:
      words = lax.bitcast_convert_type(words, np.dtype(f"uint{width}")).reshape(-1)[:count]
    return words.reshape(shape)

  name = f"secure_chacha{rounds}" if secure else f"chacha{rounds}"
  make = no_seed if secure else seed
  return define_prng_impl(
    key_shape=(8,),
    seed=_Seed(make),
    split=split,
    random_bits=random_bits,
    fold_in=fold_in,
    name=name,
    tag=name,
  )


IMPLS = {f"chacha{rounds}": _define(rounds) for rounds in (20, 12, 8)}
"""ChaCha generators by name, of 20, 12 and 8 rounds, as the types of keys that a seed makes."""

SECURE_IMPLS = {name: _define(int(name.removeprefix("chacha")), secure=True) for name in IMPLS}
"""The same generators, as the types of keys from the operating system.

No seed makes such a key. A key derived from one by split or fold_in has the same type. So a key's
type says where it came from, inside jit too.
"""

ROUNDS = {
  impl: int(name.removeprefix("chacha"))
  for impls in (IMPLS, SECURE_IMPLS)
  for name, impl in impls.items()
}
"""The number of rounds of each of these types of keys."""
