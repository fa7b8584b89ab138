"""Clips clients by exact norms of gradients that are never computed one by one (ghost norms).

A matrix of weights is multiplied by rows a_r, and a client's loss has derivatives b_r by the
products. A row r is an example, a place in a sequence, a step of a scan, or one of several uses of
the weights. The client's gradient is sum_r a_r b_r^T, whose squared norm is sum_rs <a_r, a_s>
<b_r, b_s> (arXiv 2110.05679, Section 4). So two small Gram matrices replace a matrix of weights.

The sum of all clients' clipped gradients is one product of matrices, with each client's rows scaled
by its clipping factor (arXiv 2210.00038). All uses of a parameter are rows of one pair of factors,
so the norm is that of the *summed* gradient.

Which parameters have such rows follows from the loss's program
(`jdp.federated.engine.weight_uses`). Parameters whose gradient is smaller than its rows get a
gradient for each client: biases, the scales of LayerNorm, low-rank adapters, layers that are
applied at many places. So do parameters that are used in any other way.

The norm is computed in float64, as the sum is, from the same numbers that enter the sum. So the
guarantee does not rest on the analysis of the program: a missed use would give a wrong gradient,
but one within its bound. docs/theory/clipping.md names every rounding on the way.
"""

import functools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr

from jdp._arguments import checked
from jdp._equations import applied, closed, program_inside, read, scan_counts
from jdp.federated.engine.client import ClientFn, Factored
from jdp.federated.engine.weight_uses import (
  Factors,
  Inner,
  Plan,
  Use,
  Uses,
  rows_of_factors,
  uses_of_parameters,
)
from jdp.models.base import Loss, keyed
from jdp.numerics.compensated import Product, as_float64, float64
from jdp.numerics.convolutions import channels_last

PyTree = Any

_UNIT_ROUNDOFF = 2.0**-53
# Covers the rounding of the clipping factor, which is float32, and of a chunk's sum.
_MARGIN = 4e-6
_LARGEST_INPUT = 2.0**60
_MOST_CANCELLED = 2.0**11  # a norm counts as at least the rows' total length divided by this
# The default precision of accelerators would exceed the error bound of `_square_of_product`.
_product64 = partial(lax.dot_general, precision=lax.Precision.HIGHEST)


class GradientForm(NamedTuple):
  """How a client's gradient by one parameter is held.

  Attributes:
    path: the parameter's path.
    size: how many numbers the parameter has.
    held: how many numbers hold the gradient: those of its factors, or `size`.
    rows: the number of rows of its factors. None: the gradient itself is computed.
    reason: why the gradient itself is computed. None for factors.
  """

  path: str
  size: int
  held: int
  rows: int | None
  reason: str | None


def ghost_client(loss: Loss, learning_rate: float) -> ClientFn:
  """A client that takes one gradient step, clipped by its ghost norm.

  The loss may be any function of a client's examples that JAX can differentiate.

  Formal guarantee: that of the query, for any clients. A client's factor is computed from an upper
  bound of its norm: the value plus the most that rounding can take from it. So no update is longer
  than the clip norm in real numbers. Clipped updates are shorter than those of
  `jdp.numerics.vectors.clip`, by less than 1e-5 of their length. They are shorter by more where the
  rows' gradients together are 2,000 times as long as their sum. A client adds zero if its gradient
  holds NaN or infinity, if an input of a layer is beyond 1e18, or if its factor is below 1e-30. A
  chunk's sum is made in float64. A user moves the sum of a cohort as `jdp.federated.cohort_sum`
  says (docs/theory/clipping.md, Statements 8.2 to 8.5).

  Args:
    loss: (parameters, examples) -> mean loss.
    learning_rate: the step's learning rate.

  Returns:
    The `ClientFn` whose record is `Factored`: minus the learning rate times the gradient. Its
    scalar "update_norm" is the upper bound of the record's norm. The server must send it a tuple
    that begins with the parameters.

  Raises:
    ValueError: when the query first gets a record, if it does not bound all the record's vectors by
      one factor.
  """
  loss_of = keyed(loss)

  def client_fn(keys, sent, client):
    gradient = _gradient(loss_of, sent[0], client, keys.data)
    norm = learning_rate * _norm(gradient)
    return Factored(norm, -learning_rate, gradient), {"update_norm": norm}

  return client_fn


@checked
def gradient_forms(loss: Loss, params: PyTree, client: PyTree) -> list[GradientForm]:
  """How ghost norms hold a client's gradient, parameter by parameter.

  Args:
    loss: (parameters, examples) -> mean loss.
    params: the parameters, or their shapes.
    client: one client's examples, or their shapes.

  Raises:
    TypeError: if loss is not a function.

  >>> from jdp import data, models
  >>> model = models.logistic_regression((784,), 10)
  >>> params = jax.eval_shape(model.init, jax.random.key(0))
  >>> client = data.examples(jnp.zeros((2, 784)), jnp.zeros(2, jnp.int32))
  >>> for form in gradient_forms(models.cross_entropy(model), params, client):
  ...   print(form.path, form.rows, form.reason)
  b None not a matrix
  w 2 None
  """
  _, uses = _program(keyed(loss), params, client, jax.random.key(0))
  reasons = uses.direct | uses.multiplied
  factors = rows_of_factors(uses.plan)
  forms = []
  for i, (path, leaf) in enumerate(jax.tree.leaves_with_path(params)):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if i in reasons:
      forms.append(GradientForm(name, leaf.size, leaf.size, None, reasons[i]))
    else:
      number, width, *_ = factors[i]
      forms.append(GradientForm(name, leaf.size, number * width, number, None))
  return forms


def _program(
  loss: Loss, params: PyTree, client: PyTree, key: jax.Array
) -> tuple[ClosedJaxpr, Uses]:
  """The loss's program for one client, and what it does with the parameters."""
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), (params, client, key)
  )
  program = jax.make_jaxpr(loss)(*shapes)
  leaves = [leaf.shape for leaf in jax.tree.leaves(params)]
  return program, uses_of_parameters(program.jaxpr, leaves)


def _gradient(loss: Loss, params: PyTree, client: PyTree, key: jax.Array) -> PyTree:
  """A client's gradient: a pytree like the parameters, with a `Product` for each with factors."""
  leaves, structure = jax.tree.flatten(params)
  program, uses = _program(loss, params, client, key)
  others = jax.tree.leaves((client, key))

  # Zeros are added to the result of every use. The loss's derivatives with respect to these zeros
  # are the b_r.
  def value(direct, added):
    own = [direct.get(i, leaf) for i, leaf in enumerate(leaves)]
    (result,), data = _run(program.jaxpr, program.consts, [*own, *others], uses.plan, added)
    return result, data

  direct = {i: leaves[i] for i in uses.direct}
  gradient = channels_last(jax.grad(value, (0, 1), has_aux=True))
  made, data = gradient(direct, _zeros(uses.plan))
  gradients, derivatives = made
  # Half precision is measured and summed as float32, which holds the same numbers.
  gradients = {i: gradient.astype(jnp.float32) for i, gradient in gradients.items()}
  for i, parts in _factors(uses.plan, data, derivatives).items():
    product = _product(parts, leaves[i].shape)
    gradients[i] = _matrix(product) if i in uses.multiplied else product
  return jax.tree.unflatten(structure, [gradients[i] for i in range(len(leaves))])


def _matrix(product: Product) -> jax.Array:
  """The matrix of a product without single rows."""
  left, right = product.left, product.right
  assert left is not None
  assert right is not None
  return jnp.matmul(left.T, right).reshape(product.shape)


def _zeros(plan: Plan) -> PyTree:
  """Zeros like the results of all uses. In a scan, its steps are the first axis."""

  def of_part(part):
    if isinstance(part, Use):
      return jnp.zeros(part.output.shape, part.output.dtype)
    lead = () if part.length is None else (part.length,)
    return jax.tree.map(lambda x: jnp.zeros((*lead, *x.shape), x.dtype), _zeros(part.plan))

  return {number: of_part(part) for number, part in plan.items()}


def _run(
  code: Jaxpr, consts: Sequence[Any], arguments: Sequence[Any], plan: Plan, added: PyTree
) -> tuple[list[Any], PyTree]:
  """Runs a program with something added to the results of all uses.

  Returns:
    Its results, and the data of all uses, structured as `_zeros`.
  """
  values = dict(zip((*code.constvars, *code.invars), (*consts, *arguments), strict=True))
  data = {}
  for number, eqn in enumerate(code.eqns):
    part = plan.get(number)
    if isinstance(part, Inner):
      operands = [read(values, atom) for atom in eqn.invars]
      results, data[number] = _run_inner(eqn, operands, part, added[number])
    else:
      results = applied(code, eqn, values.__getitem__)
    if isinstance(part, Use):
      results = [results[0] + added[number]]
      data[number] = read(values, eqn.invars[part.data])
    values.update(zip(eqn.outvars, results, strict=True))
  return [read(values, atom) for atom in code.outvars], data


def _run_inner(
  eqn: Any, operands: Sequence[Any], part: Inner, added: PyTree
) -> tuple[Sequence[Any], PyTree]:
  """Runs the equation of a part that has uses: see `_run`."""
  name, params = eqn.primitive.name, eqn.params
  inside: Any = program_inside(eqn)
  program = closed(inside)

  def run(arguments, added):
    return _run(program.jaxpr, program.consts, arguments, part.plan, added)

  if name == "scan":
    fixed, carried = scan_counts(params)

    def step(carry, inputs):
      own, added = inputs
      results, data = run([*operands[:fixed], *carry, *own], added)
      return results[:carried], (results[carried:], data)

    carry, (outputs, data) = lax.scan(
      step,
      list(operands[fixed : fixed + carried]),
      (list(operands[fixed + carried :]), added),
      length=params["length"],
      reverse=params["reverse"],
      unroll=params["unroll"],
    )
    return [*carry, *outputs], data
  if name in ("checkpoint", "remat2"):
    run = jax.checkpoint(run, prevent_cse=params["prevent_cse"], policy=params["policy"])
  return run(list(operands), added)


def _factors(plan: Plan, data: PyTree, derivatives: PyTree) -> dict[int, list[Factors]]:
  """The factors of all uses, by the parameter's number."""
  found: dict[int, list[Factors]] = {}
  for number, part in plan.items():
    inputs = data[number], derivatives[number]
    if isinstance(part, Use):
      own = _factors_of_use(part, *inputs)
    elif part.length is None:
      own = _factors(part.plan, *inputs)
    else:
      steps = jax.vmap(partial(_factors, part.plan))(*inputs)
      own = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)
    for leaf, parts in own.items():
      found.setdefault(leaf, []).extend(parts)
  return found


def _factors_of_use(use: Use, data: jax.Array, derivative: jax.Array) -> dict[int, list[Factors]]:
  """The factors of one use. Each parameter in the weights has its own rows and columns of them."""
  left, right = use.factors(data, derivative.astype(jnp.float32))

  def of_block(block):
    if use.looks_up:
      return Factors(left, right)
    own = Factors(left[:, block.rows].astype(jnp.float32), right[:, block.columns])
    return Factors(own.right, own.left) if block.turned else own

  return {leaf: [of_block(block)] for leaf, block in use.blocks.items()}


def _product(parts: Sequence[Factors], shape: tuple[int, ...]) -> Product:
  """The gradient by one parameter, from the factors of all its uses."""

  def joined(lookups):
    own = [part for part in parts if (part.left.ndim == 1) is lookups]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *own) if own else (None, None)

  left, right = joined(False)
  return Product(left, right, shape, *joined(True))


def _norm(gradient: PyTree) -> jax.Array:
  """An upper bound of the norm of a gradient, with room for the rounding of later steps."""
  parts = jax.tree.leaves(gradient, is_leaf=lambda x: isinstance(x, Product))
  squares = [_square_of_product(x) if isinstance(x, Product) else _square(x) for x in parts]
  with float64(True):
    norm = lax.convert_element_type(lax.sqrt(functools.reduce(lax.add, squares)), np.float32)
  return (1 + _MARGIN) * norm


def _square_of_product(product: Product) -> jax.Array:
  """An upper bound of the squared norm of one client's matrix, tight but for rounding, in float64.

  It is NaN if an input is too large. Let T be the sum of the norms of all rows' a_r b_r^T. The
  square is wrong by at most (n + m^2 + 8) u T^2, for n numbers and m rows, in any order (Statement
  8.3). A chunk's sum is wrong by a share of T too. So T counts as no more than `_MOST_CANCELLED`
  norms.
  """
  left, right, numbers, rows = product.left, product.right, product.numbers, product.rows
  usable, squares, lengths = jnp.bool_(True), [], []
  if left is not None and right is not None:
    # With a larger number, a product would lose the digits of the other factor that float32 cannot
    # hold.
    usable = jnp.max(jnp.abs(left)) < _LARGEST_INPUT
    squares.append(_dot64(_gram(left), _gram(right), (0, 1)))
    lengths.append(_dot64(_lengths(left), _lengths(right), (0,)))
  if numbers is not None and rows is not None:
    same = jnp.where(numbers[:, None] == numbers[None], jnp.float32(1), jnp.float32(0))
    squares.append(_dot64(same, _gram(rows), (0, 1)))
    lengths.append(_dot64(jnp.ones(len(rows)), _lengths(rows), (0,)))
    if left is not None and right is not None:
      crossed = _dot64(left[:, numbers], _dot64(right, rows, (1,)), (0, 1))
      squares += [crossed, crossed]
  width = sum(x.shape[1] for x in (left, right, rows) if x is not None)
  count = sum(len(x) for x in (left, rows) if x is not None)
  with float64(True):  # no constants in here: JAX may narrow them
    size = lax.convert_element_type(functools.reduce(lax.add, lengths), np.float32)
  size = jnp.where(usable, (1 + _MARGIN) * size, jnp.nan)
  # The root of the most that rounding may take from the square.
  squares.append(_square(math.sqrt(_UNIT_ROUNDOFF * (width + count**2 + 8)) * size))
  with float64(True):
    return lax.max(functools.reduce(lax.add, squares), _square(size / _MOST_CANCELLED))


def _square(x: jax.Array) -> jax.Array:
  """The squared norm of an array, in float64."""
  return _dot64(x, x, tuple(range(x.ndim)))


def _dot64(x: jax.Array, y: jax.Array, axes: tuple[int, ...]) -> jax.Array:
  """The product of two arrays summed over the same axes of both, in float64."""
  with float64(True):
    return _product64(as_float64(x), as_float64(y), ((axes, axes), ((), ())))


def _gram(rows: jax.Array) -> jax.Array:
  """The products of all pairs of rows, in float64."""
  return _dot64(rows, rows, (1,))


def _lengths(rows: jax.Array) -> jax.Array:
  """The lengths of rows, in float64."""
  with float64(True):
    exact = as_float64(rows)
    return lax.sqrt(_product64(exact, exact, (((1,), (1,)), ((0,), (0,)))))
