"""Clips clients by exact norms of gradients that are never computed one by one (ghost norms).

A dense layer has inputs a_r, and a client's loss has derivatives b_r by its outputs. A row r is an
example, a place in a sequence, or one of several uses of the layer. The client's gradient is sum_r
a_r b_r^T, whose squared norm is sum_rs <a_r, a_s> <b_r, b_s> (arXiv 2110.05679, Section 4). So two
small Gram matrices replace a matrix of weights.

The sum of all clients' clipped gradients is one product of matrices, with each client's rows scaled
by its clipping factor (arXiv 2210.00038). All uses of shared weights are rows of one layer, so the
norm is that of the *summed* gradient. Tied embeddings are covered likewise.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.extend.core import Literal

from jdp.federated.engine.client import ClientFn, Factored
from jdp.models.base import Loss, keyed
from jdp.models.logistic import ClassesFirst
from jdp.numerics.compensated import Product

PyTree = Any
Path = tuple[str, ...]

_UNIT_ROUNDOFF = 2.0**-24
# Twice the relative error of long float32 sums of positive numbers, as XLA orders them.
_REDUCTION = 4e-6
# The default precision of accelerators would exceed the error bound of `_squared_norm`.
# Tells one trace of JAX from another. It moved between versions.
_jax: Any = jax
_trace_state = (
  _jax.extend.core if hasattr(_jax.extend.core, "get_opaque_trace_state") else _jax.core
).get_opaque_trace_state
_matmul = partial(jnp.matmul, precision="highest")
_METHODS: Mapping[type, tuple[str, ...]] = {
  nn.Dense: ("__call__",),
  nn.Embed: ("__call__", "attend"),
  ClassesFirst: ("__call__",),
}


class _Use(NamedTuple):
  """One call of a layer: its module's path, the method called, and what came out.

  The output is held by shape and type alone.
  """

  path: Path
  method: str
  output: jax.ShapeDtypeStruct


class _Factors(NamedTuple):
  """A gradient by one matrix of weights: left^T right. Their rows are [r, a] and [r, b]."""

  left: jax.Array
  right: jax.Array


def ghost_client(loss: Loss, learning_rate: float) -> ClientFn:
  """A client that takes one gradient step, clipped by its ghost norm.

  The loss may be any function of a client's examples that calls a flax network of `nn.Dense` and
  `nn.Embed` layers. Each layer may be called as often as you like, but not inside `jax.jit`,
  `nn.scan` or another lifted transformation.

  Formal guarantee: that of the query, for any clients. A client's factor is computed from an upper
  bound of its norm: the float32 value plus the most that rounding can take from it. So no update is
  longer than the clip norm in real numbers. Clipped updates are shorter than those of
  `jdp.numerics.vectors.clip`, by about 1e-4 of their length. The difference is larger where the
  client's gradients nearly cancel. A client adds zero if its gradient holds NaN or infinity, or is
  longer than 1e18. A chunk's sum is made in float64. A user moves the sum of a cohort as
  `jdp.federated.cohort_sum` says.

  Args:
    loss: (parameters, examples) -> mean loss.
    learning_rate: of the step.

  Returns:
    The `ClientFn` whose record is `Factored`: minus the learning rate times the gradient. Its
    scalar "update_norm" is the upper bound of the record's norm. It expects to be sent a tuple that
    begins with the parameters, a dict.

  Raises:
    ValueError: when tracing, if parameters are used outside of such layers. When the query meets a
      record, if it does not bound it by one factor for all of its vectors.
  """
  loss_of = keyed(loss)

  def client_fn(keys, sent, client):
    params = sent[0]
    # The loss is traced twice. The same numbers are dropped in both.
    factors = _gradient_factors(
      lambda params, client: loss_of(params, client, jax.random.clone(keys.data)), params, client
    )
    norm = learning_rate * jnp.sqrt(sum(map(_squared_norm, factors.values())))
    return Factored(norm, -learning_rate, _products(params, factors)), {"update_norm": norm}

  return client_fn


def most_rows(loss: Loss, params: PyTree, client: PyTree) -> int | None:
  """The most rows that a layer has in a client's gradient. None where ghost norms do not apply.

  Args:
    loss: (parameters, examples) -> mean loss.
    params: the parameters, or their shapes.
    client: one client's examples, or their shapes.
  """
  loss_of = keyed(loss)
  try:
    uses = _survey(
      lambda params, client: loss_of(params, client, jax.random.key(0)), params, client
    )
  except ValueError:
    return None
  return max((math.prod(use.output.shape[:-1]) for use in uses), default=None)


def _products(params: PyTree, factors: dict[Path, _Factors]) -> PyTree:
  """The gradient, with each matrix as a `Product`, and zeros for parameters that the loss does not
  use.
  """
  leaves: dict[Path, Any] = dict(traverse_util.flatten_dict(jax.tree.map(jnp.zeros_like, params)))
  products = {
    path: Product(left, right, leaves[path].shape) for path, (left, right) in factors.items()
  }
  return traverse_util.unflatten_dict(leaves | products)


def _gradient_factors(loss: Loss, params: PyTree, client: PyTree) -> dict[Path, _Factors]:
  """The factors of a client's gradient, by the parameters' paths."""
  uses = _survey(loss, params, client)

  # Zeros are added to every layer's output: the loss's derivatives by them are the b_r.
  def value(added):
    inputs: list[jax.Array] = []

    def add(use, layer_input, output):
      inputs.append(layer_input)
      return output + added[len(inputs) - 1]

    return _watched(loss, params, client, add), inputs

  zeros = [jnp.zeros(use.output.shape, use.output.dtype) for use in uses]
  derivatives, inputs = jax.grad(value, has_aux=True)(zeros)
  flat_params = traverse_util.flatten_dict(params)
  rows: dict[Path, list[_Factors]] = {}
  for use, x, derivative in zip(uses, inputs, derivatives, strict=True):
    for name, part in _factors_of_use(use.method, x, derivative, flat_params, use.path).items():
      rows.setdefault((*use.path, name), []).append(part)
  return {path: jax.tree.map(lambda *x: jnp.concatenate(x), *parts) for path, parts in rows.items()}


def _survey(loss: Loss, params: PyTree, client: PyTree) -> list[_Use]:
  """Lists the loss's calls of layers, in order.

  Raises:
    ValueError: if the loss uses parameters in any other way, or calls layers inside a
      transformation of JAX.
  """
  params, client = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), (params, client)
  )
  _refuse_inner_calls(loss, params, client)
  uses: list[_Use] = []

  def without_layers(params, client):
    # The output still depends on the layer's input, but on no parameter of the layer. So whatever
    # parameter the loss depends on here is used outside of layers.
    def cut(use, layer_input, output):
      uses.append(use)
      return jnp.full_like(output, jnp.sum(layer_input).astype(output.dtype))

    return _watched(loss, params, client, cut)

  jaxpr = jax.make_jaxpr(without_layers)(params, client).jaxpr
  # Backwards from the loss: the variables it depends on.
  needed = set(jaxpr.outvars)
  for equation in reversed(jaxpr.eqns):
    if needed.intersection(equation.outvars):
      needed.update(v for v in equation.invars if not isinstance(v, Literal))
  paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
  outside = [
    path for path, variable in zip(paths, jaxpr.invars, strict=False) if variable in needed
  ]
  if outside:
    raise ValueError(
      f"Expected parameters of nn.Dense and nn.Embed layers alone, got {', '.join(outside)} used "
      "outside of them; set ghost_norms=False."
    )
  return uses


def _refuse_inner_calls(loss: Loss, params: PyTree, client: PyTree) -> None:
  """Refuses a loss that calls layers inside `jax.jit` or another transformation.

  Nothing is changed in this trace, so a jitted part may keep it. If a changed one were kept, every
  later call of that part would use it.
  """

  def watch(params, client):
    outside = _trace_state()

    def keep(use, layer_input, output):
      if _trace_state() != outside:
        raise ValueError(
          "Expected layers outside of jax.jit, jax.vmap and nn.scan, got one inside; call the "
          "model without them, or set ghost_norms=False."
        )
      return output

    return _watched(loss, params, client, keep)

  jax.eval_shape(watch, params, client)


def _watched(
  loss: Loss,
  params: PyTree,
  client: PyTree,
  change: Callable[[_Use, jax.Array, jax.Array], jax.Array],
) -> jax.Array:
  """The loss, with `change(use, input, output)` in place of every layer's output."""

  def intercept(call, args, kwargs, context):
    output = call(*args, **kwargs)
    if context.method_name not in _METHODS.get(type(context.module), ()):
      return output
    shape = jax.ShapeDtypeStruct(output.shape, output.dtype)
    return change(_Use(context.module.path, context.method_name, shape), args[0], output)

  with nn.intercept_methods(intercept):
    return loss(params, client)


def _factors_of_use(
  method: str,
  x: jax.Array,
  derivative: jax.Array,
  flat_params: Mapping[Path, jax.Array],
  path: Path,
) -> dict[str, _Factors]:
  """The factors of one use, by the name of the layer's parameter.

  The table of an embedding is [words, features], and logistic regression's weights are [classes,
  features].
  """
  derivative = _as_rows(derivative)
  ones = jnp.ones((len(derivative), 1))
  if (*path, "embedding") in flat_params:
    if method == "attend":
      return {"embedding": _Factors(derivative, _as_rows(x))}
    words = jax.nn.one_hot(x.reshape(-1), flat_params[(*path, "embedding")].shape[0])
    return {"embedding": _Factors(words, derivative)}
  if (*path, "w") in flat_params:
    return {"w": _Factors(derivative, _as_rows(x)), "b": _Factors(ones, derivative)}
  parts = {"kernel": _Factors(_as_rows(x), derivative)}
  if (*path, "bias") in flat_params:
    parts["bias"] = _Factors(ones, derivative)
  return parts


def _as_rows(x: jax.Array) -> jax.Array:
  """[..., d] as float32 [rows, d]."""
  return x.reshape(-1, x.shape[-1]).astype(jnp.float32)


def _squared_norm(factors: _Factors) -> jax.Array:
  """An upper bound of the squared norm of one client's left^T right, tight but for rounding.

  Let T = sum_r |a_r| |b_r|. Products of length n are rounded by at most n u T^2 together, in any
  order of summation.
  """
  left, right = factors
  (rows, a), b = left.shape, right.shape[1]
  # The Gram matrices of few rows, or the gradient itself of many: whichever takes fewer products.
  if rows * (a + b) < a * b:
    square, length = jnp.sum(_matmul(left, left.T) * _matmul(right, right.T)), a + b
  else:
    square, length = jnp.sum(_matmul(left.T, right) ** 2), 2 * rows
  size = jnp.sum(jnp.sqrt(jnp.sum(left**2, axis=1) * jnp.sum(right**2, axis=1)))
  return square + (_UNIT_ROUNDOFF * length + _REDUCTION) * size**2
