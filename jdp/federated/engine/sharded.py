"""Clients' data dealt out over the devices of a mesh.

Each device holds its share, and computes its own clients.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jdp._arguments import Arrays, checked
from jdp.data.packed import PackedUsers
from jdp.data.sources.source_users import SourceUsers
from jdp.federated.engine.read_cohort import ReadCohort
from jdp.sampling import Sample

PyTree = Any

AXIS = "clients"


@partial(
  jax.tree_util.register_dataclass,
  data_fields=["shares"],
  meta_fields=["clients_per_device", "num_clients"],
)
@dataclasses.dataclass(frozen=True)
class ShardedClients:
  """All clients' data, of which every device holds a share. A pytree, made by `shard`.

  Attributes:
    shares: the data of every device's clients, with a leading axis of devices.
    clients_per_device: static. Client k lives on device k // clients_per_device.
    num_clients: how many clients there are, static. The rest of the shares is padding.
  """

  shares: PyTree
  clients_per_device: int
  num_clients: int

  def user(self, number: jax.Array) -> PyTree:
    """One client's data, on the device that holds it."""
    return client_data(jax.tree.map(lambda x: x[0], self.shares), number % self.clients_per_device)

  @property
  def num_devices(self) -> int:
    """How many devices hold the clients, asked outside the devices' programs."""
    return int(jax.tree.leaves(self.shares)[0].shape[0])

  def own(self, sample: Sample, device: jax.Array) -> Sample:
    """The members that live on a device, in the sample's order.

    The slots of all others have weight 0.
    """
    slots = jnp.arange(sample.indices.shape[0], dtype=jnp.int32)
    own = (sample.indices // self.clients_per_device == device) & (slots < sample.size)
    order = jnp.argsort(~own, stable=True)  # a device's own members first
    weights = jnp.where(own, sample.weights, 0.0)
    size = jnp.sum(own, dtype=jnp.int32)
    return Sample(sample.indices[order], weights[order], size, sample.population)


def client_data(data: PyTree, number: jax.Array) -> PyTree:
  """One client's row of the data, however the data is held."""
  if isinstance(data, PackedUsers | ShardedClients | ReadCohort):
    return data.user(number)
  return jax.tree.map(lambda x: x[number], data)


def own_key(key: jax.Array, data: PyTree, number: jax.Array) -> jax.Array:
  """A client's key of a round: the round's key, with the client's identity folded in.

  The identity stays when other clients come and go. Where the data has none, it is the row's
  number.
  """
  for word in _identity(data, number) or (number,):
    key = jax.random.fold_in(key, word)
  return key


def _identity(data: PyTree, number: jax.Array) -> tuple[jax.Array, ...]:
  """The words of a client's identity; none if clients have no identity."""
  if isinstance(data, ShardedClients):
    own = jax.tree.map(lambda x: x[0], data.shares)
    return _identity(own, number % data.clients_per_device)
  if isinstance(data, ReadCohort):
    return tuple(word[0, number] for word in data.identities or (data.numbers,))
  return tuple(word[number] for word in data.identities) if isinstance(data, PackedUsers) else ()


def one_client(data: PyTree) -> PyTree:
  """The shapes and types of one client's data, however the data is held."""
  return jax.eval_shape(client_data, data, jnp.int32(0))


def is_declared(data: PyTree) -> bool:
  """Whether the shape of one client's data was declared, and not read off the largest client."""
  if isinstance(data, ShardedClients):
    return is_declared(data.shares)
  return not isinstance(data, PackedUsers) or data.declared


def num_clients(data: PyTree) -> int:
  """How many clients' data there are, however the data is held.

  Raises:
    ValueError: if the arrays do not agree about the number, or there is no array.

  >>> num_clients({"x": np.zeros((3, 2)), "y": np.zeros(3)})
  3
  """
  if isinstance(data, SourceUsers):
    return len(data)
  if isinstance(data, ShardedClients | ReadCohort):
    return data.num_clients
  arrays = [data.starts, data.counts] if isinstance(data, PackedUsers) else jax.tree.leaves(data)
  counts = {np.shape(x)[:1] for x in arrays}
  if len(counts) != 1 or () in counts:
    raise ValueError(
      f"Expected data of arrays with one leading axis of all clients or users, got "
      f"{sorted(counts)}; give every array a row for each."
    )
  return counts.pop()[0]


def check_clients(population: int, data: PyTree) -> None:
  """Refuses data of more or fewer clients than the population that a round samples from.

  JAX takes an index past the end for the last one. That client would take part in place of all who
  are missing. Clients beyond the population would never take part. Shapes are static, so the check
  runs when a round is traced.

  Raises:
    ValueError: if the numbers differ.
  """
  if population != (count := num_clients(data)):
    raise ValueError(
      f"Expected data of as many clients as the population of {population} that is sampled from, "
      f"got {count}; make the sampler for {count}, or give it the data of all."
    )


@checked
def shard(data: Arrays, mesh: Mesh) -> ShardedClients:
  """Puts a share of the clients' data on each device of the mesh (`replicate` puts all of it on
  each).

  Every client is computed where its data is, so no data ever moves. A round takes as long as the
  device that most of the sample lives on. Of n members on D devices it has about sqrt(2 n ln(D) /
  D) more than n / D, if clients are dealt out in random order.

  Args:
    data: a pytree of arrays with one leading axis of all clients, or `PackedUsers`, on the host.
      Each of several processes reads the shares of its own devices only (a `numpy.memmap` will do).
    mesh: devices along an axis named "clients".

  Raises:
    ValueError: if the arrays have different leading axes.

  >>> from jdp.federated import client_mesh
  >>> mesh = client_mesh()
  >>> sharded = shard({"x": np.arange(6.0, dtype=np.float32).reshape(3, 2)}, mesh)
  >>> sharded.shares["x"].sharding.spec == PartitionSpec("clients")
  True
  """
  num_shards = mesh.shape[AXIS]
  count = num_clients(data)
  per_device = -(-count // num_shards)
  firsts = [min(number * per_device, count) for number in range(num_shards + 1)]
  ranges = list(pairwise(firsts))
  share_of = _packed_share(data, ranges) if isinstance(data, PackedUsers) else partial(_share, data)
  # Cached, as it is asked for once for every leaf of a device's share.
  share = cache(lambda number: share_of(*ranges[number], per_device))
  sharding = NamedSharding(mesh, PartitionSpec(AXIS))
  here = next(iter(sharding.addressable_devices_indices_map((num_shards,)).values()))
  leaves, structure = jax.tree.flatten(share(device_number(here)))

  def on_devices(place, example):
    def block(index):
      return jax.tree.leaves(share(device_number(index)))[place][None]

    return jax.make_array_from_callback((num_shards, *example.shape), sharding, block)

  shares = [on_devices(place, example) for place, example in enumerate(leaves)]
  return ShardedClients(jax.tree.unflatten(structure, shares), per_device, count)


def device_number(index: tuple[slice, ...] | None) -> int:
  """The device's number from its index. A single device has an index without a start."""
  return (index and index[0].start) or 0


def _share(data: PyTree, first: int, last: int, count: int) -> PyTree:
  """Clients `first` to `last`, and zeros up to `count`."""
  return jax.tree.map(lambda x: _lengthened(x[first:last], count), data)


def _packed_share(
  data: PackedUsers, ranges: Sequence[tuple[int, int]]
) -> Callable[[int, int, int], PackedUsers]:
  """`_share` of packed users.

  Every device's examples are padded to the largest number on any device.
  """
  starts, counts = np.asarray(data.starts), np.asarray(data.counts)
  ends = starts + counts
  rows = {
    first: slice(starts[first], ends[last - 1]) if last > first else slice(0, 0)
    for first, last in ranges
  }
  # Reading `width` rows from any start must stay inside the array.
  most = max(own.stop - own.start for own in rows.values()) + data.width

  def share(first, last, count):
    own = rows[first]
    return dataclasses.replace(
      data,
      examples=jax.tree.map(lambda x: _lengthened(x[own], most), data.examples),
      starts=_lengthened(starts[first:last] - own.start, count),
      counts=_lengthened(counts[first:last], count),
      identities=jax.tree.map(lambda x: _lengthened(x[first:last], count), data.identities),
    )

  return share


def _lengthened(x: jax.typing.ArrayLike, count: int) -> np.ndarray:
  """`x` with rows of zeros at its end, `count` in all."""
  x = np.asarray(x)
  return (
    np.concatenate([x, np.zeros((count - len(x), *x.shape[1:]), x.dtype)]) if len(x) < count else x
  )
