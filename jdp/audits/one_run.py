"""Audits in one run: many canaries, a fair coin for each, and guesses of the coins.

Source: arXiv 2305.08846.

The coin decides whether the canary is included. If a run is (epsilon, delta)-DP for the presence of
one canary, nobody can guess many of the coins. The number of right guesses is hardly larger than
that of randomised response, which is right with probability e^epsilon / (1 + e^epsilon) each time.
So one run of training bounds epsilon from below: its many canaries are the sample.
"""

from typing import NamedTuple

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import AnyVector, checked
from jdp.audits._shared import check_counts

_EPSILON_STEP = 0.25  # of the search upwards in epsilon, before its result is refined


class OneRunAudit(NamedTuple):
  """What an audit in one run found.

  Attributes:
    epsilon: the lower bound.
    num_correct: how many guesses were right.
    num_guesses: how many coins were guessed.
    num_canaries: how many coins there are, guessed or not.
  """

  epsilon: float
  num_correct: int
  num_guesses: int
  num_canaries: int


@checked
def one_run_p_value(
  num_canaries: int, num_guesses: int, num_correct: int, epsilon: float, delta: float = 0.0
) -> float:
  """An upper bound on the probability of `num_correct` right guesses or more.

  It holds for every (epsilon, delta)-DP run. For r guesses of m coins and v right ones, with W ~
  Bin(r, e^epsilon / (1 + e^epsilon)), it is

      P(W >= v) + 2 m delta max_{1 <= i <= v} P(v - i <= W < v) / i,

  and at most 1.

  Source: arXiv 2305.08846, Corollary 5.4.

  Args:
    num_canaries: m, each included independently with probability 1/2.
    num_guesses: r <= m, made from the run's output alone. r must not depend on the coins.
    num_correct: v <= r.
    epsilon: >= 0.
    delta: in [0, 1].

  Raises:
    ValueError: if an argument is out of range.

  >>> round(one_run_p_value(1000, 100, 75, epsilon=0.673, delta=1e-4), 3)
  0.05
  """
  check_counts(num_canaries, num_guesses, num_correct)
  _validate.non_negative(epsilon=epsilon)
  _validate.probability(delta=delta)
  # tails[i] = P(W >= v - i), so tails[i] - tails[0] = P(v - i <= W < v).
  tails = scipy.stats.binom.sf(
    num_correct - 1 - np.arange(num_correct + 1), num_guesses, scipy.special.expit(epsilon)
  )
  fewer = np.max((tails[1:] - tails[0]) / np.arange(1, num_correct + 1), initial=0.0)
  return float(min(tails[0] + 2 * num_canaries * delta * fewer, 1.0))


@checked
def one_run_epsilon(
  num_canaries: int, num_guesses: int, num_correct: int, *, confidence: float, delta: float = 0.0
) -> float:
  """A lower bound on epsilon from the number of right guesses.

  It is at most the true epsilon with probability `confidence`. The result is the first epsilon,
  going up from 0, that the guesses do not refute. With delta above 1/(2m) the p-value need not grow
  with epsilon, so larger values may be refuted again. The bound holds all the same: an audit errs
  only if it refutes the true epsilon.

  Args:
    num_canaries: as in `one_run_p_value`.
    num_guesses: as in `one_run_p_value`; fixed before the run.
    num_correct: as in `one_run_p_value`.
    confidence: in (0, 1).
    delta: the delta of the (epsilon, delta)-DP that is audited.

  Raises:
    ValueError: if an argument is out of range.

  >>> round(one_run_epsilon(1000, 100, 75, confidence=0.95, delta=1e-4), 3)
  0.673
  """
  if not 0 < 1 - confidence < 1:  # as computed: nothing refutes at a level that rounds to 1
    raise ValueError(f"Expected confidence in (0, 1), got {confidence}.")

  def surplus(epsilon):
    return one_run_p_value(num_canaries, num_guesses, num_correct, epsilon, delta) - (
      1 - confidence
    )

  if surplus(0.0) > 0:
    return 0.0
  low = 0.0
  # The loop ends: P(W = r) is near 1 for a large epsilon.
  while surplus(low + _EPSILON_STEP) <= 0:
    low += _EPSILON_STEP
  return scipy.optimize.brentq(surplus, low, low + _EPSILON_STEP, xtol=1e-9)


@checked
def audit_one_run(
  scores: AnyVector, included: AnyVector, *, num_guesses: int, confidence: float, delta: float = 0.0
) -> OneRunAudit:
  """A lower bound on epsilon from guesses of which canaries were included.

  It guesses that the canaries of highest score were included, and that those of lowest score were
  not.

  Args:
    scores: [m], of every canary, from what the run released. They are larger for canaries that seem
      to be included.
    included: bool [m], the coins. They are fair and independent, and influence the run by inclusion
      alone.
    num_guesses: an even number r with 2 <= r <= m. It is fixed before the run. Half of them guess
      "included".
    confidence: in (0, 1).
    delta: the delta of the (epsilon, delta)-DP that is audited.

  Raises:
    ValueError: if an argument is out of range, or a score is NaN.

  >>> rng = np.random.default_rng(0)
  >>> included = rng.random(1000) < 0.5
  >>> audit = audit_one_run(
  ...   included + rng.normal(size=1000), included, num_guesses=100, confidence=0.95, delta=1e-5
  ... )
  >>> audit.num_correct, round(audit.epsilon, 2)  # of 4.38
  (93, 1.92)
  """
  counts = count_right_guesses(scores, included, num_guesses)
  epsilon = one_run_epsilon(*counts, confidence=confidence, delta=delta)
  return OneRunAudit(epsilon, *counts[::-1])


@checked
def count_right_guesses(
  scores: AnyVector, included: AnyVector, num_guesses: int
) -> tuple[int, int, int]:
  """(canaries, guesses, right guesses), with the arguments of `audit_one_run`.

  >>> count_right_guesses([0.1, 0.9, 0.8, 0.3], [False, True, False, True], 2)
  (4, 2, 2)
  """
  if np.asarray(scores).dtype.kind not in "buif":
    raise ValueError("Expected scores to be real numbers, got others.")
  scores, included = np.asarray(scores, np.float64), np.asarray(included, bool)
  if not (scores.ndim == 1 and scores.shape == included.shape and not np.any(np.isnan(scores))):
    raise ValueError(
      f"Expected scores, one for each coin in included, none NaN, got shapes {scores.shape} and "
      f"{included.shape}."
    )
  _validate.integer(2, num_guesses=num_guesses)
  if num_guesses % 2:
    raise ValueError(
      f"Expected an even num_guesses, got {num_guesses}; half of them guess inclusion."
    )
  check_counts(scores.size, num_guesses, 0)
  order = np.argsort(scores, kind="stable")
  half = num_guesses // 2
  num_correct = int(np.sum(included[order[-half:]]) + np.sum(~included[order[:half]]))
  return scores.size, num_guesses, num_correct
