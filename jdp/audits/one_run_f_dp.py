"""Audits in one run against a whole trade-off curve (f-DP), which prove more than one epsilon does.

Source: arXiv 2410.22235, the recursion for adversaries that may abstain.

As in `jdp.audits.one_run`, a fair coin for each of m canaries decides whether it is included, and r
of the coins are guessed. Let T be the number of right guesses. Write R_i for the sum over j >= i of
P(T = j) j / m, and H_i for that of P(T = j) (r - j) / m. R_i is the probability that the guess of a
random canary is right and T >= i. If the canary's coin is flipped, that same guess is wrong, and
T is one less. So two neighbouring runs are told apart with the true-positive rate R_i at a
false-positive rate of at most H_{i-1}, and f-DP bounds one by the other. If P(T >= v) were large,
all these constraints together would need more probability than there is.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from jdp import _validate, accounting
from jdp._arguments import AnyVector, checked
from jdp.audits._shared import check_counts, check_delta, error_probability
from jdp.audits.one_run import count_right_guesses
from jdp.ledger import Ledger

Curve = Callable[[float], float]
"""True-positive rate -> the least false-positive rate of any test that has it.

The tests tell two neighbouring runs apart, whichever of them is the positive. The function is
convex and does not fall.
"""

_ROUNDING = 1e-9  # relative margin by which what is refuted must exceed what is possible
_PRECISION = 1e-6  # relative, of a bound
_GRID = 2000  # rates at which a ledger's curve is computed
_LEAST_RATE = 1e-7  # the least of these rates


class GaussianRunAudit(NamedTuple):
  """What an audit in one run found about a Gaussian trade-off curve.

  Attributes:
    mu: the lower bound, if the run's curve is a Gaussian one.
    num_correct: how many guesses were right.
    num_guesses: how many coins were guessed.
    num_canaries: how many coins there are, guessed or not.
  """

  mu: float
  num_correct: int
  num_guesses: int
  num_canaries: int

  def epsilon(self, delta: float) -> float:
    """The epsilon at `delta` of a Gaussian release that is `mu`-GDP, and of no other."""
    return gaussian_epsilon_of(self.mu, delta)


@checked
def gaussian_curve(mu: float) -> Curve:
  """The curve of a normal distribution and the one whose mean is `mu` standard deviations away.

  A run with the noise multiplier z in total has mu = 1/z (arXiv 1905.02383).

  Args:
    mu: >= 0.

  >>> round(gaussian_curve(1.0)(0.5), 4)
  0.1587
  """
  _validate.non_negative(mu=mu)
  ndtr, ndtri = scipy.special.ndtr, scipy.special.ndtri
  return lambda rate: float(ndtr(ndtri(min(rate, 1.0)) - mu))


@checked
def approximate_curve(epsilon: float, delta: float = 0.0) -> Curve:
  """The curve of (epsilon, delta)-DP, whatever the mechanism.

  Args:
    epsilon: >= 0.
    delta: in [0, 1).

  >>> round(approximate_curve(1.0)(0.5), 4)  # 0.5 / e
  0.1839
  """
  _validate.non_negative(epsilon=epsilon)
  check_delta(delta)
  low = math.exp(-epsilon)
  # At a huge epsilon the second line is -inf, except at a rate of 1.
  high = 1 / low if low > 0 else math.inf

  def curve(rate: float) -> float:
    missed = max(1 - rate, 0.0)
    return max(low * (rate - delta), 1 - delta - (high * missed if missed else 0.0), 0.0)

  return curve


@checked
def ledger_curve(
  ledger: Ledger, *, relation: str | None = None, observer: str | None = None
) -> Curve:
  """The curve that a ledger states: a test that refutes it refutes the ledger.

  It lies below the true curve of what the ledger holds, so less is refuted, never more.

  Args:
    ledger: what was done.
    relation: as for `jdp.accounting.trade_off`.
    observer: as for `jdp.accounting.trade_off`.

  Raises:
    ValueError: as `jdp.accounting.epsilon`.

  >>> from jdp.ledger import subsampled_gaussian
  >>> curve = ledger_curve(subsampled_gaussian(1.0, 1.0, 1))
  >>> 0.156 < curve(0.5) < gaussian_curve(1.0)(0.5)
  True
  """
  positive = np.geomspace(_LEAST_RATE, 0.5, _GRID // 2)
  rates = np.concatenate([positive, 1 - positive[-2::-1]])
  found = accounting.trade_off(ledger, rates.tolist(), relation=relation, observer=observer)
  # Between two rates no test does better than at the larger. The corners of that staircase, made
  # concave, lie above the rates of both directions, as the average over canaries needs.
  corners = np.append(0.0, rates), np.append(found, 1.0)
  false, true = _upper_hull(*corners)
  # Flat at its top, where the least false-positive rate is the first.
  top = int(np.argmax(true >= true[-1])) + 1

  def curve(rate: float) -> float:
    return float(np.interp(rate, true[:top], false[:top], left=0.0))

  return curve


@checked
def f_dp_p_value(num_canaries: int, num_guesses: int, num_correct: int, curve: Curve) -> float:
  """An upper bound on the probability of `num_correct` right guesses or more.

  It holds for every run whose neighbours no test tells apart better than `curve` says.

  Source: arXiv 2410.22235; see the module.

  Args:
    num_canaries: m, each included independently with probability 1/2.
    num_guesses: r <= m, made from the run's output alone. r must not depend on the coins.
    num_correct: v <= r.
    curve: `gaussian_curve`, `approximate_curve`, `ledger_curve` or another.

  Raises:
    ValueError: if an argument is out of range.

  >>> round(f_dp_p_value(1000, 100, 75, gaussian_curve(0.2)), 6)
  0.009885
  """
  check_counts(num_canaries, num_guesses, num_correct)
  counts = num_canaries, num_guesses, num_correct
  if num_correct == 0 or _is_possible(counts, 1.0, curve):
    return 1.0
  low, high = -745.0, 0.0  # logs: the smallest float, and 1
  while high - low > _PRECISION:
    middle = (low + high) / 2
    low, high = (middle, high) if _is_possible(counts, math.exp(middle), curve) else (low, middle)
  return math.exp(high)


@checked
def f_dp_bound(
  num_canaries: int,
  num_guesses: int,
  num_correct: int,
  family: Callable[[float], Curve],
  *,
  confidence: float,
  precision: float = 1e-6,
) -> float:
  """A lower bound on the parameter of a family of curves, from the number of right guesses.

  It is at most the run's parameter with probability `confidence`, if the run's curve is in the
  family. Every run's curve is in `approximate_curve`. A run with normal noise is in
  `gaussian_curve`, other runs are not: randomised response of epsilon 1, taken for a Gaussian
  release, would seem to have a larger epsilon.

  Args:
    num_canaries: as in `f_dp_p_value`.
    num_guesses: as in `f_dp_p_value`; fixed before the run.
    num_correct: as in `f_dp_p_value`.
    family: parameter >= 0 -> curve. A larger parameter has a lower curve.
    confidence: in (0, 1).
    precision: the relative amount by which the largest refuted parameter may exceed the bound. A
      coarse one saves evaluations of curves that take long, such as `ledger_curve`.

  Raises:
    ValueError: if an argument is out of range.

  >>> mu = f_dp_bound(1000, 100, 90, gaussian_curve, confidence=0.95)
  >>> epsilon = f_dp_bound(1000, 100, 90, approximate_curve, confidence=0.95)
  >>> round(mu, 3), round(epsilon, 3)
  (0.603, 1.615)
  """
  check_counts(num_canaries, num_guesses, num_correct)
  _validate.in_range(1e-12, 0.5, precision=precision)
  counts, error = (num_canaries, num_guesses, num_correct), error_probability(confidence)

  def refuted(parameter: float) -> bool:
    return not _is_possible(counts, error, family(parameter))

  if not refuted(0.0):
    return 0.0
  low, high = 0.0, 0.25
  while refuted(high):
    low, high = high, 2 * high
  while high - low > precision * high:
    middle = (low + high) / 2
    low, high = (middle, high) if refuted(middle) else (low, middle)
  return low


@checked
def audit_one_run_gaussian(
  scores: AnyVector, included: AnyVector, *, num_guesses: Sequence[int], confidence: float
) -> GaussianRunAudit:
  """A lower bound on mu from guesses of which canaries were included, for runs with normal noise.

  The guesses are those of `audit_one_run`.

  Args:
    scores: [m], as for `jdp.audits.one_run.audit_one_run`.
    included: bool [m], the coins.
    num_guesses: even numbers from 2 to m, fixed before the run. The best is reported: each has an
      equal share of 1 - confidence.
    confidence: in (0, 1). The bound is at most mu with this probability, if the run's trade-off
      curve is the Gaussian one of mu or above it.

  Raises:
    ValueError: if an argument is out of range, or a score is NaN.

  >>> rng = np.random.default_rng(0)
  >>> included = rng.random(1000) < 0.5
  >>> audit = audit_one_run_gaussian(
  ...   included + rng.normal(size=1000), included, num_guesses=(40,), confidence=0.95
  ... )
  >>> audit.num_correct, round(audit.mu, 2), round(audit.epsilon(1e-5), 2)  # of 1, and 4.38
  (39, 0.69, 2.87)
  """
  if not len(num_guesses):
    raise ValueError("Expected num_guesses to hold a number or more, got none.")
  share = error_probability(confidence) / len(num_guesses)
  audits = []
  for guesses in num_guesses:
    counts = count_right_guesses(scores, included, guesses)
    mu = f_dp_bound(*counts, gaussian_curve, confidence=1 - share)
    audits.append(GaussianRunAudit(mu, *counts[::-1]))
  return max(audits, key=lambda audit: audit.mu)


@checked
def gaussian_epsilon_of(mu: float, delta: float) -> float:
  """The epsilon at `delta` of a Gaussian release that is mu-GDP.

  Args:
    mu: 1/z in [0, 1e4], with z the noise multiplier.
    delta: in (0, 1).

  Raises:
    ValueError: if an argument is out of range.

  >>> round(gaussian_epsilon_of(0.25, 1e-5), 6)
  0.926342
  """
  _validate.in_range(0, 1e4, mu=mu)
  # Below the accountant's least mu the release counts as one that tells nothing.
  return accounting.gaussian_epsilon(1 / mu, delta) if mu > 1e-4 else 0.0


def _is_possible(counts: tuple[int, int, int], tail: float, curve: Curve) -> bool:
  """Whether `correct` right guesses or more may have the probability `tail`.

  If `tail` were that probability, R and H would be at least `right` and `wrong` at every step, in
  the worst case: all of the tail is at exactly `correct` right guesses.
  """
  canaries, guesses, correct = counts
  right, wrong = tail * correct / canaries, tail * (guesses - correct) / canaries
  # R_0 + H_0 sums over all numbers of right guesses. It only grows, step by step.
  most = guesses / canaries * (1 + _ROUNDING)
  for i in range(correct - 1, -1, -1):
    least = curve(right)
    if right + wrong > most or not least > wrong:
      break
    right, wrong = right + i / (guesses - i) * (least - wrong), least
  return right + wrong <= most


def _upper_hull(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The vertices of the least concave function above points of increasing x."""
  hull: list[int] = []
  for i in range(len(x)):
    while len(hull) > 1:
      a, b = hull[-2:]
      if (y[b] - y[a]) * (x[i] - x[a]) > (y[i] - y[a]) * (x[b] - x[a]):
        break
      hull.pop()
    hull.append(i)
  return x[hull], y[hull]
