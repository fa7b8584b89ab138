"""Where a run's arrays lie: on a mesh of the devices that pay, or where the user put them."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jdp.federated.engine.cohort import client_mesh, platform_of
from jdp.federated.engine.rounds import FederatedAlgorithm, replicate
from jdp.federated.engine.sharded import shard

PyTree = Any
_MOST_COPIED = 2**32  # bytes of the clients' data, on all devices together
# Numbers that the clients of a round pass through memory, for each device that computes them. The
# measurements stand in experiments/benchmarks/README.md.
_LEAST_WORK = 2**18


def mesh_of(tree: PyTree) -> Mesh | None:
  """The mesh that arrays lie on, if any."""
  for leaf in jax.tree.leaves(tree):
    sharding = getattr(leaf, "sharding", None)
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
      return sharding.mesh
  return None


def mesh_for(
  algorithm: FederatedAlgorithm, params: PyTree, clients: PyTree, shares: bool | None = None
) -> Mesh | None:
  """The mesh of the devices that pay, if the algorithm takes one and the clients lie nowhere yet.

  It looks at shapes alone, so it is the same whenever a run is resumed on the same devices. Several
  processes take all devices, and so do accelerators, where nothing was measured, and a run that is
  to give each device its share.

  Raises:
    ValueError: if there are to be shares, but the clients lie somewhere, or the algorithm takes no
      mesh.
  """
  placed = any(getattr(x, "committed", False) for x in jax.tree.leaves(clients))
  if shares and (placed or algorithm.work is None):
    got = "clients that were put on devices" if placed else "an algorithm of a mesh of its own"
    raise ValueError(f"Expected to deal out the clients over all devices, got {got}; leave it out.")
  if algorithm.work is None or placed or jax.device_count() == 1:
    return None
  if shares or jax.process_count() > 1 or platform_of(None) != "cpu":
    return client_mesh()
  paying = int(algorithm.work(params, clients) / _LEAST_WORK)
  return client_mesh(jax.devices()[:paying]) if paying > 1 else None


def copied(tree: PyTree, mesh: Mesh) -> PyTree:
  """A copy on every device of the mesh, also of what lies on one by the user's choice."""
  if jax.process_count() > 1:
    return replicate(tree, mesh)
  return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def spread(clients: PyTree, mesh: Mesh | None, shares: bool | None = None) -> PyTree:
  """The clients on every device of the mesh: a copy on each, or its share.

  None: shares if the copies would take too much.
  """
  if mesh is None:
    return jax.tree.map(jnp.asarray, clients)
  if shares is None:
    shares = sum(x.nbytes for x in jax.tree.leaves(clients)) * mesh.size > _MOST_COPIED
  if shares:
    return shard(clients, mesh)  # from the host: no device holds more than its own
  return copied(jax.tree.map(jnp.asarray, clients), mesh)


def in_force(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
  """Computes over the mesh, if there is one."""
  return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def on_one_device(tree: PyTree, mesh: Mesh | None) -> PyTree:
  """Arrays for a script that knows nothing of the mesh: the first device's copies."""
  return tree if mesh is None else jax.tree.map(lambda x: x.addressable_data(0), tree)
