"""The bound on reconstruction: its values, its inverses, and that no finite channel exceeds it."""

import math

import mpmath
import numpy as np
import pytest
from scipy import special

from jdp.accounting.local import reconstruction
from jdp.accounting.local.reconstruction import (
  closest_alpha,
  largest_epsilon,
  log_guess,
  log_success,
  log_success_exact,
  log_success_gaussian,
)
from tests.helpers.gaussian import gaussian_delta


@pytest.mark.parametrize(
  ("dim", "alpha", "expected"), [(3, 1.0, 0.25), (10, 0.5, 2.10321e-4), (50, 1.0, 9.35316e-5)]
)
def test_published_values_of_a_guess(dim, alpha, expected):
  assert math.exp(log_guess(dim, alpha)) == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("dim", [2, 3, 10, 784, 100_000])
@pytest.mark.parametrize("alpha", [1e-4, 0.1, 0.5, 1.0, 1.3, math.sqrt(2)])
def test_a_guess_is_the_share_of_the_sphere(dim, alpha):
  mpmath.mp.dps = 40
  x = 1 - (1 - mpmath.mpf(alpha) ** 2 / 2) ** 2
  a, b = mpmath.mpf(dim - 1) / 2, mpmath.mpf(1) / 2
  # The incomplete beta function as x^a (1-x)^b / (a B(a, b)) 2F1(a + b, 1; a + 1; x).
  log_share = (
    a * mpmath.log(x)
    + b * mpmath.log(1 - x)
    - mpmath.log(a)
    - mpmath.log(mpmath.beta(a, b))
    - mpmath.log(2)
  )
  if alpha < 1.4:
    log_share += mpmath.log(mpmath.hyp2f1(a + b, 1, a + 1, x))
  else:
    log_share = mpmath.log(0.5)
  assert log_guess(dim, alpha) == pytest.approx(float(log_share), rel=1e-11, abs=1e-11)


def test_a_denser_prior_makes_guesses_better_up_to_certainty():
  assert log_guess(50, 1.0, 7.0) - log_guess(50, 1.0) == pytest.approx(math.log(7.0), rel=1e-12)
  assert log_guess(3, 1.0, 5.0) == 0.0


@pytest.mark.parametrize(("dim", "epsilon"), [(100, 9.8862), (784, 109.2812)])
def test_largest_epsilon_for_a_chance_of_one_in_a_thousand(dim, epsilon):
  found = largest_epsilon(log_guess(dim, 1.0), 1e-3)
  assert found == pytest.approx(epsilon, abs=5e-5)
  assert log_success(log_guess(dim, 1.0), found) == pytest.approx(math.log(1e-3), rel=1e-12)


@pytest.mark.parametrize("dim", [2, 20, 784, 100_000])
@pytest.mark.parametrize("epsilon", [0.0, 3.0, 500.0])
@pytest.mark.parametrize("density_ratio", [1.0, 50.0])
def test_closest_alpha_is_the_inverse_in_alpha(dim, epsilon, density_ratio):
  alpha = closest_alpha(dim, epsilon, 1e-3, density_ratio)
  chance = log_success(log_guess(dim, alpha, density_ratio), epsilon)
  assert chance == pytest.approx(math.log(1e-3), rel=1e-9)


def test_a_likely_protection_has_no_closest_alpha_below_orthogonal():
  assert closest_alpha(10, 0.0, 0.6) == math.sqrt(2)


def test_no_private_channel_exceeds_the_bound_and_one_attains_the_exact_one():
  """Random priors, targets and outputs' likelihoods on finite sets, by Bayes' rule."""
  generator, epsilon = np.random.default_rng(0), 1.3
  best = -math.inf
  for _ in range(300):
    prior = generator.dirichlet(np.ones(6))
    close = generator.random((8, 6)) < 0.4  # which values each guess is close to
    extreme = generator.random() < 0.5
    losses = generator.integers(0, 2, (6, 5)) if extreme else generator.random((6, 5))
    # of five outputs, for each value; their scale does not matter
    likelihoods = np.exp(epsilon * losses)
    chances = close @ (prior[:, None] * likelihoods) / (prior @ likelihoods)
    guess = math.log(min(1.0, np.max(close @ prior)))
    exact = log_success_exact(guess, epsilon)
    assert np.max(chances) <= math.exp(exact) * (1 + 1e-12)
    assert exact <= log_success(guess, epsilon) + 1e-12
    best = max(best, math.log(np.max(chances)) - exact)
  assert best > -0.1  # the bound is nearly met: a smaller one would have been exceeded

  count = 50  # randomised response
  chance = math.exp(epsilon) / (count - 1 + math.exp(epsilon))
  assert log_success_exact(-math.log(count), epsilon) == pytest.approx(math.log(chance), rel=1e-12)


@pytest.mark.parametrize("log_p", [-1e5, -30.0, -1e-3, 0.0])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 700.0, 1e4, math.inf])
def test_chances_are_chances(log_p, epsilon):
  for value in (log_success(log_p, epsilon), log_success_exact(log_p, epsilon)):
    assert log_p - 1e-12 <= value <= 0.0
  assert log_success_exact(log_p, 0.0) == pytest.approx(log_p, rel=1e-12, abs=1e-15)


def test_delta_adds_to_the_chance():
  assert math.exp(log_success(math.log(1e-4), 1.0, delta=0.01)) == pytest.approx(
    0.01 + 1e-4 * math.e, rel=1e-12
  )


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("chance", [1e-12, 1e-3, 0.04])
def test_gaussian_noise_is_the_best_of_its_epsilons_and_deltas(noise_multiplier, chance):
  """The trade-off curve is the envelope of the lines e^epsilon p + delta(epsilon)."""

  lines = [
    log_success(math.log(chance), epsilon, delta=gaussian_delta(noise_multiplier, epsilon))
    for epsilon in np.arange(0.0, 25.0, 0.01).tolist()
  ]
  assert log_success_gaussian(math.log(chance), noise_multiplier) == pytest.approx(
    min(lines), rel=1e-5, abs=1e-5
  )


def test_gaussian_noise_on_two_values_is_within_its_bound():
  multiplier = 0.8
  for share in (0.5, 0.9, 0.99):  # the likeliest value's; the best attack is a threshold
    threshold = multiplier**2 * math.log(share / (1 - share))
    chance = share * special.ndtr((0.5 + threshold) / multiplier)
    chance += (1 - share) * special.ndtr((0.5 - threshold) / multiplier)
    assert chance <= math.exp(log_success_gaussian(math.log(share), multiplier))


@pytest.mark.parametrize(
  ("name", "arguments", "message"),
  [
    ("log_guess", (1, 1.0), "dim"),
    ("log_guess", (10**9 + 1, 1.0), "dim"),
    ("log_guess", (10, 1.5), "alpha"),
    ("log_guess", (10, math.nan), "alpha"),
    ("log_guess", (10, 1.0, 0.5), "density_ratio"),
    ("log_guess", (10, 1.0, math.nan), "density_ratio"),
    ("log_success", (0.1, 1.0), "log_guess"),
    ("log_success", (math.nan, 1.0), "log_guess"),
    ("log_success", (-1.0, math.nan), "epsilon"),
    ("log_success_exact", (-1.0, -0.1), "epsilon"),
    ("log_success_gaussian", (-1.0, 0.0), "noise_multiplier"),
    ("largest_epsilon", (-1.0, 0.2), "without any release"),
    ("largest_epsilon", (-1.0, math.nan), "probability"),
    ("closest_alpha", (10, math.inf, 1e-3), "epsilon"),
    ("closest_alpha", (10, 1.0, 0.0), "probability"),
  ],
)
def test_arguments_out_of_range_are_refused(name, arguments, message):
  with pytest.raises(ValueError, match=message):
    getattr(reconstruction, name)(*arguments)
