"""Private federated learning: local and central privacy together (arXiv 1812.00984, Section 3.1).

A round has these steps:

1. Every user takes part with probability q.
2. A user trains on its own data, and releases its update through a local mechanism.
3. The server projects every release onto a ball, which is the clipping of the sum query.
4. The server averages over the *expected* cohort, adds Gaussian noise, and steps.
"""

import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from jdp._arguments import checked
from jdp.events import LocalRelease
from jdp.federated.engine.cohort import in_turn
from jdp.federated.engine.local_training import LocalUpdate
from jdp.federated.engine.rounds import FederatedAlgorithm, Server, add_updates, rounds
from jdp.guarantees import Relation, Unit
from jdp.mechanisms import LocalMechanism
from jdp.numerics import vectors
from jdp.queries import SumQuery
from jdp.random.binding import bind
from jdp.sampling import Sampler


@checked
def private_federated(
  local_update: LocalUpdate,
  query: SumQuery,
  sampler: Sampler,
  optimizer: optax.GradientTransformation,
  *,
  mechanism: LocalMechanism | None = None,
  relation: Relation | str = Relation.ADD_REMOVE,
  chunk_size: int | None = None,
  mesh: Mesh | None = None,
  diagnose: bool = False,
) -> FederatedAlgorithm:
  """Federated learning with local and central privacy.

  There are two formal guarantees for each user, both from the ledger:

  * *Central*, to whoever sees the released models: a subsampled Gaussian if `query` is a Gaussian
    sum.
  * *Local*, against the server: each of a user's releases costs the mechanism's guarantee, and they
    add up over at most `sampler.max_participations` rounds. Sampling does not amplify it, as the
    server sees who reports.

  Args:
    local_update: what a client computes (`jdp.federated.engine.local_training`).
    query: makes the average of the released vectors private. Its clip norm is the radius of the
      server's projection. The released average stays unbiased if that is at least
      `mechanism.max_norm`. Divide by `sampler.expected_size`.
    sampler: who takes part.
    optimizer: the server's, applied to minus the average update. `optax.sgd(1.0)` is plain
      federated averaging.
    mechanism: the local randomiser for vectors of as many entries as the model has
      parameters. None: clients report in the clear.
    relation: the neighbouring relation of the central guarantee.
    chunk_size: see `cohort_sum`. None: on a CPU, clients train one by one, and those who draw noise
      draw it side by side.
    mesh: see `cohort_sum`.
    diagnose: whether rounds also return mean norms and the cohort's size. The norms are those of
      the local updates ("update_norm") and of what reached the server ("release_norm"). All break
      the guarantee if shown.

  Returns:
    A `FederatedAlgorithm`.

  >>> import jax
  >>> from jdp import mechanisms, queries, sampling
  >>> from jdp.federated import gradient_step
  >>> update = gradient_step(lambda params, client: jax.numpy.sum((params - client) ** 2), 0.5)
  >>> sampler = sampling.poisson(100, 0.1)
  >>> query = queries.average(queries.gaussian_sum(1.0, 2.0), sampler.expected_size)
  >>> local = mechanisms.laplace(1.0, 2.0, shape=(8,))
  >>> algorithm = private_federated(update, query, sampler, optax.sgd(1.0), mechanism=local)
  >>> state, clients = algorithm.init(jax.numpy.zeros(8)), jax.numpy.ones((100, 8))
  >>> keys = jax.random.key(0), jax.random.key(1)
  >>> _, (central, local), _ = jax.eval_shape(algorithm.round, *keys, state, clients)
  >>> central.query, local.guarantee.epsilon
  (GaussianSum(clip_norm=1.0, stddev=2.0), 1.0)
  """
  release: tuple[LocalRelease, ...] = ()
  if mechanism is not None:
    release = (
      LocalRelease(mechanism.guarantee.restate(unit=Unit.USER), sampler.max_participations),
    )

  def client_fn(keys, params, client):
    train = in_turn(local_update, mesh) if chunk_size is None else local_update
    # A mechanism takes one vector.
    update, _ = ravel_pytree(train(keys.data, params, client))
    # The engine's key is bound to the client's data, and not to the update. Changed code can make
    # another update from the same data, so the noise is bound to the update too.
    vector = update if mechanism is None else mechanism.privatize(bind(keys.noise, update), update)
    return vector, {"update_norm": vectors.l2_norm(update), "release_norm": vectors.l2_norm(vector)}

  return rounds(
    client_fn,
    query,
    sampler,
    _flattened(add_updates(optimizer)),
    relation=relation,
    releases=release,
    draws_noise=mechanism is not None,
    chunk_size=chunk_size,
    mesh=mesh,
    diagnose=diagnose,
  )


def _flattened(server: Server) -> Server:
  """The server for averages of flattened updates."""

  def step(update, carried, params):
    _, unravel = ravel_pytree(params)
    return server.step(unravel(update), carried, params)

  return server._replace(record=lambda params: ravel_pytree(params)[0], step=step)
