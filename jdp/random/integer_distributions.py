"""Tables for exact draws from distributions on the integers (Walker's alias method).

A distribution that is symmetric about zero is held as a table of its magnitudes. The table has 2^k
columns of equal probability. Column i returns i with probability thresholds[i] / 2^64, and another
magnitude otherwise. A draw takes k + 64 random bits for the magnitude and one for the sign. It
compares integers, and no floating-point number occurs. So the realised distribution is known
exactly (`realised`). Tables are made on the host, from weights in fixed point of 256 bits.

The total variation between the requested and the realised distribution is at most 2^-64 for
each draw:

* 2^-66 for the magnitudes that the table leaves out;
* 2^-65 for probabilities rounded to multiples of 2^-(k+64);
* below 2^-100 for the arithmetic of the weights.

By the union bound N draws are within N 2^-64 of exact draws. That adds at most (1 + e^epsilon) N
2^-64 to a delta. For N = 10^12 (a million clients of a million weights) at epsilon 1 it is 2e-7.
"""

import functools
import math
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import NamedTuple

import numpy as np

_BITS = 256  # of the fixed-point weights
_ONE = 1 << _BITS
_WORD = 1 << 64
_LOG_TAIL = 66 * math.log(2) + 1  # of 2^-66; the 1 covers the factor 2 of two signs
LARGEST_MAGNITUDE = 2**16 - 1
"""Tables hold magnitudes up to this one; their 768 KiB stay in a core's cache."""


class AliasTable(NamedTuple):
  """The alias table of a symmetric distribution.

  Attributes:
    rows: uint32 [2^k, 3]. Each column of the table has a row: the high and the low word of its
      threshold, and the other magnitude.
  """

  rows: np.ndarray


@functools.lru_cache(maxsize=64)
def discrete_gaussian(stddev: float) -> AliasTable:
  """The table of P(x) proportional to e^(-x^2 / (2 stddev^2)) (arXiv 2004.00010, Definition 1)."""
  rate = (1 / Fraction(stddev)) ** 2
  last = _last_magnitude("stddev", stddev, stddev * math.sqrt(2 * _LOG_TAIL))
  # w(x+1) / w(x) = e^(-(2x+1) rate / 2), itself a geometric sequence.
  ratio, step, weights = _exp_fixed_point(rate / 2), _exp_fixed_point(rate), [_ONE]
  for _ in range(last):
    weights.append(weights[-1] * ratio >> _BITS)
    ratio = ratio * step >> _BITS
  return _alias_table(weights)


@functools.lru_cache(maxsize=64)
def discrete_laplace(scale: float) -> AliasTable:
  """The table of P(x) proportional to e^(-|x| / scale) (arXiv 2004.00010, Section 5.2)."""
  ratio, weights = _exp_fixed_point(1 / Fraction(scale)), [_ONE]
  for _ in range(_last_magnitude("scale", scale, scale * _LOG_TAIL)):
    weights.append(weights[-1] * ratio >> _BITS)
  return _alias_table(weights)


@functools.lru_cache(maxsize=64)
def skellam(variance: float) -> AliasTable:
  """The table of the difference of two Poisson variables of mean v / 2, with v the variance.

  P(x) = e^-v I_|x|(v) (arXiv 2110.04995, Section 2). The Bessel functions' recurrence I_(x-1) =
  I_(x+1) + (2x / v) I_x runs downwards, where it is stable.
  """
  v = Fraction(variance)
  last = _last_magnitude("variance", variance, _skellam_tail(variance, _LOG_TAIL))
  above, at = 0, _ONE
  values = []
  for x in range(_skellam_tail(variance, _LOG_TAIL + _BITS * math.log(2)), 0, -1):
    above, at = at, above + 2 * x * v.denominator * at // v.numerator
    values.append(at)
  values.reverse()  # now of the magnitudes 0, 1, ...
  return _alias_table([value * _ONE // values[0] for value in values[: last + 1]])


def realised(table: AliasTable) -> list[Fraction]:
  """The exact probabilities with which a table's draws have magnitude 0, 1, ..."""
  size = len(table.rows)
  columns = [0] * size
  for column, (high, low, other) in enumerate(table.rows.tolist()):
    threshold = high << 32 | low
    columns[column] += threshold
    columns[other] += _WORD - threshold
  return [Fraction(mass, size * _WORD) for mass in columns]


def _alias_table(weights: list[int]) -> AliasTable:
  """The table of the symmetric distribution with these weights of the magnitudes 0, 1, ...

  A weight counts for each of the magnitude's two signs.
  """
  size = 1 << max(1, (len(weights) - 1).bit_length())
  masses = _apportioned([weights[0], *(2 * w for w in weights[1:])], size * _WORD) + [0] * (
    size - len(weights)
  )
  thresholds, others = masses, list(range(size))
  small = [i for i, mass in enumerate(masses) if mass < _WORD]
  large = [i for i, mass in enumerate(masses) if mass > _WORD]
  # Each column that lacks mass is filled up from one that has too much (Vose 1991).
  while small:
    i, j = small.pop(), large[-1]
    others[i] = j
    masses[j] -= _WORD - masses[i]
    if masses[j] <= _WORD:
      large.pop()
      if masses[j] < _WORD:
        small.append(j)
  # A full column's threshold of 2^64 does not fit in 64 bits. 2^64 - 1 is equivalent, as the
  # column's other value is itself.
  words = [
    (min(t, _WORD - 1) >> 32, min(t, _WORD - 1) % 2**32, other)
    for t, other in zip(thresholds, others, strict=True)
  ]
  return AliasTable(np.array(words, np.uint32))


def _apportioned(weights: Sequence[int], total: int) -> list[int]:
  """Whole numbers proportional to the weights that add up to `total`, each off by less than one."""
  whole = sum(weights)
  masses = [w * total // whole for w in weights]
  by_remainder = sorted(range(len(weights)), key=lambda i: weights[i] * total % whole, reverse=True)
  for i in by_remainder[: total - sum(masses)]:
    masses[i] += 1
  return masses


def _last_magnitude(name: str, value: float, tail: float) -> int:
  """The last magnitude of a table, beyond which the probability is at most 2^-66."""
  if not tail <= LARGEST_MAGNITUDE - 1:
    raise ValueError(
      f"Expected {name} so small that magnitudes above {LARGEST_MAGNITUDE} have probability 2^-66, "
      f"got {value}; take a coarser unit, or add several draws."
    )
  return max(1, math.ceil(tail))


def _skellam_tail(variance: float, log_tail: float) -> int:
  """An x with P(X >= x) <= e^-log_tail, by bisection of Chernoff's bound."""
  low, high = 0, 1
  while not _tail_is_negligible(variance, high, log_tail):
    low, high = high, 2 * high
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if _tail_is_negligible(variance, middle, log_tail) else (middle, high)
  return high


def _tail_is_negligible(v: float, x: float, log_tail: float) -> bool:
  """Whether Chernoff's bound on P(X >= x) is at most e^-log_tail.

  Its logarithm is v (cosh t - 1) - t x, at t = asinh(x / v).
  """
  t = math.asinh(x / v)
  return t * x - 2 * v * math.sinh(t / 2) ** 2 >= log_tail


def _exp_fixed_point(rate: Fraction) -> int:
  """e^-rate in fixed point."""
  context = Context(prec=90)
  exponent = context.divide(Decimal(-rate.numerator), Decimal(rate.denominator))
  return int(context.multiply(context.exp(exponent), Decimal(_ONE)))
