"""Tabulates the epsilons of a recorded or planned run by every accountant.

There are four tasks:

* `--task=ledger` reads a ledger. It shows each observer's epsilon over the rounds, and delta as a
  function of epsilon.
* `--task=plan` tabulates planned runs over `--q`, `--z` and `--rounds`.
* `--task=calibrate` finds the least noise, the most rounds or the largest cohort for a target.
* `--task=published` prints the tables of arXiv 1710.06963 beside the results of today's
  accountants.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Mapping
from functools import partial

from experiments.accounting.tables import ledger_parts, plan_part, published_parts
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.options import needed, option
from experiments.runner.reports.parts import Part, write_report
from experiments.runner.reports.tables import table
from jdp import _validate, accounting, ledger
from jdp.guarantees import Observer, Relation, rounded_down, rounded_up

_LEDGER = {"task": ("ledger",)}
_PLAN = {"task": ("plan", "calibrate")}
_CALIBRATE = {"task": ("calibrate",)}
_PRIVATE = {"task": ("ledger", "plan", "calibrate")}
_DEFAULTS = {"q": (0.001, 0.01), "z": (0.7, 1.1), "rounds": (100, 1000, 10_000)}
_count = partial(_validate.integer, 1)


@dataclasses.dataclass(frozen=True)
class AccountingOptions:
  """The options of this experiment."""

  task: str = option("plan", "What is asked.", choices=("ledger", "plan", "calibrate", "published"))
  accountants: tuple[str, ...] = option(
    ("rdp", "moments", "pld"),
    "Who answers.",
    choices=accounting.ACCOUNTANTS,
  )
  delta: float | None = option(
    1e-5, "Delta of the guarantee.", check=partial(_validate.in_range, 1e-300, 0.5), when=_PRIVATE
  )
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
    None, "Numbers of rounds. Default: 100,1000,10000.", check=_count, when=_PLAN, most=10**12
  )
  solve_for: str | None = option(
    "z",
    "The least noise, the most rounds or the largest q that meets the target.",
    choices=tuple(_DEFAULTS),
    when=_CALIBRATE,
  )
  target_epsilon: tuple[float, ...] | None = option(
    (2.0,), "Epsilons to meet.", check=_validate.positive, when=_CALIBRATE
  )


def prepare(options: AccountingOptions) -> Work:
  """Reads the ledger, checks the options and returns the work."""
  make_parts = _TASKS[options.task](options)

  return lambda workdir: write_report(workdir, "accounting", "Privacy accounting", make_parts())


def _ledger(options: AccountingOptions) -> Callable[[], list[Part]]:
  if options.ledger is None:
    raise ValueError(
      "Expected --ledger=FILE with --task=ledger, got none; name a run's ledger.jsonl."
    )
  if not pathlib.Path(options.ledger).exists():
    raise FileNotFoundError(
      f"Expected a ledger in {options.ledger}, got no such file; name a run's ledger.jsonl."
    )
  file = ledger.load_file(options.ledger)
  held, delta = file.ledger, needed(options.delta)
  observers = (
    [options.observer]
    if options.observer
    else sorted({event.observer for event, _ in held.entries})
  )
  if not observers:
    raise ValueError(f"Expected events in {options.ledger}, got none: nothing was released.")
  # An observer whose events cannot be analysed is refused here, before anything is written.
  for observer in observers:
    accounting.epsilon(held, delta, relation=options.relation, observer=observer)
  scope = options.relation, delta, options.accountants
  return lambda: [
    part
    for observer in observers
    for part in ledger_parts(held, observer, *scope, remarks=file.remarks)
  ]


def _plan(options: AccountingOptions) -> Callable[[], list[Part]]:
  runs = itertools.product(
    *(getattr(options, name) or default for name, default in _DEFAULTS.items())
  )
  return lambda: [plan_part(runs, needed(options.delta), options.accountants)]


def _calibrate(options: AccountingOptions) -> Callable[[], list[Part]]:
  unknown, delta = needed(options.solve_for), needed(options.delta)
  # The unknown is solved for, so a given value would contradict it.
  if getattr(options, unknown):
    raise ValueError(f"Expected no --{unknown} with --solve_for={unknown}; leave one out.")
  fixed = {
    name: getattr(options, name) or default
    for name, default in _DEFAULTS.items()
    if name != unknown
  }

  def row(target, accountant, values):
    known = dict(zip(fixed, values, strict=True))
    try:
      found = _PRINTED[unknown](_solve(unknown, target, delta, known, accountant))
    except ValueError as error:
      found = str(error)
    return [rounded_up(target), *map(str, values), accountant, found]

  def work():
    cases = itertools.product(
      needed(options.target_epsilon), options.accountants, itertools.product(*fixed.values())
    )
    header = ["target epsilon", *fixed, "accountant", unknown]
    return [Part(f"Calibration at delta = {delta}", table(header, (row(*case) for case in cases)))]

  return work


def _published(options: AccountingOptions) -> Callable[[], list[Part]]:
  return lambda: published_parts(options.accountants)


def _solve(
  unknown: str, target: float, delta: float, known: Mapping[str, float], accountant: str
) -> float:
  def plan(value):
    run = {**known, unknown: value}
    return ledger.subsampled_gaussian(run["q"], run["z"], run["rounds"])

  return _CALIBRATIONS[unknown](target, delta, plan, accountant=accountant)


_CALIBRATIONS: dict[str, Callable[..., float]] = {
  "z": accounting.calibrate_noise,
  "rounds": accounting.calibrate_rounds,
  "q": accounting.calibrate_sampling_probability,
}
# Roundings in the safe direction, so that the printed value still meets the target: noise up, a
# share of the clients down.
_PRINTED: dict[str, Callable[[float], str]] = {"z": rounded_up, "rounds": str, "q": rounded_down}
_TASKS = {"ledger": _ledger, "plan": _plan, "calibrate": _calibrate, "published": _published}


EXPERIMENT = Experiment("accounting", AccountingOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
