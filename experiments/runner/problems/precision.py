"""The precision of a client's forward and backward pass."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

_Model = TypeVar("_Model", bound=Any)
_COMPUTED = ("apply", "apply_training", "predict")


def in_precision(model: _Model, precision: str) -> _Model:
  """The model, computed in a precision.

  Its parameters stay float32, and so do the gradients by them and what it returns. What a client
  computes is rounded, and bounded afterwards, so no guarantee depends on it.

  Args:
    model: a `Model`, `LanguageModel` or `NormalisedModel`.
    precision: "float32" or "bfloat16".
  """
  if precision == "float32":
    return model
  functions = {name: getattr(model, name, None) for name in _COMPUTED}
  lowered = {name: _lowered(function) for name, function in functions.items() if function}
  return model._replace(**lowered)


def _lowered(function: Callable[..., Any]) -> Callable[..., Any]:
  """The function of floats in bfloat16, which returns them in float32."""

  def run(*arguments: Any) -> Any:
    return _cast(function(*_cast(arguments, jnp.bfloat16)), jnp.float32)

  return run


def _cast(tree: Any, dtype: Any) -> Any:
  def cast(x: Any) -> Any:
    return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

  return jax.tree.map(cast, tree)
