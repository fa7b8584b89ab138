"""Batching on the server (FedSGD), what Draw and Discard is compared with (arXiv 1807.04369, Section 5)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp.federated.client_updates import ClientUpdate, descend
from jdp.federated.update_stream import Process, scan_updates

PyTree = Any


class BatchingState(NamedTuple):
  """What a server that batches gradients holds.

  Attributes:
    number: int32 scalar, the number of gradients received so far.
    params: the model.
    total: the sum of the gradients of the unfinished batch.
  """

  number: jax.Array
  params: PyTree
  total: PyTree


def server_batching(update: ClientUpdate, batch_size: int, *, block_size: int | None = None) -> Process:
  """The baseline: one model, and a step by the average of every `batch_size` clients' releases (FedSGD).

  Clients and their guarantee are those of Draw and Discard; they compute at the model of the last whole batch. A
  schedule counts batches. `init` leaves the parameters as they are.

  Args:
    update: what clients do.
    batch_size: B >= 1.
    block_size: as for `draw_and_discard`.

  Returns:
    A `Process` on `BatchingState`.

  Raises:
    ValueError: if batch_size is not positive.

  >>> from jdp.data import Examples
  >>> from jdp.federated.client_updates import exact_update
  >>> from jdp.federated.update_stream import arrivals
  >>> from jdp.models.glm import glm
  >>> process = server_batching(exact_update(glm("linear", (1,)).gradient, learning_rate=1.0), batch_size=2)
  >>> state = process.init(jax.random.key(0), jnp.zeros((1, 1)), 0.0)
  >>> clients = Examples(jnp.ones((2, 1, 1)), jnp.array([[0.0], [1.0]]), jnp.ones((2, 1)))
  >>> settings = exact_update(glm("linear", (1,)).gradient, learning_rate=1.0).settings
  >>> process.run(jax.random.key(1), state, arrivals(jnp.arange(2), 2), clients, settings).params.item()
  0.5
  """
  _validate.integer(1, batch_size=batch_size)

  def init(key, params, update_variance):
    del key, update_variance
    params = jax.tree.map(jnp.asarray, params)
    return BatchingState(jnp.int32(0), params, jax.tree.map(jnp.zeros_like, params))

  def advance(settings, state, number, client, choices, noise):
    del choices
    release = update.release(settings, noise, state.params, client)
    total = jax.tree.map(jnp.add, state.total, release)

    def finish():
      mean = jax.tree.map(lambda x: x / batch_size, total)
      rate = update.rate(settings, number // batch_size)
      return descend(state.params, mean, rate), jax.tree.map(jnp.zeros_like, total)

    last = (number + 1) % batch_size == 0
    return BatchingState(number + 1, *jax.lax.cond(last, finish, lambda: (state.params, total)))

  def run(key, state, arrivals, clients, settings):
    inputs = (arrivals, clients, settings)
    return scan_updates(update, lambda key: None, advance, key, state, state.params, inputs, block_size)

  return Process(init, run)
