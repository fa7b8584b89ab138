"""Balls in bins: never below quadrature, never above what the bins would cost if they were seen."""

import math
from functools import partial

import numpy as np
import pytest

from jdp import accounting
from jdp.accounting.pld.losses import pairs, random_allocation
from jdp.events import BallsInBins, GaussianSum, GroupedSums, LaplaceSum, PoissonSampling, Round
from jdp.ledger import Ledger, subsampled_gaussian
from tests.helpers.ledgers.epochs import bins, sticks, tight


@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize(
  ("z", "delta"),
  [
    (1.0, 1e-5),
    pytest.param(0.5, 1e-3, marks=pytest.mark.slow),
    pytest.param(2.0, 1e-9, marks=pytest.mark.slow),
    pytest.param(5.0, 1e-2, marks=pytest.mark.slow),
  ],
)
def test_one_epoch_is_just_above_quadrature(rounds, z, delta):
  found, points = tight(bins(rounds, z), delta), {2: 4001, 3: 501}[rounds]
  assert max(sticks(rounds, 1, z, found, points)) <= delta * (1 + 1e-9)
  assert max(sticks(rounds, 1, z, found * (1 - 1e-3) - 1e-4, points)) > delta


@pytest.mark.parametrize(("rounds", "z"), [(2, 1.0), (7, 0.6), (50, 2.0), (3, 0.2)])
def test_laws_keep_their_means_and_grow_in_variance(rounds, z):
  law = random_allocation._sum_of_ratios(rounds, z, False)
  ratios = law.values / rounds
  assert law.masses.sum() == pytest.approx(1.0, abs=2e-4 if z == 0.2 else 1e-9)
  mean = law.masses @ ratios + law.excess / rounds
  assert mean == pytest.approx(1.0, abs=2e-4 if z == 0.2 else 1e-9)
  variance = math.expm1(1 / z**2) / rounds
  found = law.masses @ np.square(ratios) - 1
  assert variance < found < 1.02 * variance


@pytest.mark.parametrize(("rounds", "z"), [(2, 1.0), (7, 0.6), (50, 2.0), (3, 0.2), (1, 30.0)])
def test_collapsed_laws_keep_their_means_and_shrink_in_variance(rounds, z):
  law = random_allocation._sum_of_ratios(rounds, z, True)
  ratios = law.values / rounds
  assert law.masses.sum() == pytest.approx(1.0, abs=1e-9)
  assert law.masses @ ratios == pytest.approx(1.0, abs=1e-9)
  if z > 0.2:  # whose variance is of rare values
    variance = math.expm1(1 / z**2) / rounds
    assert 0.98 * variance < law.masses @ np.square(ratios) - 1 < variance * (1 + 1e-9)


@pytest.mark.parametrize("z", [0.1, 0.2, 1.0, 30.0])
def test_masses_of_a_ratio_are_relatively_precise(z):
  points = random_allocation._lattice_of_one(z, random_allocation._POINTS).points() * z + 0.5 / z
  for mean in (0.0, 1 / z):
    mass, error = pairs.normal_masses(points - mean)
    assert np.all(error <= 1e-11 * mass)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_never_above_revealed_bins_nor_above_fewer_rounds(seed):
  rng = np.random.default_rng(seed)
  rounds, number = int(rng.integers(2, 40)), int(rng.integers(1, 5))
  z, delta = float(np.exp(rng.uniform(-1.8, 1.5))), float(10 ** rng.uniform(-8, -2))
  found = tight(bins(rounds, z, number), delta)
  revealed = accounting.gaussian_epsilon(z / math.sqrt(number), delta)
  assert found <= revealed
  assert found <= accounting.epsilon(bins(rounds, z, number), delta)
  longer = tight(bins(2 * rounds, z, number), delta)
  assert longer <= found * (1 + 1e-3) + 1e-6


def test_what_is_not_amplified_costs_what_it_did():
  run, revealed = bins(3, 1.0), accounting.gaussian_epsilon(1.0, 1e-5)
  replaced = accounting.gaussian_epsilon(0.5, 1e-5)
  assert tight(run, 1e-5, relation="replace_one") == pytest.approx(replaced, rel=1e-3)
  assert tight(bins(1, 1.0), 1e-5) == pytest.approx(revealed, rel=1e-3)
  assert tight(bins(3, 0.15), 1e-5) == tight(subsampled_gaussian(1.0, 0.15, 1), 1e-5)
  # Renyi divergences charge an epoch one release.
  by_rdp = partial(accounting.epsilon, delta=1e-5, accountant="rdp")
  assert by_rdp(run) == by_rdp(subsampled_gaussian(1.0, 1.0, 1))


@pytest.mark.parametrize(
  ("rounds", "z", "delta", "number"),
  [
    (2, 1.0, 1e-5, 1),
    (100, 0.7, 1e-5, 1),
    (1000, 0.3, 1e-8, 1),
    (10**4, 0.5, 1e-5, 1),
    (30, 1, 1e-6, 8),
  ],
)
def test_both_ends_are_near_each_other(rounds, z, delta, number):
  lower, upper = accounting.epsilon_interval(bins(rounds, z, number), delta)
  assert upper * (1 - 5e-3) < lower < upper


def test_many_multipliers_are_merged_upwards():
  rng = np.random.default_rng(0)
  z = np.exp(rng.uniform(-3.0, 2.0, 1000))
  parameters = np.stack([rng.integers(2, 4, 1000).astype(float), np.ones(1000), z], axis=1)
  rows, counts = random_allocation.merged(parameters, np.ones(1000), False)
  assert counts.sum() == 1000
  amplified = rows[rows[:, 2] >= random_allocation.LEAST_MULTIPLIER]
  assert len(amplified) <= 32
  for rounds in (2.0, 3.0):  # in order, none grew, and none lost more than a 16th of the range
    old = np.sort(z[parameters[:, 0] == rounds])
    here = rows[:, 0] == rounds
    new = np.sort(np.repeat(rows[here, 2], counts[here].astype(int)))
    assert np.all(new <= old)
    assert np.all(new > (0.2 / z.max()) ** (1 / 16) * 0.999 * old)
  near = np.array([[5.0, 1.0, 1.0], [5.0, 1.0, 1.0 + 1e-7], [5.0, 1.0, 1.0 - 1e-7]])
  assert random_allocation.merged(near, np.ones(3), False)[0].tolist() == [[5.0, 1.0, 1.0 - 1e-7]]


def test_a_kind_of_part_has_the_most_severe_multipliers():
  # Two epochs of 3 of 8 rounds: in each a part of two rounds, and two parts of three.
  parameters = np.array([[8.0, 3.0, 2.0], [8.0, 3.0, 1.0]])
  rows, counts = random_allocation.merged(parameters, np.array([5.0, 1.0]), False)
  assert dict(zip(map(tuple, rows.tolist()), counts.tolist(), strict=True)) == {
    (2.0, 1.0, 1.0): 1,
    (2.0, 1.0, 2.0): 1,
    (3.0, 1.0, 1.0): 1,
    (3.0, 1.0, 2.0): 3,
  }


def test_rounds_of_other_noise_count_as_the_least_and_others_on_top():
  sampling = [BallsInBins(2, starts_epoch=first) for first in (True, False)]
  loud, quiet = GaussianSum(1.0, 1.0), GaussianSum(1.0, 3.0)
  mixed = Ledger().append(Round(sampling[0], quiet)).append(Round(sampling[1], loud))
  assert tight(mixed, 1e-5) == tight(bins(2, 1.0), 1e-5)
  other = Ledger().append(Round(sampling[0], LaplaceSum(1.0, 2.0))).append(Round(sampling[1], loud))
  together = bins(2, 1.0).append(Round(PoissonSampling(1.0), LaplaceSum(1.0, 2.0)))
  assert tight(other, 1e-5) == pytest.approx(tight(together, 1e-5))
  grouped = Ledger()
  for place in sampling:
    grouped = grouped.append(
      Round(place, GroupedSums((GaussianSum(1.0, 2**0.5), GaussianSum(3.0, 18**0.5)), ("a", "b")))
    )
  assert tight(grouped, 1e-5) == pytest.approx(tight(bins(2, 1.0), 1e-5))


@pytest.mark.slow
def test_many_rounds_cost_about_what_poisson_samples_cost():
  # At equal expected cohorts, an epoch of 100 rounds; few epochs of bins cost more than Poisson.
  for number, z in ((1, 0.8), (10, 1.0)):
    poisson = tight(subsampled_gaussian(0.01, z, 100 * number), 1e-6)
    in_bins = tight(bins(100, z, number), 1e-6)
    assert 0.7 * poisson < in_bins < 1.3 * poisson
