"""One of the two processes of `test_multiprocess`: python two_processes.py PORT NUMBER OUTPUT."""

import sys

import jax
import numpy as np
import optax

from jdp import data, models, sampling
from jdp.federated import client_mesh, local_sgd
from jdp.federated.engine.rounds import block, replicate
from jdp.federated.engine.sharded import shard
from jdp.federated.estimators import fixed_denominator, flat_clipping
from jdp.federated.fedavg import federated_averaging


def train(mesh, place):
  """The model after three rounds; `place` puts the clients' data on the mesh."""
  rng = np.random.default_rng(0)
  examples = data.examples(rng.normal(size=(64, 5)), rng.integers(0, 3, 64))
  clients = data.group(examples, np.split(np.arange(64), 16))
  model = models.logistic_regression((5,), 3)
  made = federated_averaging(
    local_sgd(models.cross_entropy(model), 0.5, batch_size=2),
    fixed_denominator(flat_clipping(0.1), 0.1, 8.0),
    sampling.poisson(16, 0.5),
    optax.sgd(1.0),
    chunk_size=2,
    mesh=mesh,
  )
  arguments = (jax.random.key(0), jax.random.key(1), made.init(model.init(jax.random.key(2))))
  state, *_ = jax.jit(block(made, 3))(*replicate(arguments, mesh), place(clients, mesh))
  return jax.device_get(state.params)


def main():
  port, number, output = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  jax.distributed.initialize(f"localhost:{port}", 2, number)
  first_of_each = [
    next(d for d in jax.devices() if d.process_index == process) for process in range(2)
  ]
  two, eight = train(client_mesh(first_of_each), replicate), train(client_mesh(), shard)
  if number == 0:
    np.savez(
      output,
      devices=len(jax.devices()),
      two_w=two["w"],
      two_b=two["b"],
      eight_w=eight["w"],
      eight_b=eight["b"],
    )


if __name__ == "__main__":
  main()
