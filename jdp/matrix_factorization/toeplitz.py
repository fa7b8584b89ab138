"""Strategies whose matrix is Toeplitz: row t of C G is sum_j c_j G[t - j]."""

import dataclasses

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.matrix_factorization.participation import check_rounds, heaviest_pattern, pattern_bound
from jdp.matrix_factorization.strategies import Strategy, Workload, check_workload


@dataclasses.dataclass(frozen=True)
class ToeplitzStrategy(Strategy):
  """A lower triangular Toeplitz strategy.

  Attributes:
    coefficients: c, the first column of C, float64 [n]; c_0 > 0.
    inverse: the first column of C^-1, float64 [n].
    memory: see `Strategy`.
  """

  coefficients: np.ndarray
  inverse: np.ndarray
  memory: int

  @property
  def num_rounds(self) -> int:
    """The number of rounds, n."""
    return len(self.coefficients)

  @property
  def bands(self) -> int:
    """See `Strategy`."""
    return int(np.flatnonzero(self.coefficients)[-1]) + 1

  def matrix(self) -> np.ndarray:
    """C, float64 [n, n]."""
    return scipy.linalg.toeplitz(self.coefficients, np.zeros(self.num_rounds))

  def squared_sensitivity(self, min_separation: int, most: int) -> float:
    """Exact for coefficients >= 0 that do not increase, or if a user's columns do not overlap.

    In the first case the worst pattern is 0, b, 2b, ... (arXiv 2405.13763, Theorem 2). Otherwise it
    is an upper bound.
    """
    c = self.coefficients
    if np.all(c >= 0) and np.all(np.diff(c) <= 0):
      total, column = np.zeros(self.num_rounds), c[: self.bands]
      for start in range(0, most * min_separation, min_separation):
        rest = total[start : start + len(column)]
        rest += column[: len(rest)]
      return float(total @ total)
    if min_separation >= self.bands:
      return heaviest_pattern(np.cumsum(c**2)[::-1], min_separation, most)
    columns = self.matrix()
    return pattern_bound(columns.T @ columns, min_separation, most)

  @checked
  def squared_errors(self, workload: Workload = None) -> np.ndarray:
    """See `Strategy`.

    >>> workload = np.ones(10)  # prefix sums
    >>> errors = square_root_toeplitz(10).squared_errors(workload)
    >>> errors.shape, round(float(errors[-1]), 3)  # of independent noise, 10.0
    ((10,), 1.791)
    """
    if workload is None:
      return np.cumsum(np.cumsum(self.inverse) ** 2)
    workload = check_workload(workload, self.num_rounds)
    if workload.ndim == 1:
      return np.cumsum(scipy.signal.fftconvolve(workload, self.inverse)[: self.num_rounds] ** 2)
    inverse = scipy.linalg.toeplitz(self.inverse, np.zeros(self.num_rounds))
    return np.sum((workload @ inverse) ** 2, axis=1)


def from_coefficients(coefficients: np.ndarray, num_rounds: int, memory: int) -> ToeplitzStrategy:
  """The strategy with these first coefficients c; later ones are zero."""
  c = np.zeros(num_rounds)
  c[: len(coefficients)] = coefficients[:num_rounds]
  return ToeplitzStrategy(c, quotient(np.ones(1), coefficients, num_rounds), memory)


def quotient(numerator: np.ndarray, denominator: np.ndarray, length: int) -> np.ndarray:
  """The first coefficients of the power series numerator(x) / denominator(x)."""
  impulse = np.zeros(length)
  impulse[0] = 1.0
  return scipy.signal.lfilter(numerator, denominator, impulse)


def square_root_coefficients(length: int) -> np.ndarray:
  """binom(2j, j) / 4^j: the power series of 1 / sqrt(1 - x)."""
  j = np.arange(1, length)
  return np.cumprod(np.append(1.0, (2 * j - 1) / (2 * j)))


def inverse_square_root_coefficients(length: int) -> np.ndarray:
  """The power series of sqrt(1 - x): 1, -1/2, -1/8, -1/16, ..."""
  j = np.arange(1, length)
  return np.cumprod(np.append(1.0, (2 * j - 3) / (2 * j)))


@checked
def identity(num_rounds: int) -> ToeplitzStrategy:
  """Independent noise in every round, as in DP-SGD and DP-FedAvg.

  >>> identity(4).max_error(max_participations=1)
  2.0
  """
  check_rounds(num_rounds)
  return from_coefficients(np.ones(1), num_rounds, 0)


@checked
def square_root_toeplitz(num_rounds: int, *, bands: int | None = None) -> ToeplitzStrategy:
  """The square root of prefix sums: A = C C (arXiv 2202.11205).

  Its largest error, for one participation, is within a constant of the least possible.

  Args:
    num_rounds: n.
    bands: how many coefficients are kept. None: all. Then a round needs the noise of all earlier
      rounds.

  Raises:
    ValueError: if a number is not a whole number >= 1.

  >>> round(square_root_toeplitz(1000).max_error(max_participations=1), 6)
  3.265003
  """
  check_rounds(num_rounds)
  if bands is None:
    return ToeplitzStrategy(
      square_root_coefficients(num_rounds),
      inverse_square_root_coefficients(num_rounds),
      memory=num_rounds - 1,
    )
  _validate.integer(1, bands=bands)
  kept = min(bands, num_rounds)
  return from_coefficients(square_root_coefficients(kept), num_rounds, kept - 1)


@checked
def banded_inverse_square_root(num_rounds: int, bands: int) -> ToeplitzStrategy:
  """C^-1 has the first coefficients of the inverse square root of prefix sums (arXiv 2505.12128).

  A round's noise is a sum of `bands` independent draws. Keys draw them again, so nothing is kept
  between rounds.

  Args:
    num_rounds: n.
    bands: how many coefficients C^-1 has.

  Raises:
    ValueError: if a number is not a whole number >= 1.

  >>> strategy = banded_inverse_square_root(2052, 8)
  >>> round(strategy.root_mean_squared_error(min_separation=342, max_participations=6), 3)
  22.852
  """
  check_rounds(num_rounds)
  _validate.integer(1, bands=bands)
  kept = inverse_square_root_coefficients(min(bands, num_rounds))
  turned = from_coefficients(kept, num_rounds, 0)  # C and its inverse in each other's place
  return ToeplitzStrategy(turned.inverse, turned.coefficients, memory=0)
