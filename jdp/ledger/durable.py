"""The ledger as a file that grows, written before a round's result is used."""

import fcntl
import itertools
import os
import pathlib
from collections.abc import Iterable

from jdp.events import Event
from jdp.ledger.file_format import file_header, read_records, sync_folder, to_line
from jdp.ledger.json_form import entries_from_json, entries_to_json
from jdp.ledger.unstacking import unstack
from jdp.ledger.value import Ledger, count_types, refuse_gap, refuse_two_caps

_BEFORE = -1  # the number, in a file, of what was released before the first round


class DurableLedger:
  """An append-only ledger file, written before a round's result is used.

  Every line carries a checksum. `append` returns once the operating system has the line on disk.
  Rounds arrive in order. A round that the file already holds is not written again. So a run resumed
  from a checkpoint may repeat rounds (bit for bit, with the same keys) without counting them twice.
  The file is locked (flock) until it is closed or the process ends.

  Args:
    path: The file. It is made if missing, and repaired if its last line is torn.
    run: The name of the run. A file of another run is refused.
    prior: What was released about the same records before the run's first round. It is on disk when
      this returns.

  Raises:
    ValueError: if the file is no ledger, or belongs to another run. Also if it begins with other
      earlier releases, or holds a damaged line or a round twice.
    BlockingIOError: if another writer has the file open.
  """

  def __init__(self, path: str | os.PathLike, run: str, prior: Ledger = Ledger()):
    self._path = pathlib.Path(path)
    self._prior = prior
    self._rounds: list[list[tuple[Event, int]]] = []
    self._file = open(self._path, "ab")  # noqa: SIM115 -- closed by close()
    try:
      self._lock()
      self._recover(run)
    except BaseException:
      self._file.close()
      raise

  def _lock(self) -> None:
    """Makes this process the only writer of the file."""
    try:
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise BlockingIOError(
        error.errno,
        f"Expected to be the only writer of {self._path}, got a file that another has open; stop "
        "that one.",
      ) from None

  def _recover(self, run: str) -> None:
    """Reads what an earlier process wrote, and cuts off a torn last line.

    A new file gets its header and the earlier releases.
    """
    header = to_line({**file_header(), "run": run})
    beginning = [header]
    if self._prior.entries:
      beginning.append(to_line({"round": _BEFORE, "entries": entries_to_json(self._prior.entries)}))
    records, intact = read_records(self._path)
    # A file that holds only the beginning of the header was torn at its first write.
    if not records and not header.encode().startswith(self._path.read_bytes()):
      raise ValueError(
        f"Expected a ledger in {self._path}, got a file without its header; choose another path."
      )
    if records and records[0].get("run") != run:
      raise ValueError(
        f"Expected a ledger of run {run!r} in {self._path}, got one of run "
        f"{records[0].get('run')!r}; give each run a work directory of its own."
      )
    has_prior = len(records) > 1 and records[1]["round"] == _BEFORE
    prior = entries_from_json(records[1]["entries"]) if has_prior else []
    if len(records) > 1 and entries_to_json(prior) != entries_to_json(self._prior.entries):
      raise ValueError(
        f"Expected {self._path} to begin with the {len(self._prior)} earlier releases given, got "
        "others; give the run what it was begun with, or a work directory of its own."
      )
    for number, record in enumerate(records[1 + has_prior :]):
      if record["round"] != number:
        line = number + 2 + has_prior
        raise ValueError(
          f"Expected round {number} in line {line} of {self._path}, got round {record['round']}."
        )
      self._rounds.append(entries_from_json(record["entries"]))
    self._counts = count_types(itertools.chain.from_iterable(self._rounds))
    # Nothing was changed so far: a file that is refused stays as it is.
    self._file.truncate(intact)
    if missing := beginning[len(records) :]:
      self._write("".join(missing))
      sync_folder(self._path)

  @property
  def last_round(self) -> int:
    """The last round recorded; -1 if there is none."""
    return len(self._rounds) - 1

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, as a value: what came before the run, and its rounds."""
    return self._prior.extend(itertools.chain.from_iterable(self._rounds))

  def append(self, first_round: int, *rounds: Iterable[Event]) -> None:
    """Records the events of round `first_round` and of those that follow it, in one write to disk.

    Args:
      first_round: The number of the first of the rounds.
      *rounds: The events of each round, with scalar values (see `unstack`).

    Raises:
      ValueError: if a round is skipped, or is on file with other events. Also if events are
        missing, as for `Ledger.append`. Also if both it and what came before the run hold local
        releases with a cap, as for the sum of two ledgers.
    """
    new: list[list[tuple[Event, int]]] = []
    for number, events in enumerate(rounds, first_round):
      entries = [(event, 1) for stacked in events for event in unstack(stacked)]
      following = len(self._rounds) + len(new)
      if not 0 <= number <= following:
        raise ValueError(f"Expected round {following} next in {self._path}, got round {number}.")
      if number == following:
        new.append(entries)
      elif entries_to_json(self._rounds[number]) != entries_to_json(entries):
        raise ValueError(
          f"Expected round {number} to repeat the events on file in {self._path}, got other events."
        )
    if new:
      counts = self._counts.copy()
      refuse_gap(counts, itertools.chain.from_iterable(new))
      refuse_two_caps(self._prior.entries, [entry for entries in new for entry in entries])
      lines = (
        to_line({"round": n, "entries": entries_to_json(e)})
        for n, e in enumerate(new, len(self._rounds))
      )
      self._write("".join(lines))
      # Only after the write: a round whose write failed must be written when it comes again.
      self._rounds += new
      self._counts = counts

  def close(self) -> None:
    """Closes the file; another writer may open it."""
    self._file.close()

  def _write(self, text: str) -> None:
    """Writes the text, and returns when it is on disk."""
    self._file.write(text.encode())
    self._file.flush()
    os.fsync(self._file.fileno())
