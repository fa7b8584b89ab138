"""The averages of DP-FedAvg, with their noise.

The options choose weights, estimator, clipping and schedule, or the noise of a larger cohort.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import optax

from experiments.dp_fedavg.options import CLIPPINGS, AverageOptions, DPFedAvgOptions
from experiments.runner.federation import Plan, make_plan
from experiments.runner.options import needed
from experiments.runner.problems.learning_problem import LearningProblem
from jdp import accounting
from jdp.events import WeightedAverage
from jdp.federated import weight_by_examples
from jdp.federated.estimators import adaptive_average, clipped_denominator, fixed_denominator
from jdp.guarantees import Relation, Unit
from jdp.ledger import Ledger
from jdp.queries import SumQuery
from jdp.queries.base import PyTree

_RELATION = Relation.ADD_REMOVE
OF_BASELINES = (
  "cohort_size",
  "local_training",
  "local_learning_rate",
  "local_epochs",
  "local_batch_size",
  "proximal_iterations",
  "server_optimizer",
  "server_learning_rate",
  "weights",
  "weight_cap",
)
"""The options that training without privacy depends on too."""


class Federation(NamedTuple):
  """Who takes part, with what noise.

  Attributes:
    actual: what is run. Its z is the actual noise over the sensitivity.
    planned: the plan that the noise belongs to: `actual` itself, or the plan of a larger cohort
      among more such users.
    planned_users: number of users of the plan.
    expected_weight: qW of what is run.
    prior: what was released before the first round, about the plan's users as about the run's.
  """

  actual: Plan
  planned: Plan
  planned_users: int
  expected_weight: float
  prior: Ledger


def make_federation(
  options: DPFedAvgOptions, num_users: int, sizes: np.ndarray | None, prior: Ledger = Ledger()
) -> Federation:
  """Chooses sampler, noise and delta.

  Args:
    options: of the experiment.
    num_users: N.
    sizes: n_k as int [users]. `taken_as_public` says what of them is used. None: they are unknown.
    prior: what was released about the users before the first round.

  Raises:
    ValueError: if a cohort is larger than the number of its users, or if only one of the two
      options of a larger cohort's noise is given. Also if a mean weight is to follow from unknown
      sizes.
  """
  mean_weight = _mean_weight(options, sizes)
  size, population = options.noise_cohort_size, options.noise_population
  if (size is None) != (population is None):
    raise ValueError(
      f"Expected --noise_cohort_size and --noise_population together, got {size} and {population}."
    )
  if size is None:
    actual = planned = make_plan(options, num_users, prior)
    planned_users = num_users
  else:
    population = needed(population)
    if not size <= population:
      raise ValueError(f"Expected --noise_cohort_size of at most {population} users, got {size}.")
    planned_users = population
    planned = make_plan(dataclasses.replace(options, cohort_size=size), population, prior)
    # The average of this run gets the same absolute noise; relative to its larger sensitivity, its
    # z is smaller.
    stddev = planned.noise_multiplier * _sensitivity(options, mean_weight * size)
    multiplier = stddev / _sensitivity(options, mean_weight * options.cohort_size)
    actual = make_plan(dataclasses.replace(options, noise_multiplier=multiplier), num_users)
  return Federation(
    actual, planned, planned_users, mean_weight * actual.sampler.expected_size, prior
  )


def taken_as_public(options: AverageOptions, problem: LearningProblem) -> str:
  """What the users' guarantee takes as public although it is computed from their data.

  W is part of it, unless a flag fixes it.

  Args:
    options: weights, estimator and clipping.
    problem: what is learnt and from whom.
  """
  if options.weights == "equal" or options.mean_weight is not None:
    return problem.public(Unit.USER)
  total = problem.num_users * _mean_weight(options, problem.sizes)
  return f"{problem.public(Unit.USER)}, W = {total:.6g}, the users' total weight"


def make_average(
  options: AverageOptions, params: PyTree, noise_multiplier: float, expected_weight: float
) -> SumQuery:
  """The private average.

  Args:
    options: weights, estimator and clipping.
    params: the model's parameters or their shapes.
    noise_multiplier: z of what is run.
    expected_weight: qW of what is run.

  Raises:
    ValueError: if adaptive clipping is asked for with another estimator or with a schedule.
  """
  if options.clipping == "adaptive":
    if options.estimator != "fixed" or options.clip_decay != 1:
      raise ValueError(
        "Expected --estimator=fixed and --clip_decay=1 with --clipping=adaptive, got "
        f"{options.estimator} and {options.clip_decay}."
      )
    return adaptive_average(
      noise_multiplier,
      expected_weight,
      initial_clip_norm=options.clip_norm,
      quantile=needed(options.clip_quantile),
    )
  clipping = CLIPPINGS[options.clipping](options, params, _clip_norm(options))
  if options.estimator == "fixed":
    return fixed_denominator(clipping, noise_multiplier, expected_weight, relation=_RELATION)
  least = needed(options.min_weight) * expected_weight
  return clipped_denominator(clipping, noise_multiplier, least, relation=_RELATION)


def client_weight(options: AverageOptions) -> Callable[[PyTree], jax.Array] | None:
  """The weight of a client, client -> w_k; None if all weigh 1."""
  return None if options.weights == "equal" else weight_by_examples(needed(options.weight_cap))


def _mean_weight(options: AverageOptions, sizes: np.ndarray | None) -> float:
  """W over the number of users."""
  if options.weights == "equal":
    return 1.0
  if options.mean_weight is not None:
    return options.mean_weight
  if sizes is None:
    raise ValueError(
      "Expected --mean_weight with --weights=examples and --dataset=source, got none: nobody "
      "counted the users' examples; fix it beforehand."
    )
  return float(np.mean(np.minimum(sizes / needed(options.weight_cap), 1)))


def _clip_norm(options: AverageOptions) -> float | optax.Schedule:
  if options.clip_decay == 1:
    return options.clip_norm
  return optax.exponential_decay(
    options.clip_norm, options.clip_decay_rounds, options.clip_decay, staircase=True
  )


def _sensitivity(options: AverageOptions, expected_weight: float) -> float:
  """The most that one user moves the average in the first round."""
  if options.estimator == "fixed":
    return options.clip_norm / expected_weight
  least = needed(options.min_weight) * expected_weight
  # With noise 1, the sensitivity is the inverse of the noise multiplier.
  return 1 / accounting.noise_multiplier(WeightedAverage(options.clip_norm, 1.0, least), _RELATION)
