"""The layouts of cohorts that `--layout=fastest` measured: once for each setting, and then kept."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from experiments.runner import processes
from experiments.runner.runs.workdir import Workdir
from jdp.data.packed import PackedUsers
from jdp.data.sources.source_users import SourceUsers
from jdp.federated import CohortLayout, FederatedAlgorithm
from jdp.federated.engine import placement
from jdp.federated.engine.cohort_layout import candidates, least_time
from jdp.federated.runs.whole_files import read_sealed, write_sealed
from jdp.queries.base import PyTree

Make = Callable[..., FederatedAlgorithm]
Layout = Mapping[str, int | None]
"""Arguments of `Make`: chunk_size, and ghost_norms where it takes them."""
_LAYOUTS = "layouts.json"


def kept_layouts(workdir: Workdir) -> dict[str, Layout]:
  """The layouts that were measured in a work directory, by the name of their setting."""
  path = workdir.path / _LAYOUTS
  return read_sealed(path) if path.exists() else {}


def kept_layout(name: str, workdir: Workdir, measure: Callable[[], Layout]) -> Layout:
  """The layout of a setting: the one in `layouts.json`, or a new one, which is added there.

  Several processes measure together, and take what the first one finds.
  """

  def known() -> dict[str, Layout]:
    return kept_layouts(workdir)

  if name not in processes.told(known):
    found = measure()
    processes.by_first(lambda: write_sealed(workdir.path / _LAYOUTS, {**known(), name: found}))
  return processes.told(known)[name]


def fastest_layout(
  make: Make, params: PyTree, clients: PyTree, *, ghost_norms: bool, shard: bool
) -> Layout:
  """The arguments of `make` whose rounds take the least time, on the devices that training takes.

  It looks at nobody's data: made-up clients take the places of all, each as large as the largest. A
  seeded key samples the cohorts.

  Args:
    make: chunk_size -> the procedure.
    params: the model's.
    clients: the data of all clients, of which shapes are read.
    ghost_norms: whether `make` takes this argument too.
    shard: see `Sweep`.

  Raises:
    ValueError: if the procedure refuses every layout.
  """
  made_up, runs, refused = _made_up(clients), {}, None
  for layout in candidates():
    if ghost_norms or not layout.ghost_norms:
      try:
        algorithm = make(**_arguments(layout, ghost_norms))
        runs[layout] = _round(algorithm, params, made_up, shard or None)
      except ValueError as error:  # Such as ghost norms of several local steps.
        refused = error
  if not runs:
    raise ValueError(
      "Expected a layout that the procedure accepts with --layout=fastest, got none; leave it out."
    ) from refused
  return _arguments(least_time(runs), ghost_norms)


def _arguments(layout: CohortLayout, ghost_norms: bool) -> Layout:
  return layout._asdict() if ghost_norms else {"chunk_size": layout.chunk_size}


def _made_up(clients: PyTree) -> PyTree:
  """Clients of the same shapes, full of ones; whole numbers are zero, valid as any label."""
  if isinstance(clients, SourceUsers):
    counts = np.full(len(clients), clients.max_examples, np.int32)
    return PackedUsers(
      _made_up(clients.one_user), np.zeros_like(counts), counts, clients.max_examples, declared=True
    )
  if isinstance(clients, PackedUsers):
    counts = np.full(len(clients.counts), clients.width, np.int32)
    examples = _made_up(clients.examples)
    return dataclasses.replace(
      clients, examples=examples, starts=np.zeros_like(counts), counts=counts
    )
  return jax.tree.map(
    lambda x: np.full(x.shape, jnp.issubdtype(x.dtype, jnp.inexact), x.dtype), clients
  )


def _round(
  algorithm: FederatedAlgorithm, params: PyTree, clients: PyTree, shares: bool | None
) -> Callable[[], None]:
  """A function that does one round where `train` would. It is done once here, and compiles."""
  mesh = placement.mesh_for(algorithm, params, clients, shares)
  clients = placement.spread(clients, mesh, shares)
  start = (jax.random.key(0), jax.random.key(1), algorithm.init(params))
  start = placement.laid_out(start, start, mesh) if mesh else start
  compiled = jax.jit(algorithm.round)

  def run() -> None:
    with placement.in_force(mesh):
      jax.block_until_ready(compiled(*start, clients))

  run()
  return run
