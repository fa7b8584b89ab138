"""Integer sums with discrete noise: intervals hold the exact values, found by summing over laws."""

import itertools
import math

import dp_accounting  # noqa: F401 -- the oracle
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import special

from jdp import accounting
from jdp.events import DiscreteGaussianSum, PoissonSampling, Round, ShuffledBatches, SkellamSum
from jdp.ledger import Ledger


def once(query, relation="zero_out", count=1):
  return Ledger().append(Round(PoissonSampling(1.0), query, relation), count=count)


def discrete_gaussian(variance, last):
  law = np.exp(-(np.arange(-last, last + 1) ** 2) / (2 * variance))
  return law / law.sum()


def skellam(variance, last):
  return special.ive(np.abs(np.arange(-last, last + 1)), variance)


def moved(law, shift):
  """The masses of X + shift and of X, on common points."""
  zeros = np.zeros(shift)
  return np.append(zeros, law), np.append(law, zeros)


def together(*pairs):
  """The masses of independent releases."""
  p, q = np.ones(1), np.ones(1)
  for here_p, here_q in pairs:
    p, q = np.multiply.outer(p, here_p).ravel(), np.multiply.outer(q, here_q).ravel()
  return p, q


def stick(p, q, epsilon):
  return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)))


def is_around(ledger, delta, p, q, width, **scope):
  """Whether the interval is narrow and holds the exact epsilon."""
  lower, upper = accounting.epsilon_interval(ledger, delta, **scope)
  exact = stick(p, q, upper) <= delta * (1 + 1e-6) and stick(p, q, lower) >= delta * (1 - 1e-6)
  return exact and upper - lower <= width * upper


GAUSSIANS = [(1.5, 1), (4.0, 3), (20.0, 7)]
SKELLAMS = [(2.0, 1), (16.0, 3), (400.0, 7)]


@pytest.mark.parametrize("delta", [1e-2, 1e-6])
@pytest.mark.parametrize(("stddev", "shift"), GAUSSIANS)
def test_one_discrete_gaussian(stddev, shift, delta):
  run = once(DiscreteGaussianSum(shift, shift, stddev, 1, 1))
  law = discrete_gaussian(stddev**2, 400)
  assert is_around(run, delta, *moved(law, shift), 1e-6)
  # A replaced record moves the sum twice as far: a factor of two would be seen.
  assert is_around(run, delta, *moved(law, 2 * shift), 1e-6, relation="replace_one")


@pytest.mark.parametrize("delta", [1e-2, 1e-6])
@pytest.mark.parametrize(("variance", "shift"), SKELLAMS)
def test_one_skellam_variable(variance, shift, delta):
  run = once(SkellamSum(shift, shift, variance / 8, 8))
  law = skellam(variance, 600)
  assert is_around(run, delta, *moved(law, shift), 1e-3)
  assert is_around(run, delta, *moved(law, 2 * shift), 1e-3, relation="replace_one")


def test_shares_are_convolved():
  law = discrete_gaussian(4.0, 60)
  for _ in range(3):
    law = np.convolve(law, law)[len(law) // 2 : -(len(law) // 2)]
  assert is_around(once(DiscreteGaussianSum(2, 2, 2.0, 8, 1)), 1e-4, *moved(law, 2), 1e-6)


@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_two_events(delta):
  gaussian, other = discrete_gaussian(16.0, 120), skellam(9.0, 120)
  exact = together(moved(gaussian, 2), moved(other, 1))
  run = once(DiscreteGaussianSum(2, 2, 4.0, 1, 1)) + once(SkellamSum(1, 1, 9.0, 1))
  assert is_around(run, delta, *exact, 1e-3)
  twice = together(moved(gaussian, 2), moved(gaussian, 2))
  assert is_around(once(DiscreteGaussianSum(2, 2, 4.0, 1, 1), count=2), delta, *twice, 1e-6)


def vectors(most, most_squared):
  """Moves of up to three coordinates, without their signs."""
  for move in itertools.combinations_with_replacement(range(4), 3):
    if sum(move) <= most and sum(k * k for k in move) <= most_squared:
      yield move


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_one_coordinate_is_the_worst_case_of_an_l1_bound(delta):
  law = skellam(9.0, 32)
  lower, upper = accounting.epsilon_interval(once(SkellamSum(3, 3, 9.0, 1)), delta)
  assert stick(*moved(law, 3), lower) >= delta * (1 - 1e-6)
  found = [stick(*together(*(moved(law, k) for k in move)), upper) for move in vectors(3, 9)]
  assert len(found) == 7
  assert max(found) <= delta * (1 + 1e-6)


def test_a_gaussian_dominates_moves_of_an_l2_bound_with_many_vectors():
  delta, law = 1e-3, discrete_gaussian(144.0, 84)
  lower, upper = accounting.epsilon_interval(
    once(DiscreteGaussianSum(8.0, 64.0, 12.0, 1, 64)), delta
  )
  for move in ((8,), (6, 5, 1), (5, 5, 3), (7, 3, 2)):
    exact = together(*(moved(law, k) for k in move))
    assert stick(*exact, upper) <= delta * (1 + 1e-6)
  assert stick(*moved(law, 8), lower) >= delta * (1 - 1e-6)
  smooth = math.log(8 * 64e12) / (2 * math.pi**2)
  bound = accounting.gaussian_epsilon(math.sqrt(144 - smooth) / 8, delta)
  assert upper == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("delta", [1e-2, 1e-6])
@pytest.mark.parametrize(
  ("query", "law", "moves"),
  [
    (DiscreteGaussianSum(2, 4, 3.0, 1, 3), discrete_gaussian(9.0, 30), [(2,), (1, 1, 1)]),
    (DiscreteGaussianSum(2, 4, 0.6, 1, 3), discrete_gaussian(0.36, 9), [(2,), (1, 1, 1)]),
    (DiscreteGaussianSum(3, 4, 1.5, 1, 3), discrete_gaussian(2.25, 20), [(2, 2), (2, 1, 1), (3,)]),
    (SkellamSum(1.7321, 3, 4.0, 1), skellam(4.0, 40), [(1, 1, 1)]),
    (SkellamSum(2.2361, 3, 9.0, 1), skellam(9.0, 60), [(2, 1), (1, 1, 1)]),
  ],
)
def test_the_worst_of_few_vectors(query, law, moves, delta):
  upper = accounting.epsilon(once(query), delta, accountant="pld")
  exact = [together(*(moved(law, k) for k in move)) for move in moves]
  assert max(stick(*each, upper) for each in exact) <= delta * (1 + 1e-6)
  assert max(stick(*each, upper * (1 - 1e-4)) for each in exact) >= delta * (1 - 1e-6)


def test_two_releases_may_move_by_different_vectors():
  delta, law = 1e-4, discrete_gaussian(2.25, 13)
  moves = [((2,), (2,)), ((2,), (1, 1)), ((1, 1), (1, 1))]
  upper = accounting.epsilon(
    once(DiscreteGaussianSum(2, 2, 1.5, 1, 2), count=2), delta, accountant="pld"
  )
  exact = [together(*(moved(law, k) for move in both for k in move)) for both in moves]
  assert max(stick(*each, upper) for each in exact) <= delta * (1 + 1e-6)
  assert max(stick(*each, 0.98 * upper) for each in exact) >= delta


def test_vectors_of_differences_are_within_twice_the_bounds():
  """Replaced records (1, 1) and (1, -1), and whatever else is as long, move a sum of two."""
  delta, law = 1e-3, discrete_gaussian(4.0, 40)
  run = once(DiscreteGaussianSum(1.4143, 2, 2.0, 1, 2))
  upper = accounting.epsilon(run, delta, accountant="pld", relation="replace_one")
  exact = together(moved(law, 2), moved(law, 2))
  assert stick(*exact, upper) <= delta * (1 + 1e-6)
  assert stick(*exact, 0.999 * upper) >= delta


def test_lower_ends_move_several_coordinates():
  lower, upper = accounting.epsilon_interval(once(DiscreteGaussianSum(7**0.5, 9, 60.0, 1, 9)), 1e-5)
  assert 0.995 * upper < lower  # four squares: 7 = 4 + 1 + 1 + 1
  lower, _ = accounting.epsilon_interval(once(DiscreteGaussianSum(7**0.5, 2.0, 60.0, 1, 9)), 1e-5)
  assert lower == pytest.approx(accounting.gaussian_epsilon(30.0, 1e-5), rel=0.01)


def test_large_noise_is_nearly_gaussian():
  exact = accounting.gaussian_epsilon(4.0, 1e-6)
  gaussian = DiscreteGaussianSum(10_000.0, 3e5, 4000.0, 100, 10**6)
  for query in (gaussian, SkellamSum(1000, 1000, 1e4, 1600)):
    lower, upper = accounting.epsilon_interval(once(query), 1e-6)
    if query is gaussian:
      assert lower == pytest.approx(accounting.gaussian_epsilon(4.0, 1e-6), rel=1e-4)
    assert upper == pytest.approx(exact, rel=1e-3)


def test_the_estimate_of_dp_accounting():
  theirs = privacy_loss_distribution.from_discrete_gaussian_mechanism(
    12.0, 3, value_discretization_interval=1e-4
  ).self_compose(30)
  run = once(DiscreteGaussianSum(3, 3, 12.0, 1, 1), count=30)
  lower, upper = accounting.epsilon_interval(run, 1e-6)
  assert lower <= theirs.get_epsilon_for_delta(1e-6) * (1 + 1e-9)
  assert upper == pytest.approx(theirs.get_epsilon_for_delta(1e-6), rel=1e-3)


@pytest.mark.parametrize(
  "query",
  [
    SkellamSum(10.0, 80.0, 64.0, 25),  # an L2 bound
    DiscreteGaussianSum(10.0, 80.0, 0.8, 900, 100),  # shares far from a discrete Gaussian's
    DiscreteGaussianSum(0.5, 0.5, 4.0, 1, 1),  # no vector of integers but zero
    SkellamSum(2.0, 0.5, 25.0, 3),  # nor here, by the L1 bound
    DiscreteGaussianSum(3.0, 3.0, 4.0, 1, 2**1001),  # of more coordinates than a float64 holds
  ],
)
def test_what_has_no_pair_costs_its_divergences(query):
  upper = accounting.epsilon(once(query), 1e-5, accountant="pld")
  assert upper == pytest.approx(accounting.epsilon(once(query), 1e-5), rel=1e-3)


def test_batches_of_an_epoch_may_differ():
  first, other = DiscreteGaussianSum(4, 4, 20.0, 1, 9), DiscreteGaussianSum(3, 3, 20.0, 1, 9)
  run = Ledger()
  for place, query in enumerate((first, other)):
    run = run.append(Round(ShuffledBatches(2, starts_epoch=place == 0), query, "zero_out"))
  # Batches of an epoch are compared by their divergences.
  alone = accounting.epsilon(once(first), 1e-5, accountant="rdp")
  for accountant in ("rdp", "tightest"):
    found = accounting.epsilon(run, 1e-5, accountant=accountant)
    assert found == pytest.approx(alone, rel=1e-3)
