"""Sums that keep what rounding takes from them: a float32 value and a remainder.

Added up in float32, a contribution can move a sum by more than its own norm, because it shifts
the roundings of all that follow. Here a sum is a pair that stands for value + remainder and holds
about 48 bits. Every addition finds its own rounding error (D. Knuth, The Art of Computer
Programming 2, 4.2.2, Theorem B) and keeps it.

`truncate` makes such sums exact. It cuts the entries of a contribution of norm at most S to
multiples of a unit of about 2^-28 S, which shortens it and does nothing else. A sum of up to 2^20
such contributions holds no bit below the unit and none above what a pair can hold. So no addition
rounds, in whatever order and over however many devices, and the sum moves by the contribution.

An addition of anything else is wrong by at most 2^-46 of the sum.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

PyTree = Any

MAX_CONTRIBUTIONS = 2**20
"""How many contributions from `truncate` a sum holds exactly."""

_UNIT_BITS = 28
_SMALLEST_NORMAL = 2.0**-126
_SHORT_ROW = 1000  # numbers; to add fewer takes less time than a step of a loop


@partial(jax.tree_util.register_dataclass, data_fields=("value", "remainder"), meta_fields=())
@dataclasses.dataclass(frozen=True)
class Compensated:
  """A sum that was not rounded: value + remainder. As a NumPy array it is rounded.

  Attributes:
    value: the sum, rounded to float32.
    remainder: float32 of the same shape, at most half of the value's last place.
  """

  value: jax.Array
  remainder: jax.Array

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    return np.asarray(rounded(self), dtype)


class _Packed(NamedTuple):
  """A pair as one complex64 array, for loops: XLA on CPU would make two arrays in two loops."""

  pair: jax.Array


def truncate(tree: PyTree, bound: jax.typing.ArrayLike) -> PyTree:
  """Cuts every entry towards zero, to a multiple of a power of two.

  The unit is between 2^-28 and 2^-27 times the bound (at most 2^-26 for bounds below 1e-29). So
  norms do not grow, and an entry loses less than a unit.

  Args:
    tree: float32 arrays, with no entry larger than the bound.
    bound: scalar in [1e-30, 1e30], public; may be traced.

  >>> float(truncate(jnp.float32(1 / 3), 1.0)) <= 1 / 3, float(truncate(jnp.float32(1e-9), 1.0))
  (True, 0.0)
  """
  _, exponent = jnp.frexp(jnp.asarray(bound, jnp.float32))
  unit = jnp.maximum(jnp.ldexp(jnp.float32(1), exponent - _UNIT_BITS), _SMALLEST_NORMAL)
  inverse = 1 / unit
  return jax.tree.map(lambda x: jnp.trunc(x * inverse) * unit, tree)


def rounded(total: PyTree) -> PyTree:
  """The sum as plain arrays: its pairs rounded to float32, once."""
  return _map(lambda x: x.value + x.remainder if isinstance(x, Compensated) else x, total)


def add(total: PyTree, tree: PyTree) -> PyTree:
  """total + tree, leaf by leaf; each leaf of either is a pair or a plain array.

  Floats of up to 32 bits become pairs; anything else is added as it is.

  >>> total = add(jnp.float32(1), jnp.float32(1e-9))
  >>> float(total.value), bool(total.remainder == jnp.float32(1e-9))
  (1.0, True)
  """
  return _map(_add, total, tree)


def divide(total: PyTree, denominator: jax.Array | Compensated) -> PyTree:
  """total / denominator as pairs, within about 2^-46; the denominator is a scalar > 0."""
  by = _pair(denominator)

  def quotient(x):
    x = _pair(x)
    value = x.value / by.value
    product, lost = _two_product(value, by.value)
    rest = (x.value - product) - lost + (x.remainder - value * by.remainder)
    return Compensated(*_two_sum(value, rest / by.value))

  return _map(quotient, total)


def product(left: jax.Array, right: jax.Array) -> Compensated:
  """left^T right of float32 [r, a] and [r, b]: [a, b], within 2^-48 and 2^-52 r |left|^T |right|.

  In float64, which a processor needs to have; it may be switched off in JAX.
  """
  with jax.enable_x64(True):  # of primitives only: they keep their types wherever they are traced
    first, second = (lax.convert_element_type(x, np.float64) for x in (left, right))
    total = lax.dot_general(first, second, (((0,), (0,)), ((), ())))
    value = lax.convert_element_type(total, np.float32)
    rest = lax.sub(total, lax.convert_element_type(value, np.float64))
    return Compensated(value, lax.convert_element_type(rest, np.float32))


def maximum(total: jax.Array | Compensated, least: float) -> Compensated:
  """The larger of a sum, plain or a pair, and a number."""
  pair = _pair(total)
  enough = rounded(pair) >= least
  return Compensated(jnp.where(enough, pair.value, jnp.float32(least)), jnp.where(enough, pair.remainder, 0.0))


def sum_rows(tree: PyTree) -> PyTree:
  """The sum over the leading axis of every array; leaves may be pairs of such arrays."""
  tree = jax.tree.map(lambda x: x if len(x) else jnp.zeros((1, *x.shape[1:]), x.dtype), tree)
  if sum(x[0].size for x in jax.tree.leaves(tree)) < _SHORT_ROW:
    return _by_halves(tree)
  # On a CPU one row after the other: the sum stays in the cache. Elsewhere in few large steps.
  return lax.platform_dependent(tree, cpu=_row_by_row, default=_by_halves)


def sum_while(more: Callable[[jax.Array], jax.Array], part: Callable[[jax.Array], PyTree]) -> PyTree:
  """part(0) + part(1) + ..., for as long as more(i) holds.

  Args:
    more: int32 scalar -> bool scalar.
    part: int32 scalar -> what is added, a tree of plain arrays and pairs.
  """
  shapes = jax.eval_shape(lambda: _map(lambda x: _pack(_pair(x)), part(jnp.int32(0))))
  nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

  def body(carry):
    i, total = carry
    return i + 1, _map(lambda x, y: _pack(_add(_unpack(x), y)), total, part(i))

  _, total = lax.while_loop(lambda carry: more(carry[0]), body, (jnp.int32(0), nothing))
  return _map(_unpack, total)


def sum_devices(total: PyTree, axis_name: str | tuple[str, ...]) -> PyTree:
  """The sum over the devices of a mesh axis (or several), inside a `shard_map`, the same on each of them.

  Each device adds up its share of all devices' entries, and hands it to all.
  """
  leaves, structure = jax.tree.flatten(total, is_leaf=_is_pair)
  pairs, others = ([x for x in leaves if _is_pair(x) is wanted] for wanted in (True, False))
  summed = {False: iter(lax.psum(others, axis_name)), True: iter(_sum_pairs(pairs, axis_name))}
  return jax.tree.unflatten(structure, [next(summed[_is_pair(x)]) for x in leaves])


def _sum_pairs(pairs: list[Compensated], axis_name: str | tuple[str, ...]) -> list[Compensated]:
  """All at once, as one vector."""
  if not pairs:
    return []
  devices = lax.axis_size(axis_name)
  flat, restore = ravel_pytree([x.value for x in pairs])
  both = jnp.stack([flat, ravel_pytree([x.remainder for x in pairs])[0]])
  padded = jnp.pad(both, ((0, 0), (0, -flat.size % devices))).reshape(2, devices, -1)
  shares = lax.all_to_all(padded, axis_name, 1, 1)
  own = sum_rows(Compensated(shares[0], shares[1]))
  whole = lax.all_gather(jnp.stack([own.value, own.remainder]), axis_name, axis=1, tiled=True)
  return list(map(Compensated, *(restore(row[: flat.size]) for row in whole)))


def _row_by_row(tree: PyTree) -> PyTree:
  rows = jax.tree.leaves(tree)[0].shape[0]
  take = partial(lax.dynamic_index_in_dim, keepdims=False)
  return sum_while(lambda i: i < rows, lambda i: jax.tree.map(lambda x: take(x, i), tree))


def _by_halves(tree: PyTree) -> PyTree:
  total = _map(_pair, tree)
  while (rows := jax.tree.leaves(total)[0].shape[0]) > 1:
    half = rows // 2
    ends = ((0, half), (half, 2 * half), (2 * half, rows))
    low, high, odd = (jax.tree.map(lambda x, ends=e: x[slice(*ends)], total) for e in ends)
    total = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), add(low, high), odd)
  return jax.tree.map(lambda x: x[0], total)


def _map(function: Callable, tree: PyTree, *rest: PyTree) -> PyTree:
  """`jax.tree.map` with pairs for leaves; the leaves of the rest may be pairs where the tree's are not."""
  leaves, structure = jax.tree.flatten(tree, is_leaf=_is_pair)
  others = [jax.tree.leaves(other, is_leaf=_is_pair) for other in rest]
  return jax.tree.unflatten(structure, [function(*x) for x in zip(leaves, *others, strict=True)])


def _is_pair(x: Any) -> bool:
  return isinstance(x, Compensated | _Packed)


def _pair(x: Any) -> Any:
  """A plain array as a pair without remainder; whole numbers and pairs as they are."""
  if _is_pair(x) or not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize > 4:
    return x
  return Compensated(x.astype(jnp.float32), jnp.zeros(x.shape, jnp.float32))


def _pack(x: Any) -> Any:
  return _Packed(lax.complex(x.value, x.remainder)) if isinstance(x, Compensated) else x


def _unpack(x: Any) -> Any:
  return Compensated(x.pair.real, x.pair.imag) if isinstance(x, _Packed) else x


def _add(x: Any, y: Any) -> Any:
  x, y = _pair(x), _pair(y)
  if not _is_pair(x):
    return x + y
  value, error = _two_sum(x.value, y.value)
  return Compensated(*_two_sum(value, error + (x.remainder + y.remainder)))


def _two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
  """a + b in float32, and its rounding error."""
  total = a + b
  added = total - a
  return total, (a - (total - added)) + (b - added)


def _two_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
  """a b in float32, and its rounding error (T. Dekker, 1971); an error of 0 beyond 1e34."""
  product = a * b
  (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
  error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
  return product, jnp.where(jnp.isfinite(error), error, 0.0)


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Two numbers of 12 bits that add up to x."""
  shifted = 4097.0 * x
  high = shifted - (shifted - x)
  return high, x - high
