"""DP-SGD in one call: noise for a target epsilon, over a planned number of epochs or rounds."""

import math

import optax
from jax.sharding import Mesh

from jdp import _validate
from jdp._arguments import checked
from jdp.data.clients import Examples
from jdp.federated.data_warnings import with_warnings
from jdp.federated.engine.cohort_layout import CohortLayout
from jdp.federated.engine.local_training import example_gradient
from jdp.federated.engine.rounds import FederatedAlgorithm
from jdp.federated.engine.sharded import num_clients
from jdp.federated.planned_averaging import planned_averaging
from jdp.guarantees import Relation, Unit
from jdp.ledger import Ledger
from jdp.matrix_factorization.strategies import Strategy
from jdp.models.base import Loss
from jdp.sampling import Sampler


@checked
def dp_sgd(
  loss: Loss,
  examples: Examples,
  *,
  batch_size: int,
  clip_norm: float,
  num_epochs: float | None = None,
  num_rounds: int | None = None,
  noise_multiplier: float | None = None,
  target_epsilon: float | None = None,
  delta: float | None = None,
  accountant: str = "tightest",
  optimizer: optax.GradientTransformation | None = None,
  sampler: Sampler | None = None,
  strategy: Strategy | None = None,
  relation: Relation | str = Relation.ADD_REMOVE,
  prior: Ledger = Ledger(),
  layout: CohortLayout | None = None,
  mesh: Mesh | None = None,
) -> FederatedAlgorithm:
  """Example-level DP-SGD (arXiv 1607.00133, Algorithm 1), for a planned run.

  A round takes a batch, clips the gradient of each example to S, adds noise to their sum, and
  divides by the expected size of a batch. `dp_fedavg` is its counterpart for users.

  Formal guarantee, from the ledger: that of one Gaussian sum a round with the multiplier z, for the
  sampler's event. It holds per example, under `relation`, to whoever sees the models. After
  `num_rounds` rounds it is at most (target_epsilon, delta), together with `prior`. A user with
  several examples has less privacy: take `dp_fedavg` to protect users.

  Args:
    loss: (parameters, examples) -> mean loss, such as `jdp.models.cross_entropy(model)`.
    examples: those of `jdp.data.examples`. Only their number is read, and a few of them, to warn on
      the console of inputs that are not scaled and of labels beyond the model's classes.
    batch_size: the expected number of examples in a batch.
    clip_norm: S.
    num_epochs: how often an example is seen in expectation. It makes
      ceil(num_epochs * examples / batch_size) rounds. Either this or `num_rounds`.
    num_rounds: the number of rounds in the whole run. `train` does no more.
    noise_multiplier: z. Either this or a target epsilon. With a strategy, it is that of the entries
      of Z.
    target_epsilon: the epsilon of the whole run, for which the least z is found.
    delta: the target's delta, in (0, 1). Choose it well below 1 / examples.
    accountant: the accountant by which the target is met (`jdp.accounting.epsilon`).
    optimizer: takes the private average gradient, whose length is at most S before the noise. None:
      `optax.sgd(0.2, momentum=0.9)`.
    sampler: who is in a batch, with `batch_size` members in expectation. None: each example with
      the probability batch_size / examples.
    strategy: how noise is correlated over the rounds. See `dp_fedavg`.
    relation: the neighbouring relation of the guarantee.
    prior: what was released about the same examples before. Give it to `train` too.
    layout: how a batch is computed. None: by platform, model and example
      (`jdp.federated.engine.default_layout`).
    mesh: see `cohort_sum`. None: `train` takes as many devices as pay off.

  Returns:
    A `FederatedAlgorithm` that plans its rounds. `train` takes the same examples as its clients.

  Raises:
    ValueError: unless exactly one of num_epochs and num_rounds is given. Otherwise as for
      `dp_fedavg`.

  >>> import jax, numpy as np
  >>> from jdp import accounting, data, federated, models
  >>> rng = np.random.default_rng(0)
  >>> examples = data.examples(rng.normal(size=(600, 3)), rng.integers(0, 2, 600))
  >>> model = models.logistic_regression((3,), 2)
  >>> algorithm = dp_sgd(
  ...   models.cross_entropy(model),
  ...   examples,
  ...   batch_size=200,
  ...   clip_norm=1.0,
  ...   num_epochs=2,
  ...   target_epsilon=4.0,
  ...   delta=1e-4,
  ... )
  >>> result = federated.train(algorithm, model.init(jax.random.key(0)), examples)
  >>> len(result.ledger), 3.96 < accounting.epsilon(result.ledger, 1e-4) <= 4.0
  (6, True)
  """
  if (num_epochs is None) == (num_rounds is None):
    raise ValueError(
      "Expected one of num_epochs and num_rounds, got "
      f"{'neither' if num_epochs is None else 'both'}; give one."
    )
  _validate.integer(1, batch_size=batch_size)
  if num_rounds is None:
    assert num_epochs is not None
    _validate.positive(num_epochs=num_epochs)
    num_rounds = math.ceil(num_epochs * num_clients(examples) / batch_size)
  loss = with_warnings(loss, examples)
  return planned_averaging(
    example_gradient(loss),
    examples,
    optimizer or optax.sgd(0.2, momentum=0.9),
    unit=Unit.EXAMPLE,
    size_name="batch_size",
    size=batch_size,
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
