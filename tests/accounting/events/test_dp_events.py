"""Ledgers and dp_accounting's events say the same of each other, or refuse by name."""

import math

import dp_accounting as dp
import pytest
from dp_accounting import rdp

from jdp import accounting
from jdp.accounting.dp_events import from_dp_event, to_dp_event
from jdp.accounting.float_noise import gaussian_cut
from jdp.events import (
  BallsInBins,
  ConcentratedRelease,
  CorrelatedGaussianSum,
  CyclicPoissonSampling,
  FixedSizeSampling,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  LocalRelease,
  MinSeparationSampling,
  NonPrivate,
  PoissonSampling,
  PureRelease,
  RandomizedResponse,
  Round,
  ShuffledBatches,
  WeightedAverage,
)
from jdp.guarantees import ApproxDP, PureDP
from jdp.ledger import Ledger, correlated_gaussian

DELTA = 1e-5
RELATIONS = {
  "add_remove": dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
  "zero_out": dp.NeighboringRelation.REPLACE_SPECIAL,
  "replace_one": dp.NeighboringRelation.REPLACE_ONE,
}
_PURE = RandomizedResponse, PureRelease
ORDERS = [1.5, 1.75, 2.5, 3.5, *range(2, 64), 80, 128, 256]
GROUPED = GroupedSums(
  (GaussianSum(1.0, 2.0), GroupedSums((GaussianSum(0.5, 1.5),), ("b",))), ("a", "c")
)


def rounds(sampling, query, count, relation="add_remove"):
  return Ledger().append(Round(sampling, query, relation), count=count)


def epochs(relation, *, keeps_partial=False):
  """Ten epochs of three rounds."""
  starts = [
    Round(ShuffledBatches(3, n == 0, keeps_partial), GaussianSum(1.0, 10.0), relation)
    for n in range(3)
  ]
  return Ledger().extend((event, 1) for event in starts * 10)


CORRELATED = CorrelatedGaussianSum(0.5, 4.0, "a strategy", 12, 4, 3, 4.5, 4, 1.25, 0)

LEDGERS = [
  rounds(PoissonSampling(0.01), GaussianSum(0.5, 0.6), 1000),
  rounds(PoissonSampling(0.01), GROUPED, 100)
  + rounds(PoissonSampling(0.1), GaussianSum(2.0, 8.0), 10),
  rounds(PoissonSampling(0.2), WeightedAverage(1.0, 0.5, 8.0), 20, "zero_out"),
  rounds(PoissonSampling(1.0), LaplaceSum(2.0, 40.0), 10)
  + rounds(PoissonSampling(1.0), ConcentratedRelease(0.01), 5),
  rounds(FixedSizeSampling(100, 10_000), GaussianSum(1.0, 2.0), 1000, "replace_one"),
  rounds(PoissonSampling(1.0), RandomizedResponse(0.5, 4), 3, "replace_one"),
  rounds(PoissonSampling(1.0), PureRelease(0.3), 5, "replace_one"),
  epochs("zero_out"),
  epochs("replace_one"),
  epochs("add_remove"),
  epochs("add_remove", keeps_partial=True),
  rounds(BallsInBins(5, True), GaussianSum(1.0, 4.0), 7),
  rounds(MinSeparationSampling(3, 2, 20), GaussianSum(1.0, 4.0), 7, "zero_out"),
  rounds(CyclicPoissonSampling(3, 0.1, 20, by_identity=True), GaussianSum(1.0, 1.0), 70),
  correlated_gaussian(CORRELATED, MinSeparationSampling(4, 3, 20), relation="replace_one"),
  correlated_gaussian(CORRELATED, CyclicPoissonSampling(4, 0.1, 20, by_identity=True)),
  Ledger().append(LocalRelease(PureDP(0.2), max_releases=4), count=100),
]


@pytest.mark.parametrize("ledger", LEDGERS)
def test_dp_accounting_finds_the_epsilon_of_the_ledger(ledger):
  exported = to_dp_event(ledger)
  accountant = rdp.RdpAccountant(ORDERS, RELATIONS[ledger.entries[0][0].relation])
  accountant.compose(exported.event)
  theirs, ours = accountant.get_epsilon(DELTA), accounting.epsilon(ledger, DELTA, accountant="rdp")
  # Ours minimises over more orders, and over basic composition too, which is better where all is
  # pure. Of fixed-size samples dp_accounting interpolates divergences between whole orders by
  # another rule.
  assert ours <= theirs * 1.001
  pure = all(isinstance(e, LocalRelease) or isinstance(e.query, _PURE) for e, _ in ledger.entries)
  assert theirs <= ours * (math.inf if pure else 1.02)
  assert exported.overflow_probability == 0


GAUSSIAN, LAPLACE = dp.GaussianDpEvent(1.3), dp.LaplaceDpEvent(4.0)


def composed(*events):
  return dp.ComposedDpEvent(list(events))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
  "event",
  [
    composed(),
    composed(
      dp.SelfComposedDpEvent(GAUSSIAN, 10), LAPLACE, dp.ZCDpEvent(0.1), dp.NonPrivateDpEvent()
    ),
    composed(GAUSSIAN, LAPLACE, GAUSSIAN),
  ],
)
def test_events_come_back_equal(event, relation):
  assert to_dp_event(from_dp_event(event, relation=relation), relation=relation).event == event


@pytest.mark.parametrize("shape", [0.5, math.inf])
def test_the_best_of_runs_comes_back_equal(shape):
  run = composed(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, GAUSSIAN), 20))
  event = composed(dp.dp_event.RepeatAndSelectDpEvent(run, 7.0, shape), GAUSSIAN)
  assert to_dp_event(from_dp_event(event, relation="add_remove")).event == event
  bins = accounting.best_of_runs(rounds(BallsInBins(2, True), GaussianSum(1, 1), 2), mean_runs=3.0)
  with pytest.raises(ValueError, match="charged one by one"):
    to_dp_event(Ledger().append(bins))


@pytest.mark.parametrize(
  ("event", "relation"),
  [
    (
      composed(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, GAUSSIAN), 1000)),
      "add_remove",
    ),
    (
      composed(
        dp.PoissonSampledDpEvent(0.3, LAPLACE), dp.PoissonSampledDpEvent(0.3, dp.ZCDpEvent(0.1))
      ),
      "zero_out",
    ),
    (composed(dp.SampledWithoutReplacementDpEvent(100, 7, GAUSSIAN)), "replace_one"),
    (composed(dp.RandomizedResponseDpEvent(0.25, 7)), "replace_one"),
  ],
)
def test_sampled_events_come_back_equal(event, relation):
  assert to_dp_event(from_dp_event(event, relation=relation)).event == event


@pytest.mark.parametrize("relation", ["add_remove", "zero_out"])
def test_ledgers_come_back_equal(relation):
  queries = GaussianSum(1.0, 1.3), LaplaceSum(1.0, 4.0), ConcentratedRelease(0.1), NonPrivate()
  ledger = Ledger().extend(
    (Round(PoissonSampling(q), query, relation), 3) for q in (0.3, 1.0) for query in queries
  )
  assert from_dp_event(to_dp_event(ledger).event, relation=relation) == ledger


def test_compositions_are_flattened_and_several_events_of_a_sample_are_groups():
  inner = composed(GAUSSIAN, dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 2))
  event = dp.SelfComposedDpEvent(
    composed(dp.PoissonSampledDpEvent(0.1, inner), dp.NoOpDpEvent()), 5
  )
  ledger = from_dp_event(event, relation="add_remove", unit="example", observer="server")
  pair = GroupedSums((GaussianSum(1.0, 2.0),) * 2, ("0", "1"))
  query = GroupedSums((GaussianSum(1.0, 1.3), pair), ("0", "1"))
  assert ledger.entries == (
    (Round(PoissonSampling(0.1), query, "add_remove", "example", "server"), 5),
  )


def test_overflows_are_handed_on():
  ledger = rounds(PoissonSampling(0.1, 1e-9), GaussianSum(1.0, 1.0), 10)
  ledger += rounds(BallsInBins(5, True, 1e-8), GaussianSum(1.0, 1.0), 2)
  assert to_dp_event(ledger).overflow_probability == pytest.approx(3e-8, rel=1e-12)


@pytest.mark.slow
def test_the_cut_of_noise_that_ends_is_handed_on():
  """What jdp states is what dp_accounting computes, and the cut, which is most of it here."""
  ledger = rounds(PoissonSampling(1.0), GaussianSum(1.0, 0.1), 3)
  exported = to_dp_event(ledger)
  assert exported.cut == pytest.approx(3 * gaussian_cut(0.1), rel=1e-12)
  accountant = dp.pld.PLDAccountant().compose(exported.event)
  stated = accountant.get_delta(400.0) + exported.cut
  assert exported.cut > 0.5 * stated
  assert accounting.delta(ledger, 400.0) == pytest.approx(stated, rel=0.01)
  assert to_dp_event(LEDGERS[0]).cut == 0


def test_only_what_the_observer_saw_is_exported():
  ledger = LEDGERS[0].append(LocalRelease(PureDP(1.0)))
  assert to_dp_event(ledger, observer="model") == to_dp_event(LEDGERS[0])
  assert len(to_dp_event(ledger, observer="server").event.events) == 1


def test_who_sees_the_reports_sees_no_amplification():
  ledger = rounds(FixedSizeSampling(1, 100), GaussianSum(0.5, 3.0), 2, "replace_one")
  ledger = ledger.append(LocalRelease(PureDP(1.0, unit="user", observer="model")))
  assert to_dp_event(ledger).event.events[0] == dp.SelfComposedDpEvent(dp.GaussianDpEvent(3.0), 2)


@pytest.mark.parametrize(
  ("ledger", "relation", "message"),
  [
    (LEDGERS[0], "replace_one", "add_remove or zero_out for PoissonSampling"),
    (LEDGERS[4], "add_remove", "replace_one or zero_out for FixedSizeSampling"),
    (rounds(PoissonSampling(1.0), PureRelease(0.3), 1), None, "replace_one to export pure"),
    (
      rounds(PoissonSampling(0.5), RandomizedResponse(0.3, 2), 1),
      None,
      "replace_one to export randomized response",
    ),
    (
      rounds(PoissonSampling(1.0), RandomizedResponse(0.5, 2**1000), 1, "replace_one"),
      None,
      "at most 2.53 values to export randomized response",
    ),
    (
      Ledger().append(LocalRelease(ApproxDP(1.0, 1e-6))),
      None,
      "local releases of relation replace_one without delta",
    ),
  ],
)
def test_what_cannot_be_exported_is_refused_by_name(ledger, relation, message):
  with pytest.raises(ValueError, match=message):
    to_dp_event(ledger, relation=relation)


@pytest.mark.parametrize(
  "event",
  [
    dp.UnsupportedDpEvent(),
    dp.SampledWithReplacementDpEvent(10, 2, GAUSSIAN),
    dp.PoissonSampledDpEvent(0.1, dp.PoissonSampledDpEvent(0.1, GAUSSIAN)),
    dp.ZCDpEvent(0.1, 0.2),
  ],
)
def test_what_cannot_be_imported_is_refused_by_name(event):
  with pytest.raises(
    ValueError, match=r"counterpart in jdp\.events, got (Unsupported|Sampled|Poisson|ZCDp)"
  ):
    from_dp_event(event, relation="add_remove")
