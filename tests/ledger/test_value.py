"""The ledger as a value forgets nothing and counts nothing twice."""

import collections
import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdp.events import (
  BallsInBins,
  GaussianSum,
  LocalRelease,
  MinSeparationSampling,
  PoissonSampling,
  Round,
  ShuffledBatches,
)
from jdp.guarantees import PureDP
from jdp.ledger import Ledger, subsampled_gaussian, value
from tests.helpers.ledgers.example_events import EVENTS

STACKED = dataclasses.replace(EVENTS[0], number=np.arange(2))

hypothesis = settings(max_examples=60, derandomize=True, deadline=None, database=None)


@hypothesis
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 5)), max_size=12))
def test_append_is_a_list_that_is_run_length_encoded(entries):
  ledger, plain = Ledger(), []
  for event, count in entries:
    longer = ledger.append(event, count=count)
    assert list(ledger) == plain  # the old value is unchanged
    ledger, plain = longer, plain + [event] * count
  assert list(ledger) == plain
  assert len(ledger) == len(plain)
  assert all(count > 0 for _, count in ledger.entries)
  assert all(a[0] != b[0] for a, b in zip(ledger.entries, ledger.entries[1:], strict=False))


def test_a_million_rounds_are_one_entry():
  ledger = subsampled_gaussian(0.01, 1.1, 10**6)
  assert ledger.entries == ((Round(PoissonSampling(0.01), GaussianSum(1.0, 1.1)), 10**6),)


def test_a_sum_of_ledgers_is_one_after_the_other():
  first = Ledger().extend(zip(EVENTS[:3], (1, 2, 3), strict=True))
  second = Ledger().append(EVENTS[2], count=4).append(EVENTS[0])
  assert list(first + second) == list(first) + list(second)
  assert [count for _, count in (first + second).entries] == [1, 2, 7, 1]
  assert first + Ledger() == Ledger() + first == first
  with pytest.raises(TypeError):
    first + second.entries


@hypothesis
@given(
  st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 4)), max_size=8),
  *[st.integers(0, 9)] * 2,
)
def test_rounds_are_a_slice(entries, start, stop):
  ledger = Ledger().extend(entries)
  opens = Round if any(isinstance(event, Round) for event in ledger) else object
  counts, numbers, stretch, parted = collections.Counter(), [], [0], False
  for opening, group in itertools.groupby(ledger, lambda event: isinstance(event, opens)):
    events = list(group)
    if opening:
      stretch = []
      for event in events:
        against = event.observer if opens is Round else None
        stretch.append(counts[against])
        counts[against] += 1
      numbers += stretch
    else:
      parted |= len(events) > 1 and any(min(stretch) < n <= max(stretch) for n in (start, stop))
      numbers += [max(stretch)] * len(events)
  kept = [event for event, n in zip(ledger, numbers, strict=True) if start <= n < stop]
  # Each of EVENTS has a plan of its own, so rounds that repeat a number are of several runs.
  several = start and any(is_numbered(event) and list(ledger).count(event) > 1 for event in kept)
  uneven = len(set(counts.values())) > 1 and (start > 0 or stop < max(counts.values()))
  if parted or several or uneven:
    with pytest.raises(ValueError, match=r"Expected (start|no start|as many rounds)"):
      ledger.rounds(start, stop)
    return
  assert list(map(started, ledger.rounds(start, stop))) == list(map(started, kept))


def is_numbered(event):
  """Whether the event states which round of its run it is."""
  if not isinstance(event, Round):
    return False
  parts = getattr(event.query, "parts", (event.query,))
  numbers = [getattr(part, "index", None) for part in parts]
  return any(n is not None for n in [*numbers, getattr(event.sampling, "position", None)])


def started(event):
  """The event, as if an epoch began with it."""
  if not isinstance(getattr(event, "sampling", None), ShuffledBatches | BallsInBins):
    return event
  return dataclasses.replace(event, sampling=dataclasses.replace(event.sampling, starts_epoch=True))


def test_a_slice_within_an_epoch_counts_the_epoch():
  def epoch_round(starts, population=10):
    return Round(ShuffledBatches(3, starts, population=population), GaussianSum(1.0, 1.0))

  two_epochs = [epoch_round(True), epoch_round(False), epoch_round(False)] * 2
  ledger = Ledger().extend((event, 1) for event in two_epochs)
  assert ledger.rounds(0, 6) == ledger
  assert ledger.rounds(3, 6) == ledger.rounds(0, 3)
  assert list(ledger.rounds(1, 5)) == [epoch_round(True), *two_epochs[2:5]]
  assert list(ledger.rounds(2, 3)) == [epoch_round(True)]
  with_another = Ledger().append(epoch_round(False, 20), count=2) + Ledger().extend(
    (e, 1) for e in two_epochs[1:]
  )
  assert list(with_another.rounds(1, 3)) == [epoch_round(True, 20), epoch_round(True)]
  assert ledger.rounds(4, 4) == ledger.rounds(9, 12) == Ledger()


def test_rounds_are_counted_against_each_observer():
  models, server = (Round(PoissonSampling(1.0), GaussianSum(1.0, z)) for z in (2.0, 3.0))
  server = dataclasses.replace(server, observer="server")
  by_round = Ledger().extend([(models, 1), (server, 1)] * 4)
  by_type = Ledger().append(models, count=4).append(server, count=4)
  for ledger in (by_round, by_type):
    for event in (models, server):
      assert list(ledger.rounds(1, 4)).count(event) == 3
  with pytest.raises(ValueError, match="Round of round 2 at most, got that of round 3"):
    by_round.rounds(0, 2).append(dataclasses.replace(server, number=3))
  with_prior = Ledger().append(models, count=5) + by_round
  assert with_prior.rounds(0, 9) == with_prior
  for bounds in ((0, 5), (5, 9)):
    with pytest.raises(ValueError, match="got 9 against model and 4 against server"):
      with_prior.rounds(*bounds)
  release = LocalRelease(PureDP(1.0))
  later = Ledger().append(models, count=4).append(server, count=2).append(release, count=4)
  with pytest.raises(ValueError, match="no start or stop within rounds 0 to 3"):
    later.append(server, count=2).rounds(2, 4)


def test_a_numbered_round_may_have_an_event_for_each_observer():
  def numbered(position, observer):
    sampling = MinSeparationSampling(2, 2, 100, position=position)
    return Round(sampling, GaussianSum(1.0, 1.0), "zero_out", observer=observer)

  events = [numbered(n, observer) for n in range(4) for observer in ("model", "server")]
  run = Ledger().extend((event, 1) for event in events)
  assert list(run.rounds(1, 3)) == events[2:6]


def test_rounds_that_were_recorded_before_their_releases_are_not_parted():
  release = LocalRelease(PureDP(1.0))
  ledger = Ledger().append(EVENTS[0], count=4).append(release, count=4).append(EVENTS[0])
  assert list(ledger.rounds(0, 4)).count(release) == 4
  assert list(ledger.rounds(4, 5)) == [EVENTS[0]]
  for bounds in ((0, 3), (1, 4), (2, 5)):
    with pytest.raises(ValueError, match="no start or stop within rounds 0 to 3, got"):
      ledger.rounds(*bounds)


def test_what_comes_before_the_first_round_belongs_to_it():
  ledger = Ledger().append(EVENTS[2]).append(EVENTS[0], count=2)
  assert list(ledger.rounds(0, 1)) == [EVENTS[2], EVENTS[0]]
  assert list(ledger.rounds(1, 2)) == [EVENTS[0]]


@pytest.mark.parametrize("bounds", [(-1, 2), (0, -1), (0.5, 2)])
def test_a_slice_needs_whole_numbers(bounds):
  with pytest.raises(ValueError, match="whole number >= 0"):
    Ledger().rounds(*bounds)


@pytest.mark.parametrize("count", [-1, 1.5, np.nan, "2"])
def test_append_refuses_what_is_no_count(count):
  with pytest.raises(ValueError, match="Expected count to be a whole number"):
    Ledger().append(EVENTS[0], count=count)


@pytest.mark.parametrize("event", [None, 1.0, PureDP(1.0), (EVENTS[0],)])
def test_append_refuses_what_is_no_event(event):
  with pytest.raises(TypeError, match="Expected an event"):
    Ledger().append(event)


def test_append_refuses_events_stacked_twice():
  with pytest.raises(ValueError, match="at most one axis, of rounds"):
    Ledger().append(GaussianSum(jnp.ones((2, 2)), 1.0))


@pytest.mark.parametrize(
  ("entries", "error", "message"),
  [
    ([(EVENTS[0], 1)], TypeError, "Expected entries to be a tuple of .event, count., got list"),
    (None, TypeError, "Expected entries to be a tuple"),
    ((EVENTS[0],), TypeError, "Expected entries .event, count., got Round"),
    (((EVENTS[0], 1, 2),), TypeError, "Expected entries .event, count., got tuple"),
    (((EVENTS[0], -90),), ValueError, "Expected count to be a whole number >= 1, got -90"),
    (((EVENTS[0], 0),), ValueError, "Expected count to be a whole number >= 1, got 0"),
    (((EVENTS[0], 1.0),), ValueError, "Expected count to be a whole number >= 1, got 1.0"),
    (((EVENTS[0], True),), ValueError, "Expected count to be a whole number >= 1, got True"),
    (((EVENTS[0], "3"),), ValueError, "Expected count to be a whole number >= 1, got '3'"),
    (((EVENTS[0].query, 1),), TypeError, "a Round or a LocalRelease, got GaussianSum"),
    (((None, 1),), TypeError, "a Round or a LocalRelease, got NoneType"),
    (((STACKED, 1),), ValueError, "Expected the event of one round, got 2 stacked by a scan"),
  ],
)
def test_a_ledger_made_by_hand_is_checked(entries, error, message):
  """A count of -90 would lower the epsilon of the other events."""
  with pytest.raises(error, match=message):
    Ledger(entries)


def test_a_ledger_made_by_hand_counts_as_one_that_was_appended_to():
  by_hand = Ledger(((EVENTS[0], np.int8(100)), (EVENTS[0], np.int8(100)), (EVENTS[1], 1)))
  assert list(by_hand) == [EVENTS[0]] * 200 + [EVENTS[1]]
  assert len(by_hand) == 201  # 8 bits would overflow


def test_many_appends_look_at_the_new_event_alone(monkeypatch):
  """So their time is in proportion to their number, but for a copy."""
  looked = []
  real = value._check_entry
  monkeypatch.setattr(value, "_check_entry", lambda *entry: looked.append(0) or real(*entry))
  ledger = Ledger()
  for event in EVENTS * 3:
    ledger = ledger.append(event)
  assert len(looked) == len(EVENTS) * 3
