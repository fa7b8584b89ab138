"""What the client-dropout experiment compares: noise schemes and dropout models."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import optax

from experiments.client_dropout.options import LABELS, LOST, ClientDropoutOptions, DropoutOptions
from experiments.runner.cohorts import layout_of
from experiments.runner.options import needed
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports.tables import percent
from experiments.runner.runs.layouts import Make
from experiments.runner.runs.sweep import Setting
from jdp import accounting
from jdp.events import PoissonSampling, Round, SkellamSum
from jdp.federated import LocalUpdate, dropout, local_sgd
from jdp.federated.dropout.distributed_noise import client_dropout
from jdp.federated.dropout.dropout_models import DropoutModel
from jdp.guarantees import Relation, Unit
from jdp.ledger import Ledger
from jdp.numerics import vectors
from jdp.numerics.rotations import randomized_hadamard
from jdp.queries import (
  calibrated,
  central,
  distributed_integers,
  distributed_sum,
  excess,
  uncalibrated,
)
from jdp.queries.base import PyTree
from jdp.queries.distributed.calibrated_integers import IntegerSum
from jdp.queries.distributed.float_sums import DistributedSum
from jdp.queries.distributed.integer_sums import Grid, plan_grid
from jdp.queries.distributed.noise_schemes import NoiseScheme

# The number of calibrations of each scheme of integers.
INTEGERS = {"integers": 0, "integers_calibrated": 1}
# The grid depends on the noise, and the noise on the grid's bound. Each step of the fixed-point
# iteration gains a digit or more.
_ITERATIONS = 20


class NoisePlan(NamedTuple):
  """What follows from the options and the number of clients.

  Attributes:
    num_clients: n. Every round announces it.
    noise_multiplier: the planned z.
    grid: of the integers if any run has them.
    grid_stddev: standard deviation of all clients' noise on integers together. Its unit is C. It
      exceeds z, as the bound S on a rounded vector exceeds C. The ratio makes runs on integers and
      on floats cost the same.
  """

  num_clients: int
  noise_multiplier: float
  grid: Grid | None
  grid_stddev: float | None


def make_noise_plan(options: ClientDropoutOptions, problem: LearningProblem) -> NoisePlan:
  """Chooses the noise.

  Raises:
    ValueError: if no grid exists for so few bits.
  """
  z = options.noise_multiplier
  if z is None:
    # The plan is for nobody lost: all clients take part in every round.
    z = accounting.calibrate_noise_multiplier(
      needed(options.target_epsilon),
      options.delta,
      1.0,
      options.num_rounds,
      accountant=options.accountant,
    )
  if not any(name in INTEGERS for name in options.schemes):
    return NoisePlan(problem.num_users, z, None, None)
  if options.noise_multiplier is None:
    z = _for_integers(options, _fit_grid(options, problem, z)[0])
  return NoisePlan(problem.num_users, z, *_fit_grid(options, problem, z))


def _for_integers(options: ClientDropoutOptions, grid: Grid) -> float:
  """z for the target of Skellam noise, which may have a looser bound than that of floats."""

  def plan(z: float) -> Ledger:
    query = SkellamSum(grid.l2_norm, grid.l1_norm, (z * grid.l2_norm) ** 2, 1)
    event = Round(PoissonSampling(1.0), query, Relation.ZERO_OUT)
    return Ledger().append(event, count=options.num_rounds)

  return accounting.calibrate_noise(
    needed(options.target_epsilon), options.delta, plan, accountant=options.accountant
  )


def _fit_grid(options: DropoutOptions, problem: LearningProblem, z: float) -> tuple[Grid, float]:
  dim = randomized_hadamard(problem.dim).dim
  stddev = z
  for _ in range(_ITERATIONS):
    grid = plan_grid(
      dim, 1.0, stddev, num_clients=problem.num_users, modulus_bits=options.modulus_bits,
      noise="skellam",
    )  # fmt: skip
    stddev = z * grid.l2_norm * grid.spacing
  return grid, stddev


def scheme_of(options: DropoutOptions, name: str) -> NoiseScheme:
  """The scheme of that name."""
  made: dict[str, Callable[[], NoiseScheme]] = {
    "uncalibrated": uncalibrated,
    "calibrated": calibrated,
    "outside": partial(calibrated, inside=False),
    "excess": partial(excess, options.max_dropout),
    "central": central,
  }
  return made[name]()


def local_training(options: DropoutOptions, problem: LearningProblem) -> LocalUpdate:
  """What a client computes."""
  return local_sgd(
    problem.loss,
    options.local_learning_rate,
    num_epochs=options.local_epochs,
    batch_size=options.local_batch_size,
  )


def make_settings(
  options: ClientDropoutOptions, problem: LearningProblem, plan: NoisePlan
) -> list[Setting]:
  """The rows of the table: each scheme at each dropout.

  Raises:
    ValueError: if the dropout model or the integers cannot be made as the options ask.
  """
  settings = []
  for line in lines(options):
    query = query_of(options, problem, plan, line.scheme)
    for rate in options.dropouts:
      make: Make = partial(
        client_dropout,
        local_training(options, problem),
        query,
        dropout_of(options, problem, line.dropout_model, rate, num_calibrations(query)),
        optax.sgd(1.0),
        num_clients=plan.num_clients,
        local_clip_norm=options.clip_norm,
        diagnose=options.diagnostics,
      )
      settings.append(
        Setting(
          f"{line.name}_{rate:g}",
          f"{LABELS[line.scheme]} ({percent(rate, 0)} lost{line.lost})",
          make(**layout_of(options)),
          public=problem.public(Unit.USER),
          make=make,
        )
      )
  return settings


class Line(NamedTuple):
  """The settings that differ in the rate of dropout alone.

  Attributes:
    name: what their folders' names begin with.
    scheme: who adds which noise.
    dropout_model: who is lost.
    lost: what a label says of that, where it is not the same for all.
  """

  name: str
  scheme: str
  dropout_model: str
  lost: str


def lines(options: DropoutOptions) -> list[Line]:
  """The pairs of a scheme and a dropout model, in the order of the settings."""
  models = options.dropout_models
  if len(models) == 1:
    return [Line(scheme, scheme, models[0], "") for scheme in options.schemes]
  pairs = itertools.product(models, options.schemes)
  return [Line(f"{scheme}_{model}", scheme, model, f", {LOST[model]}") for model, scheme in pairs]


def query_of(
  options: DropoutOptions, problem: LearningProblem, plan: NoisePlan, name: str
) -> DistributedSum | IntegerSum:
  """The sum with the noise of the scheme of that name."""
  c = options.clip_norm
  if name not in INTEGERS:
    scheme = scheme_of(options, name)
    return distributed_sum(c, plan.noise_multiplier, scheme, min_clients=options.min_clients)
  return distributed_integers(
    jax.eval_shape(problem.init, jax.random.key(0)),
    c,
    needed(plan.grid_stddev) * c,
    num_clients=plan.num_clients,
    num_calibrations=INTEGERS[name],
    min_clients=options.min_clients,
    modulus_bits=options.modulus_bits,
  )


def num_calibrations(query: DistributedSum | IntegerSum) -> int:
  """How often survivors are asked again."""
  return query.num_calibrations if isinstance(query, IntegerSum) else query.scheme.num_calibrations


def dropout_of(
  options: DropoutOptions, problem: LearningProblem, name: str, rate: float, calibrations: int
) -> DropoutModel:
  """Who is lost before the report and before so many calibrations."""
  n = problem.num_users
  make = {
    "independent": lambda: dropout.independent(n, rate),
    "bursty": lambda: dropout.bursty(
      n, rate, options.mean_rounds, group_size=options.burst_clients
    ),
    "by_size": lambda: dropout.by_size(np.asarray(problem.sizes).tolist(), rate),
  }
  return dropout.with_calibrations(make[name](), [options.calibration_dropout] * calibrations)


def updates_of(
  options: DropoutOptions, problem: LearningProblem, num_clients: int
) -> Callable[[jax.Array, PyTree], PyTree]:
  """(key, parameters) -> the clipped updates of the first so many clients, [clients, ...]."""
  local_update = local_training(options, problem)
  clients = jax.tree.map(lambda x: x[:num_clients], problem.clients)
  project = partial(vectors.clip, max_norm=options.clip_norm)

  @jax.jit
  def updates(key, params):
    keys = jax.random.split(key, num_clients)
    return jax.lax.map(
      lambda pair: local_update(pair[0], params, pair[1], project), (keys, clients), batch_size=50
    )

  return updates
