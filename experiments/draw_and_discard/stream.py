"""A stream of client updates as the runner sees it: rounds in which a share of the users report once each."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.draw_and_discard.diagnostics import adversary_2, training_loss
from jdp import random
from jdp.events import LocalRelease
from jdp.federated import ClientUpdate, FederatedAlgorithm, ServerState, arrivals
from jdp.federated.update_stream import Process
from jdp.models import Loss

PyTree = Any


class Schedule(NamedTuple):
  """Who reports when.

  Every pass is a random permutation of the users, cut into rounds of equal size; the users left over sit that pass
  out. So a user reports at most once in a round, and at most once in a pass.

  Attributes:
    num_users: N.
    rounds_per_pass: rounds of one pass.
    num_rounds: of the whole run.
  """

  num_users: int
  rounds_per_pass: int
  num_rounds: int

  @property
  def round_size(self) -> int:
    """Updates of one round."""
    return self.num_users // self.rounds_per_pass

  @property
  def num_updates(self) -> int:
    """Updates of the whole run."""
    return self.num_rounds * self.round_size

  @property
  def max_releases(self) -> int:
    """The most updates of one user: the passes that were begun."""
    return -(-self.num_rounds // self.rounds_per_pass)

  def users(self, key: jax.Array, number: jax.Array) -> jax.Array:
    """The users of round `number`, int32 [round_size], all different. `key` is that of the whole run."""
    own = jax.random.fold_in(key, number // self.rounds_per_pass)
    order = jax.random.permutation(own, jnp.arange(self.num_users, dtype=jnp.int32))
    return jax.lax.dynamic_slice_in_dim(order, number % self.rounds_per_pass * self.round_size, self.round_size)


class Start(NamedTuple):
  """What a run starts from: a model, and the key that the instances are spread with."""

  key: jax.Array
  model: PyTree


class Stream(NamedTuple):
  """A process with its clients' update.

  Attributes:
    process: what the server does.
    models: state of the process -> its instances, a pytree of [k, ...].
    update: what clients do.
    spread: s2, the noise of an update that the initial instances are spread for; see `draw_and_discard`.
  """

  process: Process
  models: Callable[[Any], PyTree]
  update: ClientUpdate
  spread: float


def algorithm(stream: Stream, schedule: Schedule, diagnose: Loss | None = None) -> FederatedAlgorithm:
  """A stream in rounds: `init` takes a `Start`; `params` of its states are the instances, a pytree of [k, ...].

  Formal guarantee: that of the update's event, which every round returns once: each of its users released one value,
  and releases `schedule.max_releases` at most.

  Args:
    stream: what is run.
    schedule: who reports when. Nothing but the key of local training decides it.
    diagnose: the loss of a client's examples, for diagnostics of the training loss and of adversary II. None: none.
  """
  process, models, update, spread = stream
  event = LocalRelease(update.event.guarantee, schedule.max_releases)

  def init(start):
    state = process.init(start.key, start.model, spread)
    return ServerState(jnp.int32(0), models(state), state, (), ())

  def round_fn(noise_key, data_key, state, clients):
    users = schedule.users(jax.random.fold_in(data_key, 0), state.round)
    coming = arrivals(users, schedule.num_users)
    after = process.run(noise_key, state.optimizer, coming, clients, update.settings)
    new = ServerState(state.round + 1, models(after), after, (), ())
    released = dataclasses.replace(event, number=state.round, key_exposed=random.is_exposed(noise_key, data_key))
    if diagnose is None:
      return new, (released,), None
    probe_key = jax.random.fold_in(jax.random.fold_in(data_key, 1), state.round)
    probes = adversary_2(probe_key, update, state.params, clients, users, state.optimizer.number)
    return new, (released,), {"train_loss": training_loss(diagnose, new.params, clients), **probes}

  return FederatedAlgorithm(init, round_fn)
