"""Errors of the operating system at every write of a run: it goes on to the same bits."""

import contextlib
import errno
import itertools
import os
import resource

import pytest

from tests.faults.failing_calls import fail_at
from tests.helpers.small_runs import ending, go


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """The key of a run, and how it ends."""
  folder = tmp_path_factory.mktemp("whole") / "run"
  result = go(folder)
  return (folder.with_name("run.secret") / "noise_key").read_bytes(), ending(folder, result)


def with_key(folder, key):
  """A run that has its key and nothing else, as one that was killed before its first round."""
  secret = folder.with_name("run.secret")
  secret.mkdir(mode=0o700)
  (secret / "noise_key").write_bytes(key)
  return folder


@pytest.mark.slow
@pytest.mark.parametrize(
  ("code", "words"),
  [(errno.ENOSPC, "no space left"), (errno.EIO, "an input/output error")],
  ids=["disk full", "input/output"],
)
def test_an_error_at_any_call_leaves_a_run_that_goes_on(
  tmp_path, monkeypatch, whole, record, code, words
):
  key, expected = whole
  for number in itertools.count(1):
    (tmp_path / str(number)).mkdir()
    folder = with_key(tmp_path / str(number) / "run", key)
    with monkeypatch.context() as patch:
      left = fail_at(patch, number, OSError(code, os.strerror(code)))
      try:
        result = go(folder)
      except (OSError, ValueError):
        result = None
      reached = next(left) < 1
    if not reached:
      break
    assert ending(folder, result or go(folder)) == expected, number
  # Two for each of 5 rows, and for a description that is replaced; the ledger's header, folder and
  # 4 blocks; and those of orbax for each of 4 checkpoints.
  record(f"{words}, at each call that writes", "", number - 1)
  assert number > 2 * 6 + 2 + 4 + 3 * 4


@contextlib.contextmanager
def files_of_at_most(size):
  """Writes beyond this size of a file fail, also those of libraries that are not Python."""
  old = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.slow
def test_a_write_that_ends_early_leaves_a_run_that_goes_on(tmp_path, whole, record):
  key, expected = whole
  failed = 0
  for size in itertools.chain(range(0, 400, 13), range(400, 2400, 67)):
    (tmp_path / str(size)).mkdir()
    folder = with_key(tmp_path / str(size) / "run", key)
    result = None
    with files_of_at_most(size), contextlib.suppress(OSError, ValueError):
      result = go(folder)
    failed += result is None
    assert ending(folder, result or go(folder)) == expected, size
  record("writes cut short at sizes of a file up to 2,400 bytes", "", failed)
  assert failed > 30
