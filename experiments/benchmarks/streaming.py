"""Speed of the streamed sum of PrivUnit releases: `python -m experiments.benchmarks.streaming`.

For each generator the baseline is drawing the normals alone: the same count, by the same keys, in the same blocks,
each block written over the last. `--whole` passes the values as one array, which has to come from memory; without
it a function makes them.
"""

import functools

import jax
import jax.numpy as jnp
from absl import app, flags
from jax import lax

import jdp.random
from experiments.benchmarks import harness
from jdp import mechanisms

DIMS = flags.DEFINE_multi_integer("dim", [10_000, 100_000, 1_000_000], "Coordinates.")
VALUES = flags.DEFINE_integer("values", 4_000_000, "Clients times coordinates of one run.", lower_bound=1)
EPSILON = flags.DEFINE_float("epsilon", 16.0, "Privacy loss of a release.")
BLOCK_SIZE = flags.DEFINE_integer("block_size", None, "Clients computed side by side; default: stream_sum's.")
WHOLE = flags.DEFINE_bool("whole", False, "Pass the values as one array.")


def _draw_alone(keys: jax.Array, dim: int, block_size: int) -> jax.Array:
  def step(block, _):
    own = lax.dynamic_slice_in_dim(keys, block * block_size, block_size)
    return jax.vmap(lambda key: jdp.random.normal(key, (dim,)))(own)

  return lax.fori_loop(0, len(keys) // block_size, step, jnp.zeros((block_size, dim)))


def _releases_in_full(mechanism: mechanisms.LocalMechanism, keys: jax.Array, values: jax.Array) -> jax.Array:
  return jnp.sum(jax.vmap(mechanism.privatize)(keys, values), axis=0)


def _cases(dim: int, key: jax.Array) -> dict[str, harness.Case]:
  block_size = BLOCK_SIZE.value or max(1, 400_000 // dim)
  count = -(-VALUES.value // (dim * block_size)) * block_size
  keys = jax.random.split(key, count)
  values = jax.random.normal(jax.random.key(1), (count, dim))
  passed = values if WHOLE.value else values[: max(2, block_size)]
  priv_unit = mechanisms.priv_unit(dim, EPSILON.value)
  separated = mechanisms.separated(priv_unit, mechanisms.scalar_dp(10.0, 1.0))

  def streamed(mechanism, keys, vectors):
    source = vectors if WHOLE.value else lambda i: vectors[i % len(vectors)]
    return mechanisms.stream_sum(mechanism, keys, source, block_size=BLOCK_SIZE.value)

  def case(run, *args):
    return harness.Case(functools.partial(jax.jit(run), *args), count)

  return {
    "normals alone": case(functools.partial(_draw_alone, dim=dim, block_size=block_size), keys),
    "every release, then their sum": case(functools.partial(_releases_in_full, priv_unit), keys, values),
    "stream_sum, priv_unit": case(functools.partial(streamed, priv_unit), keys, passed),
    "stream_sum, separated": case(functools.partial(streamed, separated), keys, passed),
  }


def main(argv):
  """Prints one table for each dimension and generator."""
  del argv
  for dim in DIMS.value:
    for generator, key in {"threefry": jax.random.key(0), "ChaCha20": jdp.random.seeded_key(0)}.items():
      timings = harness.compare(_cases(dim, key), baseline="normals alone", rounds=harness.ROUNDS.value)
      title = f"{generator}, {dim:,d} coordinates, values {'whole' if WHOLE.value else 'by function'}"
      harness.report(title, timings, "vectors", json_path=harness.JSON.value)


if __name__ == "__main__":
  app.run(main)
