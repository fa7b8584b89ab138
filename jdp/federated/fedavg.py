"""DP-FedAvg and DP-FedSGD (arXiv 1710.06963, Algorithm 1).

A round has these steps:

1. Every user takes part with probability q.
2. A user trains on its own data, staying within S of the server's model.
3. The server averages the weighted, clipped updates with a bounded sensitivity.
4. The server adds Gaussian noise, and steps.

  >>> import numpy as np
  >>> from jdp import accounting, data, ledger, models, sampling
  >>> from jdp.data.packed import pack
  >>> from jdp.federated import local_sgd
  >>> from jdp.federated.estimators import fixed_denominator, flat_clipping
  >>> from jdp.federated.engine.rounds import block, events_by_round
  >>> rng = np.random.default_rng(0)
  >>> examples = data.examples(rng.normal(size=(600, 3)), rng.integers(0, 2, 600))
  >>> clients = pack(
  ...   examples, np.split(np.arange(600), [5, 20, 100, 250, 400, 500, 550])
  ... )  # 8 users
  >>> model = models.logistic_regression((3,), 2)
  >>> sampler = sampling.poisson(8, 0.5)
  >>> query = fixed_denominator(flat_clipping(0.1), noise_multiplier=1.0, expected_weight=0.5 * 7.0)
  >>> algorithm = federated_averaging(
  ...   local_sgd(models.cross_entropy(model), 0.5, num_epochs=2, batch_size=10),
  ...   query,
  ...   sampler,
  ...   optax.sgd(1.0),
  ...   weight=weight_by_examples(50),
  ... )
  >>> state, events, _ = jax.jit(block(algorithm, 3))(
  ...   jax.random.key(0), jax.random.key(1), algorithm.init(model.init(jax.random.key(2))), clients
  ... )
  >>> spent = ledger.Ledger()
  >>> for (event,) in events_by_round(events):
  ...   spent = spent.append(event)
  >>> round(accounting.epsilon(spent, delta=1e-2), 2)
  2.66
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jdp import _validate
from jdp._arguments import checked
from jdp.data.clients import Examples
from jdp.federated.engine.cohort_layout import CohortLayout
from jdp.federated.engine.default_layout import asked_layout, default_layout
from jdp.federated.engine.ghost_norms import ghost_client
from jdp.federated.engine.local_training import GradientStep, LocalUpdate, no_projection
from jdp.federated.engine.rounds import FederatedAlgorithm, add_updates, rounds
from jdp.federated.engine.sharded import is_declared, one_client
from jdp.guarantees import Relation, Unit
from jdp.numerics import vectors
from jdp.queries import SumQuery
from jdp.queries.base import unbounded
from jdp.sampling import Sampler

PyTree = Any


@checked
def federated_averaging(
  local_update: LocalUpdate,
  query: SumQuery,
  sampler: Sampler,
  optimizer: optax.GradientTransformation,
  *,
  weight: Callable[[PyTree], jax.Array] | None = None,
  project: bool = True,
  ghost_norms: bool | None = None,
  relation: Relation | str = Relation.ADD_REMOVE,
  unit: Unit | str = Unit.USER,
  chunk_size: int | None = None,
  mesh: Mesh | None = None,
  diagnose: bool = False,
) -> FederatedAlgorithm:
  """Federated averaging with user-level privacy.

  With `local_sgd` it is DP-FedAvg, with `gradient_step` DP-FedSGD. With `example_gradient` and unit
  "example", whose clients are single examples, it is DP-SGD (arXiv 1607.00133, Algorithm 1).

  Formal guarantee, from the ledger: that of the query's releases, for the sampler's event. It holds
  per `unit`, under `relation`, to whoever sees the models. Whatever a client holds or sends moves
  the average by at most the sensitivity that `jdp.federated.estimators` states. There is no
  guarantee against the server, which sees the updates.

  For the same code without privacy, use `true_average()` over a fixed cohort of
  `jdp.sampling.fixed_size`, with relation "replace_one".

  Args:
    local_update: what a client computes (`jdp.federated.engine.local_training`).
    query: makes the average of the updates private: estimator, clipping and noise
      (`jdp.federated.estimators`).
    sampler: who takes part.
    optimizer: the server's, applied to minus the average update. `optax.sgd(1.0)` adds the average,
      as published.
    weight: client -> w_k in [0, 1], such as `weight_by_examples`. None: all weights are 1.
    project: whether every local batch ends with a projection, as published. It brings the local
      model back to within the clip norm of the server's (by `query.clip`). False: updates are
      clipped once, at the end.
    ghost_norms: whether updates are clipped by their norms without being computed one by one
      (`jdp.federated.engine.ghost_norms`). It takes a `gradient_step`, and a query that scales an
      update by one factor, such as those of flat clipping (`jdp.queries.base.scales`).
      `jdp.federated.gradient_forms` says for which parameters gradients are computed nevertheless.
      None: where they are faster (`jdp.federated.engine.default_layout`), unless a chunk size is
      given, or users are padded to the largest (`jdp.data.pack` without `max_examples`).
    relation: the neighbouring relation of the guarantee.
    unit: what one client is.
    chunk_size: see `cohort_sum`. None: the rule for `ghost_norms` chooses it.
    mesh: see `cohort_sum`.
    diagnose: whether rounds also return the mean norm of the local updates ("update_norm"), the
      share of them that are clipped ("clipped"; absent if the query has no `clip`), and the
      cohort's size. All break the guarantee if shown.

  Returns:
    A `FederatedAlgorithm`.

  Raises:
    ValueError: if ghost norms are asked for without a `gradient_step`. Also, in a round, if the
      query does not scale an update by one factor.

  >>> from jdp import sampling
  >>> from jdp.federated import fixed_denominator, flat_clipping, gradient_step
  >>> update = gradient_step(lambda params, client: jnp.sum((params - client) ** 2), 0.5)
  >>> query = fixed_denominator(flat_clipping(0.1), noise_multiplier=2.0, expected_weight=10.0)
  >>> sampler = sampling.poisson(100, 0.1)
  >>> algorithm = federated_averaging(update, query, sampler, optax.sgd(1.0), chunk_size=4)
  >>> state, keys = algorithm.init(jnp.zeros(3)), (jax.random.key(0), jax.random.key(1))
  >>> _, (event,), _ = jax.eval_shape(algorithm.round, *keys, state, jnp.ones((100, 3)))
  >>> event.query
  GaussianSum(clip_norm=0.1, stddev=0.2)
  """

  def client_fn(keys, sent, client):
    # The clip norm may differ between rounds, so clients are sent the query's state too.
    params, query_state = sent
    update = local_update(
      keys.data, params, client, partial(query.clip, query_state) if project else no_projection
    )
    return update, _diagnostics(query, query_state, update) if diagnose else {}

  def ghost_fn(ghost):
    def record_fn(keys, sent, client):
      record, _ = ghost(keys, sent, client)
      return record, _diagnostics(query, sent[1], record.norm) if diagnose else {}

    return record_fn

  def made(layout):
    record_fn = client_fn
    if layout.ghost_norms:
      step = _require_gradient_step(local_update)
      record_fn = ghost_fn(ghost_client(step.loss, step.learning_rate))
    algorithm = rounds(
      record_fn,
      query,
      sampler,
      add_updates(optimizer),
      relation=relation,
      unit=unit,
      send=lambda params, query_state: (params, query_state),
      weight=weight,
      chunk_size=layout.chunk_size,
      mesh=mesh,
      diagnose=diagnose,
    )
    return _without_gradients(algorithm) if layout.ghost_norms else algorithm

  if ghost_norms is not None or chunk_size is not None:
    return made(asked_layout(chunk_size, mesh, ghost_norms=bool(ghost_norms)))

  plain = made(CohortLayout(None))

  # The rule looks at the clients' shapes, which are known when a round is traced. Layouts differ in
  # rounding. So the size of the largest client, which depends on one client's data, must not choose
  # one.
  def chosen(params, clients):
    if not is_declared(clients):
      return plain
    size = sampler.expected_size
    return made(default_layout(local_update, query, params, one_client(clients), size, mesh))

  def round_fn(noise_key, data_key, state, clients):
    return chosen(state.params, clients).round(noise_key, data_key, state, clients)

  def work(params, clients):
    return chosen(params, clients).work(params, clients)

  return plain._replace(round=round_fn, work=plain.work and work)


def _diagnostics(query: SumQuery, query_state: PyTree, update: PyTree) -> dict[str, jax.Array]:
  """An update's norm, and whether it reaches the bound: it is clipped, or it was projected there.

  A query that does not state its bound (an adaptive one) gets the norm alone.
  """
  norm = vectors.l2_norm(update)
  if query.clip is unbounded:
    return {"update_norm": norm}
  # A projected update lies on the bound, so it is clipped once it is 0.1 % longer.
  longer = query.clip(query_state, jax.tree.map(lambda x: 1.001 * x, update))
  return {"update_norm": norm, "clipped": jnp.float32(vectors.l2_norm(longer) < 1.0005 * norm)}


def _without_gradients(algorithm: FederatedAlgorithm) -> FederatedAlgorithm:
  """The algorithm with clients that make no gradients: their work counts their data alone."""
  work = algorithm.work
  return algorithm._replace(work=work and (lambda params, clients: work((), clients)))


def _require_gradient_step(local_update: LocalUpdate) -> GradientStep:
  """Refuses any other update: ghost norms are those of one gradient step."""
  if not isinstance(local_update, GradientStep):
    raise ValueError(
      f"Expected a gradient_step with ghost_norms, got {local_update!r}; set ghost_norms=False."
    )
  return local_update


@checked
def weight_by_examples(cap: float) -> Callable[[Examples], jax.Array]:
  """The weight w_k = min(n_k / cap, 1) of a client with n_k examples.

  >>> weight_by_examples(4)(
  ...   Examples(jnp.zeros((3, 1)), jnp.zeros(3), jnp.array([1.0, 1.0, 0.0]))
  ... ).item()
  0.5
  """
  _validate.positive(cap=cap)
  return lambda client: jnp.minimum(jnp.sum(client.mask) / cap, 1.0)
