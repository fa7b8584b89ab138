"""Events keep their meaning out of jit and onto disk; the ledger forgets nothing and counts nothing
twice.
"""

import dataclasses
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdp import ledger as ledgers
from jdp.events import (
  EVENT_TYPES,
  NO_NUMBER,
  BallsInBins,
  ConcentratedRelease,
  DiscreteGaussianSum,
  DistributedGaussianSum,
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
  SkellamSum,
  WeightedAverage,
)
from jdp.guarantees import ApproxDP, Observer, PureDP, Relation, SeparatedDP, Unit
from jdp.ledger import DurableLedger, Ledger, load

EVENTS = [
  Round(PoissonSampling(0.1, 1e-13, population=60_000), GaussianSum(1 / 3, 0.7)),
  Round(PoissonSampling(1.0), NonPrivate(), "zero_out", "example", "server"),
  LocalRelease(PureDP(np.pi)),
  LocalRelease(ApproxDP(0.1, 1e-300), max_releases=3),
  LocalRelease(SeparatedDP(8.0, 0.1, unit="user", observer="clients"), max_releases=1),
  Round(FixedSizeSampling(10, 1000), LaplaceSum(1.0, 1 / 3), "replace_one"),
  Round(ShuffledBatches(3, True, population=10), WeightedAverage(1 / 3, 0.1, 5.0)),
  Round(BallsInBins(3, False, 1e-13), RandomizedResponse(0.1, 3)),
  Round(
    PoissonSampling(0.5), GroupedSums((PureRelease(0.1), ConcentratedRelease(1 / 3)), ("a", "b"))
  ),
  Round(PoissonSampling(1.0), DistributedGaussianSum(1 / 3, 0.7, released=False), "zero_out"),
  Round(PoissonSampling(1.0), DiscreteGaussianSum(10.5, 100.0, 2.5, 90, 1000), "zero_out"),
  Round(PoissonSampling(1.0), SkellamSum(10.5, 100.0, 2.5, 90), "zero_out"),
]
numbers = st.floats(0, exclude_min=True, allow_infinity=False)
hypothesis = settings(max_examples=60, derandomize=True, deadline=None, database=None)


def names_inside(event):
  """The types of an event and of the events in it."""
  values = [part for v in vars(event).values() for part in (v if isinstance(v, tuple) else (v,))]
  inner = [names_inside(v) for v in values if type(v) in EVENT_TYPES.values()]
  return {type(event).__name__}.union(*inner)


def test_these_tests_meet_every_type_of_event():
  assert set().union(*map(names_inside, EVENTS)) == set(EVENT_TYPES)


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_a_constant_event_leaves_jit_as_it_is(event):
  assert all(leaf == NO_NUMBER for leaf in jax.tree.leaves(event))
  (left,) = ledgers.unstack(jax.jit(lambda: event)())
  assert left == event  # float64 and all


def test_schedules_leave_a_scan_stacked_and_are_unrolled():
  def step(carry, scale):
    event = Round(PoissonSampling(0.1), GaussianSum(scale, jnp.float32(2) * scale))
    return carry, (event, LocalRelease(PureDP(1.0)))

  scales = jnp.array([1.0, 0.5, 0.5, 0.25])
  _, (stacked, constant) = jax.jit(lambda: jax.lax.scan(step, 0, scales))()
  ledger = Ledger().append(stacked).append(constant)
  expected = [Round(PoissonSampling(0.1), GaussianSum(s, 2 * s)) for s in scales.tolist()]
  assert list(ledger) == expected + [LocalRelease(PureDP(1.0))] * 4
  assert [count for _, count in ledger.entries] == [1, 2, 1, 4]
  assert all(type(e.query.stddev) is float for e in ledgers.unstack(stacked))


def test_float32_values_reach_the_ledger_exactly():
  (event,) = ledgers.unstack(jax.jit(lambda x: GaussianSum(x, 1.0))(jnp.float32(0.1)))
  assert (event.clip_norm, event.stddev) == (float(np.float32(0.1)), 1.0)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: PoissonSampling(1.5), "Expected probability to be a probability"),
    (lambda: PoissonSampling(np.nan), "Expected probability"),
    (lambda: PoissonSampling(0.1, -1e-9), "Expected overflow_probability"),
    (lambda: PoissonSampling(0.1, population=0), "Expected population to be a whole number >= 1"),
    (lambda: GaussianSum(0.0, 1.0), "Expected clip_norm to be a finite number > 0"),
    (lambda: GaussianSum(np.nan, 1.0), "Expected clip_norm"),
    (lambda: GaussianSum(1.0, -1.0), "Expected stddev to be a finite number >= 0"),
    (lambda: GaussianSum(1.0, np.inf), "Expected stddev"),
    (lambda: Round(PoissonSampling(0.1), NonPrivate(), relation="neighbour"), "neighbour"),
    (
      lambda: LocalRelease(PureDP(1.0), max_releases=0),
      "Expected max_releases to be a whole number >= 1",
    ),
    (lambda: LocalRelease(PureDP(1.0), max_releases=1.5), "Expected max_releases"),
  ],
)
def test_an_invalid_event_cannot_be_made(make, message):
  with pytest.raises(ValueError, match=message):
    make()


@pytest.mark.parametrize(
  "values", [(np.nan, 1.0), (1.0, np.nan), (-1.0, 1.0), (1.0, -1.0), (1.0, np.inf)]
)
def test_a_traced_value_is_checked_when_it_reaches_the_ledger(values):
  event = jax.jit(lambda s, z: Round(PoissonSampling(0.1), GaussianSum(s, z)))(*values)
  with pytest.raises(ValueError, match="Expected"):
    Ledger().append(event)


def test_scope_accepts_names_and_keeps_enumerations():
  event = EVENTS[1]
  assert (event.relation, event.unit, event.observer) == (
    Relation.ZERO_OUT,
    Unit.EXAMPLE,
    Observer.SERVER,
  )
  release = EVENTS[4]
  assert (release.relation, release.unit, release.observer) == (
    Relation.REPLACE_ONE,
    Unit.USER,
    Observer.CLIENTS,
  )


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
  ledger = ledgers.subsampled_gaussian(0.01, 1.1, 10**6)
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
  opens = np.array([isinstance(event, Round) for event in ledger], bool)
  number = np.maximum(np.cumsum(opens if opens.any() else np.ones_like(opens)) - 1, 0)
  expected = [started(event) for event, n in zip(ledger, number, strict=True) if start <= n < stop]
  assert [started(event) for event in ledger.rounds(start, stop)] == expected


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


def test_save_and_load_are_inverse(tmp_path):
  ledger = Ledger().extend((event, count) for count, event in enumerate(EVENTS, 1))
  ledger.save(tmp_path / "ledger")
  assert load(tmp_path / "ledger") == ledger
  assert os.listdir(tmp_path) == ["ledger"]


@hypothesis
@given(numbers, numbers, st.floats(0, 1))
def test_floats_are_saved_exactly(tmp_path_factory, clip_norm, stddev, probability):
  path = tmp_path_factory.getbasetemp() / "floats"
  ledger = Ledger().append(Round(PoissonSampling(probability), GaussianSum(clip_norm, stddev)))
  ledger.save(path)
  assert load(path) == ledger


def test_numpy_scalars_are_saved_exactly(tmp_path):
  release = LocalRelease(PureDP(np.float32(0.1)), max_releases=np.int64(3))
  ledger = (
    Ledger()
    .append(Round(PoissonSampling(np.float32(0.1)), GaussianSum(np.float64(0.1), 1)))
    .append(release)
  )
  ledger.save(tmp_path / "ledger")
  loaded, release = load(tmp_path / "ledger")
  assert loaded == Round(PoissonSampling(float(np.float32(0.1))), GaussianSum(0.1, 1))
  assert release == LocalRelease(PureDP(float(np.float32(0.1))), 3)


def durable(path, rounds, run="run"):
  """A durable ledger to which the given rounds were appended, closed."""
  ledger = DurableLedger(path, run)
  ledger.append(0, *rounds)
  ledger.close()
  return ledger


def test_a_durable_ledger_resumes_where_it_was(tmp_path):
  path = tmp_path / "ledger"
  rounds = [[EVENTS[0], EVENTS[2]], [], [EVENTS[1]]]
  assert durable(path, []).last_round == -1
  durable(path, rounds)
  again = DurableLedger(path, "run")
  assert again.last_round == 2
  again.append(3, [EVENTS[0]])
  again.close()
  assert list(again.ledger) == list(load(path)) == [EVENTS[0], EVENTS[2], EVENTS[1], EVENTS[0]]


def test_what_came_before_a_run_is_on_disk_first_and_is_no_round(tmp_path, monkeypatch):
  path, prior = tmp_path / "ledger", Ledger().append(EVENTS[0], count=3).append(EVENTS[1])
  monkeypatch.setattr(os, "fsync", lambda descriptor: None)
  DurableLedger(path, "run", prior).close()
  assert load(path) == prior
  whole = path.read_bytes()
  for cut in range(0, len(whole), 5):  # torn while it was written, in the header or after
    path.write_bytes(whole[:cut])
    DurableLedger(path, "run", prior).close()
    assert path.read_bytes() == whole
  for first in (0, 1):
    ledger = DurableLedger(path, "run", prior)
    assert ledger.last_round == first - 1
    ledger.append(first, [EVENTS[1]])
    ledger.close()
  assert ledger.ledger == load(path) == prior.append(EVENTS[1], count=2)


def test_a_run_goes_on_with_what_it_was_begun_with(tmp_path):
  path, prior = tmp_path / "ledger", Ledger().append(EVENTS[0])
  for begun, other in ((prior, Ledger()), (prior, prior.append(EVENTS[0])), (Ledger(), prior)):
    path.unlink(missing_ok=True)
    ledger = DurableLedger(path, "run", begun)
    ledger.append(0, [EVENTS[0]])
    ledger.close()
    with pytest.raises(
      ValueError, match=f"begin with the {len(other)} earlier releases given, got others"
    ):
      DurableLedger(path, "run", other)
    assert load(path) == begun.append(EVENTS[0])


def test_the_caps_of_two_runs_are_not_taken_for_one(tmp_path):
  capped = LocalRelease(PureDP(1.0), max_releases=3)
  ledger = DurableLedger(tmp_path / "ledger", "run", Ledger().append(capped, count=10))
  with pytest.raises(ValueError, match="local releases with max_releases in one of two ledgers"):
    ledger.append(0, [capped])
  ledger.append(0, [EVENTS[0]])
  ledger.close()
  assert load(tmp_path / "ledger") == Ledger().append(capped, count=10).append(EVENTS[0])


def test_a_round_is_taken_once(tmp_path):
  path = tmp_path / "ledger"
  size = [durable(path, [[event] for event in EVENTS]) and path.stat().st_size]
  for first in range(len(EVENTS)):
    ledger = DurableLedger(path, "run")
    ledger.append(first, *([event] for event in EVENTS[first:]))
    ledger.close()
    size.append(path.stat().st_size)
  assert list(load(path)) == EVENTS
  assert len(set(size)) == 1


@pytest.mark.parametrize(
  ("first", "rounds", "message"),
  [
    (3, [[EVENTS[0]]], "Expected round 2 next .* got round 3"),
    (-1, [[EVENTS[0]]], "Expected round 2 next .* got round -1"),
    (1, [[EVENTS[2]]], "Expected round 1 to repeat"),
    (1, [[EVENTS[1], EVENTS[1]]], "Expected round 1 to repeat"),
    (0, [[EVENTS[0]], [], [EVENTS[0]]], "Expected round 1 to repeat"),
    (2, [[EVENTS[0]], [GaussianSum(jnp.float32(-1), 1.0)]], "Expected clip_norm"),
  ],
)
def test_a_refused_append_records_nothing(tmp_path, first, rounds, message):
  path = tmp_path / "ledger"
  durable(path, [[EVENTS[0]], [EVENTS[1]]])
  ledger = DurableLedger(path, "run")
  with pytest.raises(ValueError, match=message):
    ledger.append(first, *rounds)
  ledger.close()
  assert ledger.last_round == 1
  assert list(ledger.ledger) == list(load(path)) == EVENTS[:2]


def test_append_returns_after_one_fsync_of_everything(tmp_path, monkeypatch):
  path = tmp_path / "ledger"
  ledger = DurableLedger(path, "run")
  on_disk = []
  monkeypatch.setattr(os, "fsync", lambda descriptor: on_disk.append(path.read_bytes()))
  ledger.append(0, [EVENTS[0]], [EVENTS[1], EVENTS[2]], [EVENTS[3]])
  assert len(on_disk) == 1
  assert on_disk[0] == path.read_bytes()
  assert list(load(path)) == EVENTS[:4]
  ledger.append(2, [EVENTS[3]])  # nothing new: nothing to write
  assert len(on_disk) == 1
  ledger.close()


def test_a_file_has_one_writer_at_a_time(tmp_path):
  path = tmp_path / "ledger"
  ledger = DurableLedger(path, "run")
  with pytest.raises(BlockingIOError, match=r"Expected to be the only writer of .*ledger"):
    DurableLedger(path, "run")
  ledger.append(0, [EVENTS[0]])  # the one that came first goes on
  ledger.close()
  durable(path, [[EVENTS[0]], [EVENTS[1]]])
  assert list(load(path)) == EVENTS[:2]


def test_a_refused_file_is_not_held(tmp_path):
  path = tmp_path / "ledger"
  durable(path, [], run="other run")
  with pytest.raises(ValueError, match="one of run 'other run'"):
    DurableLedger(path, "run")
  durable(path, [[EVENTS[0]]], run="other run")


def test_new_names_are_brought_to_disk(tmp_path, monkeypatch):
  synced = []
  monkeypatch.setattr(
    os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
  )
  durable(tmp_path / "ledger", [])
  assert synced == [str(tmp_path / "ledger"), str(tmp_path)]
  Ledger().save(tmp_path / "saved")
  assert synced[2:] == [str(tmp_path / "saved.tmp"), str(tmp_path)]


def test_a_round_that_could_not_be_written_is_not_taken_as_recorded(tmp_path, monkeypatch):
  def full(descriptor):
    raise OSError("No space left on device")

  ledger = DurableLedger(tmp_path / "ledger", "run")
  monkeypatch.setattr(os, "fsync", full)
  with pytest.raises(OSError, match="No space"):
    ledger.append(0, [EVENTS[0]])
  assert ledger.last_round == -1
  ledger.close()


def test_a_line_torn_at_any_byte_is_repaired_and_what_came_before_is_readable(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # hundreds of files
  path = tmp_path / "ledger"
  durable(path, [[EVENTS[0]], [EVENTS[1]], [EVENTS[4]]])
  whole = path.read_bytes()
  for cut in range(whole[:-1].rindex(b"\n") + 1, len(whole)):
    path.write_bytes(whole[:cut])
    assert list(load(path)) == EVENTS[:2], cut
    ledger = DurableLedger(path, "run")
    assert ledger.last_round == 1
    ledger.append(2, [EVENTS[4]])
    ledger.close()
    assert path.read_bytes() == whole


def test_a_header_torn_at_any_byte_is_repaired(tmp_path):
  path = tmp_path / "ledger"
  durable(path, [])
  header = path.read_bytes()
  for cut in range(0, len(header), 7):
    path.write_bytes(header[:cut])
    with pytest.raises(ValueError, match="without its header"):
      load(path)
    durable(path, [])
    assert path.read_bytes() == header


@pytest.mark.parametrize("line", [0, 1, 2, 3])
def test_a_damaged_line_is_refused_by_its_number(tmp_path, line):
  path = tmp_path / "ledger"
  durable(path, [[event] for event in EVENTS[:3]])
  lines = path.read_bytes().splitlines(keepends=True)
  for place in (0, 9, len(lines[line]) - 2):
    damaged = bytearray(lines[line])
    damaged[place] ^= 1
    path.write_bytes(b"".join([*lines[:line], bytes(damaged), *lines[line + 1 :]]))
    for read in (load, lambda p: DurableLedger(p, "run")):
      with pytest.raises(ValueError, match=f"damaged one at line {line + 1}"):
        read(path)


def test_files_of_others_are_refused_and_left_alone(tmp_path):
  path = tmp_path / "file"
  durable(path, [[EVENTS[0]]], run="other run")
  other = path.read_bytes()
  header, line = other.splitlines(keepends=True)
  strangers = [
    b"a note without an end of line",
    b"a note\n",
    header[:-3],
    header + line + line,
    b"\0" * 100,
  ]
  for content in [other, *strangers]:
    path.write_bytes(content)
    with pytest.raises(ValueError, match="Expected"):
      DurableLedger(path, "run")
    assert path.read_bytes() == content
  path.write_bytes(header + line + line)
  with pytest.raises(ValueError, match="Expected round 1 in line 3"):
    DurableLedger(path, "other run")


@pytest.mark.parametrize(
  ("record", "message"),
  [
    ({"format": "jdp-ledger", "version": 2}, "of version 1"),
    ({"format": "other", "version": 1}, "Expected a jdp-ledger file"),
  ],
)
def test_another_format_is_refused(tmp_path, record, message):
  path = pathlib.Path(tmp_path / "ledger")
  path.write_text(ledgers._line(record))
  with pytest.raises(ValueError, match=message):
    load(path)


def test_an_unknown_type_of_event_is_refused():
  with pytest.raises(ValueError, match="'FutureEvent'"):
    ledgers.from_json({"type": "FutureEvent"})
