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

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.general_approach.options import (
  GIVEN,
  MODELS,
  MOMENTUM,
  POLICIES,
  RELATIONS,
  RUNS,
  GeneralApproachOptions,
)
from experiments.general_approach.queries import Groups, make_groups, make_query
from experiments.general_approach.records import GroupsTask, Records
from experiments.general_approach.report import report_groups
from experiments.general_approach.timing import processor_seconds
from experiments.general_approach.two_vectors import report_two_vectors
from experiments.runner import processes
from experiments.runner.cohorts import layout_of
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.problems.images import load_dataset
from experiments.runner.problems.precision import in_precision
from experiments.runner.runs.layouts import Make
from experiments.runner.runs.sweep import Finished, Setting, Sweep, run_sweep
from jdp import data, models
from jdp.federated.iterative import CLASS_SHARES, Trained, initial_values, iterative_training
from jdp.guarantees import Relation, Unit
from jdp.queries import average


def prepare(options: GeneralApproachOptions) -> Work:
  """Reads the data, makes the queries and returns the work."""
  if options.task == "two_vectors":
    return lambda workdir: processes.by_first(lambda: report_two_vectors(workdir, options))
  if len(options.given_stddevs) != len(GIVEN):
    raise ValueError(
      f"Expected --given_stddevs of {', '.join(GIVEN)}, got {len(options.given_stddevs)} numbers."
    )
  leaving = [policy for policy in options.sampling if RELATIONS[policy] == Relation.ADD_REMOVE]
  if "discrete" in options.runs and leaving:
    raise ValueError(
      f"Expected --sampling of fixed_size or shuffled with --runs=discrete, got {leaving[0]}: the "
      "owner of a record that is removed would take its share of the noise along."
    )
  rows = _rows(options)
  rates = options.row_rates or (options.learning_rate,) * len(rows)
  if len(rates) != len(rows):
    raise ValueError(
      f"Expected --row_rates of {len(rows)} rows, got {len(rates)}; give one for each of --runs, "
      "and for each --record_size of microbatch and user."
    )
  task = load_groups_task(options)
  groups = make_groups(options, jax.eval_shape(task.init, jax.random.key(0)))
  settings = [
    _setting(options, task, groups, run, size, rate, policy)
    for (run, size), rate in zip(rows, rates, strict=True)
    for policy in options.sampling
  ]
  clients = {name: records.examples for name, records in task.records.items()}
  sweep = Sweep(
    settings, task.init, task.evaluate, clients, options.batch_size, options.delta, options.shard
  )

  def report(finished: Finished[GeneralApproachOptions, GroupsTask]) -> None:
    seconds = processor_seconds(sweep, options.timed_rounds) if options.timed_rounds else {}
    report_groups(groups, seconds, finished)

  return lambda workdir: run_sweep(sweep, task, workdir, options, report)


def load_groups_task(options: GeneralApproachOptions) -> GroupsTask:
  """Reads the data, cuts it into the records that the runs need, and makes the model.

  Raises:
    ValueError: if a sample or the records are larger than the data.
    FileNotFoundError: if a file is missing.
  """
  dataset = load_dataset(options, options.data_seed)
  model = MODELS[options.model](dataset.input_shape, dataset.num_classes)
  kinds = {_kind(run, size): (run, size) for run, size in _rows(options)}
  test = jax.tree.map(jnp.asarray, dataset.test)
  classifier = models.Model(
    model.init, lambda values, x: model.apply(values.weights, values.statistics, x)[0]
  )
  accuracy = jax.jit(partial(models.accuracy, classifier))
  classes = dataset.num_classes if options.class_shares else 0
  # The classes' shares of the test examples stand for the training examples', which are private.
  test_shares = jnp.bincount(test.labels, length=max(1, classes)) / len(test.labels)

  def evaluate(values: Trained) -> dict[str, jax.Array]:
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


def _rows(options: GeneralApproachOptions) -> list[tuple[str, int]]:
  """The runs, each with the size of its records."""
  return [
    (run, size)
    for run in options.runs
    for size in (options.record_size if run in _PARTITIONS else (1,))
  ]


def _kind(run: str, size: int) -> str:
  """The kind of a run's records. Runs that do not cut their own share single examples."""
  return f"{run}_{size}" if run in _PARTITIONS else "example"


def _records(options: GeneralApproachOptions, train: data.Examples, run: str, size: int) -> Records:
  rng = np.random.default_rng(options.data_seed)
  if run not in _PARTITIONS:
    return Records(Unit.EXAMPLE, data.group(train, list(np.arange(len(train.labels))[:, None])))
  return Records(Unit(run), data.group(train, _PARTITIONS[run](rng, train.labels, size)))


def _setting(
  options: GeneralApproachOptions,
  task: GroupsTask,
  groups: Groups,
  run: str,
  size: int,
  rate: float,
  policy: str,
) -> Setting:
  """A row of the table: a run on records of one size, at one rate, by one sampling policy."""
  kind = _kind(run, size)
  records = task.records[kind]
  sampler = records.sampler(policy, options.batch_size)
  make: Make = partial(
    iterative_training,
    in_precision(task.model, options.precision),
    average(make_query(options, groups, run, sampler.expected_size), sampler.expected_size),
    sampler,
    optax.sgd(rate, momentum=MOMENTUM if options.momentum else None),
    relation=RELATIONS[policy],
    unit=records.unit,
    diagnose=options.diagnostics,
  )
  name, label = run, RUNS[run]
  if run in _PARTITIONS:
    label += f" of {size}"
    name += f"_{size}" if len(options.record_size) > 1 else ""
  if len(options.sampling) > 1:
    label += f", {POLICIES[policy]}"
    name += f"_{policy}"
  public = f"N = {len(records.examples.labels)} units"
  return Setting(
    name,
    label,
    make(**layout_of(options)),
    private=run not in ("none", "clipped"),
    public=public,
    part=kind,
    make=make,
  )


EXPERIMENT = Experiment("general_approach", GeneralApproachOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
