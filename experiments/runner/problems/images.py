"""Classification problems: a data set divided among users, and a model."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.runner.options import needed
from experiments.runner.problems import own_model, own_source
from experiments.runner.problems.held_out import held_out
from experiments.runner.problems.image_options import ClassificationOptions, DatasetOptions
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.problems.precision import in_precision
from experiments.runner.problems.problem_options import LearningOptions, ProblemOptions
from experiments.runner.problems.public_start import with_public_start
from jdp import data, models
from jdp.data.datasets import Dataset
from jdp.guarantees import Unit
from jdp.queries.base import PyTree

_PUBLIC_RATE = 0.1


def load_dataset(options: DatasetOptions, data_seed: int, *, by_user: bool = False) -> Dataset:
  """The data set that the options name, whose test examples may be held-out ones.

  Args:
    options: which.
    data_seed: of what is held out.
    by_user: whether the data's own users are the experiment's.

  Raises:
    ValueError: if a file of one's own has users whom the options would ignore, or the reverse.
    FileNotFoundError: if a file is missing.
  """
  dataset = data.load(options.dataset, options.data_dir, options.data_file)
  if options.dataset == "arrays" and (dataset.train_groups is not None) != by_user:
    raise ValueError(
      f"Expected an array users in {options.data_file} with --partition=writer and no other, got "
      f"{'none' if by_user else 'one'}; the guarantee is for these users: leave the array out, or "
      "change the partition."
    )
  if options.validation_share is None:
    return dataset
  return without_test(dataset, options.validation_share, data_seed, by_user=by_user)


def data_name(options: DatasetOptions) -> str:
  """What a report calls the data: the data set, and whether its test examples were left alone."""
  if options.validation_share is None:
    return options.dataset
  return f"{options.dataset}, tested on {options.validation_share:.1%} of the training data"


def without_test(dataset: Dataset, share: float, seed: int, *, by_user: bool) -> Dataset:
  """The training examples alone, about a share of which take the test's place.

  Users are held out, if they are asked for, and examples otherwise: each is known by its place
  among the training examples.

  >>> chosen = without_test(data.digits(), 0.25, 0, by_user=False)
  >>> len(data.digits().train.labels), len(chosen.train.labels), len(chosen.test.labels)
  (1437, 1075, 362)
  """
  train, groups = dataset.train, dataset.train_groups
  units = groups if by_user and groups is not None else np.arange(len(train.labels))
  names, places = np.unique(units, return_inverse=True)
  chosen = held_out(names.tolist(), share, seed)
  out = chosen[places]
  kept, held = (jax.tree.map(lambda x, part=part: x[part], train) for part in (~out, out))
  return dataset._replace(
    train=kept, test=held, train_groups=None if groups is None else groups[~out]
  )


def classification(
  options: ClassificationOptions,
  data_seed: int,
  *,
  arrange: Callable[..., PyTree] = data.pack,
  precision: str = "float32",
) -> LearningProblem:
  """Reads the data, divides it among users and makes the model.

  Args:
    options: what is learnt, and from whom.
    data_seed: of the partition, and of what is held out.
    arrange: how users lie in memory. It is `data.pack`, or `grouped` for a leading axis of users.
    precision: of local training (`CohortOptions`).

  Raises:
    ValueError: if the model does not fit the data, or the data has no writers.
    FileNotFoundError: if a file is missing.
  """
  dataset, model = _dataset_and_model(options, data_seed)
  users = _users(options, dataset, data_seed)
  return _of_users(options, model, dataset, users, arrange, precision)


def image_problem(
  options: LearningOptions, *, arrange: Callable[..., PyTree] = data.pack
) -> LearningProblem:
  """`classification` that begins with the images of public users, if there are such."""
  dataset, model = _dataset_and_model(options, options.data_seed)
  users = _users(options, dataset, options.data_seed)
  public = _public(options, users)
  users = users[len(public) :]
  problem = _of_users(options, model, dataset, users, arrange, options.precision)
  if not len(public):
    return problem
  images = np.concatenate(public)
  passes = f"{options.public_passes} passes"
  said = f"{len(images)} images of {len(public)} others, {passes}"
  return with_public_start(
    problem._replace(facts={**problem.facts, "public": said}),
    options,
    partial(jax.tree.map, lambda x: x[images], dataset.train),
    init_seed=options.init_seed,
    data_seed=options.data_seed,
    sgd_rate=_PUBLIC_RATE,
  )


def source_problem(options: ProblemOptions, *, precision: str = "float32") -> LearningProblem:
  """Opens the users' source and makes the model.

  Args:
    options: with a source.
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
    options, model, users, test, sizes=None, name=needed(options.source), precision=precision
  )


def _dataset_and_model(
  options: ClassificationOptions, data_seed: int
) -> tuple[Dataset, models.Model]:
  dataset = load_dataset(options, data_seed, by_user=options.partition == "writer")
  return dataset, own_model.make_model(
    options.model, dataset.input_shape, dataset.num_classes, Unit.USER
  )


def _of_users(
  options: ClassificationOptions,
  model: models.Model,
  dataset: Dataset,
  users: list[np.ndarray],
  arrange: Callable[..., PyTree],
  precision: str,
) -> LearningProblem:
  """The problem of these users of the data."""
  return _classification(
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


def _classification(
  options: ClassificationOptions,
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


def _users(options: ClassificationOptions, dataset: Dataset, data_seed: int) -> list[np.ndarray]:
  """The users of the partition, or the first so many of them."""
  users = _partition(options, dataset, np.random.default_rng(data_seed))
  if not (options.num_users or 0) <= len(users):
    raise ValueError(
      f"Expected --num_users of at most {len(users)}, those of the partition, got "
      f"{options.num_users}."
    )
  return users[: options.num_users]


def _public(options: ProblemOptions, users: list[np.ndarray]) -> list[np.ndarray]:
  """The users whose images are declared public."""
  count, passes = options.public_users or 0, options.public_passes
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


def _declared(options: ClassificationOptions) -> int | None:
  """The most examples of a user, where that follows from the options alone."""
  by_construction = {"iid": 1, "label": 2, "writer": None}
  if options.partition not in by_construction:
    return None
  return options.examples_per_user or by_construction[options.partition]


def _partition(
  options: ClassificationOptions, dataset: Dataset, rng: np.random.Generator
) -> list[np.ndarray]:
  size = options.examples_per_user
  if options.partition == "iid":
    return data.partition_iid(rng, len(dataset.train.labels), size or 1)
  if options.partition == "label":
    return data.partition_by_label(rng, np.asarray(dataset.train.labels), size or 2)
  if options.partition == "dirichlet":
    labels = np.asarray(dataset.train.labels)
    return data.partition_dirichlet(
      rng, labels, max(1, len(labels) // (size or 10)), needed(options.concentration)
    )
  if dataset.train_groups is None:
    raise ValueError(
      f"Expected data with writers for --partition=writer, got {options.dataset} without; "
      "MNIST has them with mnist_writer_ids.npz beside its files, and arrays with users; or choose "
      "--partition=iid."
    )
  users = data.partition_by_group(dataset.train_groups, num_examples=len(dataset.train.labels))
  return [user[:size] for user in users]
