"""The cohort engine: the sum of a client function over a sample of clients.

Only this module knows of chunks and devices. The clients of a chunk are computed side by side
(vmap), and the chunks one after the other (a loop). So the chunk sets the memory, not the cohort.
With a mesh, each device takes its share of the slots. The devices communicate once, in the sum at
the end.

The best chunk size depends on the processor. On a CPU it is one, unless clients draw noise. A vmap
writes a gradient for every client to memory and reads it again, while a single client's gradient
stays in the cache. On 2 cores and clients of 10 examples, chunks of 64 took 4 times as long for an
MLP of 79,510 weights. They took 1.5 times as long for a small CNN and for logistic regression.
Unrolling the loop gained nothing. An accelerator needs hundreds of clients to be filled.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from jdp import _validate
from jdp._arguments import checked, shown
from jdp.federated.engine.chunk_memory import fitting_chunk_size
from jdp.federated.engine.read_cohort import ReadCohort, dealt
from jdp.federated.engine.sharded import (
  AXIS,
  ShardedClients,
  check_clients,
  client_data,
  is_declared,
  one_client,
  own_key,
)
from jdp.numerics.compensated import (
  MAX_CONTRIBUTIONS,
  multiplied,
  rounded,
  sum_devices,
  sum_rows,
  sum_while,
)
from jdp.random.keys import client_key
from jdp.sampling import Sample

PyTree = Any
Summand = Callable[[PyTree, PyTree, PyTree, jax.Array], PyTree]
"""(keys, shared, client, weight) -> what a client adds, a pytree of arrays and `Product`s."""

_DRAWN = 2**17  # numbers of noise, and of data, in a chunk that stays in a CPU's caches
_MOST_DRAWING = 256  # clients of that chunk


@checked
def cohort_sum(
  summand: Summand,
  keys: PyTree,
  shared: PyTree,
  sample: Sample,
  data: PyTree,
  *,
  chunk_size: int | None = None,
  mesh: Mesh | None = None,
) -> PyTree:
  """The sum of a function over the members of a sample.

  Every client has keys of its own, made of its identity (`own_key`). So what a client draws depends
  neither on the chunk size, nor on the mesh, nor on the other members. If keys were given by slot,
  one more member would change the local training of all members after it. The sum would move by far
  more than one contribution. Noise that is bound to a client's update follows its last bits,
  though, and chunks of other widths round differently.

  Sums are made in float64 (`jdp.numerics.compensated`) and rounded to float32 once, at the end. A
  query adds noise before that: give it `unrounded_cohort_sum`.

  Chunks that hold only padding are not computed. Padding in the last chunk adds exact zeros, as the
  function must return zeros at weight 0. So a larger capacity changes no bit of the result. The
  running time, and nothing else, depends on the sample's size.

  Args:
    summand: (keys, shared, client, weight) -> what the client adds, a pytree of arrays. `client` is
      one row of `data`. A matrix may be a `jdp.numerics.compensated.Product`. Those of a chunk are
      summed by one product.
    keys: a key, or a pytree of keys. Consumed. Keys of type "rbg" are replaced by threefry keys, as
      their draws would depend on who is in the same chunk.
    shared: any pytree that all clients see (parameters, query state).
    sample: the sample. Its `size` members come first.
    data: a pytree of arrays with one leading axis of all clients, or `PackedUsers`. Either may be
      held as `ShardedClients` over the same mesh.
    chunk_size: clients computed side by side, a matter of speed and memory only. It is at most the
      sample's slots. None: one on a CPU, elsewhere by memory (`chunk_memory`).
    mesh: devices along an axis named "clients". Each has all of `shared` and `sample`, and of data
      that is not sharded. Over further axes of the mesh, the arrays of `shared` may be sharded: a
      client is then computed by all devices along these axes, as XLA divides the work. None means
      the mesh in force (`jax.set_mesh`) if it has such an axis, else one device.

  Returns:
    The sum, a pytree like one contribution. An empty sample gives zeros.

  Raises:
    ValueError: if chunk_size is not positive, or the mesh has no such axis. Also if data is sharded
      over other devices. When traced: if there are not as many clients as the sample's population,
      or the sample has more than 2^21 slots.

  >>> def summand(keys, shared, client, weight):
  ...   return weight * (client - shared)
  >>> members, weights = jnp.array([4, 0, 2]), jnp.array([1.0, 1.0, 0.0])  # the last is padding
  >>> sample = Sample(members, weights, jnp.int32(2), population=5)
  >>> cohort_sum(summand, jax.random.key(1), 0.5, sample, jnp.arange(5.0), chunk_size=2).item()
  3.0
  """
  return rounded(
    unrounded_cohort_sum(summand, keys, shared, sample, data, chunk_size=chunk_size, mesh=mesh)
  )


@checked
def unrounded_cohort_sum(
  summand: Summand,
  keys: PyTree,
  shared: PyTree,
  sample: Sample,
  data: PyTree,
  *,
  chunk_size: int | None = None,
  mesh: Mesh | None = None,
) -> PyTree:
  """`cohort_sum` before the rounding to float32, for a `SumQuery` that takes pairs.

  A client moves this sum by at most 1 + 1e-6 times what it contributes. That holds for any
  contributions of the others, any chunks and any mesh. A large sum that is rounded to float32, or
  added up in float32, moves by more: four times as much among 16,098 clients.

  Args and errors: those of `cohort_sum`.

  Returns:
    The sum, a pytree like one contribution with a `Compensated` for each float leaf.
  """
  check_clients(sample.population, data)
  if chunk_size is None:
    chunk_size = default_chunk_size(summand, keys, shared, data, mesh)
  _validate.integer(1, chunk_size=chunk_size)
  if mesh is not None and AXIS not in mesh.shape:
    raise ValueError(f"Expected a mesh with an axis {AXIS!r}, got axes {mesh.axis_names}.")
  over = mesh or mesh_in_force()
  num_shards = 1 if over is None else over.shape[AXIS]
  own_data = isinstance(data, ShardedClients | ReadCohort)
  # A cohort that was read for one device needs no mesh.
  if (own_data and data.num_devices != num_shards) or (
    isinstance(data, ShardedClients) and not over
  ):
    raise ValueError(
      f"Expected sharded data on the {num_shards} devices of the mesh; use "
      "jdp.federated.engine.sharded.shard(data, mesh), or leave the mesh to train where users are "
      "read from a source."
    )
  _check_capacity(sample.indices.shape[0])
  chunk_size = min(chunk_size, max(1, sample.indices.shape[0]))
  # Whole chunks only: the added slots have weight 0 and lie beyond the sample's size.
  padding = (0, -sample.indices.shape[0] % chunk_size)
  indices, weights = jnp.pad(sample.indices, padding), jnp.pad(sample.weights, padding)
  sample = Sample(indices, weights, sample.size, sample.population)
  data = jax.tree.map(jnp.asarray, data)  # NumPy arrays cannot be indexed inside the loop.
  keys = jax.tree.map(lambda key: client_key(key) if _is_rbg(key) else key, keys)

  def own_sum(keys, shared, sample, data):
    def chunk_sum(turn):
      slots = turn * chunk_size + jnp.arange(chunk_size, dtype=jnp.int32)
      members = sample.indices[slots]
      clients = jax.vmap(partial(client_data, data))(members)
      own_keys = jax.tree.map(lambda key: jax.vmap(partial(own_key, key, data))(members), keys)
      return _chunk_sum(summand, own_keys, shared, clients, sample.weights[slots])

    return sum_while(lambda turn: turn * chunk_size < sample.size, chunk_sum)

  if over is None:
    return own_sum(keys, shared, data.own(sample, jnp.int32(0)) if own_data else sample, data)

  def device_sum(keys, shared, sample, data):
    device = jax.lax.axis_index(AXIS)
    own = data.own(sample, device) if own_data else dealt(sample, device, num_shards)
    return jax.tree.map(lambda x: x[None], own_sum(keys, shared, own, data))

  everywhere, along = PartitionSpec(), PartitionSpec(AXIS)
  # With the check on, JAX would sum gradients by what all devices have over the devices, once for
  # every client. It would also refuse a user's client that begins a loop with a constant.
  rows = jax.shard_map(
    device_sum,
    mesh=over,
    in_specs=(everywhere, everywhere, everywhere, along if own_data else everywhere),
    out_specs=along,
    axis_names={AXIS},
    check_vma=False,
  )
  return sum_devices(rows(keys, shared, sample, data))


def _is_rbg(key: jax.Array) -> bool:
  """Whether the key is of the type whose batches JAX draws from the first key alone."""
  return jax.random.key_impl(key) in ("rbg", "unsafe_rbg")


def default_chunk_size(
  summand: Summand,
  keys: PyTree,
  shared: PyTree,
  data: PyTree,
  mesh: Mesh | None,
  *,
  members: int = 1,
  drawn: int = 0,
) -> int:
  """How many clients are computed side by side if the caller does not say.

  On a CPU it is one, as gradients stay in its caches. Where each client draws noise, a chunk draws
  up to 2^17 numbers and holds up to 2^17 numbers of data, and all chunks have one width: the loops
  of one client's draws are short, and those of a chunk run along whole vectors. PrivUnit then takes
  a quarter of the time for 650 weights, and two fifths for 7,850. Where users are padded to the
  largest one, that size depends on one user's data, and chunk sizes differ in rounding: there it
  stays one. Elsewhere memory decides (`chunk_memory`).

  Args: those of `cohort_sum`, how many members almost no sample exceeds, and how many numbers of
    noise a client draws.
  """
  platform = platform_of(mesh)
  if platform != "cpu":
    return fitting_chunk_size(summand, keys, shared, data, platform)
  if not (drawn and is_declared(data)):
    return 1
  over = mesh or mesh_in_force()
  own = math.ceil(members / (over.shape[AXIS] if over else 1))  # members per device
  width = max(drawn, sum(math.prod(x.shape) for x in jax.tree.leaves(one_client(data))))
  chunks = math.ceil(own / max(1, min(_MOST_DRAWING, _DRAWN // width)))
  return math.ceil(own / chunks)


def in_turn(function: Callable[..., PyTree], mesh: Mesh | None) -> Callable[..., PyTree]:
  """The function, which a CPU computes client by client even inside `vmap`.

  So gradients stay in its caches, and no client waits for the longest loop. Other devices compute
  it side by side.
  """
  if platform_of(mesh) != "cpu":
    return function
  return sequential_vmap(lambda *arguments: function(*arguments))  # defaults need not be arrays


def platform_of(mesh: Mesh | None) -> str:
  """The platform that a cohort is computed on: "cpu", "gpu" or "tpu"."""
  return jax.default_backend() if mesh is None else mesh.devices.flat[0].platform


def mesh_in_force() -> AbstractMesh | None:
  """The mesh of `jax.set_mesh`, if it has an axis "clients" to compute over.

  Inside a `shard_map` there is none, as the axis is already used.
  """
  mesh = jax.sharding.get_abstract_mesh()
  kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
  return mesh if kinds.get(AXIS) == AxisType.Auto else None


def _chunk_sum(
  summand: Summand, keys: PyTree, shared: PyTree, clients: PyTree, weights: jax.Array
) -> PyTree:
  """The sum over a chunk's clients, computed by vmap. A single client is computed without it."""
  if weights.shape[0] == 1:
    key, client, weight = jax.tree.map(lambda x: x[0], (keys, clients, weights))
    return multiplied(summand(key, shared, client, weight))
  return sum_rows(jax.vmap(summand, (0, None, 0, 0))(keys, shared, clients, weights))


def _check_capacity(slots: int) -> None:
  """Refuses samples with more slots than a compensated sum can add accurately."""
  if slots > MAX_CONTRIBUTIONS:
    raise ValueError(
      f"Expected a sample of at most 2^21 slots, whose sum keeps its sensitivity, got {slots}; "
      "lower the sampler's capacity."
    )


@checked
def client_mesh(devices: Sequence[jax.Device] | None = None, **further_axes: int) -> Mesh:
  """A mesh along the axis "clients" of the given devices (default: all, of all processes).

  Args:
    devices: their number is a multiple of the product of the further axes' sizes.
    further_axes: the size of each further axis. Parameters may be sharded over these
      (`docs/scaling.md`).

  Raises:
    ValueError: if the devices do not fill the axes, a size is not positive, or an axis is named
      "clients".

  >>> mesh = client_mesh(jax.devices()[:1], model=1)
  >>> dict(mesh.shape)
  {'clients': 1, 'model': 1}
  """
  _validate.integer(1, **further_axes)
  if AXIS in further_axes:
    raise ValueError(f"Expected further axes, got {AXIS!r}; name as many devices as it has.")
  found = np.asarray(jax.devices() if devices is None else devices)
  sizes = tuple(further_axes.values())
  if found.size % math.prod(sizes):
    raise ValueError(
      f"Expected a multiple of {math.prod(sizes)} devices for axes of {shown(further_axes)}, got "
      f"{found.size}; name as many devices, or other sizes."
    )
  return Mesh(found.reshape(-1, *sizes), (AXIS, *further_axes))
