"""What the client-dropout experiment compares: noise schemes and dropout models."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import optax

from experiments.runner.cohorts import layout_of
from experiments.runner.options import option
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports.tables import percent
from experiments.runner.runs.sweep import Setting
from jdp import _validate, accounting
from jdp.federated import LocalUpdate, dropout, local_sgd
from jdp.federated.dropout.distributed_noise import client_dropout
from jdp.guarantees import Unit
from jdp.numerics.rotations import randomized_hadamard
from jdp.queries import (
  SumQuery,
  calibrated,
  central,
  discrete_sum,
  distributed_sum,
  excess,
  uncalibrated,
)
from jdp.queries.distributed import DistributedSum
from jdp.queries.distributed.integer_sums import Grid, plan_grid
from jdp.queries.distributed.noise_schemes import NoiseScheme

INTEGERS = "integers"
LABELS = {
  "uncalibrated": "no calibration",
  "calibrated": "calibration inside",
  "outside": "calibration outside",
  "excess": "excess noise removed",
  "central": "central noise",
  INTEGERS: "integers uncalibrated",
}
_count = partial(_validate.integer, 1)
# The grid depends on the noise, and the noise on the grid's bound. Each step of the fixed-point
# iteration gains a digit or more.
_ITERATIONS = 20


@dataclasses.dataclass(frozen=True)
class DropoutOptions:
  """The options that say which clients vanish, and which of them add which noise."""

  SUBJECT = "Who vanishes, and who adds which noise"

  schemes: tuple[str, ...] = option(
    ("uncalibrated", "calibrated"),
    "Who adds which noise; a run for each, and dropout.",
    choices=tuple(LABELS),
  )
  dropouts: tuple[float, ...] = option(
    (0.0, 0.3), "Shares of clients lost.", check=_validate.probability
  )
  dropout_model: str = option(
    "independent",
    "Who is lost: anybody; anybody for several rounds; clients with more data more often.",
    choices=("independent", "bursty", "by_size"),
  )
  mean_rounds: float | None = option(
    5.0,
    "Rounds for which a client is away.",
    check=_validate.positive,
    when={"dropout_model": ("bursty",)},
  )
  calibration_dropout: float = option(
    0.0,
    "Share of those who reported that is lost before it calibrates.",
    check=_validate.probability,
  )
  max_dropout: float = option(
    0.5, "The largest dropout that excess noise suffices for.", check=_validate.probability
  )
  min_clients: int = option(
    2, "Rounds with fewer clients at any stage are abandoned.", check=_count
  )
  noise_multiplier: float | None = option(
    None,
    "z, planned: stddev of all clients' noise over C.",
    check=_validate.positive,
    group="noise",
  )
  target_epsilon: float | None = option(
    None,
    "Epsilon of the run, if nobody is lost, that z is calibrated for.",
    check=_validate.positive,
    group="noise",
  )
  delta: float = option(
    1e-5, "Delta of the guarantees.", check=partial(_validate.in_range, 1e-300, 0.5)
  )
  clip_norm: float = option(
    1.0, "C: L2 norm of a client's difference, at all times.", check=_validate.positive
  )
  modulus_bits: int = option(
    16, "Bits of each weight that a client sends (integers).", check=_count
  )
  masked_clients: int | None = option(
    None,
    "The first so many users train once more at each dropout, on integers whose sums really open "
    "under secure aggregation, message by message. Default: no such training.",
    check=partial(_validate.integer, 3),
    most=10_000,
  )
  masked_rounds: int = option(10, "Rounds of that training.", check=_count)
  local_learning_rate: float = option(0.1, "The client's learning rate.", check=_validate.positive)
  local_epochs: int = option(1, "Passes over the client's examples.", check=_count)
  local_batch_size: int = option(
    5, "Examples of a local step; each is followed by clipping.", check=_count
  )


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


def make_noise_plan(options: Any, problem: LearningProblem) -> NoisePlan:
  """Chooses the noise.

  Raises:
    ValueError: if no grid exists for so few bits.
  """
  z = options.noise_multiplier
  if z is None:
    # The plan is for nobody lost: all clients take part in every round.
    z = accounting.calibrate_noise_multiplier(
      options.target_epsilon, options.delta, 1.0, options.num_rounds
    )
  grid, stddev = _fit_grid(options, problem, z) if INTEGERS in options.schemes else (None, None)
  return NoisePlan(problem.num_users, z, grid, stddev)


def _fit_grid(options: Any, problem: LearningProblem, z: float) -> tuple[Grid, float]:
  dim = randomized_hadamard(problem.dim).dim
  stddev = z
  for _ in range(_ITERATIONS):
    grid = plan_grid(
      dim, 1.0, stddev, num_clients=problem.num_users, modulus_bits=options.modulus_bits
    )
    stddev = z * grid.l2_norm * grid.spacing
  return grid, stddev


def scheme_of(options: Any, name: str) -> NoiseScheme:
  """The scheme of that name."""
  made: dict[str, Callable[[], NoiseScheme]] = {
    "uncalibrated": uncalibrated,
    "calibrated": calibrated,
    "outside": partial(calibrated, inside=False),
    "excess": partial(excess, options.max_dropout),
    "central": central,
    INTEGERS: uncalibrated,
  }
  return made[name]()


def local_training(options: Any, problem: LearningProblem) -> LocalUpdate:
  """What a client computes."""
  return local_sgd(
    problem.loss,
    options.local_learning_rate,
    num_epochs=options.local_epochs,
    batch_size=options.local_batch_size,
  )


def make_settings(options: Any, problem: LearningProblem, plan: NoisePlan) -> list[Setting]:
  """The rows of the table: each scheme at each dropout.

  Raises:
    ValueError: if the dropout model or the integers cannot be made as the options ask.
  """
  settings = []
  for name in options.schemes:
    query = _query(options, problem, plan, name)
    for rate in options.dropouts:
      make = partial(
        client_dropout,
        local_training(options, problem),
        query,
        _dropout(options, problem, rate, scheme_of(options, name).num_calibrations),
        optax.sgd(1.0),
        num_clients=plan.num_clients,
        local_clip_norm=options.clip_norm,
        diagnose=options.diagnostics,
      )
      label = f"{LABELS[name]} ({percent(rate, 0)} lost)"
      settings.append(
        Setting(
          f"{name}_{rate:g}",
          label,
          make(**layout_of(options)),
          public=problem.public(Unit.USER),
          make=make,
        )
      )
  return settings


def _query(
  options: Any, problem: LearningProblem, plan: NoisePlan, name: str
) -> DistributedSum | SumQuery:
  c = options.clip_norm
  if name != INTEGERS:
    scheme = scheme_of(options, name)
    return distributed_sum(c, plan.noise_multiplier, scheme, min_clients=options.min_clients)
  record = jax.eval_shape(problem.init, jax.random.key(0))
  bits = options.modulus_bits
  return discrete_sum(
    record, c, plan.grid_stddev * c, num_clients=plan.num_clients, modulus_bits=bits
  )


def _dropout(
  options: Any, problem: LearningProblem, rate: float, calibrations: int
) -> dropout.DropoutModel:
  make = {
    "independent": lambda: dropout.independent(problem.num_users, rate),
    "bursty": lambda: dropout.bursty(problem.num_users, rate, options.mean_rounds),
    "by_size": lambda: dropout.by_size(problem.sizes.tolist(), rate),
  }
  return dropout.with_calibrations(
    make[options.dropout_model](), [options.calibration_dropout] * calibrations
  )
