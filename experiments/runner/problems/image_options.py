"""The options of labelled data sets, divided among users, and of the model that learns them."""

import dataclasses
from functools import partial

from experiments.runner import checks
from experiments.runner.options import option
from experiments.runner.problems import own_model
from jdp import _validate
from jdp.data import named_datasets

FOLDERS = tuple(named_datasets.FOLDERS)
DATASETS = named_datasets.NAMES


@dataclasses.dataclass(frozen=True)
class DatasetOptions:
  """The options that say which labelled data set is used, and what it is tested on."""

  SUBJECT = "Data and model"

  dataset: str = option(
    "digits", "The data: digits needs no file, arrays are your own.", choices=DATASETS
  )
  data_dir: str | None = option(
    None, "The folder with the data's files.", when={"dataset": FOLDERS}
  )
  data_file: str | None = option(
    None,
    "An npz file with inputs, labels, test_inputs, test_labels, and users for --partition=writer.",
    when={"dataset": ("arrays",)},
  )
  validation_share: float | None = option(
    None,
    "Choose settings: evaluate on this share of the training examples (of the users, if these are "
    "the data's own), which nobody trains on, in place of the test examples. No guarantee covers "
    "them.",
    check=partial(_validate.in_range, 1e-3, 0.9),
    when={"dataset": DATASETS},
  )


@dataclasses.dataclass(frozen=True)
class ClassificationOptions(DatasetOptions):
  """The options that say what is learnt, and from whom."""

  SUBJECT = "Data and model"

  partition: str = option(
    "iid",
    "Users: random examples; two labels each; Dirichlet shares of each label, which makes users of "
    "many sizes; or the data's own (writers).",
    choices=("iid", "label", "dirichlet", "writer"),
  )
  concentration: float | None = option(
    1.0,
    "Of the Dirichlet distribution. Small: a label is at few users.",
    check=_validate.positive,
    when={"partition": ("dirichlet",)},
  )
  examples_per_user: int | None = option(
    None,
    "Examples of each user; of a writer: at most; of dirichlet: on average. Default: 1 for iid, 2 "
    "for label, 10 for dirichlet, all for writer.",
    check=checks.count,
  )
  num_users: int | None = option(
    None, "Take the first so many users of the partition. Default: all.", check=checks.count
  )
  model: str = option("logistic", own_model.HELP, check=own_model.check_name)
