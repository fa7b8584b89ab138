"""Every sampling with every query under every relation: a bound above the truth, or a refusal that
names what works.
"""

import functools
import itertools
import math
import typing

import numpy as np
import pytest
from scipy import stats

from jdp import accounting
from jdp.accounting import composition, dominating_pairs, registration
from jdp.accounting.dominating_pairs import dominating_pair
from jdp.accounting.families import gaussian
from jdp.accounting.families.base import DominatingPair
from jdp.accounting.renyi import fixed_size_gaussian, poisson_gaussian
from jdp.events import (
  BallsInBins,
  ConcentratedRelease,
  CorrelatedGaussianSum,
  CyclicPoissonSampling,
  DiscreteGaussianSum,
  DistributedCorrelatedSum,
  DistributedGaussianSum,
  FixedSizeSampling,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  MinSeparationSampling,
  NonPrivate,
  PoissonSampling,
  PureRelease,
  RandomAllocation,
  RandomizedResponse,
  Round,
  ShuffledBatches,
  SkellamSum,
  TruncatedPoissonSampling,
  WeightedAverage,
)
from jdp.events.queries import SumQueryEvent
from jdp.events.sampling import SamplingEvent
from jdp.guarantees import Relation
from jdp.ledger import Ledger, subsampled_gaussian

GAUSSIAN = GaussianSum(2.0, 6.0)
LAPLACE = LaplaceSum(1.0, 1.5)
AVERAGE = WeightedAverage(1.0, 0.3, min_total_weight=8.0)
NESTED = GroupedSums(
  (GaussianSum(1.0, 4.0), GroupedSums((GAUSSIAN, GaussianSum(3.0, 15.0)), ("b", "c"))),
  ("a", "rest"),
)
PURE_GROUP = GroupedSums((LAPLACE, PureRelease(0.5)), ("sum", "count"))
ZCDP_GROUP = GroupedSums((ConcentratedRelease(0.02), GAUSSIAN), ("statistics", "sum"))
RESPONSE, PURE, CONCENTRATED = (
  RandomizedResponse(0.4, 3),
  PureRelease(0.8),
  ConcentratedRelease(0.05),
)
DISTRIBUTED = DistributedGaussianSum(1.0, 2.0)
# Variances of 16 and 64, for S = 3: near enough to the continuous distribution for the tests below.
DISCRETE, SKELLAM = DiscreteGaussianSum(3.0, 3.0, 2.0, 4, 1), SkellamSum(3.0, 3.0, 8.0, 8)
# A run of one round, alone and beside another sum of the same sample.
CORRELATED = CorrelatedGaussianSum(2.0, 3.0, "a strategy", 1, 1, 1, 1.0, 1, 1.0, 0)
CORRELATED_BY_OWNERS = DistributedCorrelatedSum(
  2.0, 3.0, "a strategy", 1, 1, 1, 1.0, 1, 1.0, 0
)  # fmt: skip
CORRELATED_GROUP = GroupedSums((GAUSSIAN, CORRELATED), ("sum", "correlated"))
MIXED_NOISE = GroupedSums((GAUSSIAN, DISTRIBUTED), ("by the server", "by the clients"))
SUMS = GroupedSums((GAUSSIAN, LAPLACE), ("gradients", "statistics"))
# A query event without an entry fails `test_every_event_is_paired`.
CENTRAL = [
  GAUSSIAN,
  LAPLACE,
  AVERAGE,
  NESTED,
  SUMS,
  PURE_GROUP,
  ZCDP_GROUP,
  RESPONSE,
  PURE,
  CONCENTRATED,
]
BY_OWNERS = [DISTRIBUTED, DISCRETE, SKELLAM, MIXED_NOISE, CORRELATED_BY_OWNERS]
UNPROTECTED = [NonPrivate()]
OF_RUNS = [CORRELATED, CORRELATED_GROUP]
QUERIES = CENTRAL + BY_OWNERS + OF_RUNS

# One round of each sampling, the probability that the record is in it, and the relations under
# which it is analysed.
BOTH = {"add_remove", "zero_out"}
ALL = {*BOTH, "replace_one"}
TRUNCATED = TruncatedPoissonSampling(0.25, 22, 100)
SAMPLINGS = {
  PoissonSampling(0.2): (0.2, BOTH),
  PoissonSampling(1.0): (1.0, ALL),
  TRUNCATED: (TRUNCATED.inclusion_probability, BOTH),
  FixedSizeSampling(20, 100): (0.2, {"replace_one", "zero_out"}),
  FixedSizeSampling(100, 100): (1.0, {"replace_one", "zero_out"}),
  ShuffledBatches(5, True): (0.2, ALL),
  ShuffledBatches(5, True, keeps_partial=True): (0.2, ALL),
  BallsInBins(5, True): (0.2, ALL),
  RandomAllocation(5, 2, True): (0.4, ALL),
  MinSeparationSampling(5, 2, 100): (1.0, ALL - {"add_remove"}),
  MinSeparationSampling(5, 2, 100, 7, by_identity=True): (1.0, ALL),
  CyclicPoissonSampling(5, 0.2, 100): (0.2, {"zero_out"}),
  CyclicPoissonSampling(5, 0.2, 100, 7, by_identity=True): (0.2, BOTH),
}
# Under add/remove a record that leaves must not change the rounds of others.
OTHERS_STAY = (PoissonSampling, BallsInBins, RandomAllocation)

X = np.linspace(-60.0, 60.0, 24_001)  # ends of cells: what falls into them is post-processing


def cells(law):
  """The masses of the cells, each by the tail that it is in."""
  return np.where(X[1:] <= law.mean(), np.diff(law.cdf(X)), -np.diff(law.sf(X)))


def gaussian_law(shift):
  return cells(stats.norm(shift))


def laplace_law(shift):
  return cells(stats.laplace(shift))


INTEGERS = np.arange(-200, 201)


def discrete_law(shift):
  """Of the sum of four discrete Gaussians of parameter 2."""
  one = np.exp(-(INTEGERS**2) / 8.0)
  law = np.array([1.0])
  for _ in range(4):
    law = np.convolve(law, one / one.sum())
  return np.roll(law, shift)


def skellam_law(shift):
  return np.roll(stats.skellam.pmf(INTEGERS, 32.0, 32.0), shift)


def response_law(epsilon):
  """Of randomised response on one bit: absent, one value, the other value."""
  high = 1 / (1 + math.exp(-epsilon))
  return np.array([high, 1 - high]), np.array([1 - high, high])


@functools.cache
def laws(query, relation):
  """Output distributions that neighbours can have: record in the sample, record of the other side,
  record not in the sample.
  """
  if query == SUMS:
    parts = zip(laws(GAUSSIAN, relation), laws(LAPLACE, relation), strict=True)
    return tuple(np.outer(*(law.reshape(-1, 20).sum(axis=1) for law in both)) for both in parts)
  if query in (PURE, PURE_GROUP):
    here, there = response_law(0.8 if query == PURE else 0.5)
    return here, there, there
  if query == RESPONSE:
    values = np.full((3, 3), 0.4 / 3) + 0.6 * np.eye(3)
    return values[0], values[1], values[1]
  law, shift = {
    GAUSSIAN: (gaussian_law, 1 / 3),
    LAPLACE: (laplace_law, 1 / 1.5),
    AVERAGE: (gaussian_law, 1 / 8 / 0.3),
    NESTED: (gaussian_law, math.sqrt(1 / 16 + 1 / 9 + 1 / 25)),
    ZCDP_GROUP: (gaussian_law, math.sqrt(1 / 9 + 2 * 0.02)),
    CONCENTRATED: (gaussian_law, math.sqrt(2 * 0.05)),
    CORRELATED: (gaussian_law, 1 / 3),
    CORRELATED_BY_OWNERS: (gaussian_law, 1 / 3),
    CORRELATED_GROUP: (gaussian_law, math.sqrt(2 / 9)),
    DISTRIBUTED: (gaussian_law, 1 / 2),
    DISCRETE: (discrete_law, 3),
    SKELLAM: (skellam_law, 3),
    MIXED_NOISE: (gaussian_law, math.sqrt(1 / 9 + 1 / 4)),
  }[query]
  if query in BY_OWNERS:
    # Given the number of shares, another record is there in the place of one that sits out: at the
    # far end, here.
    return law(shift), law(-shift if relation == "replace_one" else 0), law(-shift)
  whole = query in (CONCENTRATED, ZCDP_GROUP)  # stated for the relation itself
  if relation != "replace_one" or whole:
    return law(shift), law(0.0), law(0.0)
  return law(shift), law(-shift), law(0.0)


def true_delta(query, relation, q, epsilon, *, seen=False, fixed=False):
  """The hockey-stick divergence between two runs of neighbours, both ways; `fixed`: of samples in
  which another record sits in the place of one that sits out.
  """
  here, there, absent = laws(query, relation)
  if fixed:
    absent = laws(query, "replace_one")[1]
  mixed = 0 if seen else (1 - q) * absent  # of a sample that is seen, these are equal and apart
  p, r = q * here + mixed, q * there + mixed
  return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((p, r), (r, p)))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_bounds_the_truth_or_refuses(sampling, query):
  q, analysed = SAMPLINGS[sampling]
  for relation in Relation:
    ledger = Ledger().append(Round(sampling, query, relation))
    needs_two = isinstance(sampling, ShuffledBatches) and relation == "add_remove"
    stated = query in (PURE, CONCENTRATED, PURE_GROUP, ZCDP_GROUP)
    if query in BY_OWNERS:  # analysed under any sampling but not if a record takes its noise along
      analysed, needs_two = (
        (ALL if needs_two and not sampling.keeps_partial else ALL - {"add_remove"}),
        False,
      )
    if sampling == TRUNCATED and query not in (GAUSSIAN, AVERAGE, NESTED, *BY_OWNERS):
      analysed = {"zero_out"}  # of a full sample, others move
    by_coins = isinstance(sampling, PoissonSampling | CyclicPoissonSampling)
    if by_coins and query in (GAUSSIAN, AVERAGE, NESTED):
      analysed = {*analysed, "replace_one"}
    if query == CORRELATED_BY_OWNERS:  # nor if a partial group may have another size
      analysed = ALL - {"add_remove"}
    if query in OF_RUNS:  # never refused but where others' rounds may change
      stays = isinstance(sampling, OTHERS_STAY) or getattr(sampling, "by_identity", False)
      analysed = ALL if stays else ALL - {"add_remove"}
    if relation in analysed and not (needs_two and stated):
      for epsilon in (0.0, 0.5):
        fixed = isinstance(sampling, FixedSizeSampling)
        truth = true_delta(query, relation, q, epsilon, fixed=fixed)
        assert accounting.delta(ledger, epsilon) >= truth * (1 - 1e-9)
        if relation != "add_remove" or q == 1:
          seen = Ledger().append(Round(sampling, query, relation, observer="server"))
          truth = true_delta(query, relation, q, epsilon, seen=True)
          if not isinstance(sampling, MinSeparationSampling):
            assert accounting.delta(seen, epsilon) >= truth * (1 - 1e-9)
      assert 0 < accounting.epsilon(ledger, 1e-6) < 20
    else:
      with pytest.raises(
        ValueError, match=r"^Expected relation (add_remove|replace_one|zero_out)[^;]*got [^;]*[;:] "
      ):
        accounting.epsilon(ledger, 1e-6)


def test_every_event_is_paired():
  paired = {type(query) for query in QUERIES + UNPROTECTED}
  assert paired == set(typing.get_args(SumQueryEvent))
  assert {type(sampling) for sampling in SAMPLINGS} == set(typing.get_args(SamplingEvent))


def hockey_stick(p, q, epsilon):
  """sup over events of P - e^epsilon Q, and with P and Q exchanged."""
  return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p)))


@pytest.mark.parametrize("sampling", [PoissonSampling(0.01), FixedSizeSampling(1, 100)], ids=str)
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_noise_by_the_owners_does_not_hide_who_took_part(sampling, relation):
  # Given the number of shares: all others contribute -S, the record S on one side; on the other
  # nothing, or -S.
  absent, here = gaussian_law(-1.0), gaussian_law(1.0)
  there = gaussian_law(0.0) if relation == "zero_out" else absent
  truth = hockey_stick(0.99 * absent + 0.01 * here, 0.99 * absent + 0.01 * there, 1.0)
  amplified = hockey_stick(
    0.99 * gaussian_law(0.0) + 0.01 * gaussian_law(1.0), gaussian_law(0.0), 1.0
  )
  assert truth > 1e-4
  assert amplified < 1e-8  # what a central sum of multiplier 1 costs under zero-out
  for query in (
    DistributedGaussianSum(1.0, 1.0),
    GroupedSums((DistributedGaussianSum(1.0, 1.0),), ("sum",)),
  ):
    ledger = Ledger().append(Round(sampling, query, relation))
    assert accounting.delta(ledger, 1.0) >= truth
    whole = Ledger().append(Round(PoissonSampling(1.0), query, relation))
    assert accounting.delta(ledger, 1.0) == accounting.delta(whole, 1.0)


def test_who_answered_may_tell_who_was_sampled():
  # One record of two is sampled. The other's owner never answers: a round that was released is the
  # first one's.
  sure = DistributedGaussianSum(1.0, 1.0)
  ledger = Ledger().append(Round(FixedSizeSampling(1, 2), sure, "replace_one"))
  truth = hockey_stick(gaussian_law(1.0), gaussian_law(-1.0), 1.0)
  assert accounting.delta(ledger, 1.0) >= truth


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_no_protection_is_infinite_whatever_the_sampling(sampling):
  hidden = GroupedSums((GAUSSIAN, GroupedSums((NonPrivate(),), ("bare",))), ("a", "b"))
  no_noise = GroupedSums((GAUSSIAN, GaussianSum(1.0, 0.0)), ("a", "b"))
  relations = SAMPLINGS[sampling][1]
  for relation, query in itertools.product(
    relations, (NonPrivate(), hidden, no_noise, LaplaceSum(1.0, 0.0))
  ):
    if sampling == TRUNCATED and relation == "add_remove" and isinstance(query, LaplaceSum):
      continue  # refused
    for accountant in ("rdp", "pld"):
      ledger = Ledger().append(Round(sampling, query, relation))
      if accountant == "rdp" or not isinstance(sampling, FixedSizeSampling):
        assert accounting.epsilon(ledger, 1e-5, accountant=accountant) == math.inf
        assert accounting.delta(ledger, 3.0, accountant=accountant) == 1.0


def test_several_releases_that_do_not_join_have_no_one_pair():
  with pytest.raises(ValueError, match=r"got .*Gaussian.*; ask for each part"):
    dominating_pair(SUMS, Relation.ZERO_OUT, Relation.ZERO_OUT)


@pytest.mark.parametrize("relation", sorted(ALL))
def test_nested_groups_are_one_gaussian(relation):
  expected = 1 / math.sqrt(1 / 16 + 1 / 9 + 1 / 25) / (2 if relation == "replace_one" else 1)
  kind, (q, z) = dominating_pair(NESTED, Relation(relation), Relation(relation))
  assert (kind.name, q) == ("Poisson-sampled Gaussian", 1.0)
  np.testing.assert_allclose(z, expected, rtol=1e-14)


def test_stated_releases_hold_for_the_relation_of_their_round():
  ledger = Ledger().append(Round(PoissonSampling(1.0), PURE, "add_remove"))
  assert accounting.epsilon(ledger, 0.0) == 0.8
  with pytest.raises(
    ValueError, match="Expected relation add_remove, for which the round's PureRelease is stated"
  ):
    accounting.epsilon(ledger, 0.0, relation="zero_out")


def test_pure_amplification():
  ledger = Ledger().append(Round(PoissonSampling(0.01), PureRelease(1.0)))
  np.testing.assert_allclose(
    accounting.epsilon(ledger, 0.0), math.log1p(0.01 * math.expm1(1.0)), rtol=1e-14
  )
  far = Ledger().append(Round(PoissonSampling(0.01), PureRelease(900.0)))
  np.testing.assert_allclose(accounting.epsilon(far, 0.0), 900 + math.log(0.01), rtol=1e-14)
  # log(q + (1 - q) / e^eps) would lose it
  rare = Ledger().append(Round(PoissonSampling(1e-14), PureRelease(1.5)))
  np.testing.assert_allclose(accounting.epsilon(rare, 0.0), 1e-14 * math.expm1(1.5), rtol=1e-12)
  # The null record may cost a release what no absent one does.
  zeroed = Ledger().append(Round(PoissonSampling(0.01), PureRelease(1.0), "zero_out"))
  assert accounting.epsilon(zeroed, 0.0) == 1.0
  summed = Ledger().append(Round(PoissonSampling(0.01), LaplaceSum(1.0, 1.0), "zero_out"))
  assert accounting.epsilon(summed, 0.0) == accounting.epsilon(ledger, 0.0)


def test_fixed_size_sample_of_the_published_example():
  # Passing sigma / S instead of sigma / (2S) would claim 1.445.
  ledger = Ledger().append(
    Round(FixedSizeSampling(100, 10_000), GaussianSum(1.0, 2.0), "replace_one"), count=1000
  )
  assert round(accounting.epsilon(ledger, 1e-5, accountant="rdp"), 3) == 3.576
  with pytest.raises(ValueError, match="Expected relation replace_one or zero_out for Fixed"):
    accounting.epsilon(ledger, 1e-5, relation="add_remove")


def test_fixed_size_samples_of_a_zeroed_record():
  """Between opposite others, by quadrature of two rounds, and a replacement."""
  sampling, q, z = FixedSizeSampling(1, 5), 0.2, 0.8
  ledger = Ledger().append(Round(sampling, GaussianSum(1.0, z), "zero_out"), count=2)
  x = np.linspace(-12, 12, 1201)
  other, none, one = (np.exp(-(((x - s) / z) ** 2) / 2) for s in (-1, 0, 1))
  here, there = ((1 - q) * other + q * own for own in (one, none))
  here, there = (np.outer(law, law) / law.sum() ** 2 for law in (here, there))
  for epsilon in (0.1, 1.0, 3.0):
    exact = np.maximum(here - math.exp(epsilon) * there, 0).sum()
    found = accounting.delta(ledger, epsilon, accountant="pld")
    assert exact * (1 - 1e-4) <= found <= 1.25 * exact
    replaced = accounting.delta(ledger, epsilon, accountant="pld", relation="replace_one")
    assert found < 0.8 * replaced
    assert found <= accounting.delta(ledger, epsilon)  # by divergences, of a replacement
  lower, upper = accounting.epsilon_interval(ledger, 1e-5)
  assert 0.97 * upper < lower < upper


@pytest.mark.parametrize("angle", [0.0, 1.0, 2.0, 3.0])
def test_opposite_records_are_the_worst_of_a_fixed_size_sample(angle):
  """In two dimensions: the record at (1, 0), who sits in its place at some angle."""
  q, z = 0.3, 0.9
  ledger = Ledger().append(Round(FixedSizeSampling(3, 10), GaussianSum(1.0, z), "zero_out"))
  x = np.linspace(-8, 8, 401)

  def law(a, b):
    density = np.outer(np.exp(-(((x - a) / z) ** 2) / 2), np.exp(-(((x - b) / z) ** 2) / 2))
    return density / density.sum()

  other = law(math.cos(angle), math.sin(angle))
  p, r = ((1 - q) * other + q * own for own in (law(1, 0), law(0, 0)))
  for epsilon in (0.05, 0.5, 1.5):
    exact = hockey_stick(p, r, epsilon)
    assert 1e-4 < exact <= accounting.delta(ledger, epsilon, accountant="pld") * (1 + 1e-4)


def test_replacing_is_dearer_than_the_loss_distribution_of_a_replaced_record():
  run = subsampled_gaussian(1.0, 1.0, 10)
  replaced = accounting.epsilon(run, 1e-5, relation="replace_one")
  loss_distribution = accounting.epsilon(run, 1e-5, relation="replace_one", accountant="pld")
  assert replaced >= loss_distribution >= 46.2
  assert accounting.epsilon(run, 1e-5) < 19.1


def epochs(number, batches, query=None, **fields):
  first, other = (
    Round(ShuffledBatches(batches, start, **fields), query or GaussianSum(1.0, 10.0))
    for start in (True, False)
  )
  return Ledger().extend([(first, 1), (other, batches - 1)] * number)


@pytest.mark.parametrize(
  ("relation", "partial", "expected"),
  [
    ("zero_out", False, 1.1994),
    ("replace_one", False, 2.5944),
    ("add_remove", False, 2.5944),
    ("zero_out", True, 1.1994),
    ("replace_one", True, 2.5944),
  ],
)
def test_ten_shuffled_epochs(relation, partial, expected):
  run = epochs(10, 7, keeps_partial=partial)
  assert round(accounting.epsilon(run, 1e-5, relation=relation, accountant="pld"), 4) == expected
  assert (
    expected <= accounting.epsilon(run, 1e-5, relation=relation, accountant="rdp") <= 1.1 * expected
  )


def test_a_kept_partial_batch_costs_a_replacement_and_a_removal():
  run = epochs(10, 7, keeps_partial=True)
  for accountant in ("rdp", "pld", "moments"):
    np.testing.assert_allclose(
      accounting.epsilon(run, 1e-5, relation="add_remove", accountant=accountant),
      accounting.epsilon(
        subsampled_gaussian(1.0, 10 / math.sqrt(5), 10), 1e-5, accountant=accountant
      ),
      rtol=1e-9,
    )


@pytest.mark.parametrize("kind", [ShuffledBatches, BallsInBins])
def test_epochs_are_counted_by_their_starts(kind):
  first, other = (
    Round(kind(4, start), GaussianSum(1.0, 5.0), "zero_out") for start in (True, False)
  )

  def epsilon(*entries):
    return accounting.epsilon(Ledger().extend(entries), 1e-5, accountant="rdp")

  def of_epochs(number):
    return accounting.epsilon(subsampled_gaussian(1.0, 5.0, number), 1e-5, accountant="rdp")

  assert epsilon((first, 1)) == epsilon((first, 1), (other, 3)) == of_epochs(1)
  assert epsilon((first, 1), (other, 1), (first, 1)) == of_epochs(2)  # the first was cut short
  # a slice: it begins within an epoch
  assert epsilon((other, 2), (first, 1), (other, 1)) == of_epochs(2)
  assert epsilon((other, 2)) == of_epochs(1)
  assert epsilon((other, 100)) == of_epochs(25)  # starts are missing
  separate = Round(kind(4, True, population=9), GaussianSum(1.0, 5.0), "zero_out")
  assert epsilon((first, 1), (other, 3), (separate, 1)) == of_epochs(2)  # another sampler's epoch


def test_epochs_of_differing_rounds_count_the_dearest():
  noises = [3.0, 8.0, 5.0, 4.0, 9.0, 6.0]
  rounds = [
    Round(ShuffledBatches(3, i % 3 == 0), GaussianSum(1.0, z), "zero_out")
    for i, z in enumerate(noises)
  ]
  run = Ledger().extend((event, 1) for event in rounds)
  # A record is in one round of the first three and one of the last: any choice costs no more.
  worst = max(
    accounting.epsilon(subsampled_gaussian(1.0, (a**-2 + b**-2) ** -0.5, 1), 1e-5)
    for a, b in itertools.product(noises[:3], noises[3:])
  )
  two_dearest = accounting.epsilon(subsampled_gaussian(1.0, (3.0**-2 + 4.0**-2) ** -0.5, 1), 1e-5)
  np.testing.assert_allclose(accounting.epsilon(run, 1e-5), two_dearest, rtol=1e-9)
  assert worst <= two_dearest * (1 + 1e-12)
  responses = [
    Round(ShuffledBatches(3, True), RandomizedResponse(noise, 2), "zero_out")
    for noise in (0.5, 0.6)
  ]
  with pytest.raises(ValueError, match="equal parameters of randomized response"):
    accounting.epsilon(Ledger().extend((event, 1) for event in responses), 1e-5)


def test_overflow_of_bins_adds_up():
  event = Round(BallsInBins(4, True, overflow_probability=1e-9), GaussianSum(1.0, 5.0), "zero_out")
  run = Ledger().append(event, count=3)
  plain = accounting.delta(subsampled_gaussian(1.0, 5.0, 3), 1.0, accountant="rdp")
  found = accounting.delta(run, 1.0, accountant="rdp")
  np.testing.assert_allclose(found, plain + 3e-9 * (1 + math.e), rtol=1e-9)


@pytest.mark.parametrize("w_min", [0.3, 1.0, 2.5, 8.0])
def test_sensitivity_of_the_weighted_average(w_min):
  """Against brute force in one dimension: vectors of the others at one end, weights on a grid."""
  weights = np.linspace(0, 1, 11)
  # total weight of the others, all at +S
  others = np.linspace(0, 2 * w_min + 2, 60)[:, None, None, None, None]

  def average(weight, value):
    return (others + weight * value) / np.maximum(w_min, others + weight)

  w, d = weights[:, None, None, None], np.array([-1.0, 1.0])[:, None, None]
  w2, d2 = weights[:, None], np.array([-1.0, 1.0])
  replaced = np.abs(average(w, d) - average(w2, d2)).max()
  removed = np.abs(average(w, d) - average(0.0, 0.0)).max()
  for relation, brute in (
    ("replace_one", replaced),
    ("add_remove", removed),
    ("zero_out", removed),
  ):
    _, (_, z) = dominating_pair(
      WeightedAverage(1.0, 1.0, w_min), Relation(relation), Relation(relation)
    )
    assert brute <= 1 / z * (1 + 1e-12)
    assert brute >= 0.9 / z or w_min < 1  # and the formula is no waste


def test_a_new_event_without_an_analysis_is_refused_by_name(monkeypatch):
  ledger = Ledger().append(Round(PoissonSampling(0.1), GAUSSIAN))
  monkeypatch.delitem(registration._SAMPLINGS, PoissonSampling)
  with pytest.raises(
    ValueError, match="Expected a sampling that has an analysis, got PoissonSampling"
  ):
    accounting.epsilon(ledger, 1e-5)


@pytest.mark.parametrize("sampling", [FixedSizeSampling(10, 100), PoissonSampling(1.0)], ids=str)
def test_accountants_refuse_losses_they_do_not_cover(sampling):
  query = GAUSSIAN if isinstance(sampling, FixedSizeSampling) else CONCENTRATED
  ledger = Ledger().append(Round(sampling, query, "replace_one"))
  name = (
    "Gaussian sum of a fixed-size sample"
    if query is GAUSSIAN
    else "zero-concentrated differential privacy"
  )
  with pytest.raises(ValueError, match=f"got {name}; pass accountant='rdp'"):
    accounting.epsilon(ledger, 1e-5, accountant="moments")
  # Loss distributions cover every kind.
  found = [accounting.epsilon(ledger, 1e-5, accountant=name) for name in ("pld", "rdp")]
  assert 0 < accounting.epsilon(ledger, 1e-5) == min(found)


@pytest.mark.sweep
@pytest.mark.parametrize("query", [LAPLACE, RESPONSE, PURE, PURE_GROUP], ids=str)
def test_loss_distributions_of_pure_releases(query):
  ledger = Ledger().append(Round(PoissonSampling(1.0), query, "replace_one"), count=20)
  loss_distribution = accounting.epsilon(ledger, 1e-6, accountant="pld")
  by_rdp, basic = accounting.epsilon(ledger, 1e-6), accounting.epsilon(ledger, 0.0)
  assert loss_distribution <= 1.0001 * by_rdp <= 1.0001 * basic  # its grid rounds each release up
  assert loss_distribution >= 0.5 * by_rdp  # a count that is dropped would show
  assert accounting.epsilon(ledger, 0.0, accountant="pld") <= basic


def test_free_releases_cost_nothing():
  free = [
    RandomizedResponse(1.0, 3),
    PureRelease(0.0),
    ConcentratedRelease(0.0),
    LaplaceSum(1.0, 1.0),
  ]
  samplings = [PoissonSampling(1.0)] * 3 + [PoissonSampling(0.0)]
  ledger = Ledger().extend((Round(s, query), 5) for s, query in zip(samplings, free, strict=True))
  assert accounting.epsilon(ledger, 0.0) == 0.0
  without_zcdp = Ledger(
    tuple(e for e in ledger.entries if not isinstance(e[0].query, ConcentratedRelease))
  )
  assert accounting.epsilon(without_zcdp, 1e-9, accountant="pld") == 0.0


CENTRAL_TYPES = [kind for kind, analysis in registration._QUERIES.items() if analysis.is_central]


@pytest.mark.parametrize("central", CENTRAL_TYPES, ids=lambda kind: kind.__name__)
def test_a_subclass_of_a_central_query_is_not_amplified(central):
  """Its noise may be its records'; to be amplified takes an entry of its own."""
  subclass = type(central.__name__, (central,), {})
  example = object.__new__(subclass)
  assert dominating_pairs.is_central(object.__new__(central))
  assert not dominating_pairs.is_central(example)


@pytest.mark.parametrize("parameters", [(math.nan, 1.0), (0.5, math.nan), (1.0, -1.0)])
def test_an_analysis_that_gives_no_number_is_refused(parameters):
  with pytest.raises(
    ValueError, match="Expected parameters of Poisson-sampled Gaussian that are numbers >= 0"
  ):
    composition.compose_pairs([(DominatingPair(gaussian.GAUSSIAN, parameters), 1)])


def test_divergences_of_no_number_are_no_number():
  orders = np.array([2.0, 3.5])
  with pytest.raises(FloatingPointError):
    poisson_gaussian.rdp_of_pairs(np.array([math.nan]), np.array([1.0]), orders)
  assert np.isnan(
    fixed_size_gaussian.rdp_fixed_size_gaussian(np.array([math.nan]), np.array([1.0]), orders)
  ).all()
