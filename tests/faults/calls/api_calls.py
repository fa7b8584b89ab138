"""Calls of jdp's public functions with hostile arguments, and what became of them."""

import contextlib
import dataclasses
import inspect
import io
import math
import re
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jdp import accounting
from jdp.events import LocalRelease, Round
from jdp.ledger import Ledger
from tests.faults.calls import outcomes
from tests.faults.calls.valid_calls import (
  public_functions,
  replaceable,
  takes_function,
  valid_arguments,
)

_SECOND_ARGUMENT = 0.2  # the share of calls in which two arguments are replaced

HOSTILE = {
  "a string": "x",
  "an empty string": "",
  "a number's string": "1.0",
  "None": None,
  "an object": object(),
  "NaN": math.nan,
  "infinity": math.inf,
  "minus infinity": -math.inf,
  "minus one": -1,
  "minus a half": -0.5,
  "zero": 0,
  "zero float": 0.0,
  "one and a half": 1.5,
  "1e308": 1e308,
  "1e-320": 1e-320,
  "10**30": 10**30,
  "2**31": 2**31,
  "10**400": 10**400,
  "int8": np.int8(100),
  "uint8": np.uint8(200),
  "int64": np.int64(3),
  "float16": np.float16(0.1),
  "bfloat16": ml_dtypes.bfloat16(1.1),
  "a bfloat16 of JAX": jnp.bfloat16(0.3),
  "float32 NaN": np.float32(math.nan),
  "float64": np.float64(0.7),
  "a complex number": 1 + 1j,
  "True": True,
  "a bool of NumPy": np.True_,
  "a list": [1.0],
  "an empty list": [],
  "a list of strings": ["x", None],
  "a dictionary": {"a": 1},
  "a function": lambda *args: 1.0,
  "a function of nothing": lambda: None,
  "a class": dict,
  "a vector": np.ones(3, np.float32),
  "an empty array": np.zeros((0, 3)),
  "an array of five axes": np.zeros((1, 2, 1, 2, 1)),
  "an array of NaN": np.full((4, 2), math.nan),
  "an array of objects": np.array(["x", None], object),
  "an array without axes": np.array(2.0),
  "bytes": b"\xff\xfe",
  "a set": {1, 2},
}


def fuzz(number, seed=0, *, packages=("jdp",), told=lambda outcome: None):
  """Makes so many hostile calls: see `outcomes.fuzz`."""
  names = sorted(name for name in public_functions() if name.startswith(packages))
  return outcomes.fuzz(hostile_call, names, number, seed, told)


def hostile_call(name, rng):
  """Calls a public function with one or two of its arguments replaced."""
  open_to_all = replaceable(name)
  if not open_to_all:
    return outcomes.Outcome("result")
  count = 1 + (rng.random() < _SECOND_ARGUMENT and len(open_to_all) > 1)
  return call_with(name, {p: rng.choice(sorted(HOSTILE)) for p in rng.sample(open_to_all, count)})


def call_with(name, replaced):
  """Calls a public function with these arguments replaced: parameter -> name of a hostile value."""
  arguments = dict(valid_arguments(name))
  names = arguments.keys() | inspect.signature(public_functions()[name]).parameters.keys()
  # What a user's own function raises is the user's, so none is given where one is taken.
  for parameter, value in replaced.items():
    if not (callable(HOSTILE[value]) and takes_function(name, parameter)):
      arguments[parameter] = HOSTILE[value]
  call = f"{name}({', '.join(f'{p}={value}' for p, value in replaced.items())})"
  return classified(call, names, lambda: public_functions()[name](**arguments))


def classified(call, names, function):
  """What becomes of function(), some of whose arguments, of these names, are hostile."""

  def unsound():
    with (
      warnings.catch_warnings(),
      contextlib.redirect_stdout(io.StringIO()),
      jax.debug_key_reuse(False),  # calls share their valid arguments, keys too
    ):
      warnings.simplefilter("ignore")
      return unsound_number(function())

  def explains(error):
    return isinstance(error, FileNotFoundError) or _names(str(error), names)  # it names the file

  refusals = FileNotFoundError, ValueError, TypeError
  return outcomes.classified(call, unsound, refusals, explains)


def _names(message, names):
  """Whether an error's message names one of these arguments, as a word or as words."""
  words = (f"{name.removesuffix('s')}s?".replace("_", "[_ ]") for name in names)
  return message.startswith("Expected") and bool(
    re.search(rf"\b(?:{'|'.join(words)})\b", message, re.IGNORECASE)
  )


def unsound_number(result):
  """A privacy number in a result that is NaN or negative, in words; None if there is none."""
  for name, value in privacy_numbers(result):
    if not value >= 0:
      return f"{name} = {value}"
  return None


def privacy_numbers(result):
  """The privacy numbers that a result states, by name."""
  if isinstance(result, bool) or result is None:
    return
  if isinstance(result, float):
    yield "the result", result
  elif hasattr(result, "ledger"):
    yield from privacy_numbers(result.ledger)
  elif isinstance(result, Round | LocalRelease):
    yield from _costs(result)
  elif hasattr(result, "guarantee"):
    yield from privacy_numbers(result.guarantee)
  elif dataclasses.is_dataclass(result) and hasattr(result, "epsilon"):
    yield "epsilon", result.epsilon
    yield "delta", getattr(result, "delta", 0.0)
  elif isinstance(result, tuple) and not hasattr(result, "_fields"):
    for part in result:
      yield from privacy_numbers(part)
  elif isinstance(result, Ledger):
    yield from _costs(*result.entries[0]) if result.entries else ()


def _costs(event, count=1):
  """The epsilon of a ledger with one event."""
  try:
    yield "epsilon", accounting.epsilon(Ledger().append(event, count=count), 1e-5)
  except ValueError:  # an event without an analysis under its relation is refused by name
    return
