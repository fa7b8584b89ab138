"""A stream of client updates: one compiled scan, whatever the server does with them.

Noise is drawn for a block of updates at once, as many small draws are slow. Update number t (counted from 0 over
the whole run) has keys of its own, folded in from t: neither the blocks, nor where a run is cut, nor
which users come before, change a bit of what it draws.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp.data.clients import Array, Examples
from jdp.federated.client_updates import ClientUpdate, Settings
from jdp.federated.sharded import check_clients
from jdp.sampling.base import check_population

PyTree = Any

# Numbers of noise in a block, and updates: the noise stays close to the cache, and the cost of a block is shared.
_BLOCK_NUMBERS, _BLOCK_UPDATES = 1_000_000, 128


@partial(jax.tree_util.register_dataclass, data_fields=["users"], meta_fields=["population"])
@dataclasses.dataclass(frozen=True)
class Arrivals:
  """Who reports, one after the other; a pytree, made by `arrivals`.

  Attributes:
    users: int32 [T], the number of the user that makes each update, below `population`.
    population: how many users there are, public and static. A process refuses data of more or
      fewer: a number past the end would be taken for the last user, who would release more often
      than its guarantee says.
  """

  users: Array
  population: int


def arrivals(users: Array, population: int) -> Arrivals:
  """The `Arrivals` of these users.

  Args:
    users: int32 [T]; may be traced, then its numbers must be below the population by construction.
    population: how many users there are.

  Raises:
    ValueError: if population is no whole number in [1, 2^31), or a user's number is not below it.

  >>> arrivals(np.array([2, 0, 2], np.int32), 3).population
  3
  """
  check_population(population)
  if not isinstance(users, jax.core.Tracer):
    numbers = np.asarray(users)
    if not np.all((numbers >= 0) & (numbers < population)):
      raise ValueError(f"Expected numbers of users from 0 to {population - 1}, got others; count all users there are.")
  return Arrivals(jnp.asarray(users), population)


class Process(NamedTuple):
  """A stream of client updates as pure functions: jit them, or vmap them over keys, states and settings.

  Attributes:
    init: (key, parameters, update_variance) -> state. See the factory.
    run: (key, state, arrivals, clients, settings) -> state after one update of each user of the `Arrivals`, in order.
      `clients` are the data, with one leading axis of all users; other data is refused when traced. `key` is that of
      the whole run, the same in every call, and one that is used for nothing else. `settings`: as `update.settings`.
  """

  init: Callable[[jax.Array, PyTree, jax.typing.ArrayLike], Any]
  run: Callable[[jax.Array, Any, Arrivals, Examples, Settings], Any]


def scan_updates(
  update: ClientUpdate,
  choose: Callable[[jax.Array], PyTree],
  advance: Callable[..., Any],
  key: jax.Array,
  state: Any,
  params: PyTree,
  inputs: tuple[Arrivals, Examples, Settings],
  block_size: int | None,
) -> Any:
  """The state after `advance` for every user in order, with choices and noise drawn block by block.

  Args:
    update: what clients do.
    choose: key -> the server's random choices in one update.
    advance: (settings, state, number, client, choices, noise) -> next state.
    key: of the whole run; update t uses those that are folded in from t, and nothing else.
    state: has `number`, that of the next update.
    params: a model, for its shapes.
    inputs: (arrivals, clients, settings), as for `Process.run`.
    block_size: see `draw_and_discard`.

  Raises:
    ValueError: if the arrivals are of another population than the clients, or block_size is not positive.
  """
  coming, clients, settings = inputs
  if not isinstance(coming, Arrivals):
    raise ValueError(f"Expected Arrivals, got {type(coming).__name__}; use arrivals(users, population).")
  check_clients(coming.population, clients)
  users = coming.users
  if block_size is None:
    size = sum(math.prod(x.shape) for x in jax.tree.leaves(params))
    block_size = min(_BLOCK_UPDATES, max(1, _BLOCK_NUMBERS // max(1, size)))
  _validate.integer(1, block_size=block_size)
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
  whole = count - count % block_size
  numbers = state.number + jnp.arange(count, dtype=jnp.int32)
  if whole:
    blocks = jax.tree.map(lambda x: x[:whole].reshape(-1, block_size), (numbers, users))
    state, _ = jax.lax.scan(block, state, blocks)
  if whole < count:
    state, _ = block(state, (numbers[whole:], users[whole:]))
  return state
