"""Private federated learning: local and central privacy together (arXiv 1812.00984, 3.1 and 5).

Compares models trained without privacy, with central privacy alone, and with both at several local
epsilons. The models are image classifiers or language models. The report states what each user is
promised against the server, and against an observer of the models, beside the accuracy.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from experiments.private_federated.report import report_local_and_central
from experiments.runner import processes
from experiments.runner.cohorts import ShardOptions, layout_of
from experiments.runner.federation import (
  FederationOptions,
  Plan,
  local_update,
  make_plan,
  server_optimizer,
)
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.options import option
from experiments.runner.problems.catalogue import ProblemOptions, load_problem
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.runs.sweep import Setting, run_sweep, sweep_of
from experiments.runner.runs.training import TrainingOptions
from experiments.runner.runs.workdir import Workdir
from jdp import _validate
from jdp.federated import private_federated
from jdp.guarantees import Unit, rounded_up
from jdp.mechanisms import LocalMechanism, priv_unit, priv_unit_linf, scalar_dp, separated
from jdp.queries import SumQuery, average, gaussian_sum, no_privacy

_epsilon = partial(_validate.in_range, 1e-3, 1e4)
# The mechanism of directions, and a bound: d -> the largest L2 norm of a vector whose own norm (L2
# or L-infinity) is 1.
_DIRECTIONS: dict[str, tuple[Callable[[int, float], LocalMechanism], Callable[[int], float]]] = {
  "priv_unit": (priv_unit, lambda _: 1.0),
  "priv_unit_linf": (priv_unit_linf, math.sqrt),
}


@dataclasses.dataclass(frozen=True)
class PrivateFederatedOptions(TrainingOptions, FederationOptions, ProblemOptions, ShardOptions):
  """The options of this experiment."""

  baselines: tuple[str, ...] = option(
    ("none", "central"),
    "Runs to compare with: no privacy, central privacy alone.",
    choices=("none", "central"),
    may_be_empty=True,
  )
  epsilon_directions: tuple[float, ...] = option(
    (2.0, 8.0, 32.0, 128.0),
    "eps1, local privacy loss of a release's direction; a run for each.",
    check=_epsilon,
    may_be_empty=True,
  )
  direction_mechanism: str = option(
    "priv_unit",
    "How directions are released: in the L2 norm, or in the L-infinity norm, which suits "
    "--server_optimizer=mirror.",
    choices=tuple(_DIRECTIONS),
  )
  epsilon_magnitude: float = option(
    10.0, "eps2, local privacy loss of a release's magnitude.", check=_epsilon
  )
  max_update_norm: float = option(
    1.0,
    "r_max: updates are clipped to this norm, that of --direction_mechanism; with central privacy "
    "alone, by the server, to this L2 norm.",
    check=_validate.positive,
  )
  projection_radius: float | None = option(
    None,
    "L2 norm to which the server projects what it receives. Default: the largest that a release "
    "can have, which keeps the average unbiased.",
    check=_validate.positive,
  )


class NoisySetting(NamedTuple):
  """A row of the table.

  Attributes:
    setting: what is run.
    local_error: root mean squared L2 error that the local mechanism causes in the average of an
      expected cohort. It holds for updates that all have the norm --max_update_norm, and before the
      server's projection.
    central_error: the same error due to the central noise.
  """

  setting: Setting
  local_error: float
  central_error: float


def prepare(options: PrivateFederatedOptions) -> Work:
  """Reads the data, makes the mechanisms and returns the work."""
  if not (options.baselines or options.epsilon_directions):
    raise ValueError("Expected something to run, got no --baselines and no --epsilon_directions.")
  problem = load_problem(options)
  # The count of a private vocabulary trusts the server, which is not trusted here.
  if problem.prior.entries:
    raise ValueError(
      "Expected --vocabulary=public, got private: the server, not trusted here, would see users' "
      "words."
    )
  plan = make_plan(options, problem.num_users)
  rows = make_rows(options, problem, plan)
  settings = [row.setting for row in rows]

  def work(workdir: Workdir):
    begun = problem.completed(workdir)
    size = plan.sampler.expected_size
    sweep = sweep_of(begun, settings, begun.clients, size, plan.delta, options.shard)
    results = run_sweep(sweep, workdir, options)
    processes.by_first(
      lambda: report_local_and_central(workdir, options, begun, plan, rows, results)
    )

  return work


def make_rows(
  options: PrivateFederatedOptions, problem: LearningProblem, plan: Plan
) -> list[NoisySetting]:
  """The rows of the table: the baselines, then one for each eps1."""
  make = partial(_setting, options, problem, plan)
  bound = options.max_update_norm
  baselines = {
    "none": lambda: NoisySetting(make("none", "no privacy", no_privacy(), None), 0.0, 0.0),
    "central": lambda: NoisySetting(
      make("central", "central only", _gaussian(bound, plan), None),
      0.0,
      _central_error(bound, problem, plan),
    ),
  }
  return [baselines[name]() for name in options.baselines] + [
    _local_row(options, problem, plan, make, epsilon) for epsilon in options.epsilon_directions
  ]


def _local_row(
  options: PrivateFederatedOptions,
  problem: LearningProblem,
  plan: Plan,
  make: Callable[..., Setting],
  epsilon: float,
) -> NoisySetting:
  magnitude = scalar_dp(options.epsilon_magnitude, options.max_update_norm)
  make_direction, longest = _DIRECTIONS[options.direction_mechanism]
  mechanism = separated(make_direction(problem.dim, epsilon), magnitude)
  # A projection to the longest release changes none, so the average stays unbiased.
  radius = options.projection_radius or mechanism.max_norm * longest(problem.dim)
  given = rounded_up(epsilon, 12)
  setting = make(f"local_{given}", f"local ε₁ = {given}", _gaussian(radius, plan), mechanism)
  error = math.sqrt(
    mechanism.mean_squared_error(options.max_update_norm) / plan.sampler.expected_size
  )
  return NoisySetting(setting, error, _central_error(radius, problem, plan))


def _gaussian(clip_norm: float, plan: Plan) -> SumQuery:
  return gaussian_sum(clip_norm, plan.noise_multiplier * clip_norm)


def _central_error(clip_norm: float, problem: LearningProblem, plan: Plan) -> float:
  return plan.noise_multiplier * clip_norm * math.sqrt(problem.dim) / plan.sampler.expected_size


def _setting(
  options: PrivateFederatedOptions,
  problem: LearningProblem,
  plan: Plan,
  name: str,
  label: str,
  query: SumQuery,
  mechanism: LocalMechanism | None,
) -> Setting:
  make = partial(
    private_federated,
    local_update(options, problem.loss),
    average(query, plan.sampler.expected_size),
    plan.sampler,
    server_optimizer(options),
    mechanism=mechanism,
    diagnose=options.diagnostics,
  )
  private = name != "none"
  public = problem.public(Unit.USER) if private else ""
  return Setting(name, label, make(**layout_of(options)), private=private, public=public, make=make)


EXPERIMENT = Experiment("private_federated", PrivateFederatedOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
