"""Records of a training run in a folder, from which it goes on after it was killed."""

import contextlib
import hashlib
import itertools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jdp import _distribution, random
from jdp.events.rounds import Event
from jdp.federated.runs.digest import digest
from jdp.federated.runs.environment import environment
from jdp.federated.runs.released import Released
from jdp.federated.runs.run_folder import (
  LEDGER,
  METRICS,
  PARAMS,
  RunFolder,
  check_description,
  fingerprint,
  kept_key,
)
from jdp.federated.runs.run_records import Beginning, entries_of
from jdp.federated.runs.secret_folder import hold, keep_mark, kept_mark
from jdp.federated.runs.whole_files import RowFile
from jdp.ledger import DurableLedger, Ledger
from jdp.models.parameter_files import save_params
from jdp.random.keys import is_exposed

PyTree = Any


class FolderRecords:
  """Records in a folder, from which a run goes on after it was killed.

  Args:
    folder: the run's folder.
    beginning: what the run begins with.

  Attributes:
    keys: the keys for noise and for data. A run's name belongs to one noise key, so no round is
      repeated with other noise.

  Raises:
    ImportError: if orbax is not installed. It writes checkpoints.
    ValueError: if another process has the run, or a key is lost or damaged. Also if the ledger in
      the folder is of another run, key or prior, was shortened, or lacks the counter's mark. Also
      if the run was begun with other data, another state, key of local training or budget, or in
      another environment.
  """

  def __init__(self, folder: RunFolder, beginning: Beginning):
    # Imported here, as orbax is an optional dependency.
    try:
      from jdp.federated.runs.checkpoints import Checkpoints
    except ModuleNotFoundError as error:
      raise ImportError(
        "Expected orbax-checkpoint with a workdir, got none; "
        f"{_distribution.install('checkpoints')}, or leave workdir out."
      ) from error
    self.name = folder.name
    self._folder, self._prior = folder, beginning.prior
    # A refused run must leave neither a lock nor orbax's threads behind.
    with contextlib.ExitStack() as opened:
      opened.enter_context(hold(folder.secret))
      self.keys = own_keys(beginning, folder)
      digests = {
        "data": digest(beginning.clients),
        "first state": digest(beginning.state),
        "key of noise": fingerprint(self.keys[0]),
        "key of local training": fingerprint(self.keys[1]),
      }
      check_description(folder, digests, environment(), beginning.budget)
      run = f"{folder.name} {fingerprint(self.keys[0])}"
      self._ledger = DurableLedger(
        folder.path / LEDGER,
        run,
        beginning.prior,
        key_exposed=bool(is_exposed(*self.keys)),
        identity=fingerprint(self.keys[0]),
        expected=kept_mark(folder.secret),
      )
      opened.callback(self._ledger.close)
      self._refuse_copy()
      self._released = Released(folder.secret / "released")
      self._checkpoints = Checkpoints(folder.secret / "checkpoints", run)
      opened.callback(self._checkpoints.close)
      self._opened = opened.pop_all()

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, with what came before the run."""
    return self._ledger.ledger

  @property
  def reached(self) -> Ledger:
    """What was recorded up to the round reached: less than `ledger` while rounds are repeated."""
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
    empty = _bytes(hashlib.sha256().digest())
    link = _bytes(bytes.fromhex(self._ledger.link))
    start = (state, empty, np.int64(len(self._prior)), link)
    done, (state, seen, events, link) = self._checkpoints.restore(start)
    if not (done <= self.last_round + 1 and self._ledger.holds(np.asarray(link).tobytes().hex())):
      raise ValueError(
        f"Expected the events of {done} rounds in {self._folder.path / LEDGER}, got those of "
        f"{self.last_round + 1}, or others; {self._remedy}"
      )
    self._repeated = _first(self.ledger, int(events)) if done <= self.last_round else None
    try:
      self._metrics = RowFile(self._folder.path / METRICS, done)
      whole = np.array_equal(seen, _bytes(self._metrics.digest))
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
    self._keep_mark()
    if self._repeated is not None:
      ahead = first_round + len(rounds) <= on_record
      self._repeated = self._repeated.extend(entries_of(rounds)) if ahead else None

  def next_release(self, done: int) -> int | None:
    """The first round after `done` whose model was released before; None if there is none."""
    return self._released.following(done)

  def check_release(self, done: int, params: PyTree) -> None:
    """Refuses a model if another was released after the same round."""
    self._released.check(done, params)

  def append_row(self, row: dict[str, Any]) -> None:
    """Records the metrics of a round."""
    self._metrics.append(row)

  def save(self, done: int, state: PyTree) -> None:
    """Saves the state after `done` rounds."""
    seen = _bytes(self._metrics.digest)
    link = _bytes(bytes.fromhex(self._ledger.link))
    self._checkpoints.save(done, (state, seen, np.int64(len(self.reached)), link))

  def finish(self, params: PyTree) -> None:
    """Writes the last parameters. The ledger takes no further rounds."""
    save_params(self._folder.path / PARAMS, params)
    self._ledger.finish()
    self._keep_mark()

  def close(self) -> None:
    """Closes the files; another process may go on."""
    self._opened.close()

  def _keep_mark(self) -> None:
    """Writes down how far the ledger has grown, before anything uses it."""
    self._refuse_copy()
    if self._folder.counter is not None:
      self._folder.counter.write(self._ledger.mark)
    keep_mark(self._folder.secret, self._ledger.mark)

  def _refuse_copy(self) -> None:
    """Refuses a ledger without the mark that the counter has."""
    counter = self._folder.counter
    seen = None if counter is None else counter.read()
    if seen is not None and not self._ledger.holds(seen.link):
      raise ValueError(
        f"Expected a ledger that holds round {seen.last_round} with link {seen.link}, which the "
        f"run's counter has, in {self._folder.path / LEDGER}, got a copy or an older one; go on in "
        "the folder that is ahead, or train anew with its ledger as the prior."
      )

  @property
  def _remedy(self) -> str:
    return (
      f"restore the file from a copy, or remove {self._folder.secret / 'checkpoints'}: the run "
      "then repeats its rounds, bit for bit, and records them again."
    )


def own_keys(beginning: Beginning, folder: RunFolder | None) -> tuple[jax.Array, jax.Array]:
  """A run's keys for noise and for data: those given, or new ones, which the folder keeps."""

  def own(given: jax.Array | None, name: str) -> jax.Array:
    if given is not None:
      return given
    if folder is None:
      return random.secure_key()
    return kept_key(folder.secret / name, begun=(folder.path / LEDGER).exists())

  return own(beginning.noise_key, "noise_key"), own(beginning.data_key, "data_key")


def _first(ledger: Ledger, count: int) -> Ledger:
  """The ledger of its first `count` events."""
  return Ledger().extend((event, 1) for event in itertools.islice(ledger, count))


def _bytes(content: bytes) -> np.ndarray:
  """The bytes, uint8 [n]: a leaf of a checkpoint."""
  return np.frombuffer(content, np.uint8)
