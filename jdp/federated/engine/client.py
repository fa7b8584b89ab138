"""A client's part of a round: it computes a record, and the query bounds what enters the sum."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from jdp.numerics.compensated import Product
from jdp.queries import SumQuery
from jdp.queries.base import Contribution, is_scaling
from jdp.queries.gaussian import weighted
from jdp.random.binding import bind

PyTree = Any
_LEAST = 1e-30  # a smaller factor counts as 0; float32's normal numbers begin at 1.2e-38


class ClientKeys(NamedTuple):
  """A client's keys of one round.

  Attributes:
    noise: key for local mechanisms. It follows from the client's data: bind it to what the noise
      hides (`jdp.random.binding.bind`).
    data: key for local training, a threefry key (`jdp.random.keys.client_key`).
  """

  noise: jax.Array
  data: jax.Array


class Factored(NamedTuple):
  """A record with matrices that are not multiplied out, for queries that scale it by one factor.

  The query sees only the norm. The records of a chunk are then summed by one product for each
  matrix.

  Attributes:
    norm: an upper bound of the record's L2 norm, float32 scalar.
    factor: the number to multiply the products by.
    products: the record divided by `factor`. It is a pytree of arrays, with a `Product` in place of
      some.
  """

  norm: jax.Array
  factor: float
  products: PyTree


ClientFn = Callable[[ClientKeys, PyTree, PyTree], tuple[PyTree, dict[str, jax.Array]]]
"""(keys, what the server sent, client) -> (the client's record, diagnostic scalars by name).

A record is a pytree of float arrays, or `Factored`. A client that trains sends its parameters
*after minus before*, and the server adds them.
"""


def contribution(
  client_fn: ClientFn, query: SumQuery, weight: Callable[[PyTree], jax.Array] | None, diagnose: bool
) -> Callable[..., tuple[Contribution, dict[str, jax.Array] | None]]:
  """Builds the function that gives a client's addition to the sum of its cohort, for `cohort_sum`.

  Args:
    client_fn: computes the record.
    query: bounds the record.
    weight: client -> the weight of its record. None: 1.
    diagnose: whether scalars are summed.

  Returns:
    What `cohort_sum` takes as its summand, with the membership as weight. Its keys are a pair, one
    for noise and one for data. What is shared is a pair too: what the server sent, and the query's
    state. It returns the contribution and the scalars times the membership. The membership itself
    is one of them ("cohort_size"). The scalars are None unless `diagnose`.
  """

  def add(keys, shared, client, membership):
    client_key, data_key = keys
    noise_key, query_key = jax.random.split(client_key)
    sent, query_state = shared
    # If no noise is drawn with the key, XLA drops the digest too.
    noise_key = bind(noise_key, client)
    record, scalars = client_fn(ClientKeys(noise_key, data_key), sent, client)
    own_weight = membership
    if weight is not None:
      own_weight = membership * weight(client)
      norm = record.norm if isinstance(record, Factored) else record
      _refuse_draws(query, query_key, query_state, norm, own_weight)
    bounded = _bounded(query, query_key, query_state, record, own_weight)
    return bounded, weighted(
      {**scalars, "cohort_size": jnp.float32(1)}, membership
    ) if diagnose else None

  return add


def _refuse_draws(
  query: SumQuery, key: jax.Array, state: PyTree, record: PyTree, weight: jax.Array
) -> None:
  """Refuses a query that draws for each record.

  A weight of 0 would also remove the record's noise. Whoever sees the sum would see how much noise
  is in it, and so learn about the data that the weight was computed from.
  """
  code = jax.make_jaxpr(query.preprocess)(key, state, record, weight).jaxpr
  _, used = partial_eval.dce_jaxpr(code, [True] * len(code.outvars))
  if used[0]:
    raise ValueError(
      "Expected a query that draws nothing for each record, unless weight=None, got one that does; "
      "take one whose sum is noised, such as gaussian_sum."
    )


def _bounded(
  query: SumQuery, key: jax.Array, state: PyTree, record: PyTree, weight: jax.Array
) -> Contribution:
  """The query's contribution of a record."""
  if not isinstance(record, Factored):
    return query.preprocess(bind(key, (state, record, weight)), state, record, weight)
  if not is_scaling(query):
    raise ValueError(
      "Expected a query that scales a record by one factor, which follows from its norm, such as "
      "gaussian_sum, got one that is not marked by jdp.queries.base.scales; set ghost_norms=False."
    )
  # The query turns the norm into the contribution's norm, and their ratio is the factor. The
  # `where` avoids 0 / 0 for a norm of 0.
  shortened = query.preprocess(key, state, record.norm, weight)
  norm: Any = getattr(shortened, "vector", shortened)
  ratio = norm / jnp.where(record.norm > 0, record.norm, 1.0)
  # Below float32's normal numbers, the relative error may be 100 %.
  exact = jnp.minimum(ratio, abs(record.factor) * ratio) > _LEAST
  scale = jnp.where(exact, record.factor * ratio, 0.0)
  vector = _scaled(record.products, scale)
  return shortened._replace(vector=vector) if hasattr(shortened, "vector") else vector


def _scaled(products: PyTree, scale: jax.Array) -> PyTree:
  """The products and arrays times a scalar: exactly zero for scale 0, whatever they hold."""

  def one(x):
    return x.scaled(scale) if isinstance(x, Product) else jnp.where(scale != 0, scale * x, 0.0)

  return jax.tree.map(one, products, is_leaf=lambda x: isinstance(x, Product))
