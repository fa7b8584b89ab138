"""Models from flax modules, linen or nnx."""

import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from jdp._arguments import checked
from jdp.models.base import Model, check_parameters, refuse_statistics, tried_on

PyTree = Any
# How a linen module is told that it trains: the argument's name, and its value in training.
_FLAGS = {"train": True, "training": True, "is_training": True, "deterministic": False}


@checked
def from_flax(
  module: nn.Module | nnx.Module | Callable[[nnx.Rngs], nnx.Module],
  input_shape: tuple[int, ...],
  *,
  dtype: jax.typing.DTypeLike = jnp.float32,
) -> Model:
  """The `Model` of a flax module: linen, or nnx.

  Dropout is active only in training. A linen module is told by an argument of its `__call__`, if it
  has one of these names: `train`, `training` or `is_training`, or `deterministic`. Nnx modules have
  `train()` and `eval()`.

  Args:
    module: maps inputs [n, *input_shape] to logits [n, num_classes]. It is a linen module, an nnx
      module, or a function (rngs) -> nnx module. A module instance is always initialised with the
      parameters that it has.
    input_shape: the shape of one example.
    dtype: the type of the inputs, such as int32 for words.

  Returns:
    The `Model`. Its parameters are a nested dict of float32 arrays. Everything else in an nnx
    module (frozen numbers of other types than `nnx.Param`) is constant.

  Raises:
    TypeError: if `module` is none of these.
    ValueError: if the module has statistics of batches, or parameters that are not float32, or if a
      linen module does not return a prediction for each example.

  >>> class Net(nn.Module):
  ...   @nn.compact
  ...   def __call__(self, x, train=False):
  ...     x = nn.relu(nn.Dense(16)(x.reshape(x.shape[0], -1)))
  ...     return nn.Dense(10)(nn.Dropout(0.5, deterministic=not train)(x))
  >>> model = from_flax(Net(), (28, 28, 1))
  >>> model.apply(model.init(jax.random.key(0)), jnp.zeros((2, 28, 28, 1))).shape
  (2, 10)
  """
  example = jax.ShapeDtypeStruct((1, *input_shape), dtype)
  if isinstance(module, nn.Module):
    return _from_linen(module, example)
  if isinstance(module, nnx.Module):
    return _from_nnx(lambda rngs: module)
  is_linen_class = inspect.isclass(module) and issubclass(module, nn.Module)
  if callable(module) and not is_linen_class:
    return _from_nnx(module)
  raise TypeError(
    f"Expected module to be a linen or nnx module, got {module!r:.80}; give an instance, "
    "or a function (rngs) -> nnx module."
  )


def _from_linen(module: nn.Module, example: jax.ShapeDtypeStruct) -> Model:
  """The `Model` of a linen module."""
  arguments = inspect.signature(type(module).__call__).parameters
  # An option that the constructor has set is not passed again.
  flag = next(
    (name for name in _FLAGS if name in arguments and getattr(module, name, None) is None), None
  )

  def call(training: bool) -> dict[str, Any]:
    return {} if flag is None else {flag: _FLAGS[flag] == training}

  def first(key):
    params_key, dropout_key = jax.random.split(key)
    keys = {"params": params_key, "dropout": dropout_key}
    inputs = jnp.zeros(example.shape, example.dtype)
    return module.init_with_output(keys, inputs, **call(False))

  with tried_on(example):
    outputs, made = jax.eval_shape(first, jax.random.key(0))
  _check_predictions(outputs, example)
  refuse_statistics(
    "/".join(str(part.key) for part in path[1:-1]) or path[0].key
    for path, _ in jax.tree.leaves_with_path({k: v for k, v in made.items() if k != "params"})
  )
  check_parameters(made.get("params", {}))

  def apply(params, inputs):
    return module.apply({"params": params}, inputs, **call(False))

  def apply_training(params, inputs, key):
    return module.apply({"params": params}, inputs, rngs={"dropout": key}, **call(True))

  return Model(lambda key: first(key)[1]["params"], apply, apply_training)


def _check_predictions(outputs: PyTree, example: jax.ShapeDtypeStruct) -> None:
  """Refuses a module that takes one input as several, as a convolution does without channels."""
  for found in jax.tree.leaves(outputs):
    if found.shape[:1] != (1,):
      raise ValueError(
        f"Expected predictions [1, ...] of inputs {list(example.shape)}, one example, got "
        f"{list(found.shape)}; an image needs an axis of channels (images[..., None]), and the "
        "module must keep the first axis."
      )


def _from_nnx(make: Callable[[nnx.Rngs], nnx.Module]) -> Model:
  """The `Model` of nnx modules made by a function."""

  def parts() -> Any:
    """The parts made with a fixed key, for everything that does not depend on the key."""
    return nnx.split(make(nnx.Rngs(0)), nnx.Param, ...)

  # Only the parameters' shapes: the parameters need not fit in memory here.
  shapes: Any = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))), nnx.Param, ...)
  graph, params, others = shapes
  if jax.tree.leaves(others):  # most networks have only parameters
    others = jax.jit(lambda: parts()[2])()
  refuse_statistics(
    "/".join(map(str, path[:-1]))
    for path, variable in nnx.to_flat_state(others)
    if isinstance(variable, nnx.BatchStat)
  )
  check_parameters(nnx.to_pure_dict(params))

  def init(key):
    params_key, other_key = jax.random.split(key)
    made = make(nnx.Rngs(other_key, params=params_key))
    return nnx.to_pure_dict(nnx.state(made, nnx.Param))

  def merged(values, constants):
    state = jax.tree.map(lambda x: x, params)  # a copy, as the values are set in place
    nnx.replace_by_pure_dict(state, values)
    return nnx.merge(graph, state, constants)

  def apply(values, inputs):
    module = merged(values, others)
    module.eval()
    return module(inputs)

  def apply_training(values, inputs, key):
    module = merged(values, _with_keys(others, key))
    module.train()
    return module(inputs)

  return Model(init, apply, apply_training)


def _with_keys(state: nnx.State, key: jax.Array) -> nnx.State:
  """The state with new random streams, each with a key of its own."""
  flat = nnx.to_flat_state(state)
  keys = iter(jax.random.split(key, max(1, len(flat))))

  def renewed(variable):
    if isinstance(variable, nnx.RngKey):
      return variable.replace(next(keys))
    if isinstance(variable, nnx.RngCount):
      return variable.replace(jnp.zeros_like(variable[...]))
    return variable

  return nnx.from_flat_state([(path, renewed(variable)) for path, variable in flat])
