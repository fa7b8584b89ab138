"""Random rounding of fractions: its exact distribution, and that draws follow it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from jdp.random import integer_distributions
from jdp.random.rounding import DENOMINATOR, VARIANCE, gaussian_rounding

TABLES = integer_distributions.about_fractions(DENOMINATOR, VARIANCE, 31)
VALUES = np.arange(-31, 32)


def about(fraction):
  """The probabilities of a discrete Gaussian about a fraction."""
  weights = np.exp(-((VALUES - fraction) ** 2) / (2 * VARIANCE))
  return weights / weights.sum()


@pytest.mark.parametrize("numerator", [0, 1, 32, 63])
def test_tables_have_the_probabilities_of_the_distribution(numerator):
  table = integer_distributions.AliasTable(*(part[numerator] for part in TABLES))
  realised = integer_distributions.realised(table)
  assert sum(realised) == 1
  expected = about(numerator / DENOMINATOR)
  np.testing.assert_allclose(np.array([float(x) for x in realised]), expected, rtol=1e-12)


@pytest.mark.slow
def test_the_mean_is_the_fraction(key):
  """The false-failure rate is 2e-7 for each of 128 fractions; off by 0.03 is caught."""
  numerators = jnp.arange(-64, 64, dtype=jnp.int32)
  drawn = jax.jit(gaussian_rounding)(key, jnp.tile(numerators, (100_000, 1)))
  off = np.asarray(drawn).mean(axis=0) - np.asarray(numerators) / DENOMINATOR
  assert np.max(np.abs(off)) < 5.2 * math.sqrt(VARIANCE / 100_000)


@pytest.mark.parametrize("numerator", [-31, 48])
def test_draws_follow_the_distribution(key, numerator):
  """A chi-square test at 1e-6; a variance of 3.8 for 4 would have a p-value below 1e-30."""
  number = 200_000
  drawn = np.asarray(jax.jit(gaussian_rounding)(key, jnp.full(number, numerator)))
  expected = about(numerator / DENOMINATOR) * number
  common = expected > 20
  counts = np.array([(drawn == value).sum() for value in VALUES[common]])
  observed = np.append(counts, number - counts.sum())
  planned = np.append(expected[common], number - expected[common].sum())
  assert scipy.stats.chisquare(observed, planned).pvalue > 1e-6
  wrong = np.exp(-((VALUES - numerator / DENOMINATOR) ** 2) / (2 * 3.8))
  wrong = (wrong / wrong.sum() * number)[common]
  assert scipy.stats.chisquare(counts, wrong * counts.sum() / wrong.sum()).pvalue < 1e-30


def test_whole_numbers_move_along(key):
  draw = jax.jit(gaussian_rounding)
  rounded = [draw(jax.random.clone(key), jnp.full(50, x)) for x in (5, 5 - 640)]
  np.testing.assert_array_equal(rounded[0] - 10, rounded[1])
