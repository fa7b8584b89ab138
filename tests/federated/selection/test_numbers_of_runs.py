"""The number of runs of a private selection: its distribution, as the event states it."""

import math

import jax
import numpy as np
import pytest
import scipy

from jdp import random
from jdp.accounting.renyi.repeated_runs import log_gamma
from jdp.federated.selection.numbers_of_runs import number_of_runs, survival


def published(number, mean, shape):
  """P(K = number) by arXiv 2110.03620, Definition 1, and Poisson's."""
  if shape == math.inf:
    return scipy.stats.poisson.pmf(number, mean)
  gamma = math.exp(log_gamma(mean, shape))
  if shape == 0:
    return (1 - gamma) ** number / (number * math.log(1 / gamma))
  return (
    scipy.special.binom(number + shape - 1, number) * (1 - gamma) ** number / (gamma**-shape - 1)
  )


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 5.0, math.inf])
@pytest.mark.parametrize("mean", [1.5, 5.0, 300.0])
def test_the_distribution_is_the_published_one(mean, shape):
  first, beyond = survival(mean, shape)
  assert first == (0 if shape == math.inf else 1)
  p = -np.diff(beyond, prepend=1.0)
  numbers = np.arange(first, first + len(p))
  assert p @ numbers == pytest.approx(mean, rel=1e-6)
  for place in {0, 1, round(mean), 3 * round(mean)}:
    expected = published(float(numbers[place]), mean, shape)
    assert p[place] == pytest.approx(expected, rel=1e-5, abs=1e-12)
  # The tail is kept to where 128 bits do not reach.
  assert p[-2] < 2.0**-128


def test_one_run_in_the_mean_is_one_run():
  for shape in (0.0, 1.0, 7.0):
    assert number_of_runs(jax.random.key(0), 1.0, shape) == 1


def test_draws_follow_the_distribution():
  """300 draws: a false alarm with a chance of 1e-6. A mean of 8 for 5 is found."""
  keys = jax.random.split(random.seeded_key(0), 300)
  drawn = np.array([number_of_runs(key, 5.0, 1.0) for key in keys])
  bounds = [1, 2, 3, 4, 6, 9, 14, 1000]
  seen = np.histogram(drawn, bounds)[0]

  def p_value(mean):
    first, beyond = survival(mean, 1.0)
    below = np.concatenate([[0.0], 1 - beyond])
    share = np.diff([below[min(b - first, len(below) - 1)] for b in bounds])
    return scipy.stats.chisquare(seen, 300 * share / share.sum()).pvalue

  assert p_value(5.0) > 1e-6
  assert p_value(8.0) < 1e-6


def test_numbers_out_of_range_are_refused():
  with pytest.raises(ValueError, match="mean_runs"):
    survival(0.5, 1.0)
  with pytest.raises(ValueError, match="mean_runs"):
    survival(1e5, 1.0)
  with pytest.raises(ValueError, match="shape"):
    survival(5.0, -1.0)
