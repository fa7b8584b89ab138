"""Renyi divergences of the subsampled Gaussian, against quadrature in 30 digits."""

import math
import tracemalloc

import hypothesis
import mpmath
import numpy as np
import pytest
from hypothesis import strategies as st

from jdp.accounting.renyi import poisson_gaussian
from jdp.accounting.renyi.poisson_gaussian import rdp_subsampled_gaussian

ORDERS = (1.01, 1.25, 2.5, 63.5, 512)


def exact_rdp(q, z, a):
  """The divergence from its definition, E (1+y)^a - 1 integrated in 30 digits."""
  with mpmath.workdps(30):
    q, z, a = map(mpmath.mpf, (q, z, a))

    def integrand(x):
      y = q * mpmath.expm1((2 * x - 1) / (2 * z**2))
      return mpmath.npdf(x, 0, z) * ((1 + y) ** a - 1 - a * y)

    kink = mpmath.mpf("0.5") - z**2 * mpmath.log(q)  # where y is about 1
    breaks = {m + side * z for m in (0, 2, a) for side in (-12, -3, 3, 12)} | {kink}
    breaks = sorted(b for b in breaks if -12 * z <= b <= max(a, 2) + 12 * z)
    return float(mpmath.log1p(mpmath.quad(integrand, breaks)) / (a - 1))


@pytest.mark.parametrize(
  ("q", "z", "order", "expected"),
  [(0.01, 1.0, 1.25, 1.05398005e-4), (0.01, 1.0, 32.5, 11.49863394), (0.1, 2.0, 63.5, 5.598075043)],
)
def test_known_values(q, z, order, expected):
  np.testing.assert_allclose(rdp_subsampled_gaussian(q, z, order), expected, rtol=5e-9)


@pytest.mark.slow
@pytest.mark.parametrize("z", [0.6, 4.0])
@pytest.mark.parametrize("q", [1e-6, 0.01, 0.5, 1.0])
def test_matches_quadrature_in_30_digits(q, z):
  expected = [exact_rdp(q, z, order) for order in ORDERS]
  np.testing.assert_allclose(rdp_subsampled_gaussian(q, z, ORDERS), expected, rtol=1e-10)


@pytest.mark.sweep
@pytest.mark.parametrize("q", [1e-12, 0.5])
@pytest.mark.parametrize("z", [0.3, 0.05, 0.004])  # the last by a bound that is as good there
def test_small_noise(q, z):
  for order in (1.01, 1.5):
    np.testing.assert_allclose(
      rdp_subsampled_gaussian(q, z, order), exact_rdp(q, z, order), rtol=1e-10
    )


def test_whole_orders_agree_by_sum_and_by_quadrature():
  orders = np.arange(2.0, 80.0, 7.0)
  q, z = (v.ravel() for v in np.meshgrid([1e-8, 1e-4, 0.03, 0.7], [0.3, 0.8, 2.0, 15.0, 300.0]))
  by_sum = poisson_gaussian._by_binomial_sum(q, z, orders)
  pairs = np.broadcast_arrays(q[:, None], z[:, None], orders)
  by_quadrature = poisson_gaussian._by_quadrature(*(v.ravel() for v in pairs)).reshape(by_sum.shape)
  # logarithms: 1e-10 relative
  np.testing.assert_allclose(by_quadrature, by_sum, rtol=0, atol=1e-10)


def test_continuous_across_whole_orders():
  for order in (2, 3, 17, 64, 512, 1024, 1025):
    below, at, above = rdp_subsampled_gaussian(0.02, 1.3, [order - 1e-5, order, order + 1e-5])
    assert abs((below + above) / 2 / at - 1) < 1e-9  # the second difference is of the order 1e-10


def test_one_call_for_many_events_equals_many_calls():
  rng = np.random.default_rng(0)
  q, z = 10 ** rng.uniform(-6, 0, (30, 10)), 10 ** rng.uniform(-1.5, 2, (30, 10))
  together = rdp_subsampled_gaussian(q, z, ORDERS)
  assert together.shape == (30, 10, 5)
  apart = [
    [rdp_subsampled_gaussian(*pair, ORDERS) for pair in zip(*rows, strict=True)]
    for rows in zip(q, z, strict=True)
  ]
  np.testing.assert_allclose(together, apart, rtol=1e-12)


@pytest.mark.slow
def test_memory_is_bounded():
  q, z = np.linspace(1e-3, 0.1, 3000), np.linspace(0.3, 3.0, 3000)
  tracemalloc.start()
  rdp_subsampled_gaussian(q, z, [*range(2, 200), 1.5, 99.5])
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 60e6  # the terms of all orders at once would fill 480 MB


def test_nan_is_never_returned(monkeypatch):
  monkeypatch.setattr(
    poisson_gaussian, "_log_excess", lambda q, z, a: np.full((q.size, a.size), math.nan)
  )
  with pytest.raises(FloatingPointError, match="got NaN"):
    rdp_subsampled_gaussian(0.1, 1.0, 2.0)


def test_ends_of_the_ranges():
  orders = np.array([1.5, 2.0, 40.0])
  np.testing.assert_array_equal(rdp_subsampled_gaussian(0.0, 0.0, orders), 0.0)
  np.testing.assert_array_equal(rdp_subsampled_gaussian(1e-9, 0.0, orders), math.inf)
  np.testing.assert_array_equal(rdp_subsampled_gaussian(0.5, math.inf, orders), 0.0)
  np.testing.assert_allclose(rdp_subsampled_gaussian(1.0, 3.0, orders), orders / 18, rtol=1e-15)
  np.testing.assert_allclose(
    rdp_subsampled_gaussian(1 - 1e-12, 3.0, orders), orders / 18, rtol=1e-10
  )


@pytest.mark.slow
@hypothesis.given(
  q=st.floats(1e-100, 1),
  z=st.floats(1e-6, 1e6),
  order=st.floats(1.001, 2000.0),
  factor=st.floats(1.001, 10.0),
)
@hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
def test_grows_with_order_and_probability_and_falls_with_noise(q, z, order, factor):
  base = rdp_subsampled_gaussian(q, z, order) * (1 - 1e-9)
  assert base >= 0
  assert rdp_subsampled_gaussian(q, z, 1 + (order - 1) * factor) >= base
  assert rdp_subsampled_gaussian(min(1.0, q * factor), z, order) >= base
  assert rdp_subsampled_gaussian(q, z / factor, order) >= base


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((1.1, 1.0, 2.0), "sampling_probability in .0, 1., got 1.1"),
    ((math.nan, 1.0, 2.0), "sampling_probability"),
    (([0.1, -0.1], 1.0, 2.0), "sampling_probability in .0, 1., got -0.1"),
    ((0.1, -1.0, 2.0), "noise_multiplier >= 0, got -1"),
    ((0.1, math.nan, 2.0), "noise_multiplier"),
    ((0.1, 1.0, 1.0), "orders > 1, got 1"),
    ((0.1, 1.0, [2.0, math.inf]), "orders > 1, got inf"),
    ((0.1, 1.0, math.nan), "orders"),
  ],
)
def test_refuses(arguments, message):
  with pytest.raises(ValueError, match=message):
    rdp_subsampled_gaussian(*arguments)
