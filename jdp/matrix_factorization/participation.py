"""How often and how closely one user may take part in a run, and the worst pattern.

A pattern is the set of rounds that one user takes part in: at most k of them, any two at least b
rounds apart (the min-separation; neighbouring rounds are 1 apart). The sampler must enforce it.
"""

import numpy as np

from jdp import _validate


def most_participations(
  num_rounds: int, min_separation: int, max_participations: int | None
) -> int:
  """The largest number of rounds in a pattern: as many as are allowed and fit.

  Raises:
    ValueError: if a number is not a whole number >= 1.

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
  """Refuses a number of rounds that is not a whole number >= 1, or is more than fits in memory."""
  _validate.integer(1, num_rounds=num_rounds)
  _validate.in_range(1, most, num_rounds=num_rounds)


def heaviest_pattern(weights: np.ndarray, min_separation: int, most: int) -> float:
  """The largest sum of weights over a pattern, by a dynamic programme.

  Args:
    weights: the weight of each round, float64 [n] >= 0.
    min_separation: b >= 1.
    most: k >= 1.

  >>> heaviest_pattern(np.array([1.0, 5.0, 4.0, 1.0]), min_separation=2, most=2)
  6.0
  """
  return float(_heaviest(weights, min_separation, most))


def _heaviest(weights: np.ndarray, min_separation: int, most: int) -> np.ndarray:
  """`heaviest_pattern` of the weights in each row, [..., n]; of no rounds if `most` is 0.

  Pass j finds the heaviest patterns of at most j rounds that end by round (j - 1) b + i, for every
  i of a window. Before the window, no more than j - 1 rounds fit. After it, the k - j later rounds
  do not fit. So a pass takes n - (k - 1) b rounds, and k passes take n^2 / 4b at most.
  """
  n = weights.shape[-1]
  min_separation = min(min_separation, n)  # no two rounds are farther apart
  most = min(most, -(-n // min_separation))
  width = max(n - (most - 1) * min_separation, min_separation)
  best = np.zeros((*weights.shape[:-1], width))
  for start in range(0, most * min_separation, min_separation):
    before = best[..., min_separation - 1, None].copy()
    with_last = weights[..., start : start + width]
    best[..., : with_last.shape[-1]] += with_last
    np.maximum.accumulate(best, axis=-1, out=best)
    np.maximum(best, before, out=best)
  return best[..., -1]


def pattern_bound(gram: np.ndarray, min_separation: int, most: int) -> float:
  """An upper bound on the sum of |gram| over the pairs of a pattern.

  The method is that of arXiv 2306.08153, Algorithm 4. Each round i counts with the heaviest pattern
  that contains it. So the bound is exact if all rounds of the worst pattern have it as theirs, as
  with `most` = 1, or if `gram` is 0 for any two rounds of a pattern.

  Args:
    gram: float64 [n, n], symmetric.
    min_separation: b >= 1.
    most: k >= 1.
  """
  size = np.abs(gram)
  rows = np.diagonal(size) + _others(size, min_separation, most - 1)
  return heaviest_pattern(rows, min_separation, most)


def _others(size: np.ndarray, min_separation: int, most: int) -> np.ndarray:
  """For each round i, the most that `most` other rounds of a pattern with i can add to row i."""
  rounds = np.arange(len(size), dtype=np.int32)
  # Zeros enforce the separation from round i. The programme enforces it among the others.
  apart = np.abs(rounds[:, None] - rounds) >= min(min_separation, len(size))
  return _heaviest(np.where(apart, size, 0.0), min_separation, most)
