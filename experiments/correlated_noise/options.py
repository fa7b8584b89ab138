"""The options of correlated noise, and the strategies that they choose."""

import dataclasses
from collections.abc import Callable

from experiments.runner import checks
from experiments.runner.cohorts import GhostNormOptions
from experiments.runner.federation import FederationOptions, UpdateOptions
from experiments.runner.options import option
from experiments.runner.problems.problem_options import LearningOptions, ProblemOptions
from jdp import _validate
from jdp import matrix_factorization as mf
from jdp.matrix_factorization import Strategy

NONE = "none"
"""The run without privacy."""
STRATEGIES: dict[str, Callable[["CorrelatedNoiseOptions", int], Strategy]] = {
  "identity": lambda options, separation: mf.identity(options.num_rounds),
  "tree": lambda options, separation: mf.tree(options.num_rounds),
  "square_root": lambda options, separation: mf.square_root_toeplitz(
    options.num_rounds, bands=options.bands
  ),
  "banded_toeplitz": lambda options, separation: mf.banded_toeplitz(
    options.num_rounds, options.bands
  ),
  "banded": lambda options, separation: mf.banded(options.num_rounds, options.bands),
  "buffered": lambda options, separation: mf.buffered_toeplitz(
    options.num_rounds,
    buffers=options.buffers,
    min_separation=separation,
    max_participations=options.participation_cap,
    objective="mean",
  ),
  "banded_inverse": lambda options, separation: mf.banded_inverse_square_root(
    options.num_rounds, options.bands
  ),
}


@dataclasses.dataclass(frozen=True)
class StrategyOptions:
  """The options of correlated noise."""

  participation: str = option(
    "turns",
    "Who takes part: groups in turns, each whole; or of as many groups as C has bands, each member "
    "of the one whose turn it is by its own coin.",
    choices=("turns", "coins"),
  )
  bands: int = option(
    8, "Diagonals of banded strategies, of C or of its inverse.", check=checks.count
  )
  buffers: int = option(3, "Buffers of the buffered strategy.", check=checks.count, most=20)


@dataclasses.dataclass(frozen=True)
class CorrelatedNoiseOptions(
  LearningOptions,
  StrategyOptions,
  FederationOptions,
  UpdateOptions,
  ProblemOptions,
  GhostNormOptions,
):
  """The options of this experiment."""

  runs: tuple[str, ...] = option(
    (NONE, "identity", "tree", "banded_toeplitz", "buffered", "banded_inverse"),
    "Rows of the table: no privacy, and strategies of noise.",
    choices=(NONE, *STRATEGIES),
  )
  num_rounds: int = option(
    100, "Rounds of training, which strategies are made for.", check=checks.count, most=1_000
  )
  clip_norm: float = option(1.0, "S, bound of a client's update.", check=_validate.positive)
  participation_cap: int | None = option(
    None,
    "The most rounds of one user, where groups take turns. Default: as many as fit.",
    check=checks.count,
  )
