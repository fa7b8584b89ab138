"""Draws on the integers have the distribution that is named: the tables exactly, the draws by
chi-square.
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import jdp.random
from jdp.accounting.float_noise import gaussian_cut
from jdp.random import discrete, integer_distributions
from tests.helpers import statistical


def gaussian_weight(stddev, x):
  return mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(stddev) ** 2))


def laplace_weight(scale, x):
  return mpmath.exp(-mpmath.mpf(x) / scale)


def skellam_weight(variance, x):
  return mpmath.besseli(x, variance)


LAWS = {
  "discrete_gaussian": (
    discrete.discrete_gaussian,
    integer_distributions.discrete_gaussian,
    gaussian_weight,
  ),
  "discrete_laplace": (
    discrete.discrete_laplace,
    integer_distributions.discrete_laplace,
    laplace_weight,
  ),
  "skellam": (discrete.skellam, integer_distributions.skellam, skellam_weight),
}
CASES = [
  *(("discrete_gaussian", x) for x in (0.01, 0.3, 1.0, 7.3, 60.0)),
  *(("discrete_laplace", x) for x in (0.05, 1.0, 11.3)),
  *(("skellam", x) for x in (1e-6, 0.5, 9.0, 400.0)),
]


def magnitudes(name, parameter, count):
  """The exact probabilities of the magnitudes 0, ..., count - 1, to a relative 1e-40."""
  with mpmath.workdps(140):
    # enough more terms that what is left out is below 1e-60
    weights = [LAWS[name][2](parameter, x) * (2 if x else 1) for x in range(2 * count + 40)]
    total = mpmath.fsum(weights)
    return [Fraction(int(w / total * mpmath.mpf(10) ** 130), 10**130) for w in weights[:count]]


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_a_table_has_each_probability_to_a_relative_2_to_the_minus_100(name, parameter):
  realised = integer_distributions.realised(LAWS[name][1](parameter))
  exact = magnitudes(name, parameter, len(realised))
  assert sum(realised) == 1
  last = max(x for x, p in enumerate(realised) if p)
  assert realised[last + 1 :] == [0] * (len(realised) - last - 1)
  for p, q in zip(realised[: last + 1], exact, strict=False):
    assert abs(p - q) <= q / 2**100
  left_out = 1 - sum(exact[: last + 1])
  assert left_out < Fraction(1, 2**215)
  # A neighbour moves what is impossible under it into reach: as for floats, statement 5.5.
  stddev = {"discrete_laplace": np.inf, "skellam": parameter**0.5}.get(name, parameter)
  for distance in {1, int(stddev), int(3 * stddev)} if stddev < np.inf else set():
    beyond = sum(exact[max(0, last + 1 - distance) : last + 1]) / 2
    if 0 < distance / stddev < 17:
      assert float(beyond) <= gaussian_cut(stddev / distance)


@pytest.mark.sweep
@pytest.mark.parametrize("new_key", [jax.random.key, jdp.random.seeded_key])
def test_a_draw_that_meets_the_rests_looks_further(new_key):
  """A quarter of the draws meets them: the law of a table, whatever probability they have."""
  top = 2**32 - 1
  rows = np.array([[top, top, 0], [top, top, 1], [top, top, 2], [0, 0, 0]], np.uint32)
  keys = jax.random.split(new_key(3), 4)

  def draw(key, rests):
    """12 magnitudes: columns 0 and 3 are 0, column 1 is 1, column 2 is one from the rests."""
    padded = jnp.pad(rests, ((0, 3), (0, 0)), constant_values=np.uint32(top))
    return discrete._padded_draws(key, rows, padded, np.int32(1), (12,))

  with jax.debug_key_reuse(False):
    tables, expected = [], []
    for key in keys:
      column_key, coin_key = jax.random.split(key)
      word = np.array(discrete.bits(column_key, (12,)))
      few = discrete.words_and_few(coin_key, (12,), integer_distributions.REST_WORDS)[2]
      for offset in (0, 1):  # the last of the words decides
        tables.append(few.at[-1].add(np.uint32(offset))[None])
        magnitude = np.array([0, 1, 1 - offset, 0])[word & 3]
        expected.append(np.where(word >> 31, -magnitude, magnitude))
    twice, tables = jnp.repeat(keys, 2), jnp.stack(tables)
    loop = np.stack([draw(key, rests) for key, rests in zip(twice, tables, strict=True)])
    np.testing.assert_array_equal(loop, expected)
    np.testing.assert_array_equal(jax.vmap(draw)(twice, tables), expected)


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("name", "parameter", "off"),
  [("discrete_gaussian", 2.5, 1.02), ("discrete_laplace", 2.5, 1.02), ("skellam", 6.25, 1.04)],
)
def test_draws_have_the_law(key, name, parameter, off):
  draws = np.asarray(LAWS[name][0](key, parameter, (400_000,)))
  assert draws.dtype == np.int32
  last = 60
  laws = []
  for p in (parameter, parameter * off):  # 2 % more standard deviation is caught
    half = np.array([float(x) for x in magnitudes(name, p, last + 1)])
    law = np.concatenate([half[:0:-1] / 2, half[:1], half[1:] / 2])
    laws.append(law / law.sum())
  counts = np.bincount(np.clip(draws, -last, last) + last, minlength=2 * last + 1)
  statistical.assert_frequencies(counts, laws[0], catches=laws[1])


@pytest.mark.slow
def test_secure_keys_draw_the_law_in_tiles():
  draws = np.asarray(discrete.discrete_gaussian(jdp.random.seeded_key(1), 50.0, (2, 600_000)))
  statistical.assert_mean(draws.ravel(), 0.0, stddev=50.0, catches=0.4)
  statistical.assert_mean(draws.ravel() ** 2 / 2500, 1.0, stddev=np.sqrt(2), catches=0.015)
  statistical.assert_uncorrelated((draws / 50).T, catches=0.025)


def test_a_batch_of_keys_draws_what_a_loop_draws(key):
  keys = jax.random.split(key, 3)
  loop = jnp.stack([discrete.skellam(jax.random.clone(k), 4.0, (5,)) for k in keys])
  assert np.array_equal(jax.vmap(lambda k: discrete.skellam(k, 4.0, (5,)))(keys), loop)


@pytest.mark.slow
def test_the_largest_tables_are_made():
  table = integer_distributions.discrete_gaussian(6700.0)
  assert table.rows.shape == (2**17, 3)
  masses = np.array([float(p) for p in integer_distributions.realised(table)])
  np.testing.assert_allclose(masses @ np.arange(float(len(masses))) ** 2, 6700.0**2, rtol=1e-9)


@pytest.mark.parametrize(
  ("draw", "parameter"),
  [
    (discrete.discrete_gaussian, 0.0),
    (discrete.discrete_gaussian, np.nan),
    (discrete.discrete_gaussian, np.inf),
    (discrete.discrete_gaussian, 15200.0),
    (discrete.discrete_laplace, 1700.0),
    (discrete.discrete_laplace, -1.0),
    (discrete.skellam, 1e-7),
    (discrete.skellam, 2.4e8),
  ],
)
def test_a_parameter_out_of_range_is_refused(key, draw, parameter):
  with pytest.raises(ValueError, match="Expected"):
    draw(key, parameter)
