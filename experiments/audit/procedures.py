"""Training procedures as audits see them, with the worst canary there is.

A canary sends the clip norm along a coordinate of its own, in every round, or nothing. All others
send nothing, but for averages over the clients' own weight. Repeated runs have one canary and one
number. A single run has many canaries, and a number for each. Noise, rounds and participation are
the same in both.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jdp import conformance, queries, sampling
from jdp import matrix_factorization as mf
from jdp.accounting.draw_and_discard.later_updates import snapshot_epsilon
from jdp.data import Examples
from jdp.events.queries import SumQueryEvent
from jdp.events.rounds import Event
from jdp.federated import (
  add_updates,
  client_dropout,
  dp_fedavg,
  example_gradient,
  federated_averaging,
  rounds,
)
from jdp.federated import draw_and_discard as dad
from jdp.federated.dropout import dropout_models
from jdp.federated.engine.client import ClientKeys
from jdp.federated.engine.local_training import Project
from jdp.federated.engine.rounds import FederatedAlgorithm, ServerState
from jdp.federated.estimators import clipped_denominator, fixed_denominator, flat_clipping
from jdp.guarantees import Relation, Unit
from jdp.queries.base import Contribution, Key, PyTree, State

ROUNDS = 4
DELTA = 0.1  # large, so that a sample contains many events of this probability
_MULTIPLIER = 2.0  # z; the runs of all rounds are then 1-GDP
_SAMPLED_MULTIPLIER = 1.0
_RATE = 0.5  # of the procedure that samples
_COUNT_STDDEV = 2.0  # of the count of unclipped updates, which has a quarter of the cost
_FAR = 1e3  # times the first clip norm, so that it is beyond all clip norms
_LEAST_WEIGHT = 1.0
_UPDATES = 2  # that hide a user's own from the third adversary of Draw and Discard


class Canaries(NamedTuple):
  """Clients that are canaries.

  Attributes:
    number: int32 [m], the coordinate of each.
    size: float32 [m], 1 for a canary that is included, else 0.
  """

  number: jax.Array
  size: jax.Array


class Procedure(NamedTuple):
  """A training procedure to audit.

  Attributes:
    make: number of canaries -> algorithm that plans its rounds.
    params: the number of leaves -> what training begins with, given the numbers of a leaf.
    clients: canaries -> the clients' data.
    gaussian: whether a whole run is one Gaussian release, so that its trade-off curve is known.
    score: the changes of the models [rounds, 1] -> their log likelihood ratio. None: the inner
      product with what the canary changes, which is that for Gaussian releases.
    one_run: whether one run of many canaries tells as much of each as it would tell of one.
  """

  make: Callable[[int], FederatedAlgorithm]
  params: Callable[[int], PyTree] = jnp.zeros
  clients: Callable[[Canaries], PyTree] = lambda canaries: canaries
  gaussian: bool = True
  score: Callable[[jax.Array], jax.Array] | None = None
  one_run: bool = True


def canaries(sizes: np.ndarray) -> Canaries:
  """The canaries of a run: 1 for one that is included, else 0."""
  return Canaries(jnp.arange(len(sizes)), jnp.asarray(sizes, jnp.float32))


def subject(procedure: Procedure) -> conformance.Subject:
  """Many runs of one canary: presence against absence."""
  data = {
    name: procedure.clients(canaries(np.array([own])))
    for name, own in (("present", True), ("absent", False))
  }
  made = conformance.run_subject(
    procedure.make(1), procedure.params(1), data, relation=Relation.ZERO_OUT, delta=DELTA
  )
  return made._replace(statistics={"score": procedure.score}) if procedure.score else made


def send(
  key: jax.Array, params: jax.Array, client: PyTree, project: Project | None = None
) -> jax.Array:
  """A canary's update is its coordinate."""
  del key, project
  return jnp.zeros_like(params).at[client.number].set(client.size)


def fedavg(number: int, **given: Any) -> FederatedAlgorithm:
  """DP-FedAvg of canaries who are all in every round, unless what is given says otherwise."""
  return dp_fedavg(
    lambda params, examples: jnp.float32(0),
    canaries(np.ones(number, bool)),
    clip_norm=1.0,
    num_rounds=ROUNDS,
    local_update=lambda loss: send,
    relation=Relation.ZERO_OUT,
    **{"cohort_size": number, "noise_multiplier": _MULTIPLIER} | given,
  )


def _sampled(number: int) -> FederatedAlgorithm:
  cohort = max(1, number // 2)
  return fedavg(
    number,
    cohort_size=cohort,
    sampler=sampling.poisson(number, _RATE),
    noise_multiplier=_SAMPLED_MULTIPLIER,
    server_optimizer=optax.sgd(float(cohort)),  # the model moves by the sum, not by the average
  )


def _sampled_score(changes: jax.Array) -> jax.Array:
  """The log likelihood ratio: each change has the canary in it by a coin, or never."""
  told = (2 * changes - 1) / (2 * _SAMPLED_MULTIPLIER**2)
  return jnp.sum(jnp.logaddexp(jnp.log(1 - _RATE), jnp.log(_RATE) + told))


def _correlated(number: int) -> FederatedAlgorithm:
  """Everybody takes part in every round, so the noise is scaled to that."""
  strategy = mf.square_root_toeplitz(ROUNDS)
  return fedavg(
    number,
    sampler=sampling.min_separation(number, 1, ROUNDS),
    strategy=strategy,
    noise_multiplier=strategy.sensitivity(),
  )


def _examples(own: Canaries) -> Examples:
  inputs = jnp.stack([own.number.astype(jnp.float32), own.size], axis=1)
  return Examples(inputs, jnp.zeros(len(own.number)), jnp.ones(len(own.number)))


def _dp_sgd(number: int) -> FederatedAlgorithm:
  """The gradient of an example is minus its coordinate."""

  def loss(params: jax.Array, examples: Examples) -> jax.Array:
    place, size = examples.inputs[:, 0].astype(jnp.int32), examples.inputs[:, 1]
    return -jnp.mean(size * params[place])

  query = fixed_denominator(
    flat_clipping(1.0), _MULTIPLIER, float(number), relation=Relation.ZERO_OUT
  )
  algorithm = federated_averaging(
    example_gradient(loss),
    query,
    sampling.poisson(number, 1.0),
    optax.sgd(1.0),
    relation=Relation.ZERO_OUT,
    unit=Unit.EXAMPLE,
  )
  return algorithm._replace(num_rounds=ROUNDS)


def _distributed(number: int) -> FederatedAlgorithm:
  """Noise from the clients, none of whom vanish, as who sees the models is told of it."""
  algorithm = client_dropout(
    send,
    queries.distributed_sum(1.0, _MULTIPLIER, queries.uncalibrated()),
    dropout_models.independent(number, 0.0),
    optax.sgd(1.0),
    num_clients=number,
    local_clip_norm=None,
  )

  def one_round(
    noise_key: jax.Array, data_key: jax.Array, state: ServerState, clients: PyTree
  ) -> tuple[ServerState, tuple[Event, ...], dict[str, jax.Array] | None]:
    state, (of_model, _), diagnostics = algorithm.round(noise_key, data_key, state, clients)
    return state, (of_model,), diagnostics

  return algorithm._replace(round=one_round, num_rounds=ROUNDS)


def _grouped(number: int) -> FederatedAlgorithm:
  """Two groups of a record, each with a bound and noise of its own, at their bounds together."""
  own = queries.gaussian_sum(1.0, 2**0.5 * _MULTIPLIER)

  def record(
    keys: ClientKeys, params: dict[str, jax.Array], client: Canaries
  ) -> tuple[PyTree, dict[str, jax.Array]]:
    return {name: send(keys.data, leaf, client) for name, leaf in params.items()}, {}

  algorithm = rounds(
    record,
    queries.grouped(dict.fromkeys(_GROUP_LABELS, own), _GROUP_LABELS),
    sampling.poisson(number, 1.0),
    add_updates(optax.sgd(1.0)),
    relation=Relation.ZERO_OUT,
  )
  return algorithm._replace(num_rounds=ROUNDS)


_GROUP_LABELS = {"gradient": "gradient", "moments": "moments"}


def _adaptive(number: int) -> FederatedAlgorithm:
  """Clipping to a quantile, against a canary that is always clipped.

  It moves both sums as far as it can, the updates' and the count of unclipped ones. What is trained
  is what an observer of models and clip norms knows: the sum of all rounds' updates, each over its
  clip norm, and the clip norm's logarithm.
  """
  query = queries.adaptive_clipped_sum(
    _MULTIPLIER, float(number), initial_clip_norm=1.0, count_stddev=_COUNT_STDDEV
  )

  def finalize(key: Key, state: State, total: Contribution) -> tuple[PyTree, SumQueryEvent, State]:
    result, event, moved = query.finalize(key, state, total)
    steps = {"log clip norm": jnp.log(moved.clip_norm / state.clip_norm)[None]}
    return steps | {"model": result / state.clip_norm}, event, moved

  algorithm = rounds(
    lambda keys, params, client: (_FAR * send(keys.data, params["model"], client), {}),
    query._replace(finalize=finalize),
    sampling.poisson(number, 1.0),
    add_updates(optax.sgd(1.0))._replace(record=lambda params: params["model"]),
    relation=Relation.ZERO_OUT,
    weight=lambda client: client.size,
  )
  return algorithm._replace(num_rounds=ROUNDS)


def _weighted(number: int) -> FederatedAlgorithm:
  """An average over the clients' own weight, or the least weight if that is more."""
  algorithm = federated_averaging(
    send,
    clipped_denominator(flat_clipping(1.0), _MULTIPLIER, _LEAST_WEIGHT, relation=Relation.ZERO_OUT),
    sampling.poisson(number + 1, 1.0),
    optax.sgd(1.0),
    weight=lambda client: jnp.abs(client.size),
    project=False,
    relation=Relation.ZERO_OUT,
  )
  return algorithm._replace(num_rounds=ROUNDS)


def _with_opposite(own: Canaries) -> Canaries:
  """Canaries, and a client of the least weight that sends the opposite of the first.

  No other clients let a canary move the average by more.
  """
  return Canaries(jnp.append(own.number, 0), jnp.append(own.size, -_LEAST_WEIGHT))


PROCEDURES: dict[str, Procedure] = {
  "FedAvg": Procedure(fedavg),
  "FedAvg, half of the clients sampled": Procedure(_sampled, gaussian=False, score=_sampled_score),
  "DP-SGD": Procedure(_dp_sgd, clients=_examples),
  "correlated noise": Procedure(_correlated),
  "distributed noise": Procedure(_distributed),
  "groups": Procedure(_grouped, lambda dim: {name: jnp.zeros(dim) for name in _GROUP_LABELS}),
  "adaptive clipping": Procedure(
    _adaptive, lambda dim: {"log clip norm": jnp.zeros(1), "model": jnp.zeros(dim)}, one_run=False
  ),
  "weighted average": Procedure(_weighted, clients=_with_opposite, one_run=False),
}


def adversaries(epsilon: float) -> dict[str, conformance.Subject]:
  """The three adversaries of Draw and Discard: a user's report, opposite ends of its domain.

  The models that the update starts from are equal. The second adversary sees four instances, and
  the third one instance, after further updates by clients without data.
  """
  later = snapshot_epsilon(epsilon, DELTA, 1, _UPDATES, later="data_independent")
  cases = {
    "I": (1, 0, epsilon, 0.0),
    "II": (4, 0, epsilon, 0.0),
    "III": (1, _UPDATES, later, DELTA),
  }
  return {
    f"Draw and Discard, adversary {name}": _adversary(epsilon, *case)
    for name, case in cases.items()
  }


def _adversary(
  epsilon: float, instances: int, updates: int, stated: float, delta: float
) -> conformance.Subject:
  update = dad.laplace_update(
    lambda params, client: jnp.broadcast_to(jnp.asarray(client), params.shape),
    epsilon,
    1.0,
    unit="user",
  )
  process = dad.draw_and_discard_process(update, instances)
  arrivals = dad.arrivals(np.arange(updates + 1), updates + 1)

  def release(key: jax.Array, value: jax.Array) -> jax.Array:
    clients: PyTree = jnp.zeros(updates + 1).at[0].set(value)
    state = process.init(jnp.zeros((instances, 1)))
    return process.models(process.run(key, state, arrivals, clients, update.settings))

  inputs = {"up": jnp.float32(1), "down": jnp.float32(-1)}
  return conformance.Subject(
    release, stated, delta, inputs, (("up", "down"),), {"score": lambda models: -jnp.sum(models)}
  )
