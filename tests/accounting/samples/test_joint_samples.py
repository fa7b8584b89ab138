"""Several releases of one sample, against quadrature of the joint mixture."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from jdp import accounting
from jdp.accounting import composition
from jdp.accounting.families import base
from jdp.accounting.families import samples as sampled_pairs
from jdp.accounting.families.base import DominatingPair
from jdp.accounting.families.gaussian import FIXED_SIZE_GAUSSIAN, GAUSSIAN
from jdp.accounting.families.releases import LAPLACE
from jdp.accounting.pld.profile import pld_profile
from jdp.events import (
  BallsInBins,
  ConcentratedRelease,
  FixedSizeSampling,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  PoissonSampling,
  PureRelease,
  RandomizedResponse,
  Round,
)
from jdp.ledger import Ledger


def grouped(*parts):
  return GroupedSums(parts, tuple(map(str, range(len(parts)))))


def both(z, scale):
  return grouped(GaussianSum(1.0, z), LaplaceSum(1.0, scale))


def ledger_of(q, query, relation="add_remove", count=1):
  return Ledger().append(Round(PoissonSampling(q), query, relation), count=count)


def call(weight, strike, mu):
  """E (weight R - strike)_+ of R, the likelihood ratio of N(mu, 1) to N(0, 1) under the latter."""
  if strike <= 0:
    return weight - strike
  at = math.log(weight / strike) / mu
  return weight * stats.norm.cdf(at + mu / 2) - strike * stats.norm.cdf(at - mu / 2)


def put(weight, strike, mu):
  """E (strike - weight R)_+ of the same."""
  if strike <= 0:
    return 0.0
  at = math.log(weight / strike) / mu
  return strike * stats.norm.cdf(mu / 2 - at) - weight * stats.norm.cdf(-mu / 2 - at)


def over_laplace(value, distance):
  """The mean of a function of the likelihood ratio of Laplace distributions `distance` apart."""
  inner, _ = integrate.quad(
    lambda y: math.exp(-y) / 2 * value(math.exp(2 * y - distance)), 0, distance, limit=400, epsabs=0
  )
  low, high = value(math.exp(-distance)), value(math.exp(distance))
  return low / 2 + inner + high * math.exp(-distance) / 2


def joint_delta(epsilon, q, mu, distance):
  """Of (1-q) Q + q P and Q, for a Gaussian and a Laplace shift together, in both directions."""

  c = math.exp(epsilon)
  removal = over_laplace(lambda ratio: call(q * ratio, c - 1 + q, mu), distance)
  addition = over_laplace(lambda ratio: put(c * q * ratio, 1 - c * (1 - q), mu), distance)
  return max(removal, addition)


def joint_epsilon(delta, *pair):
  return optimize.brentq(lambda e: joint_delta(e, *pair) - delta, 0, 60, xtol=1e-9)


# q, z, scale, delta, the cost of one sample
REFERENCES = [
  (0.01, 1.0, 1.0, 1e-5, 0.41326),
  (0.001, 1.0, 0.5, 1e-6, 0.13175),
  (0.1, 2.0, 1.0, 1e-6, 1.00986),
]


@pytest.mark.parametrize(("q", "z", "scale", "delta", "reference"), REFERENCES)
@pytest.mark.parametrize("relation", ["add_remove", "zero_out"])
def test_a_gaussian_and_a_laplace_sum_of_one_sample(q, z, scale, delta, reference, relation):
  exact = joint_epsilon(delta, q, 1 / z, 1 / scale)
  assert exact == pytest.approx(reference, rel=1e-4)
  ledger = ledger_of(q, both(z, scale), relation)
  by_pld = accounting.epsilon(ledger, delta, accountant="pld")
  assert exact * (1 - 1e-9) <= by_pld <= 1.001 * exact
  assert accounting.epsilon(ledger, delta) >= exact
  lower, upper = accounting.epsilon_interval(ledger, delta)
  assert lower <= exact * (1 + 1e-9) <= upper * (1 + 2e-9)
  assert upper - lower <= 2e-3 * upper
  # Two rounds of their own hide more.
  apart = ledger_of(q, GaussianSum(1.0, z)) + ledger_of(q, LaplaceSum(1.0, scale))
  assert accounting.epsilon(apart, delta, accountant="pld") < 0.65 * exact


@pytest.mark.parametrize(
  ("q", "z", "scale"), [(0.2, 0.3, 0.2), (0.003, 10.0, 5.0), (0.9, 1.0, 0.7)]
)
def test_the_whole_curve(q, z, scale):
  ledger = ledger_of(q, both(z, scale))
  for epsilon in (0.0, 0.01, 0.3, 1.5, 6.0):
    exact = joint_delta(epsilon, q, 1 / z, 1 / scale)
    if exact > 1e-13:
      found = accounting.delta(ledger, epsilon, accountant="pld")
      assert exact * (1 - 1e-8) <= found <= 1.02 * exact
      assert accounting.delta(ledger, epsilon) >= exact * (1 - 1e-9)


@pytest.mark.parametrize("z", [1.0, 4.0])
def test_a_fixed_size_sample_under_replace_one(z):
  # All others equal: above 0 the pair is that of a removal, with twice the sensitivity.
  ledger = Ledger().append(Round(FixedSizeSampling(3, 100), both(z, z), "replace_one"))
  exact = joint_epsilon(1e-5, 0.03, 2 / z, 2 / z)
  assert exact * (1 - 1e-9) <= accounting.epsilon(ledger, 1e-5, accountant="pld") <= 1.001 * exact
  assert accounting.epsilon(ledger, 1e-5) >= exact


def responses(epsilon):
  """The losses and probabilities of one bit's response, and those under the other distribution."""
  high = 1 / (1 + math.exp(-epsilon))
  return np.array([high, 1 - high]), np.array([1 - high, high])


def atoms_delta(epsilon, q, count, *local):
  """Of `count` samples, each with binary responses, by enumeration of the joint distribution."""
  p, r = np.ones(1), np.ones(1)
  for one in local:
    here, there = responses(one)
    p, r = np.outer(p, here).ravel(), np.outer(r, there).ravel()
  mixed = (1 - q) * r + q * p
  ps, rs = np.ones(1), np.ones(1)
  for _ in range(count):
    ps, rs = np.outer(ps, mixed).ravel(), np.outer(rs, r).ravel()
  return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((ps, rs), (rs, ps)))


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize(("q", "local"), [(0.01, (1.0, 1.0)), (0.3, (0.2, 1.5)), (0.3, (0.7,))])
def test_pure_releases_of_one_sample(q, local, count):
  ledger = ledger_of(q, grouped(*map(PureRelease, local)), count=count)
  delta = 1e-5
  exact = optimize.brentq(lambda e: atoms_delta(e, q, count, *local) - delta, 0, 40, xtol=1e-10)
  assert exact * (1 - 1e-9) <= accounting.epsilon(ledger, delta, accountant="pld") <= 1.02 * exact
  assert accounting.epsilon(ledger, delta) >= exact
  # With delta = 0: log(1 + q (e^eps - 1)) of the sum.
  pure = count * math.log1p(q * math.expm1(sum(local)))
  assert accounting.epsilon(ledger, 0.0) == pytest.approx(pure, rel=1e-9)


def joint_divergence(order, q, mu, distance, *, removed):
  """The Renyi divergence of the joint mixture, by quadrature over both noises."""
  x = np.linspace(-14 - 8 * mu, 14 + (order + 8) * mu, 20_001)
  density = stats.norm.pdf(x)
  gaussian = np.exp(mu * x - mu * mu / 2)

  def power(ratio):
    mixed = 1 - q + q * ratio * gaussian
    return float(integrate.trapezoid(density * mixed ** (order if removed else 1 - order), x))

  return math.log(over_laplace(power, distance)) / (order - 1)


@pytest.mark.parametrize(("q", "z", "scale"), [(0.1, 1.0, 1.0), (0.6, 2.0, 0.5)])
def test_divergences_are_exact_at_whole_orders_and_bounds_between(q, z, scale):
  gaussian = DominatingPair(GAUSSIAN, (1.0, z))
  laplace = DominatingPair(LAPLACE, (1 / scale,))
  family, parameters = sampled_pairs.sampled_pair(base.POISSON, q, [gaussian, laplace])
  orders = (1.3, 2.0, 2.5, 3.0, 8.0)
  found = family.rdp(np.array([parameters]), np.array(orders))[0]
  for order, bound in zip(orders, found, strict=True):
    removal, addition = (
      joint_divergence(order, q, 1 / z, 1 / scale, removed=side) for side in (True, False)
    )
    assert addition <= removal * (1 + 1e-9)  # Statement 2.10
    assert removal <= bound * (1 + 1e-7)
    if order == int(order):
      assert bound == pytest.approx(removal, rel=1e-6)


def test_the_order_of_the_parts_does_not_matter():
  parts = [GaussianSum(1.0, 2.0), LaplaceSum(1.0, 1.0), GaussianSum(1.0, 3.0), PureRelease(0.1)]
  costs = {
    accounting.epsilon(ledger_of(0.1, grouped(*order)), 1e-5)
    for order in itertools.permutations(parts)
  }
  assert max(costs) - min(costs) <= 1e-12


@pytest.mark.parametrize(
  ("query", "relation"),
  [
    (grouped(GaussianSum(1.0, 2.0), ConcentratedRelease(0.1)), "add_remove"),
    (grouped(LaplaceSum(1.0, 2.0), ConcentratedRelease(0.1)), "add_remove"),
    (grouped(GaussianSum(1.0, 2.0), PureRelease(0.3)), "zero_out"),
    (grouped(LaplaceSum(1.0, 2.0), RandomizedResponse(0.5, 3)), "zero_out"),
  ],
)
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_what_no_mixture_is_known_of_is_not_hidden(query, relation, accountant):
  """Who sees the sample would see a record that joins; the coin of a null one amplifies."""
  sampled, whole = (
    accounting.epsilon(ledger_of(q, query, relation, count=3), 1e-5, accountant=accountant)
    for q in (0.1, 1.0)
  )
  apart = sum((ledger_of(1.0, part, relation, count=3) for part in query.parts), start=Ledger())
  if relation == "add_remove":
    assert sampled == whole
  else:
    event = Round(PoissonSampling(0.1), query, relation, observer="server")
    seen = accounting.epsilon(Ledger().append(event, count=3), 1e-5, accountant=accountant)
    assert sampled == seen < whole
  assert whole == pytest.approx(accounting.epsilon(apart, 1e-5, accountant=accountant), rel=1e-9)


def test_bins_that_stay_hidden_amplify_the_gaussian_part_alone():
  query = both(2.0, 2.0)
  hidden = Ledger().append(Round(BallsInBins(10, True), query))
  # The record's round is one of ten, uniformly. Seen are the sums of two rounds, others merged.
  exact = joint_delta(0.5, 0.1, 0.5, 0.5)
  assert exact <= accounting.delta(hidden, 0.5, accountant="pld")
  assert accounting.epsilon(hidden, 1e-5, accountant="pld") < accounting.epsilon(
    ledger_of(1.0, query), 1e-5, accountant="pld"
  )


@pytest.mark.parametrize("count", [1, 300])
def test_a_sample_of_one_gaussian_costs_what_its_own_family_does(count):
  gaussian = DominatingPair(GAUSSIAN, (1.0, 1.2))
  for how, family, row in (
    (base.POISSON, GAUSSIAN, (0.02, 1.2)),
    (base.FIXED_SIZE, FIXED_SIZE_GAUSSIAN, (0.02, 1.2, 1.2)),
  ):
    found, expected = (
      pld_profile(composition.compose_pairs([(pair, count)]))
      for pair in (
        sampled_pairs.sampled_pair(how, 0.02, [gaussian]),
        DominatingPair(family, row),
      )
    )
    for delta in (1e-9, 1e-5, 1e-3):
      assert found.epsilon(delta) == pytest.approx(expected.epsilon(delta), rel=1e-3)
