"""The options of reconstruction."""

import dataclasses
from functools import partial

from experiments.runner import checks
from experiments.runner.estimators import ESTIMATORS
from experiments.runner.options import option
from jdp import _validate

# The mechanisms that the bound is compared for. It is about one user's release alone, without a
# projection that reduces the dimension.
MECHANISMS = tuple(
  name for name, estimator in ESTIMATORS.items() if not estimator.projects and estimator.exact
)
_chance = partial(_validate.in_range, 1e-300, 0.5)


@dataclasses.dataclass(frozen=True)
class ReconstructionOptions:
  """The options of this experiment."""

  task: tuple[str, ...] = option(
    ("bound", "spheres", "images", "cnn"),
    "What is shown.",
    choices=("bound", "spheres", "images", "cnn"),
  )
  mechanisms: tuple[str, ...] = option(
    MECHANISMS, "Mechanisms of spheres and images.", choices=MECHANISMS
  )
  epsilons: tuple[float, ...] = option(
    (2.0, 8.0, 32.0, 128.0, 512.0),
    "Privacy losses of a release.",
    check=partial(_validate.in_range, 1e-2, 1e4),
  )
  alphas: tuple[float, ...] = option(
    (1.0, 0.5),
    "Distances of directions that count as success.",
    check=partial(_validate.in_range, 1e-3, 1.4142),
  )
  dims: tuple[int, ...] = option(
    (3, 10, 50, 100, 784), "k.", check=partial(_validate.in_range, 2, 10**9), most=10**9
  )
  density_ratios: tuple[float, ...] = option(
    (1.0, 10.0), "rho_0 of the priors: 1, or at least 2.", check=partial(_validate.in_range, 1, 1e6)
  )
  ambient: int = option(
    100, "Dimension of what is released to show a projection to the k below it.", check=checks.count
  )
  probability: float = option(
    1e-3, "Chance of a reconstruction that the task bound accepts.", check=_chance
  )
  trials: int = option(
    100_000, "Of each point of the task spheres.", check=checks.count, most=10**9
  )
  dataset: str = option("digits", "The images: digits needs no file.", choices=("digits", "mnist"))
  data_dir: str | None = option(
    None, "The folder with the data's files.", when={"dataset": ("mnist",)}
  )
  users: int = option(
    200, "Images attacked by the task images.", check=partial(_validate.integer, 2)
  )
  releases: int = option(10, "Of each user.", check=checks.count)
  cohort: int = option(20, "Users in a sum.", check=checks.count)
  components: int = option(32, "Principal components of the attacker's prior.", check=checks.count)
  frequencies: int = option(
    16,
    "k of the images' lowest frequencies, and of their coarsest wavelets.",
    check=partial(_validate.integer, 2),
  )
  cnn_epsilons: tuple[float, ...] = option(
    (64.0, 256.0, 1024.0), "Of the task cnn.", check=_validate.positive
  )
  cnn_users: int = option(4, "Images attacked by the task cnn.", check=checks.count)
  cnn_steps: int = option(200, "Of the optimiser.", check=checks.count)
  seed: int = checks.seed(0, "Of values and noise: this is an attack, not a private run.")
