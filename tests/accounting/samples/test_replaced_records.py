"""Poisson samples under replace-one (Statement 2.11), against quadrature of the runs themselves."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy

from jdp import accounting
from jdp.accounting.pld.losses.replaced_gaussian import replaced_gaussian
from jdp.accounting.renyi.replaced_gaussian import rdp_replaced_gaussian
from jdp.events import (
  CyclicPoissonSampling,
  FixedSizeSampling,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  PoissonSampling,
  Round,
  WeightedAverage,
)
from jdp.ledger import Ledger


def run(sampling, query, count=1):
  return Ledger().append(Round(sampling, query, "replace_one"), count=count)


def normal(x, mean):
  return np.exp(-np.square(x - mean) / 2) / math.sqrt(2 * math.pi)


def hockey_stick(q, mean, epsilon, rounds=1):
  """Of the composition of the pair with itself, by the trapezoidal rule on a fine grid."""
  x = np.linspace(-9 - mean, 9 + mean, 40_001 if rounds == 1 else 3_001)
  one = (1 - q) * normal(x, 0) + q * normal(x, mean)
  p = one if rounds == 1 else np.outer(one, one)
  q = p[::-1] if rounds == 1 else p[::-1, ::-1]
  return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0)) * (x[1] - x[0]) ** rounds)


@pytest.mark.sweep
@pytest.mark.parametrize("q", [0.02, 0.3, 0.9])
def test_no_two_contributions_cost_more(q):
  """24 pairs of contributions in the plane each, at orders below and above 1."""
  rng = np.random.default_rng(11)
  x = np.linspace(-9, 9, 361)
  cell = (x[1] - x[0]) ** 2
  closest = 0.0
  for number in range(24):
    z = float(rng.choice([0.5, 1.0, 2.0]))
    u, v = rng.normal(size=(2, 2))
    radii = rng.uniform(size=2) if number % 2 else np.ones(2)
    u, v = u / np.linalg.norm(u) * radii[0] / z, v / np.linalg.norm(v) * radii[1] / z
    if number % 4 == 0:
      v = -u + 0.1 * v
      v *= min(1.0, 1 / z / np.linalg.norm(v))
    none = np.outer(normal(x, 0), normal(x, 0))
    first, second = (
      (1 - q) * none + q * np.outer(normal(x, w[0]), normal(x, w[1])) for w in (u, v)
    )
    ledger = run(PoissonSampling(q), GaussianSum(1.0, z))
    for epsilon in (0.0, 0.05, 0.3, 1.0):
      stated = accounting.delta(ledger, epsilon, accountant="pld")
      for here, there in itertools.permutations((first, second)):
        truth = float(np.sum(np.maximum(here - math.exp(epsilon) * there, 0))) * cell
        assert truth <= stated * (1 + 1e-6) + 1e-7
        closest = max(closest, truth / stated)
  assert closest > 0.9


@pytest.mark.parametrize(("q", "z"), [(0.01, 1.0), (0.2, 0.4), (0.5, 3.0), (0.999, 1.0)])
@pytest.mark.parametrize("rounds", [1, 2])
def test_the_pair_is_attained(q, z, rounds):
  ledger = run(PoissonSampling(q), GaussianSum(2.0, 2.0 * z), rounds)
  for delta in (1e-3, 1e-5):
    lower, upper = accounting.epsilon_interval(ledger, delta)
    assert upper - lower <= 1e-3 * max(upper, 0.1)
    assert hockey_stick(q, 1 / z, lower - 1e-4, rounds) > delta * (1 - 1e-5)
    assert hockey_stick(q, 1 / z, upper + 1e-4, rounds) < delta * (1 + 1e-5)


@pytest.mark.parametrize(
  ("q", "z"), [(0.01, 1.0), (1e-4, 0.4), (0.3, 0.5), (0.5, 10.0), (0.9, 1.5)]
)
def test_divergences(q, z):
  """z is that of a record which takes part for certain, so means are 1/(2z)."""
  m, orders = 0.5 / z, np.array([1.05, 2.0, 3.5, 17.0])
  stated = rdp_replaced_gaussian(np.array([q]), np.array([z]), orders)[0]
  for order, bound in zip(orders, stated, strict=True):

    def log_f(x, order=order):
      above, below = (
        np.logaddexp(math.log1p(-q), math.log(q) + side * m * x - m * m / 2) for side in (1, -1)
      )
      return order * above + (1 - order) * below - x * x / 2

    x, step = np.linspace(-12, 2 * order * m + 12, 20_001, retstep=True)
    log_sum = scipy.special.logsumexp(log_f(x)) + math.log(step / math.sqrt(2 * math.pi))
    assert log_sum <= bound * (order - 1) <= log_sum + 1e-10


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_between_what_zeroing_and_what_samples_of_fixed_size_cost(accountant):
  query = GaussianSum(1.0, 1.5)
  cost = {
    name: accounting.epsilon(ledger, 1e-5, accountant=accountant, relation=relation)
    for name, ledger, relation in (
      ("zeroed", run(PoissonSampling(0.01), query, 500), "zero_out"),
      ("replaced", run(PoissonSampling(0.01), query, 500), None),
      ("fixed", run(FixedSizeSampling(10, 1000), query, 500), None),
    )
  }
  assert 1.1 * cost["zeroed"] < cost["replaced"] < 0.9 * cost["fixed"]
  exact = accounting.epsilon(run(PoissonSampling(0.01), query, 500), 1e-5, accountant="pld")
  assert exact <= cost["replaced"] <= 1.15 * exact


def test_several_sums_are_one_and_groups_take_turns():
  both = GroupedSums((GaussianSum(1.0, 2.0), GaussianSum(3.0, 6.0)), ("a", "b"))
  one = accounting.epsilon(run(PoissonSampling(0.1), GaussianSum(1.0, 2**0.5), 5), 1e-5)
  assert accounting.epsilon(run(PoissonSampling(0.1), both, 5), 1e-5) == pytest.approx(one)
  coins = CyclicPoissonSampling(4, 0.1, 100)
  turns = accounting.epsilon(run(coins, GaussianSum(1.0, 2**0.5), 20), 1e-5)
  assert turns == pytest.approx(one)
  # Of an average, a record moves by S/W at most from where it is without it.
  average = WeightedAverage(1.0, 0.3, min_total_weight=8.0)
  whole = accounting.noise_multiplier(average, "zero_out")
  stated = accounting.delta(run(PoissonSampling(0.1), average), 0.1, accountant="pld")
  assert stated == pytest.approx(hockey_stick(0.1, 1 / whole, 0.1), rel=1e-2)


@pytest.mark.parametrize(("q", "z"), [(0.3, 1.0), (0.01, 0.05), (0.1, 0.0195), (1e-6, 0.02)])
def test_masses_are_within_their_error_bounds(q, z):
  """By 400 digits, also where e^(m^2/2) has no float's digits to spare."""
  edges = [-3.0, -1e-3, 0.0, 1e-3, 0.5, 10.0, 30.0]
  found = replaced_gaussian(q, z).cells(np.array(edges))
  with mpmath.workdps(400):
    m, rate = mpmath.mpf(0.5 / z), mpmath.mpf(q)
    ratio = (1 - rate) / rate * mpmath.exp(m * m / 2)
    halves = [mpmath.mpf(edge) / 2 for edge in edges]
    points = [(half + mpmath.asinh(ratio * mpmath.sinh(half))) / m for half in halves]
    for mean, masses, errors in ((m, found.p, found.p_error), (-m, found.q, found.q_error)):
      below = [(1 - rate) * mpmath.ncdf(t) + rate * mpmath.ncdf(t - mean) for t in points]
      exact = [after - before for before, after in itertools.pairwise([0, *below, 1])]
      for truth, mass, error in zip(exact, masses, errors, strict=True):
        assert abs(truth - mpmath.mpf(mass)) <= error + 1e-300


def test_other_releases_are_refused():
  for query in (
    LaplaceSum(1.0, 1.0),
    GroupedSums((GaussianSum(1.0, 1.0), LaplaceSum(1.0, 1.0)), ("a", "b")),
  ):
    with pytest.raises(ValueError, match="analysed for Gaussian releases alone"):
      accounting.epsilon(run(PoissonSampling(0.1), query), 1e-5)
