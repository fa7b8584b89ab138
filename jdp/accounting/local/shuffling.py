"""Privacy amplification by shuffling: local reports that others see only in a random order.

Each of n users sends one report of an epsilon_0-DP local randomiser R, and a shuffler removes who
sent what. A user whose value changes from x to x' hides among the others. With probability r
another user's report is a *clone*. That is a draw of the same two distributions Q and Q' that the
changed user's report mixes,

    R(x) = w Q + (1 - w) Q',    R(x') = (1 - w) Q + w Q',    w = e^epsilon_0 / (e^epsilon_0 + 1).

Here Q = (e^epsilon_0 R(x) - R(x')) / (e^epsilon_0 - 1), and Q' with x and x' exchanged. They
are distributions, as R is epsilon_0-DP. All else about the reports does not depend on the changed
value. So what is seen is a post-processing of the number of draws from each of the two
distributions,

    (A + D, C - A + 1 - D)  against  (A + 1 - D, C - A + D),
    C ~ Bin(n - 1, r),  A ~ Bin(C, 1/2),  D ~ Bern(w)

(arXiv 2012.12803, Theorem 3.1 and its proof). This module computes delta, the hockey-stick
divergence of these two. They are mirror images, so both directions cost the same.

The probability of a clone is

* for any randomiser, r = e^-epsilon_0: R(x'') >= e^-epsilon_0 (R(x) + R(x')) / 2 = e^-epsilon_0 (Q
  + Q') / 2;
* for k-ary randomised response, r = 2 / (e^epsilon_0 + 1). There even R(x'') >= (R(x) + R(x')) /
  (e^epsilon_0 + 1), because no output has the higher probability under both inputs.

arXiv 2208.04591 had stated the second r for every randomiser. Its erratum withdraws that.
"""

import functools
import math

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked

# The two tails of the number of clones, of mass at most e^-80 each, are not summed over. 2 e^-80 is
# added to delta.
_LOG_TAIL = 80.0
_MAX_GROUPS = 4096  # groups of numbers of clones that are summed over
_MOST_REPORTS = 10**9  # these have nearly a million likely numbers of clones
_ROUNDING = 1e-10  # relative error allowed for in the binomial tails
_TOLERANCE = 1e-9  # absolute tolerance of a search in epsilon
_MAX_EPSILON = 500.0  # e^epsilon is still finite; no number of reports amplifies this much
_TINY = 1e-300  # keeps logarithms finite at delta = 0

_CLONES = {
  "any": lambda epsilon: math.exp(-epsilon),
  "randomized_response": lambda epsilon: 2 * float(scipy.special.expit(-epsilon)),
}


@checked
def shuffled_delta(
  local_epsilon: float, num_reports: int, epsilon: float, *, randomizer: str = "any"
) -> float:
  """The delta of (epsilon, delta)-differential privacy of shuffled local reports.

  Formal guarantee: replace-one, per user (one report each), against observers who see the reports
  only after shuffling. It holds for users that share a randomiser. It also holds for randomisers
  that each depend on the reports before (arXiv 2012.12803, Theorem 3.1), if the users were put in a
  uniform order first. The server that receives reports with their senders still sees epsilon_0. The
  value is computed in float64, with an allowance for rounding. It is an upper bound.

  Args:
    local_epsilon: epsilon_0 of one report, in [0, 500]. It is pure DP under replace-one.
    num_reports: n, the number of reports, a public constant. More than 1e9 count as 1e9, because
      further reports only help.
    epsilon: >= 0.
    randomizer: "any", or "randomized_response" (of any number of values), for which more is proved.

  Returns:
    delta in [0, 1]; 0 from epsilon = local_epsilon on.

  Raises:
    ValueError: if an argument is out of range.

  >>> print(f"{shuffled_delta(2.0, 10_000, 0.25):.3g}")
  7.26e-12
  """
  _check(local_epsilon, num_reports, randomizer)
  _validate.non_negative(epsilon=epsilon)
  if epsilon >= local_epsilon:
    return 0.0
  clones, mass = _clones(min(num_reports, _MOST_REPORTS) - 1, _CLONES[randomizer](local_epsilon))
  # The likelihood ratio of the first count, k of c + 1, grows with k. It exceeds e^epsilon from a
  # fixed share of c + 1 on.
  share = math.expm1(-epsilon - local_epsilon) / (
    math.expm1(-local_epsilon) * (1 + math.exp(-epsilon))
  )
  least = np.ceil(share * (clones + 1))
  half = scipy.stats.binom(clones, 0.5)
  above, at = half.sf(least - 1), half.pmf(least - 1)
  # The hockey-stick divergence of that event: a term at its border, minus one for the tail beyond.
  gain = -math.expm1(epsilon - local_epsilon) * float(scipy.special.expit(local_epsilon)) * at
  lost = math.expm1(epsilon) * above
  found = float(mass @ (np.maximum(gain - lost, 0) + _ROUNDING * (gain + lost)))
  return min(1.0, found + 2 * math.exp(-_LOG_TAIL))


@checked
def shuffled_epsilon(
  local_epsilon: float, num_reports: int, delta: float, *, randomizer: str = "any"
) -> float:
  """The epsilon of shuffled local reports at a given delta: the inverse of `shuffled_delta`.

  The guarantee is that of `shuffled_delta`.

  Args:
    local_epsilon: epsilon_0 of one report, in [0, 500].
    num_reports: n.
    delta: in [0, 1].
    randomizer: see `shuffled_delta`.

  Returns:
    epsilon in [0, local_epsilon], at most 1e-9 above the least for which `shuffled_delta` allows
    it.

  Raises:
    ValueError: if an argument is out of range.

  >>> print(f"{shuffled_epsilon(1.0, 100_000, 1e-6):.4f}")
  0.0153
  """
  _check(local_epsilon, num_reports, randomizer)
  _validate.probability(delta=delta)

  def excess(epsilon: float) -> float:
    found = shuffled_delta(local_epsilon, num_reports, epsilon, randomizer=randomizer)
    return math.log(max(found, _TINY)) - math.log(max(delta, _TINY))

  if excess(0.0) <= 0:
    return 0.0
  if excess(local_epsilon) == 0:
    return local_epsilon
  found = float(scipy.optimize.brentq(excess, local_epsilon, 0.0, xtol=_TOLERANCE / 4))
  # The root may lie a rounding error below: step up until the bound holds.
  while excess(found) > 0:
    found += _TOLERANCE / 4
  return min(found, local_epsilon)


@functools.lru_cache(maxsize=4)
def _clones(others: int, probability: float) -> tuple[np.ndarray, np.ndarray]:
  """Numbers of clones and their probabilities: all but 2 e^-_LOG_TAIL of the mass.

  The range follows from Bernstein's inequality. Long ranges are cut into groups, each counted as
  its smallest number. Fewer clones never hide better: an observer of the counts could add one.
  """
  mean, variance = others * probability, others * probability * (1 - probability)
  reach = _LOG_TAIL / 3 + math.sqrt((_LOG_TAIL / 3) ** 2 + 2 * _LOG_TAIL * variance)
  clones = np.arange(max(0, math.floor(mean - reach)), min(others, math.ceil(mean + reach)) + 1.0)
  starts = np.arange(0, clones.size, -(-clones.size // _MAX_GROUPS))
  return clones[starts], np.add.reduceat(scipy.stats.binom(others, probability).pmf(clones), starts)


def _check(local_epsilon: float, num_reports: int, randomizer: str) -> None:
  _validate.in_range(0, _MAX_EPSILON, local_epsilon=local_epsilon)
  _validate.integer(1, num_reports=num_reports)
  _validate.one_of(_CLONES, randomizer=randomizer)
