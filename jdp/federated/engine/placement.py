"""Where a run's arrays lie: on a mesh of the devices that pay off, or where the user put them.

Parameters that the user sharded stay sharded: a mesh may have further axes beside "clients".
"""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jdp.federated.engine.cohort import client_mesh, platform_of
from jdp.federated.engine.rounds import FederatedAlgorithm
from jdp.federated.engine.sharded import AXIS, shard

PyTree = Any
_MOST_COPIED = 2**32  # bytes of the clients' data, on all devices together
# The least work that pays for a device: the numbers that its clients of a round pass through
# memory. The measurements are in experiments/benchmarks/README.md.
_LEAST_WORK = 2**18


def mesh_of(tree: PyTree) -> Mesh | None:
  """The mesh that arrays lie on, if any; one with an axis "clients" comes first."""
  layouts = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(tree)]
  meshes = [x.mesh for x in layouts if isinstance(x, NamedSharding) and isinstance(x.mesh, Mesh)]
  return min(meshes, key=lambda mesh: AXIS not in mesh.shape, default=None)


def mesh_for(
  algorithm: FederatedAlgorithm, params: PyTree, clients: PyTree, shares: bool | None = None
) -> Mesh | None:
  """The mesh that a round's clients are dealt out over, if the algorithm takes one.

  It is the one that the parameters lie on. There is none where they are sharded over a mesh without
  an axis "clients": XLA then divides the work. Where they lie on no mesh and the clients lie
  nowhere yet, it is that of the devices that pay off. This choice looks at shapes alone, so it is
  the same when a run is resumed on the same devices. All devices are used with several processes,
  on accelerators, where nothing was measured, and if each device is to get its share.

  Raises:
    ValueError: if shares are asked for, but the clients already lie somewhere, or the algorithm
      takes no mesh. Also if the parameters lie on a mesh whose axes are not all of the type Auto,
      or on other devices than the clients, or are divided over several processes without an axis
      "clients".
  """
  placed = _placed(clients)
  if shares and (placed or algorithm.work is None):
    got = "clients that were put on devices" if placed else "an algorithm of a mesh of its own"
    raise ValueError(f"Expected to deal out the clients over all devices, got {got}; leave it out.")
  if algorithm.work is None:
    return None
  mesh = mesh_of(params)
  if mesh is not None and AXIS in mesh.shape:
    _check_layout(params, clients, mesh)
    return mesh
  if jax.process_count() > 1 and not _whole(params):
    raise ValueError(
      'Expected parameters of several processes on a mesh with an axis "clients", got another '
      "mesh; make it by jdp.federated.client_mesh."
    )
  if placed or jax.device_count() == 1 or not _whole(params):
    return None
  if shares or jax.process_count() > 1 or platform_of(None) != "cpu":
    return client_mesh()
  paying = int(algorithm.work(params, clients) / _LEAST_WORK)
  return client_mesh(jax.devices()[:paying]) if paying > 1 else None


def _placed(clients: PyTree) -> bool:
  """Whether the user put the clients on devices."""
  return any(getattr(x, "committed", False) for x in jax.tree.leaves(clients))


def _whole(tree: PyTree) -> bool:
  """Whether each device that has any of the arrays has all of them."""
  return all(getattr(x, "is_fully_replicated", True) for x in jax.tree.leaves(tree))


def _check_layout(params: PyTree, clients: PyTree, mesh: Mesh) -> None:
  """Refuses parameters that lie where rounds are not computed."""
  if set(mesh.axis_types) != {AxisType.Auto}:
    raise ValueError(
      f"Expected parameters on a mesh whose axes have the type Auto, got {mesh.axis_types}; make "
      "it by jdp.federated.client_mesh."
    )
  devices = set(mesh.devices.flat)
  for leaf in jax.tree.leaves(clients):
    if getattr(leaf, "committed", False) and leaf.sharding.device_set != devices:
      raise ValueError(
        "Expected clients on the devices of the parameters' mesh, got some on others; put both "
        "there, or leave the clients on the host."
      )


def laid_out(tree: PyTree, like: PyTree, mesh: Mesh) -> PyTree:
  """The tree on the mesh's devices: laid out as `like` where that lies on the mesh, else copied.

  Arrays that the user put on one device are copied too.
  """
  copies = NamedSharding(mesh, PartitionSpec())

  def layout(leaf):
    own = getattr(leaf, "sharding", None)
    return own if isinstance(own, NamedSharding) and own.mesh == mesh else copies

  def lies(leaf, layout):
    return hasattr(leaf, "sharding") and layout.is_equivalent_to(leaf.sharding, leaf.ndim)

  layouts = jax.tree.map(layout, like)
  if all(jax.tree.leaves(jax.tree.map(lies, tree, layouts))):
    return tree
  if jax.process_count() > 1:
    # Each of several processes has the whole tree, and puts it on the devices that it can reach.
    return jax.jit(lambda x: x, out_shardings=layouts)(tree)
  return jax.device_put(tree, layouts)


def spread(clients: PyTree, mesh: Mesh | None, shares: bool | None = None) -> PyTree:
  """The clients on every device of the mesh: a copy on each, or its share.

  Clients that lie on devices stay there. `shares` None: shares if the copies would take too much
  memory.
  """
  if mesh is None or _placed(clients):
    return jax.tree.map(jnp.asarray, clients)
  if shares is None:
    shares = sum(x.nbytes for x in jax.tree.leaves(clients)) * mesh.size > _MOST_COPIED
  if shares:
    return shard(clients, mesh)  # from the host: no device holds more than its own
  clients = jax.tree.map(jnp.asarray, clients)
  return laid_out(clients, clients, mesh)


def in_force(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
  """The context in which JAX computes over the mesh, if there is one."""
  return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def on_one_device(tree: PyTree, mesh: Mesh | None) -> PyTree:
  """Arrays for a script that knows nothing of the mesh: the first device's copies.

  If any array is sharded, all stay on the mesh, so that one function can take them.
  """
  if mesh is None or not _whole(tree):
    return tree
  return jax.tree.map(lambda x: x.addressable_data(0), tree)
