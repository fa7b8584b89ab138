"""The options of a learning problem, whatever it is about: what is learnt, and from whom."""

import dataclasses
from functools import partial

from experiments.runner.cohorts import CohortOptions
from experiments.runner.options import option
from experiments.runner.problems import held_out, own_model, own_source
from experiments.runner.problems.image_options import (
  DATASETS,
  EXAMPLES_HELP,
  FOLDERS,
  NUM_USERS_HELP,
  PARTITION_HELP,
  PARTITIONS,
  ClassificationOptions,
)
from experiments.runner.problems.public_start import PublicStartOptions
from experiments.runner.problems.text_options import TEXT, TextOptions
from experiments.runner.runs.training import TrainingOptions
from jdp import _validate

_IMAGES = {"dataset": DATASETS}
_CLASSES = {"dataset": (*DATASETS, "source")}

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
  data_dir: str | None = option(
    None,
    "The folder with the data's files.",
    when={"dataset": (*FOLDERS, "movies", "movies_small", "shakespeare")},
  )
  validation_share: float | None = option(
    None,
    held_out.HELP,
    check=partial(_validate.in_range, 1e-3, 0.9),
    when={"dataset": (*DATASETS, *TEXT)},
  )
  partition: str = option("iid", PARTITION_HELP, choices=PARTITIONS, when=_IMAGES)
  examples_per_user: int | None = option(
    None, EXAMPLES_HELP, check=partial(_validate.integer, 1), when=_CLASSES
  )
  num_users: int | None = option(
    None, NUM_USERS_HELP, check=partial(_validate.integer, 1), when=_IMAGES
  )
  public_users: int | None = option(
    None,
    "The first so many users are declared public: the model begins with their images, and they are "
    "no clients. Default: nobody.",
    check=partial(_validate.integer, 1),
    when=_IMAGES,
  )
  model: str = option("logistic", own_model.HELP, check=own_model.check_name, when=_CLASSES)


@dataclasses.dataclass(frozen=True)
class LearningOptions(TrainingOptions, ProblemOptions, CohortOptions):
  """The options of every experiment that trains on such a problem.

  The order of an experiment's bases is that of its flags, so it names `ProblemOptions` once more.
  """
