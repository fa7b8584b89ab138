"""Rounds of jdp on all devices: `jdp_rounds.py federated|example MODEL GHOST`."""

import sys
from typing import Any

import jax
import optax

from experiments.benchmarks.peers import networks, serve
from jdp import data, models, sampling
from jdp.federated import client_mesh, gradient_step, replicate
from jdp.federated.engine.rounds import block
from jdp.federated.estimators import fixed_denominator, flat_clipping
from jdp.federated.fedavg import dp_sgd, federated_averaging

_ROUNDS = {"federated": 4, "example": 10}


def main() -> None:
  """Serves a block of rounds."""
  task, name, ghost = sys.argv[1], sys.argv[2], sys.argv[3] == "1"
  network: Any = networks.NETWORKS[name]
  if ghost or name == "mlp":
    model = models.Model(
      lambda key: networks.init(network, key), lambda p, x: network.apply({"params": p}, x)
    )
  else:
    build = {"logistic": models.logistic_regression, "cnn": models.small_cnn}[name]
    model = build(serve.SHAPE, serve.CLASSES)
  loss, mesh = models.cross_entropy(model), client_mesh() if len(jax.devices()) > 1 else None
  size, population = (
    (serve.COHORT, serve.USERS) if task == "federated" else (serve.BATCH, 4 * serve.BATCH)
  )
  shared: dict[str, Any] = {"relation": "replace_one", "ghost_norms": ghost, "mesh": mesh}
  average = fixed_denominator(
    flat_clipping(serve.CLIP_NORM), serve.NOISE_MULTIPLIER / 2, size, relation="replace_one"
  )
  sampler = sampling.fixed_size(population, size)
  if task == "federated":
    clients = data.examples(*serve.images(population * serve.EXAMPLES))
    clients = jax.tree.map(lambda x: x.reshape(population, serve.EXAMPLES, *x.shape[1:]), clients)
    made = federated_averaging(
      gradient_step(loss, serve.LEARNING_RATE),
      average,
      sampler,
      optax.sgd(1.0),
      project=False,
      **shared,
    )
  else:
    clients = data.examples(*serve.images(population))
    made = dp_sgd(loss, average, sampler, optax.sgd(serve.LEARNING_RATE), **shared)
  state = made.init(model.init(jax.random.key(2)))
  noise_key, data_key, state, clients = replicate(
    (jax.random.key(0), jax.random.key(1), state, clients), mesh
  )
  rounds = jax.jit(block(made, _ROUNDS[task]))

  def run():
    nonlocal state
    state, *_ = jax.block_until_ready(rounds(noise_key, data_key, state, clients))

  serve.serve(run, _ROUNDS[task] * size)


if __name__ == "__main__":
  main()
