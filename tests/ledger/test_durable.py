"""A ledger file that grows holds every round once, whenever its writer is killed."""

import contextlib
import os
import pathlib

import jax.numpy as jnp
import pytest

from jdp.events import GaussianSum, LocalRelease
from jdp.guarantees import PureDP
from jdp.ledger import DurableLedger, Ledger, load
from jdp.ledger.append_only_file import AppendOnlyFile
from tests.helpers.ledgers.example_events import EVENTS


def durable(path, rounds, run="run", *, first=0, prior=Ledger()):
  """A durable ledger to which the given rounds were appended, closed."""
  with contextlib.closing(DurableLedger(path, run, prior)) as ledger:
    ledger.append(first, *rounds)
  return ledger


def test_a_durable_ledger_resumes_where_it_was(path):
  rounds = [[EVENTS[0], EVENTS[2]], [], [EVENTS[1]]]
  assert durable(path, []).last_round == -1
  assert durable(path, rounds).last_round == 2
  again = durable(path, [[EVENTS[0]]], first=3)
  assert list(again.ledger) == list(load(path)) == [EVENTS[0], EVENTS[2], EVENTS[1], EVENTS[0]]


def test_what_came_before_a_run_is_on_disk_first_and_is_no_round(path, monkeypatch):
  prior = Ledger().append(EVENTS[0], count=3).append(EVENTS[1])
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


def test_a_run_goes_on_with_what_it_was_begun_with(path):
  prior = Ledger().append(EVENTS[0])
  for begun, other in ((prior, Ledger()), (prior, prior.append(EVENTS[0])), (Ledger(), prior)):
    path.unlink(missing_ok=True)
    durable(path, [[EVENTS[0]]], prior=begun)
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


def test_a_round_is_taken_once(path):
  durable(path, [[event] for event in EVENTS])
  whole = path.read_bytes()
  for first in range(len(EVENTS)):
    durable(path, [[event] for event in EVENTS[first:]], first=first)
    assert path.read_bytes() == whole
  assert list(load(path)) == EVENTS


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
def test_a_refused_append_records_nothing(path, first, rounds, message):
  durable(path, [[EVENTS[0]], [EVENTS[1]]])
  ledger = DurableLedger(path, "run")
  with pytest.raises(ValueError, match=message):
    ledger.append(first, *rounds)
  ledger.close()
  assert ledger.last_round == 1
  assert list(ledger.ledger) == list(load(path)) == EVENTS[:2]


def test_append_returns_after_one_fsync_of_everything(path, monkeypatch):
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


def test_a_file_has_one_writer_at_a_time(path):
  ledger = DurableLedger(path, "run")
  with pytest.raises(BlockingIOError, match=r"Expected to be the only writer of .*ledger"):
    DurableLedger(path, "run")
  ledger.append(0, [EVENTS[0]])  # the one that came first goes on
  ledger.close()
  durable(path, [[EVENTS[0]], [EVENTS[1]]])
  assert list(load(path)) == EVENTS[:2]


def test_a_refused_file_is_not_held(path):
  durable(path, [], run="other run")
  with pytest.raises(ValueError, match="one of run 'other run'"):
    DurableLedger(path, "run")
  durable(path, [[EVENTS[0]]], run="other run")


def test_new_names_and_what_an_earlier_process_wrote_are_brought_to_disk(tmp_path, monkeypatch):
  """It may have been killed between a write and its fsync: its rounds are taken as recorded."""
  synced = []
  monkeypatch.setattr(
    os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
  )
  durable(tmp_path / "ledger", [])
  Ledger().save(tmp_path / "saved")
  durable(tmp_path / "ledger", [[EVENTS[0]]])
  DurableLedger(tmp_path / "ledger", "run").close()
  names = ["ledger", ".", "saved.tmp", ".", "ledger", ".", "ledger", "ledger", "."]
  assert synced == [str(tmp_path / name) for name in names]


def test_a_round_that_could_not_be_written_is_not_taken_as_recorded(tmp_path, monkeypatch):
  def full(descriptor):
    raise OSError("No space left on device")

  ledger = DurableLedger(tmp_path / "ledger", "run")
  monkeypatch.setattr(os, "fsync", full)
  with pytest.raises(OSError, match="No space"):
    ledger.append(0, [EVENTS[0]])
  assert ledger.last_round == -1
  ledger.close()


def test_a_line_torn_at_any_byte_is_repaired_and_what_came_before_is_readable(path, monkeypatch):
  monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # hundreds of files
  durable(path, [[EVENTS[0]], [EVENTS[1]], [EVENTS[4]]])
  whole = path.read_bytes()
  for cut in range(whole[:-1].rindex(b"\n") + 1, len(whole)):
    path.write_bytes(whole[:cut])
    assert list(load(path)) == EVENTS[:2], cut
    durable(path, [[EVENTS[4]]], first=2)
    assert path.read_bytes() == whole


def test_a_header_torn_at_any_byte_is_repaired(path):
  durable(path, [])
  header = path.read_bytes()
  for cut in range(0, len(header), 7):
    path.write_bytes(header[:cut])
    with pytest.raises(ValueError, match="without its header"):
      load(path)
    durable(path, [])
    assert path.read_bytes() == header


@pytest.mark.parametrize("line", [0, 1, 2, 3])
def test_a_damaged_line_is_refused_by_its_number(path, line):
  durable(path, [[event] for event in EVENTS[:3]])
  lines = path.read_bytes().splitlines(keepends=True)
  for place in (0, 9, len(lines[line]) - 2):
    damaged = bytearray(lines[line])
    damaged[place] ^= 1
    path.write_bytes(b"".join([*lines[:line], bytes(damaged), *lines[line + 1 :]]))
    for read in (load, lambda p: DurableLedger(p, "run")):
      with pytest.raises(ValueError, match=f"damaged one at line {line + 1}"):
        read(path)


def test_files_of_others_are_refused_and_left_alone(path):
  durable(path, [[EVENTS[0]]], run="other run")
  other = path.read_bytes()
  header, line = other.splitlines(keepends=True)
  notes = [b"a note without an end of line", b"a note\n"]
  for content in [other, *notes, header[:-3], header + line + line, b"\0" * 100]:
    path.write_bytes(content)
    with pytest.raises(ValueError, match="Expected"):
      DurableLedger(path, "run")
    assert path.read_bytes() == content
  path.write_bytes(header + line + line)
  with pytest.raises(ValueError, match="damaged one at line 3, or lines before it were removed"):
    DurableLedger(path, "other run")


def replace(path):
  other = path.with_name("other")
  other.write_bytes(path.read_bytes())
  os.replace(other, path)


def remove_its_folder(path):
  path.parent.rename(path.parent.with_name("elsewhere"))


def shorten(path):
  os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("meanwhile", [pathlib.Path.unlink, replace, remove_its_folder, shorten])
@pytest.mark.parametrize("finish", [False, True])
def test_a_file_that_is_lost_while_open_is_noticed(tmp_path, meanwhile, finish):
  """Rounds that nobody could count would be released."""
  (tmp_path / "folder").mkdir()
  path = tmp_path / "folder" / "ledger"
  ledger = DurableLedger(path, "run")
  ledger.append(0, [EVENTS[0]])
  meanwhile(path)
  for _ in range(2):
    with pytest.raises(OSError, match=r"Expected .*ledger.*, got .*; restore it, as what it held"):
      ledger.finish() if finish else ledger.append(1, [EVENTS[1]])
  assert ledger.last_round == 0
  assert list(ledger.ledger) == EVENTS[:1]
  ledger.close()


def test_what_a_failed_write_left_is_cut_off_before_the_next(path, monkeypatch):
  """The disk is full in the middle of a line, and even the cut fails."""
  ledger = DurableLedger(path, "run")
  before = path.read_bytes()
  write = os.write

  def full(descriptor, data):
    write(descriptor, bytes(data)[:9])
    raise OSError("No space left on device")

  def unable(descriptor, size):
    raise OSError("Input/output error")

  with monkeypatch.context() as patched:
    patched.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
      ledger.append(0, [EVENTS[0]])
    assert path.read_bytes() == before
    patched.setattr(os, "ftruncate", unable)
    with pytest.raises(OSError, match="No space"):
      ledger.append(0, [EVENTS[0]])
    assert path.read_bytes() != before
    with pytest.raises(OSError, match="Input/output"):  # goes no further until it is cut
      ledger.append(0, [EVENTS[0]])
  ledger.append(0, [EVENTS[0]])
  ledger.finish()
  ledger.close()
  assert list(load(path)) == EVENTS[:1]


def test_a_write_that_is_done_in_pieces_is_whole(path, monkeypatch):
  write = os.write
  monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:7]))
  durable(path, [[event] for event in EVENTS])
  assert list(load(path)) == EVENTS


def test_an_interrupt_after_a_write_leaves_a_ledger_that_can_be_appended_to(path, monkeypatch):
  """The line is on disk, but its writer does not know: it is cut off, and written again."""
  real = AppendOnlyFile.append

  def interrupted(*arguments, **named):
    real(*arguments, **named)
    raise KeyboardInterrupt

  ledger = DurableLedger(path, "run")
  with monkeypatch.context() as patched:
    patched.setattr(AppendOnlyFile, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
      ledger.append(0, [EVENTS[0]])
  assert (ledger.last_round, list(ledger.ledger)) == (-1, [])
  ledger.append(0, [EVENTS[0]])
  ledger.append(1, [EVENTS[1]])
  ledger.close()
  assert list(load(path)) == list(ledger.ledger) == EVENTS[:2]
