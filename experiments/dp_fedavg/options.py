"""The options of DP-FedAvg: of its averages, of a choice among settings, and of the experiment."""

import dataclasses
from collections.abc import Callable
from functools import partial

from experiments.runner import checks
from experiments.runner.cohorts import GhostNormOptions
from experiments.runner.federation import FederationOptions, PlanOptions
from experiments.runner.options import needed, option
from experiments.runner.problems.problem_options import LearningOptions, ProblemOptions
from jdp import _validate
from jdp.federated.estimators import ClipNorm, Clipping, flat_clipping, per_layer_clipping
from jdp.queries.base import PyTree

RUNS = {"none": "no privacy", "private": "private", "dp_sgd": "DP-SGD"}
_SELECTED = {"select": ("private",)}
# (options, the model's parameters, S) -> the clipping.
CLIPPINGS: dict[str, Callable[["AverageOptions", PyTree, ClipNorm], Clipping]] = {
  "flat": lambda options, params, clip_norm: flat_clipping(clip_norm),
  "per_layer": lambda options, params, clip_norm: per_layer_clipping(
    params, clip_norm, shares=needed(options.layer_shares)
  ),
}


@dataclasses.dataclass(frozen=True)
class AverageOptions(FederationOptions):
  """The options of a private average of clients' updates."""

  SUBJECT = "The private average"

  clip_norm: float = option(1.0, "S, bound of a client's update.", check=_validate.positive)
  clipping: str = option(
    "flat",
    "What is bounded: the whole update, each layer, or the whole by an S that follows the updates.",
    choices=(*CLIPPINGS, "adaptive"),
  )
  layer_shares: str | None = option(
    "equal",
    "How S is divided: equally, or by the layers' dimensions.",
    choices=("equal", "dimension"),
    when={"clipping": ("per_layer",)},
  )
  clip_quantile: float | None = option(
    0.5,
    "Share of the updates to leave unclipped.",
    check=_validate.probability,
    when={"clipping": ("adaptive",)},
  )
  projection: str | None = option(
    "batch",
    "When a local model is brought back to within S: after every local batch, or at the end.",
    choices=("batch", "end"),
    when={"clipping": ("flat", "per_layer")},  # those with a `clip`, by which it projects
  )
  clip_decay: float = option(
    1.0,
    "Factor on S, and so on the noise, after every --clip_decay_rounds.",
    check=partial(_validate.in_range, 1e-3, 1.0),
  )
  clip_decay_rounds: int = option(100, "Rounds between two such steps.", check=checks.count)
  estimator: str = option(
    "fixed",
    "Denominator: the expected weight qW, or the sample's, of at least qW_min.",
    choices=("fixed", "clipped"),
  )
  min_weight: float | None = option(
    1.0,
    "W_min over W.",
    check=partial(_validate.in_range, 1e-3, 1.0),
    when={"estimator": ("clipped",)},
  )
  weights: str = option(
    "equal", "w_k: 1, or by the user's number of examples.", choices=("equal", "examples")
  )
  weight_cap: float | None = option(
    100.0,
    "w_hat, the examples from which on a user weighs 1.",
    check=_validate.positive,
    when={"weights": ("examples",)},
  )
  mean_weight: float | None = option(
    None,
    "W over the number of users, fixed beforehand. Default: the mean of the users' weights, which "
    "the guarantee then takes as public.",
    check=partial(_validate.in_range, 1e-6, 1.0),
    when={"weights": ("examples",)},
  )
  noise_cohort_size: int | None = option(
    None,
    "C: the noise is that of a plan with expected cohorts of C, for which z and epsilon are; what "
    "is run has --cohort_size users a round and less privacy. Default: no such plan.",
    check=checks.count,
    most=10**9,
  )
  noise_population: int | None = option(None, "Users of that plan.", check=checks.count, most=10**9)


@dataclasses.dataclass(frozen=True)
class SelectionOptions:
  """The options of a choice among settings."""

  SUBJECT = "Choice of a setting"

  select: str | None = option(
    None,
    "Choose one of the private settings of --vary by noised scores of a random number of runs. "
    "--target_epsilon is then that of all of it.",
    choices=("private",),
  )
  select_mean_runs: float | None = option(
    5.0, "Runs on average.", check=partial(_validate.in_range, 1.0, 1000.0), when=_SELECTED
  )
  select_shape: float | None = option(
    1.0,
    "Shape of the number's negative binomial distribution; 0 is cheapest and varies most.",
    check=partial(_validate.in_range, 0.0, 1000.0),
    when=_SELECTED,
  )
  score_noise: float | None = option(
    10.0, "Noise multiplier of a run's score.", check=_validate.positive, when=_SELECTED
  )
  select_beside: bool | None = option(
    False,
    "Train every setting once as well, and the one without --vary, each with all of the epsilon: "
    "what a choice without noise would give. It is NOT private.",
    when=_SELECTED,
  )


@dataclasses.dataclass(frozen=True)
class DPFedAvgOptions(
  PlanOptions, LearningOptions, AverageOptions, ProblemOptions, GhostNormOptions, SelectionOptions
):
  """The options of this experiment."""

  runs: tuple[str, ...] = option(
    ("none", "private"),
    "Rows of the table: the true average of fixed cohorts; private users; private examples "
    "(DP-SGD).",
    choices=tuple(RUNS),
  )
  vary: tuple[str, ...] = option(
    (),
    "An option of averaging and its values: a row for each. Several --vary give a row for each "
    "combination: --vary=clip_norm=1,2 --vary=noise_multiplier=0.5,1. Options that change together "
    "are joined by colons: --vary=clip_norm:noise_multiplier=1:0.5,2:1.",
    repeated=True,
  )
  smoothing: int = option(
    1,
    "Evaluations whose mean the table's second column shows, of trained models only; plots show "
    "each.",
    check=checks.count,
  )
  report_epsilons: tuple[float, ...] = option(
    (),
    "Text: a further table has the last evaluation of each run at which no more than each of these "
    "epsilons was spent.",
    check=_validate.positive,
  )
  plan_rounds: tuple[int, ...] = option(
    (),
    "With --noise_cohort_size: a further table has the epsilon of each plan after so many rounds.",
    check=checks.count,
  )
  warm_start: str | None = option(
    None,
    "The params.npz of an earlier run of the same users, to begin with; the ledger beside it is "
    "counted in every run's cost.",
  )
  warm_start_public: bool = option(
    False,
    "These parameters come from public data or from other users, nobody of this run: nothing is "
    "counted.",
  )
  sgd_batch_size: int = option(256, "DP-SGD: expected examples of a batch.", check=checks.count)
  sgd_clip_norm: float = option(
    1.0, "DP-SGD: bound of an example's gradient.", check=_validate.positive
  )
  sgd_learning_rate: float = option(0.5, "DP-SGD: learning rate.", check=_validate.positive)
