"""Poisson samples with a participation cap (Statement 2.12), against the runs themselves."""

import itertools
import math

import numpy as np
import pytest

from jdp import accounting
from jdp.accounting.families.gaussian import CAPPED_GAUSSIAN
from jdp.accounting.pld.losses.capped import _bins
from jdp.events import DistributedGaussianSum, GaussianSum, PoissonSampling, Round
from jdp.ledger import Ledger


def run(q, cap, count, query=None, relation="add_remove", observer="model"):
  event = Round(
    PoissonSampling(q, max_participations=cap), query or GaussianSum(1.0, 1.0), relation,
    observer=observer,
  )  # fmt: skip
  return Ledger().append(event, count=count)


def ratio(turns, q, cap):
  """The likelihood ratio of a run with the record to one without: over all courses of its coins.

  Args:
    turns: the rounds' own ratios, [T, ...].
  """
  states = [np.ones_like(turns[0]), *(np.zeros_like(turns[0]) for _ in range(cap))]
  for one in turns:
    taken = [q * one * state for state in states[:-1]]
    states = [(1 - q) * state for state in states[:-1]] + [states[-1]]
    for number, more in enumerate(taken, 1):
      states[number] = states[number] + more
  return sum(states)


@pytest.mark.parametrize(
  ("q", "cap", "rounds"), [(0.5, 1, 3), (0.3, 1, 3), (0.9, 1, 3), (0.6, 1, 2)]
)
@pytest.mark.parametrize("z", [0.7, 2.0])
def test_short_runs_by_quadrature(q, cap, rounds, z):
  x = np.linspace(-7, 7 + 1 / z, 121)
  density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
  without = np.ones(())
  for _ in range(rounds):
    without = np.multiply.outer(without, density)
  one = np.exp(x / z - 1 / (2 * z * z))
  shapes = [[-1 if axis == at else 1 for axis in range(rounds)] for at in range(rounds)]
  with_it = without * ratio(
    [np.broadcast_to(one.reshape(shape), without.shape) for shape in shapes], q, cap
  )
  for relation, epsilon in itertools.product(("add_remove", "zero_out"), (0.1, 0.5, 1.5)):
    ledger = run(q, cap, rounds, GaussianSum(1.0, z), relation)
    truth = max(
      float(np.sum(np.maximum(p - math.exp(epsilon) * r, 0)))
      for p, r in ((with_it, without), (without, with_it))
    )
    assert truth * (1 - 1e-4) <= accounting.delta(ledger, epsilon, accountant="pld")


@pytest.mark.parametrize(("q", "cap", "rounds"), [(0.1, 2, 100), (0.2, 1, 40), (0.05, 5, 200)])
def test_long_runs_by_simulation(q, cap, rounds):
  """With a fixed key. Of keys one in 1e6 would fail by chance; a delta 20 % too small fails."""
  rng = np.random.default_rng(1)
  samples = 100_000
  heads = rng.random((rounds, samples)) < q
  taken = heads & (np.cumsum(heads, axis=0) <= cap)
  turns = np.exp(rng.normal(size=taken.shape) + taken - 0.5)
  losses = np.log(ratio(turns, q, cap))
  for epsilon in (0.3, 0.6):
    gains = np.maximum(1 - np.exp(epsilon - losses), 0)
    truth, error = gains.mean(), gains.std() / math.sqrt(samples)
    assert error < 0.02 * truth
    stated = accounting.delta(run(q, cap, rounds), epsilon, accountant="pld")
    assert truth - 5 * error <= stated <= 3 * truth


def test_bins_have_at_least_their_probabilities():
  """By the coins' binomial numbers: J < b k if more than k of b k coins are heads."""
  for q, most, rounds in ((0.1, 2, 1000), (0.3, 4, 50), (0.01, 1, 10**6)):
    bins, weights = _bins(q, most, rounds)
    assert bins[0] == 1
    assert max(bins) <= rounds // most
    assert sum(weights) >= 1
    for number, reached in zip(bins[1:], np.cumsum(weights), strict=False):
      coins = int(number * most)
      few = sum(math.comb(coins, n) * q**n * (1 - q) ** (coins - n) for n in range(most + 1))
      assert reached >= (1 - few) * (1 - 1e-12) - 1e-15
      assert reached <= (1 - few) * (1 + 1e-8) + 1e-13


@pytest.mark.parametrize(
  ("ledger", "unsampled"),
  [
    (run(0.5, 2, 100, relation="replace_one"), 2 * 2**0.5),
    (run(0.5, 2, 100, relation="zero_out", observer="server"), 2**0.5),
    (run(0.5, 2, 100, DistributedGaussianSum(1.0, 1.0), "zero_out"), 2**0.5),
    (run(0.5, 100, 1000), 10.0),
    (run(0.5, 2, 100).extend(run(0.5, 2, 1, GaussianSum(1.0, 2.0)).entries), 2**0.5),
  ],
)  # fmt: skip
def test_other_runs_cost_as_many_unsampled_releases(ledger, unsampled):
  exact = accounting.gaussian_epsilon(1 / unsampled, 1e-5)
  assert accounting.epsilon(ledger, 1e-5, accountant="pld") == pytest.approx(exact, rel=1e-3)


def test_it_costs_less_than_both_other_bounds():
  stated = accounting.epsilon(run(0.1, 2, 1000), 1e-5, accountant="pld")
  assert stated < 0.72 * accounting.gaussian_epsilon(1 / 2**0.5, 1e-5)
  assert stated < 0.2 * accounting.epsilon(run(0.1, None, 1000), 1e-5, accountant="pld")
  assert accounting.epsilon_interval(run(0.1, 2, 1000), 1e-5)[0] == 0


def test_divergences_are_those_of_unsampled_releases():
  orders = np.array([1.5, 2.0, 8.0])
  row = np.array([[0.1, 1.5, 3.0, 100.0]])
  found = CAPPED_GAUSSIAN.rdp(row, orders)
  np.testing.assert_allclose(found[0], 3 * orders / (2 * 1.5**2), rtol=1e-12)
