"""k of t rounds at random: never below quadrature, never above k releases, bins at k = 1."""

import math
from functools import partial

import numpy as np
import pytest
import scipy

from jdp import accounting
from jdp.events import BallsInBins, GaussianSum, LaplaceSum, RandomAllocation, Round
from jdp.ledger import Ledger, subsampled_gaussian


def epochs(rounds, taken, z, number=1, relation="add_remove", query=None):
  query = query or GaussianSum(1.0, z)
  first, later = (
    Round(RandomAllocation(rounds, taken, start), query, relation) for start in (True, False)
  )
  result = Ledger()
  for _ in range(number):
    result = (
      result.append(first).append(later, count=rounds - 1) if rounds > 1 else result.append(first)
    )
  return result


def bins(rounds, z, number=1):
  result = Ledger()
  for _ in range(number):
    for place in range(rounds):
      result = result.append(Round(BallsInBins(rounds, place == 0), GaussianSum(1.0, z)))
  return result


def tight(run, delta=1e-3):
  return accounting.epsilon(run, delta, accountant="pld")


def call(z, strike):
  """E (R - strike)_+ of one ratio R under Q, elementwise (Black and Scholes)."""
  positive = np.maximum(strike, 1e-300)
  t = -0.5 / z - np.log(positive) * z
  value = scipy.special.ndtr(t + 1 / z) - positive * scipy.special.ndtr(t)
  return np.where(strike > 0, value, 1 - strike)


def sticks(rounds, taken, z, epsilon, points):
  """The hockey sticks (removal, addition) at e^epsilon: a rule in all dimensions but one.

  The likelihood ratio is the mean of the products of `taken` of the rounds' ratios: linear in the
  last one, over which the integral is closed.
  """
  x = np.linspace(-9.0, 9.0 + 1 / z, points)
  weights = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
  ratio = np.exp(x / z - 0.5 / z / z)
  sums, mass = [np.ones(1), *[np.zeros(1)] * taken], np.ones(1)  # elementary symmetric sums
  for _ in range(rounds - 1):
    fewer = [np.zeros(1), *sums[:-1]]
    sums = [
      (np.reshape(a, (-1, 1)) + np.reshape(b, (-1, 1)) * ratio).ravel()
      for a, b in zip(sums, fewer, strict=True)
    ]
    mass = np.multiply.outer(mass, weights).ravel()
  number, constant, slope = math.comb(rounds, taken), sums[taken], sums[taken - 1]
  above = (number * math.exp(epsilon) - constant) / slope
  below = (number * math.exp(-epsilon) - constant) / slope
  puts = np.where(below > 0, call(z, below) - 1 + below, 0.0)
  removal, addition = mass @ (slope * call(z, above)), mass @ (slope * puts)
  return removal / number, math.exp(epsilon) * addition / number


def test_quadrature_is_the_published_value_for_one_of_two():
  # z = 1, delta = 1e-5: removal 3.697396, addition 3.079733.
  assert sticks(2, 1, 1.0, 3.697396, 1001)[0] == pytest.approx(1e-5, rel=1e-3)
  assert sticks(2, 1, 1.0, 3.079733, 1001)[1] == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize(
  ("rounds", "taken", "points"), [(3, 1, 301), (3, 2, 301), (3, 3, 301), (4, 2, 81)]
)
@pytest.mark.parametrize("z", [1.0, 3.0])
def test_never_below_quadrature_and_never_above_k_releases(rounds, taken, points, z):
  found = tight(epochs(rounds, taken, z))
  assert max(sticks(rounds, taken, z, found, points)) <= 1e-3 * (1 + 1e-9)
  whole = tight(subsampled_gaussian(1.0, z, taken))
  assert found <= whole * (1 + 1e-3)
  if rounds // taken == 1:  # nothing is amplified
    assert found == pytest.approx(whole, rel=1e-3)
  if taken in (1, rounds):  # what is charged is what happens
    assert max(sticks(rounds, taken, z, found * (1 - 1e-3) - 1e-4, points)) > 1e-3


def test_one_of_t_is_balls_in_bins_and_k_are_k_epochs_of_fewer():
  assert tight(epochs(7, 1, 1.0, 3)) == tight(bins(7, 1.0, 3))
  assert tight(epochs(14, 2, 1.0, 3)) == pytest.approx(tight(bins(7, 1.0, 6)))
  assert tight(epochs(15, 2, 1.0, 3)) == pytest.approx(tight(bins(7, 1.0, 6)))
  assert tight(epochs(100, 10, 1.0)) < 0.5 * tight(subsampled_gaussian(1.0, 1.0, 10))


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
  assert accounting.epsilon(run, 1e-5) == pytest.approx(accounting.epsilon(two, 1e-5))
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
