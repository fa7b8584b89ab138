"""A file of metrics grows by whole rows, and a row costs the same however many there are."""

import errno
import hashlib
import os

import pytest

from jdp.federated.runs.whole_files import RowFile, read_rows

ROWS = [{"round": i, "accuracy": i / 8} for i in range(4)]


@pytest.fixture
def path(tmp_path):
  file = RowFile(tmp_path / "rows.jsonl", 0)
  for row in ROWS:
    file.append(row)
  return tmp_path / "rows.jsonl"


def test_rows_up_to_the_round_reached_are_kept(path):
  file = RowFile(path, 2)
  assert file.rows == ROWS[:3]
  file.append({"round": 3, "accuracy": 1.0})
  assert read_rows(path) == file.rows == [*ROWS[:3], {"round": 3, "accuracy": 1.0}]
  assert file.digest == hashlib.sha256(path.read_bytes()).digest() == RowFile(path, 3).digest
  assert RowFile(path, 0).rows == []


def test_a_row_writes_itself_alone(path, monkeypatch):
  written = []
  write = os.write
  monkeypatch.setattr(os, "write", lambda *args: written.append(write(*args)) or written[-1])
  file = RowFile(path, 3)
  file.append({"round": 4})
  assert written == [len('{"round": 4}\n')]


@pytest.mark.parametrize("kept", [1, 12, 30])  # 31 bytes are the whole row
def test_a_torn_last_row_is_dropped(path, kept):
  last = b'{"round": 3, "accuracy": 0.375}\n'
  path.write_bytes(path.read_bytes().removesuffix(last) + last[:kept])
  file = RowFile(path, 3)
  assert file.rows == ROWS[:3]
  file.append(ROWS[3])
  assert read_rows(path) == ROWS


def test_a_full_disk_leaves_whole_rows_and_a_retry_is_safe(path, monkeypatch):
  file, write = RowFile(path, 3), os.write

  def full(descriptor, content):
    monkeypatch.setattr(os, "write", write)
    write(descriptor, bytes(content)[:5])
    raise OSError(errno.ENOSPC, "full")

  monkeypatch.setattr(os, "write", full)
  with pytest.raises(OSError, match="full"):
    file.append({"round": 4})
  assert read_rows(path) == file.rows == ROWS
  file.append({"round": 4})
  assert read_rows(path) == [*ROWS, {"round": 4}]


def test_other_content_and_a_shortened_file_are_refused(path):
  file = RowFile(path, 3)
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(OSError, match="it was shortened while open"):
    file.append({"round": 4})
  for content in ("{}\n", "[]\n", "3\n", "{\n"):
    path.write_text(content)
    with pytest.raises(ValueError, match=r"Expected rows by round in .*rows.jsonl"):
      RowFile(path, 3)
  with pytest.raises(ValueError, match="JSON"):
    RowFile(path, 0).append({"round": 1, "accuracy": float("nan")})
