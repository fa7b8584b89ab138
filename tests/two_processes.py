"""One of several processes of `test_multiprocess`: python two_processes.py PORT PROCESSES NUMBER OUTPUT."""

import sys

import jax
import numpy as np
import optax

from jdp import data, models, sampling
from jdp.federated import client_mesh, local_sgd, replicate
from jdp.federated.averages import fixed_denominator, flat
from jdp.federated.averaging import federated_averaging
from jdp.federated.rounds import block


def main():
  port, processes, number = map(int, sys.argv[1:4])
  if processes > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", processes, number)
  rng = np.random.default_rng(0)
  examples = data.examples(rng.normal(size=(64, 5)), rng.integers(0, 3, 64))
  clients = data.group(examples, np.split(np.arange(64), 16))
  model, mesh = models.logistic_regression((5,), 3), client_mesh()
  made = federated_averaging(
    local_sgd(models.cross_entropy(model), 0.5, batch_size=2),
    fixed_denominator(flat(0.1), 0.1, 8.0),
    sampling.poisson(16, 0.5),
    optax.sgd(1.0),
    chunk_size=2,
    mesh=mesh,
  )
  arguments = (jax.random.key(0), jax.random.key(1), made.init(model.init(jax.random.key(2))), clients)
  state, *_ = jax.jit(block(made, 3))(*replicate(arguments, mesh))
  if number == 0:
    np.savez(sys.argv[4], devices=len(jax.devices()), **jax.device_get(state.params))


if __name__ == "__main__":
  main()
