"""The registry of sum queries: what is registered is audited.

Code outside the package registers its own queries with `register`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp.matrix_factorization.strategies import Strategy
from jdp.matrix_factorization.toeplitz import identity, square_root_toeplitz
from jdp.queries.adaptive_clipping import adaptive_clipped_sum
from jdp.queries.base import PyTree, SumQuery
from jdp.queries.correlated_sum import correlated_gaussian_sum
from jdp.queries.distributed.calibrated_integers import IntegerSum, distributed_integers
from jdp.queries.distributed.correlated_integer_sums import CorrelatedIntegers, correlated_integers
from jdp.queries.distributed.float_sums import DistributedSum, distributed_sum
from jdp.queries.distributed.integer_sums import discrete_sum
from jdp.queries.distributed.noise_schemes import uncalibrated
from jdp.queries.gaussian import average, gaussian_sum, no_privacy
from jdp.queries.grid import on_grid
from jdp.queries.grouped_query import grouped
from jdp.queries.joint_clipping import joint_clipped_sum
from jdp.queries.per_layer_clipping import per_layer
from jdp.queries.weighted_averages import weighted_average


class RegisteredQuery(NamedTuple):
  """A sum query as the registry holds it; see `register`."""

  make: Callable[[], SumQuery]
  factory: Callable[..., Any]
  victim: PyTree
  others: tuple[tuple[PyTree, float], ...]


_QUERIES: dict[str, RegisteredQuery] = {}
_LARGE_RECORD = np.full(2, 1e3, np.float32)


def register(
  name: str,
  make: Callable[[], SumQuery],
  *,
  factory: Callable[..., Any] | None = None,
  victim: PyTree = _LARGE_RECORD,
  others: tuple[tuple[PyTree, float], ...] = (),
) -> None:
  """Makes a sum query known to conformance, which audits the epsilon of its event.

  The audit includes the low-order bits, so dither float noise (`jdp.numerics.dither`). Conformance
  refuses an event type that no registered query releases. Take noise of about the size of the
  bound, so that an audit has something to see.

  Args:
    name: free to choose.
    make: () -> query on records like `victim`.
    factory: the public function that `make` calls. A factory that is not named by any entry is not
      audited. Default: `make`.
    victim: a record that moves the release as far as any. Its negative moves it as far the other
      way. A pytree of float32 arrays.
    others: the other records, each with its weight. Choose those with which the victim moves the
      release farthest.

  Raises:
    ValueError: if the name is taken.

  >>> from jdp.queries import registry
  >>> registry.register("gaussian_sum", lambda: gaussian_sum(1.0, 1.0))
  Traceback (most recent call last):
  ...
  ValueError: Expected a name that no query has, got 'gaussian_sum'; choose another.
  """
  if name in _QUERIES:
    raise ValueError(f"Expected a name that no query has, got {name!r}; choose another.")
  _QUERIES[name] = RegisteredQuery(make, factory or make, victim, others)


def registered() -> dict[str, RegisteredQuery]:
  """All registered queries by name, in the order of their registration.

  >>> registered()["gaussian_sum"].make().finalize.__name__
  'finalize'
  """
  return dict(_QUERIES)


def _distributed_as_query(query: DistributedSum, num_clients: int) -> SumQuery:
  """The sum of the reports of all announced clients, as one query."""

  def preprocess(key, state, record, weight):
    del state
    share = query.share(key, record, jnp.int32(num_clients))
    return jax.tree.map(lambda x: jnp.where(weight > 0, x, 0.0), share)

  def finalize(key, state, total):
    counts = jnp.full(query.scheme.num_calibrations + 2, num_clients, jnp.int32)
    result, events = query.finalize(key, total, counts)
    return result, events.model, state

  return SumQuery(lambda record: (), preprocess, finalize)


def _integers_as_query(query: IntegerSum, num_clients: int) -> SumQuery:
  """The calibrated sum of all announced clients, as one query."""

  def finalize(key, state, total):
    counts = jnp.full(query.num_calibrations + 2, num_clients, jnp.int32)
    return query.finalize(key, state, total, counts)

  return SumQuery(query.init, query.encode, finalize)


def _run_of_integers(query: CorrelatedIntegers, num_clients: int) -> SumQuery:
  """`_whole_run` of a run in which no client is ever lost."""
  present = jnp.ones((2, num_clients), bool)

  def finalize(key, state, total):
    return query.finalize(key, state, total, present)

  one_round = SumQuery(query.init, query.encode, finalize, public=query.public)
  return _whole_run(one_round, query.strategy)


def _whole_run(query: SumQuery, strategy: Strategy) -> SumQuery:
  """All rounds of a run on one sample, as C G + Z, with the event of the last one.

  C G + Z tells an audit no more than the releases do, but its noise is independent.
  """

  def finalize(key, state, total):
    results = []
    for round_key in jax.random.split(key, strategy.num_rounds):
      result, event, state = query.finalize(round_key, state, total)
      results.append(result)
    matrix = jnp.asarray(strategy.matrix(), jnp.float32)
    return jnp.matmul(matrix, jnp.stack(results), precision="highest"), event, state

  return query._replace(finalize=finalize)


def _register_own() -> None:
  """The queries of `jdp.queries`."""
  two = {"a": _LARGE_RECORD, "b": _LARGE_RECORD[:1]}
  register("gaussian_sum", partial(gaussian_sum, 1.0, 1.0), factory=gaussian_sum)
  register("average", partial(average, gaussian_sum(1.0, 1.0), 4.0), factory=average)
  register("no_privacy", no_privacy)
  joint = partial(joint_clipped_sum, {"a": 2.0, "b": 0.1}, 1.0, 1.0)
  register("joint", joint, factory=joint_clipped_sum, victim=two)
  # One record moves the average farthest if the others have the least total weight and the opposite
  # sign.
  weighted = partial(weighted_average, 1.0, 0.7, min_total_weight=1.75)
  opposite = ((-_LARGE_RECORD, 1.0), (-_LARGE_RECORD, 0.75))
  register("weighted_average", weighted, factory=weighted_average, others=opposite)
  # A record just within the clip norm moves the count together with the sum.
  just_within = np.array([0.99, 0.0], np.float32)
  adaptive = partial(adaptive_clipped_sum, 1.0, 4.0, initial_clip_norm=1.0, count_stddev=0.9)
  adapting: dict[str, Any] = {"factory": adaptive_clipped_sum, "victim": just_within}
  register("adaptive", adaptive, **adapting)
  register("correlated_adaptive", lambda: adaptive(strategy=identity(1)), **adapting)
  parts = {"x": gaussian_sum(1.0, 1.4), "y": gaussian_sum(2.0, 2.8)}
  by_label = partial(grouped, parts, {"a": "x", "b": "y"})
  register("grouped", by_label, factory=grouped, victim=two)
  layers = {"m": two, "n": two}
  register("per_layer", partial(per_layer, layers, 1.0, 1.0), factory=per_layer, victim=layers)

  def correlated_run():
    strategy = square_root_toeplitz(3)
    return _whole_run(correlated_gaussian_sum(1.0, 2.6, strategy), strategy)

  one_round = partial(correlated_gaussian_sum, 1.0, 1.0)
  register("correlated", lambda: one_round(identity(1)), factory=correlated_gaussian_sum)
  register("correlated_run", correlated_run, factory=correlated_gaussian_sum)
  register("on_grid", partial(on_grid, gaussian_sum(1.0, 1.0), 0.25), factory=on_grid)
  among = ((-_LARGE_RECORD, 1.0),)
  integers = partial(discrete_sum, _LARGE_RECORD, 1.0, 1.0, num_clients=2, modulus_bits=12)
  for noise in ("gaussian", "skellam"):
    make = partial(integers, noise=noise)
    register(f"discrete_{noise}", make, factory=discrete_sum, others=among)
  register(
    "distributed_integers",
    lambda: _integers_as_query(
      distributed_integers(_LARGE_RECORD, 1.0, 1.0, num_clients=2, modulus_bits=12), 2
    ),
    factory=distributed_integers,
    others=among,
  )
  register(
    "correlated_integers",
    lambda: _run_of_integers(
      correlated_integers(
        _LARGE_RECORD, 1.0, 1.7, square_root_toeplitz(2), num_clients=2, modulus_bits=14
      ),
      2,
    ),
    factory=correlated_integers,
    others=among,
  )
  register(
    "distributed",
    lambda: _distributed_as_query(distributed_sum(1.0, 1.0, uncalibrated()), 2),
    factory=distributed_sum,
    others=among,
  )


_register_own()
