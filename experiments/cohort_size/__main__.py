"""The size of a cohort: what thousands of clients a round are good for.

Federated averaging with cohorts of several sizes out of the same users, without privacy, with
central noise, and with local and central noise. At every size the central noise is calibrated for
the same epsilon. The report shows the accuracy, the error of a round's average and the time of a
round.
"""

import math
from functools import partial

from experiments.cohort_size.options import LABELS, CohortSizeOptions
from experiments.cohort_size.report import report_sizes
from experiments.cohort_size.round_errors import Variant
from experiments.runner.cohorts import layout_of
from experiments.runner.federation import local_update, plan_of_cohorts, server_optimizer
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.problems.catalogue import load_problem
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.runs.layouts import Make
from experiments.runner.runs.sweep import Setting, train_on
from jdp.federated import private_federated
from jdp.guarantees import Unit
from jdp.mechanisms import priv_unit, scalar_dp, separated
from jdp.queries import average, gaussian_sum, no_privacy


def prepare(options: CohortSizeOptions) -> Work:
  """Reads the data, makes the algorithms and returns the work."""
  problem = load_problem(options)
  problem.require_memory("cohort_size")
  # Who counts a private vocabulary is trusted, which the server of local privacy is not.
  if problem.prior.entries:
    raise ValueError(
      "Expected --vocabulary=public, got private: the counts would be no part of this comparison."
    )
  variants = [
    _variant(run, size, options, problem) for size in options.cohort_sizes for run in options.runs
  ]

  delta, largest = variants[0].plan.delta, max(options.cohort_sizes)
  settings, report = [variant.setting for variant in variants], partial(report_sizes, variants)
  return train_on(problem, settings, largest, delta, options, report)


def _variant(run: str, size: int, options: CohortSizeOptions, problem: LearningProblem) -> Variant:
  plan = plan_of_cohorts(options, problem.num_users, size)
  radius, mechanism, local_error = options.max_update_norm, None, 0.0
  if run == "local":
    mechanism = separated(
      priv_unit(problem.dim, options.epsilon_direction),
      scalar_dp(options.epsilon_magnitude, options.max_update_norm),
    )
    radius = mechanism.max_norm  # The server's projection changes no release.
    local_error = mechanism.mean_squared_error(options.max_update_norm) / size
  private = run in ("central", "local")
  stddev = plan.noise_multiplier * radius if private else 0.0
  sum_query = no_privacy() if run == "none" else gaussian_sum(radius, stddev)
  query = average(sum_query, plan.sampler.expected_size)
  make: Make = partial(
    private_federated,
    local_update(options, problem.loss),
    query,
    plan.sampler,
    server_optimizer(options),
    mechanism=mechanism,
    diagnose=options.diagnostics,
  )
  setting = Setting(
    f"{run}_{size}",
    f"{LABELS[run]}, {size:,}",
    make(**layout_of(options)),
    private=private,
    public=problem.public(Unit.USER),
    make=make,
  )
  noise = math.hypot(math.sqrt(local_error), stddev * math.sqrt(problem.dim) / size)
  return Variant(setting, run, size, plan, query, mechanism, noise)


EXPERIMENT = Experiment("cohort_size", CohortSizeOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
