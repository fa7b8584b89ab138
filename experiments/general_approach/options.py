"""The options of the general approach, and the models that they choose."""

import dataclasses
from collections.abc import Callable
from functools import partial

from experiments.runner import checks
from experiments.runner.cohorts import ShardOptions
from experiments.runner.options import option
from experiments.runner.problems.image_options import DatasetOptions
from experiments.runner.runs.training import TrainingOptions
from jdp import _validate, models
from jdp.guarantees import Relation
from jdp.models.batch_norm import NormalisedModel, batch_norm_cnn, without_statistics

GIVEN = ("gradients", "moments", "metrics")
"""The groups that --given_stddevs is for, in its order."""
MOMENTUM = 0.9
MODELS: dict[str, Callable[..., NormalisedModel]] = {
  "batch_norm": batch_norm_cnn,
  "cnn": lambda *shapes: without_statistics(models.small_cnn(*shapes)),
}
RELATIONS = {
  "poisson": Relation.ADD_REMOVE,
  "fixed_size": Relation.REPLACE_ONE,
  "shuffled": Relation.ZERO_OUT,
  "balls_in_bins": Relation.ADD_REMOVE,
}
RUNS = {
  "none": "no privacy",
  "clipped": "joint clipping, no noise",
  "proportional": "separate, proportional noise",
  "dimension": "separate, dimension-adjusted",
  "given": "separate, noise as given",
  "joint": "joint clipping",
  "adaptive": "separate, adaptive clipping",
  "grid": "proportional, noise on a grid",
  "discrete": "proportional, discrete noise",
  "microbatch": "proportional, microbatches",
  "user": "proportional, users",
}
POLICIES = {
  "poisson": "Poisson",
  "fixed_size": "fixed size",
  "shuffled": "shuffled epochs",
  "balls_in_bins": "balls in bins",
}


@dataclasses.dataclass(frozen=True)
class GeneralApproachOptions(TrainingOptions, DatasetOptions, ShardOptions):
  """The options of this experiment."""

  task: str = option("training", "What is asked.", choices=("training", "two_vectors"))
  model: str = option(
    "batch_norm", "What is trained; cnn has no statistics.", choices=tuple(MODELS)
  )
  runs: tuple[str, ...] = option(
    tuple(name for name in RUNS if name not in ("clipped", "discrete")),
    "Rows of the table. A record is an example, but for microbatch and user.",
    choices=tuple(RUNS),
  )
  record_size: tuple[int, ...] = option(
    (10,),
    "Examples of a microbatch, and of a user (of two labels); a row for each.",
    check=checks.count,
  )
  sampling: tuple[str, ...] = option(
    ("poisson",), "Which records a round samples; a row for each.", choices=tuple(RELATIONS)
  )
  batch_size: int = option(144, "Expected examples of a round.", check=checks.count)
  noise_multiplier: float = option(1.0, "z, of all groups together.", check=_validate.positive)
  delta: float = option(1e-5, "Delta of the guarantees.", check=checks.delta)
  layers: bool = option(True, "Whether convolutions and dense layers are groups of their own.")
  metrics: bool = option(True, "Whether training accuracy and loss are a group, and released.")
  class_shares: bool = option(
    False, "Whether the share of each label is a group of its own, and released."
  )
  gradient_clip_norm: float = option(
    1.0, "S of a whole gradient; each group's: S / sqrt(groups).", check=_validate.positive
  )
  moments_clip_norm: float = option(
    5.0, "S of the moments of all normalised layers.", check=_validate.positive
  )
  joint_clip_norm: float | None = option(
    None,
    "S of the record whose groups are divided by their S (joint). Default: sqrt(groups), the "
    "noise of --runs=proportional with less clipping.",
    check=_validate.positive,
  )
  given_stddevs: tuple[float, ...] = option(
    (0.01, 0.05, 0.02),
    f"Noise on each coordinate of the averages of {', '.join(GIVEN)} (given), up to the factor "
    "that meets z.",
    check=_validate.positive,
    may_be_equal=True,
  )
  spacing: float = option(
    0.25,
    "Spacing of the grid, in standard deviations of each group's noise (grid).",
    check=partial(_validate.in_range, 1 / 16, 16.0),
  )
  timed_rounds: int = option(
    0,
    "Rounds of each row, run once more to measure their processor time.",
    check=checks.count_or_zero,
  )
  learning_rate: float = option(0.5, "Of the server's SGD.", check=_validate.positive)
  row_rates: tuple[float, ...] = option(
    (),
    "In place of --learning_rate, one for each of --runs and, of those that cut their own records, "
    "for each --record_size.",
    check=_validate.positive,
    may_be_equal=True,
  )
  momentum: bool = option(False, f"Whether SGD has momentum {MOMENTUM}.")
