"""Draw and Discard: a server of k model instances (arXiv 1807.04369, Section 3.3).

A client's request draws one instance at random; the client's updated model overwrites one at random, drawn
independently of the first. Predictions average the instances.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp.federated.client_updates import ClientUpdate, step
from jdp.federated.update_stream import Process, scan_updates

PyTree = Any
Accept = Callable[[PyTree, PyTree], jax.Array]  # (instances, submitted model) -> bool


class InstancesState(NamedTuple):
  """What the server holds, and what clients hold. `instances` reads the server's part.

  A model stays in the row that it was written to. What changes hands is the number of its row, so that an update
  writes one model, however many clients are at work.

  Attributes:
    number: int32 scalar, the number of updates drawn so far.
    models: pytree of [k + max(W, 1), ...], in any order.
    rows: int32 [k], the row of each instance.
    held: int32 [max(W, 1)], the rows for the models that clients hold.
    rejected: int32 scalar, returned models that were not accepted.
  """

  number: jax.Array
  models: PyTree
  rows: jax.Array
  held: jax.Array
  rejected: jax.Array


def draw_and_discard(
  update: ClientUpdate,
  num_instances: int,
  *,
  in_flight: int = 0,
  random_returns: bool = False,
  accept: Accept | None = None,
  block_size: int | None = None,
) -> Process:
  """The process of arXiv 1807.04369, Algorithm 2, with k instances.

  `init` spreads the instances by normal noise of variance (k/2) s2 around the parameters, where s2 =
  `update_variance` is the noise that an update adds to each weight (`update.noise_variance`; any, to spread the
  instances of a process without noise). Then the sample variance (ddof=1) of the instances is k s2 / 2 in expectation
  at every time (Theorem 3.1), as long as noise is all that differs between them; from another value the gap shrinks by
  1 - 2/k^2 with each update. One instance is not spread.

  Formal guarantee: that of each update, `update.event`, against the server; append the event to the ledger once for
  each update of `run`, before its result is used. What the draws hide from weaker observers is no part of it.

  Many clients at once: with `in_flight` = W > 0, a client returns its model only after W others have drawn theirs
  (or, with `random_returns`, after a geometric number with that mean: whenever one draws, one of the W that hold
  a model, at random, returns it). The first W updates return nothing; the last W stay with their clients. With 0 the
  process is exactly sequential.

  Args:
    update: what clients do.
    num_instances: k >= 1.
    in_flight: W >= 0.
    random_returns: whether clients return in random order; else in that of their draws.
    accept: whether a returned model overwrites an instance (see `jdp.attacks.spam`). It sees what the server has.
      None: always.
    block_size: updates whose noise is drawn at once; a matter of speed and memory only.

  Returns:
    A `Process` on `InstancesState`. At most 2^31 - 1 updates.

  Raises:
    ValueError: if a number is out of range.

  >>> from jdp.data import Examples
  >>> from jdp.federated.client_updates import laplace_update
  >>> from jdp.federated.update_stream import arrivals
  >>> from jdp.models.glm import glm
  >>> model = glm("logistic", (2,))
  >>> update = laplace_update(model.gradient, epsilon=5.0, learning_rate=0.1)
  >>> process = draw_and_discard(update, num_instances=5)
  >>> state = process.init(jax.random.key(0), model.init(jax.random.key(1)), update.noise_variance)
  >>> clients = Examples(jnp.ones((3, 10, 2)), jnp.ones((3, 10)), jnp.ones((3, 10)))
  >>> coming = arrivals(jnp.arange(300, dtype=jnp.int32) % 3, population=3)
  >>> state = jax.jit(process.run)(jax.random.key(2), state, coming, clients, update.settings)
  >>> instances(state).shape, bool(jnp.all(average(instances(state)) > 0.5))
  ((5, 1, 2), True)
  """
  _validate.integer(1, num_instances=num_instances)
  _validate.integer(0, in_flight=in_flight)
  num_slots = max(in_flight, 1)

  def init(key, params, update_variance):
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, params))
    stddev = jnp.sqrt(num_instances / 2 * jnp.asarray(update_variance, jnp.float32)) if num_instances > 1 else 0.0
    keys = jax.random.split(key, len(leaves))
    noise = [jax.random.normal(keys[i], (num_instances, *leaf.shape)) for i, leaf in enumerate(leaves)]
    spread = [leaf[None] + stddev * z for leaf, z in zip(leaves, noise, strict=True)]
    models = [jnp.pad(x, [(0, num_slots)] + [(0, 0)] * (x.ndim - 1)) for x in spread]
    rows = jnp.arange(num_instances + num_slots, dtype=jnp.int32)
    rows, held = rows[:num_instances], rows[num_instances:]
    return InstancesState(jnp.int32(0), jax.tree.unflatten(structure, models), rows, held, jnp.int32(0))

  def choose(key):
    """The instance drawn, the one discarded, and the client that returns."""
    return jax.random.randint(key, (3,), 0, jnp.array([num_instances, num_instances, num_slots]))

  def advance(settings, state, number, client, choices, noise):
    drawn, discarded, returning = choices
    start = _row(state.models, state.rows[drawn])
    model = step(update, settings, noise, start, client, number)
    in_turn = number % num_slots
    client_slot = jnp.where(number < in_flight, in_turn, returning) if random_returns else in_turn
    returned, victim = state.held[client_slot], state.rows[discarded]
    arrived, accepted = number >= in_flight, jnp.bool_(True)
    if accept is not None:
      accepted = accept(instances(state), _row(state.models, returned) if in_flight else model)
    taken = arrived & accepted
    rows = state.rows.at[discarded].set(jnp.where(taken, returned, victim))
    held = state.held.at[client_slot].set(jnp.where(taken, victim, returned))
    # A client that holds its model gets the row that the return has freed; one that returns at once wrote it before.
    row = held[client_slot] if in_flight else returned
    models = jax.tree.map(lambda x, new: x.at[row].set(new), state.models, model)
    rejected = state.rejected + (arrived & ~accepted).astype(jnp.int32)
    return InstancesState(number + 1, models, rows, held, rejected)

  def run(key, state, arrivals, clients, settings):
    inputs = (arrivals, clients, settings)
    return scan_updates(update, choose, advance, key, state, _row(state.models, 0), inputs, block_size)

  return Process(init, run)


def instances(state: InstancesState) -> PyTree:
  """The server's instances, a pytree of [k, ...]."""
  return _row(state.models, state.rows)


def average(instances: PyTree) -> PyTree:
  """The average of the instances' weights, the model that the server predicts with."""
  return jax.tree.map(lambda x: jnp.mean(x, axis=0), instances)


def average_predictions(
  predict: Callable[[PyTree, jax.Array], jax.Array], instances: PyTree, inputs: jax.Array
) -> jax.Array:
  """The average of the instances' predictions (arXiv 1807.04369, Section 3.3), where `average` averages weights."""
  return jnp.mean(jax.vmap(predict, (0, None))(instances, inputs), axis=0)


def _row(models, row):
  return jax.tree.map(lambda x: x[row], models)
