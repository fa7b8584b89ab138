"""The options of client dropout."""

import dataclasses
from functools import partial

from experiments.runner import checks
from experiments.runner.cohorts import CohortOptions
from experiments.runner.options import option
from experiments.runner.problems.image_options import ClassificationOptions
from experiments.runner.runs.training import TrainingOptions
from jdp import _validate

LABELS = {
  "uncalibrated": "no calibration",
  "calibrated": "calibration inside",
  "outside": "calibration outside",
  "excess": "excess noise removed",
  "central": "central noise",
  "integers": "integers uncalibrated",
  "integers_calibrated": "integers calibrated",
}
LOST = {"independent": "anybody", "bursty": "in bursts", "by_size": "by size"}


@dataclasses.dataclass(frozen=True)
class DropoutOptions:
  """The options that say which clients vanish, and which of them add which noise."""

  SUBJECT = "Who vanishes, and who adds which noise"

  schemes: tuple[str, ...] = option(
    ("uncalibrated", "calibrated"),
    "Who adds which noise; a run for each, and dropout model, and dropout.",
    choices=tuple(LABELS),
  )
  dropouts: tuple[float, ...] = option(
    (0.0, 0.3), "Shares of clients lost.", check=_validate.probability
  )
  dropout_models: tuple[str, ...] = option(
    ("independent",),
    "Who is lost: anybody; groups of clients for several rounds; clients with more data more "
    "often.",
    choices=tuple(LOST),
  )
  mean_rounds: float = option(
    5.0, "Rounds for which a group is away (bursty).", check=_validate.positive
  )
  burst_clients: int = option(
    1, "Clients of a group, who leave and return together (bursty).", check=checks.count
  )
  calibration_dropout: float = option(
    0.0,
    "Share of those who reported that is lost before it calibrates.",
    check=_validate.probability,
  )
  max_dropout: float = option(
    0.5,
    "The largest dropout that excess noise, or correlated integers, suffice for.",
    check=_validate.probability,
  )
  min_clients: int = option(
    2, "Rounds with fewer clients at any stage are abandoned.", check=checks.count
  )
  average_errors: bool = option(
    False,
    "Compare survivors' averages with everybody's, without noise, as no observer of a deployment "
    "could: this comparison is NOT private.",
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
  delta: float = option(1e-5, "Delta of the guarantees.", check=checks.delta)
  clip_norm: float = option(
    1.0, "C: L2 norm of a client's difference, at all times.", check=_validate.positive
  )
  modulus_bits: int = option(
    16, "Bits of each weight that a client sends (integers).", check=checks.count
  )
  masked_clients: int | None = option(
    None,
    "The first so many users train once more at each dropout, on integers whose sums really open "
    "under secure aggregation, message by message. Default: no such training.",
    check=partial(_validate.integer, 3),
    most=10_000,
  )
  masked_rounds: int = option(10, "Rounds of that training.", check=checks.count)
  masked_neighbours: int | None = option(
    None,
    "Clients that one shares masks with there: an even number. Default: 2 log2 of their number.",
    check=partial(_validate.integer, 2),
  )
  masked_thresholds: tuple[float, ...] = option(
    (0.5,),
    "Shares of a client's neighbours that must answer for the sum to open; a training for each.",
    check=_validate.probability,
  )
  correlated_groups: int | None = option(
    None,
    "Users train once more in so many groups that take turns, on integers with noise by all users: "
    "independent, and correlated by as many bands. Default: no such training.",
    check=checks.count,
    most=1_000,
  )
  local_learning_rate: float = option(0.1, "The client's learning rate.", check=_validate.positive)
  local_epochs: int = option(1, "Passes over the client's examples.", check=checks.count)
  local_batch_size: int = option(
    5, "Examples of a local step; each is followed by clipping.", check=checks.count
  )


@dataclasses.dataclass(frozen=True)
class ClientDropoutOptions(TrainingOptions, DropoutOptions, ClassificationOptions, CohortOptions):
  """The options of this experiment."""
