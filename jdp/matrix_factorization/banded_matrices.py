"""Banded strategies that are not Toeplitz: BandMF (arXiv 2306.08153)."""

import dataclasses

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.matrix_factorization.optimised_toeplitz import OBJECTIVES, banded_toeplitz
from jdp.matrix_factorization.participation import check_rounds, heaviest_pattern, pattern_bound
from jdp.matrix_factorization.strategies import Strategy, Workload, workload_matrix

# The power mean of the rounds' errors that stands for the largest one: within 2 % at 2,000 rounds.
_MAX_POWER = 32
_MOST_ROUNDS = 10_000  # its matrices of [n, n] take gigabytes then


@dataclasses.dataclass(frozen=True)
class BandedStrategy(Strategy):
  """A lower triangular strategy with a few bands.

  Attributes:
    diagonals: float64 [bands, n]. diagonals[i, j] is C[j + i, j]; beyond the last row they are 0.
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
    """Exact if a user's columns do not meet (`min_separation` of all bands), else a bound."""
    if min_separation >= len(self.diagonals) or most == 1:
      return heaviest_pattern(np.sum(self.diagonals**2, axis=0), min_separation, most)
    columns = self.matrix()
    return pattern_bound(columns.T @ columns, min_separation, most)

  def squared_errors(self, workload: Workload = None) -> np.ndarray:
    """See `Strategy`."""
    rows = _solved(self.diagonals, workload_matrix(workload, self.num_rounds).T, transposed=True)
    return np.sum(rows**2, axis=0)


@checked
def banded(num_rounds: int, bands: int, *, objective: str = "mean") -> BandedStrategy:
  """The banded strategy of the least error of prefix sums, among all with columns of norm 1.

  It is optimised for users who take part once in `bands` rounds. It begins with `banded_toeplitz`.
  An iteration takes time in proportion to bands n^2, and memory in proportion to n^2.

  Args:
    num_rounds: n.
    bands: how many diagonals C has. The noise needs `bands` - 1 models of memory.
    objective: "mean" of the rounds' squared errors; or "max", by a power mean of them.

  Raises:
    ValueError: if a number is no whole number >= 1, or the objective is another.

  >>> strategy = banded(2, 2)
  >>> round(
  ...   float(strategy.matrix()[:, 0] @ strategy.matrix()[:, 1]), 4
  ... )  # of C^T C, off its diagonal
  0.382
  >>> round(2 * strategy.root_mean_squared_error(max_participations=1) ** 2, 6)
  2.618034
  """
  check_rounds(num_rounds, _MOST_ROUNDS)
  _validate.integer(1, bands=bands)
  _validate.one_of(OBJECTIVES, objective=objective)
  kept = min(bands, num_rounds)
  begun = banded_toeplitz(num_rounds, kept, objective=objective).coefficients[:kept]
  inside = np.arange(kept)[:, None] + np.arange(num_rounds) < num_rounds
  prefix_sums = workload_matrix(None, num_rounds)
  power = 1 if objective == "mean" else _MAX_POWER
  found = scipy.optimize.minimize(
    _error,
    np.broadcast_to(begun[:, None], inside.shape)[inside],
    (inside, prefix_sums, power),
    jac=True,
    method="L-BFGS-B",
    options={"maxiter": 150, "ftol": 1e-12, "gtol": 1e-9},
  )
  return BandedStrategy(_normalised(found.x, inside))


def _normalised(values: np.ndarray, inside: np.ndarray) -> np.ndarray:
  """The diagonals, with columns of norm 1."""
  diagonals = np.zeros(inside.shape)
  diagonals[inside] = values
  return diagonals / np.linalg.norm(diagonals, axis=0)


def _solved(diagonals: np.ndarray, right: np.ndarray, *, transposed: bool) -> np.ndarray:
  """X with C X = right, or C^T X = right."""
  found, info = scipy.linalg.lapack.dtbtrs(
    diagonals, right, uplo="L", trans="T" if transposed else "N"
  )
  assert info == 0  # no number of the main diagonal is 0
  return found


def _error(
  values: np.ndarray, inside: np.ndarray, workload: np.ndarray, power: int
) -> tuple[float, np.ndarray]:
  """The power mean of the squared errors, and its gradient by the values inside the bands."""
  raw = np.zeros(inside.shape)
  raw[inside] = values
  norms = np.linalg.norm(raw, axis=0)
  diagonals = raw / norms
  rows = _solved(
    diagonals, workload.T, transposed=True
  )  # (A C^-1)^T: [round of noise, round of error]
  errors = np.sum(rows**2, axis=0)
  largest = np.max(errors)
  mean = largest * np.mean((errors / largest) ** power) ** (1 / power)
  by_error = (errors / mean) ** (power - 1) / len(errors)
  # The derivative by C is -2 M^T W M C^-T, with M = A C^-1 and W = diag(by_error).
  right = _solved(diagonals, rows * by_error, transposed=False)
  by_c = np.zeros(inside.shape)
  for i in range(len(diagonals)):
    kept = len(errors) - i
    by_c[i, :kept] = -2 * np.einsum("jt,jt->j", rows[i:], right[:kept])
  along = np.sum(by_c * diagonals, axis=0)
  return float(mean), ((by_c - along * diagonals) / norms)[inside]
