"""The options of a learning problem, whatever it is about: what is learnt, and from whom."""

import dataclasses
from functools import partial

from experiments.runner import checks
from experiments.runner.cohorts import CohortOptions
from experiments.runner.options import option, option_of
from experiments.runner.problems import own_source
from experiments.runner.problems.image_options import DATASETS, FOLDERS, ClassificationOptions
from experiments.runner.problems.public_start import PublicStartOptions
from experiments.runner.problems.text_options import TEXT, TextOptions
from experiments.runner.runs.training import TrainingOptions

_IMAGES = {"dataset": DATASETS}
_CLASSES = {"dataset": (*DATASETS, "source")}
_classifying = partial(option_of, ClassificationOptions)

# The options that decide who the users are, what each has, and who is public. Two runs that differ
# in one of them may have different users: one user may be several of the other run's, or was public
# there. What was released about the users of one says nothing about those of the other. The folder
# is one of the options, as other files may have the same names.
USERS = (
  "dataset",
  "data_dir",
  "data_file",
  "source",
  "data_seed",
  "partition",
  "concentration",
  "examples_per_user",
  "num_users",
  "validation_share",
  "public_users",
  "public_text",
  "public_share",
  "test_share",
  "tokens_per_user",
  "equal_users",
  "pseudo_users",
  "unroll",
)


@dataclasses.dataclass(frozen=True)
class ProblemOptions(ClassificationOptions, TextOptions, PublicStartOptions):
  """The options that say what is learnt, and from whom."""

  dataset: str = option(
    "digits",
    "The data: digits needs no file, arrays and source are your own, in memory or read by the "
    "round, modules takes the texts of Python's own.",
    choices=(*DATASETS, "source", *TEXT),
  )
  source: str | None = option(
    None, own_source.HELP, check=own_source.check_name, when={"dataset": ("source",)}
  )
  data_dir: str | None = _classifying(
    "data_dir", when={"dataset": (*FOLDERS, "movies", "movies_small", "shakespeare")}
  )
  validation_share: float | None = _classifying(
    "validation_share", when={"dataset": (*DATASETS, *TEXT)}
  )
  partition: str = _classifying("partition", when=_IMAGES)
  examples_per_user: int | None = _classifying("examples_per_user", when=_CLASSES)
  num_users: int | None = _classifying("num_users", when=_IMAGES)
  public_users: int | None = option(
    None,
    "The first so many users are declared public: the model begins with their images, and they are "
    "no clients. Default: nobody.",
    check=checks.count,
    when=_IMAGES,
  )
  model: str = _classifying("model", when=_CLASSES)


@dataclasses.dataclass(frozen=True)
class LearningOptions(TrainingOptions, ProblemOptions, CohortOptions):
  """The options of every experiment that trains on such a problem.

  The order of an experiment's bases is that of its flags, so it names `ProblemOptions` once more.
  """
