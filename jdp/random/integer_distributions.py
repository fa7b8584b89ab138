"""Tables for exact draws from distributions on the integers (Walker's alias method).

A distribution that is symmetric about zero is held as a table of its magnitudes. The table has 2^k
columns of equal probability. Column i returns i with probability t_i / 2^64, and another magnitude
otherwise. A draw takes k + 64 random bits for the magnitude and one for the sign. It compares
integers, and no floating-point number occurs. So the realised distribution is known exactly
(`realised`). Tables are made on the host, from weights in fixed point of 512 bits.

Probabilities are not multiples of 2^-(k+64). What is left of each is a *rest*. All rests together
are one more entry of the table, with a probability below 2^-64: a draw that meets it takes 288
further bits, and looks into a table of the rests (`jdp.random.discrete`).

Draws end as those of floats do, at `LARGEST_NORMAL` standard deviations or `LARGEST_LAPLACE`
scales: magnitudes above that have a probability below 2^-215. Every other integer has its
probability to a relative 2^-100. Statement 5.7 of `docs/theory/float_noise.md` says what that adds
to a delta.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from jdp.random.draws import LARGEST_LAPLACE, LARGEST_NORMAL

_BITS = 512  # of the fixed-point weights
_ONE = 1 << _BITS
REST_WORDS = 9
"""Words that a draw from the rests takes."""
_REST = 1 << 32 * REST_WORDS
_WORD = 1 << 64
_LOG_TAIL = LARGEST_NORMAL**2 / 2  # minus the log of a Gaussian's tail, exp(-x^2 / (2 stddev^2))
LARGEST_MAGNITUDE = 2**18 - 1
"""Tables hold magnitudes up to this one; those up to 2^16 - 1 stay in a core's cache."""


class AliasTable(NamedTuple):
  """The alias table of a symmetric distribution.

  Attributes:
    rows: uint32 [2^k, 3]. Each column of the table has a row: the high and the low word of its
      threshold, and the other magnitude. The last magnitude plus 1 stands for the rests.
    rests: uint32 [last magnitude, REST_WORDS], the words of the rests' distribution function at 0,
      1, ..., in units of 2^-288. That of the last magnitude is 1, and is left out.
  """

  rows: np.ndarray
  rests: np.ndarray


@functools.lru_cache(maxsize=64)
def discrete_gaussian(stddev: float) -> AliasTable:
  """The table of P(x) proportional to e^(-x^2 / (2 stddev^2)) (arXiv 2004.00010, Definition 1)."""
  rate = (1 / Fraction(stddev)) ** 2
  last = _last_magnitude("stddev", stddev, stddev * LARGEST_NORMAL)
  # w(x+1) / w(x) = e^(-(2x+1) rate / 2), itself a geometric sequence.
  ratio, step, weights = _exp_fixed_point(rate / 2), _exp_fixed_point(rate), [_ONE]
  for _ in range(last):
    weights.append(weights[-1] * ratio >> _BITS)
    ratio = ratio * step >> _BITS
  return _alias_table(_of_both_signs(weights))


@functools.lru_cache(maxsize=64)
def discrete_laplace(scale: float) -> AliasTable:
  """The table of P(x) proportional to e^(-|x| / scale) (arXiv 2004.00010, Section 5.2)."""
  ratio, weights = _exp_fixed_point(1 / Fraction(scale)), [_ONE]
  for _ in range(_last_magnitude("scale", scale, scale * LARGEST_LAPLACE)):
    weights.append(weights[-1] * ratio >> _BITS)
  return _alias_table(_of_both_signs(weights))


@functools.lru_cache(maxsize=64)
def skellam(variance: float) -> AliasTable:
  """The table of the difference of two Poisson variables of mean v / 2, with v the variance.

  P(x) = e^-v I_|x|(v) (arXiv 2110.04995, Section 2). The Bessel functions' recurrence I_(x-1) =
  I_(x+1) + (2x / v) I_x runs downwards, where it is stable.
  """
  v = Fraction(variance)
  last = _last_magnitude("variance", variance, _skellam_tail(variance, _LOG_TAIL) - 1)
  above, at = 0, _ONE
  values = []
  for x in range(_skellam_tail(variance, _LOG_TAIL + _BITS * math.log(2)), 0, -1):
    above, at = at, above + 2 * x * v.denominator * at // v.numerator
    values.append(at)
  values.reverse()  # now of the magnitudes 0, 1, ...
  return _alias_table(_of_both_signs([value * _ONE // values[0] for value in values[: last + 1]]))


def realised(table: AliasTable) -> list[Fraction]:
  """The exact probabilities with which a table's draws have magnitude 0, 1, ..."""
  size, last = len(table.rows), len(table.rests)
  columns = [0] * size
  for column, (high, low, other) in enumerate(table.rows.tolist()):
    threshold = high << 32 | low
    columns[column] += threshold
    columns[other] += _WORD - threshold
  ends = [0, *(int.from_bytes(row.astype(">u4").tobytes()) for row in table.rests), _REST]
  return [
    Fraction(mass * _REST + columns[last + 1] * (end - start), size * _WORD * _REST)
    for mass, start, end in zip(columns[: last + 1], ends[:-1], ends[1:], strict=True)
  ]


@functools.cache
def about_fractions(denominator: int, variance: float, farthest: int) -> AliasTable:
  """Tables of P(x) proportional to e^(-(x - f/K)^2 / (2 variance)), for each f = 0, ..., K - 1.

  They hold x + `farthest` for |x| <= farthest in place of magnitudes: rows [K, 2^k, 3], and rests
  [K, last, REST_WORDS].
  """
  scale = 2 * Fraction(variance) * denominator**2
  tables = [
    _alias_table(
      [_exp_fixed_point((x * denominator - f) ** 2 / scale) for x in range(-farthest, farthest + 1)]
    )
    for f in range(denominator)
  ]
  return AliasTable(*map(np.stack, zip(*tables, strict=True)))


def _of_both_signs(weights: list[int]) -> list[int]:
  """The weights of magnitudes. Each except 0 counts for both signs."""
  return [weights[0], *(2 * weight for weight in weights[1:])]


def _alias_table(weights: list[int]) -> AliasTable:
  """The table of the distribution with these weights of 0, 1, ..."""
  size = 1 << len(weights).bit_length()
  exact = _apportioned(weights, size * _WORD * _REST)
  whole, rests = zip(*(divmod(mass, _REST) for mass in exact), strict=True)
  masses = [*whole, sum(rests) // _REST]
  masses += [0] * (size - len(masses))
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
  words = np.array([min(t, _WORD - 1) for t in thresholds], np.uint64)
  columns = words >> 32, words % 2**32, np.array(others)
  rows = np.stack([column.astype(np.uint32) for column in columns], axis=1)
  ends = itertools.accumulate(_apportioned(rests if any(rests) else [1] * len(rests), _REST))
  far = b"".join(min(end, _REST - 1).to_bytes(4 * REST_WORDS) for end in ends)
  table = np.frombuffer(far, ">u4").reshape(-1, REST_WORDS).astype(np.uint32)
  return AliasTable(rows, table[:-1])


def _apportioned(weights: Sequence[int], total: int) -> list[int]:
  """Whole numbers proportional to the weights that add up to `total`, each off by less than one."""
  whole = sum(weights)
  shares = [divmod(w * total, whole) for w in weights]
  masses = [mass for mass, _ in shares]
  by_remainder = sorted(range(len(weights)), key=lambda i: shares[i][1], reverse=True)
  for i in by_remainder[: total - sum(masses)]:
    masses[i] += 1
  return masses


def _last_magnitude(name: str, value: float, tail: float) -> int:
  """The last magnitude of a table, beyond which the probability is below 2^-215."""
  if not tail <= LARGEST_MAGNITUDE:
    raise ValueError(
      f"Expected {name} so small that magnitudes above {LARGEST_MAGNITUDE} have a probability "
      f"below 2^-215, got {value}; take a coarser unit, or add several draws."
    )
  return math.floor(tail)


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
  context = Context(prec=170)  # more than the 155 decimal digits of 512 bits
  exponent = context.divide(Decimal(-rate.numerator), Decimal(rate.denominator))
  return int(context.multiply(context.exp(exponent), Decimal(_ONE)))
