"""The command `jdp`: plans, the epsilon of a ledger, audits.

jdp plan --population 10000 --cohort 200 --rounds 500 --delta 1e-5 --epsilon 2
jdp plan --population 10000 --cohort 50 200 800 --rounds 500 --delta 1e-5 --epsilon 2
jdp plan --population 10000 --rounds 500 --delta 1e-5 --epsilon 2 --noise-multiplier 0.8 1.1
jdp epsilon runs/first/ledger.jsonl --delta 1e-5
jdp audit laplace gaussian_sum
jdp audit --import=my_package my_mechanism
"""

import argparse
import itertools
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

import jdp
from jdp import accounting, ledger, sampling
from jdp._imports import import_all
from jdp._pipes import ends_with_its_reader
from jdp.events import GaussianSum, Round
from jdp.guarantees import rounded_down, rounded_up
from jdp.ledger import Ledger

_UNKNOWNS = ("cohort", "rounds", "noise_multiplier", "epsilon")
_HEADER = ("cohort", "rounds", "multiplier", "noise/cohort")
_BOUNDS = ("epsilon", "least epsilon", "found at 0.1%", "at 1%", "advantage")
_LEGEND = (
  "Multiplier: the stddev of the noise on a round's sum, over the clip norm. Noise/cohort: that\n"
  "of the noise on its average; the less, the better the model.\n"
  "Least epsilon: no accountant proves less than the first number; one proves the second.\n"
  "Found: an attacker who knows all other records and sees all releases tells at most that share\n"
  "of records at that share of false alarms. Advantage: the most by which one exceeds the other."
)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit status.

  >>> main("plan --population 10000 --cohort 200 --rounds 500 --delta 1e-5 --epsilon 2".split())
  Each round: a Poisson sample of 10000 records, one Gaussian sum; add/remove one record.
  At delta = 1e-05:
  cohort  rounds  multiplier  noise/cohort  epsilon  least epsilon  found at 0.1%  at 1%  advantage
  200     500     1.18561     0.00593       1.9993   1.99 to 2      0.458%         3.2%   17.7%
  Multiplier: the stddev of the noise on a round's sum, over the clip norm. Noise/cohort: that
  of the noise on its average; the less, the better the model.
  Least epsilon: no accountant proves less than the first number; one proves the second.
  Found: an attacker who knows all other records and sees all releases tells at most that share
  of records at that share of false alarms. Advantage: the most by which one exceeds the other.
  0
  """
  with ends_with_its_reader():
    options = _parser().parse_args(argv)
    try:
      import_all(options.imported)
      return options.run(options)
    except BrokenPipeError:
      raise
    except (ValueError, OSError) as error:
      print(f"jdp {options.command}: {error}", file=sys.stderr)
      return 2


def _parser() -> argparse.ArgumentParser:
  """The parser of all commands."""
  parser = argparse.ArgumentParser("jdp", description="Private federated learning in JAX.")
  parser.add_argument("--version", action="version", version=f"jdp {jdp.__version__}")
  commands = parser.add_subparsers(dest="command", required=True)
  scope = argparse.ArgumentParser(add_help=False)
  scope.add_argument("--delta", type=float, required=True, help="of the guarantee")
  scope.add_argument(
    "--accountant",
    choices=accounting.ACCOUNTANTS,
    default=accounting.ACCOUNTANTS[0],
    help="default: the tightest",
  )

  registered = argparse.ArgumentParser(add_help=False)
  registered.add_argument(
    "--import",
    dest="imported",
    metavar="MODULE",
    action="append",
    default=[],
    help="a module that registers mechanisms, queries or events of its own; may be repeated",
  )

  plan = commands.add_parser(
    "plan",
    parents=[scope],
    help="the noise, the rounds, the cohort or the epsilon of a run",
    description="Give three of --cohort, --rounds, --noise-multiplier and --epsilon, and get the "
    "fourth: the largest cohort, the most rounds, the least noise, the epsilon. Several values "
    "make a table.",
  )
  plan.add_argument("--population", type=int, required=True, help="how many records there are")
  plan.add_argument("--cohort", type=int, nargs="+", help="expected records in a round")
  plan.add_argument("--rounds", type=int, nargs="+", help="of the run")
  plan.add_argument("--noise-multiplier", type=float, nargs="+", help="stddev over clip norm")
  plan.add_argument("--epsilon", type=float, nargs="+", help="of the run, at most")
  plan.set_defaults(run=_plan, imported=[])

  spent = commands.add_parser(
    "epsilon", parents=[scope, registered], help="what a recorded run cost"
  )
  spent.add_argument("ledger", help="a file that a run or Ledger.save wrote")
  spent.add_argument("--relation", help="default: the one that the events declare")
  spent.add_argument("--json", action="store_true", help="prints the statements as JSON")
  spent.add_argument("--plot", metavar="FILE", help="draws the trade-off curves, as PNG or PDF")
  spent.set_defaults(run=_epsilon)

  audits = commands.add_parser(
    "audit", parents=[registered], help="whether stated epsilons hold, by measurement"
  )
  audits.add_argument("names", nargs="*", help="registered mechanisms and queries; default: all")
  audits.add_argument("--samples", type=int, default=100_000, help="default: 100,000")
  audits.add_argument("--seed", type=int, default=0, help="of the samples; default: 0")
  audits.set_defaults(run=_audit)
  return parser


def _plan(options: argparse.Namespace) -> int:
  """Prints a row for each combination of the values given."""
  unknown = [name for name in _UNKNOWNS if getattr(options, name) is None]
  if len(unknown) != 1:
    raise ValueError(
      "Expected three of --cohort, --rounds, --noise-multiplier and --epsilon, got "
      f"{len(_UNKNOWNS) - len(unknown)}; leave out the one to be found."
    )
  for cohort in options.cohort or ():
    if not 1 <= cohort <= options.population:
      raise ValueError(f"Expected --cohort from 1 to {options.population}, got {cohort}.")
  if options.delta * options.population >= 1:
    print(
      f"jdp plan: Warning: expected --delta below 1 / {options.population}, got {options.delta}: "
      "publishing a record outright has so large a delta; choose a smaller one.",
      file=sys.stderr,
    )
  known = [[(name, x) for x in getattr(options, name)] for name in _UNKNOWNS if name != unknown[0]]
  runs = list(map(dict, itertools.product(*known)))
  rows, refused = _plan_rows(options, unknown[0], runs)
  if len(refused) == len(runs):
    raise refused[0]
  print(
    f"Each round: a Poisson sample of {options.population} records, one Gaussian sum; "
    f"add/remove one record.\nAt delta = {rounded_up(options.delta)}:"
  )
  _print_table((*_HEADER, *_BOUNDS), rows)
  for error in refused:
    print(f"none: {error}")
  print(_LEGEND)
  return 0


def _plan_rows(
  options: argparse.Namespace, unknown: str, runs: Sequence[dict[str, Any]]
) -> tuple[list[list[str]], list[ValueError]]:
  """The table, with "none" where no plan meets the target, and the reasons."""
  rows, refused = [], []
  for run in runs:
    try:
      rows.append(_plan_row(options, unknown, run))
    except ValueError as error:
      known = ["none" if run.get(name) is None else rounded_up(run[name]) for name in _UNKNOWNS]
      rows.append([*known[:3], "none", known[3], *["none"] * (len(_BOUNDS) - 1)])
      refused.append(error)
  return rows, refused


def _plan_row(options: argparse.Namespace, unknown: str, known: dict[str, Any]) -> list[str]:
  """The cells of one run: its plan, and bounds on its epsilon from both sides."""
  scope: dict[str, Any] = {"accountant": options.accountant}
  solvers: dict[str, Callable[..., float]] = {
    "cohort": partial(accounting.calibrate_cohort, population=options.population),
    "rounds": accounting.calibrate_rounds,
    "noise_multiplier": _least_noise,
  }

  def make(cohort: int, rounds: int, noise_multiplier: float) -> Ledger:
    # The event that a run records, with the probability that a sample outgrows its slots.
    drawn = sampling.poisson(options.population, cohort / options.population).event(())
    return Ledger().append(Round(drawn, GaussianSum(1.0, noise_multiplier)), count=rounds)

  if unknown in solvers:
    given = {name: value for name, value in known.items() if name != "epsilon"}
    plan = partial(make, **given)
    known[unknown] = solvers[unknown](
      known["epsilon"], options.delta, lambda x: plan(**{unknown: x}), **scope
    )
  run = make(known["cohort"], known["rounds"], known["noise_multiplier"])
  if why := accounting.why_unbounded(run, options.delta, **scope):
    raise ValueError(
      f"Expected a plan that has an epsilon, got {known['rounds']} rounds with a noise multiplier "
      f"of {rounded_up(known['noise_multiplier'])}. {why}"
    )
  return [
    str(known["cohort"]),
    str(known["rounds"]),
    rounded_up(known["noise_multiplier"]),
    rounded_up(known["noise_multiplier"] / known["cohort"], 3),
    *_bounds(run, options.delta, options.accountant),
  ]


def _bounds(run: Ledger, delta: float, accountant: str) -> list[str]:
  """The cells of `_BOUNDS`."""
  epsilon = accounting.epsilon(run, delta, accountant=accountant)
  lower, upper = accounting.epsilon_interval(run, delta)
  gain = accounting.attacker_gain(run)
  return [
    rounded_up(epsilon),
    f"{rounded_down(lower, 3)} to {rounded_up(upper, 3)}",
    *(f"{rounded_up(100 * rate, 3)}%" for rate in (*gain.true_positive_rates, gain.advantage)),
  ]


def _least_noise(
  target_epsilon: float, delta: float, plan: Callable[[float], Ledger], *, accountant: str
) -> float:
  """The least noise multiplier, rounded up as it is printed."""
  least = accounting.calibrate_noise(target_epsilon, delta, plan, accountant=accountant)
  return float(rounded_up(least))


def _epsilon(options: argparse.Namespace) -> int:
  """Prints what a ledger guarantees to each observer."""
  if not pathlib.Path(options.ledger).is_file():
    raise ValueError(
      f"Expected a ledger in {options.ledger}, got no such file; name a run's ledger.jsonl."
    )
  file = ledger.load_file(options.ledger)
  if not len(file.ledger):
    raise ValueError(f"Expected events in {options.ledger}, got none: nothing was released.")
  said = accounting.privacy_statements(
    file.ledger, options.delta, accountant=options.accountant, relation=options.relation
  )
  scopes = [{"relation": options.relation, "observer": one.observer} for one in said]
  if options.plot:
    _plot(options.plot, file.ledger, [x for x, one in zip(scopes, said, strict=True) if one.holds])
  if options.json:
    statements = [one.data() for one in said]
    print(json.dumps({"remarks": file.remarks, "statements": statements}, allow_nan=False))
    return 0
  for remark in file.remarks:
    print(f"Note: {remark}.")
  for one, scope in zip(said, scopes, strict=True):
    print(one)
    if one.holds:
      print(f"An attacker finds {accounting.attacker_gain(file.ledger, **scope)}.")
  return 0


def _plot(path: str, spent: Ledger, scopes: Sequence[dict[str, Any]]) -> None:
  """Draws how many targets an attacker finds, by its rate of false alarms."""
  try:
    from matplotlib.figure import Figure
  except ImportError:
    raise ValueError(
      "Expected matplotlib for --plot, got none; pip install 'jdp-fl[experiments]'."
    ) from None
  rates = np.linspace(0.0, 1.0, 201).tolist()
  figure = Figure(figsize=(5, 5), layout="constrained")
  axes = figure.subplots()
  for scope in scopes:
    axes.plot(rates, accounting.trade_off(spent, rates, **scope), label=scope["observer"].value)
  axes.plot(rates, rates, "--", color="gray", label="a guess without the releases")
  axes.set(
    title="NOT PRIVATE" if spent.caveats else "At most what an attacker finds",
    xlabel="false alarms", ylabel="targets found", xlim=(0, 1), ylim=(0, 1),
  )  # fmt: skip
  axes.legend(title="who sees", loc="lower right")
  figure.savefig(path)


def _audit(options: argparse.Namespace) -> int:
  """Audits by name; the status is 1 if a stated epsilon is refuted."""
  # Imported here, so that the other commands need not wait for it.
  import jax

  from jdp import mechanisms
  from jdp.conformance.auditing import Subject, audit_all
  from jdp.conformance.queries import registered_query_subjects
  from jdp.conformance.reference_queries import audited
  from jdp.conformance.subjects import sharpest_subject

  local, sums = mechanisms.registry.registered(), audited()
  names = options.names or [*local, *sums]
  if unknown := sorted(set(names) - {*local, *sums}):
    raise ValueError(
      f"Expected registered names, got {', '.join(unknown)}; choose from "
      f"{', '.join(sorted({*local, *sums}))}."
    )
  subjects: dict[str, Subject] = {}
  for name in names:
    if name in local:
      subjects[f"{name}, per value"] = sharpest_subject(name, 1.0)
    if name in sums:
      found = registered_query_subjects(name)
      subjects |= {f"{name}, {relation}": subject for relation, subject in found.items()}
  audits = audit_all(
    subjects,
    jax.random.key(options.seed),
    num_samples=options.samples,
    report=lambda name, audit: print(f"{name}: {audit}", flush=True),
  )
  return int(any(audit.refuted for audit in audits.values()))


def _print_table(header: Sequence[str], rows: Iterable[list[str]]) -> None:
  """Prints aligned columns."""
  lines = [list(header), *rows]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  for line in lines:
    print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
