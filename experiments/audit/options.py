"""The options of the audits."""

import dataclasses
from functools import partial

from experiments.runner import checks
from experiments.runner.options import option
from experiments.runner.problems.image_options import ClassificationOptions
from jdp import _validate
from jdp.mechanisms.registry import registered

_probability = partial(_validate.in_range, 1e-9, 1 - 1e-9)
TASKS = ("local", "broken", "runs", "procedures", "central")


@dataclasses.dataclass(frozen=True)
class AuditOptions(ClassificationOptions):
  """The options of this experiment."""

  task: tuple[str, ...] = option(TASKS, "What is audited.", choices=TASKS)
  mechanisms: tuple[str, ...] = option(
    tuple(registered()), "Local mechanisms; on_grid rounds priv_unit.", choices=registered
  )
  epsilons: tuple[float, ...] = option(
    (1.0, 4.0),
    "Stated privacy losses of the local mechanisms.",
    check=partial(_validate.in_range, 0.1, 8.0),
  )
  dim: int = option(
    16, "Dimension of the local mechanisms for vectors.", check=partial(_validate.integer, 4)
  )
  num_samples: int = option(
    24_000,
    "Reports of each of two inputs that measure the event; a quarter as many of every input "
    "choose it.",
    check=partial(_validate.integer, 4),
    most=10**9,
  )
  confidence: float = option(
    0.9999,
    "Of all bounds of a table of local mechanisms, or of runs with correlated noise, together.",
    check=_probability,
  )
  num_runs: int = option(
    50_000,
    "Runs with a user and as many without, for each strategy of noise and each procedure. For a "
    "strategy all measure the event, for a procedure half of them.",
    check=partial(_validate.integer, 8),
    most=10**8,
  )
  one_run_canaries: int = option(
    10_000,
    "Canaries in the one run of each procedure.",
    check=partial(_validate.integer, 100),
    most=10**5,
  )
  noise_multipliers: tuple[float, ...] = option(
    (0.5, 2.0, 8.0), "z of the central noise; a run for each.", check=_validate.positive
  )
  participations: tuple[float, ...] = option(
    (1.0, 0.25),
    "The chance of a client to be in a round; a run for each.",
    check=partial(_validate.in_range, 1e-6, 1),
  )
  num_rounds: int = option(4, "Rounds of a run.", check=checks.count)
  num_canaries: int = option(
    300, "Canaries, each in the run with probability 1/2.", check=partial(_validate.integer, 8)
  )
  num_guesses: int = option(
    60, "Canaries that the audit in one run guesses.", check=partial(_validate.integer, 2)
  )
  central_confidence: float = option(
    0.95, "Of all runs' bounds of one kind together.", check=_probability
  )
  delta: float = option(
    1e-5, "Delta of the central epsilons.", check=partial(_validate.in_range, 1e-100, 0.5)
  )
  data_seed: int = checks.seed(0, "Seed of the data's partition.")
  seed: int = checks.seed(0, "Seed of reports, canaries and noise.")
