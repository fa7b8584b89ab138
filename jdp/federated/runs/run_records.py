"""What a training run records as it goes: its ledger, its metrics and its last state, in memory or
in a folder.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import jax

from jdp.events import Event
from jdp.federated.runs.run_folder import LEDGER, METRICS, RowFile, RunFolder, fingerprint
from jdp.ledger import DurableLedger, Ledger, unstack

PyTree = Any


class Records(Protocol):
  """The records of a run."""

  @property
  def rows(self) -> list[dict[str, Any]]:
    """Of metrics, one for each evaluation."""

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, what came before the run included."""

  @property
  def last_round(self) -> int:
    """The last round recorded; -1 if there is none."""

  def restore(self, state: PyTree) -> tuple[int, PyTree]:
    """(rounds done, state) of the last save; (0, the state given) if there is none."""

  def append_events(self, first_round: int, rounds: Iterable[tuple[Event, ...]]) -> None:
    """Records the events of round `first_round` and of those that follow it."""

  def append_row(self, row: dict[str, Any]) -> None:
    """Records the metrics of a round."""

  def save(self, done: int, state: PyTree) -> None:
    """Saves the state after `done` rounds."""

  def close(self) -> None:
    """Ends the recording."""


class MemoryRecords:
  """Records that end with the process."""

  def __init__(self, prior: Ledger):
    self._prior, self._own = prior, Ledger()
    self.last_round = -1
    self.rows: list[dict[str, Any]] = []

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, what came before the run included."""
    return self._prior + self._own

  def restore(self, state: PyTree) -> tuple[int, PyTree]:
    """Nothing was saved."""
    return 0, state

  def append_events(self, first_round: int, rounds: Iterable[tuple[Event, ...]]) -> None:
    """Records the events of round `first_round` and of those that follow it."""
    del first_round
    rounds = list(rounds)
    self._own = self._own.extend(
      (event, 1) for events in rounds for one in events for event in unstack(one)
    )
    self.last_round += len(rounds)

  def append_row(self, row: dict[str, Any]) -> None:
    """Records the metrics of a round."""
    self.rows.append(row)

  def save(self, done: int, state: PyTree) -> None:
    """Saves nothing."""

  def close(self) -> None:
    """Nothing is open."""


class FolderRecords:
  """Records in a folder, from which a run goes on after it was killed.

  Args:
    folder: of the run.
    noise_key: its key. One name, one key: no round is done again with other noise.
    prior: what was released before the first round.

  Raises:
    ImportError: if orbax, which writes checkpoints, is not installed.
    ValueError: if the ledger in the folder is of another run, key or prior.
  """

  def __init__(self, folder: RunFolder, noise_key: jax.Array, prior: Ledger):
    try:
      from jdp.federated.runs.checkpoints import Checkpoints
    except ModuleNotFoundError as error:
      raise ImportError(
        "Expected orbax-checkpoint with a workdir, got none; pip install 'jdp[checkpoints]', or "
        "leave workdir out."
      ) from error
    self._folder = folder
    self._checkpoints = Checkpoints(folder.secret / "checkpoints")
    try:
      self._ledger = DurableLedger(
        folder.path / LEDGER, f"{folder.name} {fingerprint(noise_key)}", prior
      )
    except BaseException:
      self._checkpoints.close()
      raise

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, what came before the run included."""
    return self._ledger.ledger

  @property
  def last_round(self) -> int:
    """The last round on file; -1 if there is none."""
    return self._ledger.last_round

  @property
  def rows(self) -> list[dict[str, Any]]:
    """Of metrics, one for each evaluation."""
    return self._metrics.rows

  def restore(self, state: PyTree) -> tuple[int, PyTree]:
    """(rounds done, state) of the last save; (0, the state given) if there is none. Later metrics
    are dropped.
    """
    done, state = self._checkpoints.restore(state)
    self._metrics = RowFile(self._folder.path / METRICS, done)
    return done, state

  def append_events(self, first_round: int, rounds: Iterable[tuple[Event, ...]]) -> None:
    """Records the events of round `first_round` and of those that follow it, in one write to
    disk.
    """
    self._ledger.append(first_round, *rounds)

  def append_row(self, row: dict[str, Any]) -> None:
    """Records the metrics of a round."""
    self._metrics.append(row)

  def save(self, done: int, state: PyTree) -> None:
    """Saves the state after `done` rounds."""
    self._checkpoints.save(done, state)

  def close(self) -> None:
    """Closes the files; another process may go on."""
    self._ledger.close()
    self._checkpoints.close()
