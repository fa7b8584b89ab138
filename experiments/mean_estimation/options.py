"""The options of mean estimation."""

import dataclasses
from functools import partial

from experiments.runner import checks
from experiments.runner.estimators import ESTIMATORS
from experiments.runner.options import option
from jdp import _validate

_epsilon = partial(_validate.in_range, 1e-2, 1e4)
DIGITS = "digits"
_TASKS = ("error", "split", "sgd", "location", "mirror", "samplers")


@dataclasses.dataclass(frozen=True)
class MeanEstimationOptions:
  """The options of this experiment.

  Each list is gone through in turn, while the other lists are held at their first value.
  """

  task: tuple[str, ...] = option(("error",), "What is measured.", choices=_TASKS)
  mechanisms: tuple[str, ...] = option(
    tuple(ESTIMATORS), "Mechanisms of the tasks error and location.", choices=tuple(ESTIMATORS)
  )
  values: str = option(
    "normal",
    "Unit vectors: N(v, I/d) normalised, v a random unit vector; their signs over sqrt(d); or "
    "gradients of the digits.",
    choices=("normal", "signs", DIGITS),
  )
  dims: tuple[int, ...] | None = option(
    (1024,),
    "Dimensions.",
    check=partial(_validate.integer, 2),
    when={"values": ("normal", "signs")},
    most=10**8,
  )
  epsilons: tuple[float, ...] = option((4.0,), "Privacy losses of a release.", check=_epsilon)
  cohorts: tuple[int, ...] = option((1,), "Numbers of clients.", check=checks.count, most=10**9)
  num_projections: tuple[int, ...] = option(
    (128,), "k of the mechanisms that report k numbers.", check=partial(_validate.integer, 2)
  )
  repetitions: int = option(
    50, "Of every measurement of an error, and of a sampler.", check=partial(_validate.integer, 2)
  )
  budgets: tuple[float, ...] = option(
    (4.0, 16.0), "Privacy losses of the task split.", check=_epsilon
  )
  sgd_steps: int = option(2000, "Steps of the tasks sgd, location and mirror.", check=checks.count)
  sgd_repetitions: int = option(
    1000, "Runs of the tasks sgd, location and mirror.", check=checks.count
  )
  data_seed: int = checks.seed(0, "Seed of the values.")
  noise_seed: int = checks.seed(0, "Seed of the noise.")
