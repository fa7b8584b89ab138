"""One of the two processes of `test_correlated_rounds`: PORT NUMBER FOLDER.

Every leaf of the model has noise of another strategy. Where there is no run in the folder yet, the
processes say that they reached the fourth round and wait to be killed. Others go on with the run.
"""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jdp import matrix_factorization as mf
from jdp import queries, sampling
from jdp.federated import add_updates, client_mesh, rounds, train
from jdp.federated.engine.sharded import shard
from jdp.random import seeded_key
from tests.helpers.processes.two_process_scripts import joined

ROUNDS, USERS, SEPARATION = 7, 24, 3
STRATEGIES = {
  "banded": lambda: mf.banded_toeplitz(ROUNDS, 3),
  "banded_inverse": lambda: mf.banded_inverse_square_root(ROUNDS, 3),
  "buffered": lambda: mf.buffered_toeplitz(ROUNDS, buffers=2, min_separation=3),
  "tree": lambda: mf.tree(ROUNDS),
}
PARAMS = {name: np.zeros(3, np.float32) for name in STRATEGIES}
REACHED, LAST = "reached", 4  # what is printed, and after which round


def wait_to_be_killed(progress):
  """Before the checkpoint of the last round, whose events are on record."""
  if progress.round == LAST:
    print(REACHED, flush=True)
    signal.pause()


def trained(mesh=None, workdir=None, callbacks=()):
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
    callbacks=callbacks,
  )
  return jax.device_get(result.params)


def main():
  number, folder = joined()
  workdir = folder / "run"
  callbacks = () if workdir.exists() else (wait_to_be_killed,)
  found = trained(client_mesh(), workdir, callbacks)
  if number == 0:
    np.savez(folder / "found.npz", **found)


if __name__ == "__main__":
  main()
