"""Audits mechanisms, and training with canaries: proven lower bounds beside stated epsilons.

There are five tasks:

* `--task=local` tells reports of two inputs apart, for every registered local mechanism
  (`jdp.conformance`). Its lower bounds on epsilon hold together with one confidence.
* `--task=broken` does the same for mechanisms that cost more than they state. The audit must refute
  them.
* `--task=runs` tells whole runs with correlated noise apart with and without a user, in the rounds
  that tell most. A strategy that takes rows for columns must be refuted.
* `--task=procedures` tells whole runs of every training procedure apart, and plants canaries in one
  run of each. An observer sees all models, or the last one. Draw and Discard has its three
  adversaries.
* `--task=central` plants canaries among the users of private federated learning. Each run gives
  two lower bounds (arXiv 2305.08846 and 2410.22235) and the one-shot estimates (arXiv 2302.03098).
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from experiments.audit import correlated_runs, procedure_report
from experiments.audit import report as audit_report
from experiments.audit.attainable import attainable
from experiments.audit.broken_mechanisms import BROKEN, GAUSSIAN_DELTA
from experiments.audit.options import AuditOptions
from experiments.audit.procedure_audits import Row, audit_broken_procedures, audit_procedures
from experiments.audit.report import Central, Local
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.problems.images import classification, grouped
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports.parts import Part, write_report
from experiments.runner.runs.workdir import Workdir
from jdp import accounting, conformance, federated
from jdp.audits.canaries import canary_directions, cosines, one_shot_estimate, plant, planted_update
from jdp.audits.one_run import OneRunAudit, audit_one_run
from jdp.audits.one_run_f_dp import f_dp_bound, gaussian_curve, ledger_curve
from jdp.conformance.auditing import audit_all
from jdp.federated import gradient_step, private_federated
from jdp.guarantees import rounded_down
from jdp.ledger import Ledger, subsampled_gaussian
from jdp.mechanisms.registry import Setting
from jdp.queries import average, gaussian_sum
from jdp.queries.base import PyTree
from jdp.sampling import poisson

_RARE_LOSSES = ("l2_laplace",)
_CLIP_NORM = 1.0
_LEARNING_RATE = 0.1
_PRECISION = 0.01  # relative, of the noise that guesses refute


class Run(NamedTuple):
  """A run as its observers see it.

  Attributes:
    models: the parameters before and after every round, float32 [rounds + 1, dim].
    expected: the expected movement in each round due to the users alone, without noise [rounds,
      dim].
    ledger: what the run cost.
  """

  models: np.ndarray
  expected: np.ndarray
  ledger: Ledger


def prepare(options: AuditOptions) -> Work:
  """Checks the sample sizes, reads the data and returns the work."""
  # An event of probability e^-epsilon is then expected 200 times.
  least = 2 * math.ceil(100 * math.exp(max(options.epsilons)))
  if {"local", "broken"} & set(options.task) and not options.num_samples >= least:
    raise ValueError(
      f"Expected --num_samples of at least {least}, 200 e^epsilon, got {options.num_samples}."
    )
  problem = None
  if "central" in options.task:
    problem = classification(options, options.data_seed, arrange=grouped)
  if problem and not options.num_guesses <= options.num_canaries <= problem.dim:
    raise ValueError(
      f"Expected --num_guesses <= --num_canaries <= {problem.dim}, the model's parameters, got "
      f"{options.num_guesses} and {options.num_canaries}."
    )

  def parts(workdir: Workdir) -> Iterator[Part]:
    if "local" in options.task:
      rows = audit_local(options)
      audit_report.save_local(workdir.path / audit_report.LOCAL_RESULTS, rows)
      yield audit_report.local_part(options, rows)
    if "broken" in options.task:
      yield audit_report.broken_part(options, audit_broken(options))
    if "runs" in options.task:
      yield audit_report.runs_part(options, *audit_correlated_runs(options))
    if "procedures" in options.task:
      sound, broken = (
        [_told(row) for row in audited(options)]
        for audited in (audit_procedures, audit_broken_procedures)
      )
      procedure_report.save(workdir.path / procedure_report.RESULTS, sound, broken)
      yield procedure_report.procedures_part(options, sound, broken)
    if problem:
      yield audit_report.central_part(options, problem, audit_runs(options, problem))

  return lambda workdir: write_report(workdir, "audit", "Audits", parts(workdir))


def _told(row: Row) -> Row:
  print(f"{row.name}: at least {rounded_down(row.proved, 4)}", flush=True)
  return row


def audit_local(options: AuditOptions) -> list[Local]:
  """Audits all mechanisms at all epsilons on worst-case inputs; the rows share one confidence.

  Mechanisms whose largest losses are rare in many dimensions are audited in one dimension too.
  """
  cases = {
    (name if dim == options.dim else f"{name}, one dimension", epsilon): (
      name,
      Setting(dim, epsilon, num_projections=max(1, dim // 2), delta=GAUSSIAN_DELTA),
    )
    for epsilon in sorted(options.epsilons)
    for name in options.mechanisms
    for dim in ((options.dim, 1) if name in _RARE_LOSSES else (options.dim,))
  }
  rows = _audited(
    options, {row: conformance.registered_subject(*case) for row, case in cases.items()}
  )
  return [
    row._replace(attainable=attainable(*case, row.audit.trials, row.audit.confidence))
    for row, case in zip(rows, cases.values(), strict=True)
  ]


def audit_broken(options: AuditOptions) -> list[Local]:
  """Audits the broken mechanisms at the largest epsilon."""
  epsilon = max(options.epsilons)
  made = {name: (own.make(epsilon, options.dim), own.radius) for name, own in BROKEN.items()}
  subjects = {
    name: conformance.mechanism_subject(own, radius=radius) for name, (own, radius) in made.items()
  }
  return _audited(options, {(name, epsilon): subject for name, subject in subjects.items()})


def audit_correlated_runs(options: AuditOptions) -> tuple[list[Local], list[Local]]:
  """Audits whole runs of each strategy, sound and broken; the rows share one confidence."""
  made = {**correlated_runs.SOUND, **correlated_runs.BROKEN}
  found = audit_all(
    {name: correlated_runs.subject(make()) for name, make in made.items()},
    jax.random.key(options.seed),
    num_samples=options.num_runs,
    confidence=options.confidence,
    report=lambda name, own: print(f"{name}: {own}", flush=True),
  )
  rows = [Local(name, own) for name, own in found.items()]
  return rows[: len(correlated_runs.SOUND)], rows[len(correlated_runs.SOUND) :]


def _audited(
  options: AuditOptions, subjects: dict[tuple[str, float], conformance.Subject]
) -> list[Local]:
  found = audit_all(
    subjects,
    jax.random.key(options.seed),
    num_samples=options.num_samples,
    confidence=options.confidence,
    report=lambda case, own: print(f"{case[0]}: {own}", flush=True),
  )
  return [Local(name, own) for (name, _), own in found.items()]


def audit_runs(options: AuditOptions, problem: LearningProblem) -> list[Central]:
  """Audits one run for each noise and participation; bounds of one kind share one confidence."""
  cases = list(itertools.product(options.participations, options.noise_multipliers))
  # Union bound: each run may fail with an equal part of the total failure probability.
  share = (1 - options.central_confidence) / len(cases)
  return [audit_run(options, problem, z, q, 1 - share) for q, z in cases]


def audit_run(
  options: AuditOptions,
  problem: LearningProblem,
  noise_multiplier: float,
  participation: float,
  confidence: float,
) -> Central:
  """Audits one run of private federated learning with canaries among its users.

  Every canary has the clip norm.
  """
  keys = jax.random.split(jax.random.key(options.seed), 5)
  directions = canary_directions(keys[0], options.num_canaries, problem.dim)
  included = np.asarray(jax.random.bernoulli(keys[1], shape=(options.num_canaries,)))
  run = train(options, problem, directions, included, (noise_multiplier, participation), keys[2:])
  # Three scores for each canary, one for each observer of the run.
  steps = np.diff(run.models, axis=0)
  final = cosines(directions, run.models[-1] - run.models[0])
  observed = np.max([cosines(directions, step) for step in steps], axis=0)
  informed = cosines(directions, np.sum(steps - run.expected, axis=0))
  estimates = (
    one_shot_estimate(scores[included], delta=options.delta, absent=scores[~included])
    for scores in (final, observed, informed)
  )
  audit = audit_one_run(
    informed, included, num_guesses=options.num_guesses, confidence=confidence, delta=options.delta
  )
  by_curve = epsilon_by_curve(options, participation, audit, confidence)
  proved = " and ".join(rounded_down(bound, 4) for bound in (audit.epsilon, by_curve))
  print(f"z = {noise_multiplier}, q = {participation}: at least {proved}", flush=True)
  stated = accounting.epsilon(run.ledger, options.delta)
  return Central(noise_multiplier, participation, stated, audit, by_curve, *estimates)


def epsilon_by_curve(
  options: AuditOptions, participation: float, audit: OneRunAudit, confidence: float
) -> float:
  """A lower bound on epsilon from the guesses of `audit`, against whole trade-off curves.

  They refute all runs of these rounds and this participation with more noise than some 1 / s. The
  bound is the least epsilon of a run with the noise multiplier 1 / s.
  """

  def run(strength: float) -> Ledger:
    return subsampled_gaussian(participation, 1 / strength, options.num_rounds)

  strength = f_dp_bound(
    audit.num_canaries,
    audit.num_guesses,
    audit.num_correct,
    lambda strength: ledger_curve(run(strength)) if strength else gaussian_curve(0.0),
    confidence=confidence,
    precision=_PRECISION,
  )
  return accounting.epsilon_interval(run(strength), options.delta)[0] if strength else 0.0


def train(
  options: AuditOptions,
  problem: LearningProblem,
  directions: jax.Array,
  included: np.ndarray,
  setting: tuple[float, float],
  keys: jax.Array,
) -> Run:
  """Trains with the canaries that are included.

  Args:
    options: of the experiment.
    problem: what is learnt, and by whom.
    directions: [canaries, dim], the canaries' unit vectors.
    included: bool [canaries], which canaries take part.
    setting: (noise multiplier, participation).
    keys: the keys of the model, the noise and the data, in this order.
  """
  noise_multiplier, participation = setting
  num_clients = problem.num_users + options.num_canaries
  sampler = poisson(num_clients, participation, capacity=num_clients)
  update, optimizer = gradient_step(problem.loss, _LEARNING_RATE), optax.sgd(1.0)
  query = average(gaussian_sum(_CLIP_NORM, noise_multiplier * _CLIP_NORM), sampler.expected_size)
  algorithm = private_federated(
    planted_update(update, directions, _CLIP_NORM), query, sampler, optimizer
  )
  # The expected movement averages over who takes part: the sum of all users, over the number of all
  # clients, canaries among them.
  alone = private_federated(
    update,
    average(gaussian_sum(_CLIP_NORM, 0.0), num_clients),
    poisson(problem.num_users, 1.0),
    optimizer,
  )
  model_key, noise_key, data_key = keys
  clients, params = plant(problem.clients, included), problem.init(model_key)
  trained: list[PyTree] = []  # The parameters before and after every round.
  result = federated.train(
    algorithm,
    params,
    clients,
    num_rounds=options.num_rounds,
    noise_key=noise_key,
    data_key=data_key,
    evaluate_every=1,
    callbacks=[lambda progress: trained.append(progress.params)],
  )
  users_fn, models = jax.jit(alone.round), [ravel_pytree(params)[0] for params in trained]
  # The users' movement from each model on the path that the run with canaries took.
  moved = (
    users_fn(noise_key, data_key, alone.init(params), problem.clients)[0].params
    for params in trained[:-1]
  )
  expected = [
    ravel_pytree(after)[0] - before for after, before in zip(moved, models[:-1], strict=True)
  ]
  return Run(np.asarray(jnp.stack(models)), np.asarray(jnp.stack(expected)), result.ledger)


EXPERIMENT = Experiment("audit", AuditOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
