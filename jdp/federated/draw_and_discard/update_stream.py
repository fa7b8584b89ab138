"""A stream of client updates: what an update is, and one compiled scan for any server.

In rounds, a stream is a training procedure. Noise is drawn for a block of updates at once, as many
small draws are slow. Updates are counted from 0 over the whole run, and update t has keys of its
own, folded in from t. So no bit of its draws depends on the blocks, on where a run is cut, or on
which users come before. A round has a key of its own, bound to the models and to the data of the
round (`jdp.random.binding.bind`).
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate, random
from jdp._arguments import checked
from jdp.data.clients import Array, Examples
from jdp.events import LocalRelease
from jdp.federated.engine.rounds import FederatedAlgorithm, ServerState
from jdp.federated.engine.sharded import check_clients
from jdp.random import binding
from jdp.sampling.base import check_population

PyTree = Any

# The largest count of noise values in a block, and of updates. The first keeps the noise close to
# the cache, the second shares a block's cost among enough updates.
_BLOCK_NUMBERS, _BLOCK_UPDATES = 1_000_000, 128


class Settings(NamedTuple):
  """The numbers of an update that may be traced.

  The settings of many updates can be stacked and run under one vmap.

  Attributes:
    learning_rate: eta. Before the schedule's factor.
    clip: c. In the unit's norm.
    noise_scale: the scale of the noise on each coordinate of the clipped gradient: b for Laplace
      noise, sigma for Gaussian noise.
  """

  learning_rate: jax.typing.ArrayLike
  clip: jax.typing.ArrayLike
  noise_scale: jax.typing.ArrayLike


class Noise(NamedTuple):
  """The random part of one release.

  Attributes:
    draws: float32, a pytree like the parameters. Noise of scale 1.
    shifts: the shift of each number's grid, in spacings. Uniform in [0, 1), a pytree like the
      parameters.
  """

  draws: PyTree
  shifts: PyTree


class ClientUpdate(NamedTuple):
  """One client's update as pure functions, with what it costs.

  Updates from one factory, with the same unit, have equal functions and differ only in their
  settings. Stack the settings, and run all updates with the functions of one.

  Attributes:
    settings: float32. The numbers.
    draw: (key, parameters) -> `Noise`, from the parameters' shapes. None without noise. Consumes
      the key. It is apart from `release` so that the noise of many updates is drawn at once.
    clipped: (settings, parameters, client) -> the clipped gradient. Private.
    release: (settings, noise, parameters, client) -> clipped gradient plus noise, dithered. The
      update depends on private data through it alone.
    rate: (settings, number) -> eta of the update of that number. Numbers count from 0.
    noise_variance: s2, float64. The variance of noise and dither on each weight of the updated
      model in update 0.
    event: what one update costs, for the ledger. Append it once for each update.
  """

  settings: Settings
  draw: Callable[[jax.Array, PyTree], Noise | None]
  clipped: Callable[[Settings, PyTree, Examples], PyTree]
  release: Callable[[Settings, Noise | None, PyTree, Examples], PyTree]
  rate: Callable[[Settings, jax.Array], jax.Array]
  noise_variance: float
  event: LocalRelease


def step(
  update: ClientUpdate,
  settings: Settings,
  noise: Noise | None,
  params: PyTree,
  client: Examples,
  number: jax.Array,
) -> PyTree:
  """The updated model: the parameters minus eta times the release."""
  return descend(
    params, update.release(settings, noise, params, client), update.rate(settings, number)
  )


def descend(params: PyTree, gradient: PyTree, rate: jax.Array) -> PyTree:
  """`params` - `rate` * `gradient`."""
  return jax.tree.map(lambda p, g: p - rate * g, params, gradient)


@partial(jax.tree_util.register_dataclass, data_fields=["users"], meta_fields=["population"])
@dataclasses.dataclass(frozen=True)
class Arrivals:
  """Who reports, one after the other. A pytree, made by `arrivals`.

  Attributes:
    users: int32 [T]. The number of the user that makes each update, below `population`.
    population: how many users there are, public and static. A process refuses data of more or fewer
      users. A number past the end would be taken for the last user, who would release more often
      than its guarantee says.
  """

  users: Array
  population: int


@checked
def arrivals(users: Array, population: int) -> Arrivals:
  """The `Arrivals` of these users.

  Args:
    users: int32 [T]. May be traced. Then its numbers must be below the population by construction.
    population: how many users there are.

  Raises:
    ValueError: if population is not a whole number from 1 to 2^31 - 1, or a user's number is not
      below it.

  >>> arrivals(np.array([2, 0, 2], np.int32), 3).population
  3
  """
  check_population(population)
  if not isinstance(users, jax.core.Tracer):
    numbers = np.asarray(users)
    if not np.all((numbers >= 0) & (numbers < population)):
      raise ValueError(
        f"Expected numbers of users from 0 to {population - 1}, got others; count all users there "
        "are."
      )
  return Arrivals(jnp.asarray(users), population)


class Process(NamedTuple):
  """A stream of client updates as pure functions.

  Jit them, or vmap them over keys, states and settings.

  Attributes:
    init: models -> state. The server begins with a pytree of [k, ...] of its k models.
    run: (key, state, arrivals, clients, settings) -> state after one update of each user of the
      `Arrivals`, in order. `clients` are the data, with one leading axis of all users. Other data
      is refused when traced. `key` belongs to the whole run or to this call, and is used for
      nothing else. `settings` has the form of `update.settings`.
    models: state -> the server's models, a pytree of [k, ...].
    update: what clients do.
  """

  init: Callable[[PyTree], Any]
  run: Callable[[jax.Array, Any, Arrivals, Examples, Settings], Any]
  models: Callable[[Any], PyTree]
  update: ClientUpdate


class Passes(NamedTuple):
  """Who reports when: passes over all users, each in rounds.

  Every pass is a random permutation of the users, cut into rounds of equal size. The users left
  over sit that pass out. So a user reports at most once in a round, and at most once in a pass.

  Attributes:
    num_users: N. The number of all users.
    rounds_per_pass: the number of rounds in one pass.
    num_rounds: the number of rounds in the whole run.
  """

  num_users: int
  rounds_per_pass: int
  num_rounds: int

  @property
  def round_size(self) -> int:
    """The number of updates in one round."""
    return self.num_users // self.rounds_per_pass

  @property
  def num_updates(self) -> int:
    """The number of updates in the whole run."""
    return self.num_rounds * self.round_size

  @property
  def max_releases(self) -> int:
    """The most updates of one user, one in each pass that was begun."""
    return -(-self.num_rounds // self.rounds_per_pass)

  def users(self, data_key: jax.Array, number: jax.Array) -> jax.Array:
    """The users of round `number`, int32 [round_size], all different.

    `data_key` is the data key of the whole run.
    """
    # One permutation for each pass. Every round takes its slice of it.
    key = jax.random.fold_in(jax.random.fold_in(data_key, 0), number // self.rounds_per_pass)
    order = jax.random.permutation(key, jnp.arange(self.num_users, dtype=jnp.int32))
    return jax.lax.dynamic_slice_in_dim(
      order, number % self.rounds_per_pass * self.round_size, self.round_size
    )


@checked
def passes(num_users: int, num_rounds: int, *, rounds_per_pass: int = 1) -> Passes:
  """The `Passes` of a run, for `draw_and_discard` and `server_batching`.

  Args:
    num_users: N. The number of all users.
    num_rounds: the number of rounds in the whole run. It limits how often a user reports.
    rounds_per_pass: the number of rounds that a pass is cut into, at most N.

  Raises:
    ValueError: if a number is out of range.

  >>> passes(100, num_rounds=25, rounds_per_pass=10).max_releases
  3
  """
  _validate.integer(1, num_users=num_users, num_rounds=num_rounds, rounds_per_pass=rounds_per_pass)
  if rounds_per_pass > num_users:
    raise ValueError(
      f"Expected rounds_per_pass of at most {num_users} users, got {rounds_per_pass}."
    )
  return Passes(num_users, rounds_per_pass, num_rounds)


def in_rounds(process: Process, schedule: Passes) -> FederatedAlgorithm:
  """The process as a training procedure.

  A round is the updates of the users that the schedule names.

  Formal guarantee: that of the update's event, which every round returns once. Each of the round's
  users released one value. A user releases `schedule.max_releases` values at most over the run's
  rounds. In rounds beyond the schedule's, nobody reports.

  Args:
    process: what is run.
    schedule: who reports when. The data's key alone decides it.

  Returns:
    A `FederatedAlgorithm` whose parameters are the server's models, a pytree of [k, ...]. It plans
    the schedule's rounds.
  """
  event = LocalRelease(process.update.event.guarantee, schedule.max_releases)

  def init(models):
    return ServerState(jnp.int32(0), models, process.init(models), (), ())

  def round_fn(noise_key, data_key, state, clients):
    users = schedule.users(data_key, state.round)
    coming = arrivals(users, schedule.num_users)
    settings = process.update.settings
    # A round that is repeated with different models, data or code gets different noise.
    members = jax.tree.map(lambda x: jnp.asarray(x)[users], clients)
    key = jax.random.fold_in(noise_key, state.round)
    code = _code(process.update, process.models(state.optimizer), members)
    key = binding.bind(key, (state.optimizer, members, settings, code))
    after = jax.lax.cond(
      state.round < schedule.num_rounds,
      lambda: process.run(key, state.optimizer, coming, clients, settings),
      lambda: state.optimizer,
    )
    released = random.marked(dataclasses.replace(event, number=state.round), noise_key, data_key)
    return ServerState(state.round + 1, process.models(after), after, (), ()), (released,), None

  return FederatedAlgorithm(init, round_fn, schedule.num_rounds)


def _code(update: ClientUpdate, models: PyTree, members: Examples) -> PyTree:
  """What tells the code of a client's release from other code."""
  params, client = (jax.tree.map(lambda x: x[0], tree) for tree in (models, members))
  noise = jax.eval_shape(lambda: update.draw(jax.random.key(0), params))
  return binding.program(update.release, update.settings, noise, params, client)


def in_blocks(
  update: ClientUpdate,
  init: Callable[[PyTree], Any],
  choose: Callable[[jax.Array], PyTree],
  advance: Callable[..., Any],
  models: Callable[[Any], PyTree],
  block_size: int | None,
) -> Process:
  """The process that advances by one user after another, with draws block by block.

  Args:
    update: what clients do.
    init: as for `Process`. The state has a field `number`, the number of the next update.
    choose: key -> the server's random choices in one update.
    advance: (settings, state, number, client, choices, noise) -> next state.
    models: as for `Process`.
    block_size: see `draw_and_discard`.

  Returns:
    A `Process`. Update t uses only keys that are folded in from t. When traced, its `run` raises a
    ValueError if the arrivals and the clients have different populations, or block_size is not
    positive.
  """

  def run(key, state, arrivals, clients, settings):
    if not isinstance(arrivals, Arrivals):
      raise ValueError(
        f"Expected Arrivals, got {type(arrivals).__name__}; use arrivals(users, population)."
      )
    check_clients(arrivals.population, clients)
    users = arrivals.users
    params = jax.tree.map(lambda x: x[0], models(state))  # for its shapes
    size = block_size
    if size is None:
      model_size = sum(math.prod(x.shape) for x in jax.tree.leaves(params))
      size = min(_BLOCK_UPDATES, max(1, _BLOCK_NUMBERS // max(1, model_size)))
    _validate.integer(1, block_size=size)
    clients = jax.tree.map(jnp.asarray, clients)  # NumPy arrays cannot be indexed inside the loop

    def draw(number):
      choice_key, noise_key = jax.random.split(jax.random.fold_in(key, number))
      return choose(choice_key), update.draw(noise_key, params)

    def one(state, xs):
      number, user, (choices, noise) = xs
      client = jax.tree.map(lambda x: x[user], clients)
      return advance(settings, state, number, client, choices, noise), None

    def block(state, numbers_and_users):
      numbers, members = numbers_and_users
      return jax.lax.scan(one, state, (numbers, members, jax.vmap(draw)(numbers)))

    count = users.shape[0]
    whole = count - count % size
    numbers = state.number + jnp.arange(count, dtype=jnp.int32)
    if whole:
      blocks = jax.tree.map(lambda x: x[:whole].reshape(-1, size), (numbers, users))
      state, _ = jax.lax.scan(block, state, blocks)
    # The updates left over fill less than a block.
    if whole < count:
      state, _ = block(state, (numbers[whole:], users[whole:]))
    return state

  return Process(init, run, models, update)
