"""The sensitivity of a strategy, by brute force over patterns of participation."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from jdp._arguments import checked
from jdp.conformance.checks.consequences import of_sensitivity
from jdp.conformance.protocol import Finding, MatrixStrategy, Witness, finding, refusal
from jdp.guarantees import rounded_down, rounded_up
from jdp.matrix_factorization.participation import most_participations

# Runs of up to this many rounds are tried with all patterns, longer runs with those of equal gaps.
_BRUTE_FORCE_ROUNDS = 12
_ROUNDING = 1e-5
Pattern = tuple[int, ...]


@checked
def check_strategy(part: MatrixStrategy) -> list[Finding]:
  """No pattern of participations moves C G farther than the stated sensitivity.

  A record that takes part in the rounds of a pattern may move C G by sum_i s_i C[:, i], for signs
  s_i = +1 or -1. Every pattern, with any signs, bounds the sensitivity from below: a distance above
  the stated one refutes it. For n <= 12 rounds all patterns and signs are tried. That is exact
  where C^T C has no negative entries. For longer runs the patterns are those of equal gaps, from
  every first round. The farthest of them is then improved, one participation at a time.

  >>> rows = np.array([[1.0, 0.0], [0.8, 0.6]])  # unit rows, and a first column of norm 1.28
  >>> part = MatrixStrategy("cholesky(X)", rows, lambda b, k: 1.0, ((1, 1),))
  >>> check_strategy(part)[0].witness.got
  'C G moves by 1.28'
  """
  matrix = np.asarray(part.matrix, np.float64)
  return [_checked_patterns(part, matrix, *pattern) for pattern in part.patterns]


def _checked_patterns(
  part: MatrixStrategy, matrix: np.ndarray, min_separation: int, participations: int
) -> Finding:
  check = f"sensitivity, {participations} participations {min_separation} apart"
  try:
    stated = float(part.sensitivity(min_separation, participations))
  except Exception as raised:  # of any type, from another library
    return refusal(part, check, raised)
  patterns = _patterns(matrix.shape[1], min_separation, participations)
  moved, worst = max((_farthest(matrix, pattern), pattern) for pattern in patterns)
  if matrix.shape[1] > _BRUTE_FORCE_ROUNDS:
    moved, worst = _improved(matrix, worst, min_separation)
  note = (
    f"{len(patterns)} patterns; {rounded_down(moved, 4)} attained of {rounded_up(stated, 4)} stated"
  )
  witness = None
  if not moved <= stated * (1 + _ROUNDING):
    witness = Witness(
      f"one record in rounds {', '.join(map(str, worst))} of {matrix.shape[1]}",
      f"C G moves by <= {rounded_up(stated, 4)}",
      f"C G moves by {rounded_down(moved, 4)}",
      of_sensitivity(moved, stated),
    )
  return finding(part, check, witness, note=note)


def _patterns(num_rounds: int, min_separation: int, participations: int) -> list[Pattern]:
  """The patterns to try: those into which no further participation fits, or those of equal gaps."""
  most = most_participations(num_rounds, min_separation, participations)
  if num_rounds > _BRUTE_FORCE_ROUNDS:
    gaps = {min_separation, max(min_separation, num_rounds // most)}
    starts = itertools.product(gaps, range(num_rounds))
    return [tuple(range(start, num_rounds, gap))[:most] for gap, start in starts]
  return [
    pattern
    for size in range(1, most + 1)
    for pattern in itertools.combinations(range(num_rounds), size)
    if all(b - a >= min_separation for a, b in itertools.pairwise(pattern))
  ]


def _improved(matrix: np.ndarray, pattern: Pattern, min_separation: int) -> tuple[float, Pattern]:
  """(distance, pattern) that is locally largest: moving any one participation does not help."""
  best = _farthest(matrix, pattern), pattern
  while True:
    others = _neighbours(best[1], matrix.shape[1], min_separation)
    moved = max((_farthest(matrix, other), other) for other in others)
    if moved[0] <= best[0] * (1 + _ROUNDING):
      return best
    best = moved


def _neighbours(pattern: Pattern, num_rounds: int, min_separation: int) -> Iterator[Pattern]:
  """The pattern itself, and those with another round for one of its participations."""
  yield pattern
  for i in range(len(pattern)):
    others = (*pattern[:i], *pattern[i + 1 :])
    for t in range(num_rounds):
      if all(abs(t - other) >= min_separation for other in others):
        yield tuple(sorted((*others, t)))


def _farthest(matrix: np.ndarray, pattern: Pattern) -> float:
  """The largest |sum_i s_i C[:, i]| over signs; for long patterns, over signs chosen one by one.

  It is infinite for a matrix that is not finite, so that this cannot pass.
  """
  columns = matrix[:, list(pattern)]
  if not np.all(np.isfinite(columns)):
    return math.inf
  if len(pattern) <= _BRUTE_FORCE_ROUNDS:
    others = len(pattern) - 1
    signs = np.array(list(itertools.product((1, -1), repeat=others))).reshape(2**others, others)
    moved = columns[:, :1] + columns[:, 1:] @ signs.T
    return float(np.max(np.linalg.norm(moved, axis=0)))
  total = np.zeros(len(matrix))
  for column in columns.T:
    total = total + (column if total @ column >= 0 else -column)
  return float(np.linalg.norm(total))
