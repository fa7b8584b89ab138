"""Divergences of discrete noise bound the true ones, computed from the distributions, and are not
far above them.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from jdp import accounting
from jdp.accounting.dp_events import to_dp_event
from jdp.accounting.renyi import discrete_noise
from jdp.events import DiscreteGaussianSum, PoissonSampling, Round, SkellamSum
from jdp.ledger import Ledger

ORDERS = np.array([1.25, 1.5, 2.0, 3.7, 8.0, 20.0])


def discrete_gaussian(stddev, last):
  law = np.exp(-(np.arange(-last, last + 1) ** 2) / (2 * stddev**2))
  return law / law.sum()


def skellam(variance, last):
  return special.ive(np.abs(np.arange(-last, last + 1)), variance)


def renyi(law, shift, orders):
  """The larger of the divergences between a distribution on the integers and itself shifted, at
  each order.
  """
  p, q = law[shift:], law[: len(law) - shift]
  kept = (p > 1e-250) & (q > 1e-250)
  log_p, log_q = np.log(p[kept]), np.log(q[kept])
  return np.array(
    [
      max(special.logsumexp(a * x + (1 - a) * y) for x, y in ((log_p, log_q), (log_q, log_p)))
      / (a - 1)
      for a in orders
    ]
  )


@pytest.mark.parametrize(("stddev", "shift"), [(0.7, 1), (2.0, 1), (2.0, 3), (5.0, 4)])
def test_one_discrete_gaussian(stddev, shift):
  truth = renyi(discrete_gaussian(stddev, 200), shift, ORDERS)
  bound = discrete_noise.discrete_gaussian_rho(shift, shift, stddev, 1, 1) * ORDERS
  assert np.all(truth <= bound * (1 + 1e-9))
  whole = np.floor(ORDERS) == ORDERS
  np.testing.assert_allclose(truth[whole], bound[whole], rtol=1e-6)


@pytest.mark.parametrize(("stddev", "shares"), [(0.6, 3), (0.8, 4), (1.5, 5)])
def test_shares_of_a_discrete_gaussian(stddev, shares):
  one = discrete_gaussian(stddev, 40)
  law = one
  for _ in range(shares - 1):
    law = np.convolve(law, one)
  law = np.where(law > 1e-15 * law.max(), law, 0.0)  # of a convolution's relative error
  orders = ORDERS[ORDERS < 4]
  truth = renyi(law, 1, orders)
  bound = discrete_noise.discrete_gaussian_rho(1, 1, stddev, shares, 1) * orders
  assert np.all(truth <= bound * (1 + 1e-6))
  if stddev >= 1.5:
    assert np.all(truth >= 0.99 * bound)


def test_inflation_is_as_published():
  tau = 10 * sum(math.exp(-2 * math.pi**2 * 0.25 * k / (k + 1)) for k in range(1, 10))
  assert discrete_noise.inflation(0.5, 10) == pytest.approx(tau, rel=1e-12)
  expected = min(4 / 2.5 + 2 * tau * 6 / 2.5**0.5 + tau**2 * 9, (2 / 2.5**0.5 + tau * 3) ** 2) / 2
  assert discrete_noise.discrete_gaussian_rho(2, 6, 0.5, 10, 9) == pytest.approx(
    expected, rel=1e-12
  )
  whole = 10 * np.sum(np.exp(-2 * np.pi**2 * 0.25 * np.arange(1, 3e6) / np.arange(2, 3e6 + 1)))
  assert whole <= discrete_noise.inflation(0.5, 3_000_000) <= whole * (1 + 1e-4)


@pytest.mark.parametrize(("variance", "shift"), [(4.0, 1), (25.0, 1), (25.0, 4), (100.0, 3)])
def test_skellam_noise(variance, shift):
  truth = renyi(skellam(variance, 400), shift, ORDERS)
  one = np.array([float(shift)])
  bound = discrete_noise.skellam_rdp(one, one, np.array([variance]), ORDERS)[0]
  assert np.all(truth <= bound)
  assert np.all(bound >= ORDERS * shift**2 / (2 * variance))
  if variance == 100.0:
    assert np.all((bound <= 1.09 * truth) | (ORDERS < 2))  # below 2 the bound is that of order 2


def test_skellam_bound_is_as_published():
  variance = np.array([10.0, 0.1])
  bound = discrete_noise.skellam_rdp(np.full(2, 2.0), np.full(2, 3.0), variance, np.array([3.0]))[
    :, 0
  ]
  # a term of the minimum each
  np.testing.assert_allclose(bound, [0.6 + 38 / 400, 60 + 45], rtol=1e-12)


def test_two_skellam_coordinates_are_bounded_too():
  law = skellam(9.0, 200)
  truth = renyi(law, 2, ORDERS) + renyi(law, 1, ORDERS)
  assert np.all(
    truth <= discrete_noise.skellam_rdp(*(np.array([x]) for x in (5**0.5, 3.0, 9.0)), ORDERS)[0]
  )


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_events_are_composed_by_the_accountant(relation):
  moved = 2 if relation == "replace_one" else 1
  gaussian = Ledger().append(
    Round(PoissonSampling(1.0), DiscreteGaussianSum(10.0, 80.0, 8.0, 25, 100), "zero_out")
  )
  rho = moved**2 * 100 / (2 * 25 * 64)
  exact = accounting.gaussian_epsilon(40 / (10 * moved), 1e-5)
  by_rdp = partial(accounting.epsilon, delta=1e-5, relation=relation, accountant="rdp")
  epsilon = by_rdp(gaussian)
  assert exact < epsilon < rho + 2 * math.sqrt(rho * math.log(1e5))
  skellam_run = Ledger().append(
    Round(PoissonSampling(1.0), SkellamSum(10.0, 80.0, 64.0, 25), "zero_out")
  )
  assert epsilon < by_rdp(skellam_run) < 1.02 * epsilon


@pytest.mark.parametrize(
  "event",
  [
    DiscreteGaussianSum(10.0, 80.0, 8.0, 0, 100),
    DiscreteGaussianSum(10.0, 80.0, 0.0, 5, 100),
    DiscreteGaussianSum(10.0, 80.0, 0.4, 5, 100),
    SkellamSum(10.0, 80.0, 64.0, 0),
    SkellamSum(10.0, 80.0, 0.0, 5),
  ],
)
def test_no_noise_is_no_privacy(event):
  ledger = Ledger().append(Round(PoissonSampling(1.0), event, "zero_out"))
  assert accounting.epsilon(ledger, 1e-5) == math.inf


def test_the_number_of_shares_may_be_traced():
  event = jax.jit(
    lambda n: Round(PoissonSampling(1.0), SkellamSum(10.0, 80.0, 64.0, n), "zero_out")
  )(jnp.int32(25))
  (plain,) = Ledger().append(event)
  assert plain == Round(PoissonSampling(1.0), SkellamSum(10.0, 80.0, 64.0, 25), "zero_out")


def test_skellam_sums_are_not_exported_as_something_else():
  ledger = Ledger().append(
    Round(PoissonSampling(1.0), SkellamSum(10.0, 80.0, 64.0, 25), "zero_out")
  )
  with pytest.raises(ValueError, match="Skellam"):
    to_dp_event(ledger)
  # by divergences
  by_rdp = accounting.epsilon(ledger, 1e-5, accountant="rdp")
  assert by_rdp <= accounting.epsilon(ledger, 1e-5, accountant="pld") <= 1.001 * by_rdp
