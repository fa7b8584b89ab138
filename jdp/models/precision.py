"""Models computed in half precision."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jdp._arguments import checked
from jdp.models.base import Model
from jdp.models.batch_norm import NormalisedModel
from jdp.models.language.recurrent import LanguageModel

_Model = TypeVar("_Model", bound=Any)
_MODELS = (Model, LanguageModel, NormalisedModel)
_COMPUTED = ("apply", "apply_training", "predict")


@checked
def half_precision(model: _Model) -> _Model:
  """The model computed in bfloat16, for clients.

  Parameters, gradients, clipping and sums stay float32, and whole numbers such as words are
  unchanged. It takes half the memory. It is several times as fast if the processor multiplies
  bfloat16 matrices, and slower otherwise. A client's computations are rounded to a relative 2^-8.
  The guarantee does not depend on that.

  Args:
    model: a `Model`, `LanguageModel` or `NormalisedModel`.

  Raises:
    TypeError: if it is none of these.

  >>> from jdp import models
  >>> model = models.logistic_regression((2,), 3)
  >>> half = models.half_precision(model)
  >>> half.apply(model.init(jax.random.key(0)), jnp.ones((1, 2))).dtype
  dtype('float32')
  """
  if not isinstance(model, _MODELS):
    names = ", ".join(kind.__name__ for kind in _MODELS)
    raise TypeError(f"Expected model to be one of {names}, got {type(model).__name__}.")
  functions = {name: getattr(model, name, None) for name in _COMPUTED}
  lowered = {name: _lowered(function) for name, function in functions.items() if function}
  replaced: Any = model._replace(**lowered)
  return replaced


def _lowered(function: Callable[..., Any]) -> Callable[..., Any]:
  """The function, computed with floats in bfloat16. It returns floats in float32."""

  def run(*arguments: Any) -> Any:
    return _cast(function(*_cast(arguments, jnp.bfloat16)), jnp.float32)

  return run


def _cast(tree: Any, dtype: Any) -> Any:
  def cast(x: Any) -> Any:
    return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

  return jax.tree.map(cast, tree)
