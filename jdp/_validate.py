"""Checks of arguments on the host, named by keyword: `positive(epsilon=epsilon)`.

Every check states the accepting condition and negates it, so NaN never passes.
"""

import math
import operator
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jdp._arguments import shown

# Outside this range float32 would turn a bound or a noise level into zero or infinity.
FLOAT32_SAFE = (1e-30, 1e30)


def positive(**values: float) -> None:
  """Requires each value to be a finite number above zero."""
  _require("a finite number > 0", lambda v: 0 < v < math.inf, values)


def non_negative(**values: float) -> None:
  """Requires each value to be a finite number, at least zero."""
  _require("a finite number >= 0", lambda v: 0 <= v < math.inf, values)


def probability(**values: float) -> None:
  """Requires each value to lie in [0, 1]."""
  _require("a probability in [0, 1]", lambda v: 0 <= v <= 1, values)


def in_range(low: float, high: float, **values: float) -> None:
  """Requires each value to lie in [low, high]."""
  _require(f"a number in [{_short(low)}, {_short(high)}]", lambda v: low <= v <= high, values)


def float32_safe(**values: float) -> None:
  """Requires each value to lie in `FLOAT32_SAFE`."""
  in_range(*FLOAT32_SAFE, **values)


def integer(minimum: int, **values: int) -> None:
  """Requires each value to be a whole number, at least `minimum`."""
  _require(f"a whole number >= {minimum}", lambda v: operator.index(v) >= minimum, values)


def one_of(choices: Collection[Any], **values: Any) -> None:
  """Requires each value to be one of `choices`."""
  _require("one of " + ", ".join(map(str, choices)), lambda v: v in choices, values)


def broadcast(**arrays: ArrayLike) -> tuple[np.ndarray, ...]:
  """Requires arrays whose shapes fit together. Returns them in float64, all of one shape."""
  try:
    return np.broadcast_arrays(*(np.asarray(array, np.float64) for array in arrays.values()))
  except ValueError:
    shapes = " and ".join(str(np.shape(array)) for array in arrays.values())
    raise ValueError(
      f"Expected {' and '.join(arrays)} of shapes that fit together, got {shapes}."
    ) from None


def _short(number: float) -> str:
  """A number with six digits, or exactly if it is a whole number too large for floats."""
  try:
    return f"{number:g}"
  except OverflowError:
    return shown(number)


def _require(expected: str, accepts: Callable[[Any], bool], values: dict[str, Any]) -> None:
  """Raises a ValueError that says what was expected, for the first value that is not accepted."""
  for name, value in values.items():
    try:
      accepted = bool(accepts(value))
    except (TypeError, ValueError):  # the value has another type, or is an array
      accepted = False
    if not accepted:
      raise ValueError(f"Expected {name} to be {expected}, got {shown(value)}.")
