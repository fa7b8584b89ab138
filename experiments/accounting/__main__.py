"""Tabulates the epsilons of a recorded or planned run by every accountant.

There are four tasks:

* `--task=ledger` reads a ledger. It shows each observer's epsilon over the rounds, and delta as a
  function of epsilon.
* `--task=plan` tabulates planned runs over `--q`, `--z` and `--rounds`.
* `--task=calibrate` finds the least noise, the most rounds or the largest cohort for a target.
* `--task=published` prints the tables of arXiv 1710.06963 beside the results of today's
  accountants.
"""

import itertools
import pathlib
from collections.abc import Callable, Mapping

from experiments.accounting.options import DEFAULTS, AccountingOptions
from experiments.accounting.tables import ledger_parts, plan_part, published_parts
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.options import needed
from experiments.runner.reports.parts import Part, write_report
from experiments.runner.reports.tables import table
from jdp import accounting, ledger
from jdp.guarantees import rounded_down, rounded_up


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
    *(getattr(options, name) or default for name, default in DEFAULTS.items())
  )
  return lambda: [plan_part(runs, needed(options.delta), options.accountants)]


def _calibrate(options: AccountingOptions) -> Callable[[], list[Part]]:
  unknown, delta = needed(options.solve_for), needed(options.delta)
  # The unknown is solved for, so a given value would contradict it.
  if getattr(options, unknown):
    raise ValueError(f"Expected no --{unknown} with --solve_for={unknown}; leave one out.")
  fixed = {
    name: getattr(options, name) or default for name, default in DEFAULTS.items() if name != unknown
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
