"""Banded strategies that are not Toeplitz: BandMF (arXiv 2306.08153).

Let D be the differences of successive rounds, the inverse of prefix sums. Then A C^-1 is the
inverse of C D, which has one band more than C. So the errors are the variances of y in C D y = w,
with w white noise. To compute them costs as much as a Kalman filter: the rounds are cut into
blocks, and the covariance of y within a block follows from that of the block before. Time and
memory are linear in the rounds.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.matrix_factorization.descent import minimize
from jdp.matrix_factorization.optimised_toeplitz import OBJECTIVES, banded_toeplitz
from jdp.matrix_factorization.participation import check_rounds, heaviest_pattern, pattern_bound
from jdp.matrix_factorization.strategies import Strategy, Workload, workload_matrix

# The exponent of the power mean that stands for the rounds' largest error: within 2 % at 2,000
# rounds.
_MAX_POWER = 32
_MOST_NUMBERS = 2e7  # inside the bands; with so many, a search takes minutes
_LEAST_BLOCK = 16  # rounds; smaller blocks cost more in Python than in arithmetic


@dataclasses.dataclass(frozen=True)
class BandedStrategy(Strategy):
  """A lower triangular strategy with a few bands.

  Attributes:
    diagonals: float64 [bands, n]. diagonals[i, j] is C[j + i, j], or 0 beyond the last row.
  """

  diagonals: np.ndarray

  @property
  def num_rounds(self) -> int:
    """The number of rounds, n."""
    return self.diagonals.shape[1]

  @property
  def bands(self) -> int:
    """See `Strategy`."""
    return len(self.diagonals)

  @property
  def memory(self) -> int:  # type: ignore[override]
    """See `Strategy`."""
    return len(self.diagonals) - 1

  def matrix(self) -> np.ndarray:
    """C, float64 [n, n]."""
    n = self.num_rounds
    return np.sum([np.diag(row[: n - i], -i) for i, row in enumerate(self.diagonals)], axis=0)

  def squared_sensitivity(self, min_separation: int, most: int) -> float:
    """Exact if a user's columns do not overlap (`min_separation` >= bands), else a bound."""
    if min_separation >= len(self.diagonals) or most == 1:
      return heaviest_pattern(np.sum(self.diagonals**2, axis=0), min_separation, most)
    columns = self.matrix()
    return pattern_bound(columns.T @ columns, min_separation, most)

  @checked
  def squared_errors(self, workload: Workload = None) -> np.ndarray:
    """See `Strategy`. Prefix sums take memory in proportion to bands n, other workloads n^2.

    >>> workload = np.eye(10)  # the rounds' own sums; independent noise has an error of 1 in each
    >>> banded(10, 2).squared_errors(workload).round(2).tolist()
    [1.67, 2.01, 1.95, 2.02, 1.89, 1.85, 1.71, 1.6, 1.42, 1.16]
    """
    if workload is None:
      return _variances(_Blocks.of(self.diagonals).covariances, self.num_rounds)
    # The columns of X with C^T X = A^T are the rows of A C^-1.
    matrix = workload_matrix(workload, self.num_rounds)
    rows, info = scipy.linalg.lapack.dtbtrs(self.diagonals, matrix.T, uplo="L", trans="T")
    assert info == 0  # the solve cannot fail, as the main diagonal has no 0
    return np.sum(rows**2, axis=0)


@checked
def banded(num_rounds: int, bands: int, *, objective: str = "mean") -> BandedStrategy:
  """The banded strategy with the least error of prefix sums, among those with columns of norm 1.

  It is optimised for users who take part once in `bands` rounds. It begins with `banded_toeplitz`.
  An iteration takes time in proportion to bands^2 n, and memory in proportion to bands n.

  Args:
    num_rounds: n.
    bands: how many diagonals C has. The noise needs `bands` - 1 models of memory.
    objective: "mean" of the rounds' squared errors; or "max", approximated by a power mean of them.

  Raises:
    ValueError: if a number is not a whole number >= 1, or the objective is another.

  >>> strategy = banded(2, 2)
  >>> round(
  ...   float(strategy.matrix()[:, 0] @ strategy.matrix()[:, 1]), 4
  ... )  # of C^T C, off its diagonal
  0.382
  >>> round(2 * strategy.root_mean_squared_error(max_participations=1) ** 2, 6)
  2.618034
  """
  check_rounds(num_rounds)
  _validate.integer(1, bands=bands)
  _validate.one_of(OBJECTIVES, objective=objective)
  kept = min(bands, num_rounds)
  if kept * num_rounds > _MOST_NUMBERS:
    raise ValueError(
      f"Expected num_rounds times bands of at most {_MOST_NUMBERS:.0e}, got {num_rounds} and "
      f"{kept}; take banded_toeplitz, which is close to it for many rounds."
    )
  begun = banded_toeplitz(num_rounds, kept, objective=objective).coefficients[:kept]
  inside = np.arange(kept)[:, None] + np.arange(num_rounds) < num_rounds
  power = 1 if objective == "mean" else _MAX_POWER
  found = minimize(
    lambda values: _error(values, inside, power),
    np.broadcast_to(begun[:, None], inside.shape)[inside],
  )
  return BandedStrategy(_normalised(found, inside))


def _normalised(values: np.ndarray, inside: np.ndarray) -> np.ndarray:
  """The diagonals, with columns of norm 1."""
  diagonals = np.zeros(inside.shape)
  diagonals[inside] = values
  return diagonals / np.linalg.norm(diagonals, axis=0)


def _error(values: np.ndarray, inside: np.ndarray, power: int) -> tuple[float, np.ndarray]:
  """The power mean of the squared errors, and its gradient by the values inside the bands."""
  raw = np.zeros(inside.shape)
  raw[inside] = values
  norms = np.linalg.norm(raw, axis=0)
  diagonals = raw / norms
  mean, by_c = _mean_error(diagonals, power)
  along = np.sum(by_c * diagonals, axis=0)
  return mean, ((by_c - along * diagonals) / norms)[inside]


class _Blocks(NamedTuple):
  """C D in blocks of rounds, and the covariances of y in C D y = w with white noise w.

  Attributes:
    columns: as for `_block_columns`.
    inverse: the inverse of each diagonal block, [k, size, size].
    transfer: the transfer of each block into the next one, [k - 1, size, size].
    covariances: the covariance of y within each block, [k, size, size].
  """

  columns: np.ndarray
  inverse: np.ndarray
  transfer: np.ndarray
  covariances: np.ndarray

  @classmethod
  def of(cls, diagonals: np.ndarray) -> "_Blocks":
    """The blocks of a strategy's diagonals."""
    # (C D)[j + i, j] = C[j + i, j] - C[j + i, j + 1]
    differences = np.pad(diagonals, ((0, 1), (0, 0)))
    differences[1:, :-1] -= diagonals[:, 1:]
    size = max(len(diagonals), _LEAST_BLOCK)
    columns = _block_columns(differences, size)
    inverse = np.linalg.inv(columns[:, :size])
    transfer = inverse[1:] @ columns[:-1, size:]
    covariances = inverse @ np.swapaxes(inverse, 1, 2)
    for block, moved in enumerate(transfer):
      covariances[block + 1] += moved @ covariances[block] @ moved.T
    return cls(columns, inverse, transfer, covariances)


def _variances(covariances: np.ndarray, num_rounds: int) -> np.ndarray:
  """The squared errors of prefix sums: the diagonals of the covariances of blocks."""
  return np.diagonal(covariances, axis1=1, axis2=2).reshape(-1)[:num_rounds]


def _mean_error(diagonals: np.ndarray, power: int) -> tuple[float, np.ndarray]:
  """The power mean of the squared errors of prefix sums, and its gradient by the diagonals of C."""
  bands, n = diagonals.shape
  columns, inverse, transfer, covariances = _Blocks.of(diagonals)
  size = columns.shape[2]
  errors = _variances(covariances, n)
  largest = np.max(errors)
  mean = largest * np.mean((errors / largest) ** power) ** (1 / power)

  # The mean's derivatives: first by each covariance, from the last one back; then by the blocks.
  weights = np.pad((errors / mean) ** (power - 1) / n, (0, len(columns) * size - n))
  adjoints = weights.reshape(-1, size)[:, :, None] * np.eye(size)
  for block, moved in reversed(list(enumerate(transfer))):
    adjoints[block] += moved.T @ adjoints[block + 1] @ moved
  pulled = -2 * np.swapaxes(inverse, 1, 2) @ adjoints
  by_columns = np.zeros_like(columns)
  by_columns[:, :size] = pulled @ covariances
  by_columns[:-1, size:] = -pulled[1:] @ transfer @ covariances[:-1]
  by_differences = _band_values(by_columns, bands + 1)[:, :n]
  by_c = by_differences[:bands]
  by_c[:, 1:] -= by_differences[1:, :-1]
  return float(mean), by_c


def _block_columns(diagonals: np.ndarray, size: int) -> np.ndarray:
  """A banded matrix's entries in every two successive blocks of rows: [k, 2 size, size].

  The columns are those of the upper block. The matrix is padded with ones on its diagonal.
  """
  bands, n = diagonals.shape
  number = -(-n // size)
  padded = np.pad(diagonals, ((0, 0), (0, number * size - n)))
  padded[0, n:] = 1.0
  columns = np.zeros((number, 2 * size, size))
  column = np.arange(size)
  columns[:, np.arange(bands)[:, None] + column, column] = np.moveaxis(
    padded.reshape(bands, number, size), 1, 0
  )
  return columns


def _band_values(columns: np.ndarray, bands: int) -> np.ndarray:
  """The values [bands, k size] in the bands, from the result of `_block_columns`."""
  column = np.arange(columns.shape[2])
  values = columns[:, np.arange(bands)[:, None] + column, column]
  return np.moveaxis(values, 1, 0).reshape(bands, -1)
