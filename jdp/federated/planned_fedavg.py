"""DP-FedAvg in one call: noise for a target epsilon, over a planned number of rounds."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import optax
from jax.sharding import Mesh

from jdp import _validate, accounting
from jdp._arguments import checked
from jdp.events import (
  CorrelatedGaussianSum,
  CyclicPoissonSampling,
  FixedSizeSampling,
  GaussianSum,
  MinSeparationSampling,
  PoissonSampling,
  Round,
  SamplingEvent,
)
from jdp.federated.engine.cohort_layout import CohortLayout
from jdp.federated.engine.local_training import LocalUpdate, local_sgd
from jdp.federated.engine.rounds import FederatedAlgorithm
from jdp.federated.engine.sharded import num_clients
from jdp.federated.estimators import fixed_denominator, flat_clipping
from jdp.federated.fedavg import federated_averaging
from jdp.guarantees import Relation
from jdp.ledger import Ledger
from jdp.matrix_factorization.plans import planned_sum
from jdp.matrix_factorization.strategies import Strategy
from jdp.models.base import Loss
from jdp.sampling import Sampler, poisson

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
    clients: the users' data. Only how many there are is read.
    cohort_size: the expected number of users in a round.
    clip_norm: S.
    num_rounds: of the whole run. `train` does no more.
    noise_multiplier: z. Either this or a target epsilon. With a strategy, of the entries of Z.
    target_epsilon: the epsilon of the whole run, for which the least z is found.
    delta: in (0, 1), of the target.
    local_update: loss -> what a client computes. None: one epoch of SGD in batches of 10 examples,
      with a learning rate of 0.1.
    server_optimizer: applied to minus the average update. None: `optax.sgd(1.0)`, which adds it.
    sampler: who takes part, with `cohort_size` members in expectation. None: each user with the
      probability cohort_size / users.
    strategy: how noise is correlated over the rounds, of `jdp.matrix_factorization`, for at least
      `num_rounds` rounds. None: it is independent. Best with a sampler whose users' rounds are far
      apart (`jdp.sampling.min_separation`, `jdp.sampling.cyclic_poisson`).
    relation: the neighbouring relation of the guarantee.
    prior: what was released about the same users before. Give it to `train` too.
    layout: how a cohort is computed. None: by platform, model and client
      (`jdp.federated.engine.default_layout`).
    mesh: see `cohort_sum`. None: `train` takes the devices that pay.

  Returns:
    A `FederatedAlgorithm` that plans `num_rounds`.

  Raises:
    ValueError: if a number is out of range, if there are more or fewer than one of noise_multiplier
      and target_epsilon, or a target without a delta. Also if the sampler has other users, or its
      rounds differ, as in epochs: then give z. Also if the strategy is for fewer rounds, or if a
      sampler with so few slots lets no plan come near the target.

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
  relation, population = Relation(relation), num_clients(clients)
  _validate.integer(1, cohort_size=cohort_size, num_rounds=num_rounds)
  _validate.positive(clip_norm=clip_norm)
  if sampler is None:
    if not cohort_size <= population:
      raise ValueError(
        f"Expected cohort_size of at most {population} users, got {cohort_size}; lower it."
      )
    sampler = poisson(population, cohort_size / population)
  if sampler.population != population:
    raise ValueError(
      f"Expected a sampler of {population} users, got one of {sampler.population}; make it for the "
      "users of `clients`."
    )
  event = sampler.event(sampler.init())
  separation = {} if strategy is None else _separation(event)
  if strategy is None:
    plan = partial(_plan, event, relation, num_rounds)
  else:
    if num_rounds > strategy.num_rounds:
      raise ValueError(
        f"Expected num_rounds of at most the strategy's {strategy.num_rounds}, got {num_rounds}; "
        "make a strategy for more rounds."
      )
    unit = planned_sum(strategy, 1.0, **separation)
    plan = partial(_correlated_plan, event, relation, num_rounds, unit)
  z = _noise_multiplier(
    noise_multiplier, target_epsilon, delta, lambda multiplier: prior + plan(multiplier)
  )
  algorithm = federated_averaging(
    (local_update or _one_epoch)(loss),
    fixed_denominator(
      flat_clipping(clip_norm),
      z,
      cohort_size,
      relation=relation,
      strategy=strategy,
      **separation,
    ),
    sampler,
    server_optimizer or optax.sgd(1.0),
    relation=relation,
    mesh=mesh,
    **({} if layout is None else layout._asdict()),
  )
  return algorithm._replace(num_rounds=num_rounds)


def _noise_multiplier(
  given: float | None,
  target_epsilon: float | None,
  delta: float | None,
  plan: Callable[[float], Ledger],
) -> float:
  """The multiplier given, or the least one for the target."""
  if (given is None) == (target_epsilon is None):
    raise ValueError(
      "Expected one of noise_multiplier and target_epsilon, got "
      f"{'neither' if given is None else 'both'}; give one."
    )
  if given is not None:
    _validate.non_negative(noise_multiplier=given)
    return given
  if delta is None:
    raise ValueError("Expected delta with target_epsilon, got none; an epsilon is one at a delta.")
  assert target_epsilon is not None
  return accounting.calibrate_noise(target_epsilon, delta, plan)


def _plan(
  event: SamplingEvent, relation: Relation, num_rounds: int, noise_multiplier: float
) -> Ledger:
  """The ledger of the planned run."""
  if not isinstance(event, PoissonSampling | FixedSizeSampling):
    raise ValueError(
      f"Expected a sampler whose rounds are alike with target_epsilon, got {type(event).__name__}; "
      "give noise_multiplier (jdp.accounting.calibrate_noise takes any plan)."
    )
  round_event = Round(event, GaussianSum(1.0, _stddev(noise_multiplier, relation)), relation)
  return Ledger().append(round_event, count=num_rounds)


def _stddev(noise_multiplier: float, relation: Relation) -> float:
  """The noise of a sum with S = 1 that has the multiplier under the relation."""
  # The multiplier of a sum with S = stddev = 1 is 1, and 1/2 under replace-one.
  return noise_multiplier / accounting.noise_multiplier(GaussianSum(1.0, 1.0), relation)


def _separation(event: SamplingEvent) -> dict[str, int]:
  """What a sampler promises of a user's rounds, as arguments of a plan."""
  if isinstance(event, MinSeparationSampling):
    return {
      "min_separation": event.min_separation,
      "max_participations": event.max_participations,
    }
  return {"min_separation": event.num_groups} if isinstance(event, CyclicPoissonSampling) else {}


def _correlated_plan(
  event: SamplingEvent,
  relation: Relation,
  num_rounds: int,
  unit: CorrelatedGaussianSum,
  noise_multiplier: float,
) -> Ledger:
  """A ledger that costs what the planned run does: its last round, with all rounds' overflows."""
  query = dataclasses.replace(
    unit, noise_multiplier=_stddev(noise_multiplier, relation), index=num_rounds - 1
  )
  if isinstance(event, MinSeparationSampling | CyclicPoissonSampling):
    event = dataclasses.replace(event, position=num_rounds - 1)
  if isinstance(event, CyclicPoissonSampling | PoissonSampling):
    overflow = min(1.0, num_rounds * event.overflow_probability)
    event = dataclasses.replace(event, overflow_probability=overflow)
  return Ledger().append(Round(event, query, relation))
