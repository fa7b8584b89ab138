"""Private federated learning: local and central privacy together (arXiv 1812.00984, Section 3.1).

A round: every user takes part with probability q; trains on its own data;
releases the difference of models through a local mechanism; the server projects every release onto a ball
(that is the clipping of the sum query), averages over the *expected* cohort, adds Gaussian noise, and steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from jdp import vectors
from jdp.data.clients import Examples
from jdp.events import Event, LocalRelease, Round
from jdp.federated.cohort import cohort_sum
from jdp.federated.local_training import LocalUpdate
from jdp.guarantees import Relation, Unit
from jdp.mechanisms import LocalMechanism
from jdp.queries import SumQuery
from jdp.queries.gaussian import weighted
from jdp.sampling import Sampler

PyTree = Any


class ServerState(NamedTuple):
  """All that a run carries from round to round, besides its keys.

  Attributes:
    round: int32 scalar, the number of rounds done.
    params: the model.
    optimizer: the server optimiser's state.
    query: the sum query's state.
    sampler: the sampler's state. Private: it counts each user's participations.
  """

  round: jax.Array
  params: PyTree
  optimizer: PyTree
  query: PyTree
  sampler: PyTree


class Diagnostics(NamedTuple):
  """What nobody could observe in a deployment: averages over a round's cohort. Not private, never a result.

  Attributes:
    cohort_size: the number of members, float32.
    update_norm: mean L2 norm of the local differences.
    release_norm: mean L2 norm of what reached the server.
  """

  cohort_size: jax.Array
  update_norm: jax.Array
  release_norm: jax.Array


class FederatedAlgorithm(NamedTuple):
  """A training procedure as pure functions.

  Attributes:
    init: parameters -> ServerState.
    round: (noise_key, data_key, state, clients) -> (state, events, diagnostics). All randomness
      that the guarantee rests on comes from `noise_key`; `data_key` drives local
      training. Both are keys of the whole run, the same in every round: the round's number is folded in, so a
      round computed twice is the same twice. Events must be in the ledger before the state is used.
  """

  init: Callable[[PyTree], ServerState]
  round: Callable[
    [jax.Array, jax.Array, ServerState, Examples], tuple[ServerState, tuple[Event, ...], Diagnostics | None]
  ]


def private_federated(
  local_update: LocalUpdate,
  query: SumQuery,
  sampler: Sampler,
  optimizer: optax.GradientTransformation,
  *,
  mechanism: LocalMechanism | None = None,
  relation: Relation | str = Relation.ADD_REMOVE,
  chunk_size: int = 64,
  mesh: Mesh | None = None,
  diagnose: bool = False,
) -> FederatedAlgorithm:
  """Federated learning with local and central privacy.

  Formal guarantees, both from the ledger: *central*, per user, to whoever sees the
  released models: a subsampled Gaussian if `query` is a Gaussian sum. *Local*, per user, against the server: each
  of a user's releases costs the mechanism's guarantee, and they add up over at most
  `sampler.max_participations` rounds. The local one is not amplified by sampling:
  the server sees who reports.

  Args:
    local_update: what a client computes (`jdp.federated.local_training`).
    query: makes the average of the released vectors private; its clip norm is
      the radius of the server's projection. The released average stays unbiased if that is at least
      `mechanism.max_norm`. Divide by `sampler.expected_size`.
    sampler: who takes part.
    optimizer: the server's, applied to minus the average difference;
      `optax.sgd(1.0)` is plain federated averaging.
    mechanism: the local randomiser for vectors of as many entries as the
      model has parameters. None: clients report in the clear.
    relation: the neighbouring relation of the central guarantee.
    chunk_size: see `cohort_sum`; so too `mesh`.
    mesh: see `cohort_sum`.
    diagnose: whether rounds also return `Diagnostics`; they break the guarantee if shown.

  Returns:
    A `FederatedAlgorithm`.
  """
  relation = Relation(relation)
  local_release: tuple[LocalRelease, ...] = ()
  if mechanism is not None:
    local_release = (LocalRelease(mechanism.guarantee.restate(unit=Unit.USER), sampler.max_participations),)

  def init(params):
    flat, _ = ravel_pytree(params)
    return ServerState(jnp.int32(0), params, optimizer.init(params), query.init(flat), sampler.init())

  def client_fn(keys, shared, client, weight):
    noise_key, local_key = keys
    mechanism_key, query_key = jax.random.split(noise_key)
    params, query_state = shared
    difference, _ = ravel_pytree(local_update(local_key, params, client))
    vector = difference if mechanism is None else mechanism.privatize(mechanism_key, difference)
    contribution = query.preprocess(query_key, query_state, vector, weight)
    if not diagnose:
      return contribution, None
    norms = jnp.stack([jnp.float32(1), vectors.l2_norm(difference), vectors.l2_norm(vector)])
    return contribution, weighted(norms, weight)

  def round_fn(noise_key, data_key, state, clients):
    sampling_key, release_key, server_key = jax.random.split(jax.random.fold_in(noise_key, state.round), 3)
    keys = (release_key, jax.random.fold_in(data_key, state.round))
    sample, sampler_state = sampler.sample(sampling_key, state.sampler)
    total, norms = cohort_sum(
      client_fn, keys, (state.params, state.query), sample, clients, chunk_size=chunk_size, mesh=mesh
    )
    difference, query_event, query_state = query.finalize(server_key, state.query, total)
    _, unravel = ravel_pytree(state.params)
    pseudo_gradient = unravel(-difference)
    updates, optimizer_state = optimizer.update(pseudo_gradient, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    events = (Round(sampler.event, query_event, relation), *local_release)
    diagnostics = None
    if diagnose:
      size = jnp.maximum(norms[0], 1.0)
      diagnostics = Diagnostics(norms[0], norms[1] / size, norms[2] / size)
    return ServerState(state.round + 1, params, optimizer_state, query_state, sampler_state), events, diagnostics

  return FederatedAlgorithm(init, round_fn)
