"""Audits that may stop at any time: bounds that hold for all numbers of outputs at once.

Clopper and Pearson's limits hold for a number of outputs that was fixed beforehand. Who looks after
every batch, and stops at the first bound that refutes, has many chances to err. The limits here
are a confidence sequence: all of them hold together, so one may stop whenever one likes.

A likelihood ratio of the outputs, with any prior of the event's probability against its true value,
is a martingale of mean 1. It ever reaches 1/error with a probability of at most `error` (Ville's
inequality). The prior is Jeffreys', Beta(1/2, 1/2) (Robbins, "Statistical methods related to the
law of the iterated logarithm", Annals of Mathematical Statistics 1970).
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from jdp import _validate
from jdp._arguments import checked
from jdp.audits._shared import (
  check_delta,
  checked_scores,
  epsilon_bound_by,
  error_probability,
  gaussian_bound_by,
)
from jdp.audits.bounds import Bound
from jdp.audits.scores import ScoreAudit, choose_side, count_both

_PRIOR = 0.5  # both parameters of Jeffreys' Beta(1/2, 1/2)
_BISECTIONS = 60


@checked
def anytime_limits(
  successes: ArrayLike, trials: ArrayLike, error: float
) -> tuple[np.ndarray, np.ndarray]:
  """Lower and upper confidence limits of a probability, for all numbers of trials at once.

  Each limit is wrong at any of these times with probability at most `error`.

  Args:
    successes: the number of successes in independent trials so far.
    trials: the number of trials so far.
    error: in (0, 1).

  >>> low, high = anytime_limits([0, 50, 100], 100, 0.005)
  >>> low.round(3).tolist(), high.round(3).tolist()
  ([0.0, 0.31, 0.922], [0.078, 0.69, 1.0])
  """
  _validate.in_range(1e-300, 1 - 1e-16, error=error)
  k, n = _validate.broadcast(successes=successes, trials=trials)
  k, n = k.astype(float), n.astype(float)
  evidence = scipy.special.betaln(k + _PRIOR, n - k + _PRIOR) - scipy.special.betaln(_PRIOR, _PRIOR)

  def excess(p: np.ndarray) -> np.ndarray:
    """The log of the likelihood ratio against p, minus the log of 1/error."""
    log_likelihood = scipy.special.xlogy(k, p) + scipy.special.xlog1py(n - k, -p)
    return evidence - log_likelihood + math.log(error)

  share = np.divide(k, n, out=np.full(k.shape, 0.5), where=n > 0)
  return _outermost(excess, share, np.zeros_like(k)), _outermost(excess, share, np.ones_like(k))


@checked
def anytime_epsilon_bound(confidence: float, delta: float = 0.0) -> Bound:
  """`jdp.audits.bounds.epsilon_bound`, for all numbers of outputs at once.

  All bounds from growing numbers of outputs are at most the true epsilon, with probability
  `confidence`.

  Args:
    confidence: in (0, 1). The limits of P and of Q share it equally.
    delta: the delta of the (epsilon, delta)-DP that is audited, in [0, 1).

  Raises:
    ValueError: if an argument is out of range.

  >>> anytime_epsilon_bound(0.95)(900, 1000, 100, 1000).round(3).item()  # `epsilon_bound`: 1.990
  1.813
  """
  check_delta(delta)
  return epsilon_bound_by(anytime_limits, error_probability(confidence) / 2, delta)


@checked
def anytime_gaussian_bound(confidence: float) -> Bound:
  """`jdp.audits.bounds.gaussian_bound`, for all numbers of outputs at once.

  Args:
    confidence: in (0, 1). All bounds are at most the least mu with this probability.

  >>> anytime_gaussian_bound(0.95)(840, 1000, 160, 1000).round(3).item()  # of mu = 1.989
  1.629
  """
  return gaussian_bound_by(anytime_limits, error_probability(confidence) / 2)


class SequentialAudit(NamedTuple):
  """What an audit found that may have stopped early.

  Attributes:
    found: what it found at the last look. Its bound is the largest of all looks.
    num_batches: how many batches were drawn, including the one that chose the event.
    stopped: whether the bound exceeded the claim before the batches were used up.
  """

  found: ScoreAudit
  num_batches: int
  stopped: bool


@checked
def audit_until_refuted(
  batches: Iterable[tuple[np.ndarray, np.ndarray]], claim: float, bound: Bound
) -> SequentialAudit:
  """An audit by a threshold on scores that looks after every batch, and stops once it refutes.

  The first batch chooses the threshold. The bound is at most the true loss with the confidence of
  `bound`, wherever the audit stops.

  Args:
    batches: pairs (scores of one input, scores of the other), all independent. A good score is
      larger on the first input. They are drawn only while the audit goes on.
    claim: the stated epsilon, or mu.
    bound: `anytime_epsilon_bound` or `anytime_gaussian_bound`. One that holds for a fixed number of
      outputs would err too often.

  Raises:
    ValueError: if there are fewer than two batches, or a batch is not a pair of scores.

  >>> rng = np.random.default_rng(0)
  >>> batches = ((rng.laplace(1.0, size=1000), rng.laplace(0.0, size=1000)) for _ in range(100))
  >>> audit = audit_until_refuted(batches, 0.5, anytime_epsilon_bound(0.99))
  >>> audit.stopped, audit.num_batches < 10
  (True, True)
  """
  remaining = iter(batches)
  opening = next(remaining, None)
  if opening is None:
    raise ValueError("Expected two batches or more, got none; the first chooses the event.")
  upper, event = choose_side(*_checked_pair(opening), bound)
  counts, best, looks = np.zeros(4, int), 0.0, 0
  for batch in remaining:
    own, other = _checked_pair(batch)
    counts += count_both(event, *((own, other) if upper else (-other, -own)))
    best, looks = max(best, float(bound(*counts))), looks + 1
    if best > claim:
      break
  if not looks:
    raise ValueError("Expected two batches or more, got one; the first only chooses the event.")
  threshold = event.at_least if upper else -event.at_least
  found = ScoreAudit(best, threshold, upper, *counts.tolist())
  return SequentialAudit(found, looks + 1, best > claim)


def _checked_pair(batch: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
  first, second = batch
  return checked_scores("first", first), checked_scores("second", second)


def _outermost(
  excess: Callable[[np.ndarray], np.ndarray], inside: np.ndarray, outside: np.ndarray
) -> np.ndarray:
  """Where, between `inside` and `outside`, the evidence against a probability begins to suffice.

  The result is rounded outwards. It is `outside` if the evidence does not suffice there.
  """
  reached = excess(outside) > 0
  end = outside
  for _ in range(_BISECTIONS):
    middle = (inside + outside) / 2
    against = excess(middle) > 0
    inside, outside = np.where(against, inside, middle), np.where(against, middle, outside)
  return np.where(reached, outside, end)
