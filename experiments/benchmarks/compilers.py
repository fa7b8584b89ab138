"""Programs for accelerators that are not at hand: what XLA compiles them to, and their memory."""

import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple
from unittest import mock

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jdp.random
from experiments.benchmarks import _large_models as large_models
from experiments.benchmarks.harness import Row, benchmark
from experiments.benchmarks.training import MODELS, workload
from experiments.runner.options import needed
from experiments.runner.reports.tables import table
from jdp import federated, mechanisms, sampling, transforms
from jdp.conformance.reference_queries import audited
from jdp.numerics import compensated
from jdp.queries.base import PyTree

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
    sharded: whether they share the parameters, and not the clients.
  """

  part: str
  name: str
  make: Callable[[Mesh], Made]
  chips: int = 1
  sharded: bool = False


class Scale(NamedTuple):
  """How large programs are.

  Attributes:
    clients: computed side by side.
    dim: of a local mechanism's values.
    models: that rounds train.
    small: whether language models are.
    large: of the large model.
  """

  clients: int
  dim: int
  models: Sequence[str]
  small: bool
  large: large_models.Sizes


SMALL = Scale(8, 16, MODELS[:1], small=True, large=large_models.SMALL)
FULL = Scale(256, 1024, MODELS, small=False, large=large_models.FULL)


def programs(scale: Scale) -> Iterator[Program]:
  """All of them."""
  for name in mechanisms.registry.registered():
    yield Program("mechanisms", name, partial(_releases, name, scale))
  for name in audited():
    yield Program("queries", name, partial(_query, name, scale))
  for name in sorted(sampling.registry.registered()):
    yield Program("samplers", name, partial(_sample, name, scale))
  for name, product in _PRODUCTS.items():
    yield Program("products", name, partial(_product, product, scale))
  for model in scale.models:
    for ghost in (False, True):
      title = f"dp_sgd, {model}{', ghost norms' if ghost else ''}"
      yield Program("rounds", title, partial(_sgd, model, ghost, scale))
    for chips in (1, CHIPS):
      yield Program("rounds", f"dp_fedavg, {model}", partial(_fedavg, model, scale), chips)
  for name, make in large_models.ROUNDS.items():
    for chips in (1, CHIPS):
      yield Program("large model", name, partial(make, scale.large), chips, sharded=True)


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
  entry = audited()[name]

  def release(key, records, weights):
    transformation = transforms.privatize(entry.make(), key)
    state = transformation.init(jax.tree.map(lambda x: x[0], records))
    return transformation.update(records, state, weights=weights)

  records = jax.tree.map(
    lambda x: np.zeros((scale.clients, *np.shape(x)), np.float32), entry.victim
  )
  return release, (jdp.random.seeded_key(0), records, np.ones(scale.clients, np.float32))


def _sample(name: str, scale: Scale, mesh: Mesh) -> Made:
  """The sample of a round, of a hundredth of the records."""
  del mesh
  size = 4 * scale.clients
  sampler = sampling.registry.registered()[name].make(100 * size, size)
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


def host_callbacks(traced: jax.stages.Traced) -> list[str]:
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
  further = {"model": program.chips} if program.sharded else {}
  mesh = federated.client_mesh(devices[: program.chips], **further)
  row: Row = {"part": program.part, "program": program.name, "chips": program.chips}
  # jdp asks for the platform where it traces.
  with mock.patch.object(jax, "default_backend", return_value="tpu"):
    function, arguments = program.make(mesh)
    shapes = jax.tree.map(partial(_shape_of, mesh), arguments)
    traced = jax.jit(function).trace(*shapes)
  row["callbacks"] = host_callbacks(traced)
  row["cuda"] = _said(lambda: _lowered(traced.lower(lowering_platforms=("cuda",))))
  if for_tpu:
    start = time.perf_counter()
    row["tpu"] = _said(lambda: _compiled(traced.lower(lowering_platforms=("tpu",))))
    row["tpu"]["seconds"] = time.perf_counter() - start
  return row


def _shape_of(mesh: Mesh, argument: jax.Array | jax.ShapeDtypeStruct) -> PyTree:
  """An argument's shape and type, on all chips if no place was given."""
  if isinstance(argument, jax.ShapeDtypeStruct) and argument.sharding is not None:
    return argument
  everywhere = NamedSharding(mesh, PartitionSpec())
  return jax.ShapeDtypeStruct(argument.shape, argument.dtype, sharding=everywhere)


def _said(find: Callable[[], Row]) -> Row:
  """What is found, or the error in its place."""
  try:
    return find()
  except Exception as error:
    return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}


def _lowered(lowered: jax.stages.Lowered) -> Row:
  """What the text of a program shows."""
  return {"float64_products": float64_products(lowered.as_text())}


def _compiled(lowered: jax.stages.Lowered) -> Row:
  """What the text shows, and what the compiler says."""
  found = _lowered(lowered)
  try:
    program = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if (memory_needed := needed_memory(str(error))) is None:
      raise
    return found | {"memory": memory_needed}
  memory, cost = needed(program.memory_analysis()), needed(program.cost_analysis())
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
