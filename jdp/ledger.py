"""The privacy ledger: what was done, as a value and as a durable file.

A `Ledger` is an immutable sequence of events, run-length encoded. It knows nothing of epsilons:
`jdp.accounting` reads it afterwards. It does know what speaks against them, such as noise whose key
was no secret (`Ledger.caveats`).

A `DurableLedger` is a file that grows. A run appends each round's events to it *before* the round's
result is used for anything that leaves the process. The file has three properties:

* It survives a kill at any moment, as a torn last line is repaired.
* It takes the same round of the same run only once.
* It has one writer at a time.

Both classes refuse an event whose number says that events before it are missing.
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
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from jdp import _validate, guarantees
from jdp._arguments import checked
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

    The event of round n comes after at least n events of its type, those of rounds 0 to n - 1. A
    loop that keeps its last event only (`fori_loop`) has lost the others. A run that is resumed
    goes on with the ledger of its earlier rounds (`load`). A gap is not seen in a ledger that holds
    another run too, with as many events of that type.

    Args:
      event: An event, as made on the host or as returned by a jitted step. If its arrays have a
        leading axis (stacked by a scan over rounds), it is unrolled to one event for each index
        (see `unstack`).
      count: How often it happened. For stacked events their axis says it.

    Returns:
      The new ledger. `self` is unchanged.

    Raises:
      TypeError: if `event` is not an event.
      ValueError: if count is not a whole number >= 0, or given with stacked events. Also if
        `unstack` refuses the event, or if events before it are missing.
    """
    events = unstack(event)
    if len(events) != 1 and count != 1:
      raise ValueError(
        f"Expected count=1 with events stacked by a scan ({len(events)} rounds), got {count}; "
        "leave it out, or append the events of each scan."
      )
    entries = [(e, count) for e in events]
    extended = self.extend(entries)  # also refuses a count that is no whole number
    _refuse_gap(_counts(self.entries), entries)
    return extended

  def extend(self, entries: Iterable[tuple[Event, int]]) -> "Ledger":
    """A new ledger with further (event, count) entries, in order.

    Their events hold scalars (see `unstack`). Every call copies the ledger. So add many events by
    one call, in time in proportion to their number, rather than by one call each. Entries may be
    any part of another ledger, so their numbers are not looked at. `append` does that.

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
      # Equal events in a row are one entry, so a run of many rounds stays small.
      if count and merged and _same(merged[-1][0], event):
        merged[-1] = (event, merged[-1][1] + int(count))
      elif count:
        merged.append((event, int(count)))
    return Ledger(tuple(merged))

  def __add__(self, other: "Ledger") -> "Ledger":
    """The events of this ledger, followed by those of the other.

    Raises:
      ValueError: if both hold local releases with a cap. `max_releases` is over a run, and they may
        be of two runs. If they are of one, `extend` the first ledger by the other's entries.
    """
    if not isinstance(other, Ledger):
      return NotImplemented
    _refuse_two_caps(self.entries, other.entries)
    return self.extend(other.entries)

  def rounds(self, start: int, stop: int) -> "Ledger":
    """The ledger of the rounds from `start` up to and without `stop`, as of a run of its own.

    Rounds are counted from 0. A round is a `Round` event and what follows it, up to the next
    `Round`. The first one also has what comes before it. In a ledger without any `Round`, every
    event is a round.

    A slice may begin within an epoch of a `ShuffledBatches` or `BallsInBins`. Its first round of
    that sampling is then marked as the start of the epoch. The record of a neighbour may be in it,
    and the accountant counts epochs by their starts. Two samplers with equal parameters in one
    ledger cannot be told apart. Slice their ledgers before adding them.

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
    """Why the guarantees of these events do not hold, in sentences.

    There are none if nothing is known against the guarantees. Code that shows an epsilon of the
    ledger shows its caveats with it, after "NOT PRIVATE". Sums, slices and files keep them. They
    take no part in equality.

    >>> event = Round(
    ...   PoissonSampling(0.01), GaussianSum(clip_norm=1.0, stddev=1.1), key_exposed=True
    ... )
    >>> ledger = subsampled_gaussian(0.01, 1.1, 3) + Ledger().append(event, count=2)
    >>> print(*ledger.caveats)  # doctest: +NORMALIZE_WHITESPACE
    the noise of 2 of 5 events came from a key that jdp.random.secure_key did not make, or that drew
    more than noise: whoever knows that key can undo it
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
    # A file beside it, as a file is replaced atomically on its own file system only.
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w") as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync_folder(path)


@checked
def subsampled_gaussian(
  sampling_probability: float, noise_multiplier: float, num_rounds: int
) -> Ledger:
  """The ledger of a planned run: Poisson sampling, one Gaussian sum a round, add/remove.

  >>> len(subsampled_gaussian(0.01, 1.1, 1000))
  1000
  """
  _validate.probability(sampling_probability=sampling_probability)
  _validate.non_negative(noise_multiplier=noise_multiplier)
  _validate.integer(0, num_rounds=num_rounds)
  event = Round(PoissonSampling(sampling_probability), GaussianSum(1.0, noise_multiplier))
  return Ledger().append(event, count=num_rounds)


def _same(event: Event, other: Event) -> bool:
  """Whether two events are equal, and their noise is equally well protected."""
  return event == other and bool(event.key_exposed) == bool(other.key_exposed)


def _counts(entries: Iterable[tuple[Event, int]]) -> collections.Counter[type]:
  """How many events there are of each type."""
  counts: collections.Counter[type] = collections.Counter()
  for event, count in entries:
    counts[type(event)] += count
  return counts


def _refuse_gap(counts: collections.Counter[type], entries: Iterable[tuple[Event, int]]) -> None:
  """Refuses an event whose number exceeds the count of the events of its type before it.

  It adds the entries to `counts`.
  """
  for event, count in entries:
    kind, number = type(event), typing.cast(int, event.number)
    counts[kind] += count
    # The last of the repeated events has counts[kind] - 1 of its type before it.
    if count and number >= counts[kind]:
      raise ValueError(
        f"Expected the {kind.__name__} of round {counts[kind] - count} at most, got that of round "
        f"{number}: the events of rounds between are missing. Append the event of every round (a "
        "scan returns and stacks them, a fori_loop loses them). Resume a run with the ledger of "
        "its earlier rounds."
      )


def _refuse_two_caps(*runs: Sequence[tuple[Event, int]]) -> None:
  """Refuses the entries of two runs whose local releases are capped.

  Each cap is over its own run.
  """
  if all(
    any(isinstance(e, LocalRelease) and e.max_releases is not None for e, _ in entries)
    for entries in runs
  ):
    raise ValueError(
      "Expected local releases with max_releases in one of two ledgers that are added, got them in "
      "both; state the cap over both runs (or None), or extend the first ledger if it is one run."
    )


def _with_epochs_started(entries: Iterable[tuple[Event, int]]) -> Iterator[tuple[Event, int]]:
  """The entries, with the first round of each sampling by epochs marked as the start of one."""
  seen = set()
  for event, count in entries:
    sampling = getattr(event, "sampling", None)
    if isinstance(sampling, ShuffledBatches | BallsInBins):
      starting = dataclasses.replace(sampling, starts_epoch=True)
      if starting not in seen:
        seen.add(starting)
        # Only the first round of the entry is marked. The others stay as they are.
        yield dataclasses.replace(typing.cast(Round, event), sampling=starting), 1
        count -= 1
    yield event, count


def unstack(event: Event) -> list[Event]:
  """The events of one jitted step or scan, on the host with Python floats.

  Args:
    event: The event. Its arrays are scalars, or have one leading axis of equal length, along which
      rounds follow each other.

  Raises:
    TypeError: if it is no event.
    ValueError: if a value is invalid, or if there are several axes. Also if the numbers of rounds
      (where there are any) do not increase along an axis. Those are rounds of several runs (`vmap`
      over seeds), each of which has a ledger.
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
        f"Expected numbers of rounds to increase, got {number} after {before}; if these are events "
        "of several runs, give each run a ledger of its own, with jax.tree.map(lambda x: x[run], "
        "events); if they are of one run, keep one event for each number."
      )
  return events


def _rows(leaves: Iterable[ArrayLike]) -> list[list[Any]]:
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
      f"Expected event arrays with at most one axis, of rounds, got shape {shape}; after a scan of "
      "scans, make one axis with jax.tree.map(lambda x: x.reshape(-1), events); after runs side by "
      "side (vmap), give each run a ledger of its own."
    )
  return [np.broadcast_to(array, shape).tolist() for array in arrays]


def _rebuild(event: Any) -> Any:
  """Makes an event anew from concrete values, inner events first, so that its checks run."""
  if isinstance(event, tuple):
    return tuple(map(_rebuild, event))
  if EVENT_TYPES.get(type(event).__name__) is not type(event):
    return event
  return type(event)(**{name: _rebuild(value) for name, value in vars(event).items()})


@checked
def load(path: str | os.PathLike) -> Ledger:
  """Reads a file that `Ledger.save` or a `DurableLedger` wrote.

  A last line without its end is torn: the writer was killed while writing it. It is left out, as
  its round's result was never used. Any other damage, or a file without a header, raises
  ValueError.
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
    header = _line({**_header(), "run": run})
    beginning = [header]
    if self._prior.entries:
      beginning.append(_line({"round": _BEFORE, "entries": _entries_to_json(self._prior.entries)}))
    records, intact = _read(self._path)
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
    # Nothing was changed so far: a file that is refused stays as it is.
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


def _sync_folder(path: pathlib.Path) -> None:
  """Brings a new name onto the disk: fsync of a file does not cover its folder's entry."""
  folder = os.open(path.absolute().parent, os.O_RDONLY)
  try:
    os.fsync(folder)
  finally:
    os.close(folder)


def to_json(value: Any) -> Any:
  """An event as JSON data.

  A dataclass becomes its fields and its type's name. A tuple becomes a list.
  """
  if isinstance(value, tuple):
    return [to_json(v) for v in value]
  if not dataclasses.is_dataclass(value):
    return value
  fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare}
  # Fields that take no part in equality are left out, except the mark of an exposed key.
  exposed = {"key_exposed": True} if getattr(value, "key_exposed", False) else {}
  return {"type": type(value).__name__, **fields, **exposed}


def from_json(data: Any) -> Any:
  """The event that `to_json` described. Its checks run again."""
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


def _entries_to_json(entries: Iterable[tuple[Event, int]]) -> list[list[Any]]:
  return [[to_json(event), count] for event, count in entries]


def _entries_from_json(data: Iterable[Any]) -> list[tuple[Event, int]]:
  return [(from_json(event), count) for event, count in data]


def _header() -> dict[str, Any]:
  return {"format": "jdp-ledger", "version": FORMAT_VERSION}


def _line(record: dict[str, Any]) -> str:
  """The line of a record, with its checksum in front."""
  # The default is for NumPy scalars, which become Python's numbers exactly.
  text = json.dumps(record, separators=(",", ":"), default=lambda scalar: scalar.item())
  return f"{zlib.crc32(text.encode()):08x} {text}\n"


def _parse(line: bytes) -> dict[str, Any] | None:
  """The record of a line, or None if it is torn or damaged."""
  checksum, _, text = line.partition(b" ")
  if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text.removesuffix(b"\n")):
    return None
  return json.loads(text)


def _read(path: pathlib.Path) -> tuple[list[dict[str, Any]], int]:
  """All intact records of a file, and the number of bytes they take."""
  lines = path.read_bytes().splitlines(keepends=True)
  records: list[Any] = [_parse(line) for line in lines]
  # A last line without its end was torn while it was written. Its round was never used.
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
