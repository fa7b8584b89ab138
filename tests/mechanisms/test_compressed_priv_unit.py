"""PrivUnit as the number of a candidate: its distribution given the candidates, and over them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.accounting.local import cap_shares
from jdp.mechanisms import compressed_priv_unit
from jdp.mechanisms.draws import candidates as draws
from jdp.numerics.vectors import unit
from tests.helpers import statistical

DIM, BITS, EPSILON, COUNT = 5, 6, 2.0, 40_000
VALUE = jnp.asarray([0.5, -1.0, 0.25, 0.0, 2.0])


@functools.cache
def reports_of_own_tables():
  """(mechanism, candidates [n, d]) of clients that have a table each: independent reports."""

  def sent(key):
    table_key, own_key = jax.random.split(key)
    mechanism = compressed_priv_unit(DIM, EPSILON, table_key=table_key, bits=BITS)
    return mechanism.privatize(own_key, VALUE)

  keys = jax.random.split(jax.random.key(3), COUNT)
  mechanism = compressed_priv_unit(DIM, EPSILON, table_key=jax.random.key(0), bits=BITS)
  return mechanism, np.asarray(
    jax.jit(jax.vmap(sent))(keys), np.float64
  ) * mechanism.parameters.cap.m


def bins(cap, count=10):
  """Heights that cut both sides of a cap into parts of equal probability, from -1 to 1."""
  tails = np.linspace(0, 1, count + 1)[1:-1]

  def height(tail):
    if tail > 0.5:
      return -height(1 - tail)
    return float(cap_shares.quantile(cap.dim, math.log(tail))[0])

  q = math.exp(cap.log_q)
  outside = [height(q + (1 - q) * t) for t in tails[::-1]]
  return np.array([-1.001, *outside, cap.gamma, *(height(q * t) for t in tails[::-1]), 1.001])


def test_the_height_has_the_distribution_of_priv_unit():
  """A cap that is drawn from with probability .03 more is caught."""
  mechanism, sent = reports_of_own_tables()
  cap = mechanism.parameters.cap
  heights = sent @ np.asarray(unit(VALUE), np.float64)
  counts, _ = np.histogram(heights, bins(cap))

  def shares(p):
    return np.repeat([(1 - p) / 10, p / 10], 10)

  statistical.assert_frequencies(counts, shares(cap.p), catches=shares(cap.p + 0.03))


def test_the_direction_around_the_input_is_uniform_on_both_sides():
  """The part orthogonal to the input, by its signs: a quarter that has .295 is caught."""
  mechanism, sent = reports_of_own_tables()
  u = np.asarray(unit(VALUE), np.float64)
  basis = np.linalg.svd(u[None])[2][1:]
  inside = sent @ u >= mechanism.parameters.cap.gamma
  for side in (inside, ~inside):
    signs = (sent[side] @ basis[:2].T > 0) @ [1, 2]
    counts = np.bincount(signs, minlength=4)
    statistical.assert_frequencies(counts, np.full(4, 0.25), catches=[0.295, 0.235, 0.235, 0.235])


def test_the_estimate_is_unbiased():
  mechanism, sent = reports_of_own_tables()
  scale = mechanism.max_norm
  statistical.assert_mean(
    sent * scale, np.asarray(unit(VALUE)), stddev=scale / math.sqrt(DIM) * 1.1, catches=0.1
  )


def test_given_the_candidates_numbers_have_the_stated_probabilities():
  """One table: the share of the cap by the number of candidates that it holds, and ranks in it.

  A ratio R that is a tenth too large is caught, and an eighth of the ranks that has .14.
  """
  key, u = jax.random.key(8), unit(VALUE)
  mechanism = compressed_priv_unit(DIM, EPSILON, table_key=key, bits=BITS)
  law = mechanism.parameters
  table = draws.candidates(jax.random.clone(key), DIM, 2**BITS, law.cap.gamma)
  reports = jax.jit(jax.vmap(mechanism.encode, (0, None)))(
    jax.random.split(jax.random.key(9), COUNT), VALUE
  )
  words = jax.jit(jax.vmap(lambda seed: table.labels(seed, u)))(reports.seed)
  bits = (np.asarray(words)[:, :, None] >> np.arange(32)) & 1
  labels, sizes = bits.reshape(COUNT, -1), bits.sum(axis=(1, 2))
  inside = labels[np.arange(COUNT), np.asarray(reports.number)]

  def inside_share(ratio):
    k, j, n = sizes, law.threshold, law.num_candidates
    return np.mean((k + (ratio - 1) * np.minimum(k, j)) / (n + (ratio - 1) * j))

  ratio = math.exp(law.epsilon)
  statistical.assert_frequencies(
    np.bincount(inside, minlength=2),
    [1 - inside_share(ratio), inside_share(ratio)],
    catches=[1 - inside_share(1.1 * ratio), inside_share(1.1 * ratio)],
  )
  # On its side each candidate is as likely: the rank among its side's, scaled to [0, 1).
  before = np.cumsum(labels == inside[:, None], axis=1)
  rank = before[np.arange(COUNT), np.asarray(reports.number)] - 1
  own = np.where(inside, sizes, 2**BITS - sizes)
  jitter = np.random.default_rng(0).uniform(size=COUNT)
  counts, _ = np.histogram((rank + jitter) / own, np.linspace(0, 1, 9))
  statistical.assert_frequencies(counts, np.full(8, 1 / 8), catches=[0.14] + [0.86 / 7] * 7)


def test_labels_and_decoded_candidates_agree():
  """All 64 candidates of a seed, decoded, are on the side of the cap that their labels say."""
  key, u, seed = jax.random.key(4), unit(VALUE), np.uint16(77)
  mechanism = compressed_priv_unit(DIM, EPSILON, table_key=key, bits=BITS)
  gamma = mechanism.parameters.cap.gamma
  table = draws.candidates(jax.random.clone(key), DIM, 2**BITS, gamma)
  numbers = jnp.arange(2**BITS, dtype=np.uint32)
  vectors = jax.vmap(lambda number: table.candidate(seed, number))(numbers)
  heights = np.asarray(vectors @ u)
  labels = (np.asarray(table.labels(seed, u))[:, None] >> np.arange(32)) & 1
  far = np.abs(heights - gamma) > 1e-5
  np.testing.assert_array_equal(labels.ravel()[far], heights[far] >= gamma)
  assert 0 < labels.sum() < 2**BITS
  np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("count", [1, 3, 2**16 + 1, 2**30])
def test_whole_numbers_below_a_count(count):
  """Equal to the product in exact arithmetic, of the same 64 bits."""
  keys = jax.random.split(jax.random.key(2), 50)
  drawn = jax.vmap(draws.below, (0, None))(keys, jnp.int32(count))
  words = np.asarray(jax.vmap(lambda key: draws.random.bits(key, (2,)))(jax.random.clone(keys)))
  exact = [((int(high) << 32) + int(low)) * count >> 64 for high, low in words]
  assert drawn.tolist() == exact


def test_the_place_of_every_one():
  labels = np.random.default_rng(1).integers(0, 2, 96, dtype=np.uint32)
  words = jnp.asarray((labels.reshape(3, 32) << np.arange(32, dtype=np.uint32)).sum(1), np.uint32)
  ones = np.flatnonzero(labels)
  assert int(draws.size(words)) == len(ones)
  places = jax.vmap(draws.nth_one, (None, 0))(words, jnp.arange(len(ones)))
  np.testing.assert_array_equal(places, ones)


def test_report_and_guarantee():
  mechanism = compressed_priv_unit(1000, 8.0, table_key=jax.random.key(0))
  report = jax.eval_shape(mechanism.encode, jax.random.key(1), jnp.zeros(1000))
  assert (report.seed.dtype, report.number.dtype) == (np.uint16, np.uint16)
  law = mechanism.parameters
  assert law.num_candidates == 2**15
  assert law.epsilon < mechanism.guarantee.epsilon <= 8.0
  longer = compressed_priv_unit(1000, 8.0, table_key=jax.random.key(0), bits=17)
  assert jax.eval_shape(longer.encode, jax.random.key(1), jnp.zeros(1000)).number.dtype == np.uint32
  assert longer.mean_squared_error(1.0) < mechanism.mean_squared_error(1.0)


def test_refusals():
  key = jax.random.key(0)
  with pytest.raises(ValueError, match="Expected bits to be a number in \\[5, 30\\], got 4"):
    compressed_priv_unit(10, 1.0, table_key=key, bits=4)
  with pytest.raises(
    ValueError, match=r"Expected epsilon to be a number in \[0\.001, 100\], got 1000"
  ):
    compressed_priv_unit(10, 1000.0, table_key=key)
  with pytest.raises(ValueError, match="Expected a vector of shape"):
    compressed_priv_unit(10, 1.0, table_key=key).encode(key, jnp.ones(9))
