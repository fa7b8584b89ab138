"""Federated averaging with noise by the clients, some of whom vanish.

It follows the IEEE Access 2021 paper on calibration. A round has these steps:

1. All clients are announced.
2. Each trains on its own data from the server's model. Its update is clipped to C after every local
   batch.
3. Each adds its share of the noise, and reports.
4. Those who report are told how many they are, and calibrate.
5. The server steps by the sum over the number of reports. It sees sums only
   (`jdp.queries.distributed.float_sums`).

All clients are announced in every round, and no sampling amplifies. The reason is that the numbers
of clients at each stage are public. Given these numbers, the probability that a client is in the
cohort differs from the one it was drawn with.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jdp import _validate, sampling
from jdp._arguments import checked
from jdp.events import PoissonSampling
from jdp.federated.dropout.dropout_models import DropoutModel, stage_counts
from jdp.federated.engine.cohort import in_turn
from jdp.federated.engine.local_training import LocalUpdate, no_projection
from jdp.federated.engine.rounds import FederatedAlgorithm, add_updates, rounds
from jdp.federated.engine.sharded import check_clients
from jdp.guarantees import Observer, Relation, Unit
from jdp.numerics import vectors
from jdp.numerics.compensated import add, rounded
from jdp.queries import SumQuery
from jdp.queries.distributed.calibrated_integers import IntegerSum
from jdp.queries.distributed.float_sums import DistributedSum
from jdp.sampling.base import pack

PyTree = Any
# Folded into the key of local training. It is larger than any round's number, so keys never
# coincide.
_DROPOUT = 2**32 - 1


class QueryState(NamedTuple):
  """The query's state in a round.

  Attributes:
    counts: int32 [2 + calibrations]. The numbers of clients at the round's stages. Zeros before the
      first round.
    query: the integers' `DiscreteState`, or () of floats.
  """

  counts: jax.Array
  query: PyTree


@checked
def client_dropout(
  local_update: LocalUpdate,
  query: DistributedSum | IntegerSum | SumQuery,
  dropout: DropoutModel,
  optimizer: optax.GradientTransformation,
  *,
  num_clients: int,
  local_clip_norm: float | None,
  draw_shares: bool = False,
  unit: Unit | str = Unit.USER,
  chunk_size: int | None = None,
  mesh: Mesh | None = None,
  diagnose: bool = False,
) -> FederatedAlgorithm:
  """Federated averaging of all clients' updates, with distributed noise under dropout.

  Formal guarantee, from the ledger: that of one sum a round with the multiplier that was realised.
  It holds per `unit`, under zero_out with the client still adding its noise, given who took part
  when. The ledger gets one event for the observer "server" (that follows the protocol and sees
  sums), and one for the observer "model". An abandoned round's model event says that nothing was
  released. The average is zero then, and the optimiser steps with it.

  Args:
    local_update: what a client computes (`jdp.federated.engine.local_training`).
    query: a `distributed_sum`, whose noise is calibrated as its scheme says. Or integers for
      `num_clients`: `distributed_integers`, with calibrations and a floor, or a `discrete_sum`, one
      share each, whose events count the shares that arrived.
    dropout: who vanishes. It models these clients, with as many calibrations as the query has.
      Whoever is lost at one stage is lost for the later ones. It belongs to the simulation and is
      no secret. It is drawn from `data_key`, and its first state from a fixed key.
    optimizer: the server's, applied to minus the average update. `optax.sgd(1.0)` adds the average,
      as published.
    num_clients: n. The number of clients announced.
    local_clip_norm: C. The update is clipped to it after every local batch, as published. None: the
      query clips it once, at the end. Privacy rests on the query's bound alone.
    draw_shares: for a `distributed_sum`, whether every client draws its own noise. Otherwise all
      noise is drawn at once from the exact distribution of its sum. The distribution is the same,
      and it takes a fraction of the time. A `discrete_sum` always draws shares,
      `distributed_integers` never.
    unit: what one client is.
    chunk_size: see `cohort_sum`. None: on a CPU, clients train one by one, and those who draw noise
      draw it side by side.
    mesh: see `cohort_sum`.
    diagnose: whether rounds also return the mean norm of the local updates ("update_norm") and the
      cohort's size. Both break the guarantee if shown.

  Returns:
    A `FederatedAlgorithm` whose clients are a pytree of arrays with one leading axis of all n. One
    compilation serves all numbers of survivors.

  Raises:
    ValueError: if num_clients is not a whole number >= 1, or local_clip_norm is not positive. When
      the round is first traced: if the dropout model has other stages or clients than the query, or
      the data has another number of clients.

  >>> import numpy as np
  >>> from jdp import data, models
  >>> from jdp.federated.dropout import dropout_models
  >>> from jdp.federated import local_sgd
  >>> from jdp.queries import calibrated, distributed_sum
  >>> rng = np.random.default_rng(0)
  >>> examples = data.examples(rng.normal(size=(40, 3)), rng.integers(0, 2, 40))
  >>> clients = data.group(examples, np.split(np.arange(40), 10))
  >>> model = models.logistic_regression((3,), 2)
  >>> lost = dropout_models.with_calibrations(dropout_models.independent(10, 0.3), [0.0])
  >>> algorithm = client_dropout(
  ...   local_sgd(models.cross_entropy(model), 0.5, batch_size=2),
  ...   distributed_sum(0.1, 4.0, calibrated()),
  ...   lost,
  ...   optax.sgd(1.0),
  ...   num_clients=10,
  ...   local_clip_norm=0.1,
  ... )
  >>> state = algorithm.init(model.init(jax.random.key(2)))
  >>> state, (of_model, of_server), _ = jax.jit(algorithm.round)(
  ...   jax.random.key(0), jax.random.key(1), state, clients
  ... )
  >>> # nobody vanished during the calibration
  >>> f"{of_server.query.stddev / of_server.query.clip_norm:.3f}"
  '4.000'
  """
  _validate.integer(1, num_clients=num_clients)
  if local_clip_norm is not None:
    _validate.positive(local_clip_norm=local_clip_norm)
  project = (
    no_projection if local_clip_norm is None else partial(vectors.clip, max_norm=local_clip_norm)
  )
  calibrations, adapted = _adapt(query, draw_shares)
  stages = 1 + calibrations

  def client_fn(keys, params, client):
    examples, answered = client
    train = partial(local_update, project=project)
    update = (in_turn(train, mesh) if chunk_size is None else train)(keys.data, params, examples)
    return (update, answered), {"update_norm": vectors.l2_norm(update)}

  def init_query(record):
    return QueryState(jnp.zeros(1 + stages, jnp.int32), adapted.init(record))

  algorithm = rounds(
    client_fn,
    adapted._replace(init=init_query),
    _reporting(dropout, num_clients),
    add_updates(optimizer),
    relation=Relation.ZERO_OUT,
    unit=unit,
    # Clients that round to integers draw random numbers too.
    draws_noise=draw_shares or not isinstance(query, DistributedSum),
    chunk_size=chunk_size,
    mesh=mesh,
    diagnose=diagnose,
  )

  def round_fn(noise_key, data_key, state, clients):
    dropout_key = jax.random.fold_in(jax.random.fold_in(data_key, _DROPOUT), state.round)
    present, left = dropout.sample(dropout_key, state.sampler)
    if present.shape != (stages, num_clients):
      raise ValueError(
        f"Expected a dropout model of {stages} stages and {num_clients} clients, got "
        f"{present.shape}; set with_calibrations as the query has them."
      )
    check_clients(num_clients, clients)
    # Whoever comes back was not asked to calibrate. Its noise is in no sum.
    present = jax.lax.associative_scan(jnp.logical_and, present)
    numbers = stage_counts(present)
    # The set of reporters becomes the sampler's state, and the set of calibrators becomes data.
    begun = state._replace(query=state.query._replace(counts=numbers), sampler=present[0])
    done, events, diagnostics = algorithm.round(
      noise_key, data_key, begun, (clients, present[1:].T)
    )
    event: Any = events[0]
    # Of floats, the server may have seen a sum with less noise than the model has.
    server_query = (
      query.events(numbers).server if isinstance(query, DistributedSum) else event.query
    )
    server_event = dataclasses.replace(event, query=server_query, observer=Observer.SERVER)
    return done._replace(sampler=left), (event, server_event), diagnostics

  return algorithm._replace(round=round_fn)


def _reporting(dropout: DropoutModel, num_clients: int) -> sampling.Sampler:
  """The sampler of those who report.

  In a round its state says who reports. Between rounds it is the dropout model's state.
  """
  return sampling.Sampler(
    init=lambda: dropout.init(jax.random.key(0)),
    sample=lambda key, present: (pack(present, num_clients), present),
    # A probability of 1: being lost by chance is not counted as privacy.
    event=lambda state: PoissonSampling(1.0, population=num_clients),
    population=num_clients,
    expected_size=num_clients,
    capacity=num_clients,
  )


def _adapt(
  query: DistributedSum | IntegerSum | SumQuery, draw_shares: bool
) -> tuple[int, SumQuery]:
  """The number of calibrations, and the query as `rounds` runs it."""
  if isinstance(query, DistributedSum):
    return query.scheme.num_calibrations, _adapt_distributed_sum(query, draw_shares)
  if isinstance(query, IntegerSum):
    return query.num_calibrations, _adapt_integers(query.init, query.encode, query.finalize)

  def open_sum(key, state, total, counts):
    del counts
    return query.finalize(key, state, total)

  return 0, _adapt_integers(query.init, query.preprocess, open_sum)


def _adapt_distributed_sum(query: DistributedSum, draw_shares: bool) -> SumQuery:
  """A `distributed_sum` as `rounds` runs it."""
  calibrations = query.scheme.num_calibrations

  def preprocess(key, state, record, weight):
    update, answered = record
    if not draw_shares:
      return jax.tree.map(lambda x: weight * x, query.clip(update))
    total = query.share(jax.random.clone(key), update, state.counts[0])
    for stage in range(calibrations):
      more = query.calibrate(jax.random.clone(key), update, state.counts[: 2 + stage])
      total = jax.tree.map(
        lambda t, x, there=answered[stage]: t + jnp.where(there, x, 0.0), total, more
      )
    # A client that does not report adds neither update nor noise.
    return jax.tree.map(lambda x: weight * x, total)

  def finalize(key, state, total):
    noise_key, server_key = jax.random.split(key)
    if not draw_shares:
      total = add(total, query.noise(noise_key, rounded(total), state.counts))
    result, events = query.finalize(server_key, total, state.counts)
    return _mean_of_reports(result, state.counts), events.model, state

  return SumQuery(lambda record: (), preprocess, finalize, takes_pairs=True)


def _adapt_integers(
  init: Callable[[PyTree], PyTree], encode: Callable[..., PyTree], open_sum: Callable[..., Any]
) -> SumQuery:
  """A query of integers as `rounds` runs it.

  Args:
    init: record -> the query's state.
    encode: (key, state, record, weight) -> what a client sends.
    open_sum: (key, state, total, counts) -> result, event and state.
  """

  def preprocess(key, state, record, weight):
    return encode(key, state.query, record[0], weight)

  def finalize(key, state, total):
    result, event, inner = open_sum(key, state.query, total, state.counts)
    return _mean_of_reports(result, state.counts), event, state._replace(query=inner)

  return SumQuery(init, preprocess, finalize, takes_pairs=True)


def _mean_of_reports(total: PyTree, numbers: jax.Array) -> PyTree:
  """The mean over the clients that reported, whose number is public."""
  reported = jnp.maximum(numbers[1], 1).astype(jnp.float32)
  return jax.tree.map(lambda x: x / reported, total)
