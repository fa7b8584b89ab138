"""Rounds of jdp: `jdp_rounds.py federated|example MODEL LAYOUT`.

A layout is one of these:

* `0` or `1`: without or with ghost norms, in chunks of the default size. All devices.
* `0:16`: the same in chunks of 16.
* `binary`: what an experiment does where no flag says otherwise. All cores, the default layout.
* `script`: a script's call of `train`, on one device.
* `cores`: the same after `use_all_cores()`.
"""

import sys
from typing import Any

import jax
import optax

from experiments.benchmarks.peers import networks, serve
from jdp import data, models, sampling
from jdp.federated import (
  FederatedAlgorithm,
  client_mesh,
  gradient_step,
  replicate,
  train,
  use_all_cores,
)
from jdp.federated.engine.rounds import block
from jdp.federated.estimators import fixed_denominator, flat_clipping
from jdp.federated.fedavg import dp_sgd, federated_averaging

_ROUNDS = {"federated": 4, "example": 10}
_TRAINED_ROUNDS = 40  # What `train` does once, before its first round, should count little.


def main() -> None:
  """Serves a block of rounds, or a run of them."""
  task, name, layout = sys.argv[1:4]
  if layout in ("binary", "cores"):
    use_all_cores()
  build: Any = {
    "logistic": models.logistic_regression,
    "mlp": lambda shape, _: models.from_flax(networks.NETWORKS["mlp"], shape),
    "cnn": models.small_cnn,
  }[name]
  model = build(serve.SHAPE, serve.CLASSES)
  if layout in ("script", "cores"):
    _serve_training(task, model)
  else:
    _serve_block(task, model, layout)


def _serve_block(task: str, model: models.Model, layout: str) -> None:
  """Serves a compiled block of rounds on all devices."""
  mesh = client_mesh() if len(jax.devices()) > 1 else None
  options: dict[str, Any] = {"mesh": mesh}
  if layout != "binary":
    ghost, _, chunk_size = layout.partition(":")
    options |= {"ghost_norms": ghost == "1", "chunk_size": int(chunk_size) if chunk_size else None}
  made, clients, size = _algorithm(task, model, options)
  state = made.init(model.init(jax.random.key(2)))
  noise_key, data_key, state, clients = replicate(
    (jax.random.key(0), jax.random.key(1), state, clients), mesh
  )
  rounds = jax.jit(block(made, _ROUNDS[task]))

  def run():
    nonlocal state
    state, *_ = jax.block_until_ready(rounds(noise_key, data_key, state, clients))

  serve.serve(run, _ROUNDS[task] * size)


def _serve_training(task: str, model: models.Model) -> None:
  """Serves a call of `train`."""
  made, clients, size = _algorithm(task, model, {})
  params = model.init(jax.random.key(2))

  def run():
    train(made, params, clients, num_rounds=_TRAINED_ROUNDS, evaluate_every=_TRAINED_ROUNDS)

  serve.serve(run, _TRAINED_ROUNDS * size)


def _algorithm(
  task: str, model: models.Model, options: dict[str, Any]
) -> tuple[FederatedAlgorithm, data.Examples, int]:
  """The procedure, its clients and how many of them a round has."""
  loss = models.cross_entropy(model)
  size, population = (
    (serve.COHORT, serve.USERS) if task == "federated" else (serve.BATCH, 4 * serve.BATCH)
  )
  options = {"relation": "replace_one", **options}
  average = fixed_denominator(
    flat_clipping(serve.CLIP_NORM), serve.NOISE_MULTIPLIER / 2, size, relation="replace_one"
  )
  sampler = sampling.fixed_size(population, size)
  if task == "example":
    clients = data.examples(*serve.images(population))
    return (
      dp_sgd(loss, average, sampler, optax.sgd(serve.LEARNING_RATE), **options),
      clients,
      size,
    )
  clients = data.examples(*serve.images(population * serve.EXAMPLES))
  clients = jax.tree.map(lambda x: x.reshape(population, serve.EXAMPLES, *x.shape[1:]), clients)
  update = gradient_step(loss, serve.LEARNING_RATE)
  made = federated_averaging(update, average, sampler, optax.sgd(1.0), project=False, **options)
  return made, clients, size


if __name__ == "__main__":
  main()
