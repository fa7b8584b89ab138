"""Federated averaging with user-level privacy: DP-FedAvg, DP-FedSGD, DP-SGD (arXiv 1710.06963).

Compares private training with training without privacy. With `--vary` it compares several values of
any option of the private training, and their combinations. It shows accuracy over rounds, and what
each run guarantees.

As in the paper's study, a small cohort can be given the noise that the average of a larger cohort
would have (`--noise_cohort_size`). This shows with little computation how useful such a model is.
The report states the guarantees of both, apart.
"""

import dataclasses
import re
from collections.abc import Mapping
from functools import partial

import jax
from absl import flags

from experiments.dp_fedavg import variations
from experiments.dp_fedavg.averages import (
  OF_BASELINES,
  Federation,
  client_weight,
  make_average,
  make_federation,
  taken_as_public,
)
from experiments.dp_fedavg.options import CLIPPINGS, RUNS, AverageOptions, DPFedAvgOptions
from experiments.dp_fedavg.report import Variant, report_averaging
from experiments.dp_fedavg.selection import paid, run_selection
from experiments.runner.cohorts import layout_of
from experiments.runner.federation import central_delta, local_update, make_plan, server_optimizer
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.options import read_flags, resolve
from experiments.runner.problems.catalogue import load_problem
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.problems.prior import check_prior, load_start
from experiments.runner.problems.text_options import TEXT
from experiments.runner.runs.layouts import Make
from experiments.runner.runs.sweep import Setting, train_on
from jdp import data, sampling
from jdp.data.packed import PackedUsers
from jdp.federated import example_gradient, federated_averaging
from jdp.federated.estimators import fixed_denominator, flat_clipping, true_average
from jdp.guarantees import Relation, Unit
from jdp.queries import SumQuery
from jdp.queries.base import PyTree

_UNITS = {"private": Unit.USER, "dp_sgd": Unit.EXAMPLE}
_OF_AVERAGES = tuple(
  field.name for field in dataclasses.fields(AverageOptions) if field.name != "delta"
)
_CONCERNED = {
  "none": OF_BASELINES,
  "private": _OF_AVERAGES,
  "dp_sgd": ("noise_multiplier", "target_epsilon", "server_optimizer"),
}


def prepare(options: DPFedAvgOptions) -> Work:
  """Reads the data, makes the algorithms and returns the work."""
  # A window of words is not a unit of privacy, unless users are declared to be windows themselves.
  if "dp_sgd" in options.runs and options.dataset in TEXT and options.pseudo_users is None:
    raise ValueError(
      f"Expected --runs of none and private with --dataset={options.dataset}, got dp_sgd: its unit "
      "of privacy would be a window of words, cut across what a user said; leave it out, or "
      "declare pieces of text to be users by --pseudo_users."
    )
  problem = load_problem(options)
  if options.warm_start is not None:
    problem = _start_warm(options, options.warm_start, problem)
  elif options.warm_start_public:
    raise ValueError("Expected --warm_start_public with --warm_start, got it alone; leave it out.")
  for unit in (_UNITS[run] for run in options.runs if run in _UNITS):
    delta = central_delta(options, problem.num_records(unit))
    check_prior(problem.prior, unit, delta, options)
  if options.select is not None:
    return _selection(options, problem)
  rows = make_rows(options, problem)
  settings, delta = [row.setting for row in rows], central_delta(options, problem.num_users)

  def clients(begun: LearningProblem) -> dict[Unit, PyTree]:
    users = {Unit.USER: begun.clients}
    if "dp_sgd" not in options.runs:
      return users
    return {**users, Unit.EXAMPLE: as_examples(begun.clients)}

  report = partial(report_averaging, rows)
  return train_on(problem, settings, options.cohort_size, delta, options, report, clients=clients)


def _selection(options: DPFedAvgOptions, problem: LearningProblem) -> Work:
  """The work of a choice among the private settings."""
  problem.require_memory("--select")
  own = dataclasses.replace(options, runs=("private",))
  rows = make_rows(paid(own, problem), problem)
  if any(row.options.clipping == "adaptive" for row in rows):
    raise ValueError(
      f"Expected --clipping of {' or '.join(CLIPPINGS)} with --select, got adaptive: its events "
      "follow the data, and each run would have others."
    )
  grid = [row.setting for row in rows]
  alone = []
  if options.select_beside:
    single = make_rows(dataclasses.replace(own, vary=()), problem)
    alone = [row.setting for row in single + make_rows(own, problem)]
  return lambda workdir: run_selection(workdir, options, problem.completed(workdir), grid, alone)


def _start_warm(options: DPFedAvgOptions, path: str, problem: LearningProblem) -> LearningProblem:
  """The problem, starting from an earlier run's parameters and counting their cost."""
  if problem.prior.entries:
    raise ValueError(
      "Expected --vocabulary=public with --warm_start, whose words are given, got private."
    )
  if options.public_passes:
    raise ValueError(
      f"Expected --public_passes=0 with --warm_start, got {options.public_passes}; leave one out."
    )
  shapes = jax.eval_shape(problem.init, jax.random.key(0))
  start, spent = load_start(path, shapes, options, public=options.warm_start_public)
  return problem._replace(init=lambda key: start, prior=spent, complete=None)


def make_rows(options: DPFedAvgOptions, problem: LearningProblem) -> list[Variant]:
  """The runs; a run appears once for every value that concerns it.

  Raises:
    ValueError: if the values do not fit what varies.
  """
  made = {"none": _baseline, "private": _private, "dp_sgd": _dp_sgd}
  axes = [variations.parse(text, _OF_AVERAGES) for text in options.vary]
  rows = []
  for run in options.runs:
    # A run that the varied options do not concern appears once: its rows would be equal.
    own = [axis for axis in axes if set(_CONCERNED[run]).intersection(axis.names)]
    for row in variations.combinations(own):
      chosen = _varied(options, row) if row else options
      name = re.sub(r"[^\w.-]+", "_", "_".join([run, *row.values()]))
      label = ", ".join(filter(None, [RUNS[run], variations.described(row)]))
      make, federation = made[run](chosen, problem)
      delta = federation.actual.delta if federation else None
      public = ""
      if federation is not None:
        of_users = run == "private"
        public = taken_as_public(chosen, problem) if of_users else problem.public(Unit.EXAMPLE)
      part, private = _UNITS.get(run, Unit.USER), federation is not None
      algorithm = make(**layout_of(chosen))
      setting = Setting(name, label, algorithm, private, delta, public, part, make)
      rows.append(Variant(setting, chosen, federation))
  return rows


def as_examples(clients: data.Examples | PackedUsers) -> data.Examples:
  """All users' examples in a row, without padding."""
  if isinstance(clients, PackedUsers):
    rows = clients.examples
  else:
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), clients)
  return jax.tree.map(lambda x: x[rows.mask > 0], rows)


def _varied(options: DPFedAvgOptions, row: Mapping[str, str]) -> DPFedAvgOptions:
  """The options with a row's values in place of their own."""
  # None stands for a choice not made; the varied options may make another one.
  base = {name: value for name, value in vars(options).items() if value is not None}
  try:
    given = read_flags(DPFedAvgOptions, [f"--{name}={value}" for name, value in row.items()])
  except flags.Error as error:
    raise ValueError(
      f"Expected --vary of values that --{', --'.join(row)} can take, got "
      f"{', '.join(row.values())}: {error}"
    ) from error
  return resolve(DPFedAvgOptions, given, base)


def _baseline(options: DPFedAvgOptions, problem: LearningProblem) -> tuple[Make, None]:
  """Training without privacy: the true average of cohorts of a fixed size, by the same code."""
  if not options.cohort_size <= problem.num_users:
    raise ValueError(
      f"Expected --cohort_size of at most {problem.num_users} users, got {options.cohort_size}."
    )
  sampler = sampling.fixed_size(problem.num_users, options.cohort_size)
  return _averaging(options, problem, true_average(), sampler, relation=Relation.REPLACE_ONE), None


def _private(options: DPFedAvgOptions, problem: LearningProblem) -> tuple[Make, Federation]:
  federation = make_federation(options, problem.num_users, problem.sizes, problem.prior)
  shapes = jax.eval_shape(problem.init, jax.random.key(0))
  average = make_average(
    options, shapes, federation.actual.noise_multiplier, federation.expected_weight
  )
  return _averaging(options, problem, average, federation.actual.sampler), federation


def _averaging(
  options: DPFedAvgOptions,
  problem: LearningProblem,
  average: SumQuery,
  sampler: sampling.Sampler,
  relation: Relation = Relation.ADD_REMOVE,
) -> Make:
  return partial(
    federated_averaging,
    local_update(options, problem.loss),
    average,
    sampler,
    server_optimizer(options),
    weight=client_weight(options),
    project=options.projection == "batch",
    diagnose=options.diagnostics,
    relation=relation,
  )


def _dp_sgd(options: DPFedAvgOptions, problem: LearningProblem) -> tuple[Make, Federation]:
  """DP-SGD by the same code: every example is a user of its own."""
  num_examples = problem.num_records(Unit.EXAMPLE)
  plan = make_plan(
    dataclasses.replace(options, cohort_size=options.sgd_batch_size), num_examples, problem.prior
  )
  size = plan.sampler.expected_size
  average = fixed_denominator(flat_clipping(options.sgd_clip_norm), plan.noise_multiplier, size)
  make = partial(
    federated_averaging,
    example_gradient(problem.loss),
    average,
    plan.sampler,
    server_optimizer(dataclasses.replace(options, server_learning_rate=options.sgd_learning_rate)),
    unit=Unit.EXAMPLE,
    diagnose=options.diagnostics,
  )
  # The plan is its own: DP-SGD has no larger cohort whose noise it borrows.
  return make, Federation(plan, plan, num_examples, size, problem.prior)


EXPERIMENT = Experiment("dp_fedavg", DPFedAvgOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
