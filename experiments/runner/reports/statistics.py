"""Means over repetitions, with intervals."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy


class Interval(NamedTuple):
  """A mean and its confidence interval.

  Attributes:
    mean: the sample mean.
    half_width: the interval is mean +- half_width. None for a single repetition.
  """

  mean: float
  half_width: float | None


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval:
  """The mean of independent repetitions, with Student's t interval (exact for normal values).

  >>> mean, half_width = mean_interval([1.0, 2.0, 3.0])
  >>> mean, round(half_width, 3)
  (2.0, 2.484)
  >>> mean_interval([1.0])
  Interval(mean=1.0, half_width=None)
  """
  count = len(values)
  mean = float(np.mean(values))
  if not math.isfinite(mean):
    raise ValueError(f"Expected finite values, got {list(values)}.")
  if count < 2:
    return Interval(mean, None)
  error = float(np.std(values, ddof=1)) / math.sqrt(count)
  return Interval(mean, float(scipy.special.stdtrit(count - 1, (1 + confidence) / 2)) * error)
