"""Epsilons and deltas of subsampled Gaussians: against dp_accounting, exact formulas and published
tables.
"""

import math
import sys

import absl.logging
import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy import optimize, stats

from experiments.runner.published_language_models import DELTA, PUBLISHED, TABLE_1
from jdp import accounting
from jdp.accounting.renyi import conversions
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.ledger import Ledger, subsampled_gaussian

absl.logging.set_verbosity(absl.logging.ERROR)


def _plans():
  """30 runs (q, z, rounds, delta), each coordinate in 30 strata on a logarithmic scale."""
  rng = np.random.default_rng(1710)
  strata = np.stack([(rng.permutation(30) + rng.uniform(size=30)) / 30 for _ in range(4)])
  low, high = np.log([1e-6, 0.3, 1, 1e-10]), np.log([1, 200, 1e6, 1e-4])
  q, z, rounds, delta = np.exp(low[:, None] + (high - low)[:, None] * strata)
  return list(zip(q.tolist(), z.tolist(), rounds.astype(int).tolist(), delta.tolist(), strict=True))


PLANS = _plans()
# 30 runs for which a loss distribution on a grid of 1e-4 takes seconds at most, and has converged.
SMALL_PLANS = [
  *((1e-3, 0.6, 100, 1e-5), (1e-3, 0.6, 10_000, 1e-5), (1e-3, 0.7, 1000, 1e-5)),
  *((3e-3, 0.7, 3000, 1e-6), (3e-3, 1.0, 30_000, 1e-5), (0.01, 0.6, 100, 1e-6)),
  *((0.01, 0.8, 10, 1e-3), (0.01, 1.0, 1000, 1e-5), (0.01, 1.5, 10_000, 1e-5)),
  *((0.02, 1.1, 2000, 1e-6), (0.03, 2.0, 3000, 1e-5), (0.05, 1.0, 300, 1e-5)),
  *((0.05, 10.0, 1000, 1e-6), (0.1, 0.8, 20, 1e-5), (0.1, 1.5, 200, 1e-5), (0.1, 2.0, 100, 1e-6)),
  *((0.1, 4.0, 3000, 1e-6), (0.2, 1.0, 10, 1e-6), (0.2, 3.0, 500, 1e-5), (0.3, 6.0, 1000, 1e-5)),
  *((0.5, 1.0, 5, 1e-4), (0.5, 2.0, 20, 1e-6), (0.5, 8.0, 300, 1e-5), (0.7, 1.5, 5, 1e-5)),
  *((0.9, 3.0, 50, 1e-8), (0.9, 10.0, 200, 1e-5), (1.0, 1.0, 1, 1e-5), (1.0, 5.0, 1, 1e-6)),
  *((1.0, 10.0, 100, 1e-5), (1.0, 50.0, 1000, 1e-6)),
]


def _dp_accounting(accountant, q, z, rounds, delta):
  accountant.compose(
    dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), rounds
  )
  return accountant.get_epsilon(delta)


def _exact_gaussian_epsilon(z, delta):
  """The least epsilon of one Gaussian release (arXiv 1805.06530, Equation 6)."""

  def surplus(epsilon):
    shift = epsilon * z
    gain = stats.norm.logcdf(0.5 / z - shift)
    loss = epsilon + stats.norm.logcdf(-0.5 / z - shift)
    return gain + math.log(-math.expm1(min(loss - gain, -1e-300))) - math.log(delta)

  return optimize.brentq(surplus, 0.0, 1.0 / z**2 + 40 / z) if surplus(0.0) > 0 else 0.0


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "-".join(f"{v:.2g}" for v in plan))
def test_never_above_the_rdp_accountant_of_dp_accounting(plan):
  *run, delta = plan
  reference = _dp_accounting(dp_accounting.rdp.RdpAccountant(), *plan)
  assert accounting.epsilon(subsampled_gaussian(*run), delta) <= 1.001 * reference + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("plan", SMALL_PLANS, ids=str)
def test_never_below_converged_loss_distributions(plan):
  *run, delta = plan
  coarse, fine = (
    _dp_accounting(pld.PLDAccountant(value_discretization_interval=h), *plan) for h in (1e-3, 1e-4)
  )
  assert abs(coarse / fine - 1) < 0.01  # converged: refining the grid tenfold hardly moves it
  assert accounting.epsilon(subsampled_gaussian(*run), delta, accountant="rdp") >= fine


@pytest.mark.parametrize(
  ("z", "delta"), [(0.3, 1e-5), (1.0, 1e-8), (5.0, 1e-5), (20.0, 1e-6), (200.0, 1e-9), (1e4, 1e-9)]
)
def test_bounds_one_gaussian_from_above(z, delta):
  exact = _exact_gaussian_epsilon(z, delta)
  assert exact <= accounting.epsilon(subsampled_gaussian(1.0, z, 1), delta) <= 1.15 * exact
  # 100 rounds of noise 10 z are one of noise z.
  np.testing.assert_allclose(
    accounting.epsilon(subsampled_gaussian(1.0, 10 * z, 100), delta),
    accounting.epsilon(subsampled_gaussian(1.0, z, 1), delta),
    rtol=1e-12,
  )


def test_replacing_a_record_moves_the_sum_twice_as_far():
  run = subsampled_gaussian(1.0, 5.0, 10)
  replaced = accounting.epsilon(run, 1e-5, relation="replace_one")
  assert replaced >= _exact_gaussian_epsilon(5.0 / 2 / math.sqrt(10), 1e-5)
  assert replaced == accounting.epsilon(subsampled_gaussian(1.0, 2.5, 10), 1e-5)
  assert accounting.delta(run, 2.0, relation="replace_one") == accounting.delta(
    subsampled_gaussian(1.0, 2.5, 10), 2.0
  )


@pytest.mark.parametrize("plan", PLANS[::3], ids=str)
def test_no_order_does_better(plan):
  q, z, rounds, delta = plan
  orders = 1 + np.geomspace(0.01, 2000, 1500)
  rdp = rounds * accounting.rdp_subsampled_gaussian(q, z, orders)
  bounds = conversions.IMPROVED.epsilon(orders, rdp, delta)
  assert accounting.epsilon(subsampled_gaussian(q, z, rounds), delta) <= 1.0003 * max(
    0.0, bounds.min()
  )


@pytest.mark.sweep
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_monotone_and_reversible(plan):
  q, z, rounds, delta = plan
  base = accounting.epsilon(subsampled_gaussian(q, z, rounds), delta)
  assert accounting.epsilon(subsampled_gaussian(q, 1.01 * z, rounds), delta) <= base
  assert accounting.epsilon(subsampled_gaussian(q / 1.01, z, rounds), delta) <= base
  assert accounting.epsilon(subsampled_gaussian(q, z, 1 + int(1.01 * rounds)), delta) >= base
  assert accounting.epsilon(subsampled_gaussian(q, z, rounds), 1.01 * delta) <= base
  back = accounting.delta(subsampled_gaussian(q, z, rounds), base)
  assert back <= 1.001 * delta
  assert back >= 0.999 * delta or base == 0


@pytest.mark.parametrize("row", TABLE_1)
def test_moments_accountant_reproduces_the_published_table(row):
  runs, delta = [row.plan(10**i) for i in range(7)], row.users**-1.1
  ours = [accounting.epsilon(run, delta, accountant="moments") for run in runs]
  assert [f"{epsilon:.2f}" for epsilon in ours] == list(row.epsilons)
  assert all(
    accounting.epsilon(run, delta) <= epsilon for run, epsilon in zip(runs, ours, strict=True)
  )


@pytest.mark.parametrize("row", PUBLISHED)
def test_moments_accountant_reproduces_the_second_table(row):
  ours = accounting.epsilon(row.plan, DELTA, accountant="moments")
  assert f"{ours:.3f}" == f"{row.epsilon:.3f}"


def test_moments_accountant_both_ways():
  run = subsampled_gaussian(0.01, 1.1, 1000)
  epsilon = accounting.epsilon(run, 1e-5, accountant="moments")
  np.testing.assert_allclose(accounting.delta(run, epsilon, accountant="moments"), 1e-5, rtol=1e-12)
  assert accounting.delta(run, 0.0, accountant="moments") <= 1.0


@pytest.mark.slow
def test_pld_accountant():
  sampled, whole = (
    Round(PoissonSampling(0.02), GaussianSum(2.0, 2.4)),
    Round(PoissonSampling(1.0), GaussianSum(1.0, 9.0)),
  )
  run = Ledger().append(sampled, count=50).append(whole, count=2).append(sampled, count=50)
  reference = pld.PLDAccountant()
  reference.compose(
    dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.2)), 100
  )
  reference.compose(dp_accounting.GaussianDpEvent(9.0), 2)
  epsilon = accounting.epsilon(run, 1e-6, accountant="pld")
  # Both are upper bounds, on lattices of about the same spacing.
  np.testing.assert_allclose(epsilon, reference.get_epsilon(1e-6), rtol=5e-5)
  np.testing.assert_allclose(accounting.delta(run, epsilon, accountant="pld"), 1e-6, rtol=1e-3)
  assert epsilon <= accounting.epsilon(run, 1e-6)


def test_pld_accountant_needs_no_other_package(monkeypatch):
  run = subsampled_gaussian(0.1, 1.0, 1)
  epsilon = accounting.epsilon(run, 1e-5, accountant="pld")
  monkeypatch.setitem(sys.modules, "dp_accounting", None)
  assert accounting.epsilon(run, 1e-5, accountant="pld") == epsilon
  with pytest.raises(ImportError, match="pip install dp-accounting"):
    accounting.to_dp_event(run)


@pytest.mark.parametrize("accountant", ["rdp", "moments", "pld"])
def test_no_noise_is_no_privacy(accountant):
  run = subsampled_gaussian(1e-3, 0.0, 1)
  assert accounting.epsilon(run, 1e-5, accountant=accountant) == math.inf
  assert accounting.delta(run, 10.0, accountant=accountant) == 1.0
  assert accounting.epsilon(subsampled_gaussian(0.0, 1.0, 5), 1e-5, accountant="rdp") == 0.0


def test_ends_of_delta():
  run = subsampled_gaussian(0.1, 1.0, 10)
  assert accounting.epsilon(run, 0.0) == math.inf
  assert accounting.epsilon(run, 1.0) == 0.0
  assert 0 < accounting.delta(run, 0.0) < 1
  for accountant, most in (("rdp", 0.0), ("tightest", 1e-12)):
    ends = accounting.delta(run, 0.0, accountant=accountant)
    assert accounting.epsilon(run, ends, accountant=accountant) <= most
