"""The records of a training run, in memory or in a folder: ledger, metrics and last state."""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import jax
import numpy as np

from jdp import random
from jdp.events import Event
from jdp.federated.runs.digest import digest
from jdp.federated.runs.environment import environment
from jdp.federated.runs.ledger_marks import keep_mark, kept_mark
from jdp.federated.runs.released import Released
from jdp.federated.runs.run_folder import (
  LEDGER,
  METRICS,
  RunFolder,
  check_description,
  fingerprint,
  hold,
  kept_key,
  run_folder,
)
from jdp.federated.runs.whole_files import RowFile
from jdp.ledger import DurableLedger, Ledger, unstack
from jdp.ledger.value import marked_exposed, refuse_two_caps

PyTree = Any
Workdir = str | os.PathLike | RunFolder


class Records(Protocol):
  """The records of a run."""

  name: str
  """Of the run, for messages."""

  @property
  def rows(self) -> list[dict[str, Any]]:
    """The metrics, one row for each evaluation."""

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, with what came before the run."""

  @property
  def reached(self) -> Ledger:
    """What was recorded up to the round reached: less, while rounds on record are repeated."""

  @property
  def last_round(self) -> int:
    """The last round recorded; -1 if there is none."""

  def restore(self, state: PyTree) -> tuple[int, PyTree]:
    """(rounds done, state) of the last save, or (0, the state given) if there is none."""

  def append_events(self, first_round: int, rounds: Iterable[tuple[Event, ...]]) -> None:
    """Records the events of round `first_round` and of those that follow it."""

  def check_release(self, done: int, params: PyTree) -> None:
    """Refuses a model if another was released after the same round."""

  def append_row(self, row: dict[str, Any]) -> None:
    """Records the metrics of a round."""

  def save(self, done: int, state: PyTree) -> None:
    """Saves the state after `done` rounds."""

  def finish(self) -> None:
    """Records that the run is over."""

  def close(self) -> None:
    """Ends the recording."""


class MemoryRecords:
  """Records that end with the process.

  Args:
    prior: what was released before the first round.
    exposed: whether the key of the noise is no secret. Then all rounds are marked.
  """

  name = "the run"

  def __init__(self, prior: Ledger, *, exposed: bool):
    self._ledger, self._prior, self._exposed = prior, prior, exposed
    self.last_round = -1
    self.rows: list[dict[str, Any]] = []

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, with what came before the run."""
    return self._ledger

  @property
  def reached(self) -> Ledger:
    """All that was recorded: no round is repeated."""
    return self.ledger

  def restore(self, state: PyTree) -> tuple[int, PyTree]:
    """(0, the state given): nothing was saved."""
    return 0, state

  def append_events(self, first_round: int, rounds: Iterable[tuple[Event, ...]]) -> None:
    """Records the events of round `first_round` and of those that follow it."""
    # Several processes may repeat rounds that they were told of.
    rounds = list(rounds)[self.last_round + 1 - first_round :]
    events = [event for event, _ in _entries(rounds)]
    new = [(event, 1) for event in (marked_exposed(events) if self._exposed else events)]
    refuse_two_caps(new, self._prior.entries)
    self._ledger = self._ledger.extend(new)
    self.last_round += len(rounds)

  def check_release(self, done: int, params: PyTree) -> None:
    """Refuses nothing: no round is repeated."""

  def take(self, ledger: Ledger, last_round: int, rows: list[dict[str, Any]]) -> None:
    """Goes on from what another process has recorded."""
    self._ledger, self.last_round, self.rows = ledger, last_round, rows

  def append_row(self, row: dict[str, Any]) -> None:
    """Records the metrics of a round."""
    self.rows.append(row)

  def save(self, done: int, state: PyTree) -> None:
    """Saves nothing."""

  def finish(self) -> None:
    """Nothing is to be closed."""

  def close(self) -> None:
    """Nothing is open."""


class FolderRecords:
  """Records in a folder, from which a run goes on after it was killed.

  Args:
    folder: of the run.
    noise_key: its key of noise. None: one that the folder keeps.
    data_key: its key of local training. None: one that the folder keeps.
    prior: what was released before the first round.
    clients: the data of all clients.
    start: the first state.

  Attributes:
    keys: for noise and for data. A run's name belongs to one key of noise, so no round is done
      again with other noise.

  Raises:
    ImportError: if orbax is not installed. It writes checkpoints.
    ValueError: if another process has the run, or a key is lost or damaged. Also if the ledger in
      the folder is of another run, key or prior, or was shortened. Also if the run was begun with
      other data, another state or key of local training, or in another environment.
  """

  def __init__(
    self,
    folder: RunFolder,
    noise_key: jax.Array | None,
    data_key: jax.Array | None,
    prior: Ledger,
    clients: PyTree,
    start: PyTree,
  ):
    # Imported here, as orbax is an optional dependency.
    try:
      from jdp.federated.runs.checkpoints import Checkpoints
    except ModuleNotFoundError as error:
      raise ImportError(
        "Expected orbax-checkpoint with a workdir, got none; pip install 'jdp[checkpoints]', or "
        "leave workdir out."
      ) from error
    self.name = folder.name
    self._folder, self._prior = folder, prior
    # What is refused must leave neither a lock nor orbax's threads behind.
    with contextlib.ExitStack() as opened:
      opened.enter_context(hold(folder.secret))
      self.keys = (
        _key(noise_key, folder, "noise_key"),
        _key(data_key, folder, "data_key"),
      )
      digests = {
        "data": digest(clients),
        "first state": digest(start),
        "key of noise": fingerprint(self.keys[0]),
        "key of local training": fingerprint(self.keys[1]),
      }
      check_description(folder, digests, environment())
      self._ledger = DurableLedger(
        folder.path / LEDGER,
        f"{folder.name} {fingerprint(self.keys[0])}",
        prior,
        key_exposed=bool(random.is_exposed(*self.keys)),
        expected=kept_mark(folder.secret),
      )
      opened.callback(self._ledger.close)
      self._released = Released(folder.secret / "released")
      self._checkpoints = Checkpoints(folder.secret / "checkpoints")
      opened.callback(self._checkpoints.close)
      self._opened = opened.pop_all()

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, with what came before the run."""
    return self._ledger.ledger

  @property
  def reached(self) -> Ledger:
    """What was recorded up to the round reached: less, while rounds on record are repeated."""
    return self.ledger if self._repeated is None else self._repeated

  @property
  def last_round(self) -> int:
    """The last round on file; -1 if there is none."""
    return self._ledger.last_round

  @property
  def rows(self) -> list[dict[str, Any]]:
    """The metrics, one row for each evaluation."""
    return self._metrics.rows

  def restore(self, state: PyTree) -> tuple[int, PyTree]:
    """(rounds done, state) of the last save, or (0, the state given) if there is none.

    Later metrics are dropped.

    Raises:
      ValueError: if the ledger lacks rounds that were done, or the metrics are not those of the
        rounds done.
    """
    start = (state, _digest_of_rows([]), np.int64(len(self._prior)))
    done, (state, seen, events) = self._checkpoints.restore(start)
    if not done <= self.last_round + 1:
      raise ValueError(
        f"Expected the events of {done} rounds in {self._folder.path / LEDGER}, got those of "
        f"{self.last_round + 1}; {self._remedy}"
      )
    self._repeated = _first(self.ledger, int(events)) if done <= self.last_round else None
    try:
      self._metrics = RowFile(self._folder.path / METRICS, done)
      whole = np.array_equal(seen, _digest_of_rows(self.rows))
    except ValueError:
      whole = False
    if not whole:
      raise ValueError(
        f"Expected the metrics up to round {done} in {self._folder.path / METRICS} as they were "
        f"written, got others; {self._remedy}"
      )
    return done, state

  def append_events(self, first_round: int, rounds: Iterable[tuple[Event, ...]]) -> None:
    """Records the events of round `first_round` and of those that follow it.

    All are written to disk at once.
    """
    rounds = list(rounds)
    on_record = self.last_round
    self._ledger.append(first_round, *rounds)
    keep_mark(self._folder.secret, self._ledger.mark)
    if self._repeated is not None:
      ahead = first_round + len(rounds) <= on_record
      self._repeated = self._repeated.extend(_entries(rounds)) if ahead else None

  def check_release(self, done: int, params: PyTree) -> None:
    """Refuses a model if another was released after the same round."""
    self._released.check(done, params)

  def append_row(self, row: dict[str, Any]) -> None:
    """Records the metrics of a round."""
    self._metrics.append(row)

  def save(self, done: int, state: PyTree) -> None:
    """Saves the state after `done` rounds."""
    self._checkpoints.save(done, (state, _digest_of_rows(self.rows), np.int64(len(self.reached))))

  def finish(self) -> None:
    """Records that the run is over. Its ledger takes no further rounds."""
    self._ledger.finish()
    keep_mark(self._folder.secret, self._ledger.mark)

  def close(self) -> None:
    """Closes the files; another process may go on."""
    self._opened.close()

  @property
  def _remedy(self) -> str:
    return (
      f"restore the file from a copy, or remove {self._folder.secret / 'checkpoints'}: the run "
      "then repeats its rounds, bit for bit, and records them again."
    )


def open_records(
  workdir: Workdir | None,
  noise_key: jax.Array | None,
  data_key: jax.Array | None,
  prior: Ledger,
  clients: PyTree,
  start: PyTree,
) -> tuple[Records, tuple[jax.Array, jax.Array]]:
  """The records of a run, and its keys for noise and for data.

  Args:
    workdir: where the run keeps its files. None: in memory.
    noise_key: the run's key of noise. None: one of its own, which a folder keeps.
    data_key: the run's key of local training. None: one of its own, kept likewise.
    prior: what was released before the first round.
    clients: the data of all clients.
    start: the first state.

  Raises:
    ImportError: see `FolderRecords`.
    ValueError: see `FolderRecords`.
  """
  if jax.process_count() > 1:
    return _open_shared(workdir, noise_key, data_key, prior, clients, start)
  return _open(workdir, noise_key, data_key, prior, clients, start)


def _open(
  workdir: Workdir | None,
  noise_key: jax.Array | None,
  data_key: jax.Array | None,
  prior: Ledger,
  clients: PyTree,
  start: PyTree,
) -> tuple[Records, tuple[jax.Array, jax.Array]]:
  """As `open_records`, of one process."""
  if workdir is None:
    keys = _key(noise_key, None, "noise_key"), _key(data_key, None, "data_key")
    return MemoryRecords(prior, exposed=bool(random.is_exposed(*keys))), keys
  records = FolderRecords(run_folder(workdir), noise_key, data_key, prior, clients, start)
  return records, records.keys


def _open_shared(
  workdir: Workdir | None,
  noise_key: jax.Array | None,
  data_key: jax.Array | None,
  prior: Ledger,
  clients: PyTree,
  start: PyTree,
) -> tuple[Records, tuple[jax.Array, jax.Array]]:
  """As `open_records`, where several processes compute a run: the first of them alone has files."""
  # Here, as importing it takes time that a run of one process need not spend.
  from jdp.federated.runs.shared_records import SharedRecords, told

  opened: list[tuple[Records, tuple[jax.Array, jax.Array]]] = []
  told(lambda: opened.append(_open(workdir, noise_key, data_key, prior, clients, start)))

  def key(given: jax.Array | None, place: int) -> jax.Array:
    if given is not None:
      return given
    made = told(lambda: np.asarray(jax.random.key_data(opened[0][1][place])).tobytes())
    return random.restore_key(np.frombuffer(made, np.uint32))

  keys = key(noise_key, 0), key(data_key, 1)
  exposed = bool(random.is_exposed(*keys))
  return SharedRecords(opened[0][0] if opened else None, prior, exposed=exposed), keys


def _key(given: jax.Array | None, folder: RunFolder | None, name: str) -> jax.Array:
  """The key given, or one of the run's own."""
  if given is not None:
    return given
  if folder is None:
    return random.secure_key()
  return kept_key(folder.secret / name, begun=(folder.path / LEDGER).exists())


def _entries(rounds: Iterable[tuple[Event, ...]]) -> Iterator[tuple[Event, int]]:
  """The events of rounds one by one, as entries of a ledger."""
  return ((event, 1) for events in rounds for one in events for event in unstack(one))


def _first(ledger: Ledger, count: int) -> Ledger:
  """The ledger of its first `count` events."""
  return Ledger().extend((event, 1) for event in itertools.islice(ledger, count))


def _digest_of_rows(rows: list[dict[str, Any]]) -> np.ndarray:
  """SHA-256 of rows, uint8 [32]."""
  return np.frombuffer(hashlib.sha256(json.dumps(rows).encode()).digest(), np.uint8)
