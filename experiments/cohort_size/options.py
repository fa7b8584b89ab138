"""The options of the size of a cohort."""

import dataclasses

from experiments.runner import checks
from experiments.runner.cohorts import ShardOptions
from experiments.runner.federation import RoundOptions, UpdateOptions
from experiments.runner.options import option
from experiments.runner.problems.problem_options import LearningOptions, ProblemOptions
from jdp import _validate

LABELS = {
  "none": "no privacy",
  "clipped": "clipping only",
  "central": "central",
  "local": "local and central",
}


@dataclasses.dataclass(frozen=True)
class CohortSizeOptions(RoundOptions, LearningOptions, UpdateOptions, ProblemOptions, ShardOptions):
  """The options of this experiment."""

  cohort_sizes: tuple[int, ...] = option(
    (30, 100, 300), "Expected numbers of users in a round; a run for each.", check=checks.count
  )
  runs: tuple[str, ...] = option(
    tuple(LABELS), "Columns of the table: who clips and adds noise.", choices=tuple(LABELS)
  )
  max_update_norm: float = option(
    1.0, "Updates are clipped to this L2 norm, except without privacy.", check=_validate.positive
  )
  epsilon_direction: float = option(
    32.0, "eps1, local privacy loss of a release's direction (PrivUnit).", check=checks.epsilon
  )
  epsilon_magnitude: float = option(
    10.0, "eps2, local privacy loss of a release's magnitude (ScalarDP).", check=checks.epsilon
  )
  measured_rounds: int = option(
    5,
    "Rounds, all from the first model, by which errors and times are measured.",
    check=checks.count,
  )
