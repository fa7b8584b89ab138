"""Federated evaluation: what a model is worth to users, on public users or by a noised average.

A user counts once, however many examples it has.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate, random
from jdp._arguments import Arrays, checked
from jdp.events.rounds import Event
from jdp.federated.engine.rounds import FederatedAlgorithm, Server, rounds
from jdp.federated.engine.sharded import client_data, num_clients
from jdp.federated.engine.shared_programs import shared
from jdp.federated.estimators import stddev_of
from jdp.federated.runs.run_folder import fingerprint
from jdp.guarantees import Relation, Unit
from jdp.ledger import Ledger
from jdp.queries import average, gaussian_sum
from jdp.queries.gaussian import check_clip_and_noise
from jdp.sampling import Sampler, poisson

PyTree = Any
Metric = Callable[[PyTree, PyTree], Mapping[str, jax.Array]]
"""(parameters, a user's examples) -> name -> a scalar, a share in [0, 1]."""


class PrivateMetrics(NamedTuple):
  """Metrics of protected users.

  Attributes:
    metrics: name -> the noised mean over users. For a small sample it may leave [0, 1].
    stddev: the standard deviation of the noise on each metric.
    ledger: the given ledger, extended by the cost of the metrics.
  """

  metrics: dict[str, float]
  stddev: float
  ledger: Ledger


@checked
def evaluate_users(metric: Metric, params: PyTree, users: Arrays) -> dict[str, jax.Array]:
  """The mean of a metric over users, without noise: the users must be public.

  Give it to `train` as `evaluate=lambda params: evaluate_users(metric, params, users)`.

  Args:
    metric: (parameters, a user's examples) -> name -> scalar. It is compiled once for each function
      object, so define it once.
    params: the model's parameters.
    users: public users, in any form that clients have.

  >>> from jdp import data, models
  >>> model = models.logistic_regression((1,), 2)
  >>> users = data.clients_from_pairs([(jnp.ones((1, 1)), [0]), (jnp.ones((3, 1)), [1, 1, 1])])
  >>> def metric(params, user):
  ...   return {"accuracy": models.accuracy(model, params, user)}
  >>> evaluate_users(metric, model.init(jax.random.key(0)), users)["accuracy"].item()
  0.5
  """
  return _means(metric, params, jax.tree.map(jnp.asarray, users))


@partial(jax.jit, static_argnums=0)
def _means(metric: Metric, params: PyTree, users: PyTree) -> dict[str, jax.Array]:
  numbers = jnp.arange(num_clients(users), dtype=jnp.int32)
  values = jax.lax.map(lambda number: dict(metric(params, client_data(users, number))), numbers)
  return jax.tree.map(partial(jnp.mean, axis=0), values)


@checked
def evaluate_privately(
  metric: Metric,
  params: PyTree,
  clients: PyTree,
  *,
  noise_multiplier: float,
  ledger: Ledger = Ledger(),
  sampler: Sampler | None = None,
  relation: Relation | str = Relation.ADD_REMOVE,
  noise_key: jax.Array | None = None,
) -> PrivateMetrics:
  """The noised mean of a metric over protected users, with its cost in the ledger.

  All metrics of a user are one vector, each clipped to [0, 1] (NaN counts as 0). A Gaussian sum of
  these vectors over the sample is divided by the expected size of the sample.

  Formal guarantee, from the ledger: that of one Gaussian sum with noise multiplier z, for the
  sampler's event. It holds per user, under `relation`, to whoever sees the metrics, together with
  what the ledger held before. Whatever a metric computes from one user's data and the parameters,
  its vector has a norm of at most the square root of the number of metrics.

  Args:
    metric: (parameters, a user's examples) -> name -> scalar in [0, 1].
    params: the model's parameters. They may depend on the users if the ledger holds that cost.
    clients: the users' data.
    noise_multiplier: z >= 0.
    ledger: what was released about these users before, such as a run's.
    sampler: its first round says who is asked. None: everybody is.
    relation: the neighbouring relation of the guarantee.
    noise_key: key of the sampling and the noise, for this evaluation alone. None: one from the
      operating system.

  Raises:
    ValueError: if a number is out of range, there are no metrics, or the sampler has other users or
      its rounds differ. Also if `noise_key` is that of a run in the ledger.

  >>> from jdp import data
  >>> users = data.clients_from_pairs([([[1.0]] * n, [0] * n) for n in range(1, 101)])
  >>> def metric(params, user):
  ...   return {"long": jnp.sum(user.mask) > 50}
  >>> found = evaluate_privately(metric, jnp.zeros(1), users, noise_multiplier=4.0)
  >>> found.stddev, abs(found.metrics["long"] - 0.5) < 0.3, len(found.ledger)
  (0.04, True, 1)
  """
  averages = noised_averages(
    metric, params, clients, noise_multiplier=noise_multiplier, sampler=sampler, relation=relation
  )
  keys = (random.secure_key() if noise_key is None else noise_key, random.secure_key())
  clients = jax.tree.map(jnp.asarray, clients)
  ledger = ledger.recorded_by([fingerprint(keys[0])])
  values, events = averages.release(keys, params, clients)
  for event in events:
    ledger = ledger.append(event)
  return PrivateMetrics(dict(zip(averages.names, values, strict=True)), averages.stddev, ledger)


class NoisedAverages(NamedTuple):
  """How metrics of protected users are released.

  Attributes:
    names: the metrics' names.
    stddev: the standard deviation of the noise on each metric.
    algorithm: its round keeps the noised averages next to the parameters, which do not change.
    release: (keys, parameters, clients) -> the averages, and the round's events.
  """

  names: tuple[str, ...]
  stddev: float
  algorithm: FederatedAlgorithm
  release: Callable[
    [tuple[jax.Array, jax.Array], PyTree, PyTree], tuple[list[float], tuple[Event, ...]]
  ]


def noised_averages(
  metric: Metric,
  params: PyTree,
  clients: PyTree,
  *,
  noise_multiplier: float,
  sampler: Sampler | None,
  relation: Relation | str,
  unit: Unit | str = Unit.USER,
) -> NoisedAverages:
  """The release of `evaluate_privately`, compiled once for all parameters of these shapes.

  It reads only the shapes of the parameters and the clients. Arguments and errors are those of
  `evaluate_privately`; `unit` is what one client is.
  """
  _validate.non_negative(noise_multiplier=noise_multiplier)
  relation, population = Relation(relation), num_clients(clients)
  sampler = poisson(population, 1.0) if sampler is None else sampler
  _check_rounds_alike(sampler)
  one = jax.eval_shape(lambda data: client_data(data, jnp.int32(0)), clients)
  names = tuple(jax.eval_shape(metric, params, one))
  if not names:
    raise ValueError("Expected a metric that returns name -> number, got none; return one.")
  clip_norm = math.sqrt(len(names))
  stddev = clip_norm * stddev_of(noise_multiplier, relation)
  check_clip_and_noise(clip_norm, stddev, "noise_multiplier times the sensitivity")

  def client_fn(keys, params, client):
    del keys
    found = metric(params, client)
    return jnp.stack([_share(found[name]) for name in names]), {}

  zeros = jnp.zeros(len(names))
  # The server keeps the result next to the parameters, which do not change.
  keep = Server(
    lambda params: zeros, lambda params: zeros, lambda result, carried, params: (params, result)
  )
  algorithm = rounds(
    client_fn,
    average(gaussian_sum(clip_norm, stddev), sampler.expected_size),
    sampler,
    keep,
    relation=relation,
    unit=unit,
  )
  compiled = shared(algorithm.round)

  def release(keys, params, clients):
    state, events, _ = compiled(*keys, algorithm.init(params), clients)
    return state.optimizer.tolist(), jax.device_get(events)

  return NoisedAverages(names, stddev / sampler.expected_size, algorithm, release)


def _check_rounds_alike(sampler: Sampler) -> None:
  """Refuses a sampler whose rounds differ in size, or are not accounted for one by one."""
  event: Any = sampler.event(sampler.init())
  unlike = {
    "a cap": getattr(event, "max_participations", None) is not None,
    "positions": hasattr(event, "position"),
    "a smaller batch": getattr(event, "keeps_partial", False)
    and sampler.capacity != sampler.expected_size,
  }
  for what in (what for what, found in unlike.items() if found):
    raise ValueError(
      f"Expected a sampler whose rounds are alike, got {type(event).__name__} with {what}; an "
      "evaluation is one round of a fresh sampler: pass poisson or fixed_size, or leave it out."
    )


def _share(value: jax.typing.ArrayLike) -> jax.Array:
  """A number clipped to [0, 1], with 0 for NaN."""
  value = jnp.asarray(value).astype(jnp.float32)
  return jnp.where(value > 0, jnp.minimum(value, 1.0), 0.0)
