"""Rounds of jdp: `jdp_rounds.py federated|example MODEL LAYOUT ...`.

A layout is one of these:

* `0` or `1`: without or with ghost norms, in chunks of the default size. All devices.
* `0:16`: the same in chunks of 16.
* `train`: a call of `train`, which chooses. All devices.

With `cores` among them, each core is a device (`use_all_cores`), as in every binary.
"""

import sys
from collections.abc import Mapping
from typing import Any

import jax
import optax

from experiments.benchmarks.peers import networks, serve
from jdp import data, models, random, sampling
from jdp.federated import (
  FederatedAlgorithm,
  client_mesh,
  example_gradient,
  federated_averaging,
  gradient_step,
  local_sgd,
  train,
  use_all_cores,
)
from jdp.federated.engine.rounds import block, replicate
from jdp.federated.estimators import fixed_denominator, flat_clipping

_ROUNDS = {"federated": 4, "example": 10}
# What `train` does once, before its first round, should count little.
_TRAINED_ROUNDS = {
  "federated": {"logistic": 100, "mlp": 40, "cnn": 10},
  "example": {"logistic": 500, "mlp": 200, "cnn": 40},
}


def main() -> None:
  """Serves blocks of rounds, and runs of them."""
  task, name, *layouts = sys.argv[1:]
  if "cores" in layouts:
    layouts.remove("cores")
    use_all_cores()
  model = model_of(name)
  serve.serve_cases(
    {
      layout: _training(task, model, _TRAINED_ROUNDS[task][name])
      if layout == "train"
      else _block(task, model, layout)
      for layout in layouts
    }
  )


def model_of(name: str) -> models.Model:
  """One of the benchmarks' models: the library's own, or else that of `networks`."""
  shape = serve.cohort_of(name).shape
  own = {"logistic": models.logistic_regression, "cnn": models.small_cnn}
  if name in own:
    return own[name](shape, serve.CLASSES)
  return models.from_flax(networks.NETWORKS[name], shape)


def _sizes(task: str) -> tuple[int, int]:
  """Clients of a round, and of all."""
  if task == "example":
    return serve.BATCH, 4 * serve.BATCH
  return serve.USUAL.size, serve.USUAL.users


def _block(task: str, model: models.Model, layout: str) -> serve.Case:
  """A compiled block of rounds on all devices."""
  mesh = client_mesh() if len(jax.devices()) > 1 else None
  ghost, _, chunk_size = layout.partition(":")
  options: dict[str, Any] = {"mesh": mesh, "ghost_norms": ghost == "1"}
  if chunk_size:
    options["chunk_size"] = int(chunk_size)
  size, population = _sizes(task)
  made = algorithm(task, models.cross_entropy(model), options, size=size, population=population)
  keys = random.secure_key(), random.secure_key()
  state = made.init(model.init(jax.random.key(2)))
  *keys, state, clients = replicate((*keys, state, clients_of(task, population)), mesh)
  rounds = jax.jit(block(made, _ROUNDS[task]))

  def run():
    nonlocal state
    state, *_ = jax.block_until_ready(rounds(*keys, state, clients))

  return serve.Case(run, _ROUNDS[task] * size)


def _training(task: str, model: models.Model, num_rounds: int) -> serve.Case:
  """A call of `train`."""
  size, population = _sizes(task)
  made = algorithm(task, models.cross_entropy(model), {}, size=size, population=population)
  params, clients = model.init(jax.random.key(2)), clients_of(task, population)

  def run():
    train(made, params, clients, num_rounds=num_rounds)

  return serve.Case(run, num_rounds * size)


def clients_of(task: str, population: int, cohort: serve.Cohort = serve.USUAL) -> data.Examples:
  """Users of several examples, or single examples."""
  if task == "example":
    return data.examples(*serve.images(population))
  clients = data.examples(*serve.images(population * cohort.examples, cohort.shape))
  return jax.tree.map(lambda x: x.reshape(population, cohort.examples, *x.shape[1:]), clients)


def algorithm(
  task: str,
  loss: models.Loss,
  options: Mapping[str, Any],
  *,
  size: int,
  population: int,
  cohort: serve.Cohort = serve.USUAL,
) -> FederatedAlgorithm:
  """The procedure, whose rounds have so many of the clients."""
  average = fixed_denominator(
    flat_clipping(cohort.clip_norm), serve.NOISE_MULTIPLIER / 2, size, relation="replace_one"
  )
  step: Any
  if task == "example":
    step, unit, rate = example_gradient(loss), "example", serve.LEARNING_RATE
  elif cohort.examples > cohort.batch:
    step = local_sgd(loss, serve.LEARNING_RATE, batch_size=cohort.batch)
    unit, rate = "user", 1.0
  else:
    step, unit, rate = gradient_step(loss, serve.LEARNING_RATE), "user", 1.0
  return federated_averaging(
    step,
    average,
    sampling.fixed_size(population, size),
    optax.sgd(rate),
    unit=unit,
    **{"relation": "replace_one", **options},
  )


if __name__ == "__main__":
  main()
