"""Options of federated training, and what follows from them.

They are about participation, local training, the server's optimiser and the central noise.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import optax
import scipy

from experiments.runner import checks
from experiments.runner.options import needed, option
from experiments.runner.reports.tables import percent
from experiments.runner.runs.training import TrainingOptions
from jdp import _validate, accounting, sampling
from jdp.federated import LocalUpdate, gradient_step, local_sgd, p_norm_descent, proximal_point
from jdp.ledger import Ledger
from jdp.models import Loss

_SGD = {"local_training": ("sgd",)}
_MOMENTUM = 0.9
_OPTIMIZERS = {
  "sgd": optax.sgd,
  "momentum": partial(optax.sgd, momentum=_MOMENTUM),
  "adam": optax.adam,
  "mirror": p_norm_descent,
}
_LOST_SHARE = 1e-3


@dataclasses.dataclass(frozen=True)
class UpdateOptions:
  """The options of a round's updates: local training, server and central noise."""

  SUBJECT = "Local training, server and noise"

  local_training: str = option(
    "gradient",
    "What a client computes: one gradient step, several of SGD, or a proximal-point step.",
    choices=("gradient", "sgd", "proximal"),
  )
  local_learning_rate: float = option(1.0, "The client's learning rate.", check=_validate.positive)
  local_epochs: int | None = option(
    1, "Passes over the client's examples.", check=checks.count, when=_SGD
  )
  local_batch_size: int | None = option(
    10, "Examples of a local step.", check=checks.count, when=_SGD
  )
  proximal_iterations: int | None = option(
    10,
    "Gradient steps towards the proximal point.",
    check=checks.count,
    when={"local_training": ("proximal",)},
  )
  server_optimizer: str = option(
    "sgd",
    f"The server's optimiser; momentum is {_MOMENTUM}, mirror is p-norm descent, for gradients "
    "bounded by coordinate.",
    choices=tuple(_OPTIMIZERS),
  )
  server_learning_rate: float = option(1.0, "The server's learning rate.", check=_validate.positive)
  noise_multiplier: float | None = option(
    None,
    "z, stddev of the central noise over the clip norm.",
    check=_validate.non_negative,
    group="central noise",
  )
  target_epsilon: float | None = option(
    None,
    "The central epsilon that z is calibrated for.",
    check=_validate.positive,
    group="central noise",
  )
  delta: float | None = option(
    None,
    "Delta of the central guarantee. Default: N^-1.1 of N users, or of N examples where these are "
    "what is protected.",
    check=checks.delta,
  )


@dataclasses.dataclass(frozen=True)
class FederationOptions(UpdateOptions):
  """The options of federated training with central noise, in cohorts of one size."""

  SUBJECT = "Who takes part"

  cohort_size: int = option(
    100, "Expected number of users in a round; each takes part with that share.", check=checks.count
  )
  participation_cap: int | None = option(
    None,
    "The most rounds that one user takes part in. Default: the least for which, in expectation, "
    f"at most {percent(_LOST_SHARE)} of all participations are lost.",
    check=checks.count,
  )


@dataclasses.dataclass(frozen=True)
class RoundOptions(TrainingOptions, UpdateOptions):
  """The options of training whose central noise can be calibrated for all of its rounds."""


@dataclasses.dataclass(frozen=True)
class PlanOptions(RoundOptions, FederationOptions):
  """The options that a plan follows from."""


class Plan(NamedTuple):
  """What follows from the options and the number of users.

  Attributes:
    sampler: samples the users of a round.
    noise_multiplier: z.
    delta: of the central guarantee.
  """

  sampler: sampling.Sampler
  noise_multiplier: float
  delta: float


def central_delta(options: UpdateOptions, num_records: int) -> float:
  """Delta of the central guarantee: `--delta`, or N^-1.1 of the N protected records.

  A record is a user or an example.
  """
  return options.delta or num_records**-1.1


def make_plan(options: PlanOptions, num_users: int, prior: Ledger = Ledger()) -> Plan:
  """`plan_of_cohorts` of the size and the participation cap that the options have."""
  return plan_of_cohorts(
    options, num_users, options.cohort_size, cap=options.participation_cap, prior=prior
  )


def plan_of_cohorts(
  options: RoundOptions,
  num_users: int,
  cohort_size: int,
  *,
  cap: int | None = None,
  prior: Ledger = Ledger(),
) -> Plan:
  """Chooses sampler, noise and delta.

  Args:
    options: number of rounds, noise or its target, delta and accountant.
    num_users: N.
    cohort_size: the expected number of users in a round.
    cap: the most rounds of one user, or None for `default_participation_cap`.
    prior: what was released about the users before the first round. A target epsilon is for both
      together.

  Raises:
    ValueError: if the cohort is larger than the number of users, or the participation cap is larger
      than the number of rounds.
  """
  if not cohort_size <= num_users:
    raise ValueError(f"Expected --cohort_size of at most {num_users} users, got {cohort_size}.")
  probability = cohort_size / num_users
  cap = cap or default_participation_cap(options.num_rounds, probability)
  if not cap <= options.num_rounds:
    raise ValueError(
      f"Expected --participation_cap of at most --num_rounds={options.num_rounds}, got {cap}."
    )
  delta = central_delta(options, num_users)
  z = options.noise_multiplier
  if z is None:
    z = accounting.calibrate_noise_multiplier(
      needed(options.target_epsilon),
      delta,
      probability,
      options.num_rounds,
      prior=prior,
      accountant=options.accountant,
    )
  # Capacity for everybody: unused slots cost almost nothing here, and no sample can overflow.
  sampler = sampling.poisson(num_users, probability, capacity=num_users, max_participations=cap)
  return Plan(sampler, z, delta)


def default_participation_cap(num_rounds: int, probability: float) -> int:
  """The least c with E[(K - c)+] <= E[K]/1000, K binomial: a user's participations without a cap.

  It is public, as it depends on the plan alone.

  >>> default_participation_cap(200, 0.1), default_participation_cap(10, 1.0)
  (31, 10)
  """
  # P(K > j), of SciPy's special functions, as its statistics take a second to import.
  beyond = scipy.special.bdtrc(np.arange(num_rounds), num_rounds, probability)
  # E[(K - c)+] is the sum of P(K > j) over j >= c.
  lost = np.append(np.cumsum(beyond[::-1])[::-1], 0.0)
  return int(np.argmax(lost <= _LOST_SHARE * num_rounds * probability))


def local_update(options: UpdateOptions, loss: Loss) -> LocalUpdate:
  """The local training that the options ask for."""
  if options.local_training == "sgd":
    return local_sgd(
      loss,
      options.local_learning_rate,
      num_epochs=needed(options.local_epochs),
      batch_size=needed(options.local_batch_size),
    )
  if options.local_training == "proximal":
    return proximal_point(
      loss, options.local_learning_rate, num_iterations=needed(options.proximal_iterations)
    )
  return gradient_step(loss, options.local_learning_rate)


def server_optimizer(options: UpdateOptions) -> optax.GradientTransformation:
  """The server's optimiser that the options ask for."""
  optimizer = _OPTIMIZERS[options.server_optimizer](options.server_learning_rate)

  def update(gradient, state, params):
    # Strict promotion refuses Optax's adam, which raises its decay to the power of an integer.
    with jax.numpy_dtype_promotion("standard"):
      return optimizer.update(gradient, state, params)

  return optax.GradientTransformation(optimizer.init, update)
