"""The constants of PrivUnitG against published reference points and high-precision arithmetic."""

import math

import mpmath
import numpy as np
import pytest

from jdp.accounting.local import priv_unit_g

EPSILONS = [1e-3, 0.03, 1.0, 4.0, 16.0, 64.0, 256.0, 1e3, 1e4]


@pytest.mark.parametrize(("epsilon", "gamma"), [(1.0, 0.397463), (4.0, 1.515638), (16.0, 4.561326)])
def test_gamma_equals_reference_points(epsilon, gamma):
  assert priv_unit_g.optimal_gaussian_cap(epsilon).gamma == pytest.approx(gamma, abs=5e-7)


@pytest.mark.parametrize(("epsilon", "constant"), [(4.0, 1.7413), (16.0, 0.769), (64.0, 0.5717)])
def test_error_times_epsilon_per_dimension_equals_reference_points(epsilon, constant):
  error = priv_unit_g.optimal_gaussian_cap(epsilon).mean_squared_error(10**6)
  assert error * epsilon / 10**6 == pytest.approx(constant, abs=5e-5)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_exact_epsilon_is_just_below_the_one_asked_for_and_m_is_the_mean(epsilon):
  cap = priv_unit_g.optimal_gaussian_cap(epsilon)
  with mpmath.workdps(60):
    gamma, logit_p = mpmath.mpf(cap.gamma), mpmath.mpf(cap.logit_p)
    q, p = mpmath.erfc(gamma / mpmath.sqrt(2)) / 2, 1 / (1 + mpmath.exp(-logit_p))
    true_epsilon = logit_p - mpmath.log(q / (1 - q))
    m = mpmath.npdf(gamma) * (p / q - (1 - p) / (1 - q))
    assert 0 <= float((mpmath.mpf(epsilon) - true_epsilon) / epsilon) < 1e-10
    assert cap.m == pytest.approx(float(m), rel=1e-9)
    assert cap.p == pytest.approx(float(p), rel=1e-12)
    assert cap.log_q == pytest.approx(float(mpmath.log(q)), rel=1e-13)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_other_gamma_has_a_larger_m(epsilon):
  best = priv_unit_g.optimal_gaussian_cap(epsilon)
  for factor in (0.5, 0.999, 1.001, 2.0):
    assert priv_unit_g._spend(best.gamma * factor, epsilon).m < best.m


@pytest.mark.parametrize("epsilon", np.geomspace(1e-3, 1e4, 15))
def test_optimum_is_where_gamma_is_m_and_the_error_is_isotropic(epsilon):
  cap = priv_unit_g.optimal_gaussian_cap(float(epsilon))
  assert cap.gamma == pytest.approx(cap.m, rel=1e-9)
  assert cap.mean_squared_error(1000) == pytest.approx(1000 / cap.m**2, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 9e-4, 1.1e4, math.nan, -1.0])
def test_bad_epsilon_is_refused(epsilon):
  with pytest.raises(ValueError, match="Expected epsilon"):
    priv_unit_g.optimal_gaussian_cap(epsilon)
