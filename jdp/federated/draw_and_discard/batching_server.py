"""Batching on the server (FedSGD), the baseline of Draw and Discard (arXiv 1807.04369, Section
5).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp.federated.draw_and_discard.update_stream import (
  ClientUpdate,
  Passes,
  Process,
  descend,
  in_blocks,
  in_rounds,
)
from jdp.federated.engine.rounds import FederatedAlgorithm

PyTree = Any


class BatchingState(NamedTuple):
  """The state of a server that batches gradients.

  Attributes:
    number: int32 scalar. The number of gradients received so far.
    params: the model.
    total: the sum of the gradients of the unfinished batch.
  """

  number: jax.Array
  params: PyTree
  total: PyTree


@checked
def server_batching(
  update: ClientUpdate, batch_size: int, schedule: Passes, *, block_size: int | None = None
) -> FederatedAlgorithm:
  """The baseline: one model, and a step by the average of every `batch_size` releases (FedSGD).

  Clients and their guarantee are those of `draw_and_discard`. They compute at the model that the
  last full batch left. A schedule of learning rates counts batches.

  Args:
    update: what clients do.
    batch_size: B >= 1. The number of clients whose releases are averaged.
    schedule: who reports when (`jdp.federated.draw_and_discard.passes`).
    block_size: as for `draw_and_discard_process`.

  Returns:
    A `FederatedAlgorithm` whose parameters are one model, a pytree of [1, ...].

  Raises:
    ValueError: if batch_size is not positive.

  >>> from jdp.federated.draw_and_discard import laplace_update, passes
  >>> from jdp.models import glm
  >>> update = laplace_update(glm("logistic", (2,)).gradient, epsilon=5.0, learning_rate=0.1)
  >>> algorithm = server_batching(update, 3, passes(6, num_rounds=10), block_size=4)
  >>> algorithm.init(jnp.zeros((1, 1, 2))).params.shape  # one model
  (1, 1, 2)
  """
  return in_rounds(server_batching_process(update, batch_size, block_size=block_size), schedule)


@checked
def server_batching_process(
  update: ClientUpdate, batch_size: int, *, block_size: int | None = None
) -> Process:
  """The process of `server_batching`, update by update.

  Args:
    update: what clients do.
    batch_size: B >= 1. The number of clients whose releases are averaged.
    block_size: as for `draw_and_discard_process`.

  Returns:
    A `Process` on `BatchingState`, begun with one model.

  Raises:
    ValueError: if batch_size is not positive.

  >>> from jdp.data import Examples
  >>> from jdp.federated.draw_and_discard.client_updates import exact_update
  >>> from jdp.federated.draw_and_discard.update_stream import arrivals
  >>> from jdp.models.generalised_linear import glm
  >>> update = exact_update(glm("linear", (1,)).gradient, learning_rate=1.0)
  >>> process = server_batching_process(update, batch_size=2)
  >>> state = process.init(jnp.zeros((1, 1, 1)))
  >>> clients = Examples(jnp.ones((2, 1, 1)), jnp.array([[0.0], [1.0]]), jnp.ones((2, 1)))
  >>> process.run(
  ...   jax.random.key(1), state, arrivals(jnp.arange(2), 2), clients, update.settings
  ... ).params.item()
  0.5
  """
  _validate.integer(1, batch_size=batch_size)

  def init(models):
    params = jax.tree.map(lambda x: x[0], models)
    return BatchingState(jnp.int32(0), params, jax.tree.map(jnp.zeros_like, params))

  def advance(settings, state, number, client, choices, noise):
    del choices
    release = update.release(settings, noise, state.params, client)
    total = jax.tree.map(jnp.add, state.total, release)

    def finish():
      mean = jax.tree.map(lambda x: x / batch_size, total)
      rate = update.rate(settings, number // batch_size)
      return descend(state.params, mean, rate), jax.tree.map(jnp.zeros_like, total)

    # `number` counts from 0, so a batch is full after update B - 1.
    last = (number + 1) % batch_size == 0
    return BatchingState(number + 1, *jax.lax.cond(last, finish, lambda: (state.params, total)))

  def models(state):
    return jax.tree.map(lambda x: x[None], state.params)

  return in_blocks(update, init, lambda key: None, advance, models, block_size)
