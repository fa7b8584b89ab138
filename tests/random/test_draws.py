"""The draws: their distributions, and that they are the same however they are run."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax.sharding import AxisType
from scipy import stats

import jdp.random
from jdp.random import chacha, draws
from jdp.random.words import TILE, in_tiles
from tests.helpers import statistical

IMPLS = ("threefry2x32", "chacha20", "rbg")  # unrolled, tiled, and a type that jdp knows nothing of
DRAWS = {
  "bits": jdp.random.bits,
  "log_uniforms": draws.log_uniforms,
  "exponential": draws.exponential,
  "laplace": jdp.random.laplace,
  "normal": jdp.random.normal,
  "bernoulli": lambda key, shape: jdp.random.bernoulli(key, 0.3, shape),
}
MILLION = 1_000_000
TILED = 2 * TILE + 5  # in two tiles of pairs of normals, or three of others, with a few to spare


def make_key(impl, seed=20181204):
  return (
    jdp.random.seeded_key(seed, impl) if impl in chacha.IMPLS else jax.random.key(seed, impl=impl)
  )


def assert_equal(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def counts_between(sample, edges):
  """How many values lie below, between and above the edges."""
  return np.bincount(np.searchsorted(edges.astype(np.float32), sample), minlength=len(edges) + 1)


# Laws


@pytest.mark.sweep
@pytest.mark.parametrize("impl", IMPLS)
def test_normal(impl):
  sample = np.asarray(jdp.random.normal(make_key(impl), (2 * MILLION,)))
  edges = stats.norm.isf(np.linspace(0, 1, 65)[1:-1])[::-1]
  scaled = np.diff(stats.norm.cdf(edges / 1.008), prepend=0, append=1)

  def check(sample):
    statistical.assert_frequencies(
      counts_between(sample, edges), np.full(64, 1 / 64), catches=scaled
    )

  check(sample)
  for scale in (0.98, 1.02):
    with pytest.raises(AssertionError, match="chi-square"):
      check(sample * np.float32(scale))
  statistical.assert_mean(sample, 0.0, stddev=1.0, catches=0.01)
  statistical.assert_normal_stddev(sample, 1.0, catches=0.005)
  # ChaCha's halves: sines and cosines
  statistical.assert_uncorrelated(sample.reshape(2, -1).T, catches=0.01)
  statistical.assert_mean(sample.astype(np.float64) ** 4, 3.0, stddev=math.sqrt(96), catches=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["threefry2x32", "chacha8"])
def test_normal_tails(impl):
  """1e8 draws against the tail beyond 4 to 5.5 sigma, where 3.8 are expected."""
  beyond = np.array([4.0, 4.5, 5.0, 5.5])
  counts = np.zeros(4, int)
  for key in jax.random.split(make_key(impl), 100):
    magnitude = np.abs(np.asarray(jdp.random.normal(key, (MILLION,))))
    tail = magnitude[magnitude > 4]
    counts += np.sum(tail[:, None] > beyond[None, :], axis=0)
  expected = 2 * stats.norm.sf(beyond)
  for count, probability, catches in zip(counts[:3], expected[:3], (0.15, 0.4, 1.8), strict=True):
    upper = stats.binom.isf(statistical.FALSE_FAILURE / 2, 100 * MILLION, probability)
    assert count <= upper
    assert stats.binom.cdf(upper, 100 * MILLION, probability * (1 + catches)) < statistical.MISS
    if catches < 1:
      statistical.assert_proportion(count, 100 * MILLION, probability, catches=catches)
  # too few values beyond 5.5 to see a tail that is cut there; one that is ten times too heavy is
  # seen
  upper = stats.poisson.isf(statistical.FALSE_FAILURE, 1e8 * expected[3])
  assert counts[3] <= upper
  assert stats.poisson.cdf(upper, 1e9 * expected[3]) < statistical.MISS


@pytest.mark.parametrize(("impl", "shape"), [("chacha20", (TILED,)), ("threefry2x32", (2, 3))])
def test_combined_normals_are_the_sums_of_the_draws(impl, shape):
  """To the bit, as powers of two round nothing, for the first keys only."""
  keys, weights = jax.random.split(make_key(impl), 3), np.float32([2.0, -0.5, 0.25])
  each = jax.random.clone(keys)
  rows = [w * jdp.random.normal(key, shape) for w, key in zip(weights, each, strict=True)]
  for count in range(4):
    again = jax.random.clone(keys)
    found = draws.combined_normals(again, weights, jnp.int32(count), shape)
    np.testing.assert_array_equal(found, sum(rows[:count], jnp.zeros(shape)))


@pytest.mark.parametrize("impl", ["chacha20", "threefry2x32"])
def test_arrays_of_a_tree_share_no_number(impl):
  """Small and large ones, empty ones and scalars: all are normal, and none repeats another's."""
  sizes = {"a": (3000,), "b": (), "c": (2**13, 2), "d": (0, 4), "e": (100, 30), "f": (2**13 + 1,)}
  like = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in sizes.items()}
  found = draws.normal_like(make_key(impl), like)
  assert {name: x.shape for name, x in found.items()} == sizes
  every = np.concatenate([np.ravel(x) for x in found.values()])
  # 30,768 draws of at least 23 bits: 56 pairs are expected to be equal, one array of two is 3,000.
  assert len(every) - len(np.unique(every)) < 200
  statistical.assert_normal_stddev(every, 1.0, catches=0.04)


def test_radius_and_angle_are_exact_out_to_the_last_bits():
  """Against float64, for words at both ends: radii from 0 to 7.2 and both zeros of the sine."""
  ends = np.concatenate([np.arange(200), 2 ** np.arange(8, 32), 2**32 - 1 - np.arange(200)]).astype(
    np.uint32
  )
  high, low = (x.reshape(-1) for x in np.meshgrid(ends, ends))
  u = (high.astype(np.float64) + ((low & 0x7F) + 0.75 + 2**-18) / 128) / 2**32
  hashed, fraction = np.float32(3 * 2**15), np.float32(2.0**61)  # .75 and half of 2^-17
  radius = np.asarray(draws._radius(high, low, hashed, fraction), np.float64)
  # u next to 1 is rounded to float32
  np.testing.assert_allclose(radius**2, -2 * np.log(u), rtol=6e-7, atol=2**-23)
  angle = ((low >> 8).astype(np.int32) << 8).astype(np.float64) + 128
  exact = np.sin(np.pi * angle / 2**32)
  np.testing.assert_allclose(
    draws._sin_pi(draws._angle(jnp.asarray(low))), exact, rtol=4e-7, atol=0
  )


def deep_fraction(zero_bits):
  """The shared fraction whose first digits are so many zeros, and the others ones and zeros."""
  digits = (0xB5297A4D << 128 | 0x68E31DA4 << 96 | 0x1B56C4E9 << 64 | 0x5 << 32 | 7) >> zero_bits
  shared = np.array([digits >> 32 * (4 - i) & 0xFFFFFFFF for i in range(5)], np.uint32)
  exact = (mpmath.mpf(digits) + 0.5) / mpmath.mpf(2) ** 160
  return draws._fraction(jnp.asarray(shared)), exact


@pytest.mark.parametrize("zero_bits", [0, 1, 31, 32, 90, 159, 160])
def test_draws_go_on_below_the_digits_of_their_own_words(zero_bits):
  """Against 60 digits, for words that are zero: out to the stated ends of all draws."""
  fraction, exact = deep_fraction(zero_bits)
  zero = jnp.zeros(1, jnp.uint32)
  with mpmath.workdps(60):
    log_u = float(mpmath.log(exact))
  own = {"radius": 39 + 17, "exponential": 64, "laplace": 63}
  exact = {name: bits * math.log(2) - log_u for name, bits in own.items()}
  found = {
    "radius": draws._radius(zero, zero, jnp.zeros(1), fraction)[0] ** 2 / 2,
    "exponential": -draws._log_uniform(zero, zero, fraction)[0],
    "laplace": draws._laplace(zero, zero, fraction)[0],
  }
  for name, value in found.items():
    assert float(value) == pytest.approx(exact[name], rel=1e-6), name
  assert float(-draws._log_uniforms(~zero, ~zero, fraction)[1][0]) == found["exponential"]
  if zero_bits == 160:  # the last of all draws
    assert math.sqrt(2 * exact["radius"]) == pytest.approx(draws.LARGEST_NORMAL, rel=1e-12)
    assert exact["exponential"] == pytest.approx(draws.LARGEST_EXPONENTIAL, rel=1e-12)
    assert draws.LARGEST_NORMAL > 17.3
    assert draws.LARGEST_EXPONENTIAL > 155.9


@pytest.mark.slow
def test_hashed_digits_are_uniform_and_independent_in_pairs():
  """Over all 2^32 hashes it is a theorem. Here: 2,000 hashes of 64 pairs, by chi-square of 4 x 4
  cells, which would see pairs of a correlation of .15.
  """
  hashes = jdp.random.bits(make_key("chacha20"), (2000, 2))
  numbers = jax.vmap(lambda pair: draws._hashed(pair, TILE))(hashes)
  cells = np.asarray(numbers // 2**15, int)
  rng = np.random.default_rng(0)
  for first, second in [*rng.integers(0, TILE, (64, 2)).tolist(), [0, 1], [7, 8]]:
    if first != second:
      counts = np.bincount(4 * cells[:, first] + cells[:, second], minlength=16)
      assert stats.chisquare(counts).pvalue > 1e-9
  wide = np.asarray(draws._hashed(hashes[0], TILE + 3))  # as for a threefry key
  np.testing.assert_array_equal(wide[:TILE], numbers[0])
  assert wide.min() >= 0
  assert wide.max() < 2**17


@pytest.mark.slow
def test_the_two_normals_of_a_word_pair_are_independent():
  high, low = jax.random.bits(jax.random.key(0), (2, MILLION))
  pairs = np.asarray(draws._box_muller(high, low, jnp.float32(0), jnp.float32(2.0**61)))
  squares = (pairs.astype(np.float64) ** 2 - 1) / math.sqrt(2)
  statistical.assert_uncorrelated(np.concatenate([pairs, squares]).T, catches=0.01)
  law = np.full(64, 1 / 64)  # the direction of the pair, all around
  turns = counts_between(np.arctan2(*pairs), np.linspace(-np.pi, np.pi, 65)[1:-1])
  statistical.assert_frequencies(turns, law, catches=law * (1 + 0.02 * np.tile([1.0, -1.0], 32)))


@pytest.mark.sweep
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", ["exponential", "laplace"])
def test_exponential_and_laplace(name, impl):
  law = {"exponential": stats.expon, "laplace": stats.laplace}[name]
  sample = np.asarray(DRAWS[name](make_key(impl), (MILLION,)))
  edges = law.ppf(np.concatenate([np.linspace(0, 1, 33)[1:-1], 1 - 2.0 ** -np.arange(6, 17)]))
  expected = np.diff(law.cdf(edges), prepend=0, append=1)
  scaled = np.diff(law.cdf(edges / 1.02), prepend=0, append=1)
  statistical.assert_frequencies(counts_between(sample, edges), expected, catches=scaled)
  with pytest.raises(AssertionError, match="chi-square"):
    statistical.assert_frequencies(
      counts_between(sample * np.float32(1.02), edges), expected, catches=scaled
    )


@pytest.mark.sweep
@pytest.mark.parametrize("impl", IMPLS)
def test_log_uniforms_are_uniform_in_both_tails(impl):
  log_u, log_1mu = (
    np.asarray(x, np.float64) for x in draws.log_uniforms(make_key(impl), (MILLION,))
  )
  np.testing.assert_allclose(np.exp(log_u) + np.exp(log_1mu), 1, rtol=2e-7)
  edges = -np.arange(16, 0, -1) * math.log(2)  # U in [2^-k-1, 2^-k]
  expected = np.diff(np.exp(edges), prepend=0, append=1)
  other = np.diff(np.exp(edges) ** 0.99, prepend=0, append=1)
  for sample in (log_u, log_1mu):
    statistical.assert_frequencies(counts_between(sample, edges), expected, catches=other)


@pytest.mark.slow
def test_log_uniforms_are_accurate_however_close_to_an_end():
  near = [2**k + j for k in range(64) for j in (-1, 0, 1)] + [
    int(x * 2**64) for x in np.linspace(0.01, 0.99, 99)
  ]
  near += [int(math.sqrt(0.5) * 2**64) + j * 2**40 for j in range(-50, 51)]
  w = sorted({x for k in near for x in (k, 2**64 - 1 - k) if 0 <= x < 2**64})
  words = np.array([[x >> 32 for x in w], [x % 2**32 for x in w]], np.uint32)
  results = draws._log_uniforms(*jnp.asarray(words), jnp.float32(2.0**61))
  for result, side in zip(results, (1, -1), strict=True):
    with mpmath.workdps(60):
      u = [(mpmath.mpf(x if side == 1 else 2**64 - 1 - x) + 0.5) / mpmath.mpf(2) ** 64 for x in w]
      exact = np.array([float(mpmath.log(x)) for x in u])
    np.testing.assert_allclose(np.asarray(result, np.float64), exact, rtol=5e-7, atol=0)


P = [0.0, 1.0, 0.5, 0.01, 1 / 3, 1e-6, 1e-15, 1 - 1e-15, 1 - 2**-53, 2.0**-64, 3e-20, 1e-25, 5e-324]


@pytest.mark.parametrize("p", P)
def test_bernoulli_compares_with_the_exact_threshold(monkeypatch, p):
  threshold = math.floor(Fraction(p) * 2**64)
  assert Fraction(draws.realised_probability(p)) == Fraction(threshold, 2**64)
  assert 0 <= Fraction(p) - Fraction(threshold, 2**64) < Fraction(1, 2**64)
  around = [threshold + j for j in (-(2**32), -1, 0, 1, 2**32)] + [0, 2**64 - 1]
  w = np.array([x for x in around if 0 <= x < 2**64], object)
  words = (jnp.asarray((w >> 32).astype(np.uint32)), jnp.asarray((w % 2**32).astype(np.uint32)))
  monkeypatch.setattr(draws, "words", lambda key, shape: words)
  np.testing.assert_array_equal(
    draws.bernoulli.__wrapped__(None, p, w.shape), (w < threshold).astype(bool)
  )


def test_bernoulli_frequency(key):
  coins = jdp.random.bernoulli(key, 0.3, (4 * MILLION,))
  statistical.assert_proportion(np.sum(coins), coins.size, 0.3, catches=0.01)


# The same however they are run


SECURE = [
  ("normal", shape, "chacha20") for shape in [(), (0,), (2, 3), (30_000,), (TILED,)]
]  # 30,000: three keys make two groups
ONE_OF_EACH = [*((name, IMPLS[0]) for name in DRAWS), ("normal", "chacha20")]
SECURE += [(name, (2, 3), "chacha20") for name in ("bits", "log_uniforms")] + [
  ("log_uniforms", (TILED,), "chacha20")
]


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("name", "shape", "impl"), [*((name, (2, 3), IMPLS[0]) for name in DRAWS), *SECURE]
)
def test_vmap_and_scan_are_loops(name, shape, impl):
  def draw(key):
    return DRAWS[name](key, shape)

  keys = jax.random.split(make_key(impl), 3)
  loop = jax.tree.map(lambda *x: np.stack(x), *(draw(jax.random.clone(key)) for key in keys))
  assert jax.tree.leaves(loop)[0].shape == (3, *shape)
  assert_equal(loop, jax.jit(jax.vmap(draw))(jax.random.clone(keys)))
  data, kind = jax.random.key_data(keys), jax.random.key_impl(keys)
  scanned = jax.lax.scan(
    lambda _, x: (None, draw(jax.random.wrap_key_data(x, impl=kind))), None, data
  )[1]
  assert_equal(loop, scanned)


@pytest.mark.slow
def test_a_batch_of_batches_and_an_empty_one():
  keys = jax.random.split(make_key("chacha20"), (2, 3))
  nested = jax.vmap(jax.vmap(lambda k: jdp.random.normal(k, (100,))))(jax.random.clone(keys))
  np.testing.assert_array_equal(nested[1, 2], jdp.random.normal(keys[1, 2], (100,)))
  assert jax.vmap(lambda k: jdp.random.normal(k, (3,)))(jax.random.clone(keys)[0][:0]).shape == (
    0,
    3,
  )


MESHES = {"four": ((4,), ("clients",)), "two by two": ((2, 2), ("clients", "model"))}


def mesh_of(name):
  """A mesh in force: the types of its axes are Auto."""
  return jax.make_mesh(*MESHES[name], axis_types=(AxisType.Auto,) * len(MESHES[name][1]))


@pytest.mark.parametrize(
  ("name", "tiles", "most"),
  [("four", 17, 5), ("two by two", 17, 5), ("two by two", 16, 4), ("four", 15, 15)],
)
def test_each_device_of_a_mesh_draws_its_share_of_many_tiles(name, tiles, most):
  """Each value says which device made it. They come in order, the last device's padded."""
  count, axes = tiles * TILE, MESHES[name][1]

  def device(key, size):
    del key
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return jnp.full(size, jax.lax.axis_index(axes) if manual else 0)

  with jax.set_mesh(mesh_of(name)):
    made_by = jax.jit(lambda key: in_tiles(device, key, (count,)))(make_key("chacha20"))
  found = np.asarray(made_by)[::TILE]
  np.testing.assert_array_equal(found, np.arange(tiles) // most)


@pytest.mark.slow
@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("draw", ["normal", "log_uniforms", "combined_normals"])
def test_a_mesh_does_not_change_the_draws_that_it_shares(draw, name):
  def drawn(key):
    if draw == "combined_normals":
      keys, weights = jax.random.split(key, 3), jnp.array([1.0, 2.0, 4.0])
      return draws.combined_normals(keys, weights, jnp.int32(2), (32 * TILE + 3,))
    return DRAWS[draw](key, (32 * TILE + 3,))

  alone = drawn(make_key("chacha8"))
  with jax.set_mesh(mesh_of(name)):
    assert_equal(jax.jit(drawn)(make_key("chacha8")), alone)
    batch = jax.jit(jax.vmap(drawn))(make_key("chacha8")[None])
  assert_equal(jax.tree.map(lambda x: x[0], batch), alone)


@pytest.mark.slow
@pytest.mark.parametrize("impl", IMPLS[:2])
def test_devices_do_not_change_the_draws(impl):
  def client(key):
    return jdp.random.normal(key, (5,)), draws.log_uniforms(jax.random.fold_in(key, 1))

  keys = jax.random.split(make_key(impl), 8)
  mesh = jax.sharding.Mesh(np.array(jax.devices()), ("clients",))
  spec = jax.sharding.PartitionSpec("clients")
  sharded = jax.jit(jax.shard_map(jax.vmap(client), mesh=mesh, in_specs=spec, out_specs=spec))(
    jax.random.clone(keys)
  )
  assert_equal(sharded, jax.vmap(client)(keys))


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "impl"), ONE_OF_EACH)
def test_pure_and_independent_of_x64(name, impl):
  key = make_key(impl)
  first = DRAWS[name](jax.random.clone(key), (1000,))
  DRAWS[name](make_key(impl, 1), (1000,))
  assert_equal(first, DRAWS[name](jax.random.clone(key), (1000,)))
  with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
    assert_equal(first, jax.jit(lambda k: DRAWS[name](k, (1000,)))(jax.random.clone(key)))


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "impl"), ONE_OF_EACH)
def test_second_use_of_a_key_is_found(name, impl):
  key = make_key(impl)
  DRAWS[name](key, (2,))
  with pytest.raises(jax.errors.KeyReuseError):
    DRAWS[name](key, (2,))

  def twice(key):
    return DRAWS[name](key, (2,)), jax.random.bits(key)

  with pytest.raises(jax.errors.KeyReuseError):
    jax.jit(twice)(make_key(impl))


def test_no_compilation_on_the_second_call(key):
  step = jax.jit(lambda k: jdp.random.normal(k, (10,)))
  for k in jax.random.split(key, 3):
    step(k)
  assert step._cache_size() == 1


# Arguments


@pytest.mark.sweep
@pytest.mark.parametrize("draw", [jdp.random.normal, jdp.random.laplace, draws.exponential])
def test_dtypes(draw, key):
  exact = draw(jax.random.clone(key), (50,))
  for dtype in (np.float16, jnp.bfloat16):
    assert_equal(draw(jax.random.clone(key), (50,), dtype), exact.astype(dtype))
  for dtype in (np.float64, np.int32, np.complex64):
    with pytest.raises(ValueError, match="float of at most 32 bits"):
      draw(jax.random.clone(key), (50,), dtype)


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_bernoulli_refuses_what_is_no_probability(key, p):
  with pytest.raises(ValueError, match="probability in"):
    jdp.random.bernoulli(key, p)
  with pytest.raises(ValueError, match="probability in"):
    draws.realised_probability(p)


def test_a_threefry_key_refuses_more_values_than_it_has_counters(key):
  with pytest.raises(ValueError, match="fewer than 2\\^32 values"):
    jax.eval_shape(lambda k: jdp.random.normal(k, (2**16, 2**16)), key)


@pytest.mark.parametrize("log_p", [0.0, -1e-9, -0.5, -20.0, -40.0, -1e4])
def test_rare_coins_are_as_rare_as_they_should_be(log_p):
  """The words that must be zero and the last coin's threshold multiply to e^log_p, to a relative
  2^-32.
  """
  num_words = int(-log_p / (32 * math.log(2)))
  rest = draws.realised_probability(min(1.0, math.exp(log_p + num_words * 32 * math.log(2))))
  assert math.log(rest) - num_words * 32 * math.log(2) == pytest.approx(log_p, abs=3e-10)
  assert rest >= 2.0**-33


@pytest.mark.slow
def test_rare_coins_fall_as_often_as_they_should():
  """2 million coins of probability 1e-3: 5 standard errors are 0.11 of it; and none at all of
  probability 2^-80.
  """
  keys = jax.random.split(jax.random.key(5), 2_000_000)
  hits = jax.jit(jax.vmap(lambda key: draws.rare_bernoulli(key, math.log(1e-3))))(keys)
  assert abs(int(hits.sum()) - 2000) < 5 * math.sqrt(2000)
  assert not np.any(
    jax.jit(jax.vmap(lambda key: draws.rare_bernoulli(key, -55.0)))(
      jax.random.split(jax.random.key(6), 1000)
    )
  )


@pytest.mark.parametrize("log_p", [1e-9, -math.inf, math.nan])
def test_rare_coins_refuse_what_is_no_log_probability(log_p):
  with pytest.raises(ValueError, match="log_p"):
    draws.rare_bernoulli(jax.random.key(0), log_p)
