"""The sum of many clients' releases, computed block by block."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jdp import _validate
from jdp._arguments import checked
from jdp._loop_carries import vary_like
from jdp.mechanisms.base import LocalMechanism
from jdp.numerics.compensated import Compensated, rounded, sum_devices, sum_rows, sum_while

# How many numbers a block has by default. Noise and values together stay in a core's second-level
# cache, or close to it.
_NUMBERS_IN_BLOCK = 200_000
# How many numbers fill an accelerator, in blocks side by side. Larger blocks would add up more
# clients in float32.
_NUMBERS_AT_ONCE = 2**25
# How many clients a `privatize_sum` may add up in float32 before their sum goes on in float64. This
# matters to smaller blocks: at 1e6 coordinates float64 accumulators leave the cache.
_CLIENTS_IN_GROUP = 8


@checked
def stream_sum(
  mechanism: LocalMechanism,
  keys: jax.Array,
  values: jax.Array | Callable[[jax.Array], jax.Array],
  weights: jax.Array | None = None,
  *,
  block_size: int | None = None,
  mesh: Mesh | None = None,
) -> jax.Array:
  """sum_i weights_i privatize(keys_i, values_i), block by block of clients.

  This is what a server adds up if every client releases its value once. The simulation needs memory
  for one block. It never holds all releases at once, nor all values if `values` is a function. A
  mechanism with a `privatize_sum` (`priv_unit`, and `separated` of it) sums a block by matrix
  products.

  For the releases themselves, use `jax.vmap(mechanism.privatize)(keys, values)`. Their sum is this
  one up to float32 rounding. (In dithered releases, about 1 coordinate in 1e5 is so near the edge
  of its cell that rounding takes it to the next.)

  Formal guarantee: each release has its own, `mechanism.guarantee`, against a server that sees them
  all. The sum is post-processing. The guarantee does not cover what weights reveal that depend on
  private data.

  A server that adds noise to the sum, for those who see only that, takes `unrounded_stream_sum`.

  Args:
    mechanism: the local randomiser.
    keys: [n] keys, one for each client. Consumed.
    values: [n, ...] floats, or a function client number (int32 scalar) -> value. The function is
      traced under vmap.
    weights: [n] floats. NaN counts as 0. None: all 1.
    block_size: how many clients a block has. It affects speed and memory only. By default, as many
      as suit a core's cache: 20 at 1e4 coordinates. Accelerators compute as many blocks side by
      side as hold 2^25 numbers. Take twice as many clients where they share a projection.
    mesh: devices of the Auto type that share the blocks (`jdp.federated.client_mesh`). None: one
      device. The mesh may have any number of axes. The call must not be inside another shard_map.
      Every device gets all keys, values and weights. The one sum at the end is all that they
      exchange. Only the order of summation depends on the mesh.

  Returns:
    The sum, float32, of the shape of one value.

  Raises:
    ValueError: if there is no client, or too many for 32-bit numbers. Also if block_size is not
      positive, or values or weights are not as many as the keys.

  >>> from jdp.mechanisms import priv_unit
  >>> mechanism = priv_unit(1000, 16.0)
  >>> keys = jax.random.split(jax.random.key(0), 5000)
  >>> mean = stream_sum(mechanism, keys, lambda client: jnp.ones(1000)) / 5000
  >>> bool(
  ...   jnp.linalg.norm(mean - 1000**-0.5) < 0.15
  ... )  # sqrt(mechanism.mean_squared_error(1.0) / 5000) = 0.095
  True
  """
  total = unrounded_stream_sum(mechanism, keys, values, weights, block_size=block_size, mesh=mesh)
  return rounded(total)


@checked
def unrounded_stream_sum(
  mechanism: LocalMechanism,
  keys: jax.Array,
  values: jax.Array | Callable[[jax.Array], jax.Array],
  weights: jax.Array | None = None,
  *,
  block_size: int | None = None,
  mesh: Mesh | None = None,
) -> Compensated:
  """`stream_sum` with what float32 takes from it, for `SumQuery.finalize`, which adds noise.

  Formal guarantee: one release of norm `mechanism.max_norm` and weight 1 at most moves the sum by
  at most S = max_norm (1 + 2^-21 b^2). Here b is the number of clients whose releases a
  `privatize_sum` adds up in float32. These are the clients of a block, or of as many small blocks
  as hold 8. At b = 8 the factor is 1 + 3e-5, and at b = 20 it is 1 + 2e-4. For a mechanism without
  a `privatize_sum`, S is max_norm (1 + 1e-6). Both hold for up to 2^21 blocks. Rounding the sum to
  float32 would move a large one by more.

  Args and errors: those of `stream_sum`.

  Returns:
    The sum, a pair of float32 arrays of the shape of one value.
  """
  count = keys.shape[0]
  _validate.integer(1, number_of_keys=count)
  weights = jnp.ones(count, jnp.float32) if weights is None else jnp.asarray(weights, jnp.float32)
  _check_count("weights", weights, count)
  if callable(values):
    shape, table = jax.eval_shape(values, jnp.int32(0)).shape, None
  else:
    table = jnp.asarray(values)
    _check_count("values", table, count)
    shape = table.shape[1:]
  numbers = max(1, math.prod(shape))
  size = max(1, _NUMBERS_IN_BLOCK // numbers) if block_size is None else block_size
  _validate.integer(1, block_size=size)
  devices = 1 if mesh is None else mesh.size
  size = min(size, -(-count // devices))
  turns = -(-count // (size * devices))
  fitting = 1 if jax.default_backend() == "cpu" else _NUMBERS_AT_ONCE // (size * numbers)
  at_once = max(1, min(turns, fitting))
  if count + devices * size * at_once >= 2**31:
    raise ValueError(
      f"Expected fewer than 2^31 clients in whole blocks, got {count}; add up several sums."
    )
  # Slice the raw data: JAX's key-reuse checker takes slices of keys in a loop for reuse.
  impl, key_data = jax.random.key_impl(keys), jax.random.key_data(keys)
  sum_of = mechanism.privatize_sum or _sum_of_each(mechanism)

  def share(key_data, weights, table):
    first = jnp.int32(0) if mesh is None else lax.axis_index(mesh.axis_names)

    def block_sum(turn):
      block = first + turn * devices  # devices take the blocks in turns
      # The last block overlaps the one before. Clients counted there get the weight 0 here.
      start = jnp.minimum(block * size, count - size)
      clients = start + jnp.arange(size, dtype=jnp.int32)

      def own(rows):
        return lax.dynamic_slice_in_dim(rows, start, size)

      counted = (clients >= block * size) & ~jnp.isnan(own(weights))
      own_keys = jax.random.wrap_key_data(own(key_data), impl=impl)
      own_values = jax.vmap(values)(clients) if callable(values) else own(table)
      return sum_of(own_keys, own_values, jnp.where(counted, own(weights), 0.0))

    if at_once > 1:
      return _sum_side_by_side(block_sum, turns, at_once)
    if not (mechanism.privatize_sum and size <= _CLIENTS_IN_GROUP // 2):
      return sum_while(lambda turn: turn < turns, block_sum, at_most=turns)
    nothing = vary_like(jnp.zeros(shape, jnp.float32), key_data, weights, table)
    return _sum_in_groups(block_sum, turns, _CLIENTS_IN_GROUP // size, nothing)

  if mesh is None:
    return share(key_data, weights, table)
  shares_sum = jax.shard_map(
    lambda *args: jax.tree.map(lambda x: x[None], share(*args)),
    mesh=mesh,
    in_specs=PartitionSpec(),
    out_specs=PartitionSpec(mesh.axis_names),
    # With the check on, JAX would refuse a user's mechanism that begins a loop with a constant.
    check_vma=False,
  )
  return sum_devices(shares_sum(key_data, weights, table))


def _sum_side_by_side(
  block_sum: Callable[[jax.Array], jax.Array | Compensated], count: int, at_once: int
) -> Compensated:
  """The sum of `count` blocks, `at_once` of them side by side. Blocks beyond the last add 0."""

  def part(turn):
    return sum_rows(jax.vmap(block_sum)(turn * at_once + jnp.arange(at_once, dtype=jnp.int32)))

  return sum_while(lambda turn: turn * at_once < count, part, at_most=-(-count // at_once))


def _sum_in_groups(
  block_sum: Callable[[jax.Array], jax.Array], count: int, size: int, nothing: jax.Array
) -> Compensated:
  """The sum of `count` small blocks, one after the other. Groups of `size` add up in float32."""

  def part(group):
    start = group * size
    own = jnp.minimum(size, count - start)
    return lax.fori_loop(0, own, lambda i, total: total + block_sum(start + i), nothing)

  groups = -(-count // size)
  return sum_while(lambda group: group < groups, part, at_most=groups)


def _sum_of_each(
  mechanism: LocalMechanism,
) -> Callable[[jax.Array, jax.Array, jax.Array], Compensated]:
  """The `privatize_sum` of a mechanism that has none: each release, then their sum, a pair."""

  def weighted(key, value, weight):
    return weight * mechanism.privatize(key, value)

  return lambda keys, values, weights: sum_rows(jax.vmap(weighted)(keys, values, weights))


def _check_count(name: str, array: jax.Array, count: int) -> None:
  if array.shape[:1] != (count,):
    raise ValueError(
      f"Expected {name} for {count} clients, one for each key, got shape {array.shape}."
    )
