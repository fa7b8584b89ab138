"""The composition of measures on a lattice, by real FFTs, with a bound on their rounding errors.

Each measure is tilted and scaled to mass 1, transformed, raised to its count, multiplied, and
transformed back. Indices wrap around; the mass outside the window is bounded by Chernoff's
inequality with the measures' own moments.

Rounding: a transform of n numbers has an error of at most 4 UNIT log2(n) times its 2-norm (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd edition, Theorem 24.2, has 3.4 for radix 2). So
each value X of a spectrum is off by at most e = 4 UNIT log2(n) sqrt(n) ||x||, a product of spectra
is off by at most prod (|X| + e)^T - prod |X|^T, and a sum w . y of the result is off by at most
||w|| times the 2-norm of its error (Cauchy and Schwarz; Parseval).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from jdp.accounting.pld.discretise import Masses
from jdp.accounting.pld.losses.pairs import UNIT
from jdp.accounting.pld.plan import Window

_NEGLIGIBLE = 60.0  # products below e^-60 are dropped, and counted as an error


class LatticeComposition(NamedTuple):
  """A composition's losses in a window, tilted.

  Attributes:
    losses: float64 [N], equally spaced.
    tilted: the tilted measure, scaled to mass 1, float64 [N], including what wraps around.
    error: bound on the 2-norm of its rounding error.
    largest_error: bound on the rounding error of each value.
    log_scale: log of the tilted measure's mass.
    rounding: bound on the rounding errors of `log_scale` and of the losses.
    outside: bounds on the tilted mass below and above the window; beyond a distance x from it there
      is at most e^(-step x) of that, with the steps of `window`.
    infinite: bound on the mass of an infinite loss.
    window: the window that it was computed for.
  """

  losses: np.ndarray
  tilted: np.ndarray
  error: float
  largest_error: float
  log_scale: float
  rounding: float
  outside: tuple[float, float]
  infinite: float
  window: Window


class _Spectrum(NamedTuple):
  """A product of spectra at the frequencies where it is not negligible.

  Attributes:
    kept: these frequencies.
    values: the product.
    log_bound: log of a bound on its magnitude, rounding errors included.
    relative: bound on its rounding error, divided by the bound on its magnitude.
  """

  kept: np.ndarray
  values: np.ndarray
  log_bound: np.ndarray
  relative: np.ndarray


def compose(parts: Sequence[tuple[Masses, int]], window: Window) -> LatticeComposition:
  """The composition of measures on lattices of one spacing, each as often as its count."""
  spacing = parts[0][0].lattice.spacing
  size = scipy.fft.next_fast_len(
    max(math.ceil((window.high - window.low) / spacing) + 2, 16), real=True
  )
  number = size // 2 + 1
  spectrum = _Spectrum(np.arange(number), np.ones(number), np.zeros(number), np.zeros(number))
  base, offset, logs, rounding, infinite, heavier = 0, 0.0, np.zeros(3), 0.0, 0.0, 0.0
  for (lattice, p, unbounded), count in parts:
    scaled, log_masses = _tilted(p, lattice.points(), window)
    largest = int(np.argmax(scaled))
    reach = abs(window.tilt) * max(map(abs, lattice.ends()))
    spectrum = _times(spectrum, scaled, largest, count, size, 8 * UNIT * (1 + reach))
    base, offset = base + count * (lattice.first + largest), offset + count * lattice.offset
    logs, infinite = logs + count * log_masses, infinite + count * unbounded
    heavier += count * math.log(max(float(p.sum()) + unbounded, 1.0))
    rounding += count * 8 * UNIT * (1 + reach + abs(lattice.offset))
  begin = math.floor((window.low - offset) / spacing)
  losses = offset + spacing * (begin + np.arange(size))
  tilted, error, largest_error = _inverse(spectrum, size)
  tilted = np.roll(tilted, -((begin - base) % size))
  below = _exp(logs[2] - logs[0] + window.steps[0] * losses[0])
  above = _exp(logs[1] - logs[0] - window.steps[1] * losses[-1])
  # An infinite loss of one measure has the masses of all others as a factor.
  infinite *= math.exp(min(heavier, 700.0))
  rounding += 8 * UNIT * (1 + max(abs(losses[0]), abs(losses[-1])))
  return LatticeComposition(
    losses,
    tilted,
    error,
    largest_error,
    float(logs[0]),
    float(rounding),
    (below, above),
    infinite,
    window,
  )


def _tilted(p, losses, window):
  """p e^(tilt L) scaled to mass 1, and log of its mass: at the tilt, a step more, a step less."""
  with np.errstate(divide="ignore"):
    log_p = np.log(p)
  below, above = window.steps
  first, logs = None, []
  for tilt in (window.tilt, window.tilt + above, window.tilt - below):
    exponent = log_p + tilt * losses
    top = float(exponent.max())
    weights = np.exp(exponent - top)
    total = float(weights.sum())
    logs.append(top + math.log(total))
    first = weights / total if first is None else first
  return first, np.array(logs)


def _times(spectrum, scaled, largest, count, size, rounding):
  """The spectrum times that of a measure to the power of its count; its index 0 is `largest`."""
  # The mass at index 0 has a constant transform. Only the rest is transformed: its smaller norm
  # gives smaller rounding errors.
  apart, scaled[largest] = float(scaled[largest]), 0.0
  transform = apart + scipy.fft.rfft(np.roll(_folded(scaled, size), -largest))[spectrum.kept]
  error = _transform_error(size) * math.sqrt(size) * _norm(scaled) + rounding
  magnitude = np.abs(transform) + error
  log_bound = spectrum.log_bound + count * np.log(magnitude)
  relative = spectrum.relative + count * (error / magnitude + 4 * UNIT)
  likely = log_bound > -_NEGLIGIBLE
  values = spectrum.values[likely] * _power(transform[likely], count)
  return _Spectrum(spectrum.kept[likely], values, log_bound[likely], relative[likely])


def _inverse(spectrum, size):
  """The measure of a spectrum, [size], and bounds on its error's 2-norm and on its largest error.

  A value is at most the mean of its spectrum's magnitudes.
  """
  whole = np.zeros(size // 2 + 1, complex)
  whole[spectrum.kept] = spectrum.values
  result = scipy.fft.irfft(whole, size)
  errors = np.exp(spectrum.log_bound) * np.minimum(spectrum.relative, 2.0)
  cut, transformed = 2 * math.exp(-_NEGLIGIBLE), _transform_error(size) * _norm(result)
  error = math.sqrt(2 / size) * _norm(errors) + cut + transformed
  return result, error, 2 / size * float(errors.sum()) + cut + transformed


def _folded(values, size):
  """Values added up at equal indices modulo `size`."""
  if len(values) <= size:
    return np.pad(values, (0, size - len(values)))
  return np.pad(values, (0, -len(values) % size)).reshape(-1, size).sum(axis=0)


def _power(base, exponent):
  """base^exponent by squaring: its rounding error is at most 3 UNIT exponent, relatively."""
  result = None
  while True:
    if exponent & 1:
      result = base if result is None else result * base
    exponent >>= 1
    if not exponent:
      return result
    base = base * base


def _exp(value):
  return 1.001 * math.exp(value) if value < 700 else math.inf  # with its rounding errors


def _norm(values):
  """The 2-norm, without the threads that BLAS would start."""
  return math.sqrt(float(np.sum(np.square(values))))


def _transform_error(size):
  return 4 * UNIT * math.log2(size)
