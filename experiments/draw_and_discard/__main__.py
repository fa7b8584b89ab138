"""Draw and Discard: a server of k model instances, and locally private clients (arXiv 1807.04369).

There are four tasks:

* `--task=training` is the paper's Figure 2 and its application to phishing URLs. It shows accuracy
  and loss against examples seen: for several k without noise, for batching on the server, and for
  several epsilons.
* `--task=variance` is Figure 1.
* `--task=spam` measures the test for models that no honest client would send (Section 3.4.4).
* `--task=stream` is a deployment: clients hold models while others update, some are attackers, and
  the server tests for spam or not.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.draw_and_discard.deployment import report_stream, stream_settings
from experiments.draw_and_discard.network import Network, network
from experiments.draw_and_discard.options import DrawAndDiscardOptions
from experiments.draw_and_discard.privacy import adversary_statements
from experiments.draw_and_discard.report import at_rates, report_training
from experiments.draw_and_discard.simulations import report_simulation, spam_part, variance_part
from experiments.draw_and_discard.stream import Start, StreamTask, diagnosed, started
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.options import needed
from experiments.runner.problems.images import load_dataset
from experiments.runner.runs.sweep import Setting, Sweep, run_sweep
from experiments.runner.runs.workdir import Workdir
from jdp import data
from jdp.data.phishing import phishing
from jdp.events import LocalRelease
from jdp.federated import FederatedAlgorithm
from jdp.federated.draw_and_discard import (
  ClientUpdate,
  average_predictions,
  draw_and_discard,
  exact_update,
  gaussian_update,
  laplace_update,
  passes,
  server_batching,
)
from jdp.federated.draw_and_discard.client_updates import Gradient
from jdp.federated.draw_and_discard.instance_server import average_model
from jdp.guarantees import rounded_up
from jdp.models import glm
from jdp.models.generalised_linear import GLM
from jdp.queries.base import PyTree


def prepare(options: DrawAndDiscardOptions) -> Work:
  """Reads the data, makes the processes and returns the work."""
  if options.max_epsilon is not None:
    raise ValueError(
      "Expected no --max_epsilon: passes and --epsilons fix what users spend; choose --num_rounds."
    )
  if options.early_stop is not None and options.task not in ("training", "stream"):
    raise ValueError(
      f"Expected --early_stop with --task=training alone, got --task={options.task}; leave it out."
    )
  if not options.epsilons and options.task != "training":
    raise ValueError(f"Expected an epsilon with --task={options.task}, got none; give --epsilons.")
  return _TASKS[options.task](options)


def _training(options: DrawAndDiscardOptions) -> Callable[[Workdir], None]:
  task = load_stream_task(options)
  settings = make_settings(options, task)
  if not settings:
    raise ValueError(
      "Expected something to run, got no --instances, no --batch_sizes and no --epsilons."
    )

  evaluate = evaluation(task)
  # A guarantee that cannot be stated is refused here, before anything runs.
  for epsilon in options.epsilons:
    release = noisy_update(options, task.model.gradient, epsilon).event.guarantee
    adversary_statements(options, task, LocalRelease(release, task.schedule.max_releases))
  sweep = Sweep(
    settings, _start(task), evaluate, task.clients, task.schedule.round_size, options.delta
  )

  return lambda workdir: run_sweep(sweep, task, workdir, options, report_training)


def _start(task: StreamTask) -> Callable[[jax.Array], Start]:
  def init(key):
    spread_key, model_key = jax.random.split(key)
    return Start(spread_key, task.model.init(model_key))

  return init


def load_stream_task(options: DrawAndDiscardOptions) -> StreamTask:
  """Reads the data, divides it among users and makes the model."""
  if options.dataset == "phishing":
    if options.data_dir is None:
      raise ValueError(
        "Expected --data_dir for phishing, got none; name the folder with urls_50k.csv.gz."
      )
    dataset, family, outputs = phishing(options.data_dir), "logistic", 1
  else:
    dataset, family = load_dataset(options, options.data_seed), "multinomial"
    outputs = dataset.num_classes
  rng = np.random.default_rng(options.data_seed)
  users = data.partition_iid(rng, len(dataset.train.labels), needed(options.examples_per_user))
  rounds_per_pass = needed(options.rounds_per_pass)
  if not rounds_per_pass <= len(users):
    raise ValueError(
      f"Expected --rounds_per_pass of at most {len(users)} users, got {rounds_per_pass}."
    )
  clients, test = jax.tree.map(jnp.asarray, (data.group(dataset.train, users), dataset.test))
  features = int(np.prod(dataset.input_shape))
  schedule = passes(len(users), options.num_rounds, rounds_per_pass=rounds_per_pass)
  made = _make_model(options, family, dataset.input_shape, outputs)
  if isinstance(made, Network):
    # Nothing bounds a network's gradient but its clipping.
    return StreamTask(made, clients, test, schedule, math.inf)
  # The residuals of one example: each is below 1. With several outputs they are a difference of two
  # distributions, so the sum of their absolute values is below 2.
  return StreamTask(made, clients, test, schedule, features * min(2.0, outputs))


def _make_model(
  options: DrawAndDiscardOptions, family: str, input_shape: tuple[int, ...], outputs: int
) -> GLM | Network:
  if not options.hidden:
    return glm(family, input_shape, outputs)
  if outputs == 1:
    raise ValueError("Expected no --hidden with --dataset=phishing, which has a single output.")
  return network(input_shape, outputs, options.hidden)


def evaluation(task: StreamTask) -> Callable[[PyTree], dict[str, jax.Array]]:
  """The evaluation of instances on the test examples.

  It has the accuracy and loss of their average, the accuracy of their averaged predictions, and the
  variance between them, averaged over the weights.
  """

  def accuracy(chances, labels):
    several = chances.shape[1] > 1
    return jnp.mean((jnp.argmax(chances, 1) if several else chances[:, 0] > 0.5) == labels)

  @jax.jit
  def evaluate(models, test):
    average = average_model(models)
    variances = [jnp.var(x, axis=0, ddof=1).ravel() for x in jax.tree.leaves(models)]
    alone = jax.tree.leaves(models)[0].shape[0] == 1
    predictions = average_predictions(task.model.predict, models, test.inputs)
    return {
      "test_accuracy": accuracy(task.model.predict(average, test.inputs), test.labels),
      "prediction_accuracy": accuracy(predictions, test.labels),
      "test_loss": task.model.loss(average, test),
      "instance_variance": jnp.float32(0) if alone else jnp.concatenate(variances).mean(),
    }

  return lambda models: evaluate(models, task.test)


def noisy_update(
  options: DrawAndDiscardOptions, gradient: Gradient, epsilon: float
) -> ClientUpdate:
  """What a client does at this epsilon."""
  if options.noise == "gaussian":
    make = partial(gaussian_update, gradient, epsilon, options.delta, options.learning_rate)
  else:
    make = partial(laplace_update, gradient, epsilon, options.learning_rate)
  return make(clip=options.clip, unit=options.unit, schedule=_decay(options))


def _decay(
  options: DrawAndDiscardOptions, clients: int = 1
) -> Callable[[jax.Array], jax.Array] | None:
  """The factor of the learning rate by the number of steps, of `clients` clients each."""
  half_after = options.half_after
  if half_after is None:
    return None
  return lambda number: 1 / (1 + number * (clients / half_after))


def make_settings(options: DrawAndDiscardOptions, task: StreamTask) -> list[Setting]:
  """The runs: each k and each batch size without noise at each rate, and each epsilon."""
  gradient, schedule = task.model.gradient, task.schedule
  # Runs without noise spread their instances as runs with noise would.
  spread = noisy_update(options, gradient, needed(options.spread_epsilon)).noise_variance

  def exact(rate, clients=1):
    return exact_update(gradient, rate, clip=options.clip, schedule=_decay(options, clients))

  def setting(
    name: str, label: str, algorithm: FederatedAlgorithm, update: ClientUpdate
  ) -> Setting:
    made = (
      diagnosed(algorithm, update, schedule, task.model.loss, options.eval_every)
      if options.diagnostics
      else algorithm
    )
    # Local privacy gives no central guarantee that a budget could limit.
    return Setting(name, label, made, private=False)

  def keep(update, k, spread):
    made = draw_and_discard(
      update,
      k,
      schedule,
      in_flight=needed(options.in_flight),
      random_returns=needed(options.random_returns),
      block_size=options.chunk_size,
    )
    return started(made, k, spread), update

  def batch(size, rate):
    update = exact(rate, size)
    return started(
      server_batching(update, size, schedule, block_size=options.chunk_size), 1, 0.0
    ), update

  k = options.noisy_instances
  noisy = [(epsilon, noisy_update(options, gradient, epsilon)) for epsilon in options.epsilons]
  rates = (options.learning_rate, *needed(options.further_rates))
  return (
    [
      setting(f"k_{k}{_at(options, rate)}", label, *keep(exact(rate), k, spread))
      for k in needed(options.instances)
      for rate, label in zip(rates, at_rates(options, f"k = {k}"), strict=True)
    ]
    + [
      setting(f"batch_{size}{_at(options, rate)}", label, *batch(size, rate))
      for size in needed(options.batch_sizes)
      for rate, label in zip(rates, at_rates(options, f"B = {size}"), strict=True)
    ]
    + [
      setting(
        f"k_{k}_epsilon_{rounded_up(e, 12)}",
        f"k = {k}, ε = {rounded_up(e, 12)}",
        *keep(update, k, update.noise_variance),
      )
      for e, update in noisy
    ]
  )


def _at(options: DrawAndDiscardOptions, rate: float) -> str:
  """The end of a run's folder at a further rate."""
  return "" if rate == options.learning_rate else f"_rate_{rate:g}"


def _variance(options: DrawAndDiscardOptions) -> Callable[[Workdir], None]:
  update = noisy_update(options, lambda params, client: jnp.zeros_like(params), options.epsilons[0])
  return lambda workdir: report_simulation(
    workdir, options, "variance", *variance_part(options, update)
  )


def _spam(options: DrawAndDiscardOptions) -> Callable[[Workdir], None]:
  task = load_stream_task(options)
  update = noisy_update(options, task.model.gradient, options.epsilons[0])
  evaluate = evaluation(task)
  return lambda workdir: report_simulation(
    workdir, options, "spam", *spam_part(options, task, update, evaluate)
  )


def _stream(options: DrawAndDiscardOptions) -> Callable[[Workdir], None]:
  task = load_stream_task(options)
  update = noisy_update(options, task.model.gradient, options.epsilons[0])
  settings, clients, evaluate = stream_settings(options, task, update, evaluation(task))
  sweep = Sweep(settings, _start(task), evaluate, clients, task.schedule.round_size, options.delta)

  return lambda workdir: run_sweep(sweep, task, workdir, options, report_stream)


_TASKS = {"training": _training, "variance": _variance, "spam": _spam, "stream": _stream}


EXPERIMENT = Experiment("draw_and_discard", DrawAndDiscardOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
