"""The constants of PrivUnit against independent high-precision integrals and published reference
points.
"""

import math
import time

import mpmath
import numpy as np
import pytest

from jdp.accounting.local import cap_shares, priv_unit

DIMS = [2, 3, 4, 5, 10, 33, 50, 51, 52, 1000, 12_345, 10**5, 10**6, 10**9]
EPSILONS = [1e-3, 0.03, 1.0, 4.0, 16.0, 64.0, 256.0, 1e3, 1e4]


def exact_log_q(dim: int, log_height, digits: int = 50):
  """Log I_h(a, a) by mpmath's quadrature of the cap's angle, from h alone."""
  with mpmath.workdps(digits):
    half_angle = mpmath.asin(mpmath.exp(mpmath.mpf(log_height) / 2))  # h = sin^2(Theta/2)
    theta, power = 2 * half_angle, dim - 2
    # Relative to the value at Theta, in units of the decay length there.
    scale = 1 / (1 / theta + power * mpmath.cot(theta) + mpmath.sqrt(power))
    ends = [x * scale for x in (0, 1, 2, 4, 8, 16, 32, 64, 128) if x * scale < theta]
    ends.append(min(theta, 256 * scale))

    def relative(x):
      return (mpmath.sin(theta - x) / mpmath.sin(theta)) ** power

    log_constant = mpmath.loggamma(mpmath.mpf(dim) / 2) - mpmath.loggamma(mpmath.mpf(dim - 1) / 2)
    log_constant -= mpmath.log(mpmath.pi) / 2
    return (
      log_constant + power * mpmath.log(mpmath.sin(theta)) + mpmath.log(mpmath.quad(relative, ends))
    )


@pytest.mark.parametrize(
  ("dim", "epsilon", "scaled_gamma", "p", "m", "mse"),
  [
    (10, 1, 0.4058, 0.59776, 0.128318, 59.73),
    (10, 8, 2.3301, 0.93552, 0.736842, 0.8418),
    (1000, 4, 1.5151, 0.79121, 0.047913, 434.6),
    (1000, 64, 10.2939, 0.99178, 0.325522, 8.437),
    (10**5, 16, 4.5611, 0.95760, 0.014423, 4806),
    (10**6, 256, 22.1684, 0.99798, 0.022168, 2034),
  ],
)
def test_optimum_equals_reference_points(dim, epsilon, scaled_gamma, p, m, mse):
  optimum = priv_unit.optimal_cap(dim, float(epsilon))
  assert optimum.gamma * math.sqrt(dim) == pytest.approx(scaled_gamma, abs=5e-5)
  assert optimum.p == pytest.approx(p, abs=5e-6)
  assert optimum.m == pytest.approx(m, abs=5e-7)
  assert math.expm1(-2 * optimum.log_m) == pytest.approx(mse, rel=2e-4)


@pytest.mark.parametrize(
  ("dim", "epsilon", "gamma", "log_q"),
  [
    (2, 1.0, 0.308287129905, -0.915680296941),
    (10**9, 1e-3, 1.26156625659e-8, -0.693465541108),
    (10**5, 256.0, 0.070025248617, -249.795921703),
    (1000, 1e4, 0.999999998925, -9973.13376534),
  ],
)
def test_optimum_equals_reference_points_to_nine_digits(dim, epsilon, gamma, log_q):
  optimum = priv_unit.optimal_cap(dim, epsilon)
  assert optimum.gamma == pytest.approx(gamma, rel=1e-9)
  assert optimum.log_q == pytest.approx(log_q, rel=1e-11)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_optimum_at_dimension_three_is_the_closed_form(epsilon):
  optimum = priv_unit.optimal_cap(3, epsilon)
  assert optimum.m == pytest.approx(math.tanh(epsilon / 4), rel=1e-9)
  assert optimum.gamma == pytest.approx(math.tanh(epsilon / 4), rel=1e-9)
  # it carries all of the 5e-10 margin of epsilon
  assert optimum.logit_p == pytest.approx(epsilon / 2, rel=2e-9)


@pytest.mark.parametrize("dim", DIMS)
def test_every_optimum_is_finite_stationary_and_spends_epsilon_from_below(dim):
  for epsilon in np.geomspace(1e-3, 1e4, 25):
    optimum = priv_unit.optimal_cap(dim, float(epsilon))
    assert np.all(np.isfinite(optimum))
    assert 0 <= (epsilon - optimum.epsilon) / epsilon < 1e-9
    assert optimum.gamma == pytest.approx(optimum.m, rel=1e-9)
    assert 0.5 <= optimum.p <= 1


@pytest.mark.slow
@pytest.mark.parametrize("dim", [2, 3, 10, 51, 1000, 10**5, 10**9])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 16.0, 256.0, 1e4])
def test_exact_epsilon_by_independent_quadrature_is_never_above_the_one_asked_for(dim, epsilon):
  optimum = priv_unit.optimal_cap(dim, epsilon)
  log_height = optimum.log_height
  # gamma is the accurate coordinate here: recover log h from it in high precision
  if optimum.gamma < 0.5:
    with mpmath.workdps(50):
      log_height = mpmath.log((1 - mpmath.mpf(optimum.gamma)) / 2)
  log_q = exact_log_q(dim, log_height)
  with mpmath.workdps(50):
    true_epsilon = mpmath.mpf(optimum.logit_p) - log_q + mpmath.log(-mpmath.expm1(log_q))
    assert 0 <= float((mpmath.mpf(epsilon) - true_epsilon) / epsilon) < 1e-9
    assert abs(float(log_q) - optimum.log_q) <= 1e-14 * max(1, abs(optimum.log_q)) * 10


@pytest.mark.parametrize("dim", [2, 7, 300, 10**6])
@pytest.mark.parametrize("epsilon", [0.5, 8.0, 30.0])
def test_no_other_gamma_is_better(dim, epsilon):
  best = priv_unit.optimal_cap(dim, epsilon)
  for factor in (0.5, 0.97, 1.03, 1.5):
    gamma = min(best.gamma * factor, 0.5 + best.gamma / 2)
    assert priv_unit.cap_at(dim, epsilon, gamma).m < best.m


@pytest.mark.parametrize("dim", DIMS)
def test_quantile_inverts_the_tail(dim):
  for start in (0.0, -500.0, -9000.0):
    log_tail = np.linspace(start - 45, start + math.log(0.5), 101)
    log_q, _ = cap_shares.log_share(dim, *cap_shares.quantile(dim, log_tail))
    np.testing.assert_allclose(log_q, log_tail, rtol=1e-12, atol=1e-10)


def test_constants_take_milliseconds():
  """A mechanism is made for every point of a sweep; the bound is 50 ms, ten times what is usual."""
  priv_unit.optimal_cap(10, 1.0)  # imports
  for dim in (2, 1000, 10**9):
    start = time.perf_counter()
    priv_unit.optimal_cap(dim, 16.0)
    assert time.perf_counter() - start < 0.05


def test_given_pair_keeps_its_exact_epsilon():
  pair = priv_unit.cap_of(3, 0.5, 0.9)  # at d = 3 the share is (1 - gamma)/2
  assert pair.epsilon == pytest.approx(math.log(9) + math.log(3), rel=1e-14)
  assert pair.m == pytest.approx((1 - 0.25) / 4 * (0.9 / 0.25 - 0.1 / 0.75), rel=1e-14)


def test_given_p_spends_the_rest_on_gamma():
  assert priv_unit.widest_cap(3, math.log(27), 0.9).gamma == pytest.approx(0.5, rel=1e-8)


@pytest.mark.parametrize("dim", [3, 10, 1000, 10**6])
@pytest.mark.parametrize("split", [(0.5, 0.5), (1.0, 15.0), (2.0, 60.0)])
def test_published_split_is_safe_and_never_better_than_the_optimum(dim, split):
  published = priv_unit.published_cap(dim, *split)
  assert published.epsilon <= sum(split)
  assert published.m < priv_unit.optimal_cap(dim, sum(split)).m


@pytest.mark.parametrize(
  ("dim", "epsilon", "mse"),
  [(10, 1, 62.48), (1000, 4, 614.0), (10**5, 16, 5167), (10**6, 256, 2041)],
)
def test_published_parameterisation_has_its_reference_error(dim, epsilon, mse):
  """The best split on a fine grid gives the error that the paper's conditions allow."""
  best = math.inf
  for share in np.linspace(0.001, 0.6, 300):
    best = min(
      best,
      math.expm1(-2 * priv_unit.published_cap(dim, share * epsilon, (1 - share) * epsilon).log_m),
    )
  assert best == pytest.approx(mse, rel=5e-3)


@pytest.mark.parametrize(
  "call",
  [
    lambda: priv_unit.optimal_cap(1, 1.0),
    lambda: priv_unit.optimal_cap(10**9 + 1, 1.0),
    lambda: priv_unit.optimal_cap(10, float("nan")),
    lambda: priv_unit.optimal_cap(10, 0.0),
    lambda: priv_unit.optimal_cap(10, 2e4),
    lambda: priv_unit.cap_at(10, 1.0, 1.0),
    lambda: priv_unit.cap_at(10, 1.0, -0.1),
    lambda: priv_unit.cap_of(10, 0.1, 1.0),
    lambda: priv_unit.cap_of(10, 0.0, 0.4),
    lambda: priv_unit.widest_cap(10, 1.0, 0.9),
    lambda: priv_unit.widest_cap(10, 1.0, 0.3),
    lambda: priv_unit.published_cap(2, 1.0, 1.0),
    lambda: priv_unit.published_cap(10, 1.0, 0.0),
  ],
)
def test_bad_arguments_are_refused(call):
  with pytest.raises(ValueError, match="Expected"):
    call()
