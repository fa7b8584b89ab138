"""The model that `--model` names: one of jdp's, or one's own by import path."""

import hashlib
import importlib
import importlib.util
import os
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jdp import models
from jdp.guarantees import Unit
from jdp.models import Model

MODELS = {"logistic": models.logistic_regression, "cnn": models.small_cnn}
HELP = (
  "What is learnt: logistic, cnn, or package.module:factory of your own, which makes a "
  "jdp.models.Model of the inputs' shape and the number of classes."
)
PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def check_name(**names: str) -> None:
  """Refuses what is neither the name of a model nor an import path."""
  for option, name in names.items():
    if name not in MODELS and not PATH.fullmatch(name):
      raise ValueError(
        f"Expected {option} to be {', '.join(MODELS)} or package.module:factory, got {name!r:.60}."
      )


def make_model(name: str, input_shape: tuple[int, ...], num_classes: int, unit: Unit) -> Model:
  """The model of this name for this data, checked before anything is written.

  Raises:
    ValueError: if one's own cannot be imported or made, has logits of another shape, or is not fit
      for private training (`jdp.models.validate`). The message says why.
  """
  if name in MODELS:
    return MODELS[name](input_shape, num_classes)
  model = _made(name, input_shape, num_classes)
  try:
    findings = models.validate(model, input_shape, unit=unit)
    inputs = jax.ShapeDtypeStruct((2, *input_shape), jnp.float32)
    logits = jax.eval_shape(model.apply, jax.eval_shape(model.init, jax.random.key(0)), inputs)
  except Exception as error:  # whatever a user's own code raises
    raise _refused(
      name, f"one that does not take inputs of shape {input_shape} ({error})"
    ) from error
  if findings:
    raise _refused(name, " ".join(map(str, findings)))
  if logits.shape != (2, num_classes):
    raise _refused(name, f"outputs of shape {logits.shape[1:]} for {num_classes} classes")
  return model


def code_digest(name: str) -> str:
  """A digest of the file of one's own model: another model repeats a round with other bits.

  What that file imports is not part of it. It is "absent" if there is no such file.
  """
  _look_here()
  try:
    spec = importlib.util.find_spec(name.partition(":")[0])
  except (ImportError, ValueError):  # a package on the way to it is missing, or is not a package
    spec = None
  path = pathlib.Path((spec and spec.origin) or "")
  return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "absent"


def _look_here() -> None:
  """Lets modules be found in the folder that a binary is called in, as `python -m` does."""
  if os.getcwd() not in sys.path:
    sys.path.insert(0, os.getcwd())


def imported(name: str) -> Callable[..., Any]:
  """The factory that an import path names."""
  module, factory = name.split(":")
  _look_here()
  return getattr(importlib.import_module(module), factory)


def _made(name: str, input_shape: tuple[int, ...], num_classes: int) -> Model:
  """What the factory of this import path makes."""
  try:
    made = imported(name)(input_shape, num_classes)
  except Exception as error:  # whatever a user's own code raises
    raise _refused(name, f"{type(error).__name__}: {error}") from error
  if not isinstance(made, Model):
    raise _refused(name, f"{type(made).__name__}; return jdp.models.from_flax(...) or Model(...)")
  return made


def _refused(name: str, got: str) -> ValueError:
  return ValueError(f"Expected --model={name} to make a model for private training, got {got}")
