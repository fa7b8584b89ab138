"""The ledger as an immutable value."""

import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.events import (
  CorrelatedGaussianSum,
  CyclicPoissonSampling,
  GaussianSum,
  LocalRelease,
  MinSeparationSampling,
  PoissonSampling,
  Round,
)
from jdp.events.base import MARKS, NO_NUMBER
from jdp.events.rounds import Event
from jdp.guarantees import Relation
from jdp.ledger.file_format import check_key, file_header, sync_folder, to_lines
from jdp.ledger.joining import (
  NumberedRuns,
  count_kinds,
  numbered_runs,
  refuse_gap,
  refuse_later_rounds,
  refuse_two_caps,
  rounds_between,
  with_epochs_started,
)
from jdp.ledger.records import END_RECORD, entry_records
from jdp.ledger.unstacking import unstack

_BLOCK = 256  # entries
_EVENTS = frozenset([Round, LocalRelease])


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
  """Successive entries of a ledger, shared as one object by all ledgers that continue it.

  Results about a block can be cached by its identity.
  """

  entries: tuple[tuple[Event, int], ...]


@dataclasses.dataclass(frozen=True)
class Ledger:
  """An immutable, run-length encoded sequence of events.

  Attributes:
    entries: pairs (event, count): the event happened `count` times in a row.
    blocks: the same entries in blocks of equal length, without the last ones.
    runs: identities of the runs that recorded it; none if it is planned. They do not count in
      equality.

  Raises:
    TypeError: if entries are not a tuple of pairs, or an event is neither a `Round` nor a
      `LocalRelease`.
    ValueError: if a count is not a whole number > 0, or an event was stacked by a scan.

  >>> event = Round(PoissonSampling(0.01), GaussianSum(clip_norm=1.0, stddev=1.1))
  >>> ledger = Ledger().append(event).append(event, count=99)
  >>> len(ledger), len(ledger.entries)
  (100, 1)
  >>> ledger.rounds(90, 100) + ledger.rounds(0, 90) == ledger
  True
  """

  entries: tuple[tuple[Event, int], ...] = ()
  blocks: tuple[Block, ...] = dataclasses.field(init=False, repr=False, compare=False)
  runs: frozenset[str] = dataclasses.field(
    init=False, repr=False, compare=False, default=frozenset()
  )

  def __post_init__(self):
    if not isinstance(self.entries, tuple):
      raise TypeError(
        f"Expected entries to be a tuple of (event, count), got {type(self.entries).__name__}; "
        "append events to Ledger()."
      )
    self._set(tuple(_check_entry(entry, 1) for entry in self.entries), ())

  def _set(self, entries: tuple[tuple[Event, int], ...], begun: tuple[Block, ...]) -> None:
    """Sets the entries. The first of them are those of the given blocks."""
    # The last entry is in no block: `extend` may count it up.
    stops = range(_BLOCK * (len(begun) + 1), len(entries), _BLOCK)
    blocks = (*begun, *(Block(entries[stop - _BLOCK : stop]) for stop in stops))
    object.__setattr__(self, "entries", entries)
    object.__setattr__(self, "blocks", blocks)

  @property
  def rest(self) -> tuple[tuple[Event, int], ...]:
    """The entries after its blocks."""
    return self.entries[_BLOCK * len(self.blocks) :]

  def append(self, event: Event, *, count: int = 1) -> "Ledger":
    """A new ledger in which `event` has happened `count` more times.

    The event of round n comes after at least n events of its type and observer, those of rounds 0
    to n - 1. A loop that keeps only its last event (`fori_loop`) has lost the others. A resumed run
    goes on with the ledger of its earlier rounds (`load`). A gap is not noticed in a ledger that
    also holds another run with as many such events.

    Args:
      event: An event, as made on the host or as returned by a jitted step. If its arrays have a
        leading axis (stacked by a scan over rounds), it is unrolled to one event for each index
        (see `unstack`).
      count: How often it happened. For stacked events, the axis gives the count.

    Returns:
      The new ledger. `self` is unchanged.

    Raises:
      TypeError: if `event` is not an event.
      ValueError: if count is not a whole number >= 0, or given with stacked events. Also if
        `unstack` refuses the event, or if events before it are missing.

    >>> event = Round(PoissonSampling(0.01), GaussianSum(clip_norm=1.0, stddev=1.1))
    >>> before = subsampled_gaussian(0.01, 1.1, 90)
    >>> after = before.append(event, count=10)
    >>> len(before), len(after)
    (90, 100)
    """
    events = unstack(event)
    if len(events) != 1 and count != 1:
      raise ValueError(
        f"Expected count=1 with events stacked by a scan ({len(events)} rounds), got {count}; "
        "leave it out, or append the events of each scan."
      )
    entries = [(e, count) for e in events]
    extended = self.extend(entries)  # also refuses a count that is not a whole number
    refuse_gap(count_kinds(self.entries), entries)
    return extended

  def extend(self, entries: Iterable[tuple[Event, int]]) -> "Ledger":
    """A new ledger with further (event, count) entries, in order.

    Their events hold scalars (see `unstack`). Every call copies the ledger. So add many events by
    one call, which takes time in proportion to their number, not by one call each. Entries may be
    any part of another ledger, so their numbers are not checked. `append` checks them.

    Raises:
      TypeError: if entries are not pairs, or an event is neither a `Round` nor a `LocalRelease`.
      ValueError: if a count is not a whole number >= 0, or an event was stacked by a scan.

    >>> run = subsampled_gaussian(0.01, 1.1, 100)
    >>> Ledger().extend(entry for part in (run, run) for entry in part.entries) == run + run
    True
    """
    try:
      added = iter(entries)
    except TypeError:
      got = type(entries).__name__
      raise TypeError(f"Expected entries to be pairs (event, count), got {got}.") from None
    merged = list(self.entries)
    last = merged[-1][0] if merged else None
    for entry in added:
      event, count = entry = _check_entry(entry, 0)
      # Equal events in a row are one entry, so a run of many rounds stays small.
      if count and last is not None and same_event(last, event):
        merged[-1] = (event, merged[-1][1] + count)
      elif count:
        merged.append(entry)
        last = event
    # Without the constructor, which would check all entries again.
    extended = object.__new__(Ledger)
    extended._set(tuple(merged), self.blocks)
    object.__setattr__(extended, "runs", self.runs)
    return extended

  def recorded_by(self, runs: Iterable[str]) -> "Ledger":
    """The ledger with further `runs`.

    Raises:
      ValueError: if one of them is among its own runs. Copies of one run draw the same samples, so
        sampling does not amplify them separately, as a sum of epsilons would assume.
    """
    runs = frozenset(runs)
    if common := self.runs & runs:
      raise ValueError(
        f"Expected ledgers of different runs, got two of run {', '.join(sorted(common))}: copies "
        "of a run, or runs with one noise key, draw the same samples, and together cost more than "
        "the sum; take one of the two, or train anew with another key and this one as the prior."
      )
    recorded = self.extend(())
    object.__setattr__(recorded, "runs", self.runs | runs)
    return recorded

  def __add__(self, other: "Ledger") -> "Ledger":
    """The events of this ledger, followed by those of the other.

    Raises:
      ValueError: if both hold local releases with a cap. `max_releases` counts over one run, and
        they may come from two. If they come from one run, `extend` the first ledger by the other's
        entries. The same holds for samplings with `max_participations`, and for rounds with a
        position or an index, of which one ledger lacks the first. Also if both were recorded by one
        run (`recorded_by`).
    """
    if not isinstance(other, Ledger):
      return NotImplemented
    refuse_two_caps(self.entries, other.entries)
    refuse_later_rounds(self.numbered_runs, other.numbered_runs)
    refuse_later_rounds(other.numbered_runs, self.numbered_runs)
    return self.recorded_by(other.runs).extend(other.entries)

  def rounds(self, start: int, stop: int) -> "Ledger":
    """The ledger of the rounds from `start` up to and without `stop`.

    Rounds are counted from 0, for each observer: a round may have one `Round` event for the models
    and another for the server. What follows a round, up to the next `Round`, belongs to it. What
    comes before the first round belongs to the first. In a ledger without any `Round`, every event
    is a round. A slice has the same `runs`. So join slices of a recorded run by `extend`.

    A slice may begin within an epoch of a sampling that has `starts_epoch`. Its first round of that
    sampling is then marked as the start of the epoch. The record in which neighbours differ may be
    in this part, and the accountant counts epochs by their starts. Two samplers with equal
    parameters in one ledger cannot be told apart. Slice their ledgers before you add them.

    Raises:
      ValueError: if `start` or `stop` is not a whole number >= 0, or a later part is asked of
        several runs whose rounds are numbered. Also if `start` or `stop` splits rounds that several
        releases follow, or one observer has more rounds than another, as with a prior: then nothing
        tells what belongs to which round.

    >>> len(subsampled_gaussian(0.01, 1.1, 1000).rounds(100, 250))
    150
    """
    _validate.integer(0, start=start, stop=stop)
    kept = rounds_between(self.entries, start, stop)
    if start and (several := self.numbered_runs.several & numbered_runs(kept).first.keys()):
      raise ValueError(
        f"Expected start=0 in a ledger of several runs with {several.pop()[0]}, got {start}; slice "
        "the ledger of one run."
      )
    return Ledger().recorded_by(self.runs).extend(with_epochs_started(kept))

  @functools.cached_property
  def numbered_runs(self) -> NumberedRuns:
    """Its runs whose rounds are numbered."""
    return numbered_runs(self.entries)

  @property
  def caveats(self) -> tuple[str, ...]:
    """Why the guarantees of these events do not hold, in sentences.

    There are none if nothing is known against the guarantees. Code that shows an epsilon of the
    ledger shows its caveats with it, after "NOT PRIVATE". Sums, slices and files keep the caveats.
    They do not count in equality.

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
    # Not `len(self)`: it fails above the largest machine integer.
    total = sum(count for _, count in self.entries)
    return (
      f"the noise of {exposed} of {total} events came from a key that jdp.random.secure_key "
      "did not make, or that drew more than noise: whoever knows that key can undo it",
    )

  def __len__(self) -> int:
    """The number of events."""
    return sum(count for _, count in self.entries)

  def __iter__(self) -> Iterator[Event]:
    """Every event, repeated as often as it happened."""
    return itertools.chain.from_iterable(itertools.repeat(e, n) for e, n in self.entries)

  def save(self, path: str | os.PathLike, *, key: bytes | None = None) -> None:
    """Writes the ledger as JSON Lines, atomically and closed; `load` reads it back equal.

    Args:
      path: the file, replaced if it exists.
      key: at least 16 secret bytes. Whoever loads the file with this key knows that a holder of the
        key wrote it. None: whoever can write the file can write another ledger in its place.
    """
    check_key(key)
    path = pathlib.Path(path)
    runs = {"runs": sorted(self.runs)} if self.runs else {}
    records = itertools.chain([file_header(key, **runs)], entry_records(self.entries), [END_RECORD])
    # A file next to it, as a file can be replaced atomically only within its file system.
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
      file.writelines(line for line, _ in to_lines(records, b"", key))
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path)


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


@checked
def correlated_gaussian(
  query: CorrelatedGaussianSum,
  sampling: MinSeparationSampling | CyclicPoissonSampling,
  *,
  relation: Relation | str = Relation.ADD_REMOVE,
) -> Ledger:
  """The ledger of a planned run with correlated noise: all rounds of the query's plan.

  Args:
    query: the event of any round (`jdp.matrix_factorization.planned_sum`).
    sampling: the event of any round (`Sampler.event`).
    relation: the neighbouring relation that the rounds declare.

  >>> from jdp.matrix_factorization import planned_sum, square_root_toeplitz
  >>> query = planned_sum(square_root_toeplitz(64, bands=16), 2.0, min_separation=16)
  >>> sampling = MinSeparationSampling(16, 4, population=1000, by_identity=True)
  >>> len(correlated_gaussian(query, sampling))
  64
  """

  def planned(index: int) -> Round:
    return Round(
      dataclasses.replace(sampling, position=index),
      dataclasses.replace(query, index=index),
      Relation(relation),
    )

  return Ledger().extend((planned(index), 1) for index in range(query.num_rounds))


def _check_entry(entry: tuple[Event, int], least: int) -> tuple[Event, int]:
  """The entry, its count a Python int. Refuses what is not one round's event, or not a count."""
  try:
    event, count = entry
  except (TypeError, ValueError):
    raise TypeError(f"Expected entries (event, count), got {type(entry).__name__}.") from None
  # A fast path for entries as files hold them: a long file is read in three quarters of the time.
  plain = type(entry) is tuple and type(event) in _EVENTS and type(count) is int
  if plain and count >= least and event.number is NO_NUMBER:
    return entry
  if not isinstance(event, Round | LocalRelease):
    raise TypeError(
      f"Expected an event of jdp.events that is a Round or a LocalRelease, got "
      f"{type(event).__name__} among the entries."
    )
  # Python's bool is an int, but not a count.
  if type(count) is not int or count < least:
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < least:
      raise ValueError(f"Expected count to be a whole number >= {least}, got {count!r}.")
    entry = event, int(count)
  if event.number is not NO_NUMBER and np.ndim(event.number):
    raise ValueError(
      f"Expected the event of one round, got {np.size(event.number)} stacked by a scan; append it, "
      "or unstack it."
    )
  return entry


def same_event(event: Event, other: Event) -> bool:
  """Whether two events are equal and have the same marks."""
  return event == other and all(
    bool(getattr(event, mark)) == bool(getattr(other, mark)) for mark in MARKS
  )


def marked_exposed(events: Sequence[Event]) -> tuple[Event, ...]:
  """The events, with the mark of noise whose key is not secret."""
  if all(event.key_exposed is True for event in events):
    return tuple(events)
  return tuple(
    event if event.key_exposed is True else dataclasses.replace(event, key_exposed=True)
    for event in events
  )
