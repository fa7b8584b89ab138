"""Clips clients by exact norms of gradients that are never computed one by one (ghost norms).

A matrix of weights is multiplied by rows a_r, and a client's loss has derivatives b_r by the
products. A row r is an example, a place in a sequence, a step of a scan, or one of several uses of
the weights. The client's gradient is sum_r a_r b_r^T, whose squared norm is sum_rs <a_r, a_s>
<b_r, b_s> (arXiv 2110.05679, Section 4). So two small Gram matrices replace a matrix of weights.

The sum of all clients' clipped gradients is one product of matrices, with each client's rows scaled
by its clipping factor (arXiv 2210.00038). All uses of a parameter are rows of one pair of factors,
so the norm is that of the *summed* gradient.

Which parameters have such rows follows from the loss's program
(`jdp.federated.engine.weight_uses`). Parameters whose gradient is smaller than its rows are
differentiated for each client: biases, the scales of LayerNorm, low-rank adapters, layers that are
applied at many places. So are parameters that are used in any other way.

The norm is made from the very numbers that enter the sum. So the guarantee does not rest on the
analysis of the program: a use that were missed would make a wrong gradient, within its bound.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr

from jdp._equations import applied, read
from jdp.federated.engine.client import ClientFn, Factored
from jdp.federated.engine.weight_uses import (
  INNER,
  Factors,
  Inner,
  Plan,
  Use,
  all_uses,
  uses_of_parameters,
)
from jdp.models.base import Loss, keyed
from jdp.numerics.compensated import Product

PyTree = Any

_UNIT_ROUNDOFF = 2.0**-24
# Twice the relative error of long float32 sums of positive numbers, as XLA orders them.
_REDUCTION = 4e-6
_LARGEST_INPUT = 2.0**60
# The default precision of accelerators would exceed the error bound of `_norm_of_factors`.
_matmul = partial(jnp.matmul, precision="highest")


class GradientForm(NamedTuple):
  """How a client's gradient by one parameter is held.

  Attributes:
    path: of the parameter.
    size: how many numbers the parameter has.
    rows: of its factors. None: the gradient itself is computed.
    reason: why it is. None for factors.
  """

  path: str
  size: int
  rows: int | None
  reason: str | None


def ghost_client(loss: Loss, learning_rate: float) -> ClientFn:
  """A client that takes one gradient step, clipped by its ghost norm.

  The loss may be any function of a client's examples that JAX can differentiate.

  Formal guarantee: that of the query, for any clients. A client's factor is computed from an upper
  bound of its norm: the float32 value plus the most that rounding can take from it. So no update is
  longer than the clip norm in real numbers. Clipped updates are shorter than those of
  `jdp.numerics.vectors.clip`, by about 1e-4 of their length. The difference is larger where the
  client's gradients nearly cancel. A client adds zero if its gradient holds NaN or infinity, or if
  an input of a layer is longer than 1e18. A chunk's sum is made in float64. A user moves the sum of
  a cohort as `jdp.federated.cohort_sum` says.

  Args:
    loss: (parameters, examples) -> mean loss.
    learning_rate: of the step.

  Returns:
    The `ClientFn` whose record is `Factored`: minus the learning rate times the gradient. Its
    scalar "update_norm" is the upper bound of the record's norm. It expects to be sent a tuple that
    begins with the parameters.

  Raises:
    ValueError: when the query meets a record, if it does not bound it by one factor for all of its
      vectors.
  """
  loss_of = keyed(loss)

  def client_fn(keys, sent, client):
    gradient = _gradient(loss_of, sent[0], client, keys.data)
    norm = learning_rate * _norm(gradient)
    return Factored(norm, -learning_rate, gradient), {"update_norm": norm}

  return client_fn


def gradient_forms(loss: Loss, params: PyTree, client: PyTree) -> list[GradientForm]:
  """How ghost norms hold a client's gradient, parameter by parameter.

  Args:
    loss: (parameters, examples) -> mean loss.
    params: the parameters, or their shapes.
    client: one client's examples, or their shapes.

  >>> from jdp import data, models
  >>> model = models.logistic_regression((784,), 10)
  >>> params = jax.eval_shape(model.init, jax.random.key(0))
  >>> client = data.examples(jnp.zeros((2, 784)), jnp.zeros(2, jnp.int32))
  >>> for form in gradient_forms(models.cross_entropy(model), params, client):
  ...   print(form.path, form.rows, form.reason)
  b None it is no matrix
  w 2 None
  """
  _, plan, reasons = _program(keyed(loss), params, client, jax.random.key(0))
  rows: dict[int, int] = {}
  for use, times in all_uses(plan):
    for leaf in use.blocks:
      rows[leaf] = rows.get(leaf, 0) + times * use.num_rows
  return [
    GradientForm(
      jax.tree_util.keystr(path, simple=True, separator="/"), leaf.size, rows.get(i), reasons.get(i)
    )
    for i, (path, leaf) in enumerate(jax.tree.leaves_with_path(params))
  ]


def _program(
  loss: Loss, params: PyTree, client: PyTree, key: jax.Array
) -> tuple[ClosedJaxpr, Plan, dict[int, str]]:
  """The loss's program for one client, and what `uses_of_parameters` says of it."""
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), (params, client, key)
  )
  program = jax.make_jaxpr(loss)(*shapes)
  leaves = [leaf.shape for leaf in jax.tree.leaves(params)]
  return program, *uses_of_parameters(program.jaxpr, leaves)


def _gradient(loss: Loss, params: PyTree, client: PyTree, key: jax.Array) -> PyTree:
  """A client's gradient: a pytree like the parameters, with a `Product` for each with factors."""
  leaves, structure = jax.tree.flatten(params)
  program, plan, reasons = _program(loss, params, client, key)
  others = jax.tree.leaves((client, key))

  # Zeros are added to the result of every use: the loss's derivatives by them are the b_r.
  def value(direct, added):
    own = [direct.get(i, leaf) for i, leaf in enumerate(leaves)]
    (result,), data = _run(program.jaxpr, program.consts, [*own, *others], plan, added)
    return result, data

  direct = {i: leaves[i] for i in reasons}
  (gradients, derivatives), data = jax.grad(value, (0, 1), has_aux=True)(direct, _zeros(plan))
  factors = _factors(plan, data, derivatives)
  products = {i: _product(parts, leaves[i].shape) for i, parts in factors.items()}
  return jax.tree.unflatten(structure, [(gradients | products)[i] for i in range(len(leaves))])


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
    Its results, and the data of all uses in the form of `_zeros`.
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
  program = params[INNER[name]]
  code, consts = getattr(program, "jaxpr", program), getattr(program, "consts", ())

  def run(arguments, added):
    return _run(code, consts, arguments, part.plan, added)

  if name == "scan":
    fixed, carried = params["num_consts"], params["num_carry"]

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
  """The factors of one use, of which each parameter in the weights has its rows and columns."""
  left, right = use.factors(data, derivative.astype(jnp.float32))

  def of_block(block):
    if use.looks_up:
      return Factors(left, right)
    own = Factors(left[:, block.rows].astype(jnp.float32), right[:, block.columns])
    return Factors(own.right, own.left) if block.turned else own

  return {leaf: [of_block(block)] for leaf, block in use.blocks.items()}


def _product(parts: Sequence[Factors], shape: tuple[int, ...]) -> Product:
  """The gradient by one parameter, from the factors of all its uses."""
  if len({part.left.ndim for part in parts}) > 1:  # An embedding that is an output layer too.
    parts = [
      Factors(jax.nn.one_hot(left, shape[0]) if left.ndim == 1 else left, right)
      for left, right in parts
    ]
  left, right = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
  return Product(left, right, shape)


def _norm(gradient: PyTree) -> jax.Array:
  """An upper bound of the norm of a gradient."""
  parts = jax.tree.leaves(gradient, is_leaf=lambda x: isinstance(x, Product))
  norms = [_norm_of_product(x) if isinstance(x, Product) else _norm_of_array(x) for x in parts]
  return _norm_of_array(jnp.stack(norms))


def _norm_of_array(x: jax.Array) -> jax.Array:
  """An upper bound of the norm of an array."""
  scaled, largest = _scaled(x.astype(jnp.float32))
  return largest * jnp.sqrt((1 + _REDUCTION) * jnp.sum(scaled**2))


def _scaled(x: jax.Array, axis: int | None = None) -> tuple[jax.Array, jax.Array]:
  """(x / its largest magnitude, that magnitude), along an axis that is kept. 0 is divided by 1.

  Squares would otherwise be lost below 1e-38. The products of factors could be large all the same.
  """
  largest = jnp.max(jnp.abs(x), axis=axis, keepdims=axis is not None)
  largest = jnp.where(largest > 0, largest, 1.0)
  return x / largest, largest


def _norm_of_product(product: Product) -> jax.Array:
  """An upper bound of the norm of one client's left^T right, tight but for rounding.

  Let T = sum_r |a_r| |b_r|. Products of length n are rounded by at most n u T^2 together, in any
  order of summation.
  """
  left, right = product.left, product.right
  if left.ndim == 1:  # Rows of the identity.
    gram, lengths, width = (left[:, None] == left[None]).astype(jnp.float32), 1.0, 0
  else:
    left, largest = _scaled(left, axis=1)
    # A product with a larger number would lose what float32 cannot hold of the other.
    right = right * jnp.where(largest < _LARGEST_INPUT, largest, jnp.nan)
    gram, lengths, width = _matmul(left, left.T), jnp.sum(left**2, axis=1), left.shape[1]
  right, largest = _scaled(right)
  square = jnp.sum(gram * _matmul(right, right.T))
  size = jnp.sum(jnp.sqrt(lengths * jnp.sum(right**2, axis=1)))
  # Scaling rounds six times.
  length = width + right.shape[1] + 6
  return largest * jnp.sqrt(square + (_UNIT_ROUNDOFF * length + _REDUCTION) * size**2)
