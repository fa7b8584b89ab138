"""What an attacker gains: closed forms, quadrature, and attacks that are carried out."""

import math

import numpy as np
import pytest
import scipy

from jdp import accounting
from jdp.accounting.statements.trade_off_curves import FALSE_POSITIVE_RATES, AttackerGain
from jdp.events import GaussianSum, LaplaceSum, LocalRelease, PoissonSampling, PureRelease, Round
from jdp.guarantees import ApproxDP, Observer, Relation, Unit
from jdp.ledger import Ledger, subsampled_gaussian

RATES = np.array([1e-6, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9])
SCOPE = {"relation": Relation.REPLACE_ONE, "unit": Unit.USER, "observer": Observer.SERVER}


def gaussian_curve(mu, rates):
  return scipy.special.ndtr(scipy.special.ndtri(rates) + mu)


@pytest.mark.parametrize(("z", "rounds"), [(2.0, 3), (0.7, 1), (50.0, 100)])
def test_gaussian_runs_have_the_closed_form(z, rounds):
  run, mu = subsampled_gaussian(1.0, z, rounds), math.sqrt(rounds) / z
  found = accounting.trade_off(run, RATES.tolist())
  truth = gaussian_curve(mu, RATES)
  assert np.all(found >= truth)
  np.testing.assert_allclose(found, truth, rtol=1e-3)
  gain = accounting.attacker_gain(run)
  assert mu <= gain.mu < 1.002 * mu
  advantage = math.erf(mu / math.sqrt(8))
  assert advantage <= gain.advantage < 1.002 * advantage
  np.testing.assert_array_equal(
    gain.true_positive_rates, accounting.trade_off(run, FALSE_POSITIVE_RATES)
  )


def test_laplace_has_the_closed_form():
  # At eps = 1: e a below e^-1 / 2, then 1 - e^-1 / (4 a) up to a half (arXiv 1905.02383).
  run = Ledger().append(Round(PoissonSampling(1.0), LaplaceSum(1.0, 1.0)))
  low = np.array([1e-4, 1e-3, 0.01, 0.1])
  np.testing.assert_allclose(accounting.trade_off(run, low.tolist()), math.e * low, rtol=1e-3)
  middle = np.array([0.25, 0.4])
  truth = 1 - np.exp(-1) / (4 * middle)
  np.testing.assert_allclose(accounting.trade_off(run, middle.tolist()), truth, rtol=1e-3)
  assert accounting.attacker_gain(run).mu is None


def test_one_sampled_round_by_its_likelihood_ratio():
  # The most powerful test accuses above a threshold of the noised sum (Neyman and Pearson).
  q, z = 0.2, 0.8
  run = subsampled_gaussian(q, z, 1)
  thresholds = scipy.special.ndtri(1 - RATES)  # of presence: Q(x > t) = rate, x in units of noise
  present = (1 - q) * RATES + q * scipy.special.ndtr(1 / z - thresholds)

  def rate(t):  # of absence: accuses below t; the record is there
    return (1 - q) * scipy.special.ndtr(t) + q * scipy.special.ndtr(t - 1 / z)

  cuts = [scipy.optimize.brentq(lambda t, a=a: rate(t) - a, -40, 40, xtol=1e-14) for a in RATES]
  truth = np.maximum(present, scipy.special.ndtr(cuts))
  found = accounting.trade_off(run, RATES.tolist())
  assert np.all(found >= truth)
  np.testing.assert_allclose(found, truth, rtol=2e-3)


@pytest.mark.slow
def test_no_attack_on_a_composition_is_better():
  # The likelihood-ratio attack on 20 rounds, 200,000 draws: rates have standard errors of 2 % at
  # .01 (a false failure in 1e6); a bound 15 % too low would be seen.
  rng, q, z, draws = np.random.default_rng(0), 0.1, 0.7, 200_000
  member = rng.random((draws, 20)) < q
  loss = [
    np.logaddexp(math.log1p(-q), math.log(q) + (x - 1 / z / 2) / z).sum(axis=1)
    for x in (rng.standard_normal((draws, 20)), rng.standard_normal((draws, 20)) + member / z)
  ]
  run = subsampled_gaussian(q, z, 20)
  for rate in (0.01, 0.1, 0.5):
    without, present = (np.mean(found > np.quantile(loss[0], 1 - rate)) for found in loss)
    (bound,) = accounting.trade_off(run, [without])
    assert 0.85 * bound < present < bound + 5 * math.sqrt(present / draws)


def test_deltas_and_overflows_are_added():
  local = Ledger().append(LocalRelease(ApproxDP(0.0, 1e-3, **SCOPE)))
  np.testing.assert_allclose(accounting.trade_off(local, [0.0, 0.01]), [0.001, 0.011])
  assert accounting.attacker_gain(local).advantage == pytest.approx(1e-3)
  plain = Round(PoissonSampling(0.1), GaussianSum(1.0, 2.0))
  spilled = Round(PoissonSampling(0.1, overflow_probability=1e-3), GaussianSum(1.0, 2.0))
  less, more = (accounting.trade_off(Ledger().append(e), [0.01])[0] for e in (plain, spilled))
  assert less + 1e-3 < more < less + 1e-2


def test_what_hides_nothing_and_what_shows_nothing():
  assert accounting.trade_off(Ledger(), [0.1, 0.3]).tolist() == [0.1, 0.3]
  for nothing in (Ledger(), subsampled_gaussian(0.0, 1.0, 5)):
    gain = accounting.attacker_gain(nothing)
    assert gain.advantage == 0
    assert gain.true_positive_rates == FALSE_POSITIVE_RATES
  for all_shown in (subsampled_gaussian(0.5, 0.0, 1), subsampled_gaussian(1.0, 1e-6, 1)):
    assert accounting.trade_off(all_shown, [0.0, 1e-9, 0.5]).tolist() == [1.0] * 3
  large = Ledger().append(Round(PoissonSampling(1.0), PureRelease(1000.0)))
  assert accounting.trade_off(large, [0.5]).tolist() == [1.0]


@pytest.mark.parametrize("rounds", [10**8, 10**10])
def test_runs_beyond_lattices_have_valid_bounds(rounds):
  # By Renyi divergences; the central limit is below them.
  run, q, z = subsampled_gaussian(1e-6, 1.0, rounds), 1e-6, 1.0
  mu = q * math.sqrt(rounds * math.expm1(1 / z**2))
  assert np.all(accounting.trade_off(run, RATES.tolist()) >= gaussian_curve(mu, RATES) * 0.999)


def test_rates_are_checked_and_words_are_rounded_up():
  with pytest.raises(ValueError, match="false_positive_rates"):
    accounting.trade_off(Ledger(), [1.5])
  with pytest.raises(ValueError, match="false_positive_rates"):
    accounting.trade_off(Ledger(), [math.nan])
  words = str(AttackerGain(0.12345, (0.0012345, 0.012345), 0.33333))
  assert words == (
    "at most 0.124% of its targets at 0.1% false alarms and 1.24% of its targets at 1% false "
    "alarms; advantage 12.4%; near-Gaussian, mu = 0.334"
  )
