"""The records of a run that several processes compute together: the first process alone has files.

It tells the others what it reads. If it fails, every process raises an error, so none waits for
another in vain, or uses a round that is not on record.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jdp.events.rounds import Event
from jdp.federated.runs.digest import from_bytes, is_key, to_bytes, whole
from jdp.federated.runs.run_records import MemoryRecords, Records
from jdp.ledger import Ledger
from jdp.ledger.json_form import from_json, to_json

PyTree = Any
Made = TypeVar("Made")
_PART = 2**26  # bytes


def told(say: Callable[[], bytes | None]) -> bytes:
  """What `say` returns on the first process, on every process. All of them call it together.

  Raises:
    Exception: on the first process, what `say` raises.
    RuntimeError: on the others, if `say` raises anything.
  """
  content, failure = b"", None
  if jax.process_index() == 0:
    try:
      content = b"+" + (say() or b"")
    except Exception as error:
      content, failure = b"-" + str(error).encode(), error
  content = _sent(content)
  if failure is not None:
    raise failure
  if content.startswith(b"-"):
    raise RuntimeError(
      f"Expected the first process to go on, got its error: {content[1:].decode()}"
    )
  return content[1:]


def _sent(content: bytes) -> bytes:
  """The first process's content, on every process. Devices hold a part at a time."""

  def broadcast(words: np.ndarray) -> np.ndarray:
    # The sum over processes, by which JAX sends, may have a wider type.
    return np.asarray(multihost_utils.broadcast_one_to_all(words)).astype(words.dtype)

  # A size may be above 2^31, and JAX has no 64-bit types by default.
  parts, rest = broadcast(np.array(divmod(len(content), _PART), np.int32)).tolist()
  received = []
  for number in range(parts + 1):
    size = _PART if number < parts else rest
    part = content[number * _PART : number * _PART + size].ljust(size)
    received.append(broadcast(np.frombuffer(part, np.uint8)).tobytes())
  return b"".join(received)


def together(do: Callable[[], Made]) -> Made:
  """What `do` returns here, once `do` has succeeded on every process. All of them call it together.

  Raises:
    BaseException: what `do` raises here.
    RuntimeError: if it has raised anything on another process.
  """
  made, failure = None, None
  try:
    made = do()
  except BaseException as error:  # Of any type, as the others wait.
    failure = error
  failed = np.asarray(multihost_utils.process_allgather(np.int32(failure is not None)))
  if failure is not None:
    raise failure
  if failed.any():
    raise RuntimeError(
      f"Expected process {int(np.argmax(failed))} to go on, got an error, which it shows."
    )
  return made  # type: ignore[return-value]


class SharedRecords:
  """Records that every process holds alike, and that only the first one writes to files.

  Args:
    first: the records of the first process; None on the others.
    own: the records in memory of the other processes.
  """

  def __init__(self, first: Records | None, own: MemoryRecords):
    # What `told` calls runs on the first process alone, where these are the records with files.
    self._here = own if first is None else first
    self._own = own if first is None else None
    self.name = told(lambda: self._here.name.encode()).decode()

  @property
  def rows(self) -> list[dict[str, Any]]:
    """The metrics, one row for each evaluation."""
    return self._here.rows

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, with what came before the run."""
    return self._here.ledger

  @property
  def reached(self) -> Ledger:
    """What was recorded up to the round reached."""
    return self._here.reached

  @property
  def last_round(self) -> int:
    """The last round recorded; -1 if there is none."""
    return self._here.last_round

  def restore(self, state: PyTree) -> tuple[int, PyTree]:
    """(rounds done, state) of the last save, or (0, the state given) if there is none."""
    restored: list[Any] = []

    def say() -> bytes:
      restored.append(self._here.restore(state))
      done, _ = restored[0]
      entries = [[to_json(event), count] for event, count in self.ledger.entries]
      return json.dumps([done, self.last_round, self.rows, entries], default=float).encode()

    done, last_round, rows, entries = json.loads(told(say))
    if self._own is not None:
      ledger = Ledger().extend((from_json(event), count) for event, count in entries)
      self._own.take(ledger, last_round, rows)
    if not done:
      return done, state
    content = told(lambda: to_bytes(restored[0][1]).tobytes())
    made = from_bytes(np.frombuffer(content, np.uint8), state)
    return done, jax.tree.map(_placed, made, state)

  def append_events(self, first_round: int, rounds: Iterable[tuple[Event, ...]]) -> None:
    """Records the events of round `first_round` and of those that follow it.

    They are on the first process's disk when this returns on any.
    """
    rounds = list(rounds)
    told(lambda: self._here.append_events(first_round, rounds))
    if self._own is not None:
      self._own.append_events(first_round, rounds)

  def next_release(self, done: int) -> int | None:
    """The first round after `done` whose model was released before; None if there is none."""
    return json.loads(told(lambda: json.dumps(self._here.next_release(done)).encode()))

  def check_release(self, done: int, params: PyTree) -> None:
    """Refuses a model if another was released after the same round."""
    params = whole(params)
    told(lambda: self._here.check_release(done, params))

  def append_row(self, row: dict[str, Any]) -> None:
    """Records the metrics of a round."""
    told(lambda: self._here.append_row(row))
    if self._own is not None:
      self._own.append_row(row)

  def save(self, done: int, state: PyTree) -> None:
    """Saves the state after `done` rounds."""
    state = whole(state)
    told(lambda: self._here.save(done, state))

  def finish(self, params: PyTree) -> None:
    """Records that the run is over, with its last parameters."""
    params = whole(params)
    told(lambda: self._here.finish(params))

  def close(self) -> None:
    """Closes the files of the first process."""
    self._here.close()


def _placed(leaf: Any, like: Any) -> Any:
  """A leaf on the devices where its counterpart lies. Keys stay where they are."""
  return leaf if is_key(leaf) else jax.jit(lambda x: x, out_shardings=like.sharding)(leaf)
