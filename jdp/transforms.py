"""Sum queries as optax gradient transformations, for your own training loop.

`privatize` turns per-record gradients into a private aggregate. `release` does the same from their
clipped sum, which `contribution_sum` computes in the memory of one chunk. Put either of them first
in an `optax.chain`, before any optimiser. It keeps the event of the step in its state. Append that
event to the ledger before the step's result is used.

  >>> import jax, jax.numpy as jnp, optax
  >>> from jdp import accounting, events, ledger, queries, random, sampling, transforms
  >>> inputs = jax.random.normal(jax.random.key(0), (1000, 4))
  >>> data = (inputs, inputs @ jnp.array([1.0, -1.0, 0.5, 2.0]))
  >>> def loss(weights, example):
  ...   x, y = example
  ...   return (x @ weights - y) ** 2
  >>> sampler = sampling.poisson(1000, 0.1)
  >>> query = queries.average(
  ...   queries.gaussian_sum(clip_norm=1.0, stddev=1.0), sampler.expected_size
  ... )
  >>> noise_key, sampling_key = jax.random.split(random.secure_key())
  >>> optimizer = optax.chain(transforms.release(query, noise_key), optax.sgd(0.5))
  >>> clipped_sum = transforms.contribution_sum(jax.grad(loss), query, chunk_size=32)
  >>> @jax.jit
  ... def step(key, weights, state, sampler_state):
  ...   sample_key, sum_key = jax.random.split(key)
  ...   sampling_event = sampler.event(sampler_state)
  ...   sample, sampler_state = sampler.sample(sample_key, sampler_state)
  ...   total = clipped_sum(sum_key, state[0].query, weights, sample, data)
  ...   updates, state = optimizer.update(total, state, weights)
  ...   event = events.Round(sampling_event, state[0].event, unit="example")
  ...   return optax.apply_updates(weights, updates), state, sampler_state, event
  >>> weights = jnp.zeros(4)
  >>> state, sampler_state, spent = optimizer.init(weights), sampler.init(), ledger.Ledger()
  >>> for key in jax.random.split(sampling_key, 30):
  ...   weights, state, sampler_state, event = step(key, weights, state, sampler_state)
  ...   spent = spent.append(event)
  >>> bool(jnp.linalg.norm(weights - jnp.array([1.0, -1.0, 0.5, 2.0])) < 0.5)
  True
  >>> round(accounting.epsilon(spent, delta=1e-5), 2)
  4.18
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jdp._arguments import checked
from jdp._dispatch import waits_for
from jdp.events.queries import SumQueryEvent
from jdp.federated.engine.cohort import unrounded_cohort_sum
from jdp.federated.engine.sharded import ShardedClients, check_clients, client_data
from jdp.numerics.compensated import sum_rows
from jdp.queries.base import Contribution, Key, PyTree, State, SumQuery, taken
from jdp.queries.finalizing import finalized
from jdp.sampling import Sample


@waits_for("step")
class ReleaseState(NamedTuple):
  """The state of a `privatize` or `release`.

  Attributes:
    step: The number of steps done, an int32 scalar.
    key: The key of the whole run, as secret as the noise. To store it, store its
      `jax.random.key_data`.
    query: The sum query's state. It may hold noise that was not released, as secret as the key.
    event: What the last step released, with the step's number. Before the first step it is a
      placeholder of the same structure. A loop that returns nothing from its steps (`fori_loop`)
      keeps only the last event: use a scan, and return the event.
  """

  step: jax.Array
  key: Key
  query: State
  event: SumQueryEvent


@checked
def release(query: SumQuery, key: Key) -> optax.GradientTransformationExtraArgs:
  """Finalises a query: the update is a sum of its contributions, and becomes the private aggregate.

  Formal guarantee: the query's own, once for each call of `update`. Contributions must come from
  this query, in the state that `ReleaseState.query` holds, and be of *one* sample.

  If the sample comes in several parts, add up their sums by `jdp.numerics.compensated.add` and
  release once. The parts must be disjoint: a record in two of them moves the sum by twice its
  bound. `optax.MultiSteps` with `use_grad_mean=False` *around* the transformation adds up plain
  sums like the parameters (`compensated.rounded`) in float32, and refuses pairs. k parts of a sum
  of length L can then move by k L 2^-23 more.

  `MultiSteps` placed *behind* it adds up releases. Then each small step has its own noise and its
  own event.

  Args:
    query: What makes the sum private.
    key: The key of the run, from `jdp.random.secure_key`. With any other key the events are marked,
      and so is the ledger that takes them (`Ledger.caveats`). The step's number is folded in, so a
      step computed twice is the same twice. Nothing else may be drawn with the key. Two runs must
      not share it: make the transformation anew. No mark covers the keys of the sample and of
      `contribution_sum`. They must be secure too.

  Returns:
    An optax transformation with a `ReleaseState`, for jit and scan. It comes first in an
    `optax.chain`. Its results are float32.
  """
  return _transformation(query, key, lambda key, state, total, extra_args: total)


@checked
def privatize(query: SumQuery, key: Key) -> optax.GradientTransformationExtraArgs:
  """Per-record gradients in, their private aggregate out.

  `update(gradients, state, params, weights=weights)` takes leaves `[B, ...]`, a row for each
  record. It takes weights `[B]` in `[0, 1]`. Without weights, every row counts. A row of weight 0
  is padding and adds exactly zero. `members` takes a sample's records from the data of all records.
  Its weights are `sample.weights`.

  Formal guarantee: the query's own, per row, once for each call of `update`. A query that draws for
  each record needs the sample's weights unchanged: a smaller weight also reduces the record's
  noise. The key is as for `release`. `optax.MultiSteps` around it fails: it would average rows of
  different batches, which are not one record.

  Args:
    query: What makes the sum private. Divide it by a public number (`jdp.queries.average`) for a
      mean.
    key: The key of the run.

  Returns:
    An optax transformation with a `ReleaseState`, for jit and scan. It comes first in an
    `optax.chain`. Its results are float32. Its `update` raises a ValueError if there is not one
    weight for each row.

  >>> from jdp.queries import gaussian_sum
  >>> optimizer = optax.chain(
  ...   privatize(gaussian_sum(clip_norm=1.0, stddev=0.0), jax.random.key(0)), optax.sgd(1.0)
  ... )
  >>> params, gradients = jnp.zeros(2), jnp.array([[3.0, 4.0], [0.5, 0.0], [jnp.nan, 0.0]])
  >>> updates, state = optimizer.update(
  ...   gradients, optimizer.init(params), params, weights=jnp.array([1.0, 1.0, 0.0])
  ... )
  >>> [round(x, 4) for x in updates.tolist()], state[0].event
  ([-1.1, -0.8], GaussianSum(clip_norm=1.0, stddev=0.0))
  """

  def total(key: Key, state: State, gradients: PyTree, extra_args: dict[str, Any]) -> Contribution:
    size = jax.tree.leaves(gradients)[0].shape[0]
    weights = extra_args.get("weights")
    weights = jnp.ones(size) if weights is None else weights
    if jnp.shape(weights) != (size,):
      raise ValueError(
        f"Expected weights [{size}], one for each row, got shape {jnp.shape(weights)}."
      )
    parts = jax.vmap(query.preprocess, (0, None, 0, 0))(
      jax.random.split(key, size), query.public(state), gradients, weights
    )
    return sum_rows(parts)

  return _transformation(query, key, total)


@checked
def contribution_sum(
  vectors_fn: Callable[[PyTree, PyTree], PyTree],
  query: SumQuery,
  *,
  chunk_size: int = 64,
  mesh: Mesh | None = None,
) -> Callable[[Key, State, PyTree, Sample, PyTree], Contribution]:
  """Makes the function that sums a query's contributions over a sample, for `release`.

  Records are computed chunk by chunk (`jdp.federated.cohort_sum`). So memory holds the gradients of
  one chunk, never those of the sample.

  Args:
    vectors_fn: A function (params, record) -> the record's vectors. It is `jax.grad(loss)`, or
      returns a pytree of gradients and metrics for `jdp.queries.grouped`.
    query: The query that bounds each record.
    chunk_size: The number of records computed side by side.
    mesh: Devices along an axis "clients". None stands for the mesh in force (`jax.set_mesh`) if it
      has such an axis, else for one device.

  Returns:
    A function (key, query state, params, sample, data) -> sum of contributions. `data` is a pytree
    of arrays whose leading axis numbers *all* records. The query state is `ReleaseState.query`.
    Sums over samples that share no record may be added up (`jdp.numerics.compensated.add`). If a
    record holds more than gradients, give the sum to `query.finalize` yourself. The function raises
    a ValueError, when traced, if there are not as many records as the sample's population.
  """

  def contribution(
    key: Key, shared: tuple[PyTree, State], record: PyTree, weight: jax.Array
  ) -> Contribution:
    params, state = shared
    return query.preprocess(key, state, vectors_fn(params, record), weight)

  def total(key: Key, state: State, params: PyTree, sample: Sample, data: PyTree) -> Contribution:
    summed = unrounded_cohort_sum(
      contribution,
      key,
      (params, query.public(state)),
      sample,
      data,
      chunk_size=chunk_size,
      mesh=mesh,
    )
    return taken(query, summed)

  return total


def members(sample: Sample, data: PyTree) -> PyTree:
  """The records of a sample's slots, for a loop that computes gradients itself, and `privatize`.

  Args:
    sample: The sample. Its `weights` go to `privatize`. Padding has the weight 0.
    data: A pytree of arrays whose leading axis numbers *all* records, or `PackedUsers`.

  Returns:
    The pytree of those rows, `[capacity, ...]`. Padding rows hold some record.

  Raises:
    ValueError: When traced, if there are not as many records as the sample's population. Also if no
      device has all records.

  >>> from jdp.sampling import fixed_size
  >>> sample, _ = fixed_size(3, 3).sample(jax.random.key(0), ())
  >>> members(sample, jnp.array([5.0, 6.0, 7.0])).tolist()
  [5.0, 6.0, 7.0]
  """
  check_clients(sample.population, data)
  if isinstance(data, ShardedClients):
    raise ValueError(
      "Expected data that each device has all of, got ShardedClients; use contribution_sum."
    )
  return jax.vmap(partial(client_data, jax.tree.map(jnp.asarray, data)))(sample.indices)


def _transformation(
  query: SumQuery,
  run_key: Key,
  make_total: Callable[[Key, State, PyTree, dict[str, Any]], Contribution],
) -> optax.GradientTransformationExtraArgs:
  """The transformation that finalises `make_total(key, query state, updates, extra arguments)`."""

  def init(params: PyTree) -> ReleaseState:
    state = query.init(params)
    # A scan's carry keeps its structure, so the first state needs an event like all later ones.
    event = _numbered(_placeholder(query, run_key, state, params), jnp.int32(-1))
    return ReleaseState(jnp.int32(0), run_key, state, event)

  def update(
    updates: PyTree, state: ReleaseState, params: PyTree | None = None, **extra_args: Any
  ) -> tuple[PyTree, ReleaseState]:
    del params
    # The keys come from the step's number, so a step that is computed twice is the same twice.
    sum_key, noise_key = jax.random.split(jax.random.fold_in(state.key, state.step))
    total = make_total(sum_key, state.query, updates, extra_args)
    result, event, query_state = finalized(query, noise_key, state.query, total)
    return result, ReleaseState(
      state.step + 1, state.key, query_state, _numbered(event, state.step)
    )

  return optax.GradientTransformationExtraArgs(init, update)


def _numbered(event: SumQueryEvent, step: jax.Array) -> SumQueryEvent:
  """The event of a step."""
  return dataclasses.replace(event, number=step)


@partial(jax.jit, static_argnums=0)
def _placeholder(query: SumQuery, key: Key, state: State, params: PyTree) -> SumQueryEvent:
  """The event of a step with zeros in place of all that varies.

  Nothing else of the step is computed.
  """
  keys = jax.random.split(jax.random.clone(key))
  contribution = query.preprocess(keys[0], state, params, jnp.float32(0))
  _, event, _ = query.finalize(keys[1], state, contribution)
  return jax.tree.map(jnp.zeros_like, event)
