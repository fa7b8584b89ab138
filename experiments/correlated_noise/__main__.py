"""Correlated noise in federated averaging: strategies compared at equal epsilon.

Noise that is correlated over the rounds cancels in the sums that a model is made of. How much less
of it a strategy leaves, at the same guarantee of the whole run, depends on how often a user takes
part and how far apart. Two samplers see to that:

* Groups take turns, each whole: a user takes part once in so many rounds (arXiv 2408.08868).
* Groups take turns, and each member of a group takes part by its own secret coin. There are as many
  groups as the strategy has bands. Sampling amplifies the guarantee then (arXiv 2306.08153).
"""

from functools import partial

import numpy as np

from experiments.correlated_noise.options import NONE, CorrelatedNoiseOptions
from experiments.correlated_noise.report import report_strategies
from experiments.correlated_noise.strategies import Variant, make_sampler, make_strategy
from experiments.runner.cohorts import layout_of, planned_layout
from experiments.runner.federation import central_delta, local_update, server_optimizer
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.problems.catalogue import load_problem
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.problems.prior import check_prior
from experiments.runner.runs.layouts import Make
from experiments.runner.runs.sweep import Setting, train_on
from jdp import sampling
from jdp.federated import FederatedAlgorithm, dp_fedavg, federated_averaging
from jdp.federated.estimators import true_average
from jdp.guarantees import Relation, Unit
from jdp.matrix_factorization import Strategy


def prepare(options: CorrelatedNoiseOptions) -> Work:
  """Reads the data, makes the algorithms and returns the work."""
  problem = load_problem(options)
  delta = central_delta(options, problem.num_users)
  check_prior(problem.prior, Unit.USER, delta, options)
  if options.cohort_size > problem.num_users:
    raise ValueError(
      f"Expected --cohort_size of at most {problem.num_users} users, got {options.cohort_size}."
    )
  rows = [_row(run, options, problem) for run in options.runs]

  settings, report = [row.setting for row in rows], partial(report_strategies, rows)
  return train_on(problem, settings, options.cohort_size, delta, options, report)


def _row(run: str, options: CorrelatedNoiseOptions, problem: LearningProblem) -> Variant:
  if run == NONE:
    sampler = sampling.fixed_size(problem.num_users, options.cohort_size)
    make: Make = partial(
      federated_averaging,
      local_update(options, problem.loss),
      true_average(),
      sampler,
      server_optimizer(options),
      relation=Relation.REPLACE_ONE,
      diagnose=options.diagnostics,
    )
    algorithm = make(**layout_of(options))
    return Variant(Setting(run, "no privacy", algorithm, private=False, make=make), None)
  strategy = make_strategy(run, options, problem.num_users)
  sampler = make_sampler(strategy, options, problem.num_users)
  planned: Make = partial(_planned, strategy, sampler, options, problem)
  algorithm = planned(**layout_of(options))
  label, public = run.replace("_", " "), problem.public(Unit.USER)
  return Variant(Setting(run, label, algorithm, public=public, make=planned), strategy)


def _planned(
  strategy: Strategy,
  sampler: sampling.Sampler,
  options: CorrelatedNoiseOptions,
  problem: LearningProblem,
  *,
  chunk_size: int | None,
  ghost_norms: bool | None,
) -> FederatedAlgorithm:
  """DP-FedAvg with the strategy, whose noise meets the target after the last round."""
  return dp_fedavg(
    problem.loss,
    np.zeros(problem.num_users),  # of the clients, only how many there are is read
    cohort_size=options.cohort_size,
    clip_norm=options.clip_norm,
    num_rounds=options.num_rounds,
    noise_multiplier=options.noise_multiplier,
    target_epsilon=options.target_epsilon,
    delta=central_delta(options, problem.num_users),
    accountant=options.accountant,
    local_update=partial(local_update, options),
    server_optimizer=server_optimizer(options),
    sampler=sampler,
    strategy=strategy,
    relation=Relation.ZERO_OUT,
    prior=problem.prior,
    layout=planned_layout(chunk_size, ghost_norms=ghost_norms),
  )


EXPERIMENT = Experiment("correlated_noise", CorrelatedNoiseOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
