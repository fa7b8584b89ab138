"""Casts that keep the meaning of data, or refuse the data.

No message quotes a value: values are private.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_LARGEST_EXACT = 2**53  # float64 holds every whole number up to this one


def whole_numbers(
  name: str, values: ArrayLike, *, below: int | None = None, dtype: Any = np.int32
) -> np.ndarray:
  """Numbers >= 0 as integers of `dtype`; floats must be whole.

  Args:
    name: what the numbers are, for the message.
    values: booleans, integers or floats, of any shape.
    below: an upper bound, exclusive. None: all that `dtype` holds.
    dtype: the type of the result.

  Raises:
    ValueError: if a value is not a real number, is negative or too large, or is not whole.

  >>> whole_numbers("labels", np.array([0.0, 2.0]), below=3)
  array([0, 2], dtype=int32)
  """
  found = _real_numbers(name, values)
  bound = int(np.iinfo(dtype).max) + 1
  bound = bound if below is None else min(bound, below)
  expected = f"Expected {name} to be whole numbers from 0 to {bound - 1}"
  if found.dtype.kind == "f":
    found, bound = found.astype(np.float64), min(bound, _LARGEST_EXACT)
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
    ValueError: if a value is not a real number, is NaN, or is too large.

  >>> float32("inputs", np.array([[0.1], [2.0]])).dtype
  dtype('float32')
  """
  found = _real_numbers(name, values)
  with np.errstate(over="ignore"):  # an overflow is refused below
    cast = found.astype(np.float32, copy=False)
  if not np.all(np.isfinite(cast)):
    raise ValueError(
      f"Expected {name} that are finite in float32, got others; scale them, or leave them out."
    )
  if (
    # Below 2^24 float32 holds every integer, so the slow comparison is not needed.
    found.dtype.kind in "iu" and np.any(np.abs(cast) >= 2**24) and not _equal_integers(cast, found)
  ):
    raise ValueError(
      f"Expected {name} that float32 holds exactly, got larger integers; scale them."
    )
  return cast


def exact_numbers(name: str, values: ArrayLike) -> np.ndarray:
  """Numbers in JAX's types: booleans stay, integers become int32, floats become float32.

  Floats are rounded.

  Raises:
    ValueError: if a value is not a real number, is not finite, or is too large.

  >>> [exact_numbers("labels", values).dtype.name for values in ([True], [-1], [0.1])]
  ['bool', 'int32', 'float32']
  """
  found = _real_numbers(name, values)
  if found.dtype.kind == "b":
    return found
  if found.dtype.kind == "f":
    return float32(name, found)
  bounds = np.iinfo(np.int32)
  if not np.all((found >= bounds.min) & (found <= bounds.max)):
    raise ValueError(f"Expected {name} that int32 holds, got larger integers; scale them.")
  return found.astype(np.int32)


def _equal_integers(cast: np.ndarray, found: np.ndarray) -> bool:
  """Whether floats equal these integers, even beyond 2^53.

  NumPy compares the arrays in float64, which rounds integers beyond 2^53. There Python's exact
  comparison is used.
  """
  large = np.abs(cast) > 2.0**53
  exactly = zip(cast[large].tolist(), found[large].tolist(), strict=True)
  return bool(np.all(cast == found)) and all(int(x) == y for x, y in exactly)


def _real_numbers(name: str, values: ArrayLike) -> np.ndarray:
  """The values as an array, refused unless they are real numbers."""
  found = np.asarray(values)
  if found.dtype.kind not in "buif":
    raise ValueError(f"Expected {name} to be real numbers, got dtype {found.dtype}; convert them.")
  return found
