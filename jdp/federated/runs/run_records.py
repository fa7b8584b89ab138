"""The records of a training run, in memory or in a folder: ledger, metrics and last state."""

import os
from collections.abc import Iterable
from typing import Any, Protocol

import jax
import numpy as np

from jdp import random
from jdp.events import Event
from jdp.federated.runs.ledger_marks import keep_mark, kept_mark
from jdp.federated.runs.run_folder import (
  LEDGER,
  METRICS,
  RowFile,
  RunFolder,
  fingerprint,
  kept_key,
  run_folder,
)
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
  def last_round(self) -> int:
    """The last round recorded; -1 if there is none."""

  def restore(self, state: PyTree) -> tuple[int, PyTree]:
    """(rounds done, state) of the last save, or (0, the state given) if there is none."""

  def append_events(self, first_round: int, rounds: Iterable[tuple[Event, ...]]) -> None:
    """Records the events of round `first_round` and of those that follow it."""

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

  def restore(self, state: PyTree) -> tuple[int, PyTree]:
    """(0, the state given): nothing was saved."""
    return 0, state

  def append_events(self, first_round: int, rounds: Iterable[tuple[Event, ...]]) -> None:
    """Records the events of round `first_round` and of those that follow it."""
    # Several processes may repeat rounds that they were told of.
    rounds = list(rounds)[self.last_round + 1 - first_round :]
    events = [event for events in rounds for one in events for event in unstack(one)]
    new = [(event, 1) for event in (marked_exposed(events) if self._exposed else events)]
    refuse_two_caps(new, self._prior.entries)
    self._ledger = self._ledger.extend(new)
    self.last_round += len(rounds)

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
    noise_key: its key. A run's name belongs to one key, so no round is done again with other noise.
    prior: what was released before the first round.
    exposed: whether that key is no secret. Then all rounds are marked.

  Raises:
    ImportError: if orbax is not installed. It writes checkpoints.
    ValueError: if the ledger in the folder is of another run, key or prior, or was shortened.
  """

  def __init__(self, folder: RunFolder, noise_key: jax.Array, prior: Ledger, *, exposed: bool):
    # Imported here, as orbax is an optional dependency.
    try:
      from jdp.federated.runs.checkpoints import Checkpoints
    except ModuleNotFoundError as error:
      raise ImportError(
        "Expected orbax-checkpoint with a workdir, got none; pip install 'jdp[checkpoints]', or "
        "leave workdir out."
      ) from error
    self.name = folder.name
    self._folder = folder
    self._checkpoints = Checkpoints(folder.secret / "checkpoints")
    # A ledger that is refused must not leave orbax's threads behind.
    try:
      self._ledger = DurableLedger(
        folder.path / LEDGER,
        f"{folder.name} {fingerprint(noise_key)}",
        prior,
        key_exposed=exposed,
        expected=kept_mark(folder.secret),
      )
    except BaseException:
      self._checkpoints.close()
      raise

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, with what came before the run."""
    return self._ledger.ledger

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
    """
    done, state = self._checkpoints.restore(state)
    self._metrics = RowFile(self._folder.path / METRICS, done)
    return done, state

  def append_events(self, first_round: int, rounds: Iterable[tuple[Event, ...]]) -> None:
    """Records the events of round `first_round` and of those that follow it.

    All are written to disk at once.
    """
    self._ledger.append(first_round, *rounds)
    keep_mark(self._folder.secret, self._ledger.mark)

  def append_row(self, row: dict[str, Any]) -> None:
    """Records the metrics of a round."""
    self._metrics.append(row)

  def save(self, done: int, state: PyTree) -> None:
    """Saves the state after `done` rounds."""
    self._checkpoints.save(done, state)

  def finish(self) -> None:
    """Records that the run is over. Its ledger takes no further rounds."""
    self._ledger.finish()
    keep_mark(self._folder.secret, self._ledger.mark)

  def close(self) -> None:
    """Closes the files; another process may go on."""
    self._ledger.close()
    self._checkpoints.close()


def open_records(
  workdir: Workdir | None,
  noise_key: jax.Array | None,
  data_key: jax.Array | None,
  prior: Ledger,
) -> tuple[Records, tuple[jax.Array, jax.Array]]:
  """The records of a run, and its keys for noise and for data.

  Args:
    workdir: where the run keeps its files. None: in memory.
    noise_key: the run's key of noise. None: one of its own, which a folder keeps.
    data_key: the run's key of local training. None: one of its own, kept likewise.
    prior: what was released before the first round.

  Raises:
    ImportError: see `FolderRecords`.
    ValueError: see `FolderRecords`, and if rounds were done with a key that is lost.
  """
  if jax.process_count() > 1:
    return _open_shared(workdir, noise_key, data_key, prior)
  folder = None if workdir is None else run_folder(workdir)
  keys = _key(noise_key, folder, "noise_key"), _key(data_key, folder, "data_key")
  return _open(folder, keys, prior), keys


def _open(folder: RunFolder | None, keys: tuple[jax.Array, jax.Array], prior: Ledger) -> Records:
  """The records of one process."""
  exposed = bool(random.is_exposed(*keys))
  if folder is None:
    return MemoryRecords(prior, exposed=exposed)
  return FolderRecords(folder, keys[0], prior, exposed=exposed)


def _open_shared(
  workdir: Workdir | None,
  noise_key: jax.Array | None,
  data_key: jax.Array | None,
  prior: Ledger,
) -> tuple[Records, tuple[jax.Array, jax.Array]]:
  """As `open_records`, where several processes compute a run: the first of them alone has files."""
  # Here, as importing it takes time that a run of one process need not spend.
  from jdp.federated.runs.shared_records import SharedRecords, told

  def folder() -> RunFolder | None:
    return None if workdir is None else run_folder(workdir)

  def key(given: jax.Array | None, name: str) -> jax.Array:
    if given is not None:
      return given
    made = told(lambda: np.asarray(jax.random.key_data(_key(None, folder(), name))).tobytes())
    return random.restore_key(np.frombuffer(made, np.uint32))

  keys = key(noise_key, "noise_key"), key(data_key, "data_key")
  first: list[Records] = []
  told(lambda: first.append(_open(folder(), keys, prior)))
  exposed = bool(random.is_exposed(*keys))
  return SharedRecords(first[0] if first else None, prior, exposed=exposed), keys


def _key(given: jax.Array | None, folder: RunFolder | None, name: str) -> jax.Array:
  """The key given, or one of the run's own."""
  if given is not None:
    return given
  if folder is None:
    return random.secure_key()
  return kept_key(folder.secret / name, begun=(folder.path / LEDGER).exists())
