"""One of the two processes of `test_multiprocess`: python two_processes.py PORT NUMBER OUTPUT."""

import jax
import numpy as np
import optax

from jdp import data, models, sampling
from jdp.federated import client_mesh, local_sgd
from jdp.federated.engine.rounds import block, replicate
from jdp.federated.engine.sharded import shard
from jdp.federated.estimators import fixed_denominator, flat_clipping
from jdp.federated.fedavg import federated_averaging
from tests.helpers.processes.two_process_scripts import joined


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
  number, output = joined()
  first_of_each = [
    next(d for d in jax.devices() if d.process_index == process) for process in range(2)
  ]
  two, eight = train(client_mesh(first_of_each), replicate), train(client_mesh(), shard)
  if number == 0:
    found = {"two_w": two["w"], "two_b": two["b"], "eight_w": eight["w"], "eight_b": eight["b"]}
    np.savez(output, devices=len(jax.devices()), **found)


if __name__ == "__main__":
  main()
