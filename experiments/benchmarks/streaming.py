"""Speed of the streamed sum of PrivUnit releases.

Run it as `python -m experiments.benchmarks.streaming`. For each generator the baseline draws the
normals alone: the same count, by the same keys, in the same blocks. Each block is written over the
last.

All devices share the work, in the baseline too. With one device per core
(`XLA_FLAGS=--xla_force_host_platform_device_count=CORES`) each core's block stays in its own cache.
`--whole` passes the values as one array, which has to come from memory. Without it, a function
makes each value from the client's number.

A second table for each dimension has numpy as its baseline: PrivUnitG (arXiv 2205.02466, Section
4), one release after the other in float64. Its constants are precomputed. It runs with numpy's new
generator and with its old one.

`--clients=10000 --dim=1000000` runs one sum of so many clients instead, and reports two kinds
of memory: that of the compiled program, and the process's peak.

`--baseline=CHECKOUT` compares this checkout's sums with another one's instead, in processes that
take turns.
"""

import functools
import os
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from absl import app, flags
from jax import lax
from jax.sharding import PartitionSpec

import jdp.random
from experiments.benchmarks import checkouts, harness
from jdp import mechanisms
from jdp.federated import client_mesh, replicate

DIMS = flags.DEFINE_multi_integer("dim", [10_000, 100_000, 1_000_000], "Coordinates.")
VALUES = flags.DEFINE_integer(
  "values", 4_000_000, "Clients times coordinates of one run.", lower_bound=1
)
EPSILON = flags.DEFINE_float("epsilon", 16.0, "Privacy loss of a release.")
BLOCK_SIZE = flags.DEFINE_integer(
  "block_size", None, "Clients computed side by side; default: stream_sum's."
)
WHOLE = flags.DEFINE_bool("whole", False, "Pass the values as one array.")
CLIENTS = flags.DEFINE_integer(
  "clients", None, "Run one sum of so many clients, for its memory.", lower_bound=1
)


def _numpy_release(dim: int, epsilon: float, rng: Any) -> Callable[[np.ndarray], np.ndarray]:
  """PrivUnitG as its paper states it: unit vector -> estimate.

  gamma and p are those of `priv_unit`.
  """
  cap = mechanisms.priv_unit(dim, epsilon).parameters
  sigma = dim**-0.5
  above = scipy.special.ndtr(-cap.gamma / sigma)  # P(alpha >= gamma) for alpha ~ N(0, 1/dim)
  m = sigma * scipy.stats.norm.pdf(cap.gamma / sigma) * (cap.p / above - (1 - cap.p) / (1 - above))

  def release(u):
    # Inverse transform sampling of alpha, on the cap with probability p and off it otherwise.
    in_cap = rng.random() < cap.p
    tail = rng.random() * above if in_cap else above + rng.random() * (1 - above)
    alpha = -sigma * scipy.special.ndtri(tail)
    noise = rng.standard_normal(dim) * sigma
    noise -= (noise @ u) * u
    return (alpha * u + noise) / m

  return release


def _numpy_sum(
  release: Callable[[np.ndarray], np.ndarray], values: np.ndarray, count: int
) -> np.ndarray:
  total = np.zeros(values.shape[1])
  for i in range(count):
    total += release(values[i % len(values)])
  return total


def _draw_alone(keys: jax.Array, dim: int, block_size: int) -> jax.Array:
  """Draws the normals of all keys, and keeps the last block of each device."""

  def share(keys):
    def step(block, _):
      own = lax.dynamic_slice_in_dim(keys, block * block_size, block_size)
      return jax.vmap(lambda key: jdp.random.normal(key, (dim,)))(own)

    return lax.fori_loop(0, len(keys) // block_size, step, jnp.zeros((block_size, dim)))

  clients = PartitionSpec("clients")
  return jax.shard_map(
    share, mesh=client_mesh(), in_specs=clients, out_specs=clients, check_vma=False
  )(keys)


def _releases_in_full(
  mechanism: mechanisms.LocalMechanism, keys: jax.Array, values: jax.Array
) -> jax.Array:
  """The sum of each device's releases."""

  def share(keys, values):
    return jnp.sum(jax.vmap(mechanism.privatize)(keys, values), axis=0, keepdims=True)

  clients = PartitionSpec("clients")
  return jax.shard_map(
    share, mesh=client_mesh(), in_specs=clients, out_specs=clients, check_vma=False
  )(keys, values)


def _streamed(
  mechanism: mechanisms.LocalMechanism, keys: jax.Array, vectors: jax.Array
) -> jax.Array:
  source = vectors if WHOLE.value else lambda i: vectors[0] + 1e-3 * i.astype(jnp.float32)
  return mechanisms.stream_sum(
    mechanism, keys, source, block_size=BLOCK_SIZE.value, mesh=client_mesh()
  )


def _case(run: Callable, keys: jax.Array, *args: jax.Array) -> harness.Case:
  everywhere = replicate((keys, *args), client_mesh())
  return harness.Case(functools.partial(jax.jit(run), *everywhere), len(keys))


def _values(dim: int) -> tuple[int, jax.Array, jax.Array]:
  """The size of a block, the values of all clients, and the values to pass to a streamed sum.

  The clients fill whole blocks.
  """
  block_size = BLOCK_SIZE.value or max(1, 200_000 // dim)
  turn = block_size * jax.device_count()
  # Round up to whole turns, in which every device has one full block.
  count = -(-VALUES.value // (dim * turn)) * turn
  values = jax.random.normal(jax.random.key(1), (count, dim))
  return block_size, values, values if WHOLE.value else values[:1]


def _cases(dim: int, key: jax.Array) -> dict[str, harness.Case]:
  block_size, values, passed = _values(dim)
  keys = jax.random.split(key, len(values))
  priv_unit = mechanisms.priv_unit(dim, EPSILON.value)
  separated = mechanisms.separated(priv_unit, mechanisms.scalar_dp(10.0, 1.0))
  return {
    "normals alone": _case(functools.partial(_draw_alone, dim=dim, block_size=block_size), keys),
    "every release, then their sum": _case(
      functools.partial(_releases_in_full, priv_unit), keys, values
    ),
    "stream_sum, priv_unit": _case(functools.partial(_streamed, priv_unit), keys, passed),
    "stream_sum, separated": _case(functools.partial(_streamed, separated), keys, passed),
  }


def _beside_numpy(dim: int, generators: dict[str, jax.Array]) -> dict[str, harness.Case]:
  block_size, values, passed = _values(dim)
  units = np.asarray(values[:block_size], np.float64)
  units /= np.linalg.norm(units, axis=1, keepdims=True)
  few = max(1, len(values) // 8)  # numpy's rate does not depend on their number.
  cases = {}
  for name, rng in {
    "default_rng": np.random.default_rng(0),
    "np.random": np.random.RandomState(0),
  }.items():
    release = _numpy_release(dim, EPSILON.value, rng)
    cases[f"numpy, {name}"] = harness.Case(functools.partial(_numpy_sum, release, units, few), few)
  priv_unit = mechanisms.priv_unit(dim, EPSILON.value)
  for name, key in generators.items():
    keys = jax.random.split(key, len(values))
    cases[f"stream_sum, priv_unit, {name}"] = _case(
      functools.partial(_streamed, priv_unit), keys, passed
    )
  return cases


def _report_memory(dim: int, name: str, key: jax.Array, count: int) -> None:
  priv_unit = mechanisms.priv_unit(dim, EPSILON.value)
  keys = jax.random.split(key, count)

  def run(keys):
    return mechanisms.stream_sum(
      priv_unit, keys, lambda i: jnp.ones(dim) + i.astype(jnp.float32), mesh=client_mesh()
    )

  compiled = jax.jit(run).lower(keys).compile()
  memory: Any = compiled.memory_analysis()  # None on a back end without this analysis.
  buffers = memory.temp_size_in_bytes
  before = _peak_memory()
  start = time.perf_counter()
  jax.block_until_ready(compiled(keys))
  seconds = time.perf_counter() - start
  print(
    f"{name}: {count:,d} clients of {dim:,d} coordinates, {4e-9 * count * dim:.3g} GB of releases, "
    f"summed in {seconds:.1f} s ({count / seconds:,.0f} vectors/s). Buffers of the program on each "
    f"device: {1e-6 * buffers:.1f} MB, those of {buffers / (4 * dim):.1f} releases. Peak memory of "
    f"the process: {_peak_memory():.0f} MB, {before:.0f} MB before."
  )


def _before_and_after(baseline: str) -> None:
  work = [str(VALUES.value), str(EPSILON.value)]
  cases = {
    f"{dim:,d} coordinates, {devices} device{'s' if devices > 1 else ''}": checkouts.Command(
      ("jdp_streaming.py", str(dim), *work), devices
    )
    for dim in DIMS.value
    for devices in sorted({1, os.cpu_count() or 1})
  }
  timings = checkouts.before_and_after(cases, baseline)
  harness.report("threefry, values by function", timings, "vectors", json_path=harness.JSON.value)


def _peak_memory() -> float:
  """Peak memory of the process in MB; Linux counts it in KiB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024e-6


def main(argv: Sequence[str]) -> None:
  """Prints one table for each dimension and generator, and one beside numpy.

  With --clients it prints the memory of one sum, and with --baseline the comparison of checkouts.
  """
  del argv
  if baseline := checkouts.BASELINE.value:
    _before_and_after(baseline)
    return
  generators = {"threefry": jax.random.key(0), "ChaCha20": jdp.random.seeded_key(0)}
  values = "whole" if WHOLE.value else "by function"
  for dim in DIMS.value:
    if CLIENTS.value:
      for name, key in generators.items():
        _report_memory(dim, name, key, CLIENTS.value)
      continue
    for name, key in generators.items():
      timings = harness.compare(
        _cases(dim, key), baseline="normals alone", rounds=harness.ROUNDS.value
      )
      title = f"{name}, {dim:,d} coordinates, values {values}"
      harness.report(title, timings, "vectors", json_path=harness.JSON.value)
    timings = harness.compare(
      _beside_numpy(dim, generators), baseline="numpy, default_rng", rounds=harness.ROUNDS.value
    )
    harness.report(
      f"{dim:,d} coordinates, values {values}", timings, "vectors", json_path=harness.JSON.value
    )


if __name__ == "__main__":
  app.run(main)
