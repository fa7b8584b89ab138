"""Sums that keep what rounding takes from them: a float32 value and a remainder.

A float32 sum can move by more than a contribution's own norm, because the contribution shifts the
roundings of all that follow. One among 16,098 moved it by four times its norm.

Here sums are made in float64, whether JAX is set to use it or not. They are passed on as pairs of
float32 that hold 48 bits. Take n contributions of norm at most S, with n up to 2^21. One of them
moves such a sum by at most S (1 + 1e-6), for these reasons:

* An addition is wrong by at most 2^-53 of its sum.
* One contribution changes the 2^10 additions of its own block, and those of the n / 2^10 whole
  blocks. Together that is twice 2^-53 (2^20 + n^2 / 2^10) S.
* C rows that are added at once, such as those of a chunk, add C^2 to that.

This holds where processors have float64. TPUs emulate it: programs compile (`docs/scaling.md`),
and none was run.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp._loop_carries import vary_like

PyTree = Any

MAX_CONTRIBUTIONS = 2**21
"""The most contributions for which a sum keeps its sensitivity."""

_BLOCK = 2**10  # parts in a block of a long sum
_SMALL = 2**13  # most numbers of an array that is summed together with others
# Use `float64` only around primitives. JAX keeps their types wherever it traces them, under vmap
# and scan too. It may narrow constants.
_jax: Any = jax  # `enable_x64` moved between versions of JAX
float64 = _jax.enable_x64 if hasattr(jax, "enable_x64") else _jax.experimental.enable_x64

# Before 0.8, JAX adds in float32 in these reductions if it is not set to use float64.
_REDUCES_FLOAT64 = jax.__version_info__ >= (0, 8)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Compensated:
  """A sum that was not rounded: value + remainder. As a NumPy array it is rounded.

  Attributes:
    value: the sum, rounded to float32.
    remainder: float32 of the same shape. It is at most half of the value's last place.
  """

  value: jax.Array
  remainder: jax.Array

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the sum."""
    return self.value.shape

  @property
  def dtype(self) -> np.dtype:
    """The dtype of the rounded sum, float32."""
    return self.value.dtype

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    return np.asarray(self.value, dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Product:
  """A matrix left^T right that is not multiplied out: the sum of many is one product.

  Single rows may be added to it. Left and right, or numbers and rows, may be None.

  Attributes:
    left: float32 [r, a].
    right: float32 [r, b]. Float64 once it is scaled.
    shape: the shape that the [a, b] entries are reshaped to.
    numbers: int32 [q], the numbers of the matrix's rows that `rows` are added to.
    rows: float32 [q, b]. Float64 once they are scaled.
  """

  left: jax.Array | None
  right: jax.Array | None
  shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
  numbers: jax.Array | None = None
  rows: jax.Array | None = None

  def scaled(self, scale: jax.Array) -> "Product":
    """The product times a float32 scalar: exactly zero for scale 0, whatever the factors hold.

    Float64 holds scale times right, and scale times rows, without rounding. Rounded to float32,
    rows that cancel would leave more than the scaled product.
    """

    def kept(x):
      return None if x is None else jnp.where(scale != 0, x, 0.0)

    def times(x):
      if x is None:
        return None
      with float64(True):
        return lax.mul(as_float64(kept(x)), lax.broadcast(as_float64(scale), x.shape))

    return Product(kept(self.left), times(self.right), self.shape, self.numbers, times(self.rows))


def rounded(total: PyTree) -> PyTree:
  """The sum as plain arrays: its pairs rounded to float32."""
  return _map(lambda x: x.value if isinstance(x, Compensated) else x, total)


def add(total: PyTree, tree: PyTree) -> PyTree:
  """Adds two trees leaf by leaf. Each leaf of either is a pair or a plain array.

  Floats of up to 32 bits become pairs. Anything else is added as it is.

  >>> total = add(jnp.float32(1), jnp.float32(2**-40))
  >>> float(total.value), float(total.remainder) == 2**-40
  (1.0, True)
  """
  return _map(lambda x, y: _as_pair(_plus(as_float64(x), as_float64(y))), total, tree)


def divide(total: PyTree, denominator: jax.Array | Compensated) -> PyTree:
  """total / denominator as pairs. The denominator is a scalar > 0."""
  # A vector, as JAX before 0.8 narrows a scalar that is a constant.
  by = as_float64(jax.tree.map(lambda x: jnp.reshape(x, 1), denominator))

  def quotient(x):
    with float64(True):
      dividend = as_float64(x)
      return _as_pair(lax.div(dividend, lax.broadcast(by.reshape(()), dividend.shape)))

  return _map(quotient, total)


def maximum(total: jax.Array | Compensated, least: float) -> Compensated:
  """The larger of a sum and a number."""
  value = np.float32(least)
  # Vectors, as JAX before 0.8 narrows a scalar that is a constant.
  pair = Compensated(jnp.full(1, value), jnp.full(1, np.float32(least - float(value))))
  with float64(True):
    return _as_pair(lax.max(as_float64(total), as_float64(vary_like(pair, total)).reshape(())))


def product(left: jax.Array, right: jax.Array) -> Compensated:
  """The matrix left^T right, [a, b], of float32 [r, a] and [r, b].

  It is right to within 2^-52 r |left|^T |right|.
  """
  if left.shape[1] > right.shape[1]:
    turned = product(right, left)
    return Compensated(turned.value.T, turned.remainder.T)
  # XLA's float64 product of [a, r] and [r, b] takes a third of the time of one that contracts two
  # first axes. Without the barrier, XLA would turn this product into that one.
  with float64(True):
    rows = lax.optimization_barrier(lax.transpose(as_float64(left), (1, 0)))
    return _as_pair(lax.dot_general(rows, as_float64(right), (((1,), (0,)), ((), ()))))


def sum_rows(tree: PyTree) -> PyTree:
  """The sum over the leading axis of every array. Floats and `Product`s become pairs."""
  return _map(lambda x: _multiplied(x) if isinstance(x, Product) else _as_pair(_row_sum(x)), tree)


def multiplied(tree: PyTree) -> PyTree:
  """The tree with its `Product`s multiplied out, as pairs."""
  return _map(lambda x: _multiplied(x) if isinstance(x, Product) else x, tree)


def _multiplied(x: Product) -> Compensated:
  """The sum of the products along all leading axes."""
  parts = []
  if x.left is not None and x.right is not None:
    parts.append(product(*(part.reshape(-1, part.shape[-1]) for part in (x.left, x.right))))
  if x.numbers is not None and x.rows is not None:
    rows = x.rows.reshape(-1, x.rows.shape[-1])
    parts.append(_rows_added(x.numbers.reshape(-1), rows, x.shape[0]))
  total = functools.reduce(add, parts)
  return jax.tree.map(lambda part: part.reshape(x.shape), total)


def _rows_added(numbers: jax.Array, rows: jax.Array, length: int) -> Compensated:
  """The matrix [length, b] whose row i is the sum of the rows [r, b] that have the number i."""
  if not _REDUCES_FLOAT64:
    return product(jax.nn.one_hot(numbers, length), rows)
  axes = lax.ScatterDimensionNumbers((1,), (0,), (0,))  # Each number says where a whole row goes.
  zeros = as_float64(jnp.zeros((length, rows.shape[1])))
  with float64(True):
    places = lax.broadcast_in_dim(numbers, (len(numbers), 1), (0,))
    return _as_pair(lax.scatter_add(zeros, places, as_float64(rows), axes))


def sum_while(
  more: Callable[[jax.Array], jax.Array],
  part: Callable[[jax.Array], PyTree],
  *,
  at_most: int | None = None,
) -> PyTree:
  """part(0) + part(1) + ..., for as long as more(i) holds.

  Before 0.8, JAX refuses it under `vmap`, where float64 becomes float32.

  Args:
    more: int32 scalar -> bool scalar.
    part: int32 scalar -> what is added. A tree of plain arrays and pairs.
    at_most: a bound on the number of parts, where one is known. A sum that fits in one block keeps
      one accumulator instead of two, which matters to long vectors.
  """
  part = jax.jit(part, inline=True)  # It is traced once, for its shapes and for the loop.
  shapes = jax.eval_shape(part, jnp.int32(0))
  nothing = _map(lambda x: _zeros(x, x.shape), shapes)

  def turn(carry):
    i, total = carry
    return i + 1, _map(lambda x, y: _plus(x, as_float64(y)), total, part(i))

  # Blocks keep the number of additions small that one contribution changes (module's docstring).
  def block(carry):
    i, total = carry
    end = i + _BLOCK
    i, added = lax.while_loop(lambda c: more(c[0]) & (c[0] < end), turn, (i, nothing))
    return i, jax.tree.map(_plus, total, added)

  body = turn if at_most is not None and at_most <= _BLOCK else block
  return jax.tree.map(
    _as_pair, lax.while_loop(lambda c: more(c[0]), body, (jnp.int32(0), nothing))[1]
  )


def sum_devices(rows: PyTree) -> PyTree:
  """The sum over the leading axis of every array, of which each device has a row.

  XLA adds the rows where they lie, so that a sum which is laid out over further axes of a mesh
  stays so. (`lax.psum` of float64 does not compile for a TPU in a `shard_map` of some axes alone.)
  """
  leaves, structure = jax.tree.flatten(rows, is_leaf=_is_pair)
  small = iter(_sums_of_small(list(filter(_is_small, leaves))))
  sums = [next(small) if _is_small(x) else _as_pair(_rows_at_once(x)) for x in leaves]
  return jax.tree.unflatten(structure, sums)


def _is_small(rows: Any) -> bool:
  return _is_float(rows) and math.prod(rows.shape[1:]) <= _SMALL


def _sums_of_small(arrays: list[Any]) -> list[Compensated]:
  """The sums over the rows of each array, as one vector: one array alone would take as long."""
  if not arrays:
    return []
  with float64(True):
    flat = [lax.reshape(as_float64(x), (x.shape[0], math.prod(x.shape[1:]))) for x in arrays]
    parts = lax.split(_rows_at_once(lax.concatenate(flat, 1)), [x.shape[1] for x in flat])
    return [_as_pair(lax.reshape(y, x.shape[1:])) for y, x in zip(parts, arrays, strict=True)]


def _is_pair(x: Any) -> bool:
  return isinstance(x, Compensated)


def _map(function: Callable, tree: PyTree, *rest: PyTree) -> PyTree:
  """`jax.tree.map` with pairs and products for leaves.

  Where the tree has an array, the rest may have a pair.
  """
  leaves, structure = jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, Compensated | Product))
  others = [jax.tree.leaves(other, is_leaf=_is_pair) for other in rest]
  return jax.tree.unflatten(structure, [function(*x) for x in zip(leaves, *others, strict=True)])


def _is_float(x: Any) -> bool:
  return jnp.issubdtype(x.dtype, jnp.floating)


def _zeros(like: Any, shape: tuple[int, ...]) -> jax.Array:
  """What a sum of such arrays or pairs begins with, in float64 for floats."""
  # A scalar that is a constant would be narrowed by JAX before 0.8. This one is computed.
  zeros = jnp.zeros((1, *shape), np.float32 if _is_float(like) else like.dtype)
  return as_float64(vary_like(zeros, like).reshape(shape))


def _plus(x: jax.Array, y: jax.Array) -> jax.Array:
  with float64(True):
    return lax.add(x, y)


def as_float64(x: Any) -> jax.Array:
  """Converts a pair or an array of floats to float64. Any other array stays as it is."""
  with float64(True):
    if isinstance(x, Compensated):
      return lax.add(as_float64(x.value), as_float64(x.remainder))
    return lax.convert_element_type(x, np.float64) if _is_float(x) else x


def _row_sum(x: Any) -> jax.Array:
  """The sum over the leading axis of a pair or an array. Floats are summed in float64.

  XLA's sum on a CPU walks down the columns, which takes 20 times as long where rows are long.
  """
  if not _REDUCES_FLOAT64:  # Under vmap, a choice by platform would narrow float64 too.
    return _row_after_row(x)
  return lax.platform_dependent(x, cpu=_row_after_row, default=_rows_at_once)


def _row_after_row(x: Any) -> jax.Array:
  first = _zeros(x, x.shape[1:])
  # Before 0.8, JAX narrows what a scan begins with under vmap, if it is not set to use float64.
  with contextlib.nullcontext() if _REDUCES_FLOAT64 else float64(True):
    return lax.scan(lambda total, row: (_plus(total, as_float64(row)), None), first, x)[0]


def _rows_at_once(x: Any) -> jax.Array:
  if not _REDUCES_FLOAT64:
    return _row_after_row(x)
  with float64(True):
    rows = as_float64(x)
    return jnp.sum(rows, axis=0, dtype=rows.dtype)


def _as_pair(x: jax.Array) -> Any:
  """Converts float64 to a pair. Any other array stays as it is."""
  if not _is_float(x):
    return x
  with float64(True):
    value = lax.convert_element_type(x, np.float32)
    rest = lax.convert_element_type(
      lax.sub(x, lax.convert_element_type(value, np.float64)), np.float32
    )
  # The rest of an infinite value is NaN or infinite.
  return Compensated(value, lax.select(lax.is_finite(value), rest, lax.full_like(rest, 0)))
