"""Divergences in closed form and of fixed-size samples: against 40 digits, and against
dp_accounting.
"""

import math

import dp_accounting
import hypothesis
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as reference
from hypothesis import strategies as st

from jdp.accounting.families.gaussian import FIXED_SIZE_GAUSSIAN
from jdp.accounting.families.releases import CONCENTRATED, LAPLACE, PURE, RANDOMIZED_RESPONSE
from jdp.accounting.renyi import closed_forms
from jdp.accounting.renyi.fixed_size_gaussian import rdp_fixed_size_gaussian

ORDERS = np.array([1.001, 1.25, 2.0, 7.5, 64.0, 1000.0])
EPSILONS = np.array([1e-8, 1e-3, 0.3, 1.0, 5.0, 40.0])


def in_digits(formula, *parameters):
  """A divergence log(A)/(a-1) from A's definition in 60 digits, at every order."""
  with mpmath.workdps(60):
    exact = [mpmath.mpf(float(p)) for p in parameters]
    return [
      float(mpmath.log(formula(*exact, mpmath.mpf(float(a)))) / (mpmath.mpf(float(a)) - 1))
      for a in ORDERS
    ]


def laplace_moment(e, a):
  return a / (2 * a - 1) * mpmath.exp((a - 1) * e) + (a - 1) / (2 * a - 1) * mpmath.exp(-a * e)


def response_moment(noise, k, a):
  u, v = 1 - noise + noise / k, noise / k
  return u**a * v ** (1 - a) + v**a * u ** (1 - a) + (k - 2) * v


def pure_moment(e, a):
  return (mpmath.exp(a * e) + mpmath.exp((1 - a) * e)) / (1 + mpmath.exp(e))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_pure_and_laplace_match_60_digits(epsilon):
  for closed, moment in ((closed_forms.pure, pure_moment), (closed_forms.laplace, laplace_moment)):
    np.testing.assert_allclose(
      closed(np.array([epsilon]), ORDERS)[0], in_digits(moment, epsilon), rtol=1e-12
    )


@pytest.mark.parametrize(("noise", "k"), [(0.5, 2), (1e-6, 3), (0.2, 1000), (1 - 1e-9, 4)])
def test_randomized_response_matches_60_digits(noise, k):
  ours = closed_forms.randomized_response(np.array([noise]), np.array([float(k)]), ORDERS)[0]
  np.testing.assert_allclose(
    ours, in_digits(response_moment, noise, k), rtol=2e-7 if noise > 0.9 else 1e-12
  )


def test_laplace_is_the_divergence_of_laplace_laws():
  e, a = 0.7, 2.5
  with mpmath.workdps(20):
    moment = mpmath.quad(
      lambda x: mpmath.exp(-a * abs(x - e) + (a - 1) * abs(x)) / 2, [-60, 0, e, 60]
    )
  np.testing.assert_allclose(
    closed_forms.laplace(np.array([e]), np.array([a]))[0], float(mpmath.log(moment)) / (a - 1)
  )


def test_laplace_is_convex_in_the_distance():
  # So a vector's divergence is largest with all of its L1 distance in one coordinate.
  shares = np.linspace(0, 3.0, 61)
  values = closed_forms.laplace(shares, ORDERS)
  assert np.all(np.diff(values, 2, axis=0) >= -1e-12 * values[1:-1])
  assert np.all(values[0] == 0)


@pytest.mark.parametrize(
  ("kind", "worst", "nothing"),
  [
    (PURE, (math.inf,), (0.0,)),
    (LAPLACE, (math.inf,), (0.0,)),
    (RANDOMIZED_RESPONSE, (0.0, 3.0), (1.0, 3.0)),
    (CONCENTRATED, (math.inf,), (0.0,)),
    (FIXED_SIZE_GAUSSIAN, (0.1, 0.0, 0.0), (0.0, 1.0, 1.0)),
  ],
  ids=lambda value: getattr(value, "name", ""),
)
def test_ends_of_the_ranges(kind, worst, nothing):
  np.testing.assert_array_equal(kind.rdp(np.array([worst]), ORDERS), math.inf)
  np.testing.assert_array_equal(kind.rdp(np.array([nothing]), ORDERS), 0.0)
  assert kind.max_loss(np.array([worst]))[0] == math.inf


@hypothesis.given(
  epsilon=st.floats(1e-9, 60), order=st.floats(1.0001, 1e5), factor=st.floats(1.001, 10)
)
@hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
def test_pure_releases_dominate_and_everything_grows(epsilon, order, factor):
  epsilons, orders = (
    np.array([epsilon, epsilon * factor]),
    np.array([order, 1 + (order - 1) * factor]),
  )
  noise = 2 / (1 + np.exp(epsilons))  # of a response on one bit
  values = {
    name: closed * (1 + 1e-9)
    for name, closed in (
      ("pure", closed_forms.pure(epsilons, orders)),
      ("laplace", closed_forms.laplace(epsilons, orders)),
    )
  }
  assert np.all(values["laplace"] <= values["pure"] * (1 + 1e-9))
  assert np.all(
    values["pure"] <= np.minimum(1, orders * epsilons[:, None] / 2) * epsilons[:, None] * (1 + 1e-8)
  )
  for value in values.values():
    assert np.all(value[:, 1] >= value[:, 0] * (1 - 2e-9))
    assert np.all(value[1] >= value[0] * (1 - 2e-9))
  if epsilon > 1e-3:
    two_values = np.full(2, 2.0)
    np.testing.assert_allclose(
      closed_forms.randomized_response(noise, two_values, orders),
      closed_forms.pure(epsilons, orders),
      rtol=1e-6,
    )


def fixed_size_in_digits(q, z, a):
  """The bound at a whole order, every moment E (L - 1)^j from its alternating sum in 400 digits."""
  with mpmath.workdps(400):
    q, z = mpmath.mpf(q), mpmath.mpf(z)

    def moment(j):
      terms = (
        mpmath.binomial(j, i) * (-1) ** (j - i) * mpmath.exp(i * (i - 1) / (2 * z**2))
        for i in range(j + 1)
      )
      return mpmath.fsum(terms)

    total = mpmath.mpf(1)
    for j in range(2, a + 1):
      low, high = moment(2 * (j // 2)), moment(2 * ((j + 1) // 2))
      c = min(2 * mpmath.exp(j * (j - 1) / (2 * z**2)), 4 * mpmath.sqrt(low * high))
      total += mpmath.binomial(a, j) * q**j * c
    return float(min(mpmath.log(total) / (a - 1), a / (2 * z**2)))


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("q", "z"), [(1e-6, 0.3), (0.01, 1.0), (0.3, 5.0), (0.5, 0.7), (0.01, 200.0)]
)
def test_fixed_size_matches_400_digits(q, z):
  orders = np.array([2.0, 3.0, 8.0, 31.0])
  expected = [fixed_size_in_digits(q, z, int(a)) for a in orders]
  np.testing.assert_allclose(
    rdp_fixed_size_gaussian(np.array([q]), np.array([z]), orders)[0], expected, rtol=1e-9
  )


@pytest.mark.sweep
@pytest.mark.parametrize("z", [0.3, 1.0, 5.0, 200.0])
def test_fixed_size_never_above_dp_accounting(z):
  orders, q = np.array([1.5, 2.0, 4.5, 63.0, 128.0, 256.0, 300.0]), np.array([1e-4, 0.01, 0.3, 1.0])
  theirs = np.array([reference._compute_rdp_sample_wor_gaussian(share, z, orders) for share in q])
  ours = rdp_fixed_size_gaussian(q, np.full(4, z), orders)
  assert np.all(ours <= theirs * (1 + 1e-9))
  np.testing.assert_allclose(ours[3], orders / (2 * z**2), rtol=1e-12)


def test_fixed_size_bounds_the_true_divergence():
  # All other records are zero: the sums are (1-q) N(0) + q N(1) and (1-q) N(0) + q N(-1), a
  # distance of 2 within q.
  x, q, sigma = np.linspace(-40, 40, 400_001), 0.2, 1.5

  def mixture(centre):
    return (1 - q) * np.exp(-(x**2) / 2 / sigma**2) + q * np.exp(
      -((x - centre) ** 2) / 2 / sigma**2
    )

  p, r = mixture(1.0), mixture(-1.0)
  orders = np.array([1.5, 2.0, 3.5, 8.0, 30.0])
  true = [np.log(np.trapezoid((p / r) ** a * r, x) / np.trapezoid(r, x)) / (a - 1) for a in orders]
  bound = rdp_fixed_size_gaussian(np.array([q]), np.array([sigma / 2]), orders)[0]
  assert np.all(bound >= true)


def test_fixed_size_of_many_events_and_far_orders():
  q, z = np.array([0.01, 0.5, 0.01]), np.array([1.0, 40.0, 3.0])
  orders = np.array([1.5, 17.0, 2.0**14 + 1, 2.0**20])
  together = rdp_fixed_size_gaussian(q, z, orders)
  apart = [rdp_fixed_size_gaussian(q[i : i + 1], z[i : i + 1], orders)[0] for i in range(3)]
  np.testing.assert_allclose(together, apart, rtol=1e-12)
  np.testing.assert_allclose(together[:, 3], 2.0**19 / z**2, rtol=1e-14)
  assert np.all(np.diff(together, axis=1) >= 0)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
def test_matches_dp_accounting(epsilon):
  accountant = dp_accounting.rdp.RdpAccountant(
    list(ORDERS), neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
  )
  accountant.compose(dp_accounting.LaplaceDpEvent(1 / epsilon))
  accountant.compose(dp_accounting.RandomizedResponseDpEvent(0.3, 5))
  accountant.compose(dp_accounting.ZCDpEvent(0.01))
  ours = (
    closed_forms.laplace(np.array([epsilon]), ORDERS)
    + closed_forms.randomized_response(np.array([0.3]), np.array([5.0]), ORDERS)
    + closed_forms.concentrated(np.array([0.01]), ORDERS)
  )
  np.testing.assert_allclose(ours[0], accountant._rdp, rtol=1e-8)
