"""Where a loss multiplies data by its parameters, found in the loss's program (its jaxpr).

A program names every use of a parameter, so none is missed. A use is either a known product of data
and a matrix of weights, or else its parameter is differentiated like any other number. On their way
to a product, parameters may be reshaped, transposed and joined. They may be used in jitted parts,
in parts that are computed again for the gradient, and in all steps of a scan.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, Literal

from jdp._equations import closed, program_inside, scan_counts

Plan = dict[int, Any]
"""The number of an equation -> its `Use`, or the `Inner` of a part of the program that has uses."""


class Factors(NamedTuple):
  """A gradient by a matrix of weights: left^T right.

  Attributes:
    left: float32 [r, a], or int32 [r]: each is the number of a row of the identity [a, a].
    right: float32 [r, b].
  """

  left: jax.Array
  right: jax.Array


class Block(NamedTuple):
  """The place of a parameter within the matrix that data is multiplied by.

  Attributes:
    rows: its rows of that matrix.
    columns: its columns of that matrix.
    turned: whether the parameter lies there transposed.
    shape: (a, b), the parameter's as a matrix that is not transposed.
  """

  rows: slice
  columns: slice
  turned: bool
  shape: tuple[int, int]


class Use(NamedTuple):
  """An equation that multiplies data by weights.

  Attributes:
    data: which of the equation's operands is the data.
    factors: (data, derivative by the equation's result) -> the gradient's factors.
    blocks: the parameters within the weights, by number.
    num_rows: the number of rows of the factors.
    looks_up: whether the data are numbers of rows, as in an embedding.
    unfolds: whether the factors are made of more than the data and the derivative.
    output: the shape and type of the result.
  """

  data: int
  factors: Callable[[jax.Array, jax.Array], Factors]
  blocks: dict[int, Block]
  num_rows: int
  looks_up: bool
  unfolds: bool
  output: jax.ShapeDtypeStruct


class Inner(NamedTuple):
  """A part of the program that has uses: a called program, or the step of a scan.

  Attributes:
    plan: the part's plan.
    length: the number of steps, in a scan. None: the part is called once.
  """

  plan: Plan
  length: int | None


class _View(NamedTuple):
  """Parameters after reshaping, transposing and joining.

  Attributes:
    entries: each entry's place in the concatenation of all parameters. -1: in none.
    leaves: the numbers of the parameters in the view.
  """

  entries: np.ndarray
  leaves: frozenset[int]


class _Product(NamedTuple):
  """A product by its rule: see `Use`. The index of the weights is a matrix, [k, n]."""

  data: int
  matrix: np.ndarray
  factors: Callable[[jax.Array, jax.Array], Factors]
  looks_up: bool = False
  unfolds: bool = False


class Uses(NamedTuple):
  """What a loss does with its parameters, each known by its number.

  Attributes:
    plan: the known products, of the parameters that are not `direct`.
    direct: the parameters that are to be differentiated like any other number, with the reason.
    multiplied: the parameters whose factors are to be multiplied for each client, with the reason.
  """

  plan: Plan
  direct: dict[int, str]
  multiplied: dict[int, str]


def uses_of_parameters(jaxpr: Jaxpr, shapes: Sequence[tuple[int, ...]]) -> Uses:
  """Finds the parameters whose gradients are smaller as factors, and all their uses.

  Factors have r rows of a and of b numbers, for a gradient [a, b]. They are chosen if r (a + b) is
  less than a b. Then they take less memory than the gradient, and their Gram matrices take fewer
  multiplications than making the gradient. In an embedding, a counts as 1.

  Gradients of convolutions are made from their factors too: XLA computes them slowly one by one.

  Args:
    jaxpr: the loss's program. Its first inputs are the parameters.
    shapes: the parameters' shapes.
  """
  offsets = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
  reasons = {i: "not a matrix" for i, shape in enumerate(shapes) if len(shape) < 2 or 0 in shape}
  while True:
    views = [
      None if i in reasons else _View(np.arange(*offsets[i : i + 2]).reshape(shape), frozenset([i]))
      for i, shape in enumerate(shapes)
    ]
    others: dict[int, str] = {}
    plan = _walk(jaxpr, views, offsets, others)
    if not others:  # All uses are known, and so is their cost.
      dear = _not_smaller(plan, {i for i, view in enumerate(views) if view is not None})
      known = [use for use, _ in all_uses(plan)]
      unfolded = {leaf for use in known if use.unfolds for leaf in use.blocks}
      unfolded -= {leaf for use in known if use.looks_up for leaf in use.blocks}
      others = {leaf: reason for leaf, reason in dear.items() if leaf not in unfolded}
    if not others:
      return Uses(plan, reasons, dear)
    reasons |= others


def _walk(
  jaxpr: Jaxpr, views: Sequence[_View | None], offsets: np.ndarray, others: dict[int, str]
) -> Plan:
  """The plan of a program whose first inputs are views.

  Adds the parameters that the program uses in any other way to `others`, with the reason.
  """
  known = dict(zip(jaxpr.invars, views, strict=False))
  plan: Plan = {}

  def view_of(atom):
    return None if isinstance(atom, Literal) else known.get(atom)

  def refuse(operands, reason):
    for view in filter(None, operands):
      others.update(dict.fromkeys(view.leaves, reason))

  for number, eqn in enumerate(jaxpr.eqns):
    operands, name = [view_of(atom) for atom in eqn.invars], eqn.primitive.name
    if not any(operands):
      continue
    changed = _changed_view(eqn, operands)
    if changed is not None:
      known[eqn.outvars[0]] = changed
      continue
    part: Use | Inner | None = None
    if name in _RULES and sum(map(bool, operands)) == 1:
      part = _use(eqn, operands, offsets)
    elif (program := program_inside(eqn)) is not None:
      # A scan's carry and its slices of inputs differ from step to step.
      kept = operands[: scan_counts(eqn.params)[0]] if name == "scan" else operands
      refuse(operands[len(kept) :], "a scan takes it apart or changes it")
      inner = _walk(closed(program).jaxpr, kept, offsets, others)
      part = Inner(inner, eqn.params.get("length") if name == "scan" else None)
    if part is None:
      refuse(operands, f"it is used by {name}, in a way that has no factors")
    else:
      plan[number] = part
  refuse(map(view_of, jaxpr.outvars), "it is a result of a part of the loss")
  return plan


def _changed_view(eqn: Any, operands: Sequence[_View | None]) -> _View | None:
  """The view after an equation that only moves entries. Else None."""
  name, result = eqn.primitive.name, eqn.outvars[0].aval
  if not jnp.issubdtype(result.dtype, jnp.floating):
    return None
  indices = [
    np.full(atom.aval.shape, -1) if view is None else view.entries
    for atom, view in zip(eqn.invars, operands, strict=True)
  ]
  if name == "transpose":
    index = indices[0].transpose(eqn.params["permutation"])
  elif name == "concatenate":
    index = np.concatenate(indices, eqn.params["dimension"])
  elif name in _RESHAPES and indices[0].size == result.size:
    index = indices[0].reshape(result.shape)
  else:
    return None
  return _View(index, frozenset().union(*(view.leaves for view in operands if view)))


_RESHAPES = {"reshape", "squeeze", "broadcast_in_dim", "convert_element_type"}


def _use(eqn: Any, operands: Sequence[_View | None], offsets: np.ndarray) -> Use | None:
  """The use of the weights in one operand of an equation, or None if it has no known factors."""
  (which,) = (i for i, view in enumerate(operands) if view)
  view = operands[which]
  assert view is not None
  product = _RULES[eqn.primitive.name](eqn, which, view.entries)
  if product is None:
    return None
  blocks = {}
  for leaf in view.leaves:
    block = _block(product.matrix, offsets[leaf], offsets[leaf + 1])
    if block is None or (product.looks_up and block.shape != product.matrix.shape):
      return None
    blocks[leaf] = block
  output = eqn.outvars[0].aval
  num_rows = int(np.prod(output.shape)) // product.matrix.shape[1]
  shape = jax.ShapeDtypeStruct(output.shape, output.dtype)
  _, _, factors, looks_up, unfolds = product
  return Use(product.data, factors, blocks, num_rows, looks_up, unfolds, shape)


def _block(matrix: np.ndarray, first: int, end: int) -> Block | None:
  """The block of a matrix of indices that holds `first` to `end` in order, or None."""
  inside = (matrix >= first) & (matrix < end)
  rows, columns = (_slice(np.flatnonzero(inside.any(axis))) for axis in (1, 0))
  block = matrix[rows, columns]
  for turned, straight in ((False, block), (True, block.T)):
    if np.array_equal(straight.ravel(), np.arange(first, end)) and inside.sum() == block.size:
      return Block(rows, columns, turned, straight.shape)
  return None


def _slice(places: np.ndarray) -> slice:
  """From the first place to the last."""
  return slice(int(places[0]), int(places[-1]) + 1)


def _not_smaller(plan: Plan, leaves: set[int]) -> dict[int, str]:
  """The parameters whose gradient is no larger than its factors, with the reason."""
  used = rows_of_factors(plan)
  reasons = dict.fromkeys(leaves - used.keys(), "the loss does not use it")
  for leaf, rows in used.items():
    size = int(np.prod(rows.shape))
    if rows.several_shapes:
      reasons[leaf] = "it is used as matrices of several shapes"
    elif rows.number * rows.width >= size:
      reasons[leaf] = (
        f"its {size} numbers are no more than {rows.number} rows of {rows.width} in factors"
      )
  return reasons


class Rows(NamedTuple):
  """The rows of a parameter's factors, over all its uses.

  Attributes:
    number: the number of rows.
    width: how many numbers a row has in both factors.
    shape: the shape of the parameter's matrix in its first use.
    several_shapes: whether it is used as matrices of several shapes.
  """

  number: int
  width: int
  shape: tuple[int, int]
  several_shapes: bool


def rows_of_factors(plan: Plan) -> dict[int, Rows]:
  """The rows of every parameter that has uses."""
  uses: dict[int, list[tuple[int, bool, tuple[int, int]]]] = {}
  for use, times in all_uses(plan):
    for leaf, block in use.blocks.items():
      uses.setdefault(leaf, []).append((times * use.num_rows, use.looks_up, block.shape))
  found = {}
  for leaf, own in uses.items():
    numbers, look_ups, shapes = zip(*own, strict=True)
    a, b = shapes[0]
    found[leaf] = Rows(sum(numbers), b + (1 if all(look_ups) else a), (a, b), len(set(shapes)) > 1)
  return found


def all_uses(plan: Plan, times: int = 1) -> list[tuple[Use, int]]:
  """All uses, each with the number of times that it is computed."""
  found = []
  for part in plan.values():
    if isinstance(part, Use):
      found.append((part, times))
    else:
      found += all_uses(part.plan, times * (1 if part.length is None else part.length))
  return found


def _dot_general(eqn: Any, which: int, index: np.ndarray) -> _Product | None:
  """Products of matrices, or of tensors along some axes."""
  contracted, batch = eqn.params["dimension_numbers"]
  if batch[which]:
    return None
  data = 1 - which
  own, others = contracted[which], contracted[data]
  free = [axis for axis in range(index.ndim) if axis not in own]
  size = int(np.prod([index.shape[axis] for axis in own]))
  matrix = index.transpose(*own, *free).reshape(size, -1)

  def factors(x, derivative):
    kept = [axis for axis in range(x.ndim) if axis not in others]
    left = x.transpose(*kept, *others).reshape(-1, size)
    if which == 0:  # The result has the axes of the weights first.
      return Factors(left, derivative.reshape(matrix.shape[1], -1).T)
    return Factors(left, derivative.reshape(-1, matrix.shape[1]))

  return _Product(data, matrix, factors)


def _gather(eqn: Any, which: int, index: np.ndarray) -> _Product | None:
  """Rows of a table by their numbers."""
  numbers, rank = eqn.params["dimension_numbers"], eqn.outvars[0].aval.ndim
  rows_alone = (
    which == 0
    and index.ndim == 2
    and numbers.offset_dims == (rank - 1,)
    and numbers.collapsed_slice_dims == numbers.start_index_map == (0,)
    and not numbers.operand_batching_dims
    and eqn.params["slice_sizes"] == (1, index.shape[1])
  )
  if not rows_alone:
    return None
  clips = eqn.params["mode"] == lax.GatherScatterMode.CLIP

  def factors(x, derivative):
    words, right = x.reshape(-1).astype(jnp.int32), derivative.reshape(-1, index.shape[1])
    known = jnp.clip(words, 0, len(index) - 1)
    # A number beyond the rows has no derivative, unless it is clipped to the nearest row.
    return Factors(known, right if clips else jnp.where((known == words)[:, None], right, 0.0))

  return _Product(1, index, factors, looks_up=True)


def _convolution(eqn: Any, which: int, index: np.ndarray) -> _Product | None:
  """Convolutions: the data are all patches. Each has the length of one output's kernel."""
  params = eqn.params
  if which != 1 or params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
    return None
  data_axes, (outputs, *inputs), result_axes = params["dimension_numbers"]
  matrix = np.moveaxis(index, outputs, -1).reshape(-1, index.shape[outputs])
  window = [index.shape[axis] for axis in inputs[1:]]

  def factors(x, derivative):
    derivative = derivative.transpose(result_axes[0], *result_axes[2:], result_axes[1])
    patches = _patches(x.transpose(data_axes), window, derivative.shape[1:-1], params)
    # [examples, places, features, *window], with the last axes in the kernel's order
    patches = patches.reshape(*patches.shape[:2], -1, *window)
    order = [2 + inputs.index(axis) for axis in sorted(inputs)]
    rows = patches.transpose(0, 1, *order).reshape(-1, len(matrix))
    return Factors(rows, derivative.reshape(-1, matrix.shape[1]))

  return _Product(0, matrix, factors, unfolds=True)


def _patches(
  x: jax.Array, window: Sequence[int], places: Sequence[int], params: dict[str, Any]
) -> jax.Array:
  """The patches of [n, features, *size] at all places: [n, all places, features, window]."""
  edges = [
    (*edge, dilation - 1)
    for edge, dilation in zip(params["padding"], params["lhs_dilation"], strict=True)
  ]
  x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *edges])
  strides = params["window_strides"]
  spans = [(count - 1) * stride + 1 for count, stride in zip(places, strides, strict=True)]
  pieces = []
  for offset in np.ndindex(*window):
    first = [own * step for own, step in zip(offset, params["rhs_dilation"], strict=True)]
    end = [own + span for own, span in zip(first, spans, strict=True)]
    piece = lax.slice(x, (0, 0, *first), (*x.shape[:2], *end), (1, 1, *strides))
    pieces.append(piece.reshape(*x.shape[:2], -1))
  return jnp.stack(pieces, axis=-1).swapaxes(1, 2)


_RULES: dict[str, Callable[[Any, int, np.ndarray], _Product | None]] = {
  "dot_general": _dot_general,
  "gather": _gather,
  "conv_general_dilated": _convolution,
}
