"""Accelerators: what holds on one at hand, what it takes there, and what compiles without one."""

import inspect
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from scipy import stats

import jdp.random
from experiments.benchmarks import harness
from experiments.benchmarks.harness import Case, Row, benchmark, compiled
from experiments.benchmarks.mechanisms import generators, stream_cases
from experiments.benchmarks.peers import jdp_rounds, serve
from experiments.benchmarks.peers.jdp_layers import clipped_sum
from experiments.benchmarks.training import MODELS, workload
from experiments.runner.reports.tables import table
from jdp import federated, mechanisms, models, queries, sampling, transforms
from jdp.data import Examples
from jdp.federated.engine.default_layout import asked_layout
from jdp.federated.engine.ghost_norms import ghost_client
from jdp.numerics import compensated

PyTree = Any
_CLIP_NORM = 1e-3  # of `clipped_sum`
# Accelerators multiply float32 in fewer bits by default. A guarantee does not rest on that.
_SUM_ERROR = {"cpu": 1e-4}
_FIRST = {
  "draws": "writing",
  "PrivUnit": "drawing alone",
  "cohorts": "no ghost norms",
  "peers": "pfl-research",
}


def _device_table(rows: Sequence[Row]) -> str:
  devices = sorted({kind for row in rows for kind in row["machine"]["devices"]})
  parts = [f"Measured on {', '.join(devices)}, jax {rows[-1]['machine']['jax']}."]
  checks = [
    (r["case"], f"{r['error']:.2g}", f"{r['most']:.2g}", "yes" if r["holds"] else "**no**")
    for r in rows
    if r["part"] == "checks"
  ]
  if checks:
    parts.append(table(("check", "error", "at most", "holds"), checks))
  for part, first in _FIRST.items():
    if own := [_line(row) for row in rows if row["part"] == part]:
      parts.append(table((part, "ms", "a second", f"over {first}"), own))
  return "\n\n".join(parts)


def _line(row: Row) -> tuple[str, ...]:
  """A line of a table of times."""
  if "rate" not in row:
    return row["case"], row["unit"], "", ""
  ms, rate = 1e3 * row["seconds"], f"{row['rate']:,.0f} {row['unit']}"
  return row["case"], f"{ms:,.3g}", rate, f"{row['ratio']:.2f}"


@benchmark(
  {"small": True},
  table=_device_table,
  failed=lambda rows: [row for row in rows if not row.get("holds", True)],
)
def accelerator(
  minutes: float = 20.0, small: bool = False, pfl_python: str = "", rounds: int = 7
) -> Iterator[Row]:
  """Checks jdp on the device at hand, then measures it there.

  JAX must see the host's CPU too, so leave JAX_PLATFORMS unset, or name both.

  First come draws, sums and clipping by ghost norms, against the same on the host: in float64, or
  by its CPU. A failed check ends the run with an error, after all was measured. Then come times:
  draws beside writing as many numbers, streams of PrivUnit beside drawing alone, and rounds of
  DP-FedAvg by cohort and model, and beside pfl-research on the same device.

  What does not start within so many `minutes` is left out, and is named.
  """
  yield from _checks(small)
  end = time.monotonic() + 60 * minutes
  for part, unit, make in _comparisons(small):
    if time.monotonic() > end:
      yield {"part": part, "case": f"{make.func.__name__[1:]} {make.args}", "unit": "left out"}
      continue
    yield from (_timed(part, unit, timing) for timing in harness.compare(make(), rounds))
  for name in ("logistic", "MLP", "CNN") if pfl_python else ():
    yield from _beside_pfl(name, pfl_python, rounds)


def _timed(part: str, unit: str, timing: harness.Timing) -> Row:
  """A row of a case."""
  figures = timing._asdict()
  return {"part": part, "case": figures.pop("name"), "unit": unit} | figures


def _checks(small: bool) -> Iterator[Row]:
  """What must hold on the device, each with its error and the most that it may be."""
  for name, key in generators().items():
    if name == "default key" or not small:
      yield from _checked_draws(name, key, 10_000 if small else 1_000_000)
  yield _checked_sum(100 if small else 10_000)
  for name in ("LSTM",) if small else MODELS:
    yield from _checked_ghost_norms(name, *workload(name, 4, small=small))


def _check(name: str, error: float, most: float) -> Row:
  """A row of a check."""
  return {"part": "checks", "case": name, "error": error, "most": most, "holds": error <= most}


def _checked_draws(generator: str, key: jax.Array, size: int) -> Iterator[Row]:
  """Draws are those of the host's CPU, and normals follow their law."""
  draws: dict[str, Callable[[jax.Array], jax.Array]] = {
    "bits": lambda key: jdp.random.bits(key, (size,)),
    "discrete Gaussian": lambda key: jdp.random.discrete_gaussian(key, 3.0, (size // 10,)),
    "normals": lambda key: jdp.random.normal(key, (size,)),
  }
  for name, draw in draws.items():
    here, there = (_drawn(key, draw, device) for device in (None, jax.devices("cpu")[0]))
    apart = np.abs(here - there)
    title = f"{name}, {generator}"
    if name != "normals":
      yield _check(f"{title}: numbers that differ from the host's", float(np.sum(apart > 0)), 0.0)
      continue
    yield _check(
      f"{title}: distance from the host's", float(np.max(apart / (1 + np.abs(there)))), 1e-5
    )
    distance = stats.kstest(here, "norm").statistic * np.sqrt(size)
    # A sound generator fails with a probability of 1e-6.
    yield _check(f"{title}: Kolmogorov's distance, times sqrt(n)", float(distance), 2.7)


def _drawn(
  key: jax.Array, draw: Callable[[jax.Array], jax.Array], device: jax.Device | None
) -> np.ndarray:
  """What is drawn on a device, as float64."""
  with jax.default_device(device):
    return np.asarray(jax.jit(draw)(jax.device_put(key, device)), np.float64)


def _checked_sum(clients: int) -> Row:
  """The sum of a cohort is the exact one, rounded once, though its numbers cancel."""
  rng = np.random.default_rng(0)
  values = rng.normal(size=(clients, 100)) * 10.0 ** rng.uniform(-3, 3, (clients, 1))
  values = np.concatenate([values, rng.normal(size=values.shape) - values]).astype(np.float32)
  count = len(values)
  sample = sampling.Sample(
    jnp.arange(count, dtype=jnp.int32), jnp.ones(count), jnp.int32(count), count
  )

  def add(keys, shared, client, weight):
    del keys, shared
    return weight * client

  total = jax.jit(lambda data: federated.cohort_sum(add, jax.random.key(0), (), sample, data))
  exact = np.sum(values.astype(np.float64), axis=0)
  apart = np.abs(np.asarray(total(values), np.float64) - exact) - 2.0**-24 * np.abs(exact)
  error = np.max(apart / np.sum(np.abs(values), axis=0, dtype=np.float64))
  return _check(f"sum of {count:,d} clients: error over that of one rounding", float(error), 1e-12)


def _checked_ghost_norms(
  name: str, loss: models.Loss, params: PyTree, users: Examples
) -> Iterator[Row]:
  """No clipped update is longer than the clip norm, and their sum is that of explicit gradients."""
  step = federated.gradient_step(loss, 1.0)

  def explicit(keys, sent, client):
    return step(keys.data, sent[0], client), {}

  by_ghost, by_vmap = (
    _exact(jax.jit(clipped_sum(client_fn, len(users.mask)))(params, users))
    for client_fn in (ghost_client(loss, 1.0), explicit)
  )
  alone = jax.jit(clipped_sum(ghost_client(loss, 1.0), 1))
  lengths = [
    float(np.linalg.norm(_exact(alone(params, jax.tree.map(lambda x, i=i: x[i : i + 1], users)))))
    for i in range(len(users.mask))
  ]
  yield _check(f"{name}: a clipped update beyond the clip norm", max(lengths) / _CLIP_NORM - 1, 0.0)
  yield _check(f"{name}: a clipped update below it", 1 - min(lengths) / _CLIP_NORM, 1e-4)
  error = float(np.linalg.norm(by_ghost - by_vmap) / np.linalg.norm(by_vmap))
  most = _SUM_ERROR.get(jax.default_backend(), 1e-2)
  yield _check(f"{name}: sum by ghost norms beside explicit gradients", error, most)


def _exact(tree: PyTree) -> np.ndarray:
  """All numbers of a pytree, as float64."""
  return np.asarray(ravel_pytree(tree)[0], np.float64)


def _comparisons(small: bool) -> Iterator[tuple[str, str, partial[dict[str, Case]]]]:
  """(part, unit, what makes the cases). The first case is what the others' ratios refer to."""
  for size in (10_000,) if small else (1_000_000, 100_000_000):
    yield "draws", "numbers", partial(_draws, size)
  for dim in (1_000,) if small else (10_000, 100_000, 1_000_000):
    yield "PrivUnit", "vectors", partial(_streams, dim, 10_000 if small else 40_000_000)
  for name in ("MLP",) if small else MODELS:
    for clients in (32,) if small else (1_000, 3_000, 10_000, 50_000):
      yield "cohorts", "clients", partial(_rounds, name, clients, small)


def _draws(size: int) -> dict[str, Case]:
  """Draws of so many numbers, beside writing as many."""

  def normals(key):
    return jdp.random.normal(key, (size,))

  written = compiled(lambda x: jnp.full(size, x), jnp.float32(1), work=size)
  return {f"{size:,d} numbers written": written} | {
    f"{size:,d} normals, {name}": compiled(normals, key, work=size)
    for name, key in generators().items()
  }


def _streams(dim: int, values: int) -> dict[str, Case]:
  """The sum of releases of PrivUnit, beside drawing as many normals."""
  by_default, by_chacha = (
    stream_cases(dim, key, values, 16.0) for key in (jax.random.key(0), jdp.random.seeded_key(0))
  )
  return {
    f"normals of {dim:,d} alone, default key": by_default["normals alone"],
    f"PrivUnit of {dim:,d}, default key": by_default["priv_unit"],
    f"PrivUnit of {dim:,d}, ChaCha20": by_chacha["priv_unit"],
  }


def _rounds(name: str, clients: int, small: bool = False) -> dict[str, Case]:
  """Rounds of DP-FedSGD of all users by a model, without and with ghost norms."""
  loss, params, users = workload(name, clients, small=small)
  keys, cases = (jdp.random.seeded_key(0), jax.random.key(1)), {}
  for kind, ghost_norms in {"": False, "ghost norms, ": True}.items():
    layout = asked_layout(None, ghost_norms=ghost_norms)._asdict()
    made = jdp_rounds.algorithm("federated", loss, layout, size=clients, population=clients)
    cases[f"{name}, {clients:,d} clients, {kind}chunks by the rule"] = compiled(
      lambda *args, made=made: made.round(*args)[0], *keys, made.init(params), users, work=clients
    )
  return cases


def _beside_pfl(name: str, python: str, rounds: int) -> Iterator[Row]:
  """DP-FedAvg as in `cohorts`, by pfl-research in a process of its own and by jdp in this one."""
  command = harness.Command(("pfl_research.py", "federated", name.lower()), python=python)
  (pfl,) = harness.compare({"pfl-research": command}, rounds)
  for timing in harness.compare(_rounds(name, serve.COHORT), rounds):
    yield _timed("peers", "clients", timing._replace(ratio=timing.rate / pfl.rate))
  yield _timed("peers", "clients", pfl._replace(name=f"{name}, pfl-research"))


CHIP_MEMORY = 15.75 * 2**30
"""Bytes of a TPU v5e that programs may use."""

CHIPS = 4
_HOST = {  # as if the process were that of a virtual machine with the chips
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # another process may compile too
  "TPU_ACCELERATOR_TYPE": f"v5litepod-{CHIPS}",
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
}


Made = tuple[Callable[..., PyTree], tuple[PyTree, ...]]
"""A function and its arguments, pytrees of arrays."""


class Program(NamedTuple):
  """A program to compile.

  Attributes:
    part: what it is of.
    name: its own.
    make: mesh -> the function and its arguments.
    chips: how many it is for.
  """

  part: str
  name: str
  make: Callable[[Mesh], Made]
  chips: int = 1


class Scale(NamedTuple):
  """How large programs are.

  Attributes:
    clients: computed side by side.
    dim: of a local mechanism's values.
    models: that rounds train.
    small: whether language models are.
  """

  clients: int
  dim: int
  models: Sequence[str]
  small: bool


SMALL = Scale(8, 16, MODELS[:1], small=True)
FULL = Scale(256, 1024, MODELS, small=False)


def programs(scale: Scale) -> Iterator[Program]:
  """All of them."""
  for name in mechanisms.registry.registered():
    yield Program("mechanisms", name, partial(_releases, name, scale))
  for name in queries.registry.registered():
    yield Program("queries", name, partial(_query, name, scale))
  for name in sorted(samplers()):
    yield Program("samplers", name, partial(_sample, name, scale))
  for name, product in _PRODUCTS.items():
    yield Program("products", name, partial(_product, product, scale))
  for model in scale.models:
    for ghost in (False, True):
      title = f"dp_sgd, {model}{', ghost norms' if ghost else ''}"
      yield Program("rounds", title, partial(_sgd, model, ghost, scale))
    for chips in (1, CHIPS):
      yield Program("rounds", f"dp_fedavg, {model}", partial(_fedavg, model, scale), chips)


def _releases(name: str, scale: Scale, mesh: Mesh) -> Made:
  """The reports of clients side by side, and what the server decodes."""
  del mesh
  dim = scale.dim
  setting = mechanisms.registry.Setting(
    dim, 4.0, num_projections=dim // 8, max_coordinate=dim**-0.5
  )
  mechanism = mechanisms.registry.registered()[name].make(setting)

  def release(key, value):
    report = mechanism.encode(key, value)
    return report, mechanism.decode(report)

  keys = jax.random.split(jdp.random.seeded_key(0), scale.clients)
  return jax.vmap(release), (keys, np.zeros((scale.clients, *mechanism.shape), np.float32))


def _query(name: str, scale: Scale, mesh: Mesh) -> Made:
  """The release of a sum of records like the one that audits look at."""
  del mesh
  entry = queries.registry.registered()[name]

  def release(key, records, weights):
    transformation = transforms.privatize(entry.make(), key)
    state = transformation.init(jax.tree.map(lambda x: x[0], records))
    return transformation.update(records, state, weights=weights)

  records = jax.tree.map(
    lambda x: np.zeros((scale.clients, *np.shape(x)), np.float32), entry.victim
  )
  return release, (jdp.random.seeded_key(0), records, np.ones(scale.clients, np.float32))


def samplers() -> dict[str, Callable[..., sampling.Sampler]]:
  """The public functions of `jdp.sampling` that say that they make a sampler."""
  made = ((name, getattr(sampling, name)) for name in sampling.__all__)
  return {
    name: function
    for name, function in made
    if inspect.isfunction(function)
    and inspect.signature(function, eval_str=True).return_annotation is sampling.Sampler
  }


def _sample(name: str, scale: Scale, mesh: Mesh) -> Made:
  """The sample of a round. A sampler gets the arguments that it cannot do without."""
  del mesh
  size = 4 * scale.clients
  values = {
    "population": 100 * size,
    "probability": 0.01,
    "capacity": 2 * size,
    "sample_size": size,
    "batch_size": size,
    "num_batches": 100,
    "participations": 2,
    "separation": 10,
    "max_participations": 5,
    "num_groups": 10,
  }
  make = samplers()[name]
  needed = (p for p in inspect.signature(make).parameters.values() if p.default is p.empty)
  sampler = make(**{parameter.name: values[parameter.name] for parameter in needed})
  return sampler.sample, (jdp.random.seeded_key(0), sampler.init())


def _float32_product(left, right, precision):
  return jax.lax.dot_general(left, right, (((0,), (0,)), ((), ())), precision)


_PRODUCTS: dict[str, Callable[..., PyTree]] = {
  "compensated.product": compensated.product,
  "float32, highest precision": partial(_float32_product, precision="highest"),
  "float32, default precision": partial(_float32_product, precision="default"),
}


def _product(product: Callable[..., PyTree], scale: Scale, mesh: Mesh) -> Made:
  """left^T right, of as many rows as a chunk has examples."""
  del mesh
  rows = 10 * scale.clients
  return product, tuple(np.zeros((rows, size), np.float32) for size in (100, 784))


def _fedavg(model: str, scale: Scale, mesh: Mesh) -> Made:
  """A round of federated averaging, of half of the users."""
  users = 4 * scale.clients
  loss, params, clients = workload(model, users, small=scale.small)
  algorithm = federated.dp_fedavg(
    loss,
    clients,
    cohort_size=users // 2,
    clip_norm=1.0,
    num_rounds=1,
    noise_multiplier=1.0,
    mesh=mesh if mesh.size > 1 else None,
  )
  return _round_of(algorithm, params, clients)


def _sgd(model: str, ghost_norms: bool, scale: Scale, mesh: Mesh) -> Made:
  """A round of DP-SGD, of half of the examples."""
  del mesh
  loss, params, users = workload(model, 4 * scale.clients, small=scale.small)
  examples = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), users)
  algorithm = federated.dp_sgd(
    loss,
    examples,
    batch_size=len(examples.mask) // 2,
    clip_norm=1.0,
    num_rounds=1,
    noise_multiplier=1.0,
    layout=federated.CohortLayout(None, ghost_norms),
  )
  return _round_of(algorithm, params, examples)


def _round_of(algorithm: federated.FederatedAlgorithm, params: PyTree, clients: PyTree) -> Made:
  """A round and its arguments."""
  keys = jdp.random.seeded_key(0), jax.random.key(1)
  return algorithm.round, (*keys, algorithm.init(params), clients)


def host_callbacks(traced: Any) -> list[str]:
  """The primitives of a traced function, or of what it calls, that come back to the host."""
  return sorted(set(re.findall(r"\b(\w*callback|debug_print|infeed|outfeed)\[", str(traced.jaxpr))))


def float64_products(program: str) -> int:
  """How many matrix products and convolutions of float64 a program in StableHLO has."""
  found = re.findall(r"stablehlo\.(?:dot_general|convolution)\b.*", program)
  return sum("f64>" in line for line in found)


def topology() -> Sequence[jax.Device] | str:
  """The chips that the compiler compiles for, or why there are none."""
  try:
    import libtpu
  except ImportError:
    return "libtpu is not installed"
  library = str(pathlib.Path(libtpu.__file__).parent / "libtpu.so")
  with mock.patch.dict(os.environ, {"TPU_LIBRARY_PATH": library} | _HOST):
    try:
      return topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    except Exception as error:
      return f"libtpu does not start: {error}".splitlines()[0]


def examined(program: Program, devices: Sequence[jax.Device], *, for_tpu: bool) -> Row:
  """What is found of a program.

  Args:
    program: which.
    devices: the chips, or as many devices of the host in their place.
    for_tpu: whether they are chips, for which it is compiled.
  """
  mesh = federated.client_mesh(devices[: program.chips])
  sharding = NamedSharding(mesh, PartitionSpec())
  row: Row = {"part": program.part, "program": program.name, "chips": program.chips}
  # jdp asks for the platform where it traces.
  with mock.patch.object(jax, "default_backend", return_value="tpu"):
    function, arguments = program.make(mesh)
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype, sharding=sharding), arguments
    )
    traced = jax.jit(function).trace(*shapes)
  row["callbacks"] = host_callbacks(traced)
  row["cuda"] = _said(lambda: _lowered(traced.lower(lowering_platforms=("cuda",))))
  if for_tpu:
    start = time.perf_counter()
    row["tpu"] = _said(lambda: _compiled(traced.lower(lowering_platforms=("tpu",))))
    row["tpu"]["seconds"] = time.perf_counter() - start
  return row


def _said(find: Callable[[], Row]) -> Row:
  """What is found, or the error in its place."""
  try:
    return find()
  except Exception as error:
    return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}


def _lowered(lowered: Any) -> Row:
  """What the text of a program shows."""
  return {"float64_products": float64_products(lowered.as_text())}


def _compiled(lowered: Any) -> Row:
  """What the text shows, and what the compiler says."""
  found = _lowered(lowered)
  try:
    program = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if (needed := needed_memory(str(error))) is None:
      raise
    return found | {"memory": needed}
  memory, cost = program.memory_analysis(), program.cost_analysis()
  # The compiler's estimate is negative where it does not know how often a loop turns.
  return found | {
    "memory": memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes
    + memory.generated_code_size_in_bytes,
    "temporary": memory.temp_size_in_bytes,
    "flops": cost["flops"],
    "bytes_accessed": cost["bytes accessed"],
    "estimated_seconds": cost["optimal_seconds"],
  }


def needed_memory(refusal: str) -> float | None:
  """The bytes that a program is said to need at least, where the compiler refuses it for them."""
  found = re.search(r"Used ([\d.]+)G of|\(([\d.]+)G\) exceeds available HBM", refusal)
  return None if found is None else float(found[1] or found[2]) * 2**30


def _programs_table(rows: Sequence[Row]) -> str:
  head = (
    "program", "chips", "MB", "fits", "Gflop", "GB moved", "ms", "callbacks", "float64 products",
    "CUDA",
  )  # fmt: skip
  return "\n\n".join(
    table((part, *head[1:]), [_program_cells(row) for row in rows if row["part"] == part])
    for part in dict.fromkeys(row["part"] for row in rows)
  )


def _program_cells(row: Row) -> list[str]:
  """A line of the table."""
  cuda, tpu = row["cuda"], row.get("tpu", {})
  memory = tpu.get("memory")
  return [
    row["program"],
    str(row["chips"]),
    tpu.get("error", "") if memory is None else f"{memory / 1e6:,.1f}",
    "" if memory is None else _yes(memory <= CHIP_MEMORY),
    *(f"{tpu[name] / 1e9:,.3g}" if name in tpu else "" for name in ("flops", "bytes_accessed")),
    f"{1e3 * seconds:.3g}" if (seconds := tpu.get("estimated_seconds", -1)) > 0 else "",
    ", ".join(row["callbacks"]) or "none",
    str((tpu or cuda).get("float64_products", "")),
    cuda.get("error", "yes"),
  ]


def _yes(holds: bool) -> str:
  return "yes" if holds else "**no**"


def _failed(rows: Sequence[Row]) -> list[Row]:
  """Programs that are not compiled or not lowered at all."""
  return [
    row for row in rows if any("error" in row.get(platform, {}) for platform in ("cuda", "tpu"))
  ]


@benchmark({"small": True}, table=_programs_table, failed=_failed)
def compiled_programs(small: bool = False) -> Iterator[Row]:
  """Compiles jdp's programs for a TPU and lowers them for CUDA, on a machine that has neither.

  It needs `pip install -e '.[tpu]'`. The programs are every registered mechanism and query, every
  sampler of `jdp.sampling`, and rounds of `dp_fedavg` and `dp_sgd` with the library's models. XLA's
  own compiler for TPUs, which `libtpu` holds, compiles them ahead of time for one chip of a TPU
  v5e, or for four. It says how much memory a program takes, and estimates its work. Nothing runs,
  so no time is measured. Where the compiler does not start, a line says so, and the lowering for
  CUDA is all that is done.

  A row says of a program whether a host callback is in it, how many of its matrix products are of
  float64, which TPUs emulate, and whether it fits in the memory of a chip. These are what is found,
  not errors. The run ends with a status of 1 if a program is not compiled or not lowered at all,
  for another reason than its memory.
  """
  # The compiler's package makes JAX look for chips, too.
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", CHIPS)
  devices = topology()
  if missing := isinstance(devices, str):
    print(f"No program is compiled for a TPU: {devices}.")
  chips = jax.devices("cpu") if isinstance(devices, str) else devices
  for program in programs(SMALL if small else FULL):
    yield examined(program, chips, for_tpu=not missing)
