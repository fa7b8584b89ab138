"""How often and how closely one user may take part in a run, and the pattern that tells most.

A pattern is the set of rounds that one user takes part in: at most k of them, any two at least b
rounds apart (the min-separation; neighbouring rounds are 1 apart). The sampler must enforce it.
"""

import numpy as np

from jdp import _validate


def most_participations(
  num_rounds: int, min_separation: int, max_participations: int | None
) -> int:
  """The largest number of rounds in a pattern: what is allowed, and what fits.

  Raises:
    ValueError: if a number is no whole number >= 1.

  >>> most_participations(10, 4, None), most_participations(10, 4, 2)
  (3, 2)
  """
  _validate.integer(1, min_separation=min_separation)
  fitting = -(-num_rounds // min_separation)
  if max_participations is None:
    return fitting
  _validate.integer(1, max_participations=max_participations)
  return min(max_participations, fitting)


def check_rounds(num_rounds: int, most: float = 1e8) -> None:
  """Refuses a number of rounds that is no whole number >= 1, or more than can be held."""
  _validate.integer(1, num_rounds=num_rounds)
  _validate.in_range(1, most, num_rounds=num_rounds)


def heaviest_pattern(weights: np.ndarray, min_separation: int, most: int) -> float:
  """The largest sum of weights over a pattern, by a dynamic programme.

  Args:
    weights: float64 [n] >= 0, of each round.
    min_separation: b >= 1.
    most: k >= 1.

  >>> heaviest_pattern(np.array([1.0, 5.0, 4.0, 1.0]), min_separation=2, most=2)
  6.0
  """
  min_separation = min(min_separation, len(weights))  # No two rounds are farther apart.
  best = np.zeros(len(weights) + min_separation)  # best[b + t]: of the rounds up to t
  for _ in range(most):
    with_last = weights + best[: len(weights)]
    best[min_separation:] = np.maximum.accumulate(with_last)
  return float(best[-1])


def pattern_bound(gram: np.ndarray, min_separation: int, most: int) -> float:
  """An upper bound on the sum of |gram| over the pairs of a pattern.

  The method is that of arXiv 2306.08153, Algorithm 4. Round i counts with the heaviest pattern that
  contains it. So the bound is exact where these patterns are one, such as with `most` = 1, or where
  rounds of a pattern do not meet in `gram`.

  Args:
    gram: float64 [n, n], symmetric.
    min_separation: b >= 1.
    most: k >= 1.
  """
  size = np.abs(gram)
  rows = np.diagonal(size) + _others(size, min_separation, most - 1)
  return heaviest_pattern(rows, min_separation, most)


def _others(size: np.ndarray, min_separation: int, most: int) -> np.ndarray:
  """For each round i, the most that `most` other rounds of a pattern with i add to row i."""
  n = len(size)
  min_separation = min(min_separation, n)
  rounds = np.arange(n, dtype=np.int32)
  # Zeros keep the separation from round i; the programme keeps that of the others.
  allowed = np.where(np.abs(rounds[:, None] - rounds) >= min_separation, size, 0.0)
  best, with_last = np.zeros((n, n + min_separation)), np.empty_like(allowed)
  for _ in range(most):
    np.add(allowed, best[:, :n], out=with_last)
    np.maximum.accumulate(with_last, axis=1, out=best[:, min_separation:])
  return best[:, -1]
