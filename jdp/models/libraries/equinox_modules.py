"""Models from equinox modules."""

import inspect
from collections.abc import Callable
from typing import Any

import jax

from jdp._arguments import checked
from jdp.models.base import Model, check_parameters, refuse_statistics, tried_on


@checked
def from_equinox(
  module: Any, input_shape: tuple[int, ...], *, dtype: jax.typing.DTypeLike = "float32"
) -> Model:
  """The `Model` of an equinox module.

  Dropout is active only in training (`eqx.nn.inference_mode`), if the module's `__call__` takes a
  `key`.

  Args:
    module: maps one example [*input_shape] to logits [num_classes]. It is an equinox module, or a
      function key -> module. A module instance is always initialised with the parameters that it
      has.
    input_shape: the shape of one example.
    dtype: the type of the inputs, such as int32 for words.

  Returns:
    The `Model`. Its parameters are the module's floating-point arrays: the module with None in
    place of everything else. The rest is constant.

  Raises:
    ImportError: if equinox is not installed.
    TypeError: if `module` is neither of these, or does not take such an example.
    ValueError: if the module has statistics of batches, or parameters that are not float32.

  >>> import equinox as eqx, jax.numpy as jnp
  >>> model = from_equinox(lambda key: eqx.nn.MLP(4, 3, width_size=8, depth=1, key=key), (4,))
  >>> model.apply(model.init(jax.random.key(0)), jnp.zeros((2, 4))).shape
  (2, 3)
  """
  import equinox as eqx  # an optional dependency

  make = _maker(eqx, module)
  made = eqx.filter_eval_shape(make, jax.random.key(0))
  refuse_statistics(
    type(layer).__name__
    for layer in jax.tree.leaves(made, is_leaf=lambda x: isinstance(x, eqx.nn.StatefulLayer))
    if isinstance(layer, eqx.nn.StatefulLayer)
  )
  takes_key = "key" in inspect.signature(made.__call__).parameters
  # The untrained part may hold arrays, so it is made once, with a fixed key.
  params, constants = eqx.partition(make(jax.random.key(0)), eqx.is_inexact_array)
  check_parameters(params)

  def apply(params, inputs):
    return jax.vmap(eqx.nn.inference_mode(eqx.combine(params, constants)))(inputs)

  def apply_training(params, inputs, key):
    network = eqx.combine(params, constants)
    if not takes_key:
      return jax.vmap(network)(inputs)
    keys = jax.random.split(key, inputs.shape[0])
    return jax.vmap(lambda x, key: network(x, key=key))(inputs, keys)

  example = jax.ShapeDtypeStruct((1, *input_shape), dtype)
  with tried_on(example):
    jax.eval_shape(apply, params, example)
  return Model(lambda key: eqx.filter(make(key), eqx.is_inexact_array), apply, apply_training)


def _maker(eqx: Any, module: Any) -> Callable[[jax.Array], Any]:
  """The function key -> module."""
  if isinstance(module, eqx.Module):
    return lambda key: module
  if callable(module):
    return module
  raise TypeError(
    f"Expected module to be an equinox module or a function key -> module, got "
    f"{type(module).__name__}."
  )
