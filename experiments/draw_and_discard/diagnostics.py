"""Diagnostics of a Draw and Discard run: its training loss, and what adversary II learns.

No observer of a deployment could compute them.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jdp.accounting.draw_and_discard import internal_ratios
from jdp.data import Examples
from jdp.federated.draw_and_discard import ClientUpdate
from jdp.guarantees import PureDP
from jdp.models import Loss
from jdp.queries.base import PyTree

_PROBES = 4
_AT_ONCE = 64  # Clients whose losses are computed side by side, for speed alone.
_LOSSES = (
  "adversary_2_worst",
  "adversary_2_worst_alone",
  "adversary_2_worst_largest",
  "adversary_2_clients_joint",
)


def training_loss(loss: Loss, instances: PyTree, clients: Examples) -> jax.Array:
  """The mean over clients of the loss of the average model."""
  average = jax.tree.map(lambda x: jnp.mean(x, axis=0), instances)
  losses = jax.lax.map(lambda client: loss(average, client), clients, batch_size=_AT_ONCE)
  return jnp.mean(losses)


def adversary_2(
  key: jax.Array,
  update: ClientUpdate,
  instances: PyTree,
  clients: Examples,
  users: jax.Array,
  number: jax.Array,
) -> dict[str, jax.Array]:
  """What adversary II would learn from updates of these instances (arXiv 1807.04369, 4.3).

  The updates are hypothetical: no client makes them.

  Args:
    key: of these updates' noise.
    update: what clients do.
    instances: a pytree of [k, ...], which the adversary knows.
    clients: the data of all clients.
    users: indices of some clients.
    number: of the update, for its learning rate.

  Returns:
    Mean losses over a few updates, by name, float32. Updates without Laplace noise give none. Three
    names are for gradients c and -c of one coordinate:

    * "worst": the pre-image is guessed from all coordinates.
    * "worst_alone": the pre-image is guessed from that coordinate alone.
    * "worst_largest": the maximum of "worst".

    "clients_joint" is for the gradients of two clients, over all coordinates.
  """
  guarantee = update.event.guarantee
  if not (isinstance(guarantee, PureDP) and guarantee.epsilon < np.inf):
    return {}
  settings, count = update.settings, min(_PROBES, users.shape[0])
  rows = jax.vmap(_flat)(instances)
  rate = update.rate(settings, number)

  def probe(key, user, other):
    drawn_key, noise_key = jax.random.split(key)
    index = jax.random.randint(drawn_key, (), 0, rows.shape[0])
    drawn = jax.tree.map(lambda x: x[index], instances)
    noise = update.draw(noise_key, drawn)
    assert noise is not None  # a finite guarantee has noise

    def move(user):
      client = jax.tree.map(lambda x: x[user], clients)
      return rate * _flat(update.clipped(settings, drawn, client))

    return rows[index], rate * settings.noise_scale * _flat(noise.draws), move(user), move(other)

  drawn, noise, move, other = jax.vmap(probe)(
    jax.random.split(key, count), users[:count], users[-count:]
  )
  shapes = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in _LOSSES}
  bound, scale = rate * settings.clip, rate * settings.noise_scale
  return jax.pure_callback(_losses, shapes, rows, drawn, noise, move, other, bound, scale)


def _losses(
  instances: jax.Array,
  drawn: jax.Array,
  noise: jax.Array,
  move: jax.Array,
  other: jax.Array,
  bound: jax.Array,
  scale: jax.Array,
) -> dict[str, np.float32]:
  """The losses of `adversary_2`, on the host in float64."""
  held, added, own, another = (np.asarray(x, np.float64) for x in (drawn, noise, move, other))
  worst_move = np.full_like(held, bound)
  # What the adversary sees is the drawn instance less the client's move and its noise.
  worst = internal_ratios(instances, held - worst_move - added, worst_move, -worst_move, scale)
  real = internal_ratios(instances, held - own - added, own, another, scale)
  values = (
    worst.coordinates.mean(),
    worst.alone.mean(),
    np.abs(worst.coordinates).max(),
    real.joint.mean(),
  )
  return dict(zip(_LOSSES, map(np.float32, values), strict=True))


def _flat(model: PyTree) -> jax.Array:
  return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(model)])
