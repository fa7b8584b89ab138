"""The searches of `jdp.accounting.calibration`: the largest number whose plan meets a target."""

import bisect
import functools
import math
from collections.abc import Callable
from typing import Any

from jdp import _validate
from jdp.accounting.accountant import epsilon
from jdp.accounting.observed import observed
from jdp.accounting.statements.unbounded import why_unbounded
from jdp.guarantees import rounded_up
from jdp.ledger import Ledger

# Real numbers are searched on a logarithmic scale.
_LIMIT, _STRIDE, STEP = math.log(1e9), math.log(4), 1e-4
_RELATIVE = 4 * math.ulp(1.0)  # of the root finder
MOST = 2**40  # the largest whole number that is tried
_REACHED = 0.99  # the share of a target that a search should come to


def check_target(target_epsilon: float, delta: float) -> None:
  """Refuses a target outside of epsilon > 0, 0 < delta <= 1."""
  _validate.positive(target_epsilon=target_epsilon, delta=delta)
  _validate.probability(delta=delta)


def largest(
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
  check_target(target_epsilon, delta)

  @functools.cache
  def surplus(log_x: float) -> float:
    value = epsilon(plan(math.exp(log_x)), delta, **accounting)
    # Limited, as the root finder needs finite values.
    return math.log(min(max(value / target_epsilon, 1e-3), 1e3))

  low = 0.0
  while surplus(low) > 0:
    low, high = low - _STRIDE, low
    if low < -_LIMIT:
      raise ValueError(
        f"Expected a target_epsilon that the {accounting.get('accountant', 'rdp')} accountant can "
        f"prove at delta={delta}, got {target_epsilon}, which no {what} meets; "
        f"raise one of the two.{_cause(plan(math.exp(low)), delta, accounting)}"
      )
  while high is None or surplus(high) <= 0:
    low, high = (low, low + _STRIDE) if high is None else (high, high + _STRIDE)
    if high > _LIMIT:
      raise ValueError(
        f"Expected a plan whose epsilon depends on its {what}, got one that meets {target_epsilon} "
        f"at delta={delta} with any; choose a smaller delta, or look at the plan."
      )
  log_x = root(surplus, low, high) - 2 * STEP
  while surplus(log_x) > 0:  # The accountant's search over orders leaves a ripple.
    log_x -= STEP
  best, beyond = math.exp(log_x), math.exp(log_x + 4 * STEP)
  _check_reached(target_epsilon, delta, plan, best, beyond, accounting)
  return best


def _check_reached(
  target_epsilon: float,
  delta: float,
  plan: Callable[[Any], Ledger],
  best: Any,
  beyond: Any,
  accounting: dict[str, Any],
) -> None:
  """Refuses a target far above what the best number costs, if overflows are in the way."""
  reached = epsilon(plan(best), delta, **accounting)
  if reached >= _REACHED * target_epsilon or math.isfinite(
    epsilon(plan(beyond), delta, **accounting)
  ):
    return
  scope = accounting.get("relation"), accounting.get("observer")
  if observed(plan(beyond), *scope).rounds.overflow:
    raise ValueError(
      f"Expected a target_epsilon of at most {rounded_up(reached, 4)} at delta={delta}, got "
      f"{target_epsilon}; choose a smaller target.{_cause(plan(beyond), delta, accounting)}"
    )


def _cause(ledger: Ledger, delta: float, accounting: dict[str, Any]) -> str:
  """Why a plan has no epsilon, as a further sentence. Empty if it has one."""
  why = why_unbounded(ledger, delta, **accounting)
  return why and f" {why}"


def root(function: Callable[[float], float], low: float, high: float) -> float:
  """A root between two points where the function's signs differ, up to `STEP`.

  Brent's method (Algorithms for Minimization without Derivatives, 1973, Chapter 4), with the
  iterates of `scipy.optimize.brentq`, whose import would take longer than a plan's calibration.
  """
  before, now, other = low, high, low
  f_before, f_now, f_other = function(low), function(high), function(low)
  last = step = high - low
  while True:
    if (f_before < 0) != (f_now < 0):  # `other` stays on the root's other side.
      other, f_other = before, f_before
      last = step = now - before
    if abs(f_other) < abs(f_now):
      before, now, other = now, other, now
      f_before, f_now, f_other = f_now, f_other, f_now
    accuracy, half = (STEP + _RELATIVE * abs(now)) / 2, (other - now) / 2
    if f_now == 0 or abs(half) < accuracy:
      return now
    trial = math.inf
    if abs(last) > accuracy and abs(f_now) < abs(f_before):
      trial = _interpolated(before, now, other, f_before, f_now, f_other)
    if 2 * abs(trial) < min(abs(last), 3 * abs(half) - accuracy):
      last, step = step, trial
    else:
      last = step = half
    before, f_before = now, f_now
    now += step if abs(step) > accuracy else math.copysign(accuracy, half)
    f_now = function(now)


def _interpolated(
  before: float, now: float, other: float, f_before: float, f_now: float, f_other: float
) -> float:
  """The step from `now` to the root of the secant, or of an inverse parabola."""
  if before == other:
    return -f_now * (now - before) / (f_now - f_before)
  slope, far_slope = (f_before - f_now) / (before - now), (f_other - f_now) / (other - now)
  return (
    -f_now * (f_other * far_slope - f_before * slope) / (far_slope * slope * (f_other - f_before))
  )


def largest_whole(
  target_epsilon: float,
  delta: float,
  plan: Callable[[int], Ledger],
  maximum: int,
  what: str,
  accounting: dict[str, Any],
) -> int:
  """The largest whole number, at most `maximum`, whose plan meets the target."""
  check_target(target_epsilon, delta)
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
  while high < maximum and value(high) <= target_epsilon:
    high = min(4 * high, maximum)
  # Epsilon is monotone, so the largest number that meets the target is how many numbers do.
  best = bisect.bisect_right(range(1, high + 1), target_epsilon, key=value)
  if best < maximum:
    _check_reached(target_epsilon, delta, plan, best, best + 1, accounting)
  return best
