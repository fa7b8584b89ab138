"""The best noise, sampling probability, rounds or cohort that meets a privacy target.

Each search takes a plan, a function from the searched number to the ledger of the run. The ledger
may hold anything: schedules, groups, local releases. Epsilon must be monotone in the number.

Samples that outgrow their slots add (1 + e^epsilon) times their probability to delta. So such a
plan has a largest epsilon that it can state. A target beyond it is refused, because the search
would stop at the number for that largest epsilon.
"""

import bisect
import functools
import math
from collections.abc import Callable
from typing import Any

import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.accountant import epsilon
from jdp.accounting.observed import observed
from jdp.accounting.statements.privacy_statements import why_unbounded
from jdp.guarantees import rounded_down, rounded_up
from jdp.ledger import Ledger, subsampled_gaussian

# Real numbers are searched on a logarithmic scale.
_LIMIT, _STRIDE, _STEP = math.log(1e9), math.log(4), 1e-4
_MOST = 2**40  # the largest whole number that is tried
_REACHED = 0.99  # a search that ends below this share of its target is examined for overflows


@checked
def calibrate_noise_multiplier(
  target_epsilon: float,
  delta: float,
  sampling_probability: float,
  num_rounds: int,
  *,
  prior: Ledger = Ledger(),
  accountant: str = "tightest",
) -> float:
  """The least noise multiplier with which Poisson-subsampled Gaussian sums meet a privacy target.

  The run is (target_epsilon, delta)-DP under add/remove and under zero-out. The z returned meets
  the target, and 0.999 z does not.

  Args:
    target_epsilon: > 0, finite.
    delta: in (0, 1).
    sampling_probability: q in (0, 1].
    num_rounds: whole, >= 1.
    prior: what was released about the same records before. The target is for both together.
    accountant: as for `epsilon`.

  Returns:
    z = stddev / clip norm of each round's sum.

  Raises:
    ValueError: if an argument is out of range. Also if the accountant cannot prove so small an
      epsilon at this delta, however large the noise. Also if delta is so large that no noise is
      needed.

  >>> round(calibrate_noise_multiplier(2.0, 1e-6, sampling_probability=0.001, num_rounds=5000), 3)
  0.647
  """
  _check_target(target_epsilon, delta)
  _validate.positive(sampling_probability=sampling_probability)
  _validate.probability(sampling_probability=sampling_probability)
  _validate.integer(1, num_rounds=num_rounds)
  _validate.in_range(1, 2**53, num_rounds=num_rounds)

  def plan(noise_multiplier: float) -> Ledger:
    return prior + subsampled_gaussian(sampling_probability, noise_multiplier, num_rounds)

  sampled = (
    -math.expm1(num_rounds * math.log1p(-sampling_probability)) if sampling_probability < 1 else 1.0
  )
  # Then no noise is needed. This error names the cause, which the search below cannot know.
  if delta >= sampled and epsilon(plan(0.25), delta, accountant=accountant) <= target_epsilon:
    raise ValueError(
      f"Expected delta below {rounded_down(sampled, 3)}, the probability that a record is ever "
      f"sampled, got {delta}: with such a delta no noise is needed; choose a smaller one."
    )
  return calibrate_noise(target_epsilon, delta, plan, accountant=accountant)


@checked
def calibrate_noise(
  target_epsilon: float, delta: float, plan: Callable[[float], Ledger], **accounting: Any
) -> float:
  """The least noise with which a planned run meets a privacy target.

  The number returned meets the target, and 0.999 of it does not.

  Args:
    target_epsilon: > 0, finite.
    delta: in (0, 1).
    plan: noise > 0 -> the run's ledger. The number is whatever the plan makes of it: a stddev, a
      multiplier, a scale.
    **accounting: accountant, relation and observer, as for `epsilon`.

  Raises:
    ValueError: if an argument is out of range, or no number from 1e-9 to 1e9 is the least. Also if
      the samples' overflow probability allows no epsilon near the target.

  >>> from jdp.events import GaussianSum, Round, ShuffledBatches
  >>> def plan(stddev):  # ten epochs of 100 batches
  ...   first, other = (
  ...     Round(ShuffledBatches(100, start), GaussianSum(1.0, stddev)) for start in (True, False)
  ...   )
  ...   return Ledger().append(first, count=10).append(other, count=990)
  >>> round(calibrate_noise(2.0, 1e-5, plan, relation="zero_out"), 2)
  6.31
  """
  return 1 / _largest(target_epsilon, delta, lambda x: plan(1 / x), "noise", accounting)


@checked
def calibrate_sampling_probability(
  target_epsilon: float, delta: float, plan: Callable[[float], Ledger], **accounting: Any
) -> float:
  """The largest sampling probability with which a planned run meets a privacy target.

  The number returned meets the target, and 1.001 of it does not, or is above 1. The result is 1 if
  that meets the target. Arguments and errors are as for `calibrate_noise`. `plan` takes a
  probability in (0, 1].

  >>> from jdp.ledger import subsampled_gaussian
  >>> q = calibrate_sampling_probability(1.0, 1e-5, lambda q: subsampled_gaussian(q, 1.0, 1000))
  >>> round(q, 4)
  0.0057
  """
  _check_target(target_epsilon, delta)
  if epsilon(plan(1.0), delta, **accounting) <= target_epsilon:
    return 1.0
  return _largest(target_epsilon, delta, plan, "sampling probability", accounting, high=0.0)


@checked
def calibrate_rounds(
  target_epsilon: float,
  delta: float,
  plan: Callable[[int], Ledger],
  *,
  maximum: int = _MOST,
  **accounting: Any,
) -> int:
  """The largest whole number of rounds with which a planned run meets a privacy target.

  The number returned meets the target, and one more does not, or is above `maximum`.

  Args:
    target_epsilon: > 0, finite.
    delta: in (0, 1).
    plan: number of rounds >= 1 -> the run's ledger.
    maximum: the most rounds of interest.
    **accounting: accountant, relation and observer, as for `epsilon`.

  Raises:
    ValueError: if an argument is out of range, or one round or the samples' overflow is too much.

  >>> from jdp import ledger
  >>> calibrate_rounds(1.0, 1e-5, lambda rounds: ledger.subsampled_gaussian(0.01, 1.1, rounds))
  421
  """
  return _largest_whole(target_epsilon, delta, plan, maximum, "round", accounting)


@checked
def calibrate_cohort(
  target_epsilon: float,
  delta: float,
  plan: Callable[[int], Ledger],
  *,
  population: int,
  **accounting: Any,
) -> int:
  """The largest cohort with which a planned run meets a privacy target.

  A cohort is the sample's size, or its expectation. The number returned meets the target, and one
  more does not, or is above `population`. Arguments and errors are as for `calibrate_rounds`.
  `plan` takes a cohort of 1 to `population` records.

  >>> from jdp.events import FixedSizeSampling, GaussianSum, Round
  >>> def plan(size):
  ...   return Ledger().append(
  ...     Round(FixedSizeSampling(size, 10_000), GaussianSum(1.0, 2.0)), count=1000
  ...   )
  >>> calibrate_cohort(4.0, 1e-5, plan, population=10_000, relation="replace_one")
  172
  """
  _validate.integer(1, population=population)
  return _largest_whole(target_epsilon, delta, plan, population, "record", accounting)


def _check_target(target_epsilon: float, delta: float) -> None:
  """Refuses a target outside of epsilon > 0, 0 < delta <= 1."""
  _validate.positive(target_epsilon=target_epsilon, delta=delta)
  _validate.probability(delta=delta)


def _largest(
  target_epsilon: float,
  delta: float,
  plan: Callable[[float], Ledger],
  what: str,
  accounting: dict[str, Any],
  high: float | None = None,
) -> float:
  """The largest x, up to a factor of 1.001, whose plan meets the target.

  If `high` is given, the target is known to be missed at x = e^high.
  """
  _check_target(target_epsilon, delta)

  @functools.cache
  def value(log_x: float) -> float:
    return epsilon(plan(math.exp(log_x)), delta, **accounting)

  def surplus(log_x: float) -> float:
    # Limited because the root finder needs finite values.
    return math.log(min(max(value(log_x) / target_epsilon, 1e-3), 1e3))

  low = 0.0
  while surplus(low) > 0:
    low, high = low - _STRIDE, low
    if low < -_LIMIT:
      raise ValueError(
        f"Expected a target_epsilon that can be proved at delta={delta}, got {target_epsilon}, "
        f"which no {what} meets; raise one of the two."
        f"{_cause(plan(math.exp(low)), delta, accounting)}"
      )
  while high is None or surplus(high) <= 0:
    low, high = (low, low + _STRIDE) if high is None else (high, high + _STRIDE)
    if high > _LIMIT:
      raise ValueError(
        f"Expected a plan whose epsilon depends on its {what}, got one that meets {target_epsilon} "
        f"at delta={delta} with any; choose a smaller delta, or look at the plan."
      )
  log_x = scipy.optimize.brentq(surplus, low, high, xtol=_STEP) - 2 * _STEP  # off by up to `_STEP`
  while surplus(log_x) > 0:  # The accountant's search over orders leaves a ripple.
    log_x -= _STEP
  if value(log_x) < _REACHED * target_epsilon:
    beyond = plan(math.exp(log_x + 4 * _STEP))
    _check_reached(target_epsilon, delta, value(log_x), beyond, accounting)
  return math.exp(log_x)


def _check_reached(
  target_epsilon: float, delta: float, reached: float, beyond: Ledger, accounting: dict[str, Any]
) -> None:
  """Refuses a target far above what the best number costs, if overflows are in the way."""
  scope = accounting.get("relation"), accounting.get("observer")
  finite = math.isfinite(epsilon(beyond, delta, **accounting))
  if not finite and observed(beyond, *scope).rounds.overflow:
    raise ValueError(
      f"Expected a target_epsilon of at most {rounded_up(reached, 4)} at delta={delta}, got "
      f"{target_epsilon}; choose a smaller target.{_cause(beyond, delta, accounting)}"
    )


def _cause(ledger: Ledger, delta: float, accounting: dict[str, Any]) -> str:
  """Why a plan has no epsilon, as a further sentence. Empty if it has one."""
  why = why_unbounded(ledger, delta, **accounting)
  return why and f" {why}"


def _largest_whole(
  target_epsilon: float,
  delta: float,
  plan: Callable[[int], Ledger],
  maximum: int,
  what: str,
  accounting: dict[str, Any],
) -> int:
  """The largest whole number, at most `maximum`, whose plan meets the target."""
  _check_target(target_epsilon, delta)
  _validate.integer(1, maximum=maximum)

  @functools.cache
  def value(number: int) -> float:
    return epsilon(plan(number), delta, **accounting)

  if value(1) > target_epsilon:
    raise ValueError(
      f"Expected a target_epsilon that one {what} meets at delta={delta}, got {target_epsilon}, "
      f"but one costs {rounded_up(value(1))}; raise one of the two, or the noise."
      f"{_cause(plan(1), delta, accounting)}"
    )
  high = 1
  while value(high) <= target_epsilon:
    if high == maximum:
      return high
    high = min(4 * high, maximum)
  # Epsilon is monotone, so the largest number that meets the target is how many numbers do.
  best = bisect.bisect_right(range(1, high + 1), target_epsilon, key=value)
  if value(best) < _REACHED * target_epsilon:
    _check_reached(target_epsilon, delta, value(best), plan(best + 1), accounting)
  return best
