"""Ledger files, read as values."""

import contextlib
import dataclasses
import gc
import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jdp._arguments import checked, shown
from jdp.events.rounds import Event
from jdp.ledger.file_format import Line, check_key, read_lines
from jdp.ledger.json_form import from_forms, from_json
from jdp.ledger.value import Ledger, marked_exposed

Entry = tuple[Event, int]
Row = tuple[Event, ...]
"""The events of one round."""


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
  """Turns garbage collection off: scanning the objects of a long ledger takes half the time."""
  enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if enabled:
      gc.enable()


class LedgerFile(NamedTuple):
  """What a ledger file holds.

  Attributes:
    ledger: the events.
    run: the name of the run, or None in a file of `Ledger.save`.
    link: the link of the last line, in hexadecimal digits. It stands for the whole file. None in a
      file without links.
    closed: whether the file says that the run is over. Files without links never say so.
  """

  ledger: Ledger
  run: str | None
  link: str | None
  closed: bool

  @property
  def remarks(self) -> tuple[str, ...]:
    """What cannot be known about the file, in sentences. Show them together with its epsilon."""
    if self.link is None:
      return (
        "the ledger is unchained, as jdp wrote ledgers before version 2: lines that were removed "
        "from its end are not seen, nor lines of a saved ledger that were removed or moved",
      )
    if not self.closed:
      return ("the ledger is not closed: its run goes on, or rounds may be missing at its end",)
    return ()


@checked
def load(path: str | os.PathLike, *, key: bytes | None = None) -> Ledger:
  """Reads a file that `Ledger.save` or a `DurableLedger` wrote.

  A last line without its end is torn: the writer was killed while writing it. It is left out, as
  its round's result was never used. The ledger of a run that is going on, or was killed, is read up
  to its end; `load_file` tells whether a file was closed.

  Args:
    path: the file.
    key: the key that it was written with, if any.

  Raises:
    ValueError: if the file has any other damage, lacks lines before its last or has no header. Also
      if it was written with another key.

  >>> import tempfile
  >>> from jdp.ledger import subsampled_gaussian
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   subsampled_gaussian(0.01, 1.1, 1000).save(f"{folder}/run", key=b"sixteen secrets!")
  ...   len(load(f"{folder}/run", key=b"sixteen secrets!"))
  1000
  """
  return load_file(path, key=key).ledger


@checked
def load_file(path: str | os.PathLike, *, key: bytes | None = None) -> LedgerFile:
  """Reads a ledger as `load` does, together with what else the file says.

  >>> import tempfile
  >>> from jdp.ledger import DurableLedger
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   DurableLedger(f"{folder}/ledger", "mnist").close()
  ...   file = load_file(f"{folder}/ledger")
  >>> file.run, len(file.ledger), file.closed  # the run may go on
  ('mnist', 0, False)
  """
  with _uncollected():
    contents = read_contents(pathlib.Path(path), key)
    if not contents.header:
      raise ValueError(f"Expected a jdp-ledger file in {path}, got a file without its header.")
    rounds = ((event, 1) for row in contents.rounds for event in row)
    ledger = Ledger().recorded_by(_runs(path, contents.header))
    ledger = ledger.extend(itertools.chain(contents.before, rounds))
  link = contents.link.hex() if contents.link else None
  return LedgerFile(ledger, contents.header.get("run"), link, contents.closed)


def _runs(path: str | os.PathLike, header: dict[str, Any]) -> list[str]:
  """The runs that recorded a file: its own run, and the runs of its prior."""
  runs = [*header.get("runs", []), *([header["identity"]] if "identity" in header else [])]
  if not all(isinstance(run, str) for run in runs):
    raise ValueError(f"Expected names of runs in the header of {path}, got {shown(runs)}.")
  return runs


@dataclasses.dataclass
class Contents:
  """What a file holds, and how much of it is whole.

  Attributes:
    header: its first record. Empty if it has none.
    before: the entries of a saved ledger, or of what was released before the first round.
    rounds: the events of each round. Equal successive rounds are one object.
    links: the link of each line, with the last round up to that line.
    link: the last line's link. Empty if there is none.
    closed: whether it has an end record.
    size: the number of bytes of all whole lines.
  """

  header: dict[str, Any] = dataclasses.field(default_factory=dict)
  before: list[Entry] = dataclasses.field(default_factory=list)
  rounds: list[Row] = dataclasses.field(default_factory=list)
  links: dict[bytes, int] = dataclasses.field(default_factory=dict)
  link: bytes = b""
  closed: bool = False
  size: int = 0


def read_contents(path: pathlib.Path, key: bytes | None) -> Contents:
  """Reads a file, and checks its links, and that its rounds follow each other.

  Raises:
    ValueError: see `load`.
  """
  check_key(key)
  contents = Contents()
  for line in read_lines(path, key):
    if contents.closed:
      raise ValueError(f"Expected the end of {path} after its end record, got line {line.number}.")
    try:
      _take(contents, line)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise ValueError(
        f"Expected line {line.number} of {path} to record events of jdp, got one that does not: "
        f"{error}"
      ) from error
    contents.size = line.end
    if line.link is not None:
      contents.link = line.link
      contents.links[line.link] = len(contents.rounds) - 1
  return contents


def _take(contents: Contents, line: Line) -> None:
  """Adds what a line records."""
  record = line.record
  if line.number == 1:
    contents.header = record
  elif record.get("end"):
    contents.closed = True
  elif record.get("round", -1) >= 0:
    rows = _rounds_of(record, unchained=line.link is None)
    # The writer has marked the rounds too, but the header holds for everything that follows it.
    if contents.header.get("key_exposed"):
      rows = list(map(marked_exposed, rows))
    if record["round"] != len(contents.rounds):
      raise ValueError(f"Expected round {len(contents.rounds)}, got round {record['round']}.")
    contents.rounds += rows
  elif contents.rounds:
    raise ValueError("Expected a round after rounds, got what came before them.")
  else:
    contents.before += _entries_of(record, unchained=line.link is None)


def _rounds_of(record: dict[str, Any], *, unchained: bool) -> Sequence[Row]:
  """The events of a record's rounds."""
  if unchained:
    events = [from_json(event) for event, count in record["entries"] if count == 1]
    if len(events) != len(record["entries"]):
      raise ValueError("Expected each event of a round once, got another count.")
    return [tuple(events)]
  return from_forms(record["size"], record["events"])


def _entries_of(record: dict[str, Any], *, unchained: bool) -> Iterator[Entry]:
  """The counted events of a record that is of no round."""
  if unchained:
    return ((from_json(event), count) for event, count in record["entries"])
  rows = from_forms(len(record["counts"]), record["events"])
  return ((event, count) for (event,), count in zip(rows, record["counts"], strict=True))
