"""What was done: the privacy ledger, as a value and as a durable file.

A `Ledger` is an immutable sequence of events, run-length encoded. It knows
nothing of epsilons: `jdp.accounting` reads it afterwards.

A `DurableLedger` is a file that grows. A run appends each round's events to it
*before* the round's result is used for anything that leaves the process; the
file survives a kill at any moment (a torn last line is repaired) and takes
the same round of the same run only once.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import typing
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from jdp import guarantees
from jdp.events import EVENT_TYPES, Event, GaussianSum, PoissonSampling, Round

FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Ledger:
  """An immutable, run-length encoded sequence of events.

  Attributes:
    entries: pairs (event, count): the event happened `count` times in a row.

  >>> event = Round(PoissonSampling(0.01), GaussianSum(clip_norm=1.0, stddev=1.1))
  >>> ledger = Ledger().append(event).append(event, count=99)
  >>> len(ledger), len(ledger.entries)
  (100, 1)
  """

  entries: tuple[tuple[Event, int], ...] = ()

  def append(self, event: Event, *, count: int = 1) -> "Ledger":
    """A new ledger in which `event` has happened `count` more times.

    Args:
      event: an event, as made on the host or as returned by a jitted step. If
        its arrays have a leading axis (stacked by a scan over rounds), it is
        unrolled: one event for each index. An event without arrays leaves a scan as it
        is, once: give the number of rounds as `count`.
      count: how often each happened.

    Returns:
      The new ledger; `self` is unchanged.

    Raises:
      TypeError: if `event` is not an event.
      ValueError: if count is not a whole number >= 0, or a stacked value is invalid.
    """
    return self.extend((e, count) for e in unstack(event))

  def extend(self, entries: Iterable[tuple[Event, int]]) -> "Ledger":
    """A new ledger with further (event, count) entries, in order."""
    merged = list(self.entries)
    for event, count in entries:
      if not (isinstance(count, int | np.integer) and count >= 0):
        raise ValueError(f"Expected count to be a whole number >= 0, got {count!r}.")
      if count and merged and merged[-1][0] == event:
        merged[-1] = (event, merged[-1][1] + int(count))
      elif count:
        merged.append((event, int(count)))
    return Ledger(tuple(merged))

  def __len__(self) -> int:
    """The number of events."""
    return sum(count for _, count in self.entries)

  def __iter__(self) -> Iterator[Event]:
    """Every event, repeated as often as it happened."""
    return itertools.chain.from_iterable(itertools.repeat(e, n) for e, n in self.entries)

  def save(self, path: str | os.PathLike) -> None:
    """Writes the ledger as JSON Lines, atomically; `load` reads it back equal."""
    path = pathlib.Path(path)
    text = _line(_header()) + "".join(_line({"entries": _entries_to_json([entry])}) for entry in self.entries)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w") as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)


def subsampled_gaussian(sampling_probability: float, noise_multiplier: float, num_rounds: int) -> Ledger:
  """The ledger of a planned run: Poisson sampling, one Gaussian sum a round, add/remove.

  >>> len(subsampled_gaussian(0.01, 1.1, 1000))
  1000
  """
  event = Round(PoissonSampling(sampling_probability), GaussianSum(1.0, noise_multiplier))
  return Ledger().append(event, count=num_rounds)


def unstack(event: Event) -> list[Event]:
  """The events of one jitted step or scan, on the host with Python floats.

  Args:
    event: its arrays are scalars, or all have one leading axis of equal length.
  """
  if type(event) not in EVENT_TYPES.values():
    raise TypeError(f"Expected an event of jdp.events, got {type(event).__name__}.")
  leaves, treedef = jax.tree.flatten(event)
  if not leaves:
    return [event]
  arrays = np.broadcast_arrays(*map(np.asarray, leaves))
  if arrays[0].ndim > 1:
    raise ValueError(f"Expected event arrays with at most one leading axis, got shape {arrays[0].shape}.")
  rows = [np.atleast_1d(array).tolist() for array in arrays]
  return [_rebuild(jax.tree.unflatten(treedef, values)) for values in zip(*rows, strict=True)]


def _rebuild(event):
  """Makes an event anew from concrete values, inner events first, so that its checks run."""
  if isinstance(event, tuple):
    return tuple(map(_rebuild, event))
  if type(event) not in EVENT_TYPES.values():
    return event
  return type(event)(**{f.name: _rebuild(getattr(event, f.name)) for f in dataclasses.fields(event)})


def load(path: str | os.PathLike) -> Ledger:
  """Reads a file that `Ledger.save` or a `DurableLedger` wrote.

  A torn last line (the writer was killed while writing it, so its end is missing) is left out: its
  round's result was never used. Any other damage, or a file without a header, raises ValueError.
  """
  records, _ = _read(pathlib.Path(path))
  if not records:
    raise ValueError(f"Expected a jdp-ledger file in {path}, got a file without its header.")
  return Ledger().extend(itertools.chain.from_iterable(_entries_from_json(r["entries"]) for r in records[1:]))


class DurableLedger:
  """An append-only ledger file, written before a round's result is used.

  Every line carries a checksum. `append` returns once the operating system has
  the line on disk. Rounds arrive in order; a round that the file already holds
  is not written again, so a run resumed from a checkpoint may repeat rounds (bit
  for bit, with the same keys) without counting them twice.

  Args:
    path: the file; made if missing, repaired if its last line is torn.
    run: names the run. A file of another run is refused.

  Raises:
    ValueError: if the file is no ledger, belongs to another run, or holds a damaged line or a round twice
      (two writers).
  """

  def __init__(self, path: str | os.PathLike, run: str):
    self._path = pathlib.Path(path)
    self._rounds: dict[int, list[tuple[Event, int]]] = {}
    header = _line({**_header(), "run": run})
    records, intact = _read(self._path) if self._path.exists() else ([], 0)
    if not records and self._path.exists() and not header.encode().startswith(self._path.read_bytes()):
      raise ValueError(f"Expected a ledger in {self._path}, got a file without its header; choose another path.")
    if records and records[0].get("run") != run:
      raise ValueError(
        f"Expected a ledger of run {run!r} in {self._path}, got one of run {records[0].get('run')!r}; "
        "give each run a work directory of its own."
      )
    for number, record in enumerate(records[1:]):
      if record["round"] != number:
        raise ValueError(f"Expected round {number} in line {number + 2} of {self._path}, got round {record['round']}.")
      self._rounds[record["round"]] = _entries_from_json(record["entries"])
    self._file = open(self._path, "ab")  # noqa: SIM115 -- closed by close()
    self._file.truncate(intact)
    if not records:
      self._write(header)

  @property
  def last_round(self) -> int:
    """The last round recorded; -1 if there is none."""
    return max(self._rounds, default=-1)

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, as a value."""
    return Ledger().extend(itertools.chain.from_iterable(self._rounds[r] for r in sorted(self._rounds)))

  def append(self, first_round: int, *rounds: Iterable[Event]) -> None:
    """Records the events of round `first_round` and of those that follow it, in one write to disk.

    Args:
      first_round: the number of the first of the rounds.
      *rounds: for each round, its events (with scalar values: see `unstack`).

    Raises:
      ValueError: if a round is skipped, or is on file with other events.
    """
    new: dict[int, list[tuple[Event, int]]] = {}
    for number, events in enumerate(rounds, first_round):
      entries = [(event, 1) for stacked in events for event in unstack(stacked)]
      if number in self._rounds:
        if self._rounds[number] != entries:
          raise ValueError(f"Expected round {number} to repeat the events on file in {self._path}, got other events.")
        continue
      if number != self.last_round + len(new) + 1:
        raise ValueError(f"Expected round {self.last_round + 1} next in {self._path}, got round {number}.")
      new[number] = entries
    if new:
      self._write("".join(_line({"round": n, "entries": _entries_to_json(entries)}) for n, entries in new.items()))
      self._rounds.update(new)  # Not before: a round whose write failed must be written when it comes again.

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  def _write(self, text: str) -> None:
    self._file.write(text.encode())
    self._file.flush()
    os.fsync(self._file.fileno())


def to_json(value):
  """An event as JSON data: a dataclass becomes its fields and its type's name, a tuple a list."""
  if isinstance(value, tuple):
    return [to_json(v) for v in value]
  if not dataclasses.is_dataclass(value):
    return value
  fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
  return {"type": type(value).__name__, **fields}


def from_json(data):
  """The event that `to_json` described; its checks run again."""
  if isinstance(data, list):
    return tuple(map(from_json, data))
  if not isinstance(data, dict):
    return data
  fields = {name: from_json(value) for name, value in data.items() if name != "type"}
  kind: Any = EVENT_TYPES.get(data["type"]) or _GUARANTEES.get(data["type"])
  if kind is None:
    raise ValueError(f"Expected an event type this version of jdp knows, got {data['type']!r}.")
  return kind(**fields)


_GUARANTEES = {kind.__name__: kind for kind in typing.get_args(guarantees.AnyGuarantee)}


def _entries_to_json(entries):
  return [[to_json(event), count] for event, count in entries]


def _entries_from_json(data):
  return [(from_json(event), count) for event, count in data]


def _header():
  return {"format": "jdp-ledger", "version": FORMAT_VERSION}


def _line(record) -> str:
  text = json.dumps(record, separators=(",", ":"), default=lambda scalar: scalar.item())  # NumPy's, exactly
  return f"{zlib.crc32(text.encode()):08x} {text}\n"


def _parse(line: bytes):
  """The record of a line, or None if it is torn or damaged."""
  checksum, _, text = line.partition(b" ")
  if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text.removesuffix(b"\n")):
    return None
  return json.loads(text)


def _read(path: pathlib.Path):
  """All intact records of a file, and the number of bytes they take."""
  lines = path.read_bytes().splitlines(keepends=True)
  records = [_parse(line) for line in lines]
  if records and records[-1] is None and not lines[-1].endswith(b"\n"):  # Torn while it was written: never used.
    records.pop()
  if None in records:
    raise ValueError(f"Expected intact lines in {path}, got a damaged one at line {records.index(None) + 1}.")
  if records and (records[0].get("format"), records[0].get("version")) != ("jdp-ledger", FORMAT_VERSION):
    raise ValueError(f"Expected a jdp-ledger file of version {FORMAT_VERSION} in {path}, got header {records[0]}.")
  return records, sum(len(line) for line in lines[: len(records)])
