"""How far a round's average is from that of all users, and how long the round takes.

Only a simulation can know either: they are diagnostics, and no results of a private run.
"""

import time
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from experiments.cohort_size.options import CohortSizeOptions
from experiments.runner.federation import Plan, local_update
from experiments.runner.files import Row
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.runs.sweep import Setting
from experiments.runner.runs.training import TrainingOptions
from jdp import random, sampling
from jdp.federated import FederatedAlgorithm, private_federated
from jdp.mechanisms import LocalMechanism
from jdp.queries import SumQuery, average, gaussian_sum, no_privacy


class Variant(NamedTuple):
  """A run, and what its cohort's average is made of.

  Attributes:
    setting: what is run.
    run: who adds noise.
    size: the expected number of users in a round.
    plan: its sampler and noise.
    query: makes its average private.
    mechanism: what clients release through, or None.
    noise: root mean square L2 norm of the noise on its average, for updates of the norm
      --max_update_norm.
  """

  setting: Setting
  run: str
  size: int
  plan: Plan
  query: SumQuery
  mechanism: LocalMechanism | None
  noise: float


def all_users_average(
  options: CohortSizeOptions, problem: LearningProblem, clipped: bool
) -> np.ndarray:
  """The average of all users' updates from the first model, clipped or as they are, [d]."""
  number = problem.num_users
  algorithm = _plain_steps(
    options,
    problem,
    average(gaussian_sum(options.max_update_norm, 0.0) if clipped else no_privacy(), number),
    sampling.poisson(number, 1.0, capacity=number),
  )
  return _round(algorithm, options, problem, 0)[0]


def round_error(
  options: CohortSizeOptions, problem: LearningProblem, variant: Variant, truth: np.ndarray
) -> Row:
  """Measures some rounds from the first model, each with its own cohort and noise.

  Args:
    options: of the experiment.
    problem: what is learnt.
    variant: whose average it is.
    truth: the average of all users' updates, [d], clipped where the variant's are.

  Returns:
    "measured" (the root mean square L2 distance of a round's average to that of all users), "noise"
    (the part of the noise in it, local and central together, by theory), and "seconds" (the median
    processor time of a round).
  """
  algorithm = _plain_steps(options, problem, variant.query, variant.plan.sampler, variant.mechanism)
  _round(algorithm, options, problem, 0)  # compiles
  rounds = [_round(algorithm, options, problem, n + 1) for n in range(options.measured_rounds)]
  distances = [float(np.linalg.norm(released - truth)) for released, _ in rounds]
  return {
    "measured": float(np.sqrt(np.mean(np.square(distances)))),
    "noise": variant.noise,
    "seconds": float(np.median([seconds for _, seconds in rounds])),
  }


def _plain_steps(
  options: CohortSizeOptions,
  problem: LearningProblem,
  query: SumQuery,
  sampler: sampling.Sampler,
  mechanism: LocalMechanism | None = None,
) -> FederatedAlgorithm:
  """Rounds whose step is the average itself."""
  algorithm = private_federated(
    local_update(options, problem.loss),
    query,
    sampler,
    optax.sgd(1.0),
    mechanism=mechanism,
    chunk_size=options.chunk_size,
  )
  return algorithm._replace(round=jax.jit(algorithm.round))


def _round(
  algorithm: FederatedAlgorithm, options: TrainingOptions, problem: LearningProblem, number: int
) -> tuple[np.ndarray, float]:
  """A round's average, float64 [d], and the processor time it took."""
  params = problem.init(jax.random.key(options.init_seed))
  keys = random.seeded_key(number), jax.random.key(options.data_seed)
  begun = time.process_time()
  state, *_ = algorithm.round(*keys, algorithm.init(params), problem.clients)
  after, _ = ravel_pytree(jax.block_until_ready(state.params))
  seconds = time.process_time() - begun
  before, _ = ravel_pytree(params)
  return np.asarray(after, np.float64) - np.asarray(before, np.float64), seconds
