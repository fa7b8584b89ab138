"""Audits: lower bounds on a privacy loss, from observed outputs, with a stated confidence.

An audit tests a claim by experiment. It draws many outputs on two neighbouring inputs. It looks for
an event that is far likelier on one input than on the other. How often it was seen on each is a
lower bound (`jdp.audits.bounds`), if the event was fixed before the outputs were seen. There are
two ways to ensure that:

* `audit_scores` chooses the event on one half of the outputs and measures it on the other;
* `audit_outcomes` measures every outcome of a finite set, and shares the confidence among them.

A bound above the stated epsilon refutes the statement. A bound below it proves nothing: another
pair of inputs, another event or more outputs might do better.
"""

from typing import NamedTuple

import numpy as np

from jdp._arguments import Matrix, Vector, checked
from jdp.audits._shared import (
  check_delta,
  checked_scores,
  error_probability,
  log_or_minus_inf,
)
from jdp.audits.bounds import Bound, clopper_pearson

_NUM_QUANTILES = 128
# Rarer outcomes are left out: otherwise every float would be an event of its own.
_LEAST_COUNT = 10


class ScoreAudit(NamedTuple):
  """What an audit of scores found.

  Attributes:
    bound: the lower bound, >= 0, on epsilon or on whatever loss the `Bound` measures.
    threshold: the score at which the event begins.
    upper: whether the event is a score of at least `threshold`, which the first input makes
      likelier. If False, the event is a score of at most `threshold`, which the second input makes
      likelier.
    hits: outputs in the event on the input that makes it likelier.
    trials: outputs that `hits` was counted in.
    false_hits: outputs in the event on the other input.
    false_trials: outputs that `false_hits` was counted in.
  """

  bound: float
  threshold: float
  upper: bool
  hits: int
  trials: int
  false_hits: int
  false_trials: int


@checked
def audit_scores(first: Vector, second: Vector, bound: Bound) -> ScoreAudit:
  """An audit by a threshold on scores.

  The first half of the scores chooses the threshold, and the second half measures it.

  Args:
    first: [n] independent scores of outputs on one input, in the order they were drawn, n >= 2.
    second: [n'] the same on the other input. A good score is larger on the first input. The best is
      the log of the likelihood ratio.
    bound: `epsilon_bound` or `gaussian_bound`. Its confidence is the audit's, however the threshold
      was chosen.

  Raises:
    ValueError: if there are fewer than two scores of either kind, or one is NaN.

  >>> from jdp.audits.bounds import epsilon_bound
  >>> rng = np.random.default_rng(0)
  >>> audit = audit_scores(
  ...   rng.laplace(1.0, size=20_000), rng.laplace(0.0, size=20_000), epsilon_bound(0.95)
  ... )
  >>> 0.8 < audit.bound < 1.0
  True
  """
  first, second = checked_scores("first", first), checked_scores("second", second)
  (own, new), (other, other_new) = (
    np.split(scores, [len(scores) // 2]) for scores in (first, second)
  )
  upper, event = choose_side(own, other, bound)
  counts = count_both(event, *((new, other_new) if upper else (-other_new, -new)))
  hits, trials, false_hits, false_trials = counts
  found = bound(np.asarray(hits), trials, np.asarray(false_hits), false_trials)
  return ScoreAudit(float(found), event.at_least if upper else -event.at_least, upper, *counts)


@checked
def audit_outcomes(counts: Matrix, *, confidence: float, delta: float = 0.0) -> float:
  """A lower bound on epsilon from histograms, jointly over all outcomes and all pairs of inputs.

  Args:
    counts: [inputs, outcomes], how often each outcome was seen on each input, in independent
      trials. The definition of an outcome must be fixed before the trials.
    confidence: the probability that all limits hold, two for each count. The bound is at most
      epsilon whenever they do.
    delta: the delta of the (epsilon, delta)-DP that is audited, in [0, 1).

  Returns:
    The bound, >= 0.

  Raises:
    ValueError: if `counts` is not such a matrix, or an argument is out of range.

  >>> round(audit_outcomes([[900, 100], [100, 900]], confidence=0.95), 3)
  1.937
  """
  counts = np.asarray(counts)
  if not (counts.ndim == 2 and min(counts.shape) >= 2 and np.all(counts >= 0)):
    raise ValueError(
      f"Expected counts >= 0 of at least two inputs and two outcomes, got shape {counts.shape}."
    )
  check_delta(delta)
  # Union bound: each count has a lower and an upper limit, and all of them must hold.
  low, high = clopper_pearson(
    counts, counts.sum(axis=1, keepdims=True), error_probability(confidence) / (2 * counts.size)
  )
  ratios = np.max(log_or_minus_inf(low - delta), axis=0) - np.min(np.log(high), axis=0)
  return max(float(np.max(ratios)), 0.0)


class Threshold(NamedTuple):
  """The event that a score is at least `at_least`."""

  at_least: float

  def count(self, scores: np.ndarray) -> int:
    """How many scores are in the event."""
    return int(np.count_nonzero(scores >= self.at_least))


class Outcomes(NamedTuple):
  """The event that a score is one of `values`, a sorted array."""

  values: np.ndarray

  def count(self, scores: np.ndarray) -> int:
    """How many scores are in the event."""
    return int(np.count_nonzero(np.isin(scores, self.values)))


@checked
def count_both(
  event: Threshold | Outcomes, first: Vector, second: Vector
) -> tuple[int, int, int, int]:
  """(hits, trials, false hits, false trials) of an event on two inputs' scores, for a `Bound`.

  >>> count_both(Threshold(2.0), np.array([1, 2, 3]), np.array([0, 2]))
  (2, 3, 1, 2)
  """
  return event.count(first), len(first), event.count(second), len(second)


@checked
def choose_side(first: Vector, second: Vector, bound: Bound) -> tuple[bool, Threshold]:
  """(upper, event) of the threshold with the largest bound, on either side.

  Args:
    first: [n] scores of outputs on one input.
    second: [n'] scores on the other input.
    bound: `epsilon_bound` or another.

  Returns:
    Whether high scores are the event, which the first input makes likelier. If not, the event is of
    negated scores, and the second input makes it likelier.

  >>> from jdp.audits.bounds import epsilon_bound
  >>> first, second = np.repeat([1, 2], [1, 19]), np.repeat([1, 2], 10)
  >>> choose_side(first, second, epsilon_bound(0.9))
  (False, Threshold(at_least=-1.0))
  """
  own, other = np.sort(first), np.sort(second)
  # Negated scores in reverse order are sorted again: one search serves both sides.
  above, upper = best_threshold(own, other, bound)
  below, lower = best_threshold(-other[::-1], -own[::-1], bound)
  return (True, upper) if above >= below else (False, lower)


@checked
def best_threshold(first: Vector, second: Vector, bound: Bound) -> tuple[float, Threshold]:
  """(bound, event) of the threshold with the largest bound on these scores.

  The bound only ranks events: a proof needs new scores, which took no part in the choice.

  Args:
    first: [n] sorted scores of outputs on the input that is to make the event likelier.
    second: [n'] sorted scores on the other input.
    bound: `epsilon_bound` or another.

  >>> from jdp.audits.bounds import epsilon_bound
  >>> first, second = np.repeat([1, 2, 3], [10, 20, 70]), np.repeat([1, 2, 3], [70, 20, 10])
  >>> bound, event = best_threshold(first, second, epsilon_bound(0.95))
  >>> round(bound, 3), event
  (1.225, Threshold(at_least=3.0))
  """
  thresholds = np.unique([_candidate_thresholds(first), _candidate_thresholds(second)])
  bounds = bound(
    _count_at_least(first, thresholds), len(first), _count_at_least(second, thresholds), len(second)
  )
  best = int(np.argmax(bounds))
  return float(bounds[best]), Threshold(float(thresholds[best]))


@checked
def best_outcomes(first: Vector, second: Vector, bound: Bound) -> tuple[float, Outcomes]:
  """(bound, event) of the set of frequent outcomes with the largest bound.

  The set holds the outcomes of the largest likelihood ratios.

  Args:
    first: [n] sorted scores of outputs on the input that is to make the event likelier. Scores are
      categories here.
    second: [n'] sorted scores on the other input.
    bound: `epsilon_bound` or another.

  >>> from jdp.audits.bounds import epsilon_bound
  >>> first, second = np.repeat([1, 2, 3], [15, 70, 15]), np.repeat([1, 2, 3], [45, 10, 45])
  >>> bound, event = best_outcomes(first, second, epsilon_bound(0.95))
  >>> round(bound, 3), event
  (1.225, Outcomes(values=array([2])))
  """
  values, hits = np.unique(first, return_counts=True)
  values, hits = values[hits >= _LEAST_COUNT], hits[hits >= _LEAST_COUNT]
  if not len(values):
    return 0.0, Outcomes(values)
  false_hits = np.searchsorted(second, values, side="right") - np.searchsorted(
    second, values, side="left"
  )
  # By the Neyman-Pearson lemma, the best sets take the first outcomes in this order.
  order = np.argsort(-hits / (false_hits + 1), kind="stable")
  bounds = bound(np.cumsum(hits[order]), len(first), np.cumsum(false_hits[order]), len(second))
  best = int(np.argmax(bounds))
  return float(bounds[best]), Outcomes(np.sort(values[order[: best + 1]]))


def _candidate_thresholds(scores: np.ndarray) -> np.ndarray:
  """Candidate thresholds: quantiles of the sorted scores.

  Half of the shares above them are evenly spaced. The other half are geometrically spaced, for rare
  events.
  """
  shares = np.append(
    np.linspace(0, 1, _NUM_QUANTILES), np.geomspace(1 / len(scores), 1, _NUM_QUANTILES)
  )
  return scores[np.ceil((1 - shares) * (len(scores) - 1)).astype(int)]


def _count_at_least(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
  """How many of the sorted scores are at least as large as each threshold."""
  return len(scores) - np.searchsorted(scores, thresholds, side="left")
