"""One of two processes of `test_cohort_reading`: python two_processes_source.py PORT NUMBER DIR.

It trains on users of a source that fails in the second process, and goes on when that is mended.
"""

import json

import jax
import numpy as np

from jdp import data, models
from jdp.federated import dp_fedavg, train
from tests.helpers.processes.two_process_scripts import joined

USERS, ROUNDS = 40, 5


class Users:
  """Users of unequal sizes, with a note of who was read. Reading fails after so many reads."""

  def __init__(self, most=None):
    rng = np.random.default_rng(3)
    self.pairs = [
      (rng.normal(size=(n, 3)).astype(np.float32), rng.integers(0, 2, n))
      for n in rng.integers(1, 6, USERS)
    ]
    self.read, self.most = [], most

  def __len__(self):
    return USERS

  def __getitem__(self, number):
    if len(self.read) == self.most:
      raise OSError
    self.read.append(number)
    return self.pairs[number]


def trained(clients, workdir):
  """The result of a run with keys of its folder, whose members are all users in every round."""
  model = models.logistic_regression((3,), 2)
  algorithm = dp_fedavg(
    models.cross_entropy(model),
    clients,
    cohort_size=USERS,
    clip_norm=0.5,
    noise_multiplier=1.0,
    num_rounds=ROUNDS,
  )
  params = model.init(jax.random.key(0))
  keys = {"noise_key": jax.random.key(1), "data_key": jax.random.key(2)}
  return train(algorithm, params, clients, workdir=workdir, evaluate_every=2, **keys)


def main():
  """What a process reads, how its run fails, and what the mended run leaves."""
  number, folder = joined()
  source = Users()
  clients = data.clients_from_source(source, max_examples=4)
  # The second process's part of three rounds, and some.
  source.read, source.most = [], 70 if number == 1 else None
  failure = ""
  try:
    trained(clients, f"{folder}/run")
  except (ValueError, RuntimeError) as error:
    failure = str(error)
  read, source.read, source.most = source.read[:20], [], None
  params = trained(clients, f"{folder}/run").params
  leaves = [x.tolist() for x in jax.tree.leaves(params)]
  found = {"failure": failure, "read": read, "params": leaves}
  (folder / f"{number}.json").write_text(json.dumps(found))


if __name__ == "__main__":
  main()
