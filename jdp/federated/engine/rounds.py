"""Rounds of private training, whatever is trained.

A round samples clients, computes their records, sums them privately and steps. It also states what
it cost.

The procedure is that of arXiv 1812.06210, Sections 1 and 2. Records are sampled, and each becomes a
collection of vectors at the server's current values. A query makes their sum private, and the
server takes a step with the result. A training procedure supplies what a record becomes and what
the step is. Nothing here knows of either.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jdp import _validate, random
from jdp._arguments import checked
from jdp._dispatch import waits_for
from jdp.events import LocalRelease, Round
from jdp.events.rounds import Event
from jdp.federated.engine.client import ClientFn, contribution
from jdp.federated.engine.cohort import default_chunk_size, unrounded_cohort_sum
from jdp.federated.engine.read_cohort import DrawnSample, ReadCohort
from jdp.federated.engine.sharded import one_client
from jdp.federated.engine.shared_programs import shared
from jdp.guarantees import Relation, Unit
from jdp.ledger.unstacking import unstack
from jdp.numerics.compensated import rounded
from jdp.queries import SumQuery
from jdp.queries.finalizing import finalized
from jdp.random import binding
from jdp.random.keys import client_key
from jdp.sampling import Sampler

PyTree = Any
_WIDE = 4  # standard deviations above the mean of a Poisson sample's size


@waits_for("round")
class ServerState(NamedTuple):
  """All that a run carries from round to round, besides its keys.

  Attributes:
    round: int32 scalar. The number of rounds done.
    params: the trained parameters. Evaluations see them.
    optimizer: the state of the server's step.
    query: the sum query's state. It may hold noise that was not released, as secret as a key.
    sampler: the sampler's state. Private: it may tell who took part.
  """

  round: jax.Array
  params: PyTree
  optimizer: PyTree
  query: PyTree
  sampler: PyTree


class FederatedAlgorithm(NamedTuple):
  """A training procedure as pure functions.

  All randomness that the guarantee rests on comes from `noise_key`. Local training uses `data_key`,
  which need not be secret: a client's draws with it depend on the client's own identity, and on no
  other client. Both are keys of the whole run, the same in every round. The round's number is
  folded in, so a round computed twice is the same twice. The noise of a sum is bound to the sum
  (`jdp.queries.finalizing`): a round computed with other data or code has other noise, but the same
  sample.

  Events must be in the ledger before the state is used. They hold the round's number. They are
  marked if `noise_key` is not of `jdp.random.secure_key` or is the data's key.

  Diagnostics cannot be observed in a deployment: name -> mean over the cohort, and "cohort_size".
  They are not private, and never part of a result. They are None unless asked for.

  Attributes:
    init: parameters -> ServerState.
    round: (noise_key, data_key, state, clients) -> (state, events, diagnostics).
    num_rounds: how many rounds the noise was planned for, or None. `train` does no more.
    work: (parameters, clients) -> about how many numbers a round's clients pass through memory, by
      their shapes. From it `train` decides whether several devices pay off (`engine.placement`).
      None: `round` does not compute its cohort over the mesh in force (`jax.set_mesh`).
    sample: (noise_key, number of the round, the sampler's state) -> `DrawnSample`, as `round`
      draws it, so that its members' data can be read ahead. None: `round` takes the data of all
      clients only.
  """

  init: Callable[[PyTree], ServerState]
  round: Callable[
    [jax.Array, jax.Array, ServerState, PyTree],
    tuple[ServerState, tuple[Event, ...], dict[str, jax.Array] | None],
  ]
  num_rounds: int | None = None
  work: Callable[[PyTree, PyTree], float] | None = None
  sample: Callable[[jax.Array, jax.Array, PyTree], DrawnSample] | None = None


class Server(NamedTuple):
  """The server's part of a round, as pure functions.

  Attributes:
    record: parameters -> arrays like those of one record, for the query's `init`, which looks at
      their shapes, types and places alone.
    init: parameters -> the step's state (`carried`).
    step: (result of the query, carried, parameters) -> (parameters, carried).
  """

  record: Callable[[PyTree], PyTree]
  init: Callable[[PyTree], PyTree]
  step: Callable[[PyTree, PyTree, PyTree], tuple[PyTree, PyTree]]


def send_parameters(params: PyTree, query_state: PyTree) -> PyTree:
  """What the server sends by default: the parameters only."""
  del query_state
  return params


@checked
def rounds(
  client_fn: ClientFn,
  query: SumQuery,
  sampler: Sampler,
  server: Server,
  *,
  relation: Relation | str,
  unit: Unit | str = Unit.USER,
  releases: tuple[LocalRelease, ...] = (),
  send: Callable[[PyTree, PyTree], PyTree] = send_parameters,
  weight: Callable[[PyTree], jax.Array] | None = None,
  draws_noise: bool = False,
  chunk_size: int | None = None,
  mesh: Mesh | None = None,
  diagnose: bool = False,
) -> FederatedAlgorithm:
  """Builds a private training procedure from its parts.

  Formal guarantee: that of the events, which every round returns. They are a `Round` of the
  sampler's and the query's event under `relation`, for a `unit`, to whoever sees the parameters;
  and `releases`. `weight` may depend on the client's own data. `client_fn` may depend on that data,
  on what the server sent and on the keys. Neither may depend on anything else.

  Args:
    client_fn: computes a client's record (`jdp.federated.engine.client.ClientFn`).
    query: makes the sum of the records private.
    sampler: who takes part.
    server: what the server does with the query's result.
    relation: the neighbouring relation of the central guarantee.
    unit: what one client is.
    releases: what each member of the cohort releases locally in a round.
    send: (parameters, public query state) -> the part that clients see.
    weight: client -> the weight of its record, in [0, 1]. None: all weights are 1. A weight is
      refused with `releases`, and with a query that draws noise for each record, as `discrete_sum`
      does.
    draws_noise: whether each client draws noise for its record, a matter of speed only.
    chunk_size: see `cohort_sum`. No chunk is wider than almost all samples.
    mesh: see `cohort_sum`.
    diagnose: whether rounds return diagnostics. They break the guarantee if shown.

  Raises:
    ValueError: if a weight is given where it is refused (because of the query: when a round is
      traced).

  >>> from jdp import queries, sampling
  >>> def client_fn(keys, params, client):
  ...   return client - params, {}
  >>> query, sampler = queries.gaussian_sum(1.0, 2.0), sampling.poisson(4, 0.5)
  >>> server = add_updates(optax.sgd(0.1))
  >>> algorithm = rounds(client_fn, query, sampler, server, relation="zero_out", chunk_size=2)
  >>> state, keys = algorithm.init(jnp.zeros(2)), (jax.random.key(0), jax.random.key(1))
  >>> _, (event,), _ = jax.eval_shape(algorithm.round, *keys, state, jnp.ones((4, 2)))
  >>> event.query, event.relation.value
  (GaussianSum(clip_norm=1.0, stddev=2.0), 'zero_out')
  """
  relation, unit = Relation(relation), Unit(unit)
  if releases and weight is not None:
    raise ValueError(
      "Expected weight=None with local releases, got a weight, which they do not protect; leave it "
      "out."
    )

  def init(params):
    # Given arrays, not shapes, so that what the query keeps for later rounds lies on the same
    # devices.
    kept = query.init(server.record(params))
    return ServerState(jnp.int32(0), params, server.init(params), kept, sampler.init())

  # Empty slots cost time in the last chunk only. This bound keeps chunks from growing for them.
  mean = sampler.expected_size
  most_members = max(1, math.ceil(mean + _WIDE * math.sqrt(mean)))
  summand = contribution(client_fn, query, weight, diagnose)

  def keys_of_round(noise_key, number):
    return jax.random.split(jax.random.fold_in(noise_key, number), 3)

  def sample_of_round(noise_key, number, sampler_state):
    sampling_key, _, _ = keys_of_round(noise_key, number)
    return DrawnSample(number, *sampler.sample(sampling_key, sampler_state))

  def round_fn(noise_key, data_key, state, clients):
    sampling_key, clients_key, server_key = keys_of_round(noise_key, state.round)
    # Before `sample`, which moves the sampler's state on to the next round.
    event = sampler.event(state.sampler)
    if isinstance(clients, ReadCohort) and clients.drawn is not None:
      sample, sampler_state = clients.drawn.of(state.round), clients.drawn.sampler_state
      clients = dataclasses.replace(clients, drawn=None)  # which all devices have, unlike the rest
    else:
      sample, sampler_state = sampler.sample(sampling_key, state.sampler)
    public = query.public(state.query)
    shared = (send(state.params, public), public)
    keys = (
      binding.bind(clients_key, shared),
      client_key(jax.random.fold_in(data_key, state.round)),
    )
    size = chunk_size
    if size is None:
      drawn = _size(jax.eval_shape(server.record, state.params)) if draws_noise else 0
      size = default_chunk_size(
        summand, keys, shared, clients, mesh, members=most_members, drawn=drawn
      )
    total, diagnostics = unrounded_cohort_sum(
      summand, keys, shared, sample, clients, chunk_size=min(size, most_members), mesh=mesh
    )
    with _over(mesh):
      result, query_event, query_state = finalized(query, server_key, state.query, total)
    params, carried = server.step(result, state.optimizer, state.params)
    released = (Round(event, query_event, relation, unit), *releases)
    events = tuple(
      random.marked(dataclasses.replace(event, number=state.round), noise_key, data_key)
      for event in released
    )
    return (
      ServerState(state.round + 1, params, carried, query_state, sampler_state),
      events,
      _means(diagnostics),
    )

  def work(params, clients):
    return sampler.expected_size * (_size(params) + _size(one_client(clients)))

  return FederatedAlgorithm(
    init, round_fn, query.num_rounds, work if mesh is None else None, sample_of_round
  )


@checked
def add_updates(optimizer: optax.GradientTransformation) -> Server:
  """The server that adds the query's result, an update of the parameters, by an optimiser.

  Args:
    optimizer: applied to minus the update, in place of a gradient. `optax.sgd(1.0)` adds the update
      as it is.

  >>> server = add_updates(optax.sgd(0.5))
  >>> params = jnp.array([1.0, 2.0])
  >>> moved, _ = server.step(jnp.array([0.5, -0.5]), server.init(params), params)
  >>> moved.tolist()
  [1.25, 1.75]
  """

  # optax expects a gradient, which it subtracts.
  def step(update, carried, params):
    updates, carried = optimizer.update(jax.tree.map(jnp.negative, update), carried, params)
    return optax.apply_updates(params, updates), carried

  return Server(lambda params: params, optimizer.init, step)


def block(
  algorithm: FederatedAlgorithm, num_rounds: int
) -> Callable[..., tuple[ServerState, Any, Any]]:
  """Combines several rounds of `algorithm.round` into one function, compiled as one scan.

  The function is (noise_key, data_key, state, clients) -> (state, events, diagnostics). Events and
  diagnostics have a leading axis of rounds, and `events_by_round` turns these events into ledger
  entries. Keys and data are those of single rounds, and so are the results, bit for bit. Put all
  the block's events in the ledger before its state is used.

  Raises:
    ValueError: if num_rounds is not positive.
  """
  _validate.integer(1, num_rounds=num_rounds)

  def run(noise_key, data_key, state, clients):
    def one_round(state, _):
      state, *output = algorithm.round(noise_key, data_key, state, clients)
      return state, tuple(output)

    state, (events, diagnostics) = jax.lax.scan(one_round, state, length=num_rounds)
    return state, events, diagnostics

  return run


@functools.lru_cache(maxsize=8)  # The runs of a sweep over seeds are traced once.
def block_of_at_most(
  round_fn: Callable[..., Any], most: int
) -> Callable[..., tuple[ServerState, Any, Any]]:
  """`block` for any number of rounds up to `most`, compiled as one program for all of them.

  Rounds that differ only in numbers share this program too (`engine.shared_programs`).

  The function is (noise_key, data_key, state, clients, num_rounds) -> (state, events, diagnostics).
  The first `num_rounds` rows of events and diagnostics are those of the rounds. The other rows are
  zeros, and not events.
  """

  @shared
  def several_rounds(noise_key, data_key, state, clients, num_rounds):
    structure = None

    @jax.jit  # so that it is traced once
    def one_round(state):
      nonlocal structure
      state, *output = round_fn(noise_key, data_key, state, clients)
      leaves, structure = jax.tree.flatten(tuple(output))
      return state, leaves

    def write_round(number, carry):
      state, leaves = one_round(carry[0])
      return state, [rows.at[number].set(x) for rows, x in zip(carry[1], leaves, strict=True)]

    after, shapes = jax.eval_shape(one_round, state)
    # The first round may widen the state: momentum of bfloat16 parameters becomes float32.
    state = jax.tree.map(lambda x, y: x if x.dtype == y.dtype else x.astype(y.dtype), state, after)
    rows = [jnp.zeros((most, *x.shape), x.dtype) for x in shapes]
    state, rows = jax.lax.fori_loop(0, num_rounds, write_round, (state, rows))
    return state, *jax.tree.unflatten(structure, rows)

  return several_rounds


def replicate(tree: PyTree, mesh: Mesh | None) -> PyTree:
  """Copies `tree` to every device of the mesh, once, before the first round.

  Without a mesh the tree is returned unchanged.
  """
  if mesh is None:
    return tree
  # Each of several processes has the whole tree, and puts it on the devices that it can reach.
  return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))(tree)


def events_by_round(events: tuple[Event, ...]) -> list[tuple[Event, ...]]:
  """The events of each round of a `block`, on the host."""
  return list(zip(*map(unstack, events), strict=True))


def _over(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
  """The context in which each device of a mesh draws its share of the noise, if there is a mesh."""
  over = getattr(jax.sharding, "use_abstract_mesh", None)  # newer than JAX 0.7
  return over(mesh.abstract_mesh) if mesh and over else contextlib.nullcontext()


def _size(tree: PyTree) -> int:
  """How many numbers a tree of arrays, or of their shapes, holds."""
  return sum(math.prod(np.shape(x)) for x in jax.tree.leaves(tree))


def _means(sums: dict[str, Any] | None) -> dict[str, jax.Array] | None:
  """Turns sums over the cohort into means over it. None stays None."""
  if sums is None:
    return None
  sums = rounded(sums)
  size = jnp.maximum(sums["cohort_size"], 1.0)
  return {name: total if name == "cohort_size" else total / size for name, total in sums.items()}
