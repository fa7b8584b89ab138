"""A general approach to private iterative training: groups of vectors (arXiv 1812.06210).

Trains one model whose gradients, batch-norm statistics and accuracy metrics are groups of one query
on one sample. It compares the configurations that the paper names, all at one noise multiplier z of
the whole:

* separate, joint and adaptive clipping
* three ways to divide the noise among the groups
* noise of floats, on a public grid, and of integers by the clients
* an example, a microbatch or a user as the record, and four sampling policies

`--task=two_vectors` is the example of Section 2. The presets tutorial_1 and tutorial_2 are the
settings of TensorFlow Privacy's MNIST tutorial.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.general_approach.queries import GIVEN, Groups, make_groups, make_query
from experiments.general_approach.report import report_groups
from experiments.general_approach.timing import processor_seconds
from experiments.general_approach.two_vectors import report_two_vectors
from experiments.runner import processes
from experiments.runner.cohorts import ShardOptions, layout_of
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.options import option
from experiments.runner.problems.image_options import DatasetOptions
from experiments.runner.problems.images import load_dataset
from experiments.runner.problems.precision import in_precision
from experiments.runner.runs.layouts import Make
from experiments.runner.runs.sweep import Setting, Sweep, run_sweep
from experiments.runner.runs.training import TrainingOptions
from experiments.runner.runs.workdir import Workdir
from jdp import _validate, data, models, sampling
from jdp.federated.iterative import CLASS_SHARES, initial_values, iterative_training
from jdp.guarantees import Relation, Unit
from jdp.models.batch_norm import NormalisedModel, batch_norm_cnn, without_statistics
from jdp.queries import average

_count = partial(_validate.integer, 1)
_MOMENTUM = 0.9
_MODELS: dict[str, Callable[..., NormalisedModel]] = {
  "batch_norm": batch_norm_cnn,
  "cnn": lambda *shapes: without_statistics(models.small_cnn(*shapes)),
}
_RELATIONS = {
  "poisson": Relation.ADD_REMOVE,
  "fixed_size": Relation.REPLACE_ONE,
  "shuffled": Relation.ZERO_OUT,
  "balls_in_bins": Relation.ADD_REMOVE,
}
_RUNS = {
  "none": "no privacy",
  "proportional": "separate, proportional noise",
  "dimension": "separate, dimension-adjusted",
  "given": "separate, noise as given",
  "joint": "joint clipping",
  "adaptive": "separate, adaptive clipping",
  "grid": "proportional, noise on a grid",
  "discrete": "proportional, discrete noise",
  "microbatch": "proportional, microbatches",
  "user": "proportional, users",
}
_POLICIES = {
  "poisson": "Poisson",
  "fixed_size": "fixed size",
  "shuffled": "shuffled epochs",
  "balls_in_bins": "balls in bins",
}


@dataclasses.dataclass(frozen=True)
class GeneralApproachOptions(TrainingOptions, DatasetOptions, ShardOptions):
  """The options of this experiment."""

  task: str = option("training", "What is asked.", choices=("training", "two_vectors"))
  model: str = option(
    "batch_norm", "What is trained; cnn has no statistics.", choices=tuple(_MODELS)
  )
  runs: tuple[str, ...] = option(
    tuple(name for name in _RUNS if name != "discrete"),
    "Rows of the table. A record is an example, but for microbatch and user.",
    choices=tuple(_RUNS),
  )
  record_size: tuple[int, ...] = option(
    (10,), "Examples of a microbatch, and of a user (of two labels); a row for each.", check=_count
  )
  sampling: tuple[str, ...] = option(
    ("poisson",), "Which records a round samples; a row for each.", choices=tuple(_RELATIONS)
  )
  batch_size: int = option(144, "Expected examples of a round.", check=_count)
  noise_multiplier: float = option(1.0, "z, of all groups together.", check=_validate.positive)
  delta: float = option(
    1e-5, "Delta of the guarantees.", check=partial(_validate.in_range, 1e-300, 0.5)
  )
  layers: bool = option(True, "Whether convolutions and dense layers are groups of their own.")
  metrics: bool = option(True, "Whether training accuracy and loss are a group, and released.")
  class_shares: bool = option(
    False, "Whether the share of each label is a group of its own, and released."
  )
  gradient_clip_norm: float = option(
    1.0, "S of a whole gradient; each group's: S / sqrt(groups).", check=_validate.positive
  )
  moments_clip_norm: float = option(
    5.0, "S of the moments of all normalised layers.", check=_validate.positive
  )
  joint_clip_norm: float | None = option(
    None,
    "S of the record whose groups are divided by their S (joint). Default: sqrt(groups), the "
    "noise of --runs=proportional with less clipping.",
    check=_validate.positive,
  )
  given_stddevs: tuple[float, ...] = option(
    (0.01, 0.05, 0.02),
    f"Noise on each coordinate of the averages of {', '.join(GIVEN)} (given), up to the factor "
    "that meets z.",
    check=_validate.positive,
  )
  spacing: float = option(
    0.25,
    "Spacing of the grid, in standard deviations of each group's noise (grid).",
    check=partial(_validate.in_range, 1 / 16, 16.0),
  )
  timed_rounds: int = option(
    0,
    "Rounds of each row, run once more to measure their processor time.",
    check=partial(_validate.integer, 0),
  )
  learning_rate: float = option(0.5, "Of the server's SGD.", check=_validate.positive)
  momentum: bool = option(False, f"Whether SGD has momentum {_MOMENTUM}.")


class Records(NamedTuple):
  """The data as records of one kind.

  Attributes:
    unit: what a record is.
    examples: `Examples` with leading axes [records, examples of a record].
  """

  unit: Unit
  examples: data.Examples

  def sampler(self, policy: str, batch_size: int) -> sampling.Sampler:
    """The sampler of the policy's name, of so many expected examples."""
    population, size = self.examples.labels.shape
    return _sampler(policy, population, batch_size / size)


class GroupsTask(NamedTuple):
  """What all runs share.

  Attributes:
    model: what is trained.
    init: key -> the server's values.
    evaluate: the server's values -> metrics, none of them private.
    records: the data, by kind: "example", or the name of a run with the records' size.
  """

  model: NormalisedModel
  init: Callable[[jax.Array], Any]
  evaluate: Callable[[Any], dict[str, jax.Array]]
  records: dict[str, Records]


def prepare(options: GeneralApproachOptions) -> Work:
  """Reads the data, makes the queries and returns the work."""
  if options.task == "two_vectors":
    return lambda workdir: processes.by_first(lambda: report_two_vectors(workdir, options))
  if len(options.given_stddevs) != len(GIVEN):
    raise ValueError(
      f"Expected --given_stddevs of {', '.join(GIVEN)}, got {len(options.given_stddevs)} numbers."
    )
  leaving = [policy for policy in options.sampling if _RELATIONS[policy] == Relation.ADD_REMOVE]
  if "discrete" in options.runs and leaving:
    raise ValueError(
      f"Expected --sampling of fixed_size or shuffled with --runs=discrete, got {leaving[0]}: the "
      "owner of a record that is removed would take its share of the noise along."
    )
  task = load_groups_task(options)
  groups = make_groups(options, jax.eval_shape(task.init, jax.random.key(0)))
  settings = [
    _setting(options, task, groups, run, size, policy)
    for run in options.runs
    for size in (options.record_size if run in _PARTITIONS else (1,))
    for policy in options.sampling
  ]
  clients = {name: records.examples for name, records in task.records.items()}
  sweep = Sweep(
    settings, task.init, task.evaluate, clients, options.batch_size, options.delta, options.shard
  )

  def work(workdir: Workdir):
    def report(results):
      seconds = processor_seconds(sweep, options.timed_rounds) if options.timed_rounds else {}
      report_groups(workdir, options, task, groups, results, seconds)

    run_sweep(sweep, workdir, options, report)

  return work


def load_groups_task(options: GeneralApproachOptions) -> GroupsTask:
  """Reads the data, cuts it into the records that the runs need, and makes the model.

  Raises:
    ValueError: if a sample or the records are larger than the data.
    FileNotFoundError: if a file is missing.
  """
  dataset = load_dataset(options, options.data_seed)
  model = _MODELS[options.model](dataset.input_shape, dataset.num_classes)
  kinds = {
    _kind(run, size): (run, size)
    for run in options.runs
    for size in (options.record_size if run in _PARTITIONS else (1,))
  }
  test = jax.tree.map(jnp.asarray, dataset.test)
  classifier = models.Model(
    model.init, lambda values, x: model.apply(values.weights, values.statistics, x)[0]
  )
  accuracy = jax.jit(partial(models.accuracy, classifier))
  classes = dataset.num_classes if options.class_shares else 0
  # The classes' shares of the test examples stand for the training examples', which are private.
  test_shares = jnp.bincount(test.labels, length=max(1, classes)) / len(test.labels)

  def evaluate(values):
    released = {f"train_{name}": value for name, value in values.metrics.items()}
    shares = released.pop(f"train_{CLASS_SHARES}", None)
    if shares is not None:
      released["class_shares_error"] = jnp.abs(shares - test_shares).max()
    return {"test_accuracy": accuracy(values, test), **released}

  return GroupsTask(
    model=model,
    init=lambda key: initial_values(model, key, metrics=options.metrics, num_classes=classes),
    evaluate=evaluate,
    records={
      kind: _records(options, dataset.train, run, size) for kind, (run, size) in kinds.items()
    },
  )


_PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
  "microbatch": lambda rng, labels, size: data.partition_iid(rng, len(labels), size),
  "user": data.partition_by_label,
}


def _kind(run: str, size: int) -> str:
  """The kind of a run's records. Runs that do not cut their own share single examples."""
  return f"{run}_{size}" if run in _PARTITIONS else "example"


def _records(options: GeneralApproachOptions, train: data.Examples, run: str, size: int) -> Records:
  rng = np.random.default_rng(options.data_seed)
  if run not in _PARTITIONS:
    return Records(Unit.EXAMPLE, data.group(train, list(np.arange(len(train.labels))[:, None])))
  return Records(Unit(run), data.group(train, _PARTITIONS[run](rng, train.labels, size)))


def _sampler(policy: str, population: int, expected_size: float) -> sampling.Sampler:
  if not 1 <= expected_size <= population:
    raise ValueError(
      f"Expected --batch_size to be from one record to all {population}, got {expected_size:g} "
      "records."
    )
  if policy == "poisson":
    return sampling.poisson(population, expected_size / population)
  if policy == "balls_in_bins":
    return sampling.balls_in_bins(population, round(population / expected_size))
  return getattr(sampling, policy)(population, round(expected_size))


def _setting(
  options: GeneralApproachOptions,
  task: GroupsTask,
  groups: Groups,
  run: str,
  size: int,
  policy: str,
) -> Setting:
  """A row of the table: a run on records of one size, by one sampling policy."""
  kind = _kind(run, size)
  records = task.records[kind]
  sampler = records.sampler(policy, options.batch_size)
  make: Make = partial(
    iterative_training,
    in_precision(task.model, options.precision),
    average(make_query(options, groups, run, sampler.expected_size), sampler.expected_size),
    sampler,
    optax.sgd(options.learning_rate, momentum=_MOMENTUM if options.momentum else None),
    relation=_RELATIONS[policy],
    unit=records.unit,
    diagnose=options.diagnostics,
  )
  name, label = run, _RUNS[run]
  if run in _PARTITIONS:
    label += f" of {size}"
    name += f"_{size}" if len(options.record_size) > 1 else ""
  if len(options.sampling) > 1:
    label += f", {_POLICIES[policy]}"
    name += f"_{policy}"
  public = f"N = {len(records.examples.labels)} units"
  return Setting(
    name,
    label,
    make(**layout_of(options)),
    private=run != "none",
    public=public,
    part=kind,
    make=make,
  )


EXPERIMENT = Experiment("general_approach", GeneralApproachOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
