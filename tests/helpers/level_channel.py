"""The channel of a magnitude: rounded at random to a level next to it, then randomised response."""

import math

import numpy as np


def exact_law(epsilon, levels, value):
  """P(reported level | value), from the definition of the channel."""
  k = len(levels) - 1
  low = next(i for i in range(k) if value <= levels[i + 1])
  share = (value - levels[low]) / (levels[low + 1] - levels[low])
  rounded = np.zeros(k + 1)
  rounded[low], rounded[low + 1] = 1 - share, share
  return (rounded * (math.exp(epsilon) - 1) + 1) / (math.exp(epsilon) + k)
