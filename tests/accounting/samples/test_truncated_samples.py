"""Truncated Poisson samples: exact hockey sticks of small populations, dp_accounting's values."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from jdp import accounting
from jdp.events import (
  FixedSizeSampling,
  GaussianSum,
  LaplaceSum,
  PoissonSampling,
  Round,
  TruncatedPoissonSampling,
  WeightedAverage,
)
from jdp.ledger import Ledger, subsampled_gaussian

X = np.linspace(-40.0, 40.0, 40_001)
STEP = X[1] - X[0]


def once(sampling, query, relation="add_remove", count=1):
  return Ledger().append(Round(sampling, query, relation), count=count)


def sums(values, q, capacity):
  """The probabilities of a truncated sample's sums, by every draw and every subset of it."""
  law = {}
  for size in range(len(values) + 1):
    for drawn in itertools.combinations(range(len(values)), size):
      subsets = list(itertools.combinations(drawn, min(size, capacity)))
      for subset in subsets:
        total = sum(values[i] for i in subset)
        share = q**size * (1 - q) ** (len(values) - size) / len(subsets)
        law[total] = law.get(total, 0.0) + share
  return law


def density(law, z):
  return sum(
    p * np.exp(-(((X - at) / z) ** 2) / 2) / (z * math.sqrt(2 * math.pi)) for at, p in law.items()
  )


def hockey_sticks(p, q, epsilon):
  ratio = math.exp(epsilon)
  return [float(np.sum(np.maximum(a - ratio * b, 0)) * STEP) for a, b in ((p, q), (q, p))]


def neighbours(size, relation):
  """Data sets that differ in the first record, and all others among -1, 0 and 1."""
  for others in itertools.combinations_with_replacement((-1, 0, 1), size - 1):
    yield (1, *others), (0, *others) if relation == "zero_out" else others


@pytest.mark.parametrize("relation", ["add_remove", "zero_out"])
@pytest.mark.parametrize(
  ("size", "q", "capacity", "z"),
  [
    (4, 0.5, 2, 1.0),
    pytest.param(5, 0.3, 1, 0.8, marks=pytest.mark.slow),
    pytest.param(3, 1.0, 2, 2.0, marks=pytest.mark.slow),
  ],
)
def test_never_below_any_small_population(size, q, capacity, z, relation):
  run = once(TruncatedPoissonSampling(q, capacity, size), GaussianSum(1.0, z), relation)
  largest = {}
  for here, there in neighbours(size, relation):
    laws = [density(sums(values, q, capacity), z) for values in (here, there)]
    for epsilon in (0.05, 0.5, 1.5, 3.0):
      exact = max(hockey_sticks(*laws, epsilon))
      largest[epsilon] = max(largest.get(epsilon, 0.0), exact)
  assert largest[0.05] > 0.01
  for epsilon, exact in largest.items():
    for accountant in ("rdp", "pld"):
      assert accounting.delta(run, epsilon, accountant=accountant) >= exact * (1 - 1e-6)


def test_the_lower_end_is_that_of_others_that_show_nothing():
  sampling = TruncatedPoissonSampling(0.5, 2, 4)
  run = once(sampling, GaussianSum(1.0, 1.0))
  lower, _ = accounting.epsilon_interval(run, 1e-3)
  laws = [density(sums(values, 0.5, 2), 1.0) for values in ((1, 0, 0, 0), (0, 0, 0))]
  assert max(hockey_sticks(*laws, lower)) >= 1e-3 * (1 - 1e-6)
  assert max(hockey_sticks(*laws, lower * 1.01)) < 1e-3
  share = sum(p for total, p in sums((1, 0, 0, 0), 0.5, 2).items() if total)
  assert share == pytest.approx(sampling.inclusion_probability, rel=1e-12)


def test_two_rounds_by_quadrature():
  size, q, capacity, z = 3, 0.5, 1, 1.0
  run = once(TruncatedPoissonSampling(q, capacity, size), GaussianSum(1.0, z), count=2)
  coarse = slice(8000, 32_000, 20)  # -24 to 24
  width = 20 * STEP
  for epsilon in (0.5, 2.0):
    found = accounting.delta(run, epsilon, accountant="pld")
    for here, there in neighbours(size, "add_remove"):
      p, r = (density(sums(values, q, capacity), z)[coarse] * width for values in (here, there))
      two, other = np.outer(p, p), np.outer(r, r)
      for a, b in ((two, other), (other, two)):
        assert np.sum(np.maximum(a - math.exp(epsilon) * b, 0)) <= found + 1e-4


def test_the_value_of_dp_accounting():
  """Its test has this epsilon, by a pair for a full sample that covers replaced records too. A
  zeroed one makes room for nobody."""
  parts = [((0.5, 2, 4), 3), ((0.5, 2, 3), 2)]
  found = {}
  for relation in ("zero_out", "add_remove"):
    run = Ledger().extend(
      (Round(TruncatedPoissonSampling(*part), GaussianSum(1.0, 1.0), relation), count)
      for part, count in parts
    )
    found[relation] = accounting.epsilon(run, 1e-6, accountant="pld")
  assert 9 < found["zero_out"] < 16 < found["add_remove"] < 17.904330


@pytest.mark.slow
@pytest.mark.parametrize("plan", [(0.1, 110, 1000, 1.0), (0.02, 20, 1000, 0.7)])
def test_between_the_two_analyses_of_dp_accounting(plan):
  q, capacity, population, z = plan
  event = dp_accounting.TruncatedSubsampledGaussianDpEvent(population, q, capacity, z)
  theirs = PLDAccountant(value_discretization_interval=1e-3).compose(event, 50).get_epsilon(1e-6)
  found = accounting.epsilon(
    once(TruncatedPoissonSampling(q, capacity, population), GaussianSum(1.0, z), count=50),
    1e-6,
    accountant="pld",
  )
  plain = accounting.epsilon(subsampled_gaussian(q, z, 50), 1e-6, accountant="pld")
  assert plain < found <= theirs * (1 + 1e-9)


def test_nothing_is_truncated_of_slots_for_all():
  run = once(TruncatedPoissonSampling(0.1, 50, 50), GaussianSum(1.0, 1.0), count=10)
  for accountant in ("rdp", "pld"):
    plain = accounting.epsilon(subsampled_gaussian(0.1, 1.0, 10), 1e-5, accountant=accountant)
    assert accounting.epsilon(run, 1e-5, accountant=accountant) == pytest.approx(plain, rel=1e-9)


def test_all_records_drawn_are_a_sample_of_fixed_size():
  zero = once(TruncatedPoissonSampling(1.0, 20, 200), GaussianSum(1.0, 2.0), "zero_out", 10)
  fixed = once(FixedSizeSampling(20, 200), GaussianSum(1.0, 2.0), "zero_out", 10)
  for accountant in ("rdp", "pld"):
    expected = accounting.epsilon(fixed, 1e-5, accountant=accountant)
    assert accounting.epsilon(zero, 1e-5, accountant=accountant) == pytest.approx(
      expected, rel=1e-6
    )


def test_a_capacity_near_the_mean_may_cost_little():
  q, population = 0.01, 60_000
  plain = accounting.epsilon(subsampled_gaussian(q, 1.0, 1000), 1e-6, accountant="pld")
  dropped = once(PoissonSampling(q, overflow_probability=1e-3), GaussianSum(1.0, 1.0), count=1000)
  assert accounting.epsilon(dropped, 1e-6) == math.inf
  slots = TruncatedPoissonSampling(q, 725, population)  # 54 fewer than `sampling.poisson` takes
  assert slots.full_probability < 1e-6
  found = accounting.epsilon(once(slots, GaussianSum(1.0, 1.0), count=1000), 1e-6, accountant="pld")
  assert plain < found < 1.05 * plain


def test_weighted_averages_move_by_a_replacement_when_full():
  sampling = TruncatedPoissonSampling(1.0, 5, 50)
  run = once(sampling, WeightedAverage(1.0, 2.0, 4.0))
  replaced = subsampled_gaussian(0.1, 2.0 / (2 / 4.0), 1)
  expected = accounting.epsilon(replaced, 1e-5, accountant="pld")
  assert accounting.epsilon(run, 1e-5, accountant="pld") == pytest.approx(expected, rel=1e-6)


def test_refusals():
  sampling = TruncatedPoissonSampling(0.1, 5, 50)
  with pytest.raises(ValueError, match="got replace_one; pass one of them as relation"):
    accounting.epsilon(once(sampling, GaussianSum(1.0, 1.0), "replace_one"), 1e-5)
  laplace = once(sampling, LaplaceSum(1.0, 1.0))
  with pytest.raises(ValueError, match="makes room for another"):
    accounting.epsilon(laplace, 1e-5)
  assert accounting.epsilon(laplace, 0.0, relation="zero_out") == pytest.approx(1.0)


def test_exchange_with_dp_accounting():
  event = dp_accounting.TruncatedSubsampledGaussianDpEvent(50, 0.1, 5, 2.0)
  run = accounting.from_dp_event(event, relation="add_remove")
  assert run == once(TruncatedPoissonSampling(0.1, 5, 50), GaussianSum(1.0, 2.0))
  assert accounting.to_dp_event(run).event.events[0] == event
