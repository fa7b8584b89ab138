"""What was done: the privacy ledger, as a value and as a durable file.

A `Ledger` is an immutable sequence of events, run-length encoded. It knows nothing of epsilons:
`jdp.accounting` reads it afterwards. It knows what speaks against them (`Ledger.caveats`): noise
whose key was no secret.

A `DurableLedger` is a file that grows. A run appends each round's events to it *before* the round's
result is used for anything that leaves the process; the file survives a kill at any moment (a torn
last line is repaired), takes the same round of the same run only once, and has one writer at a
time.

Both refuse an event whose number says that events before it are missing.
"""

import collections
import dataclasses
import fcntl
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

from jdp import _validate, guarantees
from jdp.events import (
  EVENT_TYPES,
  NO_NUMBER,
  BallsInBins,
  Event,
  GaussianSum,
  LocalRelease,
  PoissonSampling,
  Round,
  ShuffledBatches,
)

FORMAT_VERSION = 1
_BEFORE = -1  # the number, in a file, of what was released before the first round


@dataclasses.dataclass(frozen=True)
class Ledger:
  """An immutable, run-length encoded sequence of events.

  Attributes:
    entries: pairs (event, count): the event happened `count` times in a row.

  >>> event = Round(PoissonSampling(0.01), GaussianSum(clip_norm=1.0, stddev=1.1))
  >>> ledger = Ledger().append(event).append(event, count=99)
  >>> len(ledger), len(ledger.entries)
  (100, 1)
  >>> ledger.rounds(90, 100) + ledger.rounds(0, 90) == ledger
  True
  """

  entries: tuple[tuple[Event, int], ...] = ()

  def append(self, event: Event, *, count: int = 1) -> "Ledger":
    """A new ledger in which `event` has happened `count` more times.

    Args:
      event: an event, as made on the host or as returned by a jitted step. If its arrays have a
        leading axis (stacked by a scan over rounds), it is unrolled: one event for each index (see
        `unstack`).
      count: how often it happened; of stacked events their axis says it.

    Returns:
      The new ledger; `self` is unchanged.

    Raises:
      TypeError: if `event` is not an event.
      ValueError: if count is not a whole number >= 0, or given with stacked events; if `unstack`
        refuses the event; if events before it are missing: the event of round n comes after at
        least n events of its type, those of rounds 0 to n - 1. A loop that keeps its last event
        only (`fori_loop`) has lost the others. A run that is resumed goes on with the ledger of its
        earlier rounds (`load`). Not seen is a gap in a ledger that holds another run too, with as
        many events of that type.
    """
    events = unstack(event)
    if len(events) != 1 and count != 1:
      raise ValueError(
        f"Expected count=1 with events stacked by a scan ({len(events)} rounds), got {count}; "
        "leave it out, or append the events of each scan."
      )
    entries = [(e, count) for e in events]
    extended = self.extend(entries)  # refuses a count that is none
    _refuse_gap(_counts(self.entries), entries)
    return extended

  def extend(self, entries: Iterable[tuple[Event, int]]) -> "Ledger":
    """A new ledger with further (event, count) entries, in order; their events hold scalars (see
    `unstack`).

    A call copies the ledger: many events are added in time in proportion to their number by one
    call, not by one each. Entries may be any part of another ledger, so their numbers are not
    looked at: `append` does that.

    Raises:
      ValueError: if a count is not a whole number >= 0, or an event was stacked by a scan.
    """
    merged = list(self.entries)
    for event, count in entries:
      if not (isinstance(count, int | np.integer) and count >= 0):
        raise ValueError(f"Expected count to be a whole number >= 0, got {count!r}.")
      if np.ndim(event.number):
        number = np.size(event.number)
        raise ValueError(
          f"Expected the event of one round, got {number} stacked by a scan; append it, or unstack "
          "it."
        )
      if count and merged and _same(merged[-1][0], event):
        merged[-1] = (event, merged[-1][1] + int(count))
      elif count:
        merged.append((event, int(count)))
    return Ledger(tuple(merged))

  def __add__(self, other: "Ledger") -> "Ledger":
    """What happened here, and then there.

    Raises:
      ValueError: if both hold local releases with a cap: `max_releases` is over a run, and they may
        be of two. Of one run, `extend` the first ledger by the other's entries.
    """
    if not isinstance(other, Ledger):
      return NotImplemented
    _refuse_two_caps(self.entries, other.entries)
    return self.extend(other.entries)

  def rounds(self, start: int, stop: int) -> "Ledger":
    """The ledger of the rounds `start` (from 0) up to and without `stop`, as of a run of its own.

    A round is a `Round` event and what follows it, up to the next `Round` (the first one also has
    what comes before it); in a ledger without any, every event is a round. If a slice begins within
    an epoch of a `ShuffledBatches` or `BallsInBins`, its first round of that sampling is marked as
    the start of the epoch: the record of a neighbour may be in it, and the accountant counts epochs
    by their starts. Two samplers with equal parameters in one ledger cannot be told apart: slice
    their ledgers before adding them.

    Raises:
      ValueError: if `start` or `stop` is no whole number >= 0.
    """
    _validate.integer(0, start=start, stop=stop)
    kept: list[tuple[Event, int]] = []
    first_of_next, has_rounds = 0, any(isinstance(event, Round) for event, _ in self.entries)
    for event, count in self.entries:
      if has_rounds and not isinstance(event, Round):  # belongs to the round before it
        kept.append((event, count if start <= max(first_of_next - 1, 0) < stop else 0))
        continue
      first, first_of_next = first_of_next, first_of_next + count
      kept.append((event, max(0, min(first_of_next, stop) - max(first, start))))
    return Ledger().extend(_with_epochs_started(entry for entry in kept if entry[1]))

  @property
  def caveats(self) -> tuple[str, ...]:
    """Why the guarantees of these events do not hold, in sentences; none if nothing is known
    against them.

    Whoever shows an epsilon of the ledger shows them with it, after "NOT PRIVATE". They are kept by
    sums, slices and files, and are no part of equality.

    >>> event = Round(
    ...   PoissonSampling(0.01), GaussianSum(clip_norm=1.0, stddev=1.1), key_exposed=True
    ... )
    >>> (subsampled_gaussian(0.01, 1.1, 3) + Ledger().append(event, count=2)).caveats[0].split(":")[
    ...   0
    ... ]
    'the noise of 2 of 5 events came from a key that jdp.random.secure_key did not make, or that drew more than noise'
    """
    exposed = sum(count for event, count in self.entries if event.key_exposed)
    if not exposed:
      return ()
    return (
      f"the noise of {exposed} of {len(self)} events came from a key that jdp.random.secure_key "
      "did not make, or that drew more than noise: whoever knows that key can undo it",
    )

  def __len__(self) -> int:
    """The number of events."""
    return sum(count for _, count in self.entries)

  def __iter__(self) -> Iterator[Event]:
    """Every event, repeated as often as it happened."""
    return itertools.chain.from_iterable(itertools.repeat(e, n) for e, n in self.entries)

  def save(self, path: str | os.PathLike) -> None:
    """Writes the ledger as JSON Lines, atomically; `load` reads it back equal."""
    path = pathlib.Path(path)
    text = _line(_header()) + "".join(
      _line({"entries": _entries_to_json([entry])}) for entry in self.entries
    )
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w") as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync_folder(path)


def subsampled_gaussian(
  sampling_probability: float, noise_multiplier: float, num_rounds: int
) -> Ledger:
  """The ledger of a planned run: Poisson sampling, one Gaussian sum a round, add/remove.

  >>> len(subsampled_gaussian(0.01, 1.1, 1000))
  1000
  """
  event = Round(PoissonSampling(sampling_probability), GaussianSum(1.0, noise_multiplier))
  return Ledger().append(event, count=num_rounds)


def _same(event: Event, other: Event) -> bool:
  """Whether two events are equal, and their noise is as well protected."""
  return event == other and bool(event.key_exposed) == bool(other.key_exposed)


def _counts(entries: Iterable[tuple[Event, int]]) -> collections.Counter[type]:
  """How many events there are of each type."""
  counts: collections.Counter[type] = collections.Counter()
  for event, count in entries:
    counts[type(event)] += count
  return counts


def _refuse_gap(counts: collections.Counter[type], entries: Iterable[tuple[Event, int]]) -> None:
  """Refuses a number that is larger than that of the events before it, of the same type; adds to
  the counts.
  """
  for event, count in entries:
    kind, number = type(event), typing.cast(int, event.number)
    counts[kind] += count
    if count and number >= counts[kind]:
      raise ValueError(
        f"Expected the {kind.__name__} of round {counts[kind] - count} at most, got that of round "
        f"{number}: the events of rounds between are missing. Append the event of every round (a "
        "scan returns and stacks them, a fori_loop loses them); a resumed run, to the ledger of "
        "its earlier rounds."
      )


def _refuse_two_caps(*runs):
  """Refuses the entries of two runs whose local releases are capped: each cap is over its own
  run.
  """
  if all(
    any(isinstance(e, LocalRelease) and e.max_releases is not None for e, _ in entries)
    for entries in runs
  ):
    raise ValueError(
      "Expected local releases with max_releases in one of two ledgers that are added, got them in "
      "both; state the cap over both runs (or None), or extend the first ledger if it is one run."
    )


def _with_epochs_started(entries):
  """The entries, with the first round of each sampling by epochs marked as the start of one."""
  seen = set()
  for event, count in entries:
    sampling = getattr(event, "sampling", None)
    if isinstance(sampling, ShuffledBatches | BallsInBins):
      starting = dataclasses.replace(sampling, starts_epoch=True)
      if starting not in seen:
        seen.add(starting)
        yield dataclasses.replace(event, sampling=starting), 1
        count -= 1
    yield event, count


def unstack(event: Event) -> list[Event]:
  """The events of one jitted step or scan, on the host with Python floats.

  Args:
    event: its arrays are scalars, or have one leading axis of equal length: rounds one after the
      other.

  Raises:
    TypeError: if it is no event.
    ValueError: if a value is invalid; if there are several axes, or along one the numbers of rounds
      (where there are any) do not increase: those are rounds of several runs (`vmap` over seeds),
      each of which has a ledger.
  """
  if type(event) not in EVENT_TYPES.values():
    raise TypeError(f"Expected an event of jdp.events, got {type(event).__name__}.")
  leaves, treedef = jax.tree.flatten(event)
  rows = zip(*_rows(leaves), strict=True)
  events = [_rebuild(jax.tree.unflatten(treedef, values)) for values in rows]
  numbers = [e.number for e in events if e.number != NO_NUMBER]
  for before, number in itertools.pairwise(numbers):
    if number <= before:
      raise ValueError(
        f"Expected numbers of rounds to increase, got {number} after {before}; of several runs "
        "take one's events, jax.tree.map(lambda x: x[run], events), as each has a ledger; of one "
        "run keep one event for each number."
      )
  return events


def _rows(leaves) -> list[list[Any]]:
  """Each leaf as a list of its values in each round."""
  arrays = [np.asarray(leaf) for leaf in leaves]
  shapes = {array.shape for array in arrays} - {()}
  if len(shapes) > 1:
    raise ValueError(
      f"Expected one axis, of rounds, in all arrays of an event, got shapes {sorted(shapes)}."
    )
  shape = shapes.pop() if shapes else (1,)
  if len(shape) > 1:
    raise ValueError(
      f"Expected event arrays with at most one axis, of rounds, got shape {shape}; of a scan of "
      "scans make one axis, jax.tree.map(lambda x: x.reshape(-1), events); of runs side by side "
      "(vmap) take one run's, each has a ledger."
    )
  return [np.broadcast_to(array, shape).tolist() for array in arrays]


def _rebuild(event):
  """Makes an event anew from concrete values, inner events first, so that its checks run."""
  if isinstance(event, tuple):
    return tuple(map(_rebuild, event))
  if EVENT_TYPES.get(type(event).__name__) is not type(event):
    return event
  return type(event)(**{name: _rebuild(value) for name, value in vars(event).items()})


def load(path: str | os.PathLike) -> Ledger:
  """Reads a file that `Ledger.save` or a `DurableLedger` wrote.

  A torn last line (the writer was killed while writing it, so its end is missing) is left out: its
  round's result was never used. Any other damage, or a file without a header, raises ValueError.
  """
  records, _ = _read(pathlib.Path(path))
  if not records:
    raise ValueError(f"Expected a jdp-ledger file in {path}, got a file without its header.")
  return Ledger().extend(
    itertools.chain.from_iterable(_entries_from_json(r["entries"]) for r in records[1:])
  )


class DurableLedger:
  """An append-only ledger file, written before a round's result is used.

  Every line carries a checksum. `append` returns once the operating system has the line on disk.
  Rounds arrive in order; a round that the file already holds is not written again, so a run resumed
  from a checkpoint may repeat rounds (bit for bit, with the same keys) without counting them twice.
  The file is locked (flock) until it is closed or the process ends.

  Args:
    path: the file; made if missing, repaired if its last line is torn.
    run: names the run. A file of another run is refused.
    prior: what was released about the same records before the run's first round; on disk when this
      returns.

  Raises:
    ValueError: if the file is no ledger, belongs to another run, begins with other earlier
      releases, or holds a damaged line or a round twice.
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
    try:
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise BlockingIOError(
        error.errno,
        f"Expected to be the only writer of {self._path}, got a file that another has open; stop "
        "that one.",
      ) from None

  def _recover(self, run: str) -> None:
    """Reads what an earlier process wrote, and cuts off a torn last line; writes what a new file
    begins with.
    """
    header = _line({**_header(), "run": run})
    beginning = [header]
    if self._prior.entries:
      beginning.append(_line({"round": _BEFORE, "entries": _entries_to_json(self._prior.entries)}))
    records, intact = _read(self._path)
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
    prior = _entries_from_json(records[1]["entries"]) if has_prior else []
    if len(records) > 1 and _entries_to_json(prior) != _entries_to_json(self._prior.entries):
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
      self._rounds.append(_entries_from_json(record["entries"]))
    self._counts = _counts(itertools.chain.from_iterable(self._rounds))
    self._file.truncate(intact)
    if missing := beginning[len(records) :]:
      self._write("".join(missing))
      _sync_folder(self._path)

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
      first_round: the number of the first of the rounds.
      *rounds: for each round, its events (with scalar values: see `unstack`).

    Raises:
      ValueError: if a round is skipped, or is on file with other events; if events are missing, as
        for `Ledger.append`; or if both it and what came before the run hold local releases with a
        cap, as for the sum of two ledgers.
    """
    new: list[list[tuple[Event, int]]] = []
    for number, events in enumerate(rounds, first_round):
      entries = [(event, 1) for stacked in events for event in unstack(stacked)]
      following = len(self._rounds) + len(new)
      if not 0 <= number <= following:
        raise ValueError(f"Expected round {following} next in {self._path}, got round {number}.")
      if number == following:
        new.append(entries)
      elif _entries_to_json(self._rounds[number]) != _entries_to_json(entries):
        raise ValueError(
          f"Expected round {number} to repeat the events on file in {self._path}, got other events."
        )
    if new:
      counts = self._counts.copy()
      _refuse_gap(counts, itertools.chain.from_iterable(new))
      _refuse_two_caps(self._prior.entries, [entry for entries in new for entry in entries])
      lines = (
        _line({"round": n, "entries": _entries_to_json(e)})
        for n, e in enumerate(new, len(self._rounds))
      )
      self._write("".join(lines))
      # Not before: a round whose write failed must be written when it comes again.
      self._rounds += new
      self._counts = counts

  def close(self) -> None:
    """Closes the file; another writer may open it."""
    self._file.close()

  def _write(self, text: str) -> None:
    self._file.write(text.encode())
    self._file.flush()
    os.fsync(self._file.fileno())


def _sync_folder(path: pathlib.Path) -> None:
  """Brings a new name onto the disk: fsync of a file does not cover its folder's entry."""
  folder = os.open(path.absolute().parent, os.O_RDONLY)
  try:
    os.fsync(folder)
  finally:
    os.close(folder)


def to_json(value):
  """An event as JSON data: a dataclass becomes its fields and its type's name, a tuple a list."""
  if isinstance(value, tuple):
    return [to_json(v) for v in value]
  if not dataclasses.is_dataclass(value):
    return value
  fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare}
  exposed = {"key_exposed": True} if getattr(value, "key_exposed", False) else {}
  return {"type": type(value).__name__, **fields, **exposed}


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
  # NumPy's, exactly
  text = json.dumps(record, separators=(",", ":"), default=lambda scalar: scalar.item())
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
  # Torn while it was written: never used.
  if records and records[-1] is None and not lines[-1].endswith(b"\n"):
    records.pop()
  if None in records:
    raise ValueError(
      f"Expected intact lines in {path}, got a damaged one at line {records.index(None) + 1}."
    )
  if records and (records[0].get("format"), records[0].get("version")) != (
    "jdp-ledger",
    FORMAT_VERSION,
  ):
    raise ValueError(
      f"Expected a jdp-ledger file of version {FORMAT_VERSION} in {path}, got header {records[0]}."
    )
  return records, sum(len(line) for line in lines[: len(records)])
