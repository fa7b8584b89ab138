"""Draw and Discard: a server of k model instances (arXiv 1807.04369, Section 3.3).

A client's request draws one instance at random. The client's updated model overwrites one at
random, drawn independently of the first. Predictions average the instances.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import Arrays, Scalar, checked
from jdp.federated.draw_and_discard.update_stream import (
  ClientUpdate,
  Passes,
  Process,
  in_blocks,
  in_rounds,
  step,
)
from jdp.federated.engine.rounds import FederatedAlgorithm

PyTree = Any
Accept = Callable[[PyTree, PyTree], jax.Array]  # (instances, submitted model) -> bool


class InstancesState(NamedTuple):
  """The models that the server holds, and those that clients hold.

  A model stays in the row that it was written to. Only the number of its row changes hands. So an
  update writes one model, however many clients are at work. `instances` reads the server's part.

  Attributes:
    number: int32 scalar. The number of updates drawn so far.
    models: pytree of [k + max(W, 1), ...], in any order.
    rows: int32 [k]. The row of each instance.
    held: int32 [max(W, 1)]. The rows for the models that clients hold.
    rejected: int32 scalar. Returned models that were not accepted.
  """

  number: jax.Array
  models: PyTree
  rows: jax.Array
  held: jax.Array
  rejected: jax.Array


@checked
def draw_and_discard(
  update: ClientUpdate, num_instances: int, schedule: Passes, **options: Any
) -> FederatedAlgorithm:
  """Training by arXiv 1807.04369, Algorithm 2, with k instances.

  Formal guarantee against the server, from the ledger: that of each update (`update.event`). A user
  makes `schedule.max_releases` updates at most. It does not count what the draws hide from weaker
  observers.

  Args:
    update: what clients do.
    num_instances: k >= 1. The number of models.
    schedule: who reports when (`jdp.federated.draw_and_discard.passes`).
    **options: further arguments of `draw_and_discard_process`.

  Returns:
    A `FederatedAlgorithm` whose parameters are the instances, a pytree of [k, ...]. Begin it with
    `spread_instances`.

  Raises:
    ValueError: if a number is out of range.

  >>> from jdp.data import Examples
  >>> from jdp.federated.draw_and_discard import laplace_update, passes
  >>> from jdp.federated import train
  >>> from jdp.models.generalised_linear import glm
  >>> model = glm("logistic", (2,))
  >>> update = laplace_update(model.gradient, epsilon=5.0, learning_rate=0.1)
  >>> algorithm = draw_and_discard(update, 5, passes(3, num_rounds=100))
  >>> start = spread_instances(
  ...   jax.random.key(0), model.init(jax.random.key(1)), 5, update.noise_variance
  ... )
  >>> clients = Examples(jnp.ones((3, 10, 2)), jnp.ones((3, 10)), jnp.ones((3, 10)))
  >>> result = train(
  ...   algorithm,
  ...   start,
  ...   clients,
  ...   num_rounds=100,
  ...   noise_key=jax.random.key(2),
  ...   data_key=jax.random.key(3),
  ... )
  >>> result.params.shape, bool(jnp.all(average_model(result.params) > 0.5))
  ((5, 1, 2), True)
  >>> len(result.ledger), result.ledger.entries[0][0].max_releases
  (100, 100)
  """
  return in_rounds(draw_and_discard_process(update, num_instances, **options), schedule)


@checked
def spread_instances(
  key: jax.Array, params: Arrays, num_instances: int, update_variance: Scalar
) -> PyTree:
  """The instances to begin with: normal noise of variance (k/2) s2 around the parameters.

  A single instance is not spread. With this start, the sample variance (ddof=1) of the instances is
  k s2 / 2 in expectation at every time (Theorem 3.1), as long as noise is all that differs between
  them. From any other start, the gap to that value shrinks by the factor 1 - 2/k^2 with each
  update.

  Args:
    key: key of the noise. Consumed.
    params: a model.
    num_instances: k. The number of models.
    update_variance: s2. The noise that an update adds to each weight (`update.noise_variance`). Any
      value spreads the instances of a process without noise.

  Returns:
    A pytree of [k, ...].

  Raises:
    ValueError: if there is no instance, or more than 2^31 - 1.

  >>> models = spread_instances(jax.random.key(0), jnp.ones(1000), 5, 0.1)
  >>> models.shape, abs(float(models.var()) - 5 / 2 * 0.1) < 0.02
  ((5, 1000), True)
  """
  _validate.in_range(1, 2**31 - 1, num_instances=num_instances)
  leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, params))
  stddev = (
    jnp.sqrt(num_instances / 2 * jnp.asarray(update_variance, jnp.float32))
    if num_instances > 1
    else 0.0
  )
  keys = jax.random.split(key, len(leaves))
  noise = [
    jax.random.normal(keys[i], (num_instances, *leaf.shape)) for i, leaf in enumerate(leaves)
  ]
  spread = [leaf[None] + stddev * z for leaf, z in zip(leaves, noise, strict=True)]
  return jax.tree.unflatten(structure, spread)


@checked
def draw_and_discard_process(
  update: ClientUpdate,
  num_instances: int,
  *,
  in_flight: int = 0,
  random_returns: bool = False,
  accept: Accept | None = None,
  block_size: int | None = None,
) -> Process:
  """The process of arXiv 1807.04369, Algorithm 2, update by update.

  `draw_and_discard` runs it in rounds.

  Formal guarantee against the server: that of each update (`update.event`). Append the event to the
  ledger once for each update of `run`, before its result is used.

  Many clients at once: let `in_flight` = W > 0. Then a client returns its model only after W others
  have drawn theirs. With `random_returns` it returns after a geometric number with that mean: at
  every draw, a random one of the W clients that hold a model returns it. The first W updates return
  nothing, and the last W stay with their clients. With W = 0 the process is exactly sequential.

  Args:
    update: what clients do.
    num_instances: k >= 1. The number of models.
    in_flight: W >= 0. Clients that hold a model at a time.
    random_returns: whether clients return in random order. Otherwise they return in the order of
      their draws.
    accept: whether a returned model overwrites an instance (see `jdp.attacks.spam`). It sees only
      what the server has. None: it always does.
    block_size: updates whose noise is drawn at once, a matter of speed and memory only.

  Returns:
    A `Process` on `InstancesState`, begun with k models. It makes at most 2^31 - 1 updates.

  Raises:
    ValueError: if a number is out of range.

  >>> from jdp.federated.draw_and_discard import laplace_update
  >>> from jdp.models import glm
  >>> update = laplace_update(glm("logistic", (2,)).gradient, epsilon=5.0, learning_rate=0.1)
  >>> process = draw_and_discard_process(update, 3, in_flight=2, random_returns=True, block_size=4)
  >>> process.init(jnp.zeros((3, 1, 2))).models.shape  # three instances, two models with clients
  (5, 1, 2)
  """
  _validate.integer(1, num_instances=num_instances)
  _validate.integer(0, in_flight=in_flight)
  num_slots = max(in_flight, 1)

  def init(models):
    _check_instances(models, num_instances)
    models = jax.tree.map(lambda x: jnp.pad(x, [(0, num_slots)] + [(0, 0)] * (x.ndim - 1)), models)
    rows = jnp.arange(num_instances + num_slots, dtype=jnp.int32)
    rows, held = rows[:num_instances], rows[num_instances:]
    return InstancesState(jnp.int32(0), models, rows, held, jnp.int32(0))

  def choose(key):
    """The instance drawn, the one discarded, and the client that returns."""
    return jax.random.randint(key, (3,), 0, jnp.array([num_instances, num_instances, num_slots]))

  def advance(settings, state, number, client, choices, noise):
    drawn, discarded, returning = choices
    start = _row(state.models, state.rows[drawn])
    model = step(update, settings, noise, start, client, number)
    # The first W clients fill the slots in turn; after that, every draw is matched by a return.
    in_turn = number % num_slots
    client_slot = jnp.where(number < in_flight, in_turn, returning) if random_returns else in_turn
    returned, victim = state.held[client_slot], state.rows[discarded]
    arrived, accepted = number >= in_flight, jnp.bool_(True)
    if accept is not None:
      accepted = accept(instances(state), _row(state.models, returned) if in_flight else model)
    taken = arrived & accepted
    rows = state.rows.at[discarded].set(jnp.where(taken, returned, victim))
    held = state.held.at[client_slot].set(jnp.where(taken, victim, returned))
    # A client that holds its model writes to the row that the return has freed. A client that
    # returns at once writes to the row that it returns.
    row = held[client_slot] if in_flight else returned
    models = jax.tree.map(lambda x, new: x.at[row].set(new), state.models, model)
    rejected = state.rejected + (arrived & ~accepted).astype(jnp.int32)
    return InstancesState(number + 1, models, rows, held, rejected)

  return in_blocks(update, init, choose, advance, instances, block_size)


def instances(state: InstancesState) -> PyTree:
  """The server's instances, a pytree of [k, ...]."""
  return _row(state.models, state.rows)


def average_model(instances: PyTree) -> PyTree:
  """The average of the instances' weights, a model for the server's predictions."""
  return jax.tree.map(lambda x: jnp.mean(x, axis=0), instances)


def average_predictions(
  predict: Callable[[PyTree, jax.Array], jax.Array], instances: PyTree, inputs: jax.Array
) -> jax.Array:
  """The average of the instances' predictions (arXiv 1807.04369, Section 3.3).

  `average_model` averages weights instead.
  """
  return jnp.mean(jax.vmap(predict, (0, None))(instances, inputs), axis=0)


def _check_instances(models: PyTree, num_instances: int) -> None:
  """Refuses a number of models other than `num_instances`."""
  counts = {jnp.shape(x)[:1] for x in jax.tree.leaves(models)}
  if counts != {(num_instances,)}:
    raise ValueError(
      f"Expected {num_instances} models along a leading axis, got leading axes {sorted(counts)}; "
      "use spread_instances."
    )


def _row(models: PyTree, row: jax.typing.ArrayLike) -> PyTree:
  """The models in a row, or in each of several."""
  return jax.tree.map(lambda x: x[row], models)
