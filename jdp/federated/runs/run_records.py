"""The records of a training run: ledger, metrics and last state; and records in memory."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import jax

from jdp.events.rounds import Event
from jdp.ledger import Ledger
from jdp.ledger.joining import numbered_runs, refuse_later_rounds, refuse_two_caps
from jdp.ledger.unstacking import unstack
from jdp.ledger.value import marked_exposed

PyTree = Any


class Beginning(NamedTuple):
  """What a run begins with, and what it must be resumed with.

  Attributes:
    noise_key: the run's noise key. None: a new one of its own, which a folder keeps.
    data_key: the run's key of local training. None: a new one of its own, kept in the same way.
    prior: what was released before the first round.
    clients: the data of all clients.
    state: the first state.
    budget: what the run may spend, in words.
  """

  noise_key: jax.Array | None
  data_key: jax.Array | None
  prior: Ledger
  clients: PyTree
  state: PyTree
  budget: str


class Records(Protocol):
  """The records of a run."""

  name: str
  """The run's name, for messages."""

  @property
  def rows(self) -> list[dict[str, Any]]:
    """The metrics, one row for each evaluation."""

  @property
  def ledger(self) -> Ledger:
    """All that was recorded, with what came before the run."""

  @property
  def reached(self) -> Ledger:
    """What was recorded up to the round reached: less than `ledger` while rounds are repeated."""

  @property
  def last_round(self) -> int:
    """The last round recorded; -1 if there is none."""

  def restore(self, state: PyTree) -> tuple[int, PyTree]:
    """(rounds done, state) of the last save, or (0, the state given) if there is none."""

  def append_events(self, first_round: int, rounds: Iterable[tuple[Event, ...]]) -> None:
    """Records the events of round `first_round` and of those that follow it."""

  def next_release(self, done: int) -> int | None:
    """The first round after `done` whose model was released before; None if there is none."""

  def check_release(self, done: int, params: PyTree) -> None:
    """Refuses a model if another was released after the same round."""

  def append_row(self, row: dict[str, Any]) -> None:
    """Records the metrics of a round."""

  def save(self, done: int, state: PyTree) -> None:
    """Saves the state after `done` rounds."""

  def finish(self, params: PyTree) -> None:
    """Records that the run is over, with its last parameters."""

  def close(self) -> None:
    """Ends the recording."""


class MemoryRecords:
  """Records that end with the process.

  Args:
    prior: what was released before the first round.
    exposed: whether the key of the noise is not secret. Then all rounds are marked.
    identity: the run's identity, which follows from its noise key.
  """

  name = "the run"

  def __init__(self, prior: Ledger, *, exposed: bool, identity: str):
    self.ledger, self._prior, self._exposed = prior.recorded_by([identity]), prior, exposed
    self.last_round = -1
    self.rows: list[dict[str, Any]] = []

  @property
  def reached(self) -> Ledger:
    """All that was recorded: no round is repeated."""
    return self.ledger

  def restore(self, state: PyTree) -> tuple[int, PyTree]:
    """(0, the state given): nothing was saved."""
    return 0, state

  def append_events(self, first_round: int, rounds: Iterable[tuple[Event, ...]]) -> None:
    """Records the events of round `first_round` and of those that follow it.

    The events hold Python's numbers (`on_host`).
    """
    # Several processes may repeat rounds that they were told of.
    rounds = list(rounds)[self.last_round + 1 - first_round :]
    events = [event for event, _ in entries_of(rounds)]
    new = [(event, 1) for event in (marked_exposed(events) if self._exposed else events)]
    refuse_two_caps(new, self._prior.entries)
    refuse_later_rounds(self._prior.numbered_runs, numbered_runs(new))
    self.ledger = self.ledger.extend(new)
    self.last_round += len(rounds)

  def next_release(self, done: int) -> int | None:
    """None: no round is repeated."""
    return None

  def check_release(self, done: int, params: PyTree) -> None:
    """Refuses nothing: no round is repeated."""

  def take(self, ledger: Ledger, last_round: int, rows: list[dict[str, Any]]) -> None:
    """Goes on from what another process has recorded."""
    runs = self.ledger.runs
    self.ledger, self.last_round, self.rows = ledger.recorded_by(runs), last_round, rows

  def append_row(self, row: dict[str, Any]) -> None:
    """Records the metrics of a round."""
    self.rows.append(row)

  def save(self, done: int, state: PyTree) -> None:
    """Saves nothing."""

  def finish(self, params: PyTree) -> None:
    """Does nothing: nothing is to be closed."""

  def close(self) -> None:
    """Does nothing: nothing is open."""


def on_host(events: Iterable[Event]) -> tuple[Event, ...]:
  """The events that a round returned, one by one, with Python's numbers."""
  return tuple(one for event in events for one in unstack(event))


def entries_of(rounds: Iterable[tuple[Event, ...]]) -> Iterator[tuple[Event, int]]:
  """The events of rounds, one by one, as entries of a ledger."""
  return ((event, 1) for events in rounds for event in events)
