"""Neighbours end to end: if one client changes, a round's sum moves only by that client's part.

A query's sensitivity is a statement about one record. A round keeps it only if no other client's
record changes: by its row, by its padding, by who shares its chunk or its device, by randomness
that is assigned by place. So two data sets that differ in one client go through the same whole
round, with the same keys and the same state, and their sums are compared before the noise is added.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.federated.engine.rounds import FederatedAlgorithm
from jdp.federated.engine.sharded import num_clients
from jdp.numerics.compensated import Compensated, add
from jdp.queries.base import SumQuery, is_scaling, scales, taken

PyTree = Any


class ObservedState(NamedTuple):
  """The state of an `observed` query.

  Attributes:
    query: the state of the query itself.
    total: the sum of the last round without noise, as pairs (`jdp.numerics.compensated`). Private.
  """

  query: PyTree
  total: PyTree


@checked
def observed(query: SumQuery) -> SumQuery:
  """The query, whose state also holds the last round's sum without noise. Only for audits."""

  def init(record):
    state = query.init(record)
    shapes = jax.eval_shape(
      query.preprocess, jax.random.key(0), query.public(state), record, jnp.float32(1)
    )
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return ObservedState(state, add(nothing, nothing))

  def preprocess(key, state, record, weight):
    return query.preprocess(key, state.query, record, weight)

  def finalize(key, state, total):
    result, event, after = query.finalize(key, state.query, taken(query, total))
    return result, event, ObservedState(after, total)

  def of_state(function: Any) -> Any:
    return (lambda state: function(state.query)) if callable(function) else function

  return query._replace(
    init=init,
    preprocess=scales(preprocess) if is_scaling(query) else preprocess,
    finalize=finalize,
    takes_pairs=True,
    noise=of_state(query.noise),
    clip=lambda state, record: query.clip(state.query, record),
    public=lambda state: ObservedState(query.public(state.query), ()),
  )


@checked
def movements(
  make: Callable[[int], FederatedAlgorithm],
  params: PyTree,
  without: PyTree,
  neighbours: Mapping[str, PyTree],
  *,
  num_rounds: int = 1,
  noise_key: jax.Array,
  data_key: jax.Array,
) -> dict[str, list[float]]:
  """How far each round's sum without noise moves when one client comes in.

  Formal guarantee that it tests: under add/remove and zero-out, no number exceeds what one client
  may contribute. The rounding of the machine is included. Every round begins with the state of the
  run without the client, and so with the same earlier releases.

  Args:
    make: number of clients -> the procedure, over an `observed` query. It should return the same
      procedure for the same number, so that this is compiled once.
    params: what training begins with.
    without: all clients' data, in which the client is missing or has no examples.
    neighbours: the data with that client, by name. The client's data may differ in each.
    num_rounds: how many rounds are compared.
    noise_key: the run's noise key.
    data_key: the run's key of local training.

  Returns:
    For each neighbour, the L2 norm of the difference of the sums in each round, in float64.

  Raises:
    ValueError: if num_rounds is not positive.

  >>> import optax
  >>> from jdp import queries, sampling
  >>> from jdp.federated import add_updates, rounds
  >>> @functools.cache
  ... def make(population):
  ...   query = observed(queries.gaussian_sum(1.0, 2.0))
  ...   sampler, server = sampling.poisson(population, 1.0), add_updates(optax.sgd(0.1))
  ...   return rounds(lambda keys, x, own: (own, {}), query, sampler, server, relation="zero_out")
  >>> without = jnp.array([[0.2], [0.0], [0.3]])
  >>> found = movements(
  ...   make,
  ...   jnp.zeros(1),
  ...   without,
  ...   {"large": without.at[1].set(-7.0), "NaN": without.at[1].set(jnp.nan)},
  ...   noise_key=jax.random.key(0),
  ...   data_key=jax.random.key(1),
  ... )
  >>> {name: round(moved, 4) for name, (moved,) in found.items()}
  {'large': 1.0, 'NaN': 0.0}
  """
  _validate.integer(1, num_rounds=num_rounds)

  def after(state, clients):
    step = _compiled(make(num_clients(clients)).round)
    return step(noise_key, data_key, state, clients)[0]

  state = make(num_clients(without)).init(params)
  found: dict[str, list[float]] = {name: [] for name in neighbours}
  for _ in range(num_rounds):
    base = after(state, without)
    for name, clients in neighbours.items():
      found[name].append(_distance(after(state, clients).query.total, base.query.total))
    state = base
  return found


@functools.lru_cache(maxsize=8)
def _compiled(round_fn: Callable[..., Any]) -> Callable[..., Any]:
  """The round, compiled once for all data of the same shapes."""
  return jax.jit(round_fn)


def _distance(one: PyTree, other: PyTree) -> float:
  """The L2 norm of the difference of two sums."""
  return float(np.linalg.norm(_exact(one) - _exact(other)))


def _exact(total: PyTree) -> np.ndarray:
  """All numbers of a sum, in float64."""
  leaves = jax.tree.leaves(total, is_leaf=lambda x: isinstance(x, Compensated))
  parts = [
    np.float64(x.value) + np.float64(x.remainder) if isinstance(x, Compensated) else np.float64(x)
    for x in leaves
  ]
  return np.concatenate([np.ravel(part) for part in parts])
