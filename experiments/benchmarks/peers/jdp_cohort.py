"""Rounds of DP-FedAvg by jdp: `jdp_cohort.py MODEL CLIENTS [PORT PROCESSES NUMBER]`.

Each user has one image. The process prints a line of JSON with what it measured. With a port it is
one of several processes that compute each round together.
"""

import json
import pathlib
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import optax

from experiments.benchmarks.peers import serve
from jdp import data, models, random, sampling
from jdp.federated import (
  client_mesh,
  example_gradient,
  federated_averaging,
  fixed_denominator,
  flat_clipping,
  replicate,
)

_POPULATION = 60_000
_MODELS = {"logistic": models.logistic_regression, "cnn": models.small_cnn}
_ROUNDS = 5


def main() -> None:
  """Times rounds, and prints their medians and the memory that they took."""
  name, clients, *together = sys.argv[1:]
  if together:
    port, processes, number = map(int, together)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", processes, number)
  size, mesh = int(clients), client_mesh() if jax.device_count() > 1 else None
  model = _MODELS[name](serve.SHAPE, serve.CLASSES)
  average = fixed_denominator(
    flat_clipping(serve.CLIP_NORM), serve.NOISE_MULTIPLIER / 2, size, relation="replace_one"
  )
  made = federated_averaging(
    example_gradient(models.cross_entropy(model)),
    average,
    sampling.fixed_size(_POPULATION, size),
    optax.sgd(serve.LEARNING_RATE),
    relation="replace_one",
    unit="example",
    mesh=mesh,
  )
  state = made.init(model.init(jax.random.key(2)))
  arguments = (random.seeded_key(0), jax.random.key(1), state)
  users = jax.tree.map(jnp.asarray, data.examples(*serve.images(_POPULATION)))
  *keys, state, users = jax.block_until_ready(replicate((*arguments, users), mesh))
  step = jax.jit(made.round).lower(*keys, state, users).compile()
  before = _memory("VmRSS")
  pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak is that of rounds alone.
  seconds, cpu = [], []
  for _ in range(1 + _ROUNDS):
    start, used = time.perf_counter(), time.process_time()
    state, *_ = jax.block_until_ready(step(*keys, state, users))
    seconds.append(time.perf_counter() - start)
    cpu.append(time.process_time() - used)
  measured = {
    "seconds": statistics.median(seconds[1:]),  # The first one touches its memory.
    "cpu_seconds": statistics.median(cpu[1:]),
    "resident_mib": before,
    "peak_mib": _memory("VmHWM"),
  }
  print(json.dumps(measured), flush=True)


def _memory(field: str) -> float:
  """MiB of this process that lie in memory: now (VmRSS), or at most since the peak was reset."""
  lines = pathlib.Path("/proc/self/status").read_text().splitlines()
  return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
  main()
