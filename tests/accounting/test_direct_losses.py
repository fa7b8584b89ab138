"""Both ends of epsilon against what data sets show, over all samplings and queries together.

Every ledger holds several kinds of rounds, of one relation and to one observer. What it costs, from
below and from above, is compared with losses that are computed from the mechanisms as they are
(`tests.helpers.ledgers.direct_losses`). A Gaussian that is charged 1 % too little shows in several
of them.
"""

import math

import numpy as np
import pytest
import scipy

from jdp import accounting, events
from jdp.events.queries import query_event_types, sampling_event_types
from jdp.ledger import Ledger
from tests.helpers.ledgers import direct_losses

ROUNDING = 1e-3  # of cells and of the lattice, over 1 + epsilon: the cells of two noises together


def between(rng, low, high):
  return float(rng.uniform(low, high))


def gaussian(rng):
  return events.GaussianSum(1.0, between(rng, 0.8, 4.0))


def laplace(rng):
  return events.LaplaceSum(1.0, between(rng, 1.0, 5.0))


QUERIES = {
  "GaussianSum": gaussian,
  "LaplaceSum": laplace,
  "DistributedGaussianSum": lambda rng: events.DistributedGaussianSum(1.0, between(rng, 0.8, 4.0)),
  "WeightedAverage": lambda rng: events.WeightedAverage(
    1.0, between(rng, 0.8, 4.0), between(rng, 0.5, 2.0)
  ),
  "ConcentratedRelease": lambda rng: events.ConcentratedRelease(between(rng, 0.02, 0.5)),
  "PureRelease": lambda rng: events.PureRelease(between(rng, 0.1, 1.0)),
  "DiscreteGaussianSum": lambda rng: events.DiscreteGaussianSum(1, 1, between(rng, 0.8, 4.0), 1, 1),
  "SkellamSum": lambda rng: events.SkellamSum(1, 1, between(rng, 1.0, 9.0), 1),
  "RandomizedResponse": lambda rng: events.RandomizedResponse(
    between(rng, 0.3, 0.9), int(rng.integers(2, 6)), bool(rng.integers(2))
  ),
  "GroupedSums": lambda rng: events.GroupedSums((gaussian(rng), laplace(rng)), ("a", "b")),
}


def poisson(rng, query, relation, seen):
  """Rounds, each with what it releases, and whether no data sets show more."""
  q = float(rng.choice([1.0, rng.uniform(0.02, 0.6)]))
  one, exact = direct_losses.release(query, relation)
  counted = (one.shown(q) if seen else one.mixed(q)), int(rng.integers(1, 12))
  return [(events.PoissonSampling(q), counted[1])], [counted], exact


def truncated(rng, query, relation, seen):
  capacity = int(rng.integers(3, 12))
  sampling = events.TruncatedPoissonSampling(0.3, capacity, 20)
  one, _ = direct_losses.release(query, relation)
  others = np.arange(20)
  room = np.minimum(1.0, capacity / (others + 1))
  q = 0.3 * float(room @ scipy.stats.binom.pmf(others, 19, 0.3))
  return [(sampling, 2)], [((one.shown(q) if seen else one.mixed(q)), 2)], False


def fixed_size(rng, query, relation, seen):
  size, count = int(rng.integers(1, 10)), int(rng.integers(1, 8))
  one, _ = direct_losses.release(query, relation)
  among_opposite = one._replace(none=None)  # all others are where it is replaced by
  outcomes = one.shown(size / 10) if seen else among_opposite.mixed(size / 10)
  return [(events.FixedSizeSampling(size, 10), count)], [(outcomes, count)], False


def epoch(kind, batches, chosen=1):
  """Some whole epochs. Where the sample is seen, so are the rounds that the record is in."""

  def make(rng, query, relation, seen):
    extra = (chosen,) if kind is events.RandomAllocation else ()
    number = int(rng.integers(1, 4))
    rounds = [(kind(batches, *extra, place == 0), 1) for place in range(batches)] * number
    if seen or not isinstance(query, events.GaussianSum):
      one, _ = direct_losses.release(query, relation)
      return rounds, [(one, chosen * number)] if seen else [], False
    outcomes = direct_losses.allocated(batches, chosen, query, relation)
    return rounds, [(outcomes, number)], batches == 2 and kind is events.BallsInBins

  return make


def min_separation(rng, query, relation, seen):
  sampling = events.MinSeparationSampling(2, int(rng.integers(1, 4)), 100, by_identity=True)
  one, _ = direct_losses.release(query, relation)
  turns = min(sampling.max_participations, 3)
  return [(sampling, 5)], [(one, turns)], False


def cyclic(rng, query, relation, seen):
  q = between(rng, 0.05, 0.6)
  one, _ = direct_losses.release(query, relation)
  outcomes = one.shown(q) if seen else one.mixed(q)
  return [(events.CyclicPoissonSampling(2, q, 100, by_identity=True), 6)], [(outcomes, 3)], False


SAMPLINGS = {
  "PoissonSampling": poisson,
  "TruncatedPoissonSampling": truncated,
  "FixedSizeSampling": fixed_size,
  "ShuffledBatches": epoch(events.ShuffledBatches, 2),
  "BallsInBins": epoch(events.BallsInBins, 2),
  "RandomAllocation": epoch(events.RandomAllocation, 3, 2),
  "MinSeparationSampling": min_separation,
  "CyclicPoissonSampling": cyclic,
}


def random_ledger(rng):
  """A ledger, what its rounds show, whether nothing shows more, and the kinds that are in it."""
  relation = str(rng.choice(["add_remove", "zero_out", "replace_one"]))
  seen = bool(rng.uniform() < 0.2)
  observer = "server" if seen else "model"
  ledger, counted, kinds, everything = Ledger(), [], set(), True
  for _ in range(int(rng.integers(1, 4))):
    names = str(rng.choice([*SAMPLINGS])), str(rng.choice([*QUERIES]))
    query = QUERIES[names[1]](rng)
    rounds, outcomes, exact = SAMPLINGS[names[0]](rng, query, relation, seen)
    more = ledger
    for sampling, count in rounds:
      more = more.append(events.Round(sampling, query, relation, observer=observer), count=count)
    try:
      accounting.epsilon(more, 1e-5, accountant="rdp")
    except ValueError:  # no analysis of this kind under the relation, which it says by name
      continue
    ledger, kinds, everything = more, kinds | {names}, everything and exact
    counted += outcomes
  return ledger, counted, everything, kinds


def check(seed):
  """The kinds of rounds in a random ledger whose two ends hold what data sets show."""
  rng = np.random.default_rng(seed)
  ledger, counted, exact, kinds = random_ledger(rng)
  if not kinds:
    return kinds
  delta = float(10 ** rng.uniform(-6, -2))
  lower, upper = accounting.epsilon_interval(ledger, delta)
  shown = direct_losses.epsilon(counted, delta) if counted else 0.0
  rounding = ROUNDING * (1 + shown)
  assert shown <= upper + rounding, (seed, shown, upper, ledger)
  assert lower <= upper
  if exact and math.isfinite(shown):
    assert lower <= shown + rounding, (seed, lower, shown, ledger)
  by_rdp = accounting.epsilon(ledger, delta, accountant="rdp")
  assert shown <= by_rdp + rounding
  return kinds


@pytest.mark.slow
def test_both_ends_hold_what_data_sets_show():
  kinds = set().union(*map(check, range(80)))
  registered = {kind.__name__ for kind in sampling_event_types()}
  assert {sampling for sampling, _ in kinds} == {*SAMPLINGS} == registered
  assert {query for _, query in kinds} == {*QUERIES}
  others = {kind.__name__ for kind in query_event_types()} - {*QUERIES}
  # infinite; whole runs
  assert others == {"NonPrivate", "CorrelatedGaussianSum", "DistributedCorrelatedSum"}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_both_ends_hold_over_many_ledgers(part):
  for seed in range(80 + 42 * part, 80 + 42 * (part + 1)):
    check(seed)
