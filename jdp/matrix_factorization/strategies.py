"""A strategy: how the noise of a run's rounds is correlated.

Round t of a run is to release row t of A G. The rows of G are the rounds' clipped sums, and A is
the workload: what the server makes of them, such as prefix sums. A strategy is a lower triangular
matrix C. The run releases G + C^-1 Z, with Z independent normal noise of standard deviation sigma.
That is a function of C G + Z, *one* Gaussian release of the whole run, even if G depends on earlier
releases (arXiv 2202.08312, 2306.08153). With a clip norm of S,

* one user moves C G by at most `sensitivity` times S, so the run's noise multiplier is sigma / S
  over `sensitivity`;
* the error of round t has the variance sigma^2 |(A C^-1)[t, :]|^2 in each coordinate.

All numbers are for sigma = S = 1, and computed in float64 on the host.
"""

import abc
import dataclasses
import hashlib
import math
from typing import Any

import numpy as np
import scipy

from jdp._arguments import Rows, checked
from jdp.matrix_factorization.participation import most_participations

Workload = Rows | None
"""None: prefix sums. Float64 [n]: the first column of a Toeplitz matrix. Float64 [n, n]: any lower
triangular matrix.
"""


class Strategy(abc.ABC):
  """A strategy for `num_rounds` rounds.

  Attributes:
    memory: how many arrays of the model's size the noise needs between rounds, in addition to keys.
  """

  memory: int

  @property
  @abc.abstractmethod
  def num_rounds(self) -> int:
    """The number of rounds, n."""

  @property
  def bands(self) -> int:
    """How many diagonals of C are not zero, from the main one down to the last; at most n."""
    return self.num_rounds

  @property
  def fingerprint(self) -> str:
    """A digest of the strategy's numbers: 32 hexadecimal digits.

    Strategies of one type with equal numbers have the same digest. Optimised strategies may differ
    in their last digits between machines, so a run resumed elsewhere needs its saved strategy
    (`save`).
    """
    digest = hashlib.blake2b(type(self).__name__.encode(), digest_size=16)
    fields: Any = dataclasses.fields(self)  # type: ignore[arg-type]  # all strategies are dataclasses
    for field in fields:
      value = np.asarray(getattr(self, field.name), "<f8")
      digest.update(f"{field.name} {value.shape}".encode() + value.tobytes())
    return digest.hexdigest()

  @abc.abstractmethod
  def matrix(self) -> np.ndarray:
    """C, float64 [n, n]. A tree has more rows than rounds."""

  @abc.abstractmethod
  def squared_sensitivity(self, min_separation: int, most: int) -> float:
    """The squared sensitivity for `most` participations, all of which fit into the run."""

  @abc.abstractmethod
  def squared_errors(self, workload: Workload = None) -> np.ndarray:
    """The squared error of each round per unit of noise, |(A C^-1)[t, :]|^2, float64 [n]."""

  @checked
  def sensitivity(self, *, min_separation: int = 1, max_participations: int | None = None) -> float:
    """How far one user moves C G, for a clip norm of 1.

    Formal guarantee: no pattern of participations moves it further. A pattern adds up the *columns*
    of C of its rounds (never rows), each times a vector of norm at most 1. The largest norm of such
    a sum counts, or a bound on it.

    Args:
      min_separation: the least distance between two rounds of one user.
      max_participations: the most rounds of one user. None: as many as fit.

    Raises:
      ValueError: if a number is not a whole number >= 1.

    >>> from jdp.matrix_factorization import square_root_toeplitz
    >>> strategy = square_root_toeplitz(10, bands=4)
    >>> once = strategy.sensitivity(max_participations=1)
    >>> twice = strategy.sensitivity(min_separation=5, max_participations=2)
    >>> round(once, 4), round(twice, 4)  # the columns of rounds that far apart do not meet
    (1.22, 1.7253)
    """
    most = most_participations(self.num_rounds, min_separation, max_participations)
    return math.sqrt(self.squared_sensitivity(min_separation, most))

  @checked
  def root_mean_squared_error(
    self,
    *,
    min_separation: int = 1,
    max_participations: int | None = None,
    workload: Workload = None,
  ) -> float:
    """The error of a coordinate, root mean square over the rounds, at a noise multiplier of 1.

    Args:
      min_separation: see `sensitivity`.
      max_participations: see `sensitivity`.
      workload: what the server makes of the rounds' sums. None: prefix sums.

    >>> from jdp.matrix_factorization import identity, square_root_toeplitz
    >>> strategies = identity(100), square_root_toeplitz(100)
    >>> pattern = {"min_separation": 5, "max_participations": 2}
    >>> [round(strategy.root_mean_squared_error(**pattern), 3) for strategy in strategies]
    [10.05, 4.166]
    """
    sensitivity = self.sensitivity(
      min_separation=min_separation, max_participations=max_participations
    )
    return sensitivity * math.sqrt(np.mean(self.squared_errors(workload)))

  @checked
  def max_error(
    self,
    *,
    min_separation: int = 1,
    max_participations: int | None = None,
    workload: Workload = None,
  ) -> float:
    """The error of a coordinate in the worst round; see `root_mean_squared_error`.

    >>> from jdp.matrix_factorization import identity, square_root_toeplitz
    >>> strategies = identity(100), square_root_toeplitz(100)
    >>> pattern = {"min_separation": 5, "max_participations": 2}
    >>> [round(strategy.max_error(**pattern), 3) for strategy in strategies]
    [14.142, 4.448]
    """
    sensitivity = self.sensitivity(
      min_separation=min_separation, max_participations=max_participations
    )
    return sensitivity * math.sqrt(np.max(self.squared_errors(workload)))


def check_workload(workload: np.ndarray, num_rounds: int) -> np.ndarray:
  """The workload, float64.

  Raises:
    ValueError: if it has another shape, is not finite, or round t depends on later sums.
  """
  workload = np.asarray(workload, np.float64)
  if workload.shape not in ((num_rounds,), (num_rounds, num_rounds)):
    raise ValueError(
      f"Expected a workload of shape [{num_rounds}] or [{num_rounds}, {num_rounds}], got "
      f"{workload.shape}; make it for the strategy's rounds."
    )
  if not np.all(np.isfinite(workload)):
    raise ValueError("Expected a workload of finite numbers, got others.")
  if workload.ndim == 2 and np.any(np.triu(workload, 1)):
    raise ValueError(
      "Expected a lower triangular workload, got one whose rounds depend on later sums."
    )
  return workload


def workload_matrix(workload: Workload, num_rounds: int) -> np.ndarray:
  """A, float64 [n, n]."""
  if workload is None:
    return np.tril(np.ones((num_rounds, num_rounds)))
  workload = check_workload(workload, num_rounds)
  if workload.ndim == 2:
    return workload
  return scipy.linalg.toeplitz(workload, np.zeros(num_rounds))
