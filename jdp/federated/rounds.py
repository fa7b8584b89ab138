"""A round of private training, whatever is trained: sample, compute, sum privately, step, and say what it cost.

The procedure of arXiv 1812.06210, Sections 1 and 2: records are sampled, each becomes a collection of vectors at the
server's current values, a query makes their sum private, and the server takes a step with the result. A training
procedure supplies what a record becomes and what the step is; nothing here knows of either.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jdp.events import Event, LocalRelease, Round
from jdp.federated.cohort import cohort_sum
from jdp.guarantees import Relation, Unit
from jdp.queries import SumQuery
from jdp.queries.gaussian import weighted
from jdp.sampling import Sampler

PyTree = Any


class ServerState(NamedTuple):
  """All that a run carries from round to round, besides its keys.

  Attributes:
    round: int32 scalar, the number of rounds done.
    params: what is trained, and what evaluations look at.
    optimizer: what else the server's step carries.
    query: the sum query's state.
    sampler: the sampler's state. Private: it may tell who took part.
  """

  round: jax.Array
  params: PyTree
  optimizer: PyTree
  query: PyTree
  sampler: PyTree


class FederatedAlgorithm(NamedTuple):
  """A training procedure as pure functions.

  Attributes:
    init: parameters -> ServerState.
    round: (noise_key, data_key, state, clients) -> (state, events, diagnostics). All randomness
      that the guarantee rests on comes from `noise_key`; `data_key` drives local
      training. Both are keys of the whole run, the same in every round: the round's number is folded in, so a
      round computed twice is the same twice. Events must be in the ledger before the state is used.
      Diagnostics are what nobody could observe in a deployment: name -> mean over the cohort, and "cohort_size".
      Not private, never a result; None unless asked for.
  """

  init: Callable[[PyTree], ServerState]
  round: Callable[
    [jax.Array, jax.Array, ServerState, PyTree],
    tuple[ServerState, tuple[Event, ...], dict[str, jax.Array] | None],
  ]


class Server(NamedTuple):
  """What the server does, as pure functions.

  Attributes:
    record: parameters -> shapes of one record, for the query's `init`.
    init: parameters -> what else the step carries.
    step: (result of the query, carried, parameters) -> (parameters, carried).
  """

  record: Callable[[PyTree], PyTree]
  init: Callable[[PyTree], PyTree]
  step: Callable[[PyTree, PyTree, PyTree], tuple[PyTree, PyTree]]


class ClientKeys(NamedTuple):
  """A client's keys of one round: `noise` for local mechanisms and queries, `data` for local training."""

  noise: jax.Array
  data: jax.Array


ClientFn = Callable[[ClientKeys, PyTree, PyTree], tuple[PyTree, dict[str, jax.Array]]]
"""(keys, parameters, client) -> (the client's record, scalars to diagnose by name)."""


def rounds(
  client_fn: ClientFn,
  query: SumQuery,
  sampler: Sampler,
  server: Server,
  *,
  relation: Relation | str,
  unit: Unit | str = Unit.USER,
  releases: tuple[LocalRelease, ...] = (),
  chunk_size: int = 64,
  mesh: Mesh | None = None,
  diagnose: bool = False,
) -> FederatedAlgorithm:
  """Private training from its parts.

  Formal guarantee: that of the events, which every round returns: a `Round` of the sampler's and the query's event
  under `relation`, for a `unit`, to whoever sees the parameters; and `releases`. `client_fn` may depend on the
  client's own data, the server's parameters and the keys, on nothing else.

  Args:
    client_fn: what a client's record is (see `ClientFn`).
    query: makes the sum of the records private.
    sampler: who takes part.
    server: what the server does with the query's result.
    relation: the neighbouring relation of the central guarantee.
    unit: what one client is.
    releases: what each member of the cohort releases locally in a round.
    chunk_size: see `cohort_sum`.
    mesh: see `cohort_sum`.
    diagnose: whether rounds return diagnostics; they break the guarantee if shown.
  """
  relation, unit = Relation(relation), Unit(unit)

  def init(params):
    record = jax.eval_shape(server.record, params)
    return ServerState(jnp.int32(0), params, server.init(params), query.init(record), sampler.init())

  def contribution(keys, shared, client, weight):
    client_key, data_key = keys
    noise_key, query_key = jax.random.split(client_key)
    params, query_state = shared
    record, scalars = client_fn(ClientKeys(noise_key, data_key), params, client)
    diagnostics = weighted({**scalars, "cohort_size": jnp.float32(1)}, weight) if diagnose else None
    return query.preprocess(query_key, query_state, record, weight), diagnostics

  def round_fn(noise_key, data_key, state, clients):
    sampling_key, clients_key, server_key = jax.random.split(jax.random.fold_in(noise_key, state.round), 3)
    keys = (clients_key, jax.random.fold_in(data_key, state.round))
    event = sampler.event(state.sampler)
    sample, sampler_state = sampler.sample(sampling_key, state.sampler)
    total, diagnostics = cohort_sum(
      contribution, keys, (state.params, state.query), sample, clients, chunk_size=chunk_size, mesh=mesh
    )
    result, query_event, query_state = query.finalize(server_key, state.query, total)
    params, carried = server.step(result, state.optimizer, state.params)
    events = (Round(event, query_event, relation, unit), *releases)
    return ServerState(state.round + 1, params, carried, query_state, sampler_state), events, _means(diagnostics)

  return FederatedAlgorithm(init, round_fn)


def descend(optimizer: optax.GradientTransformation) -> Server:
  """The server that takes the query's result for a gradient of the parameters, and lets an optimiser step."""

  def step(gradient, carried, params):
    updates, carried = optimizer.update(gradient, carried, params)
    return optax.apply_updates(params, updates), carried

  return Server(lambda params: params, optimizer.init, step)


def _means(sums):
  """Means over the cohort of what was summed over it; None of None."""
  if sums is None:
    return None
  size = jnp.maximum(sums["cohort_size"], 1.0)
  return {name: total if name == "cohort_size" else total / size for name, total in sums.items()}
