"""What ledgers that grow cost: what is known of their first rounds is kept, and changes nothing."""

import gc
import itertools

import pytest

from jdp import accounting
from jdp.accounting import composed_rounds, observed, profiles, seen
from jdp.accounting.families import gaussian
from jdp.events import (
  GaussianSum,
  LaplaceSum,
  LocalRelease,
  NonPrivate,
  PoissonSampling,
  Round,
  ShuffledBatches,
)
from jdp.guarantees import PureDP
from jdp.ledger import Ledger

DELTA = 1e-5
SAMPLING = PoissonSampling(0.01)


def distinct(number, sampling=SAMPLING, **fields):
  return Round(sampling, GaussianSum(1.0, 1.1 + number * 1e-5), **fields)


def ledger_of(events):
  return Ledger().extend((event, 1) for event in events)


def epsilon(ledger):
  return accounting.epsilon(ledger, DELTA, observer="model", accountant="rdp")


def anew(ledger):
  """The ledger, of which nothing is known yet."""
  return Ledger(ledger.entries)


def mixed(number):
  """The events of a round of a run in which most that can happen does."""
  yield distinct(number, PoissonSampling(0.01, overflow_probability=1e-9))
  yield distinct(number % 3, observer="server")
  yield LocalRelease(PureDP(0.1 + number % 2, unit="user"))
  yield distinct(number, ShuffledBatches(10, number % 10 == 0))
  yield Round(PoissonSampling(1.0), LaplaceSum(1.0, 50.0 + number % 7))


@pytest.mark.parametrize(("observer", "number"), [("model", 1), ("model", 200), ("server", 200)])
def test_every_pair_of_a_long_ledger_is_counted(observer, number):
  events = itertools.chain(*map(mixed, range(number)), [distinct(0)] * (number % 9))
  ledger = ledger_of(event for event in events if observer == "model" or event.observer == observer)
  rounds, _, _, relation, known = seen.events_seen(ledger.entries, "zero_out", observer)
  assert known == (observer == "server")
  expected = composed_rounds.compose_rounds(rounds, relation, sample_known=known)
  found = observed.observed(ledger, "zero_out", observer).rounds

  def counted(composed):
    return {
      (family.name, *row): count
      for family, (rows, counts) in composed.groups.items()
      for row, count in zip(rows.tolist(), counts.tolist(), strict=True)
    }

  assert bool(found.parts) == (number > 100)
  assert counted(found) == counted(expected)
  assert found.overflow == pytest.approx(expected.overflow, rel=1e-12)
  orders = (1.5, 2.0, 33.0)
  assert found.rdp(orders) == pytest.approx(expected.rdp(orders), rel=1e-12)
  assert found.max_loss == pytest.approx(expected.max_loss, rel=1e-12)


def test_a_ledger_that_grew_costs_to_the_bit_what_one_made_at_once_does():
  events = [distinct(number) for number in range(600)]
  grown = Ledger()
  for first in range(0, 600, 100):
    grown = grown.extend((event, 1) for event in events[first : first + 100])
    cost = epsilon(grown)
  assert cost == epsilon(anew(grown))
  rounds, _, _, relation, _ = seen.events_seen(grown.entries, None, None)
  least = profiles.rdp_profile(composed_rounds.compose_rounds(rounds, relation)).epsilon(DELTA)
  assert least <= cost <= least * (1 + 4e-5)  # without the search's last point


def test_two_ledgers_that_go_on_from_one_cost_what_their_own_rounds_do():
  begun = ledger_of(map(distinct, range(600)))
  epsilon(begun)
  ledgers = [begun.extend((distinct(n), 1) for n in new) for new in ([1], [0] * 50, [599] * 9)]
  costs = [(epsilon(ledger), epsilon(anew(ledger))) for ledger in ledgers]
  assert all(kept == new for kept, new in costs)
  assert len({kept for kept, _ in costs}) == 3


def test_further_rounds_cost_no_second_look_at_earlier_ones(monkeypatch):
  looked, computed = [], []
  pairs, divergences = composed_rounds.amplified_pairs, gaussian.rdp_of_pairs

  def counted_pairs(*arguments, **options):
    looked.append(1)
    return pairs(*arguments, **options)

  def counted_divergences(q, z, orders):
    computed.append(q.size * orders.size)
    return divergences(q, z, orders)

  monkeypatch.setattr(composed_rounds, "amplified_pairs", counted_pairs)
  monkeypatch.setattr(gaussian, "rdp_of_pairs", counted_divergences)
  ledger = ledger_of(map(distinct, range(1500)))
  epsilon(ledger)
  looked.clear()
  costs = []
  for first in range(1500, 1600, 10):
    ledger = ledger.extend((distinct(number), 1) for number in range(first, first + 10))
    computed.clear()
    epsilon(ledger)
    costs.append(sum(computed))
  # At most 255 rounds are in no block. When one is complete, it is looked at once more.
  assert len(looked) <= 10 * 255 + 256
  # The median: now and then the search meets an order for the first time.
  assert sorted(costs)[5] <= 30 * 256


def test_nothing_is_kept_of_ledgers_that_are_gone():
  gc.collect()
  before = len(observed._ITEMS)
  ledger = ledger_of(map(distinct, range(600)))
  epsilon(ledger)
  assert len(observed._ITEMS) == before + 2
  del ledger
  gc.collect()
  assert len(observed._ITEMS) == before


@pytest.mark.parametrize(
  ("last", "message"),
  [
    ({"adaptive": True}, "got 1 kinds chosen from earlier releases"),
    ({"unit": "example"}, "protect one unit"),
    ({"relation": "zero_out"}, "Expected relation to be given"),
  ],
)
def test_one_round_among_many_that_does_not_fit_is_refused(last, message):
  events = [distinct(number) for number in range(600)]
  events[100] = distinct(100, **last)
  with pytest.raises(ValueError, match=message):
    epsilon(ledger_of(events))


def test_one_round_among_many_without_protection_costs_everything():
  events = [distinct(number) for number in range(600)]
  events[100] = Round(SAMPLING, NonPrivate())
  assert epsilon(ledger_of(events)) == float("inf")
