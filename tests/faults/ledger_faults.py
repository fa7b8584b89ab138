"""Damages ledger files and makes their writers' calls fail, and counts what comes of it.

`python -m tests.faults.ledger_faults` runs the long form, prints its figures and writes them to
`tests/faults/results/ledger.json`; test_ledger_faults.py runs the short one.
"""

import collections
import contextlib
import dataclasses
import errno
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from unittest import mock

from jdp.events import GaussianSum, LocalRelease, PoissonSampling, Round
from jdp.guarantees import PureDP
from jdp.ledger import DurableLedger, Ledger, load, load_file
from jdp.ledger.durable import LedgerMark
from tests.faults import results

ROUND = Round(PoissonSampling(0.1), GaussianSum(1.0, 2.0))
RELEASE = LocalRelease(PureDP(1.0))
PRIOR = Ledger().append(ROUND, count=3)
RUN = "run"
CALLS = ("write", "fsync", "ftruncate")


def blocks(count: int) -> list[list[list[object]]]:
  """Blocks of rounds: of one event, of two, of none, and of one that varies."""
  varied = [dataclasses.replace(ROUND, query=GaussianSum(1.0, 2.0 + n)) for n in range(3)]
  kinds = [[[ROUND]] * 2, [[ROUND, RELEASE]], [[]], [[event] for event in varied]]
  return [kinds[number % len(kinds)] for number in range(count)]


def write_ledger(path: pathlib.Path, num_blocks: int, *, finish: bool) -> list[LedgerMark]:
  """Makes a ledger of so many blocks. Returns its mark after each of them."""
  durable, marks = DurableLedger(path, RUN, PRIOR), []
  with contextlib.closing(durable):
    for block in blocks(num_blocks):
      durable.append(durable.last_round + 1, *block)
      marks.append(durable.mark)
    if finish:
      durable.finish()
      marks.append(durable.mark)
  return marks


def flips(content: bytes) -> Iterator[bytes]:
  """The content with each of its bits flipped in turn."""
  for place in range(len(content)):
    for bit in range(8):
      yield content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def cuts(content: bytes) -> Iterator[bytes]:
  """Every proper beginning of the content."""
  return (content[:size] for size in range(len(content)))


def outcome(
  path: pathlib.Path, content: bytes, whole: Ledger, mark: LedgerMark, *, go_on: bool
) -> str:
  """What becomes of a damaged file, for whoever reads it and (`go_on`) whoever goes on with it.

  Raises:
    AssertionError: if it is believed: read as what it is not, without a remark, or gone on with
      where the mark is known.
  """
  with open(path, "r+b") as file:  # Not anew: a disk waits for files that are emptied first.
    file.write(content)
    file.truncate()
  try:
    found = load_file(path)
  except ValueError as error:
    refused_in_a_sentence(error)
    read = "refused"
  else:
    events = list(found.ledger)
    assert events == list(whole)[: len(events)]
    assert any("not closed" in remark for remark in found.remarks), "not flagged"
    read = "read as not closed"
  if not go_on:
    return read
  for expected in (mark, None):  # What is refused is not changed, so the first leaves it as it is.
    try:
      durable = DurableLedger(path, RUN, PRIOR, expected=expected)
    except ValueError as error:
      refused_in_a_sentence(error)
      assert path.read_bytes() == content
      continued = "refused"
    else:
      with contextlib.closing(durable):
        events = list(durable.ledger)
        assert expected is None, "a shortened ledger was taken for the whole one"
        assert events == list(whole)[: len(events)]
      continued = "continued"
  return f"{read}, {continued}"


def refused_in_a_sentence(error: ValueError) -> None:
  """Checks that a refusal says what was expected and what was found."""
  assert str(error).startswith("Expected")
  assert ", got " in str(error)


def damage(folder: pathlib.Path, num_blocks: int, every: int = 1) -> collections.Counter[str]:
  """What becomes of every single-bit flip and every truncation of a ledger that was finished.

  All are read; a run goes on with one of `every`.
  """
  path = folder / "ledger"
  *_, mark = write_ledger(path, num_blocks, finish=True)
  content, whole, counted = path.read_bytes(), load(path), collections.Counter()
  with without_disk():
    for kind, damaged in (("flip", flips(content)), ("cut", cuts(content))):
      for number, one in enumerate(damaged):
        found = outcome(path, one, whole, mark, go_on=number % every == 0)
        counted[f"{kind}: {found}"] += 1
  return counted


def without_disk() -> contextlib.AbstractContextManager:
  """Waits for no disk."""
  return mock.patch.multiple(os, fsync=lambda descriptor: None)


class KilledError(BaseException):
  """Ends a writer, like a signal."""


@dataclasses.dataclass
class Faults:
  """Makes the calls of a writer fail, beginning with one of them.

  Attributes:
    first: the number of the first call that fails, counted from 0.
    last: of the last one.
    part: whether a write fails after half of its bytes.
    error: what is raised.
    calls: how many calls there were.
  """

  first: int
  last: int
  part: bool
  error: BaseException
  calls: int = 0

  def replacing(self) -> contextlib.AbstractContextManager:
    """Replaces the calls."""
    real = {name: getattr(os, name) for name in CALLS}

    def failing(name: str):
      def call(descriptor, *arguments):
        number, self.calls = self.calls, self.calls + 1
        if not self.first <= number <= self.last:
          return None if name == "fsync" else real[name](descriptor, *arguments)
        if name == "write" and self.part:
          data = bytes(arguments[0])
          real["write"](descriptor, data[: len(data) // 2])
        raise self.error

      return call

    return mock.patch.multiple(os, **{name: failing(name) for name in CALLS})


def persist(path: pathlib.Path, num_blocks: int, faults: Faults) -> int:
  """Writes a ledger though calls fail: whatever fails is tried again. Returns how often it failed.

  A writer that is killed is replaced by another, as when a run is resumed.

  Raises:
    AssertionError: if a round is lost that was recorded, or one is doubled.
  """
  failures, done, durable = 0, 0, None
  with faults.replacing():
    while True:
      try:
        if durable is None:
          durable = DurableLedger(path, RUN, PRIOR)
        while done < num_blocks:
          durable.append(sum(map(len, blocks(done))), *blocks(num_blocks)[done])
          done += 1
          recorded = list(load(path))
          assert recorded == expected_events(done)
          assert recorded == list(durable.ledger)
        durable.finish()
        break
      except (OSError, KilledError) as error:
        failures += 1
        assert failures < 100, "no end"
        if isinstance(error, KilledError) and durable is not None:
          durable.close()
          durable = None
    durable.close()
  found = load_file(path)
  assert list(found.ledger) == expected_events(num_blocks)
  assert found.closed
  return failures


def expected_events(num_blocks: int) -> list[object]:
  """The events of a ledger of so many blocks."""
  return [*PRIOR, *(event for block in blocks(num_blocks) for row in block for event in row)]


def errors(folder: pathlib.Path, num_blocks: int) -> collections.Counter[str]:
  """What becomes of a writer when each of its calls fails, once or several times in a row."""
  counted: collections.Counter[str] = collections.Counter()
  calls = Faults(-1, -1, False, KilledError())
  persist(folder / "whole", num_blocks, calls)
  content = (folder / "whole").read_bytes()
  full = OSError(errno.ENOSPC, "No space left on device")
  for error in (full, KilledError()):
    for part in (False, True):
      for length in (1, 2, 5):
        for first in range(calls.calls):
          path = folder / "ledger"
          path.unlink(missing_ok=True)
          failures = persist(path, num_blocks, Faults(first, first + length - 1, part, error))
          assert failures, "the fault was not met"
          assert path.read_bytes() == content
          counted[f"{type(error).__name__}: nothing lost or doubled"] += 1
  return counted


ROWS = {
  "flip": "each bit flipped",
  "cut": "cut short after each byte",
  "OSError": "no space left at each call that writes, once to five times in a row",
  "KilledError": "its writer killed at each call that writes, once to five times in a row",
}


def main(num_blocks: int) -> None:
  """Prints and writes the figures of the long form."""
  counts: collections.defaultdict[str, collections.Counter[str]]
  counts = collections.defaultdict(collections.Counter)
  with tempfile.TemporaryDirectory() as folder:
    for run in (damage, errors):
      for name, count in sorted(run(pathlib.Path(folder), num_blocks).items()):
        print(f"{count:7,} x {name}")
        kind, found = name.split(": ")
        # How it was read. A second word says what a run did that went on with it.
        counts[ROWS[kind]].update({"cases": count, found.split(", ")[0]: count})
  for row, counted in counts.items():
    results.put("ledger", row, f"{num_blocks} blocks", counted)


if __name__ == "__main__":
  main(*map(int, sys.argv[1:] or ["12"]))
