"""Amplification by shuffling is never below the exact truth of small cases, nor above the published
closed form.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from jdp.accounting.local import shuffling
from jdp.accounting.local.shuffling import shuffled_delta, shuffled_epsilon

PROBABILITY = {
  "any": lambda e: math.exp(-e),
  "randomized_response": lambda e: 2 / (math.exp(e) + 1),
}


def hockey_stick(p, q, epsilon):
  return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0)))


def shuffled_bits(values, local_epsilon):
  """The distribution of the number of ones among shuffled randomised responses to the values."""
  law, true = np.ones(1), 1 / (1 + math.exp(-local_epsilon))
  for value in values:
    one = true if value else 1 - true
    law = np.convolve(law, [1 - one, one])
  return law


def by_enumeration(local_epsilon, num_reports, epsilon, randomizer):
  """The divergence of the two counts, from every outcome of every other user: no clone, a draw of
  Q, one of Q'.
  """
  clone = PROBABILITY[randomizer](local_epsilon)
  own, counts = 1 / (1 + math.exp(-local_epsilon)), {}
  for others in itertools.product(range(3), repeat=num_reports - 1):
    chance = math.prod([1 - clone, clone / 2, clone / 2][user] for user in others)
    for first, p, q in ((1, own, 1 - own), (0, 1 - own, own)):
      key = others.count(1) + first, others.count(2) + 1 - first
      counts[key] = counts.get(key, np.zeros(2)) + chance * np.array([p, q])
  return hockey_stick(*np.array(list(counts.values())).T, epsilon)


@pytest.mark.parametrize("randomizer", PROBABILITY)
@pytest.mark.parametrize(("local_epsilon", "num_reports"), [(0.5, 1), (1.0, 2), (2.0, 6), (4.0, 7)])
def test_delta_is_the_divergence_of_the_theorem(local_epsilon, num_reports, randomizer):
  for epsilon in np.linspace(0, 0.99, 7) * local_epsilon:
    expected = by_enumeration(local_epsilon, num_reports, epsilon, randomizer)
    found = shuffled_delta(local_epsilon, num_reports, epsilon, randomizer=randomizer)
    assert expected * (1 - 1e-13) <= found <= expected * (1 + 1e-8) + 1e-34


@pytest.mark.parametrize("local_epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("num_reports", [1, 2, 10, 200])
def test_delta_is_above_the_truth_for_randomised_response(local_epsilon, num_reports):
  for ones in {0, num_reports // 2, num_reports - 1}:
    others = [1] * ones + [0] * (num_reports - 1 - ones)
    laws = [shuffled_bits([value, *others], local_epsilon) for value in (0, 1)]
    for epsilon in np.linspace(0, 0.9, 5) * local_epsilon:
      truth = max(hockey_stick(*laws, epsilon), hockey_stick(*laws[::-1], epsilon))
      stronger = shuffled_delta(
        local_epsilon, num_reports, epsilon, randomizer="randomized_response"
      )
      assert truth <= stronger + 1e-14  # the convolution's own rounding
      assert stronger <= shuffled_delta(local_epsilon, num_reports, epsilon)


def test_alone_in_the_shuffle_nothing_is_hidden():
  # Exact for one report: randomised response of two values.
  assert shuffled_delta(1.0, 1, 0.0) == pytest.approx(math.tanh(0.5), rel=1e-9)


def closed_form(e, n, delta):
  """arXiv 2012.12803, Theorem 3.1."""
  spread = 8 * math.sqrt(math.exp(e) * math.log(4 / delta) / n) + 8 * math.exp(e) / n
  return math.log1p(math.tanh(e / 2) * spread)


@pytest.mark.parametrize(
  ("local_epsilon", "num_reports", "delta"),
  [
    (0.1, 10**4, 1e-6),
    (1.0, 10**4, 1e-9),
    (4.0, 10**5, 1e-6),
    (8.0, 10**6, 1e-6),
    (1.0, 10**6, 1e-12),
  ],
)
def test_epsilon_is_below_the_closed_form_and_above_a_gaussian_estimate(
  local_epsilon, num_reports, delta
):
  found = shuffled_epsilon(local_epsilon, num_reports, delta)
  assert found < closed_form(local_epsilon, num_reports, delta)
  # What a Gaussian of the variance of the counts would have, at the mean number of clones, is the
  # order of magnitude.
  stddev = math.sqrt(num_reports * math.exp(-local_epsilon)) / (2 * math.tanh(local_epsilon / 2))

  def gaussian_delta(epsilon):
    return stats.norm.cdf(0.5 / stddev - epsilon * stddev) - math.exp(epsilon) * stats.norm.cdf(
      -0.5 / stddev - epsilon * stddev
    )

  assert gaussian_delta(1.15 * found) < delta < gaussian_delta(0.85 * found)


def test_searches_stop_at_the_target_on_its_safe_side():
  for n, local_epsilon, delta in ((10**3, 1.0, 1e-5), (10**6, 3.0, 1e-8), (50, 6.0, 1e-3)):
    epsilon = shuffled_epsilon(local_epsilon, n, delta)
    assert (
      shuffled_delta(local_epsilon, n, epsilon)
      <= delta
      < shuffled_delta(local_epsilon, n, epsilon - 2e-9)
    )


def test_more_reports_and_less_local_epsilon_cost_less():
  by_reports = [shuffled_epsilon(2.0, n, 1e-6) for n in (1, 30, 10**3, 10**5, 10**7)]
  assert all(np.diff(by_reports) < 0)
  by_epsilon = [shuffled_epsilon(e, 10**5, 1e-6) for e in (0.0, 0.1, 1.0, 3.0, 10.0, 100.0)]
  assert all(np.diff(by_epsilon) > 0)
  by_delta = [shuffled_epsilon(1.0, 10**4, d) for d in (0.0, 1e-40, 1e-9, 1e-3, 0.4, 1.0)]
  assert all(np.diff(by_delta) <= 0)
  assert (by_delta[0], by_delta[-1]) == (1.0, 0.0)


def test_counts_in_groups_cost_next_to_nothing(monkeypatch):
  grouped = shuffled_delta(1.0, 10**7, 0.001)
  monkeypatch.setattr(shuffling, "_MAX_GROUPS", 10**9)
  shuffling._clones.cache_clear()
  exact = shuffled_delta(1.0, 10**7, 0.001)
  shuffling._clones.cache_clear()
  assert exact < grouped <= exact * 1.001


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 400.0])
def test_ends(epsilon):
  assert shuffled_delta(epsilon, 100, epsilon) == 0
  assert shuffled_epsilon(epsilon, 100, 0.0) == epsilon
  assert shuffled_delta(500.0, 10**6, epsilon) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: shuffled_delta(-1.0, 10, 0.1), "local_epsilon to be a number in"),
    (lambda: shuffled_delta(501.0, 10, 0.1), "local_epsilon to be a number in"),
    (lambda: shuffled_delta(math.nan, 10, 0.1), "local_epsilon to be a number in"),
    (lambda: shuffled_delta(1.0, 0, 0.1), "num_reports to be a whole number >= 1"),
    (lambda: shuffled_delta(1.0, 10, math.nan), "epsilon to be a finite number >= 0"),
    (lambda: shuffled_epsilon(1.0, 10, 1.1), "delta to be a probability"),
    (
      lambda: shuffled_epsilon(1.0, 10, 1e-6, randomizer="laplace"),
      "randomizer to be one of any, randomized_response",
    ),
    (lambda: shuffled_epsilon(1.0, 10, math.nan), "delta to be a probability"),
  ],
)
def test_bad_arguments_are_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()
