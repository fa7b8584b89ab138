"""PrivUnit as the number of a candidate: its probabilities, by enumeration and exact sums."""

import itertools
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize, stats

from jdp.accounting.local import compressed_priv_unit as laws
from jdp.accounting.local.priv_unit import cap_of, optimal_cap

CASES = [(2, 1e-3), (2, 4.0), (2, 12.0), (30, 1.0), (1000, 8.0), (10**6, 4.0)]


def cap_probability(law, k):
  """pi(k), as the module's docstring defines it."""
  n, j, surplus = law.num_candidates, law.threshold, math.expm1(law.epsilon)
  return (k + surplus * np.minimum(k, j)) / (n + surplus * j)


@pytest.mark.parametrize(("dim", "epsilon"), CASES)
def test_the_cap_is_sent_with_probability_p(dim, epsilon):
  law = laws.shortest_law(dim, epsilon)
  n, q = law.num_candidates, math.exp(law.cap.log_q)
  k = np.arange(n + 1)
  mean = math.fsum(cap_probability(law, k) * stats.binom.pmf(k, n, q))
  assert mean == pytest.approx(law.cap.p, abs=1e-12)
  assert epsilon * (1 - 1e-9) <= law.epsilon <= epsilon
  assert law.cap.epsilon < law.epsilon


@pytest.mark.parametrize("n", [2, 5, 9])
def test_no_two_labellings_differ_by_more_than_epsilon_and_some_do_by_all_of_it(n):
  """All 2^n sets of candidates that a cap may hold, in exact arithmetic given R and j."""
  law = laws.compress(cap_of(3, 0.2, 0.55), n)
  ratio, j = Fraction(math.exp(law.epsilon)), law.threshold
  uniform = 1 / (n + (ratio - 1) * j)
  likeliest, rarest = [Fraction(0)] * n, [Fraction(1)] * n
  for labels in itertools.product((0, 1), repeat=n):
    k = sum(labels)
    slots = max(k, j)
    share = (ratio - 1) * j * uniform  # of what depends on labels
    inside = uniform + share * Fraction(1, slots)
    outside = uniform + share * Fraction(slots - k, slots) / max(n - k, 1)
    chances = [inside if label else outside for label in labels]
    assert sum(chances) == 1
    assert float(k * inside) == pytest.approx(cap_probability(law, k), rel=1e-12)
    likeliest = [max(pair) for pair in zip(likeliest, chances, strict=True)]
    rarest = [min(pair) for pair in zip(rarest, chances, strict=True)]
  assert {most / least for most, least in zip(likeliest, rarest, strict=True)} == {ratio}


@pytest.mark.parametrize(("q", "p", "n"), [(0.5, 0.6, 6), (0.2, 0.5, 12), (0.05, 0.7, 80)])
def test_no_other_probabilities_cost_less(q, p, n):
  """Against the clipped form for every pair of bounds, whose ratio is searched for."""
  k = np.arange(n + 1)
  weights = stats.binom.pmf(k, n, q)

  def reached(ratio):
    def missed(least):
      return -np.sum(weights * np.minimum(ratio * least * k, 1 - least * (n - k)))

    bounds = (1 / (n * ratio), 1 / n)
    return -optimize.minimize_scalar(
      missed, bounds=bounds, method="bounded", options={"xatol": 1e-12}
    ).fun

  least = optimize.brentq(lambda epsilon: reached(math.exp(epsilon)) - p, 0.01, 20)
  # At dimension 3 a cap's share is (1 - gamma) / 2.
  law = laws.compress(cap_of(3, 1 - 2 * q, p), n)
  assert law.epsilon == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize(("dim", "epsilon"), CASES)
def test_the_two_directions_agree_and_the_error_is_as_small_as_asked_for(dim, epsilon):
  law = laws.shortest_law(dim, epsilon)
  again = laws.compress(law.cap, law.num_candidates)
  assert again.threshold == law.threshold
  assert again.epsilon == pytest.approx(law.epsilon, rel=1e-9)
  plain = math.expm1(-2 * optimal_cap(dim, epsilon).log_m)
  fewer = laws.best_law(dim, epsilon, law.num_candidates // 2)
  assert plain < math.expm1(-2 * law.cap.log_m) <= 1.05 * plain < math.expm1(-2 * fewer.cap.log_m)


def test_no_neighbouring_cap_is_better():
  law = laws.best_law(1000, 8.0, 2**12)
  for factor in (0.98, 1.02):
    gamma = law.cap.gamma * factor

    def spare(p, gamma=gamma):
      return laws.compress(cap_of(1000, gamma, p), 2**12).epsilon - law.epsilon

    p = optimize.brentq(spare, 0.5, 0.95)
    assert cap_of(1000, gamma, p).log_m < law.cap.log_m


def test_the_price_vanishes_and_bits_stay_above_the_information():
  cap = optimal_cap(1000, 4.0)
  prices = [laws.compress(cap, 2**bits).epsilon - cap.epsilon for bits in (10, 14, 18, 22)]
  assert prices == sorted(prices, reverse=True)
  assert 0 < prices[-1] < 0.01
  for dim, epsilon in CASES:
    law = laws.shortest_law(dim, epsilon)
    assert math.log2(law.num_candidates) > laws.information(law.cap)


@pytest.mark.parametrize("p", [0.6, 0.99])
def test_information_is_the_divergence_from_uniform(p):
  cap = cap_of(3, 0.5, p)  # a quarter of the sphere
  expected = p * math.log2(p / 0.25) + (1 - p) * math.log2((1 - p) / 0.75)
  assert laws.information(cap) == pytest.approx(expected, rel=1e-12)


def test_refusals():
  with pytest.raises(ValueError, match=r"Expected more candidates for a cap with 0\.0005 of the"):
    laws.compress(cap_of(3, 0.999, 0.9), 2)
  with pytest.raises(ValueError, match=r"2\^30 candidates are enough for, got 100\.0 in 1000"):
    laws.shortest_law(1000, 100.0)
  with pytest.raises(ValueError, match=re.escape("Expected num_candidates to be a number in [2, ")):
    laws.best_law(1000, 1.0, 1)
