"""The exact delta of one Gaussian release: the inverse of `jdp.accounting.gaussian_epsilon`."""

import math

from jdp.accounting import analytic_gaussian


def gaussian_delta(noise_multiplier, epsilon):
  """The least delta at a given epsilon, for multipliers from 1e-4 to 1e4."""
  return math.exp(analytic_gaussian._log_delta(noise_multiplier, epsilon))
