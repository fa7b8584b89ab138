"""L-BFGS for smooth functions of many numbers, on one thread.

SciPy's L-BFGS waits for threads in its many small products, and takes ten times as long as the
functions here.
"""

import collections
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_Function = Callable[[np.ndarray], tuple[float, np.ndarray]]

_MEMORY = 10  # steps; twice as many need the same number of iterations, and each is slower
_SUFFICIENT = 1e-4  # share of the decrease that the gradient predicts
_STALLED = 5  # iterations that together decrease the function by too little


class _Step(NamedTuple):
  """A step, the change of the gradient along it, and their inner product."""

  moved: np.ndarray
  change: np.ndarray
  curvature: float


def minimize(
  function: _Function, start: np.ndarray, *, tolerance: float = 1e-9, most: int = 500
) -> np.ndarray:
  """A minimum of a function near `start`, by L-BFGS.

  Args:
    function: x -> (its value > 0, its gradient).
    start: float64 [n], not 0. The first step is a tenth of its length.
    tolerance: it stops when an iteration's relative decrease of the value is less than this.
    most: the largest number of iterations.
  """
  x, (value, gradient) = start, function(start)
  steps: collections.deque[_Step] = collections.deque(maxlen=_MEMORY)
  values = [value]
  for _ in range(most):
    direction = -_scaled(gradient, steps)
    slope = _dot(gradient, direction)
    if not slope < 0:
      break
    length = 1.0 if steps else 0.1 * (_dot(x, x) / _dot(direction, direction)) ** 0.5
    found = _descend(function, x, direction, value, slope, length)
    if found is None:
      break
    moved, value, following = found
    step, change = moved - x, following - gradient
    if (curvature := _dot(step, change)) > 0:
      steps.append(_Step(step, change, curvature))
    x, gradient = moved, following
    values.append(value)
    if len(values) > _STALLED and values[-1 - _STALLED] - value < _STALLED * tolerance * value:
      break
  return x


def _dot(first: np.ndarray, second: np.ndarray) -> float:
  """The inner product, without the threads of `@`."""
  return float(np.einsum("i,i", first, second))


def _scaled(gradient: np.ndarray, steps: collections.deque[_Step]) -> np.ndarray:
  """The gradient times an inverse Hessian, estimated from the last steps and their changes."""
  result, shares = gradient.copy(), []
  for step in reversed(steps):
    share = _dot(step.moved, result) / step.curvature
    result -= share * step.change
    shares.append(share)
  if steps:
    last = steps[-1]
    result *= last.curvature / _dot(last.change, last.change)
  for step, share in zip(steps, reversed(shares), strict=True):
    result += (share - _dot(step.change, result) / step.curvature) * step.moved
  return result


def _descend(
  function: _Function,
  x: np.ndarray,
  direction: np.ndarray,
  value: float,
  slope: float,
  length: float,
) -> tuple[np.ndarray, float, np.ndarray] | None:
  """The first of ever shorter steps that decreases the function enough. None if none does."""
  for _ in range(30):
    moved = x + length * direction
    reached, gradient = function(moved)
    if reached <= value + _SUFFICIENT * length * slope:
      return moved, reached, gradient
    # The minimum of the parabola through the known values, within limits.
    curve = 2 * (reached - value - length * slope)
    length *= min(max(-length * slope / curve, 0.1), 0.5) if np.isfinite(curve) else 0.1
  return None
