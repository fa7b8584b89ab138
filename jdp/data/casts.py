"""Casts that keep what data mean, or refuse it; no message quotes a value, which is somebody's."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_EXACT = 2**53  # float64 holds every whole number up to it


def whole_numbers(
  name: str, values: ArrayLike, *, below: int | None = None, dtype: Any = np.int32
) -> np.ndarray:
  """Numbers from 0 on, as integers of `dtype`; floats must be whole.

  Args:
    name: what they are, for the message.
    values: booleans, integers or floats, of any shape.
    below: a bound that all are below. None: what `dtype` holds.
    dtype: of the result.

  Raises:
    ValueError: if a number is negative, too large, not whole or NaN, or they are no numbers.

  >>> whole_numbers("labels", np.array([0.0, 2.0]), below=3)
  array([0, 2], dtype=int32)
  """
  found = _numbers(name, values)
  bound = int(np.iinfo(dtype).max) + 1
  bound = bound if below is None else min(bound, below)
  expected = f"Expected {name} to be whole numbers from 0 to {bound - 1}"
  if found.dtype.kind == "f":
    found, bound = found.astype(np.float64), min(bound, _EXACT)
    if not np.all(np.isfinite(found)):
      raise ValueError(f"{expected}, got NaN or infinity; leave those examples out.")
    if not np.all(found == np.floor(found)):
      raise ValueError(f"{expected}, got fractions; round them, or number the classes.")
  if not np.all((found >= 0) & (found < bound)):
    raise ValueError(f"{expected}, got some below or above; number them from 0 on.")
  return found.astype(dtype)


def float32(name: str, values: ArrayLike) -> np.ndarray:
  """Numbers as float32: floats are rounded, integers must be exact.

  Raises:
    ValueError: if a number is NaN, or too large, or they are no numbers.

  >>> float32("inputs", np.array([[0.1], [2.0]])).dtype
  dtype('float32')
  """
  found = _numbers(name, values)
  with np.errstate(over="ignore"):  # What it would warn of is refused.
    cast = found.astype(np.float32, copy=False)
  if not np.all(np.isfinite(cast)):
    raise ValueError(
      f"Expected {name} that are finite in float32, got others; scale them, or leave them out."
    )
  if (
    found.dtype.kind in "iu" and np.any(np.abs(cast) >= 2**24) and not _equal_integers(cast, found)
  ):
    raise ValueError(
      f"Expected {name} that float32 holds exactly, got larger integers; scale them."
    )
  return cast


def _equal_integers(cast: np.ndarray, found: np.ndarray) -> bool:
  """Whether floats are these integers. Arrays are compared in float64, which rounds integers beyond
  2^53.
  """
  large = np.abs(cast) > 2.0**53
  exactly = zip(cast[large].tolist(), found[large].tolist(), strict=True)
  return bool(np.all(cast == found)) and all(int(x) == y for x, y in exactly)


def _numbers(name: str, values: ArrayLike) -> np.ndarray:
  found = np.asarray(values)
  if found.dtype.kind not in "buif":
    raise ValueError(f"Expected {name} to be real numbers, got dtype {found.dtype}; convert them.")
  return found
