"""Local privacy: its draws, its releases, their sums, and their bits."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from scipy import special

import jdp.random
from experiments.benchmarks import harness
from experiments.benchmarks.harness import Case, Row, benchmark, compared, compiled
from experiments.runner.reports.tables import by_column
from jdp import mechanisms
from jdp.accounting.local.compressed_priv_unit import information, shortest_law
from jdp.accounting.local.priv_unit import optimal_cap
from jdp.accounting.local.priv_unit_g import optimal_gaussian_cap
from jdp.federated import client_mesh
from jdp.federated.engine.rounds import replicate
from jdp.guarantees import rounded_up
from jdp.mechanisms import registry
from jdp.numerics.hadamard import hadamard_transform
from jdp.queries.base import PyTree
from jdp.random.chacha import IMPLS
from jdp.random.discrete import discrete_laplace

_DRAWS: dict[str, Callable[[jax.Array, tuple[int]], jax.Array]] = {
  "bits": jdp.random.bits,
  "laplace": jdp.random.laplace,
  "normal": jdp.random.normal,
  "discrete Gaussian, stddev 10": lambda key, shape: jdp.random.discrete_gaussian(key, 10, shape),
  "discrete Laplace, scale 10": lambda key, shape: discrete_laplace(key, 10, shape),
  "Skellam, variance 100": lambda key, shape: jdp.random.skellam(key, 100, shape),
}


def generators() -> dict[str, jax.Array]:
  """A key of each generator, by name."""
  return {
    "default key": jax.random.key(0),
    **{name: jdp.random.seeded_key(0, name) for name in IMPLS},
  }


@benchmark({"size": (1000,)})
def draws(
  size: tuple[int, ...] = (1_000, 100_000, 1_000_000, 10_000_000), rounds: int = 7
) -> Iterator[Row]:
  """Speed of jdp's draws by each generator, beside `jax.random.normal` with the default key."""
  keys = generators()
  for count in size:

    def case(draw: Callable[..., jax.Array], key: jax.Array, count: int = count) -> Case:
      return compiled(lambda key: draw(key, (count,)), key, work=count)

    cases = {
      f"jax.random.{name}, default key": case(draw, keys["default key"])
      for name, draw in {"normal": jax.random.normal, "bits": jax.random.bits}.items()
    }
    for name, draw in _DRAWS.items():
      cases |= {f"{name}, {generator}": case(draw, key) for generator, key in keys.items()}
    yield compared(f"{count:,d} values", "values", cases, rounds)


@benchmark({"dim": (16,), "values": 64})
def releases(
  dim: tuple[int, ...] = (1_000, 10_000, 100_000),
  epsilon: float = 8.0,
  values: int = 1_000_000,
  rounds: int = 7,
) -> Iterator[Row]:
  """All local mechanisms: bytes of a report, mean squared error of a unit vector, and time.

  The time is a ratio of rates to drawing as many normal numbers (`jdp.random.normal`): 0.5 takes
  twice as long for each coordinate. `compressed_reports` is about the one that is not here.
  """
  for size in dim:
    made = {name: _made(name, size, epsilon) for name in registry.registered()}
    vectors = {name: own for name, own in made.items() if own.shape == (size,)}
    del vectors["compressed_priv_unit"]
    yield _released(f"Vectors of {size:,} coordinates", vectors, size, epsilon, values, rounds)
  numbers = {name: own for name, own in made.items() if own.shape == ()}
  yield _released("Numbers", numbers, 1, epsilon, values, rounds)


def _made(name: str, dim: int, epsilon: float) -> mechanisms.LocalMechanism:
  # For each value proj_unit factors a matrix of as many rows as it has projections.
  projections = min(64 if name == "proj_unit" else 1024, dim)
  setting = registry.Setting(dim, epsilon, projections, max_coordinate=dim**-0.5)
  return registry.registered()[name].make(setting)


def _released(
  title: str,
  own: Mapping[str, mechanisms.LocalMechanism],
  dim: int,
  epsilon: float,
  values: int,
  rounds: int,
) -> Row:
  count = max(1, values // dim)
  keys = jax.random.split(jax.random.key(0), count)
  normals = jax.vmap(lambda key: jdp.random.normal(key, (dim,)))
  cases = {"normal numbers": compiled(normals, keys, work=count * dim)}
  for name, mechanism in own.items():
    value = jnp.ones(mechanism.shape)
    value = value / mechanism.norm(value)
    report = jax.eval_shape(mechanism.encode, keys[0], value)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(report))
    label = f"{name}, {size:,} B, {mechanism.mean_squared_error(1.0):.4g}"
    cases[label] = compiled(
      jax.vmap(mechanism.privatize, (0, None)), keys, value, work=count * value.size
    )
  title = f"{title}, epsilon = {epsilon}: mechanism, bytes of a report, mean squared error"
  return compared(title, "numbers", cases, rounds)


def _numpy_priv_unit_g(rng: np.random.Generator, epsilon: float) -> Callable[..., np.ndarray]:
  """PrivUnitG as its paper states it, in float64: unit vector -> estimate."""
  cap = optimal_gaussian_cap(epsilon)
  above = special.ndtr(-cap.gamma)  # of a normal number, to be in the cap

  def release(u: np.ndarray) -> np.ndarray:
    # Inverse transform sampling, in the cap with probability p and off it otherwise.
    in_cap = rng.random() < cap.p
    tail = rng.random() * above if in_cap else above + rng.random() * (1 - above)
    noise = rng.standard_normal(len(u))
    return (noise + (-special.ndtri(tail) - noise @ u) * u) / cap.m

  return release


def _numpy_hadamard(vector: np.ndarray) -> np.ndarray:
  """The orthonormal Hadamard transform of [d], in log2(d) passes."""
  half = 1
  while half < len(vector):
    pairs = vector.reshape(-1, 2, half)
    vector = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
    half *= 2
  return vector / np.sqrt(len(vector))


def _numpy_proj_unit(
  rng: np.random.Generator, release: Callable[..., np.ndarray], k: int, u: np.ndarray
) -> np.ndarray:
  """One estimate of the unit vector u by the published fast form."""
  signs = 2.0 * rng.integers(0, 2, len(u)) - 1
  rows = rng.choice(len(u), k, replace=False)
  projected = _numpy_hadamard(signs * u)[rows]
  spread = np.zeros_like(u)
  spread[rows] = release(projected / np.linalg.norm(projected))
  return np.sqrt(len(u) / k) * signs * _numpy_hadamard(spread)


def _numpy_case(run: Callable[[np.ndarray], object], dim: int, count: int) -> Case:
  """So many releases of a unit vector, one after the other."""
  u = np.random.default_rng(0).standard_normal(dim)
  u /= np.linalg.norm(u)
  return Case(lambda: [run(u) for _ in range(count)], count)


@benchmark({"levels": (6,), "projections": 16, "values": 512})
def projections(
  levels: tuple[int, ...] = (13, 17, 20),
  projections: int = 1024,
  epsilon: float = 16.0,
  values: int = 4_000_000,
  rounds: int = 7,
) -> Iterator[Row]:
  """Speed of ProjUnit and its parts, for 2^level coordinates.

  The baseline is the published fast algorithm (arXiv 2306.04444) in plain numpy and float64. It has
  these steps:

  * random signs, a Hadamard transform, and k of its coordinates
  * PrivUnitG of their direction
  * the same steps back

  As published, a transform is log2(d) passes over the vector, and the constants are computed
  beforehand. A vector is privatised and decoded. numpy takes one vector after the other, jdp takes
  blocks of them.
  """
  for level in levels:
    cases = _projections(2**level, min(projections, 2**level), epsilon, values)
    title = f"{2**level:,d} coordinates, {projections} projections"
    yield compared(title, "vectors", cases, rounds)


def _projections(dim: int, k: int, epsilon: float, values: int) -> dict[str, Case]:
  count, rng = max(2, values // dim), np.random.default_rng(0)
  keys = jax.random.split(jax.random.key(0), count)
  vectors = jax.random.normal(jax.random.key(1), (count, dim))
  made = partial(mechanisms.fast_proj_unit, dim, epsilon, k)
  own, key = made(), jax.random.key(2)

  def streamed(mechanism: mechanisms.LocalMechanism, block_size: int | None = None) -> Case:
    run = partial(mechanisms.stream_sum, mechanism, block_size=block_size)
    return compiled(run, keys, vectors, work=count)

  published = partial(_numpy_proj_unit, rng, _numpy_priv_unit_g(rng, epsilon), k)
  normals = jax.vmap(lambda key: jdp.random.normal(key, (dim,)))
  return {
    "published form, numpy": _numpy_case(published, dim, max(2, min(count, 2**20 // dim))),
    "every release": compiled(jax.vmap(own.privatize), keys, vectors, work=count),
    "stream_sum": streamed(own),
    "stream_sum, one rotation": streamed(made(rotation_key=key)),
    "stream_sum, one projection": streamed(
      made(projection_key=jax.random.clone(key)), max(1, 400_000 // dim)
    ),
    "encode alone": compiled(jax.vmap(own.encode), keys, vectors, work=count),
    "stream_sum, priv_unit": streamed(mechanisms.priv_unit(dim, epsilon)),
    "stream_sum, priv_unit_g": streamed(mechanisms.priv_unit_g(dim, epsilon)),
    "one transform": compiled(hadamard_transform, vectors, work=count),
    "one draw of normals": compiled(normals, keys, work=count),
  }


@benchmark({"dim": (1000,), "values": 10_000})
def streaming(
  dim: tuple[int, ...] = (10_000, 100_000, 1_000_000),
  values: int = 4_000_000,
  epsilon: float = 16.0,
  baseline: str = "",
  rounds: int = 7,
) -> Iterator[Row]:
  """Speed of the streamed sum of PrivUnit releases, of about so many `values` in all.

  For each generator the first case draws the normals alone: the same count, by the same keys, in
  the same blocks. Each block is written over the last. All devices share the work, in that case
  too. With one device per core (`XLA_FLAGS=--xla_force_host_platform_device_count=CORES`) each
  core's block stays in its own cache. A function makes each value from the client's number.

  A second table for each dimension begins with numpy: PrivUnitG (arXiv 2205.02466, Section 4), one
  release after the other in float64. Its constants are precomputed.

  `--baseline=CHECKOUT` compares this checkout's sums with another one's instead, in processes that
  take turns.
  """
  if baseline:
    commands = {
      f"{size:,d} coordinates, {devices} device{'s' if devices > 1 else ''}": harness.Command(
        ("jdp_streaming.py", str(size), str(values), str(epsilon)), devices
      )
      for size in dim
      for devices in sorted({1, os.cpu_count() or 1})
    }
    yield from harness.before_and_after("threefry", "vectors", commands, baseline, rounds)
    return
  keys = {"threefry": jax.random.key(0), "ChaCha20": jdp.random.seeded_key(0)}
  for size in dim:
    made = {name: stream_cases(size, key, values, epsilon) for name, key in keys.items()}
    for name, cases in made.items():
      title = f"{name}, {size:,d} coordinates, values by function"
      yield compared(title, "vectors", cases, rounds)
    release = _numpy_priv_unit_g(np.random.default_rng(0), epsilon)
    beside = {"numpy, default_rng": _numpy_case(release, size, max(1, values // size // 8))}
    beside |= {f"priv_unit, {name}": cases["priv_unit"] for name, cases in made.items()}
    title = f"{size:,d} coordinates, values by function"
    yield compared(title, "vectors", beside, rounds)


def stream_cases(dim: int, key: jax.Array, values: int, epsilon: float) -> dict[str, Case]:
  """Sums of releases whose clients fill whole blocks on all devices, beside drawing as much."""
  block_size = max(1, 200_000 // dim)
  turn = block_size * jax.device_count()
  count = -(-values // (dim * turn)) * turn
  mesh, first = client_mesh(), jax.random.normal(jax.random.key(1), (dim,))
  arguments = replicate((jax.random.split(key, count), first), mesh)

  def streamed(
    mechanism: mechanisms.LocalMechanism, keys: jax.Array, first: jax.Array
  ) -> jax.Array:
    values = lambda i: first + 1e-3 * i.astype(jnp.float32)  # noqa: E731
    return mechanisms.stream_sum(mechanism, keys, values, mesh=mesh)

  priv_unit = mechanisms.priv_unit(dim, epsilon)
  separated = mechanisms.separated(priv_unit, mechanisms.scalar_dp(10.0, 1.0))
  alone = partial(_drawn_alone, dim=dim, block_size=block_size)
  return {
    "normals alone": compiled(alone, arguments[0], work=count),
    "priv_unit": compiled(partial(streamed, priv_unit), *arguments, work=count),
    "separated": compiled(partial(streamed, separated), *arguments, work=count),
  }


def _drawn_alone(keys: jax.Array, dim: int, block_size: int) -> jax.Array:
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


_LITTLE = 2e7  # numbers in a table for which means are compared
_MOST_NUMBERS = 4e7  # of a batch's inputs


def _bits_table(rows: Sequence[Row]) -> str:
  return by_column(map(_cells, rows))


def _cells(row: Row) -> dict[str, str]:
  rate, shared = row.get("reports_per_second"), row.get("shared")
  error = "" if shared is None else f"{100 * shared:.1f} ± {100 * row['shared_error']:.1f}"
  return {
    "d": f"{row['dim']:,}",
    "ε": str(rounded_up(row["epsilon"])),
    "bits": str(row["bits"]),
    "at least": f"{row['information']:.1f}",
    "vector": f"{row['vector_bits']:,}",
    "error / PrivUnit's": f"{row['error_over_priv_unit']:.3f}",
    "reports/s": "not run" if rate is None else f"{rate:,.3g}",
    "a table adds, %": error or "not run",
  }


@benchmark({"dim": (100,), "epsilon": (2.0,), "clients": 10, "num_tables": 2}, table=_bits_table)
def compressed_reports(
  dim: tuple[int, ...] = (1000, 10_000, 100_000, 1_000_000),
  epsilon: tuple[float, ...] = (2.0, 4.0, 8.0, 16.0),
  work: float = 3e9,
  clients: int = 1000,
  num_tables: int = 40,
) -> Iterator[Row]:
  """PrivUnit's direction as the number of a public candidate: its bits, its error, its speed.

  For each dimension and epsilon a row has

  * the bits of a number, for a squared error of at most 1.05 times PrivUnit's, and the error;
  * the fewest bits that any code of PrivUnit's report needs, and the bits of the vector;
  * how many reports a second clients of one table make, in batches. A client takes N dim
    multiplications, so where these are more than `work`, nothing is run;
  * how far the table that all share adds to the error of the mean of `clients` reports: the squared
    error of the mean over that of independent reports, less 1, with its standard error over tables.
    Inputs are equal, which is the worst case. It is measured where a table takes little work.
  """
  for size in dim:
    for own in epsilon:
      law = shortest_law(size, own)
      alone = math.expm1(-2 * law.cap.log_m)
      numbers = law.num_candidates * size
      row = {
        "dim": size,
        "epsilon": own,
        "bits": law.num_candidates.bit_length() - 1,
        "information": information(law.cap),
        "vector_bits": 32 * size,
        "error_over_priv_unit": alone / math.expm1(-2 * optimal_cap(size, own).log_m),
        "epsilon_without_candidates": law.cap.epsilon,
      }
      if numbers <= work:
        count = max(1, min(clients, int(_MOST_NUMBERS // size)))
        row["reports_per_second"] = _rate(size, own, count, 2 if numbers > 1e9 else 6)
      if numbers <= _LITTLE:
        errors = _errors_of_means(size, own, clients, num_tables) / (alone / clients) - 1
        row["shared"] = float(np.mean(errors))
        row["shared_error"] = float(np.std(errors, ddof=1) / math.sqrt(num_tables))
      yield row


def _reports(
  dim: int, epsilon: float, count: int, table_key: jax.Array, key: jax.Array
) -> tuple[PyTree, mechanisms.LocalMechanism]:
  """The reports of so many clients with one input."""
  mechanism = mechanisms.compressed_priv_unit(dim, epsilon, table_key=table_key)
  encode = jax.vmap(lambda own: mechanism.encode(own, jnp.ones(dim)))
  return encode(jax.random.split(key, count)), mechanism


def _rate(dim: int, epsilon: float, count: int, turns: int) -> float:
  """Reports a second, the best of a few batches. The table is made anew in each."""
  run = jax.jit(lambda *keys: _reports(dim, epsilon, count, *keys)[0])
  seconds = []
  for turn in range(turns):
    start = time.perf_counter()
    jax.block_until_ready(run(jax.random.key(turn), jax.random.key(-1 - turn)))
    seconds.append(time.perf_counter() - start)
  return count / min(seconds[1:])


def _errors_of_means(dim: int, epsilon: float, clients: int, num_tables: int) -> np.ndarray:
  """The squared error of the mean of all reports, for each table."""

  @jax.jit
  def error_of_mean(table_key, key):
    reports, mechanism = _reports(dim, epsilon, clients, table_key, key)
    mean = jnp.mean(jax.vmap(mechanism.decode)(reports), axis=0)
    return jnp.sum((mean - dim**-0.5) ** 2)

  keys = ((jax.random.key(turn), jax.random.key(10**6 + turn)) for turn in range(num_tables))
  return np.array([float(error_of_mean(*own)) for own in keys])
