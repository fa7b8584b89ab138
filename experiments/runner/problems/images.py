"""Classification problems: a data set divided among users, and a model."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.runner.options import option
from experiments.runner.problems import own_model, own_source
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.problems.precision import in_precision
from experiments.runner.problems.public_start import with_public_start
from jdp import _validate, data, models
from jdp.data.datasets import Dataset
from jdp.guarantees import Unit
from jdp.sampling import groups_by_identity

PyTree = Any

FOLDERS = ("mnist", "cifar10", "adult")
_COIN_SIDES = 2**30
_PUBLIC_RATE = 0.1
DATASETS = ("digits", *FOLDERS, "arrays")
PARTITIONS = ("iid", "label", "dirichlet", "writer")
PARTITION_HELP = (
  "Users: random examples; two labels each; Dirichlet shares of each label, which makes users of "
  "many sizes; or the data's own (writers)."
)
EXAMPLES_HELP = (
  "Examples of each user; of a writer: at most; of dirichlet: on average. Default: 1 for iid, 2 "
  "for label, 10 for dirichlet, all for writer."
)
NUM_USERS_HELP = "Take the first so many users of the partition. Default: all."


@dataclasses.dataclass(frozen=True)
class HeldOutOptions:
  """The option that keeps the test examples out of the choice of settings."""

  SUBJECT = "Data and model"

  validation_share: float | None = option(
    None,
    "Choose settings: evaluate on this share of the training examples (of the writers, if users "
    "are these), which nobody trains on, in place of the test examples. No guarantee covers them.",
    check=partial(_validate.in_range, 1e-3, 0.9),
    when={"dataset": DATASETS},
  )


@dataclasses.dataclass(frozen=True)
class DatasetOptions(HeldOutOptions):
  """The options that say which labelled data set is used."""

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


@dataclasses.dataclass(frozen=True)
class ClassificationOptions(DatasetOptions):
  """The options that say what is learnt, and from whom."""

  SUBJECT = "Data and model"

  partition: str = option("iid", PARTITION_HELP, choices=PARTITIONS)
  concentration: float | None = option(
    1.0,
    "Of the Dirichlet distribution. Small: a label is at few users.",
    check=_validate.positive,
    when={"partition": ("dirichlet",)},
  )
  examples_per_user: int | None = option(None, EXAMPLES_HELP, check=partial(_validate.integer, 1))
  num_users: int | None = option(None, NUM_USERS_HELP, check=partial(_validate.integer, 1))
  model: str = option("logistic", own_model.HELP, check=own_model.check_name)


def load_dataset(options: Any) -> Dataset:
  """The data set that `DatasetOptions` name, whose test examples may be held-out ones.

  Raises:
    ValueError: if a file of one's own has users whom the options would ignore, or the reverse.
    FileNotFoundError: if a file is missing.
  """
  dataset = data.load(options.dataset, options.data_dir, options.data_file)
  by_user = getattr(options, "partition", None) == "writer"
  if options.dataset == "arrays" and (dataset.train_groups is not None) != by_user:
    raise ValueError(
      f"Expected an array users in {options.data_file} with --partition=writer and no other, got "
      f"{'none' if by_user else 'one'}; the guarantee is for these users: leave the array out, or "
      "change the partition."
    )
  if options.validation_share is None:
    return dataset
  return held_out(dataset, options.validation_share, options.data_seed, by_user=by_user)


def data_name(options: Any) -> str:
  """What a report calls the data: the data set, and whether its test examples were left alone."""
  if options.validation_share is None:
    return options.dataset
  return f"{options.dataset}, tested on {options.validation_share:.1%} of the training data"


def held_out(dataset: Dataset, share: float, seed: int, *, by_user: bool) -> Dataset:
  """The training examples alone, about a share of which take the test's place.

  Each user is held out by a coin of its own, on which nobody else's depends. So is each example, if
  users are not asked for: it is known by its place among the training examples.

  >>> chosen = held_out(data.digits(), 0.25, 0, by_user=False)
  >>> len(data.digits().train.labels), len(chosen.train.labels), len(chosen.test.labels)
  (1437, 1075, 362)
  """
  train, groups = dataset.train, dataset.train_groups
  units = groups if by_user and groups is not None else np.arange(len(train.labels))
  names, places = np.unique(units, return_inverse=True)
  coins = groups_by_identity((f"held out/{seed}/{name}" for name in names), _COIN_SIDES)
  chosen = coins < share * _COIN_SIDES
  if chosen.all() or not chosen.any():
    raise ValueError(
      f"Expected --validation_share to hold out some of {len(names)} and to leave some, got "
      f"{share:g}, which holds out {chosen.sum()}."
    )
  out = chosen[places]
  kept, held = (jax.tree.map(lambda x, part=part: x[part], train) for part in (~out, out))
  return dataset._replace(
    train=kept, test=held, train_groups=None if groups is None else groups[~out]
  )


def image_problem(
  options: Any, *, arrange: Callable[..., PyTree] = data.pack, precision: str = "float32"
) -> LearningProblem:
  """Reads the data, divides it among users and makes the model.

  Args:
    options: `ClassificationOptions` and `TrainingOptions` in one.
    arrange: how users lie in memory. It is `data.pack`, or `grouped` for a leading axis of users.
    precision: of local training (`CohortOptions`).

  Raises:
    ValueError: if the model does not fit the data, or the data has no writers.
    FileNotFoundError: if a file is missing.
  """
  dataset = load_dataset(options)
  model = own_model.make_model(options.model, dataset.input_shape, dataset.num_classes, Unit.USER)
  users = _users(options, dataset)
  public = _public(options, users)
  users = users[len(public) :]
  problem = _classification(
    options,
    model,
    clients=jax.tree.map(
      jnp.asarray, arrange(dataset.train, users, max_examples=_declared(options))
    ),
    test=jax.tree.map(jnp.asarray, dataset.test),
    sizes=np.array([len(user) for user in users]),
    name=f"{data_name(options)}, partition {options.partition}",
    precision=precision,
  )
  if not len(public):
    return problem
  images = np.concatenate(public)
  passes = f"{options.public_passes} passes"
  problem.facts["public"] = f"{len(images)} images of {len(public)} others, {passes}"
  public_examples = partial(jax.tree.map, lambda x: x[images], dataset.train)
  return with_public_start(problem, options, public_examples, sgd_rate=_PUBLIC_RATE)


def source_problem(options: Any, *, precision: str = "float32") -> LearningProblem:
  """Opens the users' source and makes the model.

  Args:
    options: `ProblemOptions` with a source.
    precision: of local training (`CohortOptions`).

  Raises:
    ValueError: if the source is not one (`own_source`), or the model does not fit it.
  """
  if options.examples_per_user is None:
    raise ValueError(
      "Expected --examples_per_user with --dataset=source, got none: every user is padded to it; "
      "declare a bound."
    )
  users, test, num_classes = own_source.open_source(options.source, options.examples_per_user)
  model = own_model.make_model(options.model, test.inputs.shape[1:], num_classes, Unit.USER)
  return _classification(
    options, model, users, test, sizes=None, name=options.source, precision=precision
  )


def _classification(
  options: Any,
  model: models.Model,
  clients: PyTree,
  test: data.Examples,
  *,
  sizes: np.ndarray | None,
  name: str,
  precision: str,
) -> LearningProblem:
  """The problem of a model and its data, of which the report says the name."""
  accuracy = jax.jit(partial(models.accuracy, model))
  problem = LearningProblem(
    init=model.init,
    loss=models.cross_entropy(in_precision(model, precision)),
    evaluate=lambda params: {"test_accuracy": accuracy(params, test)},
    clients=clients,
    sizes=sizes,
    headline="test_accuracy",
    facts={},
    equal=sizes is not None and options.partition in ("iid", "label"),
  )
  facts = {"data": name, "model": f"{options.model}, {problem.dim} parameters"}
  return problem._replace(facts=facts)


def _users(options: Any, dataset: Dataset) -> list[np.ndarray]:
  """The users of the partition, or the first so many of them."""
  users = _partition(options, dataset, np.random.default_rng(options.data_seed))
  if not (options.num_users or 0) <= len(users):
    raise ValueError(
      f"Expected --num_users of at most {len(users)}, those of the partition, got "
      f"{options.num_users}."
    )
  return users[: options.num_users]


def _public(options: Any, users: list[np.ndarray]) -> list[np.ndarray]:
  """The users whose images are declared public, if the experiment has such."""
  count = getattr(options, "public_users", None) or 0
  passes = getattr(options, "public_passes", 0)
  if bool(count) != bool(passes):
    raise ValueError(
      "Expected --public_users and --public_passes together, or neither, got "
      f"{count} users and {passes} passes."
    )
  if not count < len(users):
    raise ValueError(f"Expected --public_users below the {len(users)} users, got {count}.")
  return users[:count]


def grouped(train: data.Examples, users: list[np.ndarray], max_examples: int | None) -> PyTree:
  """`data.group` for a leading axis of users; without a bound, with the largest user's size.

  The report names that size among what is taken as public (`LearningProblem.public`).
  """
  return data.group(train, users, max_examples=max_examples or max(map(len, users)))


def _declared(options: Any) -> int | None:
  """The most examples of a user, where that follows from the options alone."""
  by_construction = {"iid": 1, "label": 2, "writer": None}
  if options.partition not in by_construction:
    return None
  return options.examples_per_user or by_construction[options.partition]


def _partition(options: Any, dataset: Dataset, rng: np.random.Generator) -> list[np.ndarray]:
  size = options.examples_per_user
  if options.partition == "iid":
    return data.partition_iid(rng, len(dataset.train.labels), size or 1)
  if options.partition == "label":
    return data.partition_by_label(rng, np.asarray(dataset.train.labels), size or 2)
  if options.partition == "dirichlet":
    labels = np.asarray(dataset.train.labels)
    return data.partition_dirichlet(
      rng, labels, max(1, len(labels) // (size or 10)), options.concentration
    )
  if dataset.train_groups is None:
    raise ValueError(
      f"Expected data with writers for --partition=writer, got {options.dataset} without; "
      "put mnist_writer_ids.npz beside MNIST's files, or choose --partition=iid."
    )
  users = data.partition_by_group(dataset.train_groups, num_examples=len(dataset.train.labels))
  return [user[:size] for user in users]
