"""Private federated learning: local and central privacy together (arXiv 1812.00984, 3.1 and 5).

Compares models trained without privacy, with central privacy alone, and with both at several local
epsilons. The models are image classifiers or language models. The report states what each user is
promised against the server, and against an observer of the models, beside the accuracy.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import jax

from experiments.private_federated.limits import MAGNITUDES, in_the_clear, local_names, unclipped
from experiments.private_federated.options import DIRECTIONS, PrivateFederatedOptions
from experiments.private_federated.report import NoisySetting, report_local_and_central
from experiments.runner.cohorts import layout_of
from experiments.runner.federation import Plan, local_update, make_plan, server_optimizer
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.problems.catalogue import load_problem
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.runs.layouts import Make
from experiments.runner.runs.sweep import Setting, train_on
from jdp.federated import private_federated
from jdp.guarantees import Unit
from jdp.mechanisms import LocalMechanism, compressed_priv_unit, separated
from jdp.queries import SumQuery, average, gaussian_sum, no_privacy

_SHARING = 256  # clients of a chunk, for which the table of candidates is made once


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
  settings, report = [row.setting for row in rows], partial(report_local_and_central, plan, rows)
  return train_on(problem, settings, plan.sampler.expected_size, plan.delta, options, report)


def make_rows(
  options: PrivateFederatedOptions, problem: LearningProblem, plan: Plan
) -> list[NoisySetting]:
  """The rows of the table: the baselines, then one for each eps1."""
  make = partial(_setting, options, problem, plan)
  bound, stddev = options.max_update_norm, plan.noise_multiplier * options.max_update_norm
  error = stddev * math.sqrt(problem.dim) / plan.sampler.expected_size
  baselines: dict[str, tuple[str, Callable[[], SumQuery], float]] = {
    "none": ("no privacy", no_privacy, 0.0),
    "clipped": ("clipping only", partial(gaussian_sum, bound, 0.0), 0.0),
    "central": ("central only", partial(gaussian_sum, bound, stddev), error),
  }
  rows = []
  for name in options.baselines:
    label, query, central_error = baselines[name]
    setting = make(name, label, query(), None, private=name == "central")
    rows.append(NoisySetting(setting, 0.0, central_error))
  for epsilon in options.epsilon_directions:
    rows += _local_rows(options, problem, plan, make, epsilon)
  return rows


def _local_rows(
  options: PrivateFederatedOptions,
  problem: LearningProblem,
  plan: Plan,
  make: Callable[..., Setting],
  epsilon: float,
) -> Iterator[NoisySetting]:
  """The run at an eps1, and those that lack a part of what limits it."""
  bound, size = options.max_update_norm, plan.sampler.expected_size
  direction, longest = _direction(options, problem.dim, epsilon)
  magnitude = MAGNITUDES[options.magnitude_mechanism](options.epsilon_magnitude, bound)
  mechanism = separated(direction, magnitude)
  # A projection to the longest release changes none, so the average stays unbiased.
  largest = mechanism.max_norm * longest(problem.dim)
  radius = options.projection_radius or largest
  stddev = plan.noise_multiplier * radius
  query = gaussian_sum(radius, stddev)
  error = math.sqrt(mechanism.mean_squared_error(bound) / size)
  central = stddev * math.sqrt(problem.dim) / size
  yield NoisySetting(make(*local_names(epsilon), query, mechanism), error, central)
  lacking: dict[str, tuple[SumQuery, LocalMechanism, float, float]] = {
    "local_mechanism": (query, in_the_clear(mechanism, bound), 0.0, central),
    "central_noise": (gaussian_sum(radius, 0.0), mechanism, error, 0.0),
    "projection": (gaussian_sum(max(largest, radius), stddev), mechanism, error, central),
    "clipping": (query, unclipped(mechanism, direction), math.nan, central),
  }
  for part in options.switched_off:
    own_query, own_mechanism, *errors = lacking[part]
    names, private = local_names(epsilon, part), part != "central_noise"
    yield NoisySetting(make(*names, own_query, own_mechanism, private=private), *errors)


def _direction(
  options: PrivateFederatedOptions, dim: int, epsilon: float
) -> tuple[LocalMechanism, Callable[[int], float]]:
  """The mechanism of directions, and its bound of `DIRECTIONS`."""
  make, longest = DIRECTIONS[options.direction_mechanism]
  if options.uplink == "compressed":
    if options.direction_mechanism != "priv_unit":
      raise ValueError(
        "Expected --direction_mechanism=priv_unit with --uplink=compressed, got "
        f"{options.direction_mechanism}; leave --uplink out."
      )
    make = partial(compressed_priv_unit, table_key=jax.random.key(0))  # any public key
  return make(dim, epsilon), longest


def _setting(
  options: PrivateFederatedOptions,
  problem: LearningProblem,
  plan: Plan,
  name: str,
  label: str,
  query: SumQuery,
  mechanism: LocalMechanism | None,
  *,
  private: bool = True,
) -> Setting:
  make: Make = partial(
    private_federated,
    local_update(options, problem.loss),
    average(query, plan.sampler.expected_size),
    plan.sampler,
    server_optimizer(options),
    mechanism=mechanism,
    diagnose=options.diagnostics,
  )
  public = problem.public(Unit.USER) if name != "none" else ""
  layout = layout_of(options)
  if options.uplink == "compressed" and layout["chunk_size"] is None:
    layout["chunk_size"] = _SHARING
  return Setting(name, label, make(**layout), private=private, public=public, make=make)


EXPERIMENT = Experiment("private_federated", PrivateFederatedOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
