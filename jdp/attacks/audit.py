"""Audits: lower bounds on a privacy loss, from observed outputs, with a stated confidence.

An audit tests a claim by experiment. It draws many outputs on two neighbouring inputs. It looks for
an event A that is far likelier on one input than on the other. A mechanism that is (epsilon,
delta)-DP has P(A) <= e^epsilon Q(A) + delta for every event. So a lower limit of P(A) and an upper
limit of Q(A) bound epsilon from below. Both limits are Clopper and Pearson's.

The limits hold for an event that was fixed before the outputs were seen. There are two ways to
ensure that:

* `audit_scores` chooses the event on one half of the outputs and measures it on the other;
* `audit_outcomes` measures every outcome of a finite set, and shares the confidence among them.

A bound above the stated epsilon refutes the statement. A bound below it proves nothing: another
pair of inputs, another event or more outputs might do better.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from jdp import _validate
from jdp._arguments import Matrix, Vector, checked

Bound = Callable[[np.ndarray, int, np.ndarray, int], np.ndarray]
"""(hits, trials, false hits, false trials) -> lower bounds on the loss, elementwise.

The event was seen `hits` times in `trials` outputs on one input. It was seen `false hits` times in
`false trials` outputs on the other.
"""

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
def clopper_pearson(
  successes: ArrayLike, trials: ArrayLike, error: float
) -> tuple[np.ndarray, np.ndarray]:
  """Lower and upper confidence limits of a probability from independent trials, elementwise.

  Each limit is wrong with probability at most `error`.

  Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of
  the binomial" (Biometrika 1934).

  >>> low, high = clopper_pearson([0, 50, 100], 100, 0.005)
  >>> low.round(3).tolist(), high.round(3).tolist()
  ([0.0, 0.369, 0.948], [0.052, 0.631, 1.0])
  """
  k, n = _validate.broadcast(successes=successes, trials=trials)
  low = np.where(k > 0, scipy.special.betaincinv(np.maximum(k, 1), n - k + 1, error), 0.0)
  high = np.where(k < n, scipy.special.betainccinv(k + 1, np.maximum(n - k, 1), error), 1.0)
  return low, high


@checked
def epsilon_bound(confidence: float, delta: float = 0.0) -> Bound:
  """The bound log((P - delta) / Q) on epsilon.

  It is at most the true epsilon with probability `confidence`.

  Args:
    confidence: in (0, 1). The limits of P and of Q share it equally.
    delta: of the (epsilon, delta)-DP that is audited, in [0, 1).

  Raises:
    ValueError: if an argument is out of range.

  >>> epsilon_bound(0.95)(900, 1000, 100, 1000).round(3).item()  # of log 9 = 2.197
  1.99
  """
  error = _error_probability(confidence) / 2
  _check_delta(delta)

  def bound(hits, trials, false_hits, false_trials):
    low, _ = clopper_pearson(hits, trials, error)
    _, high = clopper_pearson(false_hits, false_trials, error)
    return np.maximum(_log_or_minus_inf(low - delta) - np.log(high), 0.0)

  return bound


@checked
def quick_epsilon_bound(confidence: float, delta: float = 0.0) -> Bound:
  """`epsilon_bound` by Wilson's limits, for the choice of events.

  Wilson's limits are faster, but they hold only approximately.

  Source: Wilson, "Probable inference, the law of succession, and statistical inference" (JASA
  1927).

  >>> quick_epsilon_bound(0.95)(900, 1000, 100, 1000).round(3).item()  # `epsilon_bound`: 1.990
  1.991
  """
  z = scipy.special.ndtri(1 - _error_probability(confidence) / 2)
  _check_delta(delta)

  def limits(hits, trials):
    p, spread = hits / trials, z * z / trials
    half = z * np.sqrt(p * (1 - p) / trials + spread / (4 * trials))
    return (p + spread / 2 - half) / (1 + spread), (p + spread / 2 + half) / (1 + spread)

  def bound(hits, trials, false_hits, false_trials):
    (low, _), (_, high) = (
      limits(np.asarray(hits), trials),
      limits(np.asarray(false_hits), false_trials),
    )
    return np.maximum(_log_or_minus_inf(low - delta) - np.log(high), 0.0)

  return bound


@checked
def gaussian_bound(confidence: float) -> Bound:
  """The bound Phi^-1(P) - Phi^-1(Q) on mu, for mechanisms that are mu-GDP.

  A release with normal noise of multiplier z is 1/z-GDP (Dong, Roth, Su, arXiv 1905.02383, Theorem
  1). That is a claim about all its pairs (epsilon, delta) at once. The events that refute it are
  far likelier than any delta worth stating.

  Args:
    confidence: in (0, 1). The bound is at most the least such mu with this probability.

  >>> gaussian_bound(0.95)(840, 1000, 160, 1000).round(3).item()  # of mu = 1.989
  1.799
  """
  error = _error_probability(confidence) / 2

  def bound(hits, trials, false_hits, false_trials):
    low, _ = clopper_pearson(hits, trials, error)
    _, high = clopper_pearson(false_hits, false_trials, error)
    # A limit of 0 for P, or of 1 for Q, says nothing: the bound is 0 there, not -inf.
    informative = (low > 0) & (high < 1)
    return np.where(
      informative, np.maximum(scipy.special.ndtri(low) - scipy.special.ndtri(high), 0.0), 0.0
    )

  return bound


@checked
def audit_scores(first: Vector, second: Vector, bound: Bound) -> ScoreAudit:
  """An audit by a threshold on scores.

  The first half of the scores chooses the threshold, and the second half measures it.

  Args:
    first: [n] independent scores of outputs on one input, in the order they were drawn, n >= 2.
    second: [n'] likewise on the other input. A good score is larger on the first input. The best is
      the log of the likelihood ratio.
    bound: `epsilon_bound` or `gaussian_bound`. Its confidence is the audit's, however the threshold
      was chosen.

  Raises:
    ValueError: if there are fewer than two scores of either kind, or one is NaN.

  >>> rng = np.random.default_rng(0)
  >>> audit = audit_scores(
  ...   rng.laplace(1.0, size=20_000), rng.laplace(0.0, size=20_000), epsilon_bound(0.95)
  ... )
  >>> 0.8 < audit.bound < 1.0
  True
  """
  first, second = _checked_scores("first", first), _checked_scores("second", second)
  (own, new), (other, other_new) = (
    np.split(scores, [len(scores) // 2]) for scores in (first, second)
  )
  own, other = np.sort(own), np.sort(other)
  # Negated scores in reverse order are sorted again: one search serves both sides.
  above, upper = best_threshold(own, other, bound)
  below, lower = best_threshold(-other[::-1], -own[::-1], bound)
  if above >= below:
    return _measure(new, other_new, upper.at_least, bound)
  found = _measure(-other_new, -new, lower.at_least, bound)
  return found._replace(threshold=-found.threshold, upper=False)


@checked
def audit_outcomes(counts: Matrix, *, confidence: float, delta: float = 0.0) -> float:
  """A lower bound on epsilon from histograms, jointly over all outcomes and all pairs of inputs.

  Args:
    counts: [inputs, outcomes], how often each outcome was seen on each input, in independent
      trials. The definition of an outcome must be fixed before the trials.
    confidence: the probability that all limits hold, two for each count. The bound is at most
      epsilon whenever they do.
    delta: of the (epsilon, delta)-DP that is audited, in [0, 1).

  Returns:
    The bound, >= 0.

  Raises:
    ValueError: if `counts` is no such matrix, or an argument is out of range.

  >>> round(audit_outcomes([[900, 100], [100, 900]], confidence=0.95), 3)
  1.937
  """
  counts = np.asarray(counts)
  if not (counts.ndim == 2 and min(counts.shape) >= 2 and np.all(counts >= 0)):
    raise ValueError(
      f"Expected counts >= 0 of at least two inputs and two outcomes, got shape {counts.shape}."
    )
  _check_delta(delta)
  # Union bound: each count has a lower and an upper limit, and all of them must hold.
  low, high = clopper_pearson(
    counts, counts.sum(axis=1, keepdims=True), _error_probability(confidence) / (2 * counts.size)
  )
  ratios = np.max(_log_or_minus_inf(low - delta), axis=0) - np.min(np.log(high), axis=0)
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
def best_threshold(first: Vector, second: Vector, bound: Bound) -> tuple[float, Threshold]:
  """(bound, event) of the threshold with the largest bound on these scores.

  The bound only ranks events: a proof needs new scores, which took no part in the choice.

  Args:
    first: [n] sorted scores of outputs on the input that is to make the event likelier.
    second: [n'] sorted scores on the other input.
    bound: `epsilon_bound` or another.
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
  """
  values, hits = np.unique(first, return_counts=True)
  values, hits = values[hits >= _LEAST_COUNT], hits[hits >= _LEAST_COUNT]
  if not len(values):
    return 0.0, Outcomes(values)
  false_hits = np.searchsorted(second, values, side="right") - np.searchsorted(
    second, values, side="left"
  )
  # By the Neyman-Pearson lemma, the best sets are the first so many in this order.
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


def _measure(first: np.ndarray, second: np.ndarray, threshold: float, bound: Bound) -> ScoreAudit:
  """The audit of a fixed event, on scores that did not choose it."""
  hits, false_hits = (Threshold(threshold).count(scores) for scores in (first, second))
  found = float(bound(np.asarray(hits), len(first), np.asarray(false_hits), len(second)))
  return ScoreAudit(found, threshold, True, hits, len(first), false_hits, len(second))


def _count_at_least(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
  """How many of the sorted scores are at least as large as each threshold."""
  return len(scores) - np.searchsorted(scores, thresholds, side="left")


def _checked_scores(name: str, values: ArrayLike) -> np.ndarray:
  values = np.asarray(values, np.float64)
  if not (values.ndim == 1 and values.size >= 2 and not np.any(np.isnan(values))):
    raise ValueError(
      f"Expected {name} to be at least two scores, none of them NaN, got shape {values.shape}."
    )
  return values


def _log_or_minus_inf(x: np.ndarray) -> np.ndarray:
  """log x, and -inf where x is not positive."""
  return np.log(np.maximum(x, 0.0), out=np.full(np.shape(x), -np.inf), where=np.asarray(x) > 0)


def _error_probability(confidence: float) -> float:
  if not 0 < confidence < 1:
    raise ValueError(f"Expected confidence in (0, 1), got {confidence}.")
  return 1 - confidence


def _check_delta(delta: float) -> None:
  if not 0 <= delta < 1:
    raise ValueError(f"Expected delta in [0, 1), got {delta}.")
