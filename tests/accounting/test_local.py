"""Local releases of one observer: their loss, and with rounds that the same observer sees."""

import itertools
import math

import numpy as np
import pytest
import scipy

from jdp import accounting
from jdp.events import (
  FixedSizeSampling,
  GaussianSum,
  LocalRelease,
  PoissonSampling,
  Round,
  ShuffledBatches,
)
from jdp.guarantees import ApproxDP, PureDP, SeparatedDP
from jdp.ledger import Ledger, subsampled_gaussian


def many(value, count, cap=None):
  return Ledger().append(LocalRelease(PureDP(value), cap), count=count)


def laws_of_ones(epsilon, count):
  """The law of the ones among `count` randomised responses to one bit, and to the other."""
  p = 1 / (1 + math.exp(-epsilon))
  return (scipy.stats.binom.pmf(np.arange(count + 1), count, one) for one in (p, 1 - p))


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_between_the_exact_composition_and_the_basic_theorem(accountant):
  for epsilon, count in ((0.1, 100), (1.0, 10), (3.0, 2)):
    ledger = many(epsilon, count)
    ours = accounting.epsilon(ledger, 1e-5, accountant=accountant)
    here, there = laws_of_ones(epsilon, count)
    exact = np.maximum(here - math.exp(ours) * there, 0).sum()
    # rounding, where the bound is tight
    assert exact <= 1e-5 * (1 + 1e-8)
    assert ours <= epsilon * count
    assert accounting.epsilon(ledger, 0.0, accountant=accountant) == pytest.approx(
      epsilon * count, rel=1e-12
    )
  assert accounting.epsilon(many(0.1, 100), 1e-5, accountant=accountant) < 5.2  # basic: 10


@pytest.mark.parametrize("accountant", ["rdp", "moments", "pld"])
def test_only_the_most_expensive_releases_count(accountant):
  values = [0.5, 0.2, 0.1, 0.3, 0.2]
  for cap in (1, 3, 5, 9):
    ledger = Ledger().extend((LocalRelease(PureDP(value), cap), 4) for value in values)
    dearest = sorted(values * 4, reverse=True)[:cap]
    alone = Ledger().extend((LocalRelease(PureDP(value)), 1) for value in dearest)
    epsilon = accounting.epsilon(ledger, 1e-3, accountant=accountant)
    np.testing.assert_allclose(
      epsilon, accounting.epsilon(alone, 1e-3, accountant=accountant), rtol=1e-9
    )


def test_deltas_of_releases_are_taken_off():
  approximate = Ledger().append(LocalRelease(ApproxDP(0.1, 1e-7)), count=50)
  assert accounting.epsilon(approximate, 1e-5) == accounting.epsilon(
    many(0.1, 50), 1e-5 - 50 * 1e-7
  )
  assert accounting.epsilon(approximate, 4e-6) == math.inf
  np.testing.assert_allclose(
    accounting.delta(approximate, 2.0), accounting.delta(many(0.1, 50), 2.0) + 5e-6
  )
  separated = Ledger().append(LocalRelease(SeparatedDP(0.06, 0.04)), count=50)
  assert accounting.epsilon(separated, 1e-5) == accounting.epsilon(many(0.1, 50), 1e-5)


def both(sampling, *, relation="replace_one", stated="replace_one", count=30):
  seen = {"unit": "user", "observer": "server"}
  local = LocalRelease(PureDP(0.05, relation=stated, **seen))
  return (
    Ledger()
    .append(Round(sampling, GaussianSum(1.0, 40.0), relation, **seen), count=count)
    .append(local, count=20)
  )


@pytest.mark.sweep
@pytest.mark.parametrize("relation", ["replace_one", "zero_out"])
@pytest.mark.parametrize("accountant", ["rdp", "moments", "pld"])
def test_rounds_and_releases_compose_as_of_a_sample_that_is_seen(relation, accountant):
  def epsilon(ledger, delta=1e-5):
    return accounting.epsilon(
      ledger, delta, relation=relation, observer="server", accountant=accountant
    )

  whole = both(PoissonSampling(1.0), relation=relation)
  rounds, releases = (Ledger((entry,)) for entry in whole.entries)
  together, apart = epsilon(whole), (epsilon(rounds), epsilon(releases))
  assert max(apart) < together <= epsilon(rounds) + epsilon(releases, 0.0) + 1e-12
  if accountant == "rdp":
    assert together < sum(apart)
  # Who reports is seen: a sample is no better than a binomial number of rounds, of all records.
  sampled = {
    epsilon(both(sampling, relation=relation))
    for sampling in (PoissonSampling(0.1), FixedSizeSampling(1, 10))
  }
  few = epsilon(both(PoissonSampling(1.0), relation=relation, count=3))  # the mean number
  assert len(sampled) == 1
  assert few <= sampled.pop() < together
  one_epoch = both(ShuffledBatches(30, True), relation=relation, count=1)
  np.testing.assert_allclose(
    epsilon(one_epoch), epsilon(both(PoissonSampling(1.0), relation=relation, count=1))
  )


def test_together_is_above_the_exact_loss_of_both():
  # Exactly: a Gaussian shift and binary responses, of which the second is summed over.
  ledger = both(PoissonSampling(1.0))
  z = 40.0 / 2 / math.sqrt(30)
  here, there = laws_of_ones(0.05, 20)
  for epsilon in (0.3, 1.0, 2.0):
    rest = epsilon + np.log(there / here)
    sides = (scipy.stats.norm.cdf(side / 2 / z - rest * z) for side in (1, -1))
    exact = here @ (next(sides) - np.exp(rest) * next(sides))
    assert exact <= accounting.delta(ledger, epsilon) <= 1.0001 * exact


def test_relations_that_releases_do_not_cover_are_refused():
  with pytest.raises(
    ValueError, match="replace_one or zero_out for rounds and local releases of one observer"
  ):
    accounting.epsilon(both(PoissonSampling(1.0), relation="add_remove", stated="add_remove"), 1e-5)
  with pytest.raises(
    ValueError, match="Expected relation zero_out, which the local releases state, got replace_one"
  ):
    accounting.epsilon(both(PoissonSampling(1.0), stated="zero_out"), 1e-5, relation="replace_one")
  # the null record is a value
  assert accounting.epsilon(many(1.0, 2), 0.0, relation="zero_out") == 2.0


def test_a_cap_is_over_one_run():
  run = many(1.0, 10, cap=3)
  with pytest.raises(
    ValueError, match="max_releases in one of two ledgers that are added, got them in both"
  ):
    run + run  # of two runs a unit may make 6 releases
  # more rounds of the same run
  assert accounting.local_guarantee(run.extend(run.entries)).epsilon == 3.0
  assert accounting.local_guarantee(run + subsampled_gaussian(0.1, 1.0, 5)).epsilon == 3.0


def test_overflow_of_rounds_beside_releases_is_charged():
  overflowing = PoissonSampling(1.0, overflow_probability=1e-9)
  for epsilon, accountant in itertools.product((0.5, 3.0), ("rdp", "moments")):
    plain, more = (
      accounting.delta(both(sampling), epsilon, accountant=accountant)
      for sampling in (PoissonSampling(1.0), overflowing)
    )
    # What holds at a smaller epsilon, with its smaller surcharge, may be less at 3.
    charged = min(1.0, plain + 30e-9 * (1 + math.exp(epsilon)))
    assert min(1.0, plain + 60e-9) <= more <= charged * (1 + 1e-9)
    assert more >= charged * (1 - 1e-9) or epsilon == 3.0
