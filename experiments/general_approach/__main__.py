"""A general approach to private iterative training: groups of vectors (arXiv 1812.06210).

Trains one model whose gradients, batch-norm statistics and accuracy metrics are groups of one query
on one sample. It compares the configurations that the paper names, all at one noise multiplier z of
the whole:

* separate against joint clipping
* three ways to divide the noise among the groups
* an example, a microbatch or a user as the record

The presets tutorial_1 and tutorial_2 are the settings of TensorFlow Privacy's MNIST tutorial.
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
from experiments.runner import processes
from experiments.runner.cohorts import ShardOptions, layout_of
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.options import option
from experiments.runner.problems.images import DatasetOptions, load_dataset
from experiments.runner.problems.precision import in_precision
from experiments.runner.runs.sweep import Setting, Sweep, run_sweep
from experiments.runner.runs.training import TrainingOptions
from experiments.runner.runs.workdir import Workdir
from jdp import _validate, data, models, sampling
from jdp.federated.iterative import initial_values, iterative_training
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
  "microbatch": "proportional, microbatches",
  "user": "proportional, users",
}


@dataclasses.dataclass(frozen=True)
class GeneralApproachOptions(TrainingOptions, DatasetOptions, ShardOptions):
  """The options of this experiment."""

  model: str = option(
    "batch_norm", "What is trained; cnn has no statistics.", choices=tuple(_MODELS)
  )
  runs: tuple[str, ...] = option(
    tuple(_RUNS),
    "Rows of the table. A record is an example, but for microbatch and user.",
    choices=tuple(_RUNS),
  )
  record_size: int = option(
    10, "Examples of a microbatch, and of a user (of two labels).", check=_count
  )
  sampling: str = option("poisson", "Which records a round samples.", choices=tuple(_RELATIONS))
  batch_size: int = option(144, "Expected examples of a round.", check=_count)
  noise_multiplier: float = option(1.0, "z, of all groups together.", check=_validate.positive)
  delta: float = option(
    1e-5, "Delta of the guarantees.", check=partial(_validate.in_range, 1e-300, 0.5)
  )
  layers: bool = option(True, "Whether convolutions and dense layers are groups of their own.")
  metrics: bool = option(True, "Whether training accuracy and loss are a group, and released.")
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
  learning_rate: float = option(0.5, "Of the server's SGD.", check=_validate.positive)
  momentum: bool = option(False, f"Whether SGD has momentum {_MOMENTUM}.")


class Records(NamedTuple):
  """The data as records of one kind.

  Attributes:
    unit: what a record is.
    examples: `Examples` with a leading axis of records.
    sampler: samples the records of a round.
  """

  unit: Unit
  examples: data.Examples
  sampler: sampling.Sampler


class GroupsTask(NamedTuple):
  """What all runs share.

  Attributes:
    model: what is trained.
    init: key -> the server's values.
    evaluate: the server's values -> metrics, none of them private.
    records: the data, by the name of the runs that use them; "example" for all other runs.
    relation: the relation under which the samplers are analysed.
  """

  model: NormalisedModel
  init: Callable[[jax.Array], Any]
  evaluate: Callable[[Any], dict[str, jax.Array]]
  records: dict[str, Records]
  relation: Relation


def prepare(options: GeneralApproachOptions) -> Work:
  """Reads the data, makes the queries and returns the work."""
  if len(options.given_stddevs) != len(GIVEN):
    raise ValueError(
      f"Expected --given_stddevs of {', '.join(GIVEN)}, got {len(options.given_stddevs)} numbers."
    )
  task = load_groups_task(options)
  groups = make_groups(options, jax.eval_shape(task.init, jax.random.key(0)))
  settings = [_setting(options, task, groups, run) for run in options.runs]
  clients = {name: records.examples for name, records in task.records.items()}
  sweep = Sweep(
    settings, task.init, task.evaluate, clients, options.batch_size, options.delta, options.shard
  )

  def work(workdir: Workdir):
    results = run_sweep(sweep, workdir, options)
    processes.by_first(lambda: report_groups(workdir, options, task, groups, results))

  return work


def load_groups_task(options: GeneralApproachOptions) -> GroupsTask:
  """Reads the data, cuts it into the records that the runs need, and makes the model.

  Raises:
    ValueError: if a sample or the records are larger than the data.
    FileNotFoundError: if a file is missing.
  """
  dataset = load_dataset(options)
  model = _MODELS[options.model](dataset.input_shape, dataset.num_classes)
  # Runs that do not cut their own records share those of single examples.
  kinds = dict.fromkeys(run if run in _PARTITIONS else "example" for run in options.runs)
  test = jax.tree.map(jnp.asarray, dataset.test)
  classifier = models.Model(
    model.init, lambda values, x: model.apply(values.weights, values.statistics, x)[0]
  )
  accuracy = jax.jit(partial(models.accuracy, classifier))

  def evaluate(values):
    released = {f"train_{name}": value for name, value in values.metrics.items()}
    return {"test_accuracy": accuracy(values, test), **released}

  return GroupsTask(
    model=model,
    init=lambda key: initial_values(model, key, metrics=options.metrics),
    evaluate=evaluate,
    records={kind: _records(options, dataset.train, kind) for kind in kinds},
    relation=_RELATIONS[options.sampling],
  )


_PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
  "microbatch": lambda rng, labels, size: data.partition_iid(rng, len(labels), size),
  "user": data.partition_by_label,
}


def _records(options: GeneralApproachOptions, train: data.Examples, kind: str) -> Records:
  rng = np.random.default_rng(options.data_seed)
  if kind == "example":
    size, members = 1, list(np.arange(len(train.labels))[:, None])
  else:
    size = options.record_size
    members = _PARTITIONS[kind](rng, train.labels, size)
  # --batch_size counts examples; a record has `size` of them.
  sampler = _sampler(options.sampling, len(members), options.batch_size / size)
  return Records(Unit(kind), data.group(train, members), sampler)


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
) -> Setting:
  """The table's row of the name `run`."""
  kind = run if run in task.records else "example"
  records = task.records[kind]
  make = partial(
    iterative_training,
    in_precision(task.model, options.precision),
    average(make_query(options, groups, run), records.sampler.expected_size),
    records.sampler,
    optax.sgd(options.learning_rate, momentum=_MOMENTUM if options.momentum else None),
    relation=task.relation,
    unit=records.unit,
    diagnose=options.diagnostics,
  )
  public = f"N = {len(records.examples.labels)} units"
  return Setting(
    run,
    _RUNS[run],
    make(**layout_of(options)),
    private=run != "none",
    public=public,
    part=kind,
    make=make,
  )


EXPERIMENT = Experiment("general_approach", GeneralApproachOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
