"""The options of privacy accounting."""

import dataclasses

from experiments.runner import checks
from experiments.runner.options import option
from jdp import _validate, accounting
from jdp.guarantees import Observer, Relation

_LEDGER = {"task": ("ledger",)}
_PLAN = {"task": ("plan", "calibrate")}
_CALIBRATE = {"task": ("calibrate",)}
_PRIVATE = {"task": ("ledger", "plan", "calibrate")}
DEFAULTS = {"q": (0.001, 0.01), "z": (0.7, 1.1), "rounds": (100, 1000, 10_000)}


@dataclasses.dataclass(frozen=True)
class AccountingOptions:
  """The options of this experiment."""

  task: str = option("plan", "What is asked.", choices=("ledger", "plan", "calibrate", "published"))
  accountants: tuple[str, ...] = option(
    ("rdp", "moments", "pld"), "Who answers.", choices=accounting.ACCOUNTANTS
  )
  delta: float | None = option(1e-5, "Delta of the guarantee.", check=checks.delta, when=_PRIVATE)
  ledger: str | None = option(None, "The ledger's file (--task=ledger).", when=_LEDGER)
  relation: str | None = option(
    None,
    "Neighbouring relation. Default: the one that the events declare.",
    choices=tuple(Relation),
    when=_LEDGER,
  )
  observer: str | None = option(
    None, "Whose view. Default: every observer's in turn.", choices=tuple(Observer), when=_LEDGER
  )
  q: tuple[float, ...] | None = option(
    None, "Sampling probabilities. Default: 0.001,0.01.", check=_validate.probability, when=_PLAN
  )
  z: tuple[float, ...] | None = option(
    None, "Noise multipliers. Default: 0.7,1.1.", check=_validate.positive, when=_PLAN
  )
  rounds: tuple[int, ...] | None = option(
    None, "Numbers of rounds. Default: 100,1000,10000.", check=checks.count, when=_PLAN, most=10**12
  )
  solve_for: str | None = option(
    "z",
    "The least noise, the most rounds or the largest q that meets the target.",
    choices=tuple(DEFAULTS),
    when=_CALIBRATE,
  )
  target_epsilon: tuple[float, ...] | None = option(
    (2.0,), "Epsilons to meet.", check=_validate.positive, when=_CALIBRATE
  )
