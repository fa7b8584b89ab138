"""Training runs: rounds with a ledger, evaluations and checkpoints, within a budget.

The order within a block of rounds keeps the run's claims true at every moment. The rounds are
computed, then their events are recorded. Only then is the model evaluated, shown, saved or built
on.

In a folder, rounds after the last checkpoint are computed again. They use the same keys, so they
give the same bits, and they are not recorded twice.
"""

import bisect
import contextlib
import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jdp import _validate, accounting
from jdp._arguments import checked, shown
from jdp.accounting import PrivacyFilter
from jdp.accounting.composition import refuse_adaptive
from jdp.events import Event, Round
from jdp.federated.early_stopping import EarlyStop, events_of_next_rounds
from jdp.federated.engine.cohort import client_mesh
from jdp.federated.engine.rounds import (
  FederatedAlgorithm,
  ServerState,
  block_of_at_most,
  replicate,
)
from jdp.federated.engine.sharded import shard
from jdp.federated.runs.opened_records import Workdir, open_records
from jdp.federated.runs.run_records import Beginning, Records
from jdp.guarantees import Observer
from jdp.ledger import Ledger, unstack

PyTree = Any
_MOST_COPIED = 2**32  # bytes of the clients' data, on all devices together
Evaluate = Callable[[PyTree], Mapping[str, jax.typing.ArrayLike]]
STOPPED_EARLY = "stopped_early"
_COST = "central_epsilon"


class Progress(NamedTuple):
  """Where a run stands.

  Attributes:
    round: rounds done.
    num_rounds: of the whole run.
    params: the parameters after them.
    metrics: the row of metrics of this round.
    ledger: what was recorded so far.
    diagnostics: means over the rounds since the last evaluation, or None. Not private.
  """

  round: int
  num_rounds: int
  params: PyTree
  metrics: dict[str, Any]
  ledger: Ledger
  diagnostics: dict[str, float] | None


class Result(NamedTuple):
  """The result of a run.

  Attributes:
    params: the last parameters.
    ledger: what they cost, with what was released before the run. If the run was stopped early
      without a privacy filter, it holds all planned rounds.
    metrics: a row for each evaluation. It holds "round" and what `evaluate` returned. With a delta
      or a privacy filter it holds "central_epsilon" too, which is None where there is no guarantee.
      The last row of a run that was stopped early holds "stopped_early", and the epsilon of all
      planned rounds (or of the filter).
    stopped: whether the budget ended the run.
    stopped_early: whether `early_stop` ended the run.
  """

  params: PyTree
  ledger: Ledger
  metrics: list[dict[str, Any]]
  stopped: bool
  stopped_early: bool = False


class _Run(NamedTuple):
  """What stays the same over a run's rounds."""

  name: str
  algorithm: FederatedAlgorithm
  advance: Callable[..., Any]
  keys: tuple[jax.Array, jax.Array]
  clients: PyTree
  evaluate: Evaluate
  delta: float | None
  max_epsilon: float | None
  mesh: Mesh | None
  early_stop: EarlyStop | None
  privacy_filter: PrivacyFilter | None


class _Block(NamedTuple):
  """Some consecutive rounds: the state after them, and each round's events and diagnostics."""

  state: ServerState
  events: Sequence[tuple[Event, ...]]
  diagnostics: Sequence[Any]


@checked
def train(
  algorithm: FederatedAlgorithm,
  params: PyTree,
  clients: PyTree,
  *,
  num_rounds: int | None = None,
  noise_key: jax.Array | None = None,
  data_key: jax.Array | None = None,
  evaluate: Evaluate | None = None,
  evaluate_every: int = 10,
  max_epsilon: float | None = None,
  delta: float | None = None,
  early_stop: EarlyStop | None = None,
  privacy_filter: PrivacyFilter | None = None,
  prior: Ledger = Ledger(),
  workdir: Workdir | None = None,
  callbacks: Iterable[Callable[[Progress], None]] = (),
) -> Result:
  """Trains for a number of rounds, or until a budget is spent.

  Formal guarantee: that of the ledger. It holds every round's events before the round's result is
  evaluated, saved, shown to a callback or returned. It begins with `prior`. With a workdir it is on
  disk by then. A run that is killed and started again with the same arguments goes on to the same
  bits, without releasing anything twice. Rounds beyond the budget are never released. A run does
  not go on with other data, keys or first parameters, or where JAX's settings, versions or the
  machine are others: it would repeat a released round as something else. Algorithms cannot be
  compared, but a model that differs from the one released after the same round is not released.

  A run that `early_stop` ends costs as much as all planned rounds, and its ledger says so. The
  number of rounds then depends on the data, through the models. What was released is a part of what
  all rounds would have released, and has their guarantee. The smaller epsilon of the rounds that
  were done is none of it: the bound on a run that ends at a random time is not the bound on its
  rounds until then (arXiv 1605.08294, Section 3). The same is true of a run that somebody ends
  because of what it shows.

  Where noise or sampling is chosen from earlier releases, events say that they are adaptive, and
  only a `privacy_filter` bounds what they cost. Its epsilon is then that of the run, whenever and
  for whatever reason it ends, also early: rounds that did not happen are not recorded. With an
  `early_stop`, those that did are marked as adaptive, whatever their noise.

  Args:
    algorithm: what is trained.
    params: what it begins with.
    clients: the data of all clients. If they lie on a mesh along the axis "clients", so will the
      state. If they were put on a device, rounds are computed there. Otherwise all devices compute
      each round, if the algorithm takes a mesh and was given none. Each then gets a copy of the
      data, or its share if the copies would take more than 4 GiB (`shard`). Parameters are shown
      and returned on one device.
    num_rounds: of the whole run, >= 1. None: as many as the algorithm plans. More are refused.
    noise_key: key of sampling and noise, of this run alone. None: one from the operating system.
      With a workdir it is kept in a file of mode 0600 of `<workdir>.secret`. Any other key of
      `jdp.random.secure_key` will do. With a seeded one the run is not private, and its ledger says
      so (`Ledger.caveats`).
    data_key: key of local training, another than `noise_key`. None: one from the operating system,
      kept likewise.
    evaluate: parameters -> name -> scalar. What it computes from protected data is not private.
    evaluate_every: rounds between evaluations, each with a checkpoint. Memory holds the events of
      so many rounds.
    max_epsilon: the budget. The run stops before the round that would take the epsilon of its
      released models above this.
    delta: in (0, 1), of the epsilons that are stated, and of the budget.
    early_stop: rows of metrics -> whether to stop, such as `no_improvement`. It is asked after
      every evaluation, and sees all rows without their epsilons. It must depend on nothing else.
      None: the run does all its rounds.
    privacy_filter: a budget for rounds that may be adaptive (`jdp.accounting.renyi_filter`), in the
      place of max_epsilon and delta. The run stops before the first round that it does not admit.
      Its observer is model, or None.
    prior: what was released about the same clients before the first round.
    workdir: a folder for `ledger.jsonl` and `metrics.jsonl`. Its secret sibling `<workdir>.secret`
      is for the key, the checkpoints and digests of the data. Remove that when the result is saved.
      A `RunFolder` names other places. None: nothing is kept.
    callbacks: functions of the `Progress`, called in turn at the start and after every evaluation.

  Returns:
    The `Result`.

  Raises:
    ValueError: if num_rounds is None and the algorithm plans none, or a number is out of range.
      Also if there is a budget without a delta, or a privacy filter with either or for another
      observer, or rounds are adaptive and there is a delta. Also if a metric is not finite, or the
      workdir is of another run. That is one with other data, keys, first parameters, rounds or
      earlier releases, or in another environment. Also if another process has the workdir, or a
      file that is needed is lost or damaged: the message says what to do. Also if rounds are
      missing from the end of the workdir's ledger, or it is finished and would get further rounds.
    ImportError: if there is a workdir, and orbax-checkpoint is not installed (the extra
      "checkpoints").

  >>> import jax.numpy as jnp, optax
  >>> from jdp import queries, sampling
  >>> from jdp.federated import add_updates, rounds
  >>> sampler = sampling.poisson(100, 0.5)
  >>> mean = queries.average(queries.gaussian_sum(clip_norm=1.0, stddev=4.0), sampler.expected_size)
  >>> algorithm = rounds(  # every client sends the way from the server's value to its own
  ...   lambda keys, value, own: (own - value, {}),
  ...   mean,
  ...   sampler,
  ...   add_updates(optax.sgd(0.5)),
  ...   relation="add_remove",
  ... )
  >>> result = train(
  ...   algorithm,
  ...   jnp.float32(0),
  ...   jnp.full(100, 0.7),
  ...   num_rounds=1000,
  ...   delta=1e-5,
  ...   max_epsilon=2.0,
  ...   evaluate=lambda value: {"error": abs(value - 0.7)},
  ... )
  >>> result.stopped, result.metrics[-1]["round"], round(result.metrics[-1]["central_epsilon"], 2)
  (True, 11, 1.92)
  >>> bool(result.metrics[-1]["error"] < 0.5), len(result.ledger)
  (True, 11)
  """
  num_rounds = _planned_rounds(algorithm, num_rounds)
  _validate.integer(1, num_rounds=num_rounds, evaluate_every=evaluate_every)
  _check_budget(max_epsilon, delta, privacy_filter)
  _check_clients(clients)
  clients = jax.tree.map(jnp.asarray, clients)  # on a device once, not in every round
  mesh = _all_devices(algorithm, clients)
  clients = _spread(clients, mesh)
  start = algorithm.init(params)
  start = _copied(start, mesh) if mesh else replicate(start, _mesh(clients))
  beginning = Beginning(noise_key, data_key, prior, clients, start)
  records, keys = open_records(workdir, beginning)
  keys = _copied(keys, mesh) if mesh else keys
  evaluate = evaluate or (lambda params: {})
  advance = block_of_at_most(algorithm.round, min(evaluate_every, num_rounds))
  run = _Run(
    records.name,
    algorithm,
    advance,
    keys,
    clients,
    evaluate,
    delta,
    max_epsilon,
    mesh,
    early_stop,
    privacy_filter,
  )
  with contextlib.closing(records):
    return _train(run, start, records, num_rounds, evaluate_every, prior, tuple(callbacks))


def _check_clients(clients: PyTree) -> None:
  """Refuses what is no data of clients, before JAX takes a number for an array."""

  def has_rows(leaf: Any) -> bool:
    return bool(getattr(leaf, "shape", ())[:1] > (0,)) and leaf.dtype != np.object_

  leaves = jax.tree.leaves(clients)
  if not leaves or not all(map(has_rows, leaves)):
    raise ValueError(
      f"Expected clients to be a pytree of arrays, each with a row for every client, got "
      f"{shown(clients)}; see jdp.data."
    )


def central_epsilon(ledger: Ledger, delta: float) -> float:
  """Epsilon of a run to whoever sees the released models.

  It is infinite if a sum, or clients' releases alone, made the models. Local releases hide as much
  from whoever sees the models as from the server, which their own guarantee says.
  """
  if len(ledger) and not _has_round(event for event, _ in ledger.entries):
    return math.inf
  return accounting.epsilon(ledger, delta, observer=Observer.MODEL)


def _has_round(events: Iterable[Event]) -> bool:
  return any(isinstance(event, Round) for event in events)


def _train(
  run: _Run,
  state: ServerState,
  records: Records,
  num_rounds: int,
  evaluate_every: int,
  prior: Ledger,
  callbacks: tuple[Callable[[Progress], None], ...],
) -> Result:
  """The loop of `train`."""
  done, state = records.restore(state)
  if not records.rows:
    records.append_row({"round": 0, **_measure(run, _shown(run, state)), **_cost(run, prior)})

  def tell(diagnostics):
    progress = Progress(
      done, num_rounds, _shown(run, state), records.rows[-1], records.ledger, diagnostics
    )
    for callback in callbacks:
      callback(progress)

  tell(None)
  stopped, stopped_early = False, STOPPED_EARLY in records.rows[-1]
  while done < num_rounds and not (stopped or stopped_early):
    planned = min(evaluate_every, num_rounds - done)
    block = _advance(run, state, planned)
    count = _affordable(run, records, done, block.events)
    stopped = count < planned
    if stopped:
      block = _advance(run, state, count)  # Forgets the rounds beyond the budget.
    if count:
      # Events first: nothing below may use a round that is not in the ledger.
      records.append_events(done, block.events)
      done, state = done + count, block.state
      records.check_release(done, state.params)
      row = {"round": done, **_measure(run, _shown(run, state))}
      stopped_early = not stopped and done < num_rounds and _stops(run, [*records.rows, row])
      if stopped_early:
        _record_rest(run, records, state, done, num_rounds - done)
        row[STOPPED_EARLY] = True
      records.append_row({**row, **_cost(run, records.reached)})
      tell(_mean_diagnostics(block.diagnostics))
      records.save(done, state)
  records.finish()
  return Result(_shown(run, state), records.ledger, list(records.rows), stopped, stopped_early)


def _stops(run: _Run, rows: Sequence[dict[str, Any]]) -> bool:
  """Whether the run is to be stopped early after these rows."""
  if run.early_stop is None:
    return False
  return bool(run.early_stop([{k: v for k, v in row.items() if k != _COST} for row in rows]))


def _record_rest(run: _Run, records: Records, state: ServerState, done: int, count: int) -> None:
  """Records the rounds that are not done, up to the budget: what the whole run would cost.

  A filter's budget holds whenever a run stops, so that nothing is recorded then.
  """
  if run.privacy_filter is not None:
    return
  with _mesh_in_force(run):
    events = events_of_next_rounds(run.algorithm.round, run.keys, state, run.clients, count)
  records.append_events(done, events[: _affordable(run, records, done, events)])


def _planned_rounds(algorithm: FederatedAlgorithm, asked: int | None) -> int:
  """The rounds asked for, else those planned. More than planned are refused."""
  planned = algorithm.num_rounds
  if asked is None and planned is None:
    raise ValueError(
      "Expected num_rounds, got None: this algorithm plans no number of rounds; give one."
    )
  if asked is not None and planned is not None and not asked <= planned:
    raise ValueError(
      f"Expected num_rounds of at most {planned}, for which the noise was planned, got {asked}; "
      "plan more."
    )
  return planned if asked is None else asked  # type: ignore[return-value]


def _check_budget(
  max_epsilon: float | None, delta: float | None, privacy_filter: PrivacyFilter | None
) -> None:
  """Refuses numbers out of range, a budget without a delta, and a filter of other claims."""
  if privacy_filter is not None and not max_epsilon is delta is None:
    raise ValueError(
      "Expected no max_epsilon and no delta with a privacy_filter, which has its own, got "
      f"max_epsilon {max_epsilon} and delta {delta}; leave them out."
    )
  if privacy_filter is not None and privacy_filter.observer not in (None, Observer.MODEL):
    raise ValueError(
      "Expected a privacy_filter whose observer is model, got "
      f"{privacy_filter.observer}: a run states what its models cost; leave its observer out."
    )
  if delta is not None:
    _validate.in_range(1e-300, 1 - 1e-9, delta=delta)
  if max_epsilon is not None:
    _validate.non_negative(max_epsilon=max_epsilon)
    if delta is None:
      raise ValueError("Expected delta with max_epsilon, got none; an epsilon is one at a delta.")


def _mesh(tree: PyTree) -> Mesh | None:
  """The mesh that arrays lie on, if any."""
  for leaf in jax.tree.leaves(tree):
    sharding = getattr(leaf, "sharding", None)
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
      return sharding.mesh
  return None


def _all_devices(algorithm: FederatedAlgorithm, clients: PyTree) -> Mesh | None:
  """The mesh of all devices, if the algorithm takes one and the user put the clients nowhere."""
  placed = any(x.committed for x in jax.tree.leaves(clients))
  return client_mesh() if algorithm.takes_mesh and not placed and jax.device_count() > 1 else None


def _copied(tree: PyTree, mesh: Mesh) -> PyTree:
  """A copy on every device of the mesh, also of what lies on one by the user's choice."""
  if jax.process_count() > 1:
    return replicate(tree, mesh)
  return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def _spread(clients: PyTree, mesh: Mesh | None) -> PyTree:
  """The clients on every device of the mesh: a copy on each, or its share of many."""
  if mesh is None:
    return clients
  size = sum(x.nbytes for x in jax.tree.leaves(clients))
  return (shard if size * mesh.size > _MOST_COPIED else _copied)(clients, mesh)


def _mesh_in_force(run: _Run) -> contextlib.AbstractContextManager[Any]:
  """Computes the rounds over the mesh of all devices, if it is the run's."""
  return contextlib.nullcontext() if run.mesh is None else jax.set_mesh(run.mesh)


def _shown(run: _Run, state: ServerState) -> PyTree:
  """The parameters for a script, which knows of no mesh unless it chose it."""
  if run.mesh is None:
    return state.params
  return jax.tree.map(lambda x: x.addressable_data(0), state.params)


def _advance(run: _Run, state: ServerState, count: int) -> _Block:
  """Computes `count` rounds in one program, so that each costs what its clients do."""
  with _mesh_in_force(run):
    state, *output = run.advance(*run.keys, state, run.clients, np.int32(count))
  output = jax.device_get(output)
  rounds = (jax.tree.map(operator.itemgetter(number), output) for number in range(count))
  events, diagnostics = zip(*rounds, strict=True) if count else ((), ())
  if run.privacy_filter is not None and run.early_stop is not None:
    events = tuple(map(_chosen, events))
  return _Block(state, events, diagnostics)


def _chosen(events: tuple[Event, ...]) -> tuple[Event, ...]:
  """The events of a round that happened because earlier releases did not end the run."""
  return tuple(
    dataclasses.replace(one, adaptive=True) for event in events for one in unstack(event)
  )


def _affordable(run: _Run, records: Records, done: int, events: Sequence[tuple[Event, ...]]) -> int:
  """How many of the rounds after round `done` the budget allows.

  Rounds on record are spent already, and count as allowed.
  """
  if run.delta is not None:
    refuse_adaptive(itertools.chain(*events))
  # After a kill, the ledger may be ahead of the last checkpoint, and even of these rounds.
  spent = min(records.last_round + 1 - done, len(events))
  if run.privacy_filter is None and run.max_epsilon is None:
    return len(events)

  def exceeds(count: int) -> bool:
    return _exceeds(run, records.ledger, list(itertools.chain(*events[spent:count])))

  # Epsilon grows with the number of rounds, so a binary search finds the last one allowed.
  counts = range(spent + 1, len(events) + 1)
  return spent + bisect.bisect_left(counts, True, key=exceeds)


def _exceeds(run: _Run, ledger: Ledger, new: Sequence[Event]) -> bool:
  """Whether further events would exceed the run's budget."""
  if run.privacy_filter is not None:
    further = ((one, 1) for event in new for one in unstack(event))
    return not _admitted(run.privacy_filter, ledger.extend(further))
  if not _has_round([*new, *(event for event, _ in ledger.entries)]):
    return bool(new)  # as `central_epsilon`
  assert run.max_epsilon is not None
  assert run.delta is not None
  return accounting.would_exceed(ledger, new, run.max_epsilon, run.delta, observer=Observer.MODEL)


def _measure(run: _Run, params: PyTree) -> dict[str, float]:
  """The metrics of a row."""
  metrics = {name: float(value) for name, value in jax.device_get(run.evaluate(params)).items()}
  for name, value in metrics.items():
    if not math.isfinite(value):
      raise ValueError(
        f"Expected finite metrics of {run.name}, got {name} = {value}: its model has diverged; "
        "lower a learning rate, or leave that value out."
      )
  return metrics


def _cost(run: _Run, ledger: Ledger) -> dict[str, float | None]:
  """What the ledger has cost, for a row. With a filter that is its whole budget."""
  if run.privacy_filter is not None:
    admitted = _admitted(run.privacy_filter, ledger)
    return {_COST: run.privacy_filter.epsilon if admitted else None}
  if run.delta is None:
    return {}
  epsilon = central_epsilon(ledger, run.delta)
  return {_COST: epsilon if math.isfinite(epsilon) else None}


def _admitted(privacy_filter: PrivacyFilter, ledger: Ledger) -> bool:
  """Whether a ledger's events stay within a filter's budget."""
  return privacy_filter.spent(ledger) <= 1


def _mean_diagnostics(diagnostics: Sequence[Any]) -> dict[str, float] | None:
  """The mean of each diagnostic over the rounds. None if there are none."""
  if diagnostics[0] is None:
    return None
  return {name: float(np.mean([round_[name] for round_ in diagnostics])) for name in diagnostics[0]}
