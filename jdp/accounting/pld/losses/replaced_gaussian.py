"""The pair of a Poisson-sampled Gaussian about a replaced record (Statement 2.11).

It is (1-q) N(0, z^2) + q N(1/2, z^2) against (1-q) N(0, z^2) + q N(-1/2, z^2), its own reverse.
With t in units of the noise, m = 1/(2z) and r = (1-q)/q e^(m^2/2), the loss is 2x where m t = x +
asinh(r sinh x).
"""

import math

import numpy as np

from jdp.accounting.pld.losses.pairs import FARTHEST, UNIT, Cells, Pair, normal_masses, normalised


def replaced_gaussian(q: float, z: float) -> Pair:
  """The pair, with the multiplier z of a replaced record that takes part for certain."""
  mean = 0.5 / z
  log_ratio = math.log1p(-q) - math.log(q) + mean * mean / 2

  def log_mixed(t):  # the log of the mixture over the density of an absent record
    return np.logaddexp(math.log1p(-q), math.log(q) + mean * (t - mean / 2))

  def quantile(edges):
    half = np.minimum(np.abs(edges) / 2, 1e4)
    with np.errstate(divide="ignore", over="ignore"):
      log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
      small = math.exp(min(log_ratio, 700.0)) * np.sinh(np.minimum(half, 300.0))
      far = log_ratio + log_sinh > 300
      moved = np.where(far, log_ratio + log_sinh + math.log(2), np.arcsinh(small))
    return np.sign(edges) * (half + moved) / mean

  def cells(edges):
    t = quantile(edges)
    none, here, there = (normal_masses(t - shift) for shift in (0.0, mean, -mean))
    # Points are off by about (1 + mean) UNIT, and losses there by (16 + mean^2) UNIT.
    masses, errors = [], []
    for of_record, error in (here, there):
      masses.append((1 - q) * none[0] + q * of_record)
      error = (1 + mean) * ((1 - q) * none[1] + q * error)
      errors.append(error + (16 + mean * mean) * UNIT * masses[-1])
    return Cells(*masses, *errors)

  t = np.arange(-14 - mean, FARTHEST + mean, max(min(0.2, 0.3 / mean), 0.02))
  return Pair(log_mixed(t) - log_mixed(-t), normalised(log_mixed(t) - t * t / 2), cells)
