"""What one round's average gets wrong: by the clients who are lost, and by the noise.

Both are measured on clients' own updates, which no observer of a deployment could do. They are
diagnostics, and no guarantee covers them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jdp.federated.dropout import DropoutModel, stage_counts
from jdp.queries.distributed import DistributedSum, IntegerSum

PyTree = Any


class Losses(NamedTuple):
  """What losing clients does to the average update of one round.

  Attributes:
    survivors: [rounds]. The number of clients that reported.
    bias: the length of the mean error over rounds, by that of everybody's average. What chance
      alone would leave of so many rounds is taken off its square.
    error: root mean square of one round's error, by the same.
  """

  survivors: np.ndarray
  bias: float
  error: float


def draws(model: DropoutModel, key: jax.Array, num_rounds: int) -> jax.Array:
  """Who reports in so many rounds, bool [rounds, n], independently of each other."""

  def one(key):
    begin, key = jax.random.split(key)
    present, _ = model.sample(key, model.init(begin))
    return present[0]

  return jax.lax.map(one, jax.random.split(key, num_rounds))


def losses(updates: jax.Array, present: jax.Array) -> Losses:
  """Compares survivors' averages with everybody's.

  Args:
    updates: [n, d], of all clients.
    present: bool [rounds, n], rounds that are independent of each other. Rounds without anybody are
      left out.

  >>> # The first of two clients is lost in half of the rounds.
  >>> present = jnp.array([[True, True], [False, True]] * 50)
  >>> found = losses(jnp.array([[1.0, 0.0], [0.0, 1.0]]), present)
  >>> print(
  ...   f"{found.bias:.2f} {found.error:.2f}"
  ... )  # half of (-1, 1) / 2 to (1, 1) / 2, or all of it
  0.50 0.71
  """
  survivors = np.asarray(jnp.sum(present, axis=1))
  weights = jnp.asarray(present, jnp.float32)[survivors > 0]
  average = jnp.mean(updates, axis=0)
  off = weights @ updates / jnp.sum(weights, axis=1, keepdims=True) - average[None]
  rounds = len(off)
  squared = float(jnp.mean(jnp.sum(off**2, axis=1)))
  mean = float(jnp.sum(jnp.mean(off, axis=0) ** 2))
  by_chance = (squared - mean) / max(1, rounds - 1)
  scale = float(jnp.linalg.norm(average))
  return Losses(survivors, max(0.0, mean - by_chance) ** 0.5 / scale, squared**0.5 / scale)


def noise_of(
  query: DistributedSum | IntegerSum, key: jax.Array, updates: PyTree, present: jax.Array
) -> float:
  """The standard deviation of what noise, and rounding to integers, add to one round's sum.

  Args:
    query: the sum.
    key: of rounding and noise. The result is no release, so any key does.
    updates: clipped updates of all clients, [n, ...].
    present: bool [stages, n].
  """
  weights = present[0].astype(jnp.float32)
  exact = jax.tree.map(lambda x: jnp.tensordot(weights, x, 1), updates)
  noised = jax.jit(released, static_argnums=0)(query, key, updates, present)
  off = jax.tree.map(jnp.subtract, noised, exact)
  return float(jnp.sqrt(jnp.mean(ravel_pytree(off)[0] ** 2)))


def released(
  query: DistributedSum | IntegerSum, key: jax.Array, updates: PyTree, present: jax.Array
) -> PyTree:
  """The noised sum of the updates of those who report, as the server gets it."""
  weights, counts = present[0].astype(jnp.float32), stage_counts(present)
  noise_key, key = jax.random.split(key)
  if isinstance(query, DistributedSum):
    exact = jax.tree.map(lambda x: jnp.tensordot(weights, x, 1), updates)
    noise = query.noise(noise_key, exact, counts)
    return query.finalize(key, jax.tree.map(jnp.add, exact, noise), counts)[0]
  state = query.init(updates)
  encoded = jax.lax.map(
    lambda one: query.encode(one[0], state, one[1], one[2]),
    (jax.random.split(key, len(weights)), updates, weights),
    batch_size=50,
  )
  total = jnp.sum(encoded, axis=0) + query.noise(noise_key, counts)
  return query.finalize(state, total, counts)[0]
