"""Canaries in training: clients or examples that send a random direction (arXiv 2302.03098).

A canary client's update is as long as its bound allows, along a random direction of its own. If the
canary took part, the released model's cosine with that direction is larger. The method needs one
run, and works for any `FederatedAlgorithm` whose local update is a parameter:

    directions = canary_directions(key, num_canaries, dim)
    update = planted_update(local_update, directions, clip_norm)
    algorithm = private_federated(update, query, poisson(num_users + num_canaries, q), optimizer)
    ... run it on plant(clients, included) ...
    scores = cosines(directions, released parameters less initial ones, flat)

In example-level DP-SGD a canary is an example whose gradient is minus its direction. There
`example_gradient(planted_loss(loss, directions, clip_norm))` runs on plant(examples, included).

`included` are fair coins for `jdp.audits.one_run`, which bounds epsilon from below.
`one_shot_estimate` fits normal distributions to the cosines instead. That is an estimate, not a
bound.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree

from jdp import _validate, random
from jdp._arguments import AnyVector, Arrays, Matrix, Vector, checked
from jdp.audits.channels import binned_channel, channel_epsilon
from jdp.federated.engine.local_training import LocalUpdate, Project, no_projection
from jdp.federated.engine.sharded import num_clients
from jdp.models.base import Loss, keyed

PyTree = Any

_USER, _ABSENT = -1, -2


class Planted(NamedTuple):
  """Clients, some of which are canaries.

  Attributes:
    client: a pytree of arrays, one row for each client. A canary's row is zeros.
    canary: int32, the number of the canary's direction. It is -1 for a user, and -2 for a canary
      that was left out.
  """

  client: PyTree
  canary: jax.Array


@checked
def canary_directions(key: jax.Array, num_canaries: int, dim: int) -> jax.Array:
  """Random directions that are orthogonal to each other, so that no canary hides another.

  Each is uniform on the sphere. Consumes the key.

  Returns:
    float32 [num_canaries, dim].

  Raises:
    ValueError: if there are more canaries than dimensions.

  >>> directions = canary_directions(jax.random.key(0), 3, 50)
  >>> bool(jnp.allclose(directions @ directions.T, jnp.eye(3), atol=1e-6))
  True
  """
  _validate.integer(1, num_canaries=num_canaries)
  if not num_canaries <= dim:
    raise ValueError(f"Expected num_canaries of at most dim = {dim}, got {num_canaries}.")
  # Q alone depends on LAPACK's choice of signs; with R's diagonal made positive it is uniform.
  basis, triangle = jnp.linalg.qr(random.normal(key, (dim, num_canaries)))
  return (basis * jnp.sign(jnp.diagonal(triangle))[None]).T


@checked
def plant(clients: Arrays, included: AnyVector) -> Planted:
  """The clients, followed by a row for each canary.

  Every canary has a row, so shapes do not tell who takes part.

  Args:
    clients: pytree of arrays with a leading axis of users.
    included: bool [m], which canaries take part. A canary that does not take part sends zeros. In a
      Gaussian sum with a fixed denominator that equals its absence.

  >>> plant(jnp.ones((2, 3)), jnp.array([True, False])).canary.tolist()
  [-1, -1, 0, -2]
  """
  included = np.asarray(included, bool)
  num_users, num_canaries = num_clients(clients), len(included)
  rows = jax.tree.map(
    lambda x: jnp.concatenate([x, jnp.zeros((num_canaries, *x.shape[1:]), x.dtype)]), clients
  )
  canary = np.where(included, np.arange(num_canaries), _ABSENT)
  return Planted(rows, jnp.asarray(np.append(np.full(num_users, _USER), canary), jnp.int32))


@checked
def planted_update(local_update: LocalUpdate, directions: jax.Array, norm: float) -> LocalUpdate:
  """The `LocalUpdate` of `Planted` clients: users train, and canaries send their directions.

  A canary's update has length `norm`.

  Args:
    local_update: what users compute.
    directions: the canaries' directions, float32 [m, dim]; dim is the number of the model's
      parameters.
    norm: the norm of a canary's update. It is the query's clip norm, or more.

  >>> directions = jnp.eye(3)[:2]
  >>> update = planted_update(lambda key, params, own, project: own * params, directions, 2.0)
  >>> clients = plant(jnp.ones((1, 3)), jnp.array([True, False]))  # after one user
  >>> keys = jax.random.split(jax.random.key(0), 3)
  >>> jax.vmap(update, (0, None, 0))(keys, jnp.ones(3), clients).tolist()
  [[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
  """
  _validate.positive(norm=norm)

  def update(
    key: jax.Array, params: PyTree, client: Any, project: Project = no_projection
  ) -> PyTree:
    trained, unravel = ravel_pytree(local_update(key, params, client.client, project))
    # Users and absent canaries have negative numbers, which must not index the last direction.
    own = jnp.where(client.canary >= 0, norm * directions[jnp.maximum(client.canary, 0)], 0.0)
    return unravel(jnp.where(client.canary == _USER, trained, own))

  return update


@checked
def planted_loss(loss: Loss, directions: jax.Array, norm: float) -> Loss:
  """The loss of `Planted` examples, for `jdp.federated.example_gradient`.

  An included canary's loss is minus `norm` times the inner product of its direction with the
  parameters. So its gradient is minus its direction, of length `norm`, at every model. Left-out
  canaries have the loss 0.

  Args:
    loss: (parameters, examples) -> mean loss, of the other examples.
    directions: the canaries' directions, float32 [m, dim]; dim is the number of the model's
      parameters.
    norm: the norm of a canary's gradient. It is the query's clip norm, or more.

  >>> from jdp.data import Examples
  >>> examples = Examples(jnp.ones((2, 3)), jnp.zeros(2), jnp.ones(2))
  >>> canaries = plant(examples, [True, False])  # after two examples
  >>> loss = planted_loss(lambda w, own: jnp.mean(own.inputs @ w), jnp.eye(3)[:2], 2.0)
  >>> rows = jax.tree.map(lambda x: x[:, None], canaries)
  >>> jax.vmap(jax.grad(loss), (None, 0, None))(jnp.zeros(3), rows, jax.random.key(0)).tolist()
  [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [-2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
  """
  _validate.positive(norm=norm)
  of_examples = keyed(loss)

  def of_one(params: PyTree, own: Planted, key: jax.Array) -> jax.Array:
    direction = directions[jnp.maximum(own.canary, 0)]
    along = norm * jnp.sum(direction * ravel_pytree(params)[0])
    example = jax.tree.map(lambda x: x[None], own.client)
    canary = jnp.where(own.canary >= 0, -along, 0.0)
    return jnp.where(own.canary == _USER, of_examples(params, example, key), canary)

  def planted(params: PyTree, examples: Planted, key: jax.Array) -> jax.Array:
    return jnp.mean(jax.vmap(of_one, (None, 0, None))(params, examples, key))

  return planted


@checked
def cosines(directions: Matrix, update: Vector) -> np.ndarray:
  """The cosine of an update [dim] with each direction [m, dim].

  Returns float64 [m], zeros if the update is zero.

  >>> cosines(jnp.eye(2), jnp.array([0.6, 0.8])).round(6).tolist()
  [0.6, 0.8]
  """
  if np.shape(directions)[1:] != np.shape(update):
    raise ValueError(
      f"Expected directions [m, dim] and update [dim], got {np.shape(directions)} and "
      f"{np.shape(update)}."
    )
  vector = np.asarray(update, np.float64)
  return (
    np.asarray(directions, np.float64) @ vector / max(np.linalg.norm(vector), np.finfo(float).tiny)
  )


@checked
def one_shot_estimate(
  present: Vector, *, delta: float, dim: int | None = None, absent: Vector | None = None
) -> float:
  """An ESTIMATE of epsilon from the cosines of one run; it may lie on either side of the true one.

  It is not a bound. It is the epsilon at delta between two normal distributions. One is fitted to
  the cosines of canaries that took part. The other is that of canaries that did not.

  It makes three assumptions:

  * The cosines are independent and normal with the fitted parameters. The fit is not exact. An
    error of 5 % in a standard deviation alone looks like an epsilon of 0.72 at a delta of 1e-5. 200
    canaries have such an error.
  * The observer looks at nothing but the cosine.
  * No client can do worse than send a random direction of the bound's length.

  Source: arXiv 2302.03098, Algorithms 1 and 2.

  Args:
    present: [m], cosines of canaries that took part, or their maxima over the rounds.
    delta: in (0, 1).
    dim: the model's dimension. The other distribution is then N(0, 1/dim), that of the cosine of a
      random direction. Use it for the final model, where canaries make up little of the update's
      squared length. Length that canaries fill is missing from other directions.
    absent: [m'], scores of canaries that did not take part. The other distribution is then fitted
      to them. Use it for maxima over rounds, and if fair coins chose the included canaries. Give
      exactly one of `dim` and `absent`.

  Raises:
    ValueError: if there are fewer than two scores, or they are all equal or not finite. Also if
      delta is out of range, or not exactly one of dim and absent is given.

  >>> rng = np.random.default_rng(0)
  >>> present = rng.normal(0.3, 0.1, 1000)
  >>> round(one_shot_estimate(present, delta=1e-5, dim=100), 1)  # of 16.7
  17.5
  """
  if (dim is None) == (absent is None):
    raise ValueError(
      "Expected exactly one of dim and absent: the distribution of canaries that did not take part."
    )
  if not 0 < delta < 1:
    raise ValueError(f"Expected delta in (0, 1), got {delta}.")
  if dim is not None:
    _validate.in_range(1, 1e300, dim=dim)
  laws = (
    _fitted_normal("present", present),
    _fitted_normal("absent", absent) if dim is None else scipy.stats.norm(0.0, dim**-0.5),
  )
  # The likelihood ratio hardly changes within a cell. The cells reach as far as either distribution
  # has a tail probability of 1e-30.
  grid = np.linspace(-12, 12, 4001)
  edges = np.unique([law.mean() + law.std() * grid for law in laws])
  return channel_epsilon(binned_channel(laws, edges), delta)


def _fitted_normal(name: str, scores: Vector) -> Any:
  """The normal distribution with the mean and standard deviation of the scores."""
  scores = np.asarray(scores, np.float64)
  if not (
    scores.ndim == 1 and scores.size >= 2 and np.all(np.isfinite(scores)) and np.ptp(scores) > 0
  ):
    raise ValueError(
      f"Expected {name} to be at least two scores, finite and not all equal, got shape "
      f"{scores.shape}."
    )
  return scipy.stats.norm(scores.mean(), scores.std(ddof=1))
