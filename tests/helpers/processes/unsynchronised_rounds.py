"""Two hundred rounds on simulated devices, none of whose results is looked at: run by
test_multiprocess.py.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jdp import queries, random, sampling, transforms
from jdp.federated import client_mesh
from jdp.federated.engine.rounds import add_updates, replicate, rounds

ROUNDS, CLIENTS, DIM = 200, 32, 1000


def federated(mesh, clients, sampler, query):
  """Runs `rounds` and returns the state."""
  made = rounds(
    lambda keys, params, client: (client - params, {}), query, sampler,
    add_updates(optax.sgd(1e-3)), relation="add_remove", mesh=mesh,
  )  # fmt: skip
  state = replicate(made.init(jnp.zeros(DIM)), mesh)
  keys, step = replicate((random.secure_key(), random.secure_key()), mesh), jax.jit(made.round)
  for _ in range(ROUNDS):
    state, _, _ = step(*keys, state, clients)
  return state


def transformed(mesh, clients, sampler, query):
  """Runs a loop of `contribution_sum` and `release`, and returns the state."""
  optimizer = optax.chain(transforms.release(query, random.secure_key()), optax.sgd(1e-3))
  total = transforms.contribution_sum(lambda params, client: params - client, query, mesh=mesh)

  @jax.jit
  def step(key, params, state, sampler_state):
    sample_key, sum_key = jax.random.split(jax.random.fold_in(key, state[0].step))
    sample, sampler_state = sampler.sample(sample_key, sampler_state)
    updates, state = optimizer.update(
      total(sum_key, state[0].query, params, sample, clients), state, params
    )
    return optax.apply_updates(params, updates), state, sampler_state

  params = jnp.zeros(DIM)
  carry = replicate((params, optimizer.init(params), sampler.init()), mesh)
  key = replicate(random.secure_key(), mesh)
  for _ in range(ROUNDS):
    carry = step(key, *carry)
  return carry


def main() -> None:
  """Ends with status 0 if the loop named on the command line survives."""
  mesh = client_mesh()
  clients = replicate(np.ones((CLIENTS, DIM), np.float32), mesh)
  run = {"federated": federated, "transformed": transformed}[sys.argv[1]]
  jax.block_until_ready(
    run(mesh, clients, sampling.poisson(CLIENTS, 0.5), queries.gaussian_sum(1.0, 1.0))
  )


if __name__ == "__main__":
  main()
