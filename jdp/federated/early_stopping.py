"""Early stopping: rules that end a run by its metrics, and what such a run costs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.interpreters import partial_eval

from jdp import _validate
from jdp._arguments import checked
from jdp.events.rounds import Event
from jdp.federated.engine.read_cohort import ReadCohort
from jdp.federated.engine.rounds import ServerState
from jdp.federated.engine.shared_programs import shared

PyTree = Any
EarlyStop = Callable[[Sequence[Mapping[str, Any]]], bool]
"""Rows of metrics, one for each evaluation -> whether to stop the run."""

_SERVER = ("params", "optimizer")


@checked
def no_improvement(
  metric: str, *, patience: int = 3, least_gain: float = 0.0, decreasing: bool = False
) -> EarlyStop:
  """A rule that stops a run whose last evaluations were not better than the earlier ones.

  It lowers no epsilon: see `train`.

  Args:
    metric: the name that `evaluate` gives it. It must be computed from public data.
    patience: how many evaluations in a row may pass without a gain.
    least_gain: >= 0. A smaller gain over the best value before does not count.
    decreasing: whether smaller values are better, as for a loss.

  Raises:
    ValueError: if a number is out of range. In a run: if there is no such metric.

  >>> rows = [{"round": n, "accuracy": a} for n, a in enumerate([0.1, 0.6, 0.5, 0.6])]
  >>> rule = no_improvement("accuracy", patience=2)
  >>> rule(rows[:3]), rule(rows)
  (False, True)
  """
  _validate.integer(1, patience=patience)
  _validate.non_negative(least_gain=least_gain)

  def rule(rows):
    if metric not in rows[-1]:
      raise ValueError(
        f"Expected a metric {metric!r} to stop early by, got {', '.join(rows[-1])}; name one that "
        "evaluate returns."
      )
    values = [-row[metric] if decreasing else row[metric] for row in rows]
    recent, before = values[-patience:], values[:-patience]
    return bool(before) and max(recent) <= max(before) + least_gain

  return rule


def events_of_next_rounds(
  step: Callable[..., Any],
  keys: tuple[jax.Array, jax.Array],
  state: ServerState,
  clients: Iterable[PyTree],
) -> list[tuple[Event, ...]]:
  """The events of the rounds after a state. Nothing else of those rounds is kept.

  The model stays as it is. Events that depend on sampling and on the round's number are those of
  the rounds to come, and XLA leaves out the clients' computations. An adaptive clip norm depends on
  sums, so there the clients are computed. What the event then says of them was made private at the
  cost that it states.

  Args:
    step: (noise_key, data_key, state, clients) -> (state, events, diagnostics).
    keys: the run's keys.
    state: the state after the last round.
    clients: the step's `clients`, for each of the rounds.
  """
  advance = shared(_without_model(step))
  events = []
  for data in clients:
    state, released = advance(*keys, state, data)
    events.append(released)
    jax.block_until_ready(state.round)
  return jax.device_get(events)


def clients_matter(
  step: Callable[..., Any],
  keys: tuple[jax.Array, jax.Array],
  state: ServerState,
  cohort: ReadCohort,
) -> bool:
  """Whether `events_of_next_rounds` needs the clients' data, not only who is in the samples.

  Args:
    step: as for `events_of_next_rounds`.
    keys: the run's keys.
    state: the state after the last round.
    cohort: the shapes of a round's clients.
  """
  program = jax.make_jaxpr(_without_model(step))(*keys, state, cohort).jaxpr
  _, used = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
  before = len(jax.tree.leaves((keys, state)))
  return any(used[before : before + len(jax.tree.leaves(cohort.examples))])


def _without_model(step: Callable[..., Any]) -> Callable[..., Any]:
  """(keys, state, clients) -> (state, events) of a round that leaves the model as it is."""

  def advance(noise_key, data_key, state, clients):
    after, events, _ = step(noise_key, data_key, state, clients)
    kept = {name: getattr(state, name) for name in _SERVER if hasattr(state, name)}
    return after._replace(**kept), events

  return advance
