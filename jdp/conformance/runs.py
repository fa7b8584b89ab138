"""Whole runs of training as subjects of audits: all models, with a user's data and without."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate, accounting
from jdp._arguments import Arrays, checked
from jdp.conformance.auditing import Subject
from jdp.conformance.statistics import flat
from jdp.federated.engine.rounds import FederatedAlgorithm, events_by_round
from jdp.guarantees import Relation
from jdp.ledger import Ledger

_PILOTS = 2048


@checked
def run_subject(
  algorithm: FederatedAlgorithm,
  params: Arrays,
  clients: Mapping[str, Any],
  *,
  relation: Relation | str,
  delta: float = 0.1,
) -> Subject:
  """A whole run of a small model, with the epsilon that `jdp.accounting` finds in its ledger.

  The observer sees the model after every round. The statistic is the inner product of all changes
  of the model with the user's effect on them, divided by the covariance of the noise. If the noise
  is normal, and the user's effect does not depend on it, no statistic is better. Effect and
  covariance are estimated from separate runs, for any kind of noise.

  Args:
    algorithm: it must plan its rounds (`num_rounds`).
    params: what training begins with. Take few numbers: n rounds of d numbers need a covariance of
      n d by n d.
    clients: two data sets by name, neighbours under `relation`. The audit is sharpest if one user
      moves every round that it may take part in, as far as it can and always in the same direction.
      The others should send nothing.
    relation: the relation of the stated epsilon.
    delta: the delta that epsilon is stated for.

  Raises:
    ValueError: if there are not two data sets, or no planned number of rounds.

  >>> import optax
  >>> from jdp import queries, sampling
  >>> from jdp.federated import add_updates, rounds
  >>> algorithm = rounds(
  ...   lambda keys, params, own: (own, {}),
  ...   queries.gaussian_sum(1.0, 2.0),
  ...   sampling.poisson(1, 1.0),
  ...   add_updates(optax.sgd(1.0)),
  ...   relation="zero_out",
  ... )
  >>> clients = {"present": jnp.ones((1, 1)), "absent": jnp.zeros((1, 1))}
  >>> subject = run_subject(
  ...   algorithm._replace(num_rounds=4), jnp.zeros(1), clients, relation="zero_out"
  ... )
  >>> 1.155 < subject.epsilon < 1.165
  True
  """
  _validate.in_range(0.0, 1.0, delta=delta)
  if len(clients) != 2 or algorithm.num_rounds is None:
    raise ValueError(
      "Expected two data sets and an algorithm that plans its rounds, got "
      f"{len(clients)} and num_rounds={algorithm.num_rounds}; name a user's presence and absence, "
      "and set num_rounds."
    )
  run = _run(algorithm, params)
  first, second = clients
  events = jax.jit(lambda key, own: run(key, own)[1])(jax.random.key(0), clients[first])
  ledger = Ledger().extend((event, 1) for of_round in events_by_round(events) for event in of_round)
  stated = accounting.epsilon(ledger, delta, relation=Relation(relation))

  def release(key: jax.Array, own: Any) -> jax.Array:
    return run(key, own)[0]

  weights = _weights(release, *clients.values())
  return Subject(
    release,
    stated,
    delta,
    clients,
    ((first, second),),
    {"whitened difference": lambda changes: jnp.sum(changes * weights)},
  )


def _run(algorithm: FederatedAlgorithm, params: Any) -> Callable[[jax.Array, Any], tuple[Any, Any]]:
  """(key, clients) -> (changes of the model [rounds, numbers], events of the rounds)."""

  def run(key: jax.Array, clients: Any) -> tuple[Any, Any]:
    noise_key, data_key = jax.random.split(key)

    def one_round(state: Any, _: Any) -> tuple[Any, Any]:
      moved, events, _diagnostics = algorithm.round(noise_key, data_key, state, clients)
      return moved, (flat(moved.params) - flat(state.params), events)

    begun = algorithm.init(params)
    return jax.lax.scan(one_round, begun, length=algorithm.num_rounds)[1]

  return run


def _weights(release: Callable[[jax.Array, Any], jax.Array], first: Any, second: Any) -> np.ndarray:
  """The mean difference of two releases divided by the covariance of one, in the release's shape.

  Differences are taken with equal keys, so that additive noise cancels.
  """

  @jax.jit
  def pilots(clients: Any) -> jax.Array:
    return jax.vmap(release, (0, None))(jax.random.split(jax.random.key(1), _PILOTS), clients)

  own, other = (np.asarray(pilots(clients), float) for clients in (first, second))
  difference = np.mean(own - other, axis=0)
  covariance = np.atleast_2d(np.cov(own.reshape(len(own), -1), rowvar=False))
  found = np.linalg.lstsq(covariance, difference.reshape(-1))[0]
  return np.asarray(found.reshape(difference.shape), np.float32)
