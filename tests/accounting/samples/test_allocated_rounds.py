"""k of t rounds at random: quadrature and Monte Carlo between both ends, bins at k = 1."""

import itertools
import math
from functools import partial

import numpy as np
import pytest

from jdp import accounting
from jdp.accounting.pld.losses import random_allocation
from jdp.events import BallsInBins, GaussianSum, LaplaceSum, RandomAllocation, Round
from jdp.ledger import Ledger, subsampled_gaussian
from tests.helpers.ledgers.epochs import bins, epochs, sticks, tight


def test_quadrature_is_the_published_value_for_one_of_two():
  # z = 1, delta = 1e-5: removal 3.697396, addition 3.079733.
  assert sticks(2, 1, 1.0, 3.697396, 4001)[0] == pytest.approx(1e-5, rel=1e-4)
  assert sticks(2, 1, 1.0, 3.079733, 4001)[1] == pytest.approx(1e-5, rel=1e-4)


@pytest.mark.parametrize(
  ("rounds", "taken", "points"), [(3, 1, 301), (3, 2, 301), (3, 3, 301), (4, 2, 81)]
)
@pytest.mark.parametrize("z", [1.0, 3.0])
def test_never_below_quadrature_and_never_above_k_releases(rounds, taken, points, z):
  found = tight(epochs(rounds, taken, z))
  assert max(sticks(rounds, taken, z, found, points)) <= 1e-3 * (1 + 1e-9)
  whole = tight(subsampled_gaussian(1.0, z, taken))
  assert found <= whole * (1 + 1e-3)
  if rounds == 3:  # what is charged is what happens
    assert max(sticks(rounds, taken, z, found * (1 - 1e-3) - 1e-4, points)) > 1e-3


@pytest.mark.parametrize(
  ("rounds", "taken", "points", "width"),
  [(2, 1, 1001, 1e-3), (3, 1, 301, 1e-3), (3, 2, 301, 0.045), (4, 2, 81, 0.05), (3, 3, 301, 1e-3)],
)
@pytest.mark.parametrize("z", [1.0, 3.0])
def test_the_lower_end_is_below_quadrature_and_near(rounds, taken, points, width, z):
  lower, _ = accounting.epsilon_interval(epochs(rounds, taken, z), 1e-3)
  assert max(sticks(rounds, taken, z, lower, points)) >= 1e-3 * (1 - 1e-9)
  assert max(sticks(rounds, taken, z, lower * (1 + width) + 1e-4, points)) < 1e-3


@pytest.mark.parametrize(
  ("rounds", "taken", "z", "delta", "most"),
  [
    # The package PLD_accounting has 8.466 for this one.
    (100, 51, 3.0, 1e-5, 8.37),
    (99, 50, 3.0, 1e-5, 8.21),
    (100, 34, 3.0, 1e-5, 5.21),
    (3, 2, 1.0, 1e-5, 5.62),
    (7, 5, 1.0, 1e-5, 9.95),
    (391, 5, 0.55, 1e-3, 4.68),
    (100, 10, 1.0, 1e-3, 4.33),
    (100, 60, 3.0, 1e-5, 10.22),
    (100, 90, 3.0, 1e-5, 17.02),
    (1000, 500, 1.0, 1e-5, 223.8),
  ],
)
def test_both_ends_of_an_epoch_are_near_each_other(rounds, taken, z, delta, most):
  lower, upper = accounting.epsilon_interval(epochs(rounds, taken, z), delta)
  assert upper <= most
  assert 0.93 * upper < lower < upper


@pytest.mark.parametrize(("rounds", "taken", "z"), [(7, 5, 1.5), (60, 6, 1.0), (40, 30, 3.0)])
def test_both_ends_hold_the_monte_carlo_delta(rounds, taken, z):
  """On a fixed key: 4 standard errors, about 2 %, so that true ends fail once in 30,000 keys.

  Below the lower end's delta, and above the upper one's, it catches errors of twice that.
  """
  rng, number, chunk = np.random.default_rng(0), 400_000, 20_000
  lower, upper = accounting.epsilon_interval(epochs(rounds, taken, z), 0.05)
  found = []
  for _ in range(number // chunk):
    x = rng.normal(size=(rounds, chunk))
    x[:taken] += 1 / z
    sums = np.zeros((taken + 1, chunk))
    sums[0] = 1.0
    for ratio in np.exp(x / z - 0.5 / z / z):
      sums[1:] += sums[:-1] * ratio
    ratios = sums[taken] / math.comb(rounds, taken)
    found.append([np.maximum(1 - math.exp(epsilon) / ratios, 0.0) for epsilon in (lower, upper)])
  values = np.concatenate(found, axis=1)
  (at_lower, at_upper), errors = values.mean(axis=1), values.std(axis=1) / number**0.5
  assert max(errors) < 0.006 * 0.05
  assert at_lower >= 0.05 - 4 * errors[0]
  assert at_upper <= 0.05 + 4 * errors[1]


def test_one_of_t_is_balls_in_bins_and_k_are_k_epochs_of_fewer():
  assert tight(epochs(7, 1, 1.0, 3)) == tight(bins(7, 1.0, 3))
  assert tight(epochs(14, 2, 1.0, 3)) == pytest.approx(tight(bins(7, 1.0, 6)))
  assert tight(bins(8, 1.0, 6)) < tight(epochs(15, 2, 1.0, 3)) < tight(bins(7, 1.0, 6))
  assert tight(epochs(100, 10, 1.0)) < 0.5 * tight(subsampled_gaussian(1.0, 1.0, 10))
  # Of a run that is shorter than the turns of an epoch: a part is charged as all its parts may be.
  assert tight(epochs(14, 3, 1.0).rounds(0, 2)) == pytest.approx(tight(bins(4, 1.0, 2)))


def test_large_losses_cost_no_more_than_all_releases():
  whole = tight(subsampled_gaussian(1.0, 0.33, 8))
  assert tight(epochs(5, 4, 0.33, 2)) < whole


@pytest.mark.parametrize("rounds", range(1, 14))
def test_parts_of_an_epoch_are_all_of_it(rounds):
  for taken in range(1, rounds + 1):
    parts = random_allocation.cut(rounds, taken)
    assert sum(size * number for size, _, number in parts) == rounds
    assert sum(inside * number for _, inside, number in parts) == taken
    assert all(inside == 1 or (size, inside) == (3, 2) for size, inside, _ in parts)


def test_the_lower_end_counts_whole_epochs_alone():
  def lower(run, **scope):
    return accounting.epsilon_interval(run, 1e-3, **scope)[0]

  whole, two = lower(epochs(6, 2, 1.0)), lower(epochs(6, 2, 1.0, 2))
  assert two > 1.2 * whole > 0
  assert lower(epochs(6, 2, 1.0).rounds(0, 5)) == 0
  assert lower(epochs(6, 2, 1.0, 2).rounds(1, 7)) == 0  # parts of two epochs
  assert lower(epochs(6, 2, 1.0, 2).rounds(0, 11)) == pytest.approx(whole)
  unknown = Round(RandomAllocation(6, 2, True), GaussianSum(1.0, 1.0))
  assert lower(Ledger().append(unknown).append(unknown, count=5)) == 0
  # All rounds that may be of an epoch must be known, and each counts as the least severe one.
  other = Round(RandomAllocation(6, 2, False), LaplaceSum(1.0, 1.0))
  assert lower(epochs(6, 2, 1.0).rounds(0, 5).append(other)) == 0
  in_two = [
    Round(BallsInBins(2, True), LaplaceSum(1.0, 1.0)),
    Round(BallsInBins(2, False), unknown.query),
  ]
  assert lower(Ledger().extend([(event, 1) for event in in_two] * 2)) == 0
  quiet = Round(RandomAllocation(6, 2, False), GaussianSum(1.0, 1.5))
  mixed = epochs(6, 2, 1.0).rounds(0, 5).append(quiet)
  assert lower(mixed) == pytest.approx(lower(epochs(6, 2, 1.5)), rel=1e-4)
  # Nor if epochs are not amplified.
  assert lower(epochs(6, 2, 2.0, relation="replace_one")) == 0
  assert lower(epochs(6, 2, 1.0, relation="zero_out")) == pytest.approx(whole)
  # Beside rounds of another sampling, more than either.
  beside = epochs(6, 2, 1.0) + subsampled_gaussian(1.0, 1.0, 1)
  assert lower(beside) > max(whole, lower(subsampled_gaussian(1.0, 1.0, 1)))
  assert lower(beside) <= tight(beside)


def test_lower_ends_of_extreme_epochs():
  for rounds, taken, z in ((100, 3, 60.0), (50, 1, 0.15), (9, 4, 1e-4), (20, 20, 2.0), (1, 1, 1.0)):
    lower, upper = accounting.epsilon_interval(epochs(rounds, taken, z), 1e-4)
    assert 0 <= lower <= upper
    if z >= 1:  # the mean of an epoch's releases is as good
      assert lower > 0.98 * upper
  assert accounting.epsilon_interval(epochs(5, 2, 0.0), 1e-4)[0] == math.inf


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
def test_an_epoch_costs_k_releases_by_divergences_and_never_more_than_its_rounds(relation):
  scale = 2.0 if relation == "replace_one" else 1.0
  by_rdp = partial(accounting.epsilon, delta=1e-5, accountant="rdp")
  run = epochs(10, 4, 20.0, 2, relation)
  assert by_rdp(run) == pytest.approx(by_rdp(subsampled_gaussian(1.0, 20.0 / scale, 8)))
  # A run that ended after two rounds: the record was in two at most.
  short = run.rounds(0, 2)
  assert by_rdp(short) == pytest.approx(by_rdp(subsampled_gaussian(1.0, 20.0 / scale, 2)))


def test_the_dearest_rounds_count_and_other_queries_are_not_amplified():
  rounds = [
    Round(RandomAllocation(3, 2, place == 0), GaussianSum(1.0, noise))
    for place, noise in enumerate((9.0, 4.0, 5.0))
  ]
  run = Ledger().extend((event, 1) for event in rounds)
  two = subsampled_gaussian(1.0, (4.0**-2 + 5.0**-2) ** -0.5, 1)
  by_rdp = partial(accounting.epsilon, delta=1e-5, accountant="rdp")
  assert by_rdp(run) == pytest.approx(by_rdp(two))
  laplace = epochs(5, 3, 1.0, query=LaplaceSum(1.0, 10.0))
  assert accounting.epsilon(laplace, 0.0) == pytest.approx(0.3)


@pytest.mark.parametrize(
  "sampling", [BallsInBins(10**400, True), RandomAllocation(10**400, 10**200, True)]
)
def test_epochs_of_more_rounds_than_floats_count_have_a_cost(sampling):
  run = Ledger().append(Round(sampling, GaussianSum(1.0, 3.0)))
  whole = accounting.epsilon(subsampled_gaussian(1.0, 3.0, 1), 1e-5)
  by_rdp = accounting.epsilon(run, 1e-5, accountant="rdp")
  assert whole < by_rdp < 1.2 * whole
  assert accounting.epsilon(run, 1e-5) < 0.1 * whole


def test_an_event_holds_possible_numbers():
  with pytest.raises(ValueError, match="participations <= num_batches"):
    RandomAllocation(3, 4, True)


@pytest.mark.parametrize("accountant", ["tightest", "rdp"])
@pytest.mark.parametrize(("batches", "taken", "z"), [(7, 5, 1.0), (5, 2, 0.7), (100, 51, 3.0)])
def test_more_rounds_cost_no_less(batches, taken, z, accountant):
  """Budgets look for the last round that they allow by bisection."""
  run = epochs(batches, taken, z, 2)
  numbers = sorted({1, taken - 1, taken, taken + 1, batches, batches + 1, batches + taken})
  found = [accounting.epsilon(run.rounds(0, n), 1e-5, accountant=accountant) for n in numbers]
  assert all(more >= (1 - 1e-3) * less for less, more in itertools.pairwise(found))
  assert found[-1] > found[0]
