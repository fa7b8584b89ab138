"""DP-FedAvg in one call: noise for a target epsilon, over a planned number of rounds."""

from collections.abc import Callable
from functools import partial
from typing import Any

import optax
from jax.sharding import Mesh

from jdp._arguments import checked
from jdp.federated.data_warnings import with_warnings
from jdp.federated.engine.cohort_layout import CohortLayout
from jdp.federated.engine.local_training import LocalUpdate, local_sgd
from jdp.federated.engine.rounds import FederatedAlgorithm
from jdp.federated.planned_averaging import planned_averaging
from jdp.guarantees import Relation, Unit
from jdp.ledger import Ledger
from jdp.matrix_factorization.strategies import Strategy
from jdp.models.base import Loss
from jdp.sampling import Sampler

PyTree = Any
# One epoch over the user's examples, as the publication's experiments do.
_one_epoch = partial(local_sgd, learning_rate=0.1, batch_size=10)


@checked
def dp_fedavg(
  loss: Loss,
  clients: PyTree,
  *,
  cohort_size: int,
  clip_norm: float,
  num_rounds: int,
  noise_multiplier: float | None = None,
  target_epsilon: float | None = None,
  delta: float | None = None,
  accountant: str = "tightest",
  local_update: Callable[[Loss], LocalUpdate] | None = None,
  server_optimizer: optax.GradientTransformation | None = None,
  sampler: Sampler | None = None,
  strategy: Strategy | None = None,
  relation: Relation | str = Relation.ADD_REMOVE,
  prior: Ledger = Ledger(),
  layout: CohortLayout | None = None,
  mesh: Mesh | None = None,
) -> FederatedAlgorithm:
  """DP-FedAvg (arXiv 1710.06963, Algorithm 1) with its common choices, for a planned run.

  The users' updates are clipped to S by flat clipping, also after every local batch. They are
  averaged over the expected cohort. `federated_averaging` makes every other choice.

  Formal guarantee, from the ledger: that of one Gaussian sum a round with the multiplier z, for the
  sampler's event. It holds per user, under `relation`, to whoever sees the models. After
  `num_rounds` rounds it is at most (target_epsilon, delta), together with `prior`.

  With a strategy the whole run is one Gaussian sum, of the multiplier z over the strategy's
  sensitivity for the rounds that the sampler allows a user, or one that the sampler amplifies
  (`jdp.queries.correlated_gaussian_sum`).

  Args:
    loss: (parameters, examples) -> mean loss, such as `jdp.models.cross_entropy(model)`.
    clients: the users' data. Only their number is read, and a few examples, to warn on the console
      of inputs that are not scaled and of labels beyond the model's classes.
    cohort_size: the expected number of users in a round.
    clip_norm: S.
    num_rounds: the number of rounds in the whole run. `train` does no more.
    noise_multiplier: z. Either this or a target epsilon. With a strategy, it is that of the entries
      of Z.
    target_epsilon: the epsilon of the whole run, for which the least z is found.
    delta: the target's delta, in (0, 1).
    accountant: the accountant by which the target is met (`jdp.accounting.epsilon`).
    local_update: loss -> what a client computes. None: one epoch of SGD in batches of 10 examples,
      with a learning rate of 0.1.
    server_optimizer: applied to minus the average update. None: `optax.sgd(1.0)`, which adds it.
    sampler: who takes part, with `cohort_size` members in expectation. None: each user with the
      probability cohort_size / users.
    strategy: how noise is correlated over the rounds (`jdp.matrix_factorization`), for at least
      `num_rounds` rounds. None: it is independent. Best with a sampler whose users' rounds are far
      apart (`jdp.sampling.min_separation`, `jdp.sampling.cyclic_poisson`).
    relation: the neighbouring relation of the guarantee.
    prior: what was released about the same users before. Give it to `train` too.
    layout: how a cohort is computed. None: by platform, model and client
      (`jdp.federated.engine.default_layout`).
    mesh: see `cohort_sum`. None: `train` takes as many devices as pay off.

  Returns:
    A `FederatedAlgorithm` that plans `num_rounds`.

  Raises:
    ValueError: if a number is out of range, unless exactly one of noise_multiplier and
      target_epsilon is given, or if there is a target without a delta. Also if the sampler has
      other users, or its rounds differ, as in epochs: then give z. Also if the strategy is for
      fewer rounds, or if a sampler with so few slots lets no plan come near the target.

  >>> import jax, numpy as np
  >>> from jdp import accounting, data, federated, models
  >>> rng = np.random.default_rng(0)
  >>> users = rng.integers(0, 50, 600)
  >>> clients = data.clients_from_arrays(rng.normal(size=(600, 3)), rng.integers(0, 2, 600), users)
  >>> model = models.logistic_regression((3,), 2)
  >>> algorithm = dp_fedavg(
  ...   models.cross_entropy(model),
  ...   clients,
  ...   cohort_size=10,
  ...   clip_norm=0.5,
  ...   target_epsilon=8.0,
  ...   delta=1e-3,
  ...   num_rounds=4,
  ... )
  >>> result = federated.train(algorithm, model.init(jax.random.key(0)), clients)
  >>> len(result.ledger), 7.92 < accounting.epsilon(result.ledger, 1e-3) <= 8.0
  (4, True)
  """
  loss = with_warnings(loss, clients)
  return planned_averaging(
    (local_update or _one_epoch)(loss),
    clients,
    server_optimizer or optax.sgd(1.0),
    unit=Unit.USER,
    size_name="cohort_size",
    size=cohort_size,
    clip_norm=clip_norm,
    num_rounds=num_rounds,
    noise_multiplier=noise_multiplier,
    target_epsilon=target_epsilon,
    delta=delta,
    accountant=accountant,
    sampler=sampler,
    strategy=strategy,
    relation=relation,
    prior=prior,
    layout=layout,
    mesh=mesh,
  )
