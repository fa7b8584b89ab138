"""One of the two processes of `test_correlated_rounds`: PORT NUMBER FOLDER.

Every leaf of the model has noise of another strategy. The run is interrupted, and goes on.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jdp import matrix_factorization as mf
from jdp import queries, sampling
from jdp.federated import add_updates, client_mesh, rounds, shard, train
from jdp.random import seeded_key

ROUNDS, USERS, SEPARATION = 7, 24, 3
STRATEGIES = {
  "banded": lambda: mf.banded_toeplitz(ROUNDS, 3),
  "banded_inverse": lambda: mf.banded_inverse_square_root(ROUNDS, 3),
  "buffered": lambda: mf.buffered_toeplitz(ROUNDS, buffers=2, min_separation=3),
  "tree": lambda: mf.tree(ROUNDS),
}
PARAMS = {name: np.zeros(3, np.float32) for name in STRATEGIES}


class InterruptedRunError(Exception):
  """Ends a run in the middle."""


def trained(mesh=None, workdir=None, interrupt_at=None):
  """The model after a run of clients who send the way to their own values."""
  query = queries.grouped(
    {
      name: queries.correlated_gaussian_sum(1.0, 4.0, make(), min_separation=SEPARATION)
      for name, make in STRATEGIES.items()
    },
    {name: name for name in STRATEGIES},
  )
  algorithm = rounds(
    lambda keys, params, own: (jax.tree.map(lambda x: own - x, params), {}),
    queries.average(query, 8.0),
    sampling.min_separation(USERS, SEPARATION, 3),
    add_updates(optax.sgd(0.5)),
    relation="zero_out",
    mesh=mesh,
  )

  def interrupt(progress):
    if progress.round == interrupt_at:
      raise InterruptedRunError

  clients = jnp.linspace(-1, 1, USERS * 3).reshape(USERS, 3)
  result = train(
    algorithm,
    PARAMS,
    clients if mesh is None else shard(clients, mesh),
    noise_key=seeded_key(3),
    data_key=seeded_key(4),
    evaluate_every=2,
    delta=1e-5,
    workdir=workdir,
    callbacks=[interrupt],
  )
  return jax.device_get(result.params)


def main():
  port, number, folder = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  jax.distributed.initialize(f"localhost:{port}", 2, number)
  mesh, workdir = client_mesh(), folder / "run"
  interrupted = False
  try:
    trained(mesh, workdir, interrupt_at=4)  # before the checkpoint of the fourth round
  except InterruptedRunError:
    interrupted = True
  resumed = trained(mesh, workdir)
  if number == 0:
    np.savez(folder / "found.npz", interrupted=interrupted, **resumed)


if __name__ == "__main__":
  main()
