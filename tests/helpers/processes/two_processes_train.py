"""One of the two processes of `test_shared_records`: python two_processes_train.py PORT NUMBER DIR.

It trains in one work directory, is interrupted, and goes on; then it meets an error of the first.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from jdp import queries, random, sampling
from jdp.federated import add_updates, client_mesh, rounds, train
from jdp.federated.engine.rounds import replicate
from jdp.federated.runs.digest import whole
from tests.helpers.processes.two_process_scripts import joined

NUM_ROUNDS = 7


class InterruptedRunError(Exception):
  """Ends a run in the middle."""


def trained(mesh, place, workdir, interrupt_at=None, **changes):
  """The result of a run of clients who send the way to their own values, with keys of its own."""
  query = queries.average(queries.gaussian_sum(1.0, 0.1), 8.0)
  algorithm = rounds(
    lambda keys, value, own: (own - value, {}),
    query,
    sampling.poisson(16, 0.5),
    add_updates(optax.sgd(0.5)),
    relation="add_remove",
    chunk_size=2,
    mesh=mesh,
  )

  def interrupt(progress):
    if progress.round == interrupt_at:
      raise InterruptedRunError

  clients = place(jnp.arange(32.0).reshape(16, 2), mesh)
  arguments = {"num_rounds": NUM_ROUNDS, "evaluate_every": 2, "delta": 1e-5, "max_epsilon": 1e6}
  return train(
    algorithm,
    jnp.zeros(2),
    clients,
    workdir=workdir,
    evaluate=lambda params: {"first": params[0]},
    callbacks=[interrupt],
    **{**arguments, **changes},
  )


def divided(mesh, workdir, interrupt_at=None):
  """The result of a run whose parameters are sharded over a mesh, if any, with given keys.

  Clients send whole numbers, whose sums are the same in any order.
  """
  algorithm = rounds(
    lambda keys, value, own: (0 * value + own[0], {}),
    queries.average(queries.gaussian_sum(1e6, 1e-3), 8.0),
    sampling.poisson(16, 0.5),
    add_updates(optax.sgd(0.5, momentum=0.9)),
    relation="add_remove",
  )
  place = NamedSharding(mesh, PartitionSpec("model")) if mesh else None

  def interrupt(progress):
    if progress.round == interrupt_at:
      raise InterruptedRunError

  return train(
    algorithm,
    jax.jit(lambda: jnp.zeros((8, 4)), out_shardings=place)(),
    jnp.arange(32.0).reshape(16, 2),
    num_rounds=NUM_ROUNDS,
    noise_key=random.seeded_key(5),
    data_key=jax.random.key(3),
    evaluate_every=2,
    workdir=workdir,
    evaluate=lambda params: {"most": jnp.max(params)},
    callbacks=[interrupt],
  )


def outcome(result):
  """What a process says of a result."""
  return {
    "params": np.asarray(whole(result.params)).tolist(),
    "events": len(result.ledger),
    "caveats": result.ledger.caveats,
    "metrics": result.metrics,
  }


def main():
  number, folder = joined()
  mesh, said = client_mesh(), {}
  workdir = folder / "run" if number == 0 else folder / "nobody writes here"
  try:
    trained(mesh, replicate, workdir, interrupt_at=4)
  except InterruptedRunError:
    said["interrupted"] = True
  said["resumed"] = outcome(trained(mesh, replicate, workdir))
  try:
    trained(mesh, replicate, workdir, num_rounds=NUM_ROUNDS + 1)
  except (RuntimeError, ValueError) as error:
    said["refused"] = str(error)
  over = client_mesh(model=4)
  try:
    divided(over, workdir.with_name("divided"), interrupt_at=4)
  except InterruptedRunError:
    result = divided(over, workdir.with_name("divided"))
    said["parts"] = [x.data.shape for x in result.params.addressable_shards]
    said["divided"] = outcome(result)
  (folder / f"{number}.json").write_text(json.dumps(said))


if __name__ == "__main__":
  main()
