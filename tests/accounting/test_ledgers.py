"""What an epsilon of a ledger is about: which events, seen by whom, under which relation, and how
often.
"""

import itertools
import math

import numpy as np
import pytest

from jdp import accounting
from jdp.accounting import composed_rounds, seen
from jdp.events import (
  BallsInBins,
  ConcentratedRelease,
  FixedSizeSampling,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  LocalRelease,
  NonPrivate,
  PoissonSampling,
  PureRelease,
  RandomizedResponse,
  Round,
  ShuffledBatches,
  WeightedAverage,
)
from jdp.guarantees import ApproxDP, PureDP, SeparatedDP
from jdp.ledger import Ledger, subsampled_gaussian

SAMPLED = Round(PoissonSampling(0.02), GaussianSum(clip_norm=2.0, stddev=2.4))
WHOLE = Round(PoissonSampling(1.0), GaussianSum(clip_norm=1.0, stddev=6.0))
OVERFLOWING = Round(PoissonSampling(0.02, overflow_probability=1e-10), GaussianSum(1.0, 1.2))
LOCAL = LocalRelease(PureDP(0.5))
EVENTS = [
  *(SAMPLED, WHOLE, OVERFLOWING, LOCAL),
  *(LocalRelease(ApproxDP(0.5, 1e-9)), LocalRelease(SeparatedDP(2.0, 1.0))),
  Round(FixedSizeSampling(10, 500), GaussianSum(1.0, 3.0), "replace_one"),
  *(
    Round(kind(5, starts_epoch=True), GaussianSum(1.0, 3.0), "zero_out")
    for kind in (ShuffledBatches, BallsInBins)
  ),
  *(
    Round(PoissonSampling(0.1), query)
    for query in (LaplaceSum(1.0, 2.0), RandomizedResponse(0.5, 4))
  ),
  *(Round(PoissonSampling(0.1), query) for query in (PureRelease(0.5), ConcentratedRelease(0.05))),
  Round(PoissonSampling(0.1), WeightedAverage(1.0, 0.5, 10.0)),
  Round(
    PoissonSampling(0.1), GroupedSums((GaussianSum(1.0, 3.0), GaussianSum(2.0, 5.0)), ("a", "b"))
  ),
]


def ledger_of(*events):
  return Ledger().extend((event, 1) for event in events)


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_ten_events_are_one_event_with_count_ten(event):
  ten_events, count_ten = ledger_of(*[event] * 10), Ledger().append(event, count=10)
  epsilon = accounting.epsilon(count_ten, 1e-5)
  assert accounting.epsilon(ten_events, 1e-5) == epsilon
  assert epsilon > accounting.epsilon(Ledger().append(event), 1e-5) > 0


def test_order_does_not_matter_and_equal_events_are_counted_together():
  alternating = ledger_of(*[SAMPLED, WHOLE] * 20)
  grouped = Ledger().append(WHOLE, count=20).append(SAMPLED, count=20)
  assert len(alternating.entries) == 40
  np.testing.assert_allclose(
    accounting.epsilon(alternating, 1e-5), accounting.epsilon(grouped, 1e-5), rtol=1e-12
  )
  composed = composed_rounds.compose_rounds(
    seen.events_seen(alternating.entries, None, None).rounds, SAMPLED.relation
  )
  ((parameters, counts),) = composed.groups.values()
  assert len(parameters) == 2
  assert counts.tolist() == [20.0, 20.0]


def test_only_the_ratio_of_noise_to_clip_norm_counts():
  scaled = Round(PoissonSampling(0.02), GaussianSum(clip_norm=20.0, stddev=24.0))
  np.testing.assert_allclose(
    accounting.epsilon(ledger_of(scaled), 1e-5),
    accounting.epsilon(subsampled_gaussian(0.02, 1.2, 1), 1e-5),
    rtol=1e-12,
  )


def test_an_empty_ledger_costs_nothing():
  assert accounting.epsilon(Ledger(), 0.0) == accounting.delta(Ledger(), 0.0) == 0.0
  assert accounting.epsilon(Ledger(), 1e-5, observer="model", relation="replace_one") == 0.0


@pytest.mark.parametrize("accountant", ["rdp", "moments", "pld"])
def test_non_private_rounds_cost_everything(accountant):
  released = Round(PoissonSampling(1e-6), NonPrivate())
  assert accounting.epsilon(ledger_of(SAMPLED, released), 1e-5, accountant=accountant) == math.inf
  assert accounting.delta(ledger_of(SAMPLED, released), 5.0, accountant=accountant) == 1.0
  assert (
    accounting.epsilon(ledger_of(released), 1e-5, accountant=accountant, relation="replace_one")
    == math.inf
  )


def test_what_was_not_protected_is_infinite_under_the_relation_of_what_was():
  clear = Round(FixedSizeSampling(1, 10), NonPrivate(), relation="replace_one")
  for relation in (None, "add_remove", "zero_out"):
    assert accounting.epsilon(ledger_of(clear, SAMPLED), 1e-5, relation=relation) == math.inf
  assert accounting.epsilon(ledger_of(clear), 1e-5) == math.inf


def test_relations():
  poisson, whole = ledger_of(SAMPLED), ledger_of(WHOLE)
  assert accounting.epsilon(poisson, 1e-5, relation="zero_out") == accounting.epsilon(poisson, 1e-5)
  assert accounting.epsilon(whole, 1e-5, relation="replace_one") > accounting.epsilon(whole, 1e-5)
  replaced = accounting.epsilon(poisson, 1e-5, relation="replace_one")
  assert replaced > accounting.epsilon(poisson, 1e-5)
  declared = Round(SAMPLED.sampling, SAMPLED.query, relation="replace_one")
  assert accounting.epsilon(ledger_of(declared), 1e-5) == replaced
  assert accounting.epsilon(ledger_of(declared), 1e-5, relation="add_remove") == accounting.epsilon(
    poisson, 1e-5
  )


def test_an_epsilon_holds_for_one_relation_observer_and_unit():
  other = Round(WHOLE.sampling, WHOLE.query, relation="replace_one")
  with pytest.raises(
    ValueError, match="relation to be given, as the ledger has add_remove, replace_one"
  ):
    accounting.epsilon(ledger_of(WHOLE, other), 1e-5)
  both = accounting.epsilon(ledger_of(WHOLE, other), 1e-5, relation="replace_one")
  assert both == accounting.epsilon(Ledger().append(WHOLE, count=2), 1e-5, relation="replace_one")

  seen_by_server = Round(WHOLE.sampling, WHOLE.query, observer="server")
  ledger = ledger_of(SAMPLED, seen_by_server)
  with pytest.raises(ValueError, match="observer to be given, as the ledger has model, server"):
    accounting.epsilon(ledger, 1e-5)
  assert accounting.epsilon(ledger, 1e-5, observer="server") == accounting.epsilon(
    ledger_of(WHOLE), 1e-5
  )
  assert accounting.delta(ledger, 0.5, observer="model") == accounting.delta(
    ledger_of(SAMPLED), 0.5
  )
  with pytest.raises(ValueError, match="one of the ledger's, model, server, got clients"):
    accounting.epsilon(ledger, 1e-5, observer="clients")

  with pytest.raises(ValueError, match="protect one unit, got example, user"):
    accounting.epsilon(ledger_of(SAMPLED, Round(WHOLE.sampling, WHOLE.query, unit="example")), 1e-5)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"delta": -0.1}, "delta to be a probability"),
    ({"delta": math.nan}, "delta to be a probability"),
    ({"accountant": "gdp"}, "accountant to be one of tightest, rdp, moments, pld, got 'gdp'"),
    ({"relation": "swap"}, "relation to be one of add_remove, replace_one, zero_out, got 'swap'"),
    ({"observer": "me"}, "observer to be one of server, clients, model, got 'me'"),
  ],
)
def test_refuses_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    accounting.epsilon(ledger_of(SAMPLED), **{"delta": 1e-5, **arguments})


@pytest.mark.parametrize("epsilon", [-1.0, math.inf, math.nan])
def test_delta_refuses_epsilon(epsilon):
  with pytest.raises(ValueError, match="epsilon to be a finite number >= 0"):
    accounting.delta(ledger_of(SAMPLED), epsilon)


@pytest.mark.parametrize(
  ("overflow", "accountant"),
  [
    *((1e-14, "rdp"), (1e-9, "rdp"), (3e-8, "rdp"), (1e-9, "moments")),
    pytest.param(1e-9, "pld", marks=pytest.mark.slow),
  ],
)
def test_overflow_takes_its_share_of_delta(overflow, accountant):
  delta = 1e-5
  plain = Ledger().append(SAMPLED, count=50)
  overflowing = Round(PoissonSampling(0.02, overflow_probability=overflow), SAMPLED.query)
  epsilon = accounting.epsilon(Ledger().append(overflowing, count=50), delta, accountant=accountant)

  def needed(epsilon):
    surcharge = 50 * overflow * (1 + math.exp(epsilon))
    return accounting.delta(plain, epsilon, accountant=accountant) + surcharge

  assert accounting.epsilon(plain, delta, accountant=accountant) < epsilon < math.inf
  assert needed(epsilon) <= 1.001 * delta
  assert needed(0.999 * epsilon) > delta
  np.testing.assert_allclose(
    accounting.delta(Ledger().append(overflowing, count=50), epsilon, accountant=accountant),
    needed(epsilon),
    rtol=1e-12,
  )


@pytest.mark.slow
def test_overflow_can_use_up_delta():
  assert accounting.epsilon(Ledger().append(OVERFLOWING, count=10**5), 1e-5) == math.inf
  run = Ledger().append(OVERFLOWING, count=10**5)
  assert accounting.delta(run, 50.0, accountant="rdp") == 1.0
  assert 0.9 < accounting.delta(run, 50.0) < 1.0


def test_local_releases_add_up():
  ledger = Ledger().append(LOCAL, count=3).append(LocalRelease(PureDP(2.0)), count=2)
  assert accounting.local_guarantee(ledger) == PureDP(5.5)
  assert (
    accounting.epsilon(ledger, 0.0)
    == accounting.epsilon(ledger, 0.0, relation="replace_one")
    == 5.5
  )
  assert accounting.delta(ledger, 5.5) == 0.0
  # covers no local release: basic composition
  assert accounting.delta(ledger, 5.4, accountant="moments") == 1.0
  with pytest.raises(
    ValueError,
    match="Expected relation replace_one, which the local releases state, got add_remove",
  ):
    accounting.epsilon(ledger, 1e-5, relation="add_remove")


def test_a_unit_makes_no_more_releases_than_its_cap():
  values = [0.5, 3.0, 1.0, 3.0, 0.1]
  for cap in range(1, 7):
    ledger = ledger_of(*(LocalRelease(PureDP(value), max_releases=cap) for value in values))
    worst = max(
      sum(chosen) for n in range(min(cap, 5) + 1) for chosen in itertools.combinations(values, n)
    )
    np.testing.assert_allclose(accounting.local_guarantee(ledger).epsilon, worst, rtol=1e-15)
  with pytest.raises(ValueError, match="one participation cap, got max_releases"):
    accounting.epsilon(ledger_of(LocalRelease(PureDP(1.0), 2), LocalRelease(PureDP(1.0), 3)), 1e-5)


def test_capped_releases_are_bounded_part_by_part():
  separated = ledger_of(
    LocalRelease(SeparatedDP(8.0, 1.0), 1), LocalRelease(SeparatedDP(5.0, 2.0), 1)
  )
  assert accounting.local_guarantee(separated) == SeparatedDP(8.0, 2.0)
  approximate = ledger_of(
    LocalRelease(ApproxDP(1.0, 1e-7), 1), LocalRelease(ApproxDP(2.0, 1e-8), 1)
  )
  assert accounting.local_guarantee(approximate) == ApproxDP(2.0, 1e-7)
  assert accounting.epsilon(approximate, 1e-7) == 2.0
  assert accounting.local_guarantee(
    Ledger().append(LocalRelease(ApproxDP(1.0, 0.4), 5), count=9)
  ) == ApproxDP(5.0, 1.0)
  assert accounting.epsilon(approximate, 0.9e-7) == math.inf


def test_local_guarantee_is_for_one_observer():
  to_clients = LocalRelease(PureDP(1.0, observer="clients"))
  ledger = Ledger().append(SAMPLED, count=9).append(LOCAL, count=4)
  assert accounting.local_guarantee(ledger) == PureDP(2.0)
  assert accounting.epsilon(ledger, 0.0, observer="server") == 2.0
  assert accounting.local_guarantee(ledger.append(to_clients), observer="clients") == PureDP(
    1.0, observer="clients"
  )
  with pytest.raises(ValueError, match="observer to be given, as the ledger has clients, server"):
    accounting.local_guarantee(ledger.append(to_clients))
  with pytest.raises(ValueError, match="Expected a ledger with local releases"):
    accounting.local_guarantee(ledger_of(SAMPLED))
