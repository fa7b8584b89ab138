"""Sums of PrivUnit releases on all devices: `jdp_streaming.py DIM VALUES EPSILON`."""

import sys

import jax
import jax.numpy as jnp

from experiments.benchmarks.peers import serve
from jdp import mechanisms
from jdp.federated import client_mesh
from jdp.federated.engine.rounds import replicate


def main() -> None:
  """Serves one sum of VALUES / DIM releases."""
  dim, values, epsilon = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
  mesh = client_mesh() if jax.device_count() > 1 else None
  mechanism = mechanisms.priv_unit(dim, epsilon)
  first = jax.random.normal(jax.random.key(1), (dim,))
  count = max(1, values // dim)
  keys, first = replicate((jax.random.split(jax.random.key(0), count), first), mesh)

  @jax.jit
  def total(keys, first):
    return mechanisms.stream_sum(
      mechanism, keys, lambda i: first + 1e-3 * i.astype(jnp.float32), mesh=mesh
    )

  serve.serve(lambda: total(keys, first).block_until_ready(), count)


if __name__ == "__main__":
  main()
