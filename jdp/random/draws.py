"""The draws that mechanisms and queries are made of.

All draws:

* take a key of any type first, and consume it;
* run under jit, vmap, scan and shard_map;
* equal a loop over keys under vmap, bit for bit;
* give the same numbers whether or not 64-bit types are enabled.

**Tails.** The words of a draw are a whole number w of 39 to 64 bits: the first digits of a uniform
U in units of 2^-39 or 2^-64. The digits that follow, the *fraction*, matter only where w is small.
That is rare, so the draws of a tile share the few words of their fractions. Statement 5.5 of
`docs/theory/float_noise.md` says what is left: the largest draws, `LARGEST_NORMAL` and
`LARGEST_EXPONENTIAL`, and a dependence of far draws of one tile.

They are random floats of 32 bits. Their set of values is finite and uneven, which leaks what the
real numbers of a proof do not (I. Mironov, "On significance of the least significant bits for
differential privacy", CCS 2012). So a release with such noise is rounded to a grid coarser than the
floats' own, as `jdp.numerics.dither` does.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp import _validate
from jdp._arguments import checked
from jdp._loop_carries import vary_like
from jdp.random.words import in_tiles, is_threefry, words, words_and_few

# Minimax polynomials, by Remez exchange, of least relative error:
# log(1 + x) / x for x in [sqrt(1/2) - 1, sqrt(2) - 1], error 2.7e-8;
_LOG1P = (
  *(0.999999974, -0.49999988, 0.333341856, -0.250020741, 0.19956833),
  *(-0.165623909, 0.149522701, -0.143668614, 0.0872236886),
)
_MINUS_2_LOG1P = tuple(-2 * coefficient for coefficient in _LOG1P)
# sin(pi t) / t in powers of t^2 for t in [-1/2, 1/2], error 5.4e-9.
_SIN_PI = (3.14159264, -5.16770968, 2.55006973, -0.598242126, 0.0775603869)
_SQRT_HALF = np.float32(math.sqrt(0.5))
_SQRT_HALF_BITS = _SQRT_HALF.view(np.int32)
_LOG_2 = np.float32(math.log(2.0))
# Words of the fraction that a tile shares, and those of the hash that spreads it over the normals.
_DEEP, _HASH = 5, 2
_FRACTION_BITS = 32 * _DEEP + 1
_HASH_BITS = 17
# Fractions are as small as 2^-161, but float32's normal numbers end at 2^-126. So uniforms are
# multiplied by 2^62. The factor back to U, 2^-(64 + 62), is then just the least normal number.
_SCALE = 62
_SMALL = 2**13  # most numbers of an array whose copy takes no time
LARGEST_EXPONENTIAL = (64 + _FRACTION_BITS) * math.log(2)
"""The largest draw of `exponential`, 155.9."""
LARGEST_LAPLACE = LARGEST_EXPONENTIAL - math.log(2)
"""The largest draw of `laplace`, 155.3."""
LARGEST_NORMAL = math.sqrt(2 * math.log(2) * (39 + _HASH_BITS + _FRACTION_BITS))
"""The largest length of a pair of normals made of one uniform, 17.3. No draw exceeds it."""


@partial(jax.jit, static_argnames=("shape",))
def bits(key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
  """Uniform uint32 words of `shape`.

  >>> bits(jax.random.key(0), (2,)).dtype
  dtype('uint32')
  """
  return words(key, shape)[0] if is_threefry(key) else jax.random.bits(key, shape, np.uint32)


@partial(jax.jit, static_argnames=("shape",))
def log_uniforms(key: jax.Array, shape: tuple[int, ...] = ()) -> tuple[jax.Array, jax.Array]:
  """log U and log(1 - U) of one uniform U, each accurate to float32 however close U is to 0 or 1.

  U has 225 random bits from either end, so U and 1 - U are at least 2^-225. The test `log_u <
  log_p` decides a coin whose p, or 1 - p, is far below the resolution of a float32. `log_u` and
  `log_1mu` invert distribution functions in both tails.

  Args:
    key: consumed.
    shape: the shape of each result.

  Returns:
    (log U, log(1 - U)), float32 of `shape`, with relative error below 5e-7.

  >>> log_u, log_1mu = log_uniforms(jax.random.key(0))
  >>> bool(abs(jnp.exp(log_u) + jnp.exp(log_1mu) - 1) < 1e-6)
  True
  """
  return in_tiles(lambda k, count: _log_uniforms(*_words_and_fraction(k, count)), key, shape)


@partial(jax.jit, static_argnames=("shape", "dtype"))
def exponential(key: jax.Array, shape: tuple[int, ...] = (), dtype=np.float32) -> jax.Array:
  """Exponential draws of mean 1: -log U of a uniform U of 225 bits, so at most 155.9.

  Args:
    key: consumed.
    shape: the shape of the result.
    dtype: the dtype of the result, a float of at most 32 bits. The draw itself is in float32.

  Returns:
    Independent draws, all > 0. (In a 16-bit `dtype` they may round to 0.)

  Raises:
    ValueError: if `dtype` is another.

  >>> exponential(jax.random.key(0), (2, 3)).shape
  (2, 3)
  """
  _check_dtype(dtype)
  drawn = in_tiles(lambda k, count: -_log_uniform(*_words_and_fraction(k, count)), key, shape)
  return drawn.astype(dtype)


@partial(jax.jit, static_argnames=("shape", "dtype"))
def laplace(key: jax.Array, shape: tuple[int, ...] = (), dtype=np.float32) -> jax.Array:
  """Laplace draws of scale 1 (variance 2): an exponential of 224 bits with a random sign.

  Args:
    key: consumed.
    shape: the shape of the result.
    dtype: the dtype of the result, a float of at most 32 bits. The draw itself is in float32.

  Returns:
    Independent draws, of magnitude at most 155.3.

  Raises:
    ValueError: if `dtype` is another.

  >>> laplace(jax.random.key(0), (2, 3)).shape
  (2, 3)
  """
  _check_dtype(dtype)
  drawn = in_tiles(lambda k, count: _laplace(*_words_and_fraction(k, count)), key, shape)
  return drawn.astype(dtype)


@partial(jax.jit, static_argnames=("shape", "dtype"))
def normal(key: jax.Array, shape: tuple[int, ...] = (), dtype=np.float32) -> jax.Array:
  """Standard normal draws (Box and Muller 1958).

  The radius is drawn from 217 bits and the angle from at least 24. The magnitude is at most 17.3,
  which a true normal exceeds with probability 1e-66.

  Args:
    key: consumed.
    shape: the shape of the result.
    dtype: the dtype of the result, a float of at most 32 bits. The draw itself is in float32.

  Returns:
    Independent draws.

  Raises:
    ValueError: if `dtype` is another.

  >>> normal(jax.random.key(0), (2, 3)).shape
  (2, 3)
  """
  _check_dtype(dtype)
  return _of_pairs(_pair, key, shape).astype(dtype)


def normal_like(key: jax.Array, tree: Any) -> Any:
  """Independent standard normal draws like the arrays of a pytree.

  Arrays of up to 2^13 numbers are cut from one draw, as one stream of words takes less time than
  many. Each of the others has a key of its own.

  Args:
    key: consumed.
    tree: arrays or their shapes.

  Returns:
    A pytree of the same structure and shapes, float32.

  >>> like = {"b": jnp.zeros(3), "w": jnp.zeros((3, 2))}
  >>> jax.tree.map(jnp.shape, normal_like(jax.random.key(0), like))
  {'b': (3,), 'w': (3, 2)}
  """
  leaves, structure = jax.tree.flatten(tree)
  sizes = [math.prod(x.shape) for x in leaves]
  small = [size for size in sizes if size <= _SMALL]
  small_key, *keys = jax.random.split(key, 1 + len(sizes) - len(small))
  parts = iter(jnp.split(normal(small_key, (sum(small),)), np.cumsum(small)))
  large = iter(keys)
  drawn = [
    (next(parts) if size <= _SMALL else normal(next(large), (size,))).reshape(x.shape)
    for x, size in zip(leaves, sizes, strict=True)
  ]
  return jax.tree.unflatten(structure, drawn)


@partial(jax.jit, static_argnames=("shape",))
def combined_normals(
  keys: jax.Array, weights: jax.Array, count: jax.Array, shape: tuple[int, ...]
) -> jax.Array:
  """sum_j weights[j] `normal(keys[j], shape)`, over the first `count` keys, added in their order.

  A tile's sum over all keys is finished before the next tile is begun. So it stays in the core's
  cache, and takes little longer than the draws.

  Args:
    keys: [n], consumed.
    weights: float32 [n].
    count: int32 scalar, at most n.
    shape: the shape of the result, float32.

  >>> keys = jax.random.split(jax.random.key(0), 2)
  >>> one = combined_normals(keys, jnp.array([2.0, 1.0]), jnp.int32(1), (3,))
  >>> bool((one == 2 * normal(keys[0], (3,))).all())
  True
  """

  def combined(keys, count_of_tile):
    # The loop is over raw key data, as JAX's key-reuse checker takes one over keys for reuse.
    impl, data = jax.random.key_impl(keys), jax.random.key_data(keys)

    def add(j, totals):
      drawn = _pair(jax.random.wrap_key_data(data[j], impl=impl), count_of_tile)
      return tuple(x + weights[j] * z for x, z in zip(totals, drawn, strict=True))

    nothing = vary_like((jnp.zeros(count_of_tile),) * 2, data, weights, count)
    return lax.fori_loop(0, count, add, nothing)

  return _of_pairs(combined, keys, shape)


def _pair(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
  """Twice as many normals, as two arrays [count]."""
  high, low, few = words_and_few(key, (count,), _HASH + _DEEP)
  return _box_muller(high, low, _hashed(few[:_HASH], count), _fraction(few[_HASH:]))


def _of_pairs(
  pair: Callable[[jax.Array, int], tuple[jax.Array, jax.Array]],
  key: jax.Array,
  shape: tuple[int, ...],
) -> jax.Array:
  """Values that `pair` makes two at a time, in tiles; for threefry keys, only the first of each."""
  # XLA fuses threefry words with one output only: using both normals computes every block twice.
  if is_threefry(key):
    return in_tiles(lambda k, count: pair(k, count)[0], key, shape)
  size = math.prod(shape)
  halves = in_tiles(pair, key, (-(-size // 2),))
  return jnp.concatenate(halves)[:size].reshape(shape)


@checked
def bernoulli(key: jax.Array, p: float, shape: tuple[int, ...] = ()) -> jax.Array:
  """Coins that are True with probability `realised_probability(p)`.

  A coin is True if 64 random bits are below floor(p 2^64). Nothing is rounded to float32, which
  would draw a sampling probability of 0.01 as 0.00999999978. For a traced p, compare `log_uniforms`
  instead.

  Args:
    key: consumed.
    p: a host float in [0, 1]. 0 and 1 are exact.
    shape: the shape of the result.

  Returns:
    bool, of `shape`.

  Raises:
    ValueError: if `p` is not in [0, 1].

  >>> bool(bernoulli(jax.random.key(0), 1.0))
  True
  """
  threshold = _threshold(p)
  high, low = words(key, shape)
  if threshold == 2**64:
    return jnp.ones(shape, bool)
  threshold_high, threshold_low = np.uint32(threshold >> 32), np.uint32(threshold % 2**32)
  return (high < threshold_high) | ((high == threshold_high) & (low < threshold_low))


@checked
def rare_bernoulli(key: jax.Array, log_p: float) -> jax.Array:
  """One coin that is True with probability e^log_p, however small.

  It is the conjunction of a coin of 64 bits and of fair coins. The fair coins are as many as bring
  the first coin's probability up to at least 2^-32. The realised probability is e^log_p to a
  relative 2^-32.

  Args:
    key: consumed.
    log_p: a host float <= 0, finite.

  Returns:
    bool scalar.

  Raises:
    ValueError: if `log_p` is positive, infinite or NaN.

  >>> bool(rare_bernoulli(jax.random.key(0), -1e4))
  False
  """
  if not -math.inf < log_p <= 0:
    raise ValueError(f"Expected log_p finite and <= 0, got {log_p}.")
  num_words = int(-log_p / (32 * math.log(2)))
  words_key, coin_key = jax.random.split(key)
  coin = bernoulli(coin_key, min(1.0, math.exp(log_p + num_words * 32 * math.log(2))))
  return coin & jnp.all(bits(words_key, (num_words,)) == 0) if num_words else coin


@checked
def realised_probability(p: float) -> float:
  """The exact probability with which `bernoulli(key, p)` is True.

  It is p rounded down to a multiple of 2^-64. If p is 0 or at least 2^-12, it is p itself.

  >>> realised_probability(0.01), realised_probability(1e-25)
  (0.01, 0.0)
  """
  return _threshold(p) / 2**64


def _threshold(p: float) -> int:
  """floor(p 2^64), exactly."""
  _validate.probability(p=p)
  numerator, denominator = float(p).as_integer_ratio()
  return numerator * 2**64 // denominator


def _check_dtype(dtype: Any) -> None:
  """Refuses a dtype that is not a float of at most 32 bits."""
  if not (jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits <= 32):
    raise ValueError(
      f"Expected dtype to be a float of at most 32 bits, got {dtype}; draw float32 and convert."
    )


def _words_and_fraction(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
  """64 random bits for each of `count` draws, (high, low), and the fraction that all share."""
  high, low, few = words_and_few(key, (count,), _DEEP)
  return high, low, _fraction(few)


def _fraction(words: jax.Array) -> jax.Array:
  """A uniform of `_FRACTION_BITS`, in units of 2^-`_SCALE`."""
  weights = np.float32(2.0) ** (_SCALE - 32 * np.arange(1, _DEEP + 1, dtype=np.float32))
  # An inner product, because XLA on CPU would compute a sum again for each of the draws.
  total = jnp.dot(words.astype(np.float32), weights, precision="highest")
  # Half of the last word's unit, so that it is never 0.
  return total + np.float32(2.0 ** (_SCALE - _FRACTION_BITS))


def _hashed(words: jax.Array, count: int) -> jax.Array:
  """`_HASH_BITS` for each of `count` draws, as floats: uniform, and any two of a tile independent.

  Multiply-shift hashing of the draw's number, a whole number below 2^16 (M. Dietzfelbinger,
  "Universal hashing and k-wise independent random variables via integer arithmetic without primes",
  STACS 1996, Theorem 3): the upper 17 of the 32 bits of a i + b. Threefry keys, which have no tiles
  and keep no secret, have larger numbers too: of two that differ by a multiple of 2^16, the bits
  depend on each other.
  """
  number = lax.iota(np.uint32, count)
  hashed = (words[0] * number + words[1]) >> np.uint32(32 - _HASH_BITS)
  return lax.bitcast_convert_type(hashed, np.int32).astype(np.float32)


def _box_muller(
  high: jax.Array, low: jax.Array, hashed: jax.Array, fraction: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Two normals from each 64 bits, the hashed bits that follow them, and the shared fraction."""
  sine = _angle(low)
  # cos(pi t) = sin(pi (1/2 - |t|)). Another random bit gives it the sign for a full circle.
  cosine = np.float32(0.5) - jnp.abs(sine)
  sign = (low & np.uint32(0x80)) << np.uint32(24)
  cosine = lax.bitcast_convert_type(lax.bitcast_convert_type(cosine, np.uint32) ^ sign, np.float32)
  radius = _radius(high, low, hashed, fraction)
  return radius * _sin_pi(sine), radius * _sin_pi(cosine)


def _angle(low: jax.Array) -> jax.Array:
  """t in (-1/2, 1/2) from the upper 24 bits: an odd multiple of 2^-25, exact in float32."""
  centred = low & np.uint32(0xFFFFFF00) | np.uint32(0x80)
  return lax.bitcast_convert_type(centred, np.int32).astype(np.float32) * np.float32(2.0**-32)


def _sin_pi(t: jax.Array) -> jax.Array:
  """sin(pi t) for t in [-1/2, 1/2]."""
  return t * _horner(_SIN_PI, t * t)


def _radius(high: jax.Array, low: jax.Array, hashed: jax.Array, fraction: jax.Array) -> jax.Array:
  """sqrt(-2 log u) of a uniform u, from `high`, the last 7 bits of `low` and what follows them."""
  # Whole numbers below 2^24 and 2^15. Signed ones are converted to float32 faster.
  coarse = lax.bitcast_convert_type(high >> np.uint32(8), np.int32).astype(np.float32)
  fine = (high & np.uint32(0xFF)) << np.uint32(7) | low & np.uint32(0x7F)
  fine = lax.bitcast_convert_type(fine, np.int32).astype(np.float32)
  unit = np.float32(2.0 ** (_SCALE + _HASH_BITS))
  rest = fine * unit + (hashed * np.float32(2.0**_SCALE) + fraction)
  mantissa, exponent = _mantissa(coarse * (unit * 2**15) + rest, 39 + _HASH_BITS + _SCALE)
  minus_twice_log = mantissa * _horner(_MINUS_2_LOG1P, mantissa) + exponent * (-2 * _LOG_2)
  return jnp.sqrt(minus_twice_log)


def _laplace(high: jax.Array, low: jax.Array, fraction: jax.Array) -> jax.Array:
  """Laplace draws of scale 1: the first bit is the sign, and the others are the magnitude."""
  magnitude = -_log_uniform(
    high << np.uint32(1) | low >> np.uint32(31), low << np.uint32(1), 2 * fraction
  )
  return jnp.where(high >> np.uint32(31) == 0, magnitude, -magnitude)


def _log_uniforms(
  high: jax.Array, low: jax.Array, fraction: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """(log U, log(1 - U)) of the same U."""
  return _log_uniform(high, low, fraction), _log_uniform(~high, ~low, fraction)


def _log_uniform(high: jax.Array, low: jax.Array, fraction: jax.Array) -> jax.Array:
  """log U for U = (w + fraction) / 2^64 in the lower half, where w has the bits (high, low).

  In the upper half 1 - U has this form, with the bits of w inverted. Called with the bits of w
  inverted, this function gives log(1 - U).
  """
  above = high >= np.uint32(1 << 31)
  high, low = (jnp.where(above, ~w, w).astype(np.float32) for w in (high, low))
  # The smaller of U and 1 - U, which float32 holds to a small relative error.
  unit = np.float32(2.0**_SCALE)
  scaled = high * (unit * 2**32) + (low * unit + fraction)
  mantissa, exponent = _mantissa(scaled, 64 + _SCALE)
  small = scaled * np.float32(2.0 ** -(64 + _SCALE))
  # If U is the larger, this is log(1 - small). Forming 1 - small would round it. Near 1 the
  # polynomial takes -small as it is. Otherwise it takes 2 (1 - small) - 1, which is exact.
  near = small < np.float32(1) - _SQRT_HALF
  mantissa = jnp.where(above, jnp.where(near, -small, np.float32(1) - 2 * small), mantissa)
  exponent = jnp.where(above, jnp.where(near, np.float32(0), np.float32(-1)), exponent)
  return _log1p(mantissa) + exponent * _LOG_2


def _mantissa(u: jax.Array, scale: int) -> tuple[jax.Array, jax.Array]:
  """(m - 1, e), floats, with u = m 2^(e + scale) and m in [sqrt(1/2), sqrt(2)).

  u must be positive and not subnormal.
  """
  pattern = lax.bitcast_convert_type(u, np.int32) - np.int32(scale << 23)
  # Minus the pattern of sqrt(1/2), so that the exponent steps there and m - 1 is centred at zero.
  exponent = (pattern - _SQRT_HALF_BITS) >> 23
  mantissa = lax.bitcast_convert_type(pattern - (exponent << 23), np.float32)
  return mantissa - np.float32(1), exponent.astype(np.float32)


def _log1p(x: jax.Array) -> jax.Array:
  """log(1 + x) by a polynomial; see `_LOG1P` for the range.

  XLA's own log is slower here, and a call on some back ends.
  """
  return x * _horner(_LOG1P, x)


def _horner(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
  """The polynomial with these coefficients, lowest power first, by Horner's rule."""
  total = jnp.full_like(x, coefficients[-1])
  for coefficient in coefficients[-2::-1]:
    total = total * x + np.float32(coefficient)
  return total
