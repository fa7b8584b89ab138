"""Speed of discrete noise, and of rounds whose clients send integers.

Run it as `python -m experiments.benchmarks.discrete`.
"""

import resource
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

import jdp.random
from experiments.benchmarks import harness
from jdp.federated.engine.cohort import cohort_sum
from jdp.queries.distributed import distributed_sum
from jdp.queries.distributed.integer_sums import discrete_sum
from jdp.queries.distributed.noise_schemes import calibrated
from jdp.random import discrete
from jdp.sampling import Sample

SIZE = flags.DEFINE_integer("size", 2_000_000, "Values in one draw.", lower_bound=1)
DIM = flags.DEFINE_integer("dim", 100_000, "Weights of a client's vector.", lower_bound=1)
CLIENTS = flags.DEFINE_integer("clients", 100, "Clients of a round.", lower_bound=1)
BITS = flags.DEFINE_integer("bits", 16, "Bits per weight.", lower_bound=2)


def _case(function: Callable[..., Any], key: jax.Array, work: float) -> harness.Case:
  run = jax.jit(function)
  return harness.Case(lambda: run(key), work)


def _draws(size: int) -> dict[str, harness.Case]:
  cases = {}
  for name, key in (("default key", jax.random.key(0)), ("chacha20", jdp.random.seeded_key(0))):
    draws = {
      "normal": lambda k: jdp.random.normal(k, (size,)),
      "discrete Gaussian, stddev 10": lambda k: discrete.discrete_gaussian(k, 10.0, (size,)),
      "discrete Gaussian, stddev 6000": lambda k: discrete.discrete_gaussian(k, 6000.0, (size,)),
      "discrete Laplace, scale 10": lambda k: discrete.discrete_laplace(k, 10.0, (size,)),
      "Skellam, variance 100": lambda k: discrete.skellam(k, 100.0, (size,)),
    }
    for distribution, draw in draws.items():
      cases[f"{distribution}, {name}"] = _case(draw, key, size)
  return cases


def _rounds(dim: int, clients: int, bits: int) -> dict[str, harness.Case]:
  """Rounds of `clients` clients, on floats and on integers.

  Each client's vector is computed where it is clipped, as in training.
  """
  stddev, like = 0.01 * clients, jnp.zeros(dim)
  floats = distributed_sum(1.0, stddev, calibrated())
  integers = discrete_sum(like, 1.0, stddev, num_clients=clients, modulus_bits=bits)
  state = integers.init(like)

  def vector(row):
    return jnp.sin(jnp.arange(dim, dtype=jnp.float32) * row)

  functions = {
    "floats": lambda key, _, row, weight: (
      weight * floats.share(key, vector(row), jnp.int32(clients))
    ),
    "integers": lambda key, _, row, weight: integers.preprocess(key, state, vector(row), weight),
  }
  sample = Sample(jnp.arange(clients), jnp.ones(clients), jnp.int32(clients), clients)
  rows = jnp.arange(1, clients + 1, dtype=jnp.float32)
  return {
    f"{name}, {key_name}": _case(lambda k, fn=fn: cohort_sum(fn, k, (), sample, rows), key, clients)
    for name, fn in functions.items()
    for key_name, key in (
      ("default key", jax.random.key(0)),
      ("chacha20", jdp.random.seeded_key(0)),
    )
  }


def main(argv: Sequence[str]) -> None:
  """Runs the comparisons."""
  del argv
  timings = harness.compare(
    _draws(SIZE.value), baseline="normal, default key", rounds=harness.ROUNDS.value
  )
  harness.report(f"{SIZE.value:,d} values", timings, "values", json_path=harness.JSON.value)
  rounds = _rounds(DIM.value, CLIENTS.value, BITS.value)
  timings = harness.compare(rounds, baseline="floats, default key", rounds=harness.ROUNDS.value)
  title = f"{CLIENTS.value:,d} clients of {DIM.value:,d} weights, {BITS.value} bits"
  harness.report(title, timings, "clients", json_path=harness.JSON.value)
  print(
    f"largest resident memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:,.0f} "
    "MiB"
  )


if __name__ == "__main__":
  app.run(main)
