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
  """The exact probabilities of the magnitudes 0, ..., count - 1, to 50 digits."""
  with mpmath.workdps(60):
    # enough more terms that what is left out is below 1e-40
    weights = [LAWS[name][2](parameter, x) * (2 if x else 1) for x in range(2 * count + 40)]
    total = mpmath.fsum(weights)
    return [Fraction(int(w / total * mpmath.mpf(10) ** 50), 10**50) for w in weights[:count]]


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_a_table_is_within_2_to_the_minus_64_of_its_law(name, parameter):
  realised = integer_distributions.realised(LAWS[name][1](parameter))
  exact = magnitudes(name, parameter, len(realised))
  assert sum(realised) == 1
  left_out = 1 - sum(exact)
  distance = (sum(abs(p - q) for p, q in zip(realised, exact, strict=True)) + left_out) / 2
  assert distance <= Fraction(1, 2**64)


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


def test_the_largest_tables_are_made():
  table = integer_distributions.discrete_gaussian(6700.0)
  assert table.rows.shape == (2**16, 3)
  masses = np.array([float(p) for p in integer_distributions.realised(table)])
  np.testing.assert_allclose(masses @ np.arange(2.0**16) ** 2, 6700.0**2, rtol=1e-9)


@pytest.mark.parametrize(
  ("draw", "parameter"),
  [
    (discrete.discrete_gaussian, 0.0),
    (discrete.discrete_gaussian, np.nan),
    (discrete.discrete_gaussian, np.inf),
    (discrete.discrete_gaussian, 7000.0),
    (discrete.discrete_laplace, 1500.0),
    (discrete.discrete_laplace, -1.0),
    (discrete.skellam, 1e-7),
    (discrete.skellam, 5e7),
  ],
)
def test_a_parameter_out_of_range_is_refused(key, draw, parameter):
  with pytest.raises(ValueError, match="Expected"):
    draw(key, parameter)
