"""The precision of a client's forward and backward pass."""

from typing import TypeVar

from jdp import models

_Model = TypeVar("_Model")


def in_precision(model: _Model, precision: str) -> _Model:
  """The model, computed in "float32" or "bfloat16"."""
  return model if precision == "float32" else models.half_precision(model)
