"""Epsilons against certified intervals: none below the known loss of some neighbours."""

import functools
import math
from collections.abc import Callable
from functools import partial

from jdp._arguments import checked
from jdp.accounting import epsilon_interval
from jdp.conformance.protocol import (
  Accountant,
  Calibration,
  Finding,
  Plan,
  Witness,
  finding,
  not_applicable,
)
from jdp.guarantees import rounded_down, rounded_up
from jdp.ledger import Ledger

_ROUNDING = 1e-6
# (plan, noise multiplier): one release, many rounds, small rates, little and much noise.
PLANS = (
  (Plan(1.0, 1, 1e-5), 1.0),
  (Plan(1.0, 1, 1e-6), 0.3),
  (Plan(1.0, 100, 1e-6), 20.0),
  (Plan(1.0, 1500, 1e-5), 144.49),
  (Plan(0.01, 1000, 1e-5), 1.0),
  (Plan(0.001, 2000, 1e-6), 0.6),
  (Plan(0.1, 100, 1e-5), 2.0),
  (Plan(0.5, 10, 1e-5), 1.0),
  (Plan(0.02, 300, 1e-9), 10.0),
)
TARGETS = (
  (Plan(1.0, 10, 1e-5), 1.0),
  (Plan(1.0, 1, 1e-6), 0.5),
  (Plan(1.0, 3, 1e-5), 4.0),
  (Plan(0.01, 1000, 1e-5), 2.0),
  (Plan(0.1, 50, 1e-6), 8.0),
)


@checked
def check_accountant(part: Accountant) -> list[Finding]:
  """No epsilon is below the lower end of `jdp.accounting.epsilon_interval`.

  For any epsilon below that end, there are neighbouring data sets whose releases differ by more. An
  epsilon above the interval is valid: the note says how much larger it is at most. Without noise
  epsilon is infinite in any plan. A call that raises is a refusal, and states nothing false.
  """
  plans = [(plan, z) for plan, z in PLANS if plan.sampling_probability == 1 or not part.unsampled]
  check = "epsilon of {} plans, above the certified lower end"
  return [*_compared(part, check, plans), _noiseless(part)]


@checked
def check_calibration(part: Calibration) -> list[Finding]:
  """No noise is too little for its target: the run's interval begins at or below the target."""
  check, refused, witness, most = "noise for {} targets, enough", 0, None, 0.0
  targets = [(p, eps) for p, eps in TARGETS if p.sampling_probability == 1 or not part.unsampled]
  for plan, target in targets:
    multiplier = _number(partial(part.noise_multiplier, plan, target))
    if multiplier is None:
      refused += 1
      continue
    lower, upper = _interval(part.ledger, plan, multiplier)
    most = max(most, target / upper if upper else math.inf)
    if lower > target * (1 + _ROUNDING) and witness is None:
      witness = Witness(
        f"{_shown(plan)}, epsilon {rounded_up(target)}",
        "a multiplier whose run keeps the target",
        f"z = {rounded_up(multiplier)}, and epsilon >= {rounded_down(lower, 5)}",
        "The run costs more than what it was planned for.",
      )
  note = f"targets are at most {most:.3g} times the epsilon of their noise{_refusals(refused)}"
  return [_answered(part, check.format(len(targets)), witness, refused == len(targets), note)]


def _compared(part: Accountant, check: str, plans: list[tuple[Plan, float]]) -> list[Finding]:
  """The finding about epsilons of plans with noise; the witness is the epsilon farthest below."""
  refused, most, worst, witness = 0, 0.0, 1.0, None
  for plan, multiplier in plans:
    claimed = _number(partial(part.epsilon, plan, multiplier))
    if claimed is None:
      refused += 1
      continue
    lower, upper = _interval(part.ledger, plan, multiplier)
    share = claimed / lower if lower else 1.0
    most = max(most, claimed / upper)
    if not claimed >= lower * (1 - _ROUNDING) and not share >= worst:
      worst = share
      witness = Witness(
        f"{_shown(plan)}, z = {rounded_up(multiplier)}",
        f"epsilon >= {rounded_down(lower, 5)}",
        f"epsilon = {rounded_up(claimed, 5)}",
        "The stated epsilon is not one: neighbours are known whose releases differ by more.",
      )
  note = f"at most {most:.3g} times the certified upper end{_refusals(refused)}"
  return [_answered(part, check.format(len(plans)), witness, refused == len(plans), note)]


def _noiseless(part: Accountant) -> Finding:
  """Without noise no finite epsilon holds, and none is zero."""
  check, plan = "epsilon without noise", Plan(1.0, 1, 1e-5)
  claimed = _number(lambda: part.epsilon(plan, 0.0))
  if claimed is None or claimed == math.inf:
    return finding(part, check, None, note="refused" if claimed is None else "infinite")
  witness = Witness(
    f"{_shown(plan)}, z = 0",
    "infinity or an error",
    f"epsilon = {rounded_up(claimed, 5)}",
    "A release without noise is called private.",
  )
  return finding(part, check, witness)


def _answered(
  part: Accountant | Calibration, check: str, witness: Witness | None, silent: bool, note: str
) -> Finding:
  if silent:
    return not_applicable(part, check, "every call raised")
  return finding(part, check, witness, note=note)


def _interval(
  ledger: Callable[[Plan, float], Ledger], plan: Plan, multiplier: float
) -> tuple[float, float]:
  """The interval of a plan's run. A value that is not a multiplier counts as no noise."""
  if not 0 < multiplier < math.inf:
    return (0.0, 0.0) if multiplier == math.inf else (math.inf, math.inf)
  return _certified(ledger(plan, multiplier), plan.delta)


@functools.lru_cache(maxsize=256)
def _certified(ledger: Ledger, delta: float) -> tuple[float, float]:
  """The interval of a ledger, cached, as several accountants are asked about the same runs."""
  return epsilon_interval(ledger, delta)


def _number(call: Callable[[], float]) -> float | None:
  """The number that a call returns. None if it raises, and NaN if it is not a real number."""
  try:
    found = call()
  except Exception:  # a refusal of any type, from another library
    return None
  try:
    return float(found)
  except (TypeError, ValueError):
    return math.nan


def _refusals(refused: int) -> str:
  return f"; {refused} calls raised" if refused else ""


def _shown(plan: Plan) -> str:
  return (
    f"q = {plan.sampling_probability:g}, T = {plan.num_rounds}, delta = {rounded_up(plan.delta)}"
  )
