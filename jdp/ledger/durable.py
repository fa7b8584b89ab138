"""The ledger as a file that grows, written before a round's result is used."""

import itertools
import os
import pathlib
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from jdp._arguments import checked
from jdp._files import open_to_read
from jdp.events.rounds import Event
from jdp.ledger.append_only_file import AppendOnlyFile
from jdp.ledger.file_format import FORMAT_VERSION, check_key, file_header, sync_folder, to_lines
from jdp.ledger.joining import (
  Kinds,
  count_kinds,
  numbered_runs,
  refuse_gap,
  refuse_later_rounds,
  refuse_two_caps,
)
from jdp.ledger.reading import Contents, Row, read_contents
from jdp.ledger.records import END_RECORD, entry_records, round_records
from jdp.ledger.unstacking import unstack
from jdp.ledger.value import Ledger, marked_exposed, same_event


class LedgerMark(NamedTuple):
  """How far a ledger had grown at some time. A checkpoint or a result keeps it.

  Attributes:
    last_round: the last round that it held; -1 if there was none.
    link: the link of its last line, in hexadecimal digits. It stands for all lines up to that one.
  """

  last_round: int
  link: str


class _End(NamedTuple):
  """Where the valid part of a file ends. It is replaced as a whole once a write is on disk.

  Attributes:
    size: the size of the valid part in bytes.
    link: the link of the last line.
    num_rounds: how many rounds it holds.
    counts: how many events of each type and observer these rounds have.
    closed: whether the last line is the end record.
  """

  size: int
  link: bytes
  num_rounds: int
  counts: Kinds
  closed: bool


class DurableLedger:
  """An append-only ledger file, written before a round's result is used.

  `append` returns once the operating system has the rounds on disk. If it fails, it has recorded
  nothing, and may be called again. Rounds arrive in order. A round that the file already holds is
  not written again. So a run resumed from a checkpoint may repeat rounds (bit for bit, with the
  same keys) without counting them twice. The file is locked (flock) until it is closed or the
  process ends. Several threads may append. A child process that was forked may not.

  The lines are a chain (`jdp.ledger.file_format`), and `finish` closes it. So only rounds at the
  end of the file can be removed unnoticed, before `finish`. Whoever keeps a `mark` notices that too
  (`expected`). None of this stops somebody who writes a whole new file and replaces the mark. With
  a key, only its holders can do that.

  Args:
    path: The file. It is made if missing, and repaired if its last line is torn.
    run: The name of the run. A file of another run is refused.
    prior: What was released about the same records before the run's first round. It is on disk when
      this returns.
    key: At least 16 secret bytes, if the links are to be message authentication codes.
    key_exposed: Whether the noise of the whole run comes from a key that is not secret, such as one
      made from a seed. The file's first line says so, and all rounds are marked (`Ledger.caveats`).
    identity: Tells runs apart, such as by their noise keys. `Ledger.runs` holds it. Runs of equal
      identity draw the same samples, so their ledgers are not added.
    expected: An earlier `mark` of the file, if one was kept. A file that does not continue from
      there is refused, and left unchanged.

  Raises:
    TypeError: if the key is not bytes.
    ValueError: if the file is not a ledger, or belongs to another run. Also if the prior is of a
      run of the same identity. Also if the file begins with other earlier releases, has a line that
      is damaged, missing or moved, or ends before `expected`.
    OSError: if the file cannot be written, or another writer has it open (BlockingIOError).

  >>> import tempfile
  >>> from jdp.ledger import subsampled_gaussian
  >>> event = next(iter(subsampled_gaussian(0.01, 1.1, 1)))
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   for _ in range(2):  # the second time as a run resumed
  ...     file = DurableLedger(f"{folder}/ledger", "mnist", key=b"sixteen secrets!")
  ...     file.append(0, [event], [event])
  ...     file.close()
  >>> len(file.ledger)
  2
  """

  @checked
  def __init__(
    self,
    path: str | os.PathLike,
    run: str,
    prior: Ledger = Ledger(),
    *,
    key: bytes | None = None,
    key_exposed: bool = False,
    identity: str | None = None,
    expected: LedgerMark | None = None,
  ):
    check_key(key)
    self._path, self._prior, self._key = pathlib.Path(path), prior, key
    self._exposed = {"key_exposed": True} if key_exposed else {}
    self._runs = [] if identity is None else [identity]
    recorded = prior.recorded_by(self._runs)
    self._file = AppendOnlyFile(self._path)
    try:
      contents, missing = self._recover(run)
      self._refuse_shortened(contents, expected)
      # Also if nothing is missing: an earlier process's writes may not be on disk yet.
      self._file.append(missing, size=contents.size)
      sync_folder(self._path)
    except BaseException:
      self._file.close()
      raise
    # Any beyond the number in `_End` were left by a failed `append`.
    self._rounds, self._links = contents.rounds, set(contents.links)
    counts = count_kinds((event, 1) for row in contents.rounds for event in row)
    size = contents.size + len(missing)
    self._end = _End(size, contents.link, len(contents.rounds), counts, contents.closed)
    self._counted = recorded, 0  # the ledger of the first so many rounds
    self._turn = threading.Lock()

  def _recover(self, run: str) -> tuple[Contents, bytes]:
    """What an earlier process wrote, and the missing part of its header and earlier releases."""
    before = {"runs": sorted(self._prior.runs)} if self._prior.runs else {}
    own = {"identity": self._runs[0]} if self._runs else {}
    header = file_header(self._key, run=run, **own, **before, **self._exposed)
    records = itertools.chain([header], entry_records(self._prior.entries))
    lines = list(to_lines(records, b"", self._key))
    beginning, link = b"".join(line for line, _ in lines), lines[-1][1]
    with open_to_read(self._path) as file:
      found = file.read(len(beginning))
    # A file that holds only the beginning of its first lines was torn at its first write.
    if len(found) < len(beginning) and beginning.startswith(found):
      return Contents(header, link=link, links={link: -1}, size=len(found)), beginning[len(found) :]
    contents = read_contents(self._path, self._key)
    self._refuse_other(contents, run)
    return contents, b""

  def _refuse_other(self, contents: Contents, run: str) -> None:
    """Refuses a file that is not a ledger of this run, begun in the same way."""
    header = contents.header
    if not header:
      raise ValueError(
        f"Expected a ledger in {self._path}, got a file without its header; choose another path."
      )
    if header.get("run") != run:
      raise ValueError(
        f"Expected a ledger of run {run!r} in {self._path}, got one of run {header.get('run')!r}; "
        "give each run a work directory of its own."
      )
    if bool(header.get("key_exposed")) != bool(self._exposed):
      raise ValueError(
        f"Expected key_exposed to be {bool(header.get('key_exposed'))}, as {self._path} was begun, "
        f"got {bool(self._exposed)}; go on with the key that the run was begun with."
      )
    if header["version"] != FORMAT_VERSION:
      raise ValueError(
        f"Expected a ledger of version {FORMAT_VERSION} in {self._path}, got version "
        f"{header['version']}, which can be read only; go on with the jdp that began the run, or "
        "give this ledger to a new run as its prior."
      )
    before, prior = contents.before, self._prior.entries
    if len(before) != len(prior) or not all(map(_same_entry, before, prior)):
      raise ValueError(
        f"Expected {self._path} to begin with the {len(self._prior)} earlier releases given, got "
        "others; give the run what it was begun with, or a work directory of its own."
      )

  def _refuse_shortened(self, contents: Contents, expected: LedgerMark | None) -> None:
    """Refuses a file that does not hold the line whose link was kept."""
    if expected is None or any(link.hex() == expected.link for link in contents.links):
      return
    raise ValueError(
      f"Expected a ledger that holds round {expected.last_round} with link {expected.link} in "
      f"{self._path}, got one that ends at round {len(contents.rounds) - 1} or is another; restore "
      "it, as the epsilon would be too small."
    )

  @property
  def last_round(self) -> int:
    """The last round recorded; -1 if there is none."""
    return self._end.num_rounds - 1

  @property
  def link(self) -> str:
    """The last line's link, in hexadecimal digits. It stands for the whole file."""
    return self._end.link.hex()

  def holds(self, link: str) -> bool:
    """Whether the file has a line with this link, and so all that it stands for."""
    return bytes.fromhex(link) in self._links

  @property
  def mark(self) -> LedgerMark:
    """How far the ledger has grown, for a checkpoint or a result to keep."""
    return LedgerMark(self.last_round, self.link)

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, as a value: what came before the run, and its rounds."""
    (ledger, num_rounds), end = self._counted, self._end
    # Adds only the new rounds, so that a call after each of many rounds does not recount all of
    # them.
    new = itertools.islice(self._rounds, num_rounds, end.num_rounds)
    ledger = ledger.extend((event, 1) for row in new for event in row)
    self._counted = ledger, end.num_rounds
    return ledger

  @checked
  def append(self, first_round: int, *rounds: Iterable[Event]) -> None:
    """Records the events of `first_round` and the rounds that follow it, in one write to disk.

    Args:
      first_round: The number of the first of the rounds.
      *rounds: The events of each round, with scalar values (see `unstack`).

    Raises:
      ValueError: if a round is skipped, or is on file with other events. Also if events are
        missing, as for `Ledger.append`. Also if both the run and its prior hold local releases with
        a cap, as for the sum of two ledgers. Also if the ledger is finished.
      OSError: if the rounds could not be written. Then nothing is recorded. Also if the file was
        removed, replaced or shortened, or in a child of the process that opened it.

    >>> import tempfile
    >>> from jdp.ledger import subsampled_gaussian
    >>> event = next(iter(subsampled_gaussian(0.01, 1.1, 1)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   file = DurableLedger(f"{folder}/ledger", "mnist")
    ...   file.append(0, [event], [event])  # rounds 0 and 1
    ...   file.append(1, [event], [event])  # round 1 repeated, and round 2
    ...   file.close()
    >>> file.last_round
    2
    """
    self._file.check()  # before the lock, which a forked child would wait for in vain
    with self._turn:
      self._append(first_round, rounds)

  def _append(self, first_round: int, rounds: Iterable[Iterable[Event]]) -> None:
    """As `append`, called by one thread at a time."""
    end = self._end
    new = self._unrecorded(first_round, rounds)
    if not new:
      return
    if end.closed:
      raise ValueError(
        f"Expected no further rounds in {self._path}, which was finished after round "
        f"{self.last_round}, got round {end.num_rounds}; give it to a new run as its prior."
      )
    counts, entries = end.counts.copy(), [(event, 1) for row in new for event in row]
    refuse_gap(counts, entries)
    refuse_two_caps(entries, self._prior.entries)
    refuse_later_rounds(self._prior.numbered_runs, numbered_runs(entries))
    self._rounds[end.num_rounds :] = _shared(new)
    self._write(
      round_records(end.num_rounds, new),
      end._replace(num_rounds=end.num_rounds + len(new), counts=counts),
    )

  def _unrecorded(self, first_round: int, rounds: Iterable[Iterable[Event]]) -> list[Row]:
    """The rounds that are not on file. Rounds that are on file must repeat its events."""
    new: list[Row] = []
    for number, events in enumerate(rounds, first_round):
      row = tuple(event for stacked in events for event in unstack(stacked))
      row = marked_exposed(row) if self._exposed else row
      following = self._end.num_rounds + len(new)
      if not 0 <= number <= following:
        raise ValueError(
          f"Expected round {following} next in {self._path}, got round {number}; let first_round "
          "go on from there."
        )
      if number == following:
        new.append(row)
      elif not _same_row(self._rounds[number], row):
        raise ValueError(
          f"Expected round {number} to repeat the events on file in {self._path}, got other events."
        )
    return new

  def finish(self) -> None:
    """Writes that the run is over, once. The ledger then takes no further rounds.

    Raises:
      OSError: as for `append`.
    """
    self._file.check()
    with self._turn:
      if not self._end.closed:
        self._write([END_RECORD], self._end._replace(closed=True))

  def close(self) -> None:
    """Closes the file; another writer may open it, and go on unless the ledger is finished."""
    self._file.close()

  def _write(self, records: Iterable[dict[str, Any]], end: _End) -> None:
    """Writes the records. The ledger then ends at `end`, whose size and link are set here."""
    lines = list(to_lines(records, end.link, self._key))
    data = b"".join(line for line, _ in lines)
    self._file.append(data, size=end.size)
    # Only after the write: if it failed, the round must be written when it comes again.
    self._links.update(link for _, link in lines)
    self._end = end._replace(size=end.size + len(data), link=lines[-1][1])


def _shared(rows: Iterable[Row]) -> list[Row]:
  """The rounds. Equal successive rounds are one object, so that long runs stay small."""
  shared: list[Row] = []
  for row in rows:
    shared.append(shared[-1] if shared and _same_row(shared[-1], row) else row)
  return shared


def _same_row(row: Row, other: Row) -> bool:
  """Whether two rounds have the same events."""
  return len(row) == len(other) and all(map(same_event, row, other))


def _same_entry(entry: tuple[Event, int], other: tuple[Event, int]) -> bool:
  """Whether two counted events are the same."""
  return entry[1] == other[1] and same_event(entry[0], other[0])
