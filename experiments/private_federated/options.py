"""The options of private federated learning, and the mechanisms that they choose."""

import dataclasses
import math
from collections.abc import Callable

from experiments.private_federated.limits import LEAST_SHARE, MAGNITUDES, PARTS
from experiments.runner import checks
from experiments.runner.cohorts import ShardOptions
from experiments.runner.federation import FederationOptions, PlanOptions
from experiments.runner.options import option
from experiments.runner.problems.problem_options import LearningOptions, ProblemOptions
from jdp import _validate
from jdp.mechanisms import LocalMechanism, priv_unit, priv_unit_linf

BASELINES = ("none", "clipped", "central")
# The mechanism of directions, and a bound: d -> the largest L2 norm of a vector whose own norm (L2
# or L-infinity) is 1.
DIRECTIONS: dict[str, tuple[Callable[[int, float], LocalMechanism], Callable[[int], float]]] = {
  "priv_unit": (priv_unit, lambda _: 1.0),
  "priv_unit_linf": (priv_unit_linf, math.sqrt),
}


@dataclasses.dataclass(frozen=True)
class PrivateFederatedOptions(
  PlanOptions, LearningOptions, FederationOptions, ProblemOptions, ShardOptions
):
  """The options of this experiment."""

  baselines: tuple[str, ...] = option(
    ("none", "central"),
    "Runs to compare with: no privacy at all; updates clipped to --max_update_norm, and nothing "
    "else; central privacy alone.",
    choices=BASELINES,
    may_be_empty=True,
  )
  epsilon_directions: tuple[float, ...] = option(
    (2.0, 8.0, 32.0, 128.0),
    "eps1, local privacy loss of a release's direction; a run for each.",
    check=checks.epsilon,
    may_be_empty=True,
  )
  direction_mechanism: str = option(
    "priv_unit",
    "How directions are released: in the L2 norm, or in the L-infinity norm, which suits "
    "--server_optimizer=mirror.",
    choices=tuple(DIRECTIONS),
  )
  uplink: str = option(
    "plain",
    "What a client sends of a direction: the vector, or the number of a public candidate, which "
    "takes few bits and more time. It is for epsilons up to about 16.",
    choices=("plain", "compressed"),
  )
  epsilon_magnitude: float = option(
    10.0, "eps2, local privacy loss of a release's magnitude.", check=checks.epsilon
  )
  magnitude_mechanism: str = option(
    "scalar_dp",
    "How magnitudes are released: with an error of one size, or with one relative to the "
    f"magnitude, from {LEAST_SHARE:g} of --max_update_norm on.",
    choices=tuple(MAGNITUDES),
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
  switched_off: tuple[str, ...] = option(
    (),
    "Further runs at each eps1 that lack one part of what limits it, to measure it: the local "
    "mechanism (updates are clipped, and sent in the clear), the central noise, the projection "
    "(the noise stays), or the clipping of updates, and with it their magnitudes' noise.",
    choices=PARTS,
  )
