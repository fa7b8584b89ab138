"""Training runs: rounds with a ledger, evaluations and checkpoints, within a budget.

The order within a block of rounds keeps the run's claims true at every moment. The rounds are
computed, then their events are recorded. Only then is the model evaluated, shown, saved or built
on.

In a folder, rounds after the last checkpoint are computed again. They use the same keys, so they
give the same bits, and they are not recorded twice.
"""

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
from jax.sharding import Mesh

from jdp import _validate
from jdp._arguments import checked, shown
from jdp.accounting import privacy_statements
from jdp.accounting.statements.filters import PrivacyFilter
from jdp.data.sources.source_users import SourceUsers
from jdp.events.rounds import Event
from jdp.federated.data_warnings import warn_of_clipping
from jdp.federated.early_stopping import EarlyStop, clients_matter, events_of_next_rounds
from jdp.federated.engine import placement
from jdp.federated.engine.rounds import (
  FederatedAlgorithm,
  ServerState,
  block_of_at_most,
  events_by_round,
)
from jdp.federated.runs.budget import (
  COST,
  COST_BY,
  NO_COST,
  Budget,
  affordable,
  budget_of,
  cost,
  in_words,
  refuse_outgrown_slots,
)
from jdp.federated.runs.cohort_reading import CohortReader, shapes_of
from jdp.federated.runs.digest import whole
from jdp.federated.runs.opened_records import Workdir, open_records
from jdp.federated.runs.run_records import Beginning, Records, on_host
from jdp.ledger import Ledger

PyTree = Any
Evaluate = Callable[[PyTree], Mapping[str, jax.typing.ArrayLike]]
STOPPED_EARLY = "stopped_early"
_EVALUATE_EVERY, _UNSEEN_ROUNDS = 10, 100


class Progress(NamedTuple):
  """Where a run stands.

  Attributes:
    round: rounds done.
    num_rounds: the number of rounds in the whole run.
    params: the parameters after these rounds.
    metrics: the row of metrics of this round.
    ledger: the ledger of what was recorded so far.
    diagnostics: means over the rounds since the last evaluation, or None. Not private.
    rows: the rows of metrics so far, including those from before the run was resumed.
  """

  round: int
  num_rounds: int
  params: PyTree
  metrics: dict[str, Any]
  ledger: Ledger
  diagnostics: dict[str, float] | None
  rows: Sequence[dict[str, Any]]


class Result(NamedTuple):
  """The result of a run.

  Attributes:
    params: the last parameters.
    ledger: what they cost, with what was released before the run. If the run was stopped early
      without a privacy filter, it holds all planned rounds.
    metrics: a row for each evaluation. It holds "round" and what `evaluate` returned. With a delta
      or a privacy filter it holds "central_epsilon" too. Where there is no guarantee,
      "central_epsilon" is None, and "no_central_epsilon" says why. "central_epsilon_by" names the
      accountant and the delta. The last row of a run that was stopped early holds "stopped_early",
      and the epsilon of all planned rounds (or of the filter).
    stopped: whether the budget ended the run.
    stopped_early: whether `early_stop` ended the run.
  """

  params: PyTree
  ledger: Ledger
  metrics: list[dict[str, Any]]
  stopped: bool
  stopped_early: bool = False

  def statement(self, delta: float, *, accountant: str = "tightest") -> str:
    """What the ledger guarantees, a sentence for each observer.

    `jdp.accounting.privacy_statements` has the same as data.
    """
    said = privacy_statements(self.ledger, delta, accountant=accountant)
    return "\n".join(map(str, said))


class _Run(NamedTuple):
  """What stays the same over a run's rounds.

  `reader` is None where the clients are in memory. Otherwise `clients` has the shapes of what
  `reader` reads.
  """

  name: str
  algorithm: FederatedAlgorithm
  advance: Callable[..., Any]
  keys: tuple[jax.Array, jax.Array]
  clients: PyTree
  reader: CohortReader | None
  evaluate: Evaluate
  budget: Budget
  mesh: Mesh | None
  early_stop: EarlyStop | None


class _Block(NamedTuple):
  """Some consecutive rounds.

  Attributes:
    state: the state after these rounds.
    events: the events of each round.
    diagnostics: by name, with a leading axis of rounds. None if there are none.
  """

  state: ServerState
  events: Sequence[tuple[Event, ...]]
  diagnostics: Mapping[str, np.ndarray] | None


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
  evaluate_every: int | None = None,
  max_epsilon: float | None = None,
  delta: float | None = None,
  accountant: str = "tightest",
  early_stop: EarlyStop | None = None,
  privacy_filter: PrivacyFilter | None = None,
  prior: Ledger = Ledger(),
  workdir: Workdir | None = None,
  callbacks: Iterable[Callable[[Progress], None]] = (),
  shares: bool | None = None,
) -> Result:
  """Trains for a number of rounds, or until a budget is spent.

  Formal guarantee: that of the ledger. The ledger holds every round's events before the round's
  result is evaluated, saved, shown to a callback or returned. It begins with `prior`. With a
  workdir it is on disk by then. A run that is killed and started again with the same arguments goes
  on to the same bits, without releasing anything twice. Rounds beyond the budget are never
  released. A run does not go on with other data, keys or first parameters, or if JAX's settings,
  versions or the machine differ: it would repeat a released round as something else. It goes on
  with another number of devices or processes, which changes the order of summation: where the last
  bits of a sum differ, so does its noise. Algorithms cannot be compared. But if rounds are
  repeated, the first model shown is that of a round whose model was shown before, and it is not
  shown if it differs by a bit.

  A run that `early_stop` ends costs as much as all planned rounds, and its ledger says so. The
  number of rounds then depends on the data, through the models. What was released is a part of what
  all rounds would have released, and has their guarantee. The smaller epsilon of the rounds that
  were done is not a guarantee: the bound on a run that ends at a random time is not the bound on
  its rounds until then (arXiv 1605.08294, Section 3). The same is true of a run that somebody ends
  because of what it shows.

  Where noise or sampling is chosen from earlier releases, events say that they are adaptive, and
  only a `privacy_filter` bounds what they cost. Its epsilon is then that of the run, whenever and
  for whatever reason the run ends, also early: rounds that did not happen are not recorded. With an
  `early_stop`, the rounds that happened are marked as adaptive, whatever their noise.

  Args:
    algorithm: what is trained.
    params: what it begins with. If they lie on a mesh with an axis "clients"
      (`jdp.federated.client_mesh`), rounds are computed there. Parameters sharded over its further
      axes stay sharded, and so does the optimizer's state.
    clients: the data of all clients, or users of a source (`jdp.data.clients_from_source`). Of
      these a resumed run compares the number, the names, and the data of 64. If they lie on a mesh
      along the axis "clients", so will the state. If they were put on a device, rounds are computed
      there. Otherwise as many devices compute each round as its work pays for (`docs/scaling.md`),
      if the algorithm takes a mesh and was given none. Each of several then gets a copy of the
      data, or its share (`shares`). Parameters are shown and returned on one device, or, if some
      are sharded, as they lie.
    num_rounds: the number of rounds in the whole run, >= 1. None: as many as the algorithm plans.
      More are refused.
    noise_key: key of sampling and noise, for this run alone. None: one from the operating system.
      With a workdir it is kept in a file of mode 0600 of `<workdir>.secret`. Any other key of
      `jdp.random.secure_key` will do. With a seeded one the run is not private, and its ledger says
      so (`Ledger.caveats`).
    data_key: key of local training, another than `noise_key`. None: one from the operating system,
      kept in the same way.
    evaluate: parameters -> name -> scalar. What it computes from protected data is not private.
    evaluate_every: rounds between evaluations, each with a checkpoint and a row of metrics. The
      rounds between two evaluations are one program, and memory holds their events. None: 10, or
      100 where nothing is evaluated, kept or shown between them.
    max_epsilon: the budget. The run stops before the round that would take the epsilon of its
      released models above this. A run in a workdir keeps the budget that it was begun with.
    delta: the delta of the stated epsilons and of the budget, in (0, 1).
    accountant: the accountant of these epsilons (`jdp.accounting.epsilon`).
    early_stop: rows of metrics -> whether to stop, such as `no_improvement`. It is asked after
      every evaluation, and sees all rows without their epsilons. It must depend on nothing else.
      None: the run does all its rounds.
    privacy_filter: a budget for rounds that may be adaptive (`jdp.accounting.renyi_filter`), in
      place of max_epsilon and delta. The run stops before the first round that the filter does not
      admit. Its observer is model, or None.
    prior: what was released about the same clients before the first round, by runs with other keys
      of noise.
    workdir: a folder for `ledger.jsonl`, `metrics.jsonl` and, at the end, the last parameters
      (`params.npz`, see `jdp.models.load_params`). Its secret sibling `<workdir>.secret` is for the
      key, the checkpoints and digests of the data. Remove that when the run is over. A `RunFolder`
      names other places, and a counter that notices copies. None: nothing is kept.
    callbacks: functions of the `Progress`, called in turn at the start and after every evaluation.
    shares: whether each device gets its share of the clients' data (`shard`) instead of a copy.
      Each of several processes then needs no more of the data in memory than its own devices'
      shares, where the leaves are NumPy's (a `numpy.memmap` will do); the first process reads all
      data once, for a digest, if there is a workdir. None: if the copies would take more than 4
      GiB.

  Returns:
    The `Result`.

  Raises:
    ValueError: if num_rounds is None and the algorithm plans none, or a number is out of range.
      Also if samples would outgrow their slots so often that fewer rounds have an epsilon, or keep
      within the budget, than the noise allows.
      Also if there is a budget without a delta, or a privacy filter with either or for another
      observer, or if rounds are adaptive and there is a delta. Also if the clients are to be dealt
      out and lie on devices, or the algorithm has a mesh of its own. Also if a metric is not
      finite, or the prior is of a run with the same key of noise, or the workdir is of another run.
      Another run has other data, keys, first parameters, budget, rounds or earlier releases, or
      another environment. Also if another process has the workdir, or a file that is needed is lost
      or damaged: the message says what to do. Also if rounds are missing from the end of the
      workdir's ledger, or it is finished and would get further rounds.
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
  (True, 14, 1.99)
  >>> bool(result.metrics[-1]["error"] < 0.5), len(result.ledger)
  (True, 14)
  """
  num_rounds, callbacks = _planned_rounds(algorithm, num_rounds), tuple(callbacks)
  if evaluate_every is None:
    seen = evaluate or early_stop or callbacks or workdir is not None
    evaluate_every = _EVALUATE_EVERY if seen else _UNSEEN_ROUNDS
  _validate.integer(1, num_rounds=num_rounds, evaluate_every=evaluate_every)
  budget = budget_of(max_epsilon, delta, privacy_filter, accountant)
  _check_clients(clients)
  source = clients if isinstance(clients, SourceUsers) else None
  shapes = shapes_of(algorithm, params, clients) if source else clients
  mesh = placement.mesh_for(algorithm, params, shapes, shares)
  start = algorithm.init(params)
  # As given, before they are spread: this must not depend on the number of devices.
  begun_with = source.begun_with if source else clients
  beginning = Beginning(noise_key, data_key, prior, begun_with, whole(start), in_words(budget))
  if not source:
    clients = placement.spread(clients, mesh, shares)  # on devices once, not in every round
  if over := mesh or placement.mesh_of(clients):
    start = placement.laid_out(start, start, over)
  records, keys = open_records(workdir, beginning)
  with contextlib.closing(records):
    keys = placement.laid_out(keys, keys, mesh) if mesh else keys
    reader = None
    if source:
      reader = CohortReader(algorithm, params, source, keys[0], num_rounds, mesh)
      clients = reader.shapes
    most = 1 if source else min(evaluate_every, num_rounds)
    run = _Run(
      records.name,
      algorithm,
      block_of_at_most(algorithm.round, most),
      keys,
      clients,
      reader,
      evaluate or (lambda params: {}),
      budget,
      mesh,
      early_stop,
    )
    return _train(run, start, records, num_rounds, evaluate_every, prior, callbacks)


def _check_clients(clients: PyTree) -> None:
  """Refuses what is not clients' data, before JAX takes a number for an array."""

  def has_rows(leaf: Any) -> bool:
    return bool(getattr(leaf, "shape", ())[:1] > (0,)) and leaf.dtype != np.object_

  leaves = jax.tree.leaves(clients)
  if isinstance(clients, SourceUsers):
    return
  if not leaves or not all(map(has_rows, leaves)):
    raise ValueError(
      f"Expected clients to be a pytree of arrays, each with a row for every client, got "
      f"{shown(clients)}; see jdp.data."
    )


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
  done, restored = records.restore(state)
  if done:
    state = _laid_out(run, jax.tree.map(jnp.asarray, restored), state)
    records.check_release(done, state.params)  # It is shown again below.
  if run.budget.delta is not None:
    with placement.in_force(run.mesh):
      # Traced once: the rounds are computed by the same program.
      _, planned, _ = jax.eval_shape(run.advance, *run.keys, state, run.clients, np.int32(0))
    refuse_outgrown_slots(run.budget, prior, planned, num_rounds)
  if not records.rows:
    records.append_row(
      {"round": 0, **_measure(run, _params(run, state)), **cost(run.budget, prior)}
    )

  def tell(diagnostics):
    rows = tuple(records.rows)
    progress = Progress(
      done, num_rounds, _params(run, state), rows[-1], records.ledger, diagnostics, rows
    )
    for callback in callbacks:
      callback(progress)

  tell(None)
  stopped, stopped_early = False, STOPPED_EARLY in records.rows[-1]
  while done < num_rounds and not (stopped or stopped_early):
    shown = _next_shown(records, done, num_rounds)
    planned = min(evaluate_every, num_rounds - done)
    block = _advance(run, state, done, planned)
    allowed = _allowed(run, records, done, block.events)
    count = min(allowed, shown - done) if shown > done else allowed
    stopped = count == allowed < planned
    if 0 < count < planned:
      block = _advance(run, state, done, count)  # forgets the rounds beyond `count`
    if count:
      # Events first: nothing below may use a round that is not in the ledger.
      records.append_events(done, block.events)
      done, state = done + count, block.state
      if done < shown:
        continue
      records.check_release(done, state.params)
      row = {"round": done, **_measure(run, _params(run, state))}
      stopped_early = not stopped and done < num_rounds and _stops(run, [*records.rows, row])
      if stopped_early:
        _record_rest(run, records, state, done, num_rounds - done)
        row[STOPPED_EARLY] = True
      records.append_row({**row, **cost(run.budget, records.reached)})
      warn_of_clipping(block.diagnostics)
      tell(_mean_diagnostics(block.diagnostics))
      records.save(done, state)
  last = _params(run, state)
  records.finish(last)
  return Result(last, records.ledger, list(records.rows), stopped, stopped_early)


def _next_shown(records: Records, done: int, num_rounds: int) -> int:
  """The next round whose model was shown before, according to this run's folder; else `done`.

  That model comes next, to be compared. A model of an earlier round would be a second release.
  """
  shown = records.next_release(done) or done
  if shown > num_rounds:
    raise ValueError(
      f"Expected num_rounds >= {shown} in {records.name}, as the model after {shown} rounds was "
      f"shown before, got {num_rounds}: rounds after {done} would be released a second time."
    )
  return shown


def _stops(run: _Run, rows: Sequence[dict[str, Any]]) -> bool:
  """Whether the run is to be stopped early after these rows."""
  if run.early_stop is None:
    return False
  return bool(
    run.early_stop(
      [{k: v for k, v in row.items() if k not in (COST, NO_COST, COST_BY)} for row in rows]
    )
  )


def _record_rest(run: _Run, records: Records, state: ServerState, done: int, count: int) -> None:
  """Records the rounds that are not done, up to the budget: what the whole run would cost.

  A filter's budget holds whenever a run stops, so nothing is recorded then.
  """
  if run.budget.privacy_filter is not None:
    return
  with placement.in_force(run.mesh):
    clients: Iterable[PyTree] = itertools.repeat(run.clients, count)
    if run.reader is not None:
      matter = clients_matter(run.algorithm.round, run.keys, state, run.clients)
      following = run.reader.cohorts if matter else run.reader.samples
      clients = following(done, count, state.sampler)
    rest = events_of_next_rounds(run.algorithm.round, run.keys, state, clients)
  events = list(map(on_host, rest))
  records.append_events(done, events[: _allowed(run, records, done, events)])


def _planned_rounds(algorithm: FederatedAlgorithm, asked: int | None) -> int:
  """The number of rounds asked for, else the planned number. More than planned are refused."""
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


def _advance(run: _Run, state: ServerState, done: int, count: int) -> _Block:
  """Computes `count` rounds, after `done`, in one program, so that each costs only its clients'
  work.

  If clients are read from a source, each round is a program.
  """
  with placement.in_force(run.mesh):
    if run.reader is None:
      after, *output = run.advance(*run.keys, state, run.clients, np.int32(count))
      state = _laid_out(run, after, state)
    else:
      state, output = _advance_reading(run, run.reader, state, done, count)
  stacked, diagnostics = jax.tree.map(lambda rows: rows[:count], jax.device_get(output))
  events = _events_of_rounds(stacked, count)
  if run.budget.privacy_filter is not None and run.early_stop is not None:
    events = list(map(_chosen, events))
  return _Block(state, events, diagnostics)


def _advance_reading(
  run: _Run, reader: CohortReader, state: ServerState, done: int, count: int
) -> tuple[ServerState, PyTree]:
  """`_advance` round by round: the last state, and the rounds' outputs along a leading axis."""
  outputs = []
  for cohort in reader.cohorts(done, count, state.sampler):
    after, *output = run.advance(*run.keys, state, cohort, np.int32(1))
    outputs.append(output)
    jax.block_until_ready(state.round)  # So that no more than two cohorts wait for the device.
    state = _laid_out(run, after, state)
  return state, jax.tree.map(lambda *rows: np.concatenate(rows), *jax.device_get(outputs))


def _events_of_rounds(stacked: tuple[Event, ...], count: int) -> list[tuple[Event, ...]]:
  """The events of each round of a block, on the host."""
  if stacked and all(np.ndim(event.number) == 1 for event in stacked):
    # All at once: fetched one by one, a round's events take as long as a small round.
    return events_by_round(stacked)
  rounds = (jax.tree.map(operator.itemgetter(number), stacked) for number in range(count))
  return list(map(on_host, rounds))


def _allowed(run: _Run, records: Records, done: int, events: Sequence[tuple[Event, ...]]) -> int:
  """How many of the rounds after round `done` the budget allows."""
  # After a kill, the ledger may be ahead of the last checkpoint, and even of these rounds.
  return affordable(run.budget, records.ledger, records.last_round + 1 - done, events)


def _laid_out(run: _Run, state: ServerState, like: ServerState) -> ServerState:
  """The state laid out as `like`: XLA chooses its own layout, for which it would compile anew."""
  return placement.laid_out(state, like, run.mesh) if run.mesh else state


def _params(run: _Run, state: ServerState) -> PyTree:
  """The parameters for a script, which knows of no mesh unless it chose it."""
  return placement.on_one_device(state.params, run.mesh)


def _chosen(events: tuple[Event, ...]) -> tuple[Event, ...]:
  """A round's events, marked: it happened because earlier releases did not end the run."""
  return tuple(dataclasses.replace(event, adaptive=True) for event in events)


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


def _mean_diagnostics(diagnostics: Mapping[str, np.ndarray] | None) -> dict[str, float] | None:
  """The mean of each diagnostic over the rounds. None if there are none."""
  if diagnostics is None:
    return None
  return {name: float(np.mean(rounds)) for name, rounds in diagnostics.items()}
