"""Banded Toeplitz strategies with the least error, for one participation in `bands` rounds.

The squared error of prefix sums is sum_t w_t b_t^2, with b the power series of 1 / ((1 - x) c(x)).
The weights w_t are (n - t) / n for the mean over the rounds, and 1 for the last round, which is the
worst. The squared sensitivity is |c|^2. Their product does not change with the scale of c, so c_0
is 1 (arXiv 2405.13763, Section 4).
"""

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.matrix_factorization.participation import check_rounds
from jdp.matrix_factorization.toeplitz import (
  ToeplitzStrategy,
  from_coefficients,
  quotient,
  square_root_coefficients,
)

OBJECTIVES = ("mean", "max")


@checked
def banded_toeplitz(num_rounds: int, bands: int, *, objective: str = "mean") -> ToeplitzStrategy:
  """The banded Toeplitz strategy with the least error of prefix sums.

  It is optimised for users who take part once in `bands` rounds: then one user's columns of C do
  not overlap.

  Args:
    num_rounds: n.
    bands: how many coefficients c has. The noise needs `bands` - 1 models of memory.
    objective: "mean" or "max" of the rounds' squared errors.

  Raises:
    ValueError: if a number is not a whole number >= 1, or the objective is another.

  >>> banded_toeplitz(64, 8).coefficients[:4].round(4).tolist()
  [1.0, 0.5877, 0.4785, 0.4183]
  """
  check_rounds(num_rounds)
  _validate.integer(1, bands=bands)
  _validate.one_of(OBJECTIVES, objective=objective)
  kept = min(bands, num_rounds)
  start = square_root_coefficients(kept)[1:]
  if not len(start):
    return from_coefficients(np.ones(1), num_rounds, 0)
  weights = error_weights(num_rounds, objective)
  found = scipy.optimize.minimize(
    _error, start, (weights,), jac=True, method="L-BFGS-B", options={"maxiter": 1000, "ftol": 1e-14}
  )
  return from_coefficients(np.append(1.0, found.x), num_rounds, kept - 1)


def error_weights(num_rounds: int, objective: str) -> np.ndarray:
  """The weights of b_t^2 in the squared error."""
  if objective == "max":
    return np.ones(num_rounds)
  return 1 - np.arange(num_rounds) / num_rounds


def _error(tail: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
  """The logarithm of error times sensitivity, both squared, and its gradient by c_1, c_2, ..."""
  c, n = np.append(1.0, tail), len(weights)
  b = np.cumsum(quotient(np.ones(1), c, n))
  error, sensitivity = weights @ b**2, c @ c
  # A change of c_j changes b by -x^j b(x) / c(x).
  change = scipy.signal.lfilter([1.0], c, b)
  by_c = [-2 * (weights[j:] * b[j:]) @ change[: n - j] for j in range(1, len(c))]
  return float(np.log(error * sensitivity)), np.array(by_c) / error + 2 * tail / sensitivity
