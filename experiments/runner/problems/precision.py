"""The precision of a client's forward and backward pass."""

from typing import Any, TypeVar

from jdp import models

_Model = TypeVar("_Model", bound=Any)


def in_precision(model: _Model, precision: str) -> _Model:
  """The model, computed in "float32" or "bfloat16"."""
  return model if precision == "float32" else models.half_precision(model)
