"""What several adapters share."""

import importlib.metadata
import math
from collections.abc import Callable, Iterable

import numpy as np

from jdp import events
from jdp.conformance.protocol import Plan
from jdp.guarantees import Relation
from jdp.ledger import Ledger


def version(distribution: str) -> str:
  """The installed version of a distribution."""
  return importlib.metadata.version(distribution)


def membership(batches: Iterable[Iterable[int]], population: int) -> np.ndarray:
  """Who took part, bool [rounds, population], from each round's indices."""
  rows = []
  for batch in batches:
    row = np.zeros(population, bool)
    row[np.asarray(list(batch), int)] = True
    rows.append(row)
  return np.stack(rows)


def unsampled_replace_one(plan: Plan, noise_multiplier: float) -> Ledger:
  """Rounds with all records, under replace-one: a record moves the sum by twice the clip norm."""
  event = events.Round(
    events.PoissonSampling(plan.sampling_probability),
    events.GaussianSum(1.0, noise_multiplier),
    Relation.REPLACE_ONE,
  )
  return Ledger().append(event, count=plan.num_rounds)


def noise_covariance(matrix: np.ndarray, stddev: float) -> np.ndarray:
  """The covariance of a coordinate of C^-1 Z over the rounds."""
  inverse = np.linalg.inv(matrix)
  return stddev**2 * inverse @ inverse.T


def toeplitz_matrix(coefficients: np.ndarray, num_rounds: int) -> np.ndarray:
  """The lower triangular Toeplitz matrix with these leading entries of its first column."""
  column = np.zeros(num_rounds)
  column[: len(coefficients)] = coefficients
  lags = np.subtract.outer(np.arange(num_rounds), np.arange(num_rounds))
  return np.where(lags >= 0, column[np.maximum(lags, 0)], 0.0)


def root(squared: Callable[[int, int], float]) -> Callable[[int, int], float]:
  """The sensitivity from a function that gives its square."""
  return lambda b, k: math.sqrt(float(squared(b, k)))
