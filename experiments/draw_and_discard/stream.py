"""Draw and Discard for the runner: runs that start from one model, and diagnostics of a round."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.draw_and_discard.diagnostics import adversary_2, training_loss
from experiments.draw_and_discard.network import Network
from jdp import data
from jdp.federated import FederatedAlgorithm
from jdp.federated.draw_and_discard import ClientUpdate, spread_instances
from jdp.federated.draw_and_discard.update_stream import Passes
from jdp.models import Loss
from jdp.models.generalised_linear import GLM
from jdp.queries.base import PyTree


class StreamTask(NamedTuple):
  """What is learnt, and from whom.

  Attributes:
    model: a generalised linear model, or a network.
    clients: the data, `Examples` with leading axes [users, examples].
    test: the test examples.
    schedule: who reports when.
    l1_norm: the largest L1 norm that a client's gradient can have before it is clipped.
  """

  model: GLM | Network
  clients: data.Examples
  test: data.Examples
  schedule: Passes
  l1_norm: float

  @property
  def num_weights(self) -> int:
    """The number of parameters."""
    shapes = jax.eval_shape(self.model.init, jax.random.key(0))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))


class Start(NamedTuple):
  """What a run starts from: a model, and the key that spreads the instances."""

  key: jax.Array
  model: PyTree


def started(
  algorithm: FederatedAlgorithm, num_instances: int, update_variance: float
) -> FederatedAlgorithm:
  """The algorithm with an `init` that takes a `Start` and spreads it over the instances."""

  def init(start):
    return algorithm.init(spread_instances(start.key, start.model, num_instances, update_variance))

  return algorithm._replace(init=init)


def diagnosed(
  algorithm: FederatedAlgorithm, update: ClientUpdate, schedule: Passes, loss: Loss, every: int
) -> FederatedAlgorithm:
  """The algorithm with diagnostics of the training loss and of adversary II.

  The training loss is that of the models at each evaluation. A diagnostic is a mean over the rounds
  since the evaluation before. So the last of them has the loss times their number, and the others,
  where it would cost more than the round itself, have zero.

  Args:
    algorithm: of `draw_and_discard` or `server_batching`.
    update: what its clients do.
    schedule: when its clients report.
    loss: of a client's examples.
    every: rounds between evaluations; the last round has one too.
  """

  def round_fn(noise_key, data_key, state, clients):
    new, events, _ = algorithm.round(noise_key, data_key, state, clients)
    users = schedule.users(data_key, state.round)
    probe_key = jax.random.fold_in(jax.random.fold_in(data_key, 1), state.round)
    probes = adversary_2(probe_key, update, state.params, clients, users, state.optimizer.number)
    done = state.round + 1
    since = (done - 1) % every + 1
    measured = jax.lax.cond(
      (since == every) | (done == schedule.num_rounds),
      lambda: since.astype(jnp.float32) * training_loss(loss, new.params, clients),
      lambda: jnp.float32(0),
    )
    return new, events, {"train_loss": measured, **probes}

  return algorithm._replace(round=round_fn)
