"""The report of audits: proven bounds beside the stated epsilons."""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.audit import procedure_report
from experiments.audit.correlated_runs import ROUNDS, SEPARATION
from experiments.audit.options import AuditOptions
from experiments.runner import files
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports import plots, style
from experiments.runner.reports.parts import Part
from experiments.runner.reports.tables import table
from jdp.audits.canaries import one_shot_estimate
from jdp.audits.one_run import OneRunAudit
from jdp.conformance.auditing import Audit
from jdp.guarantees import rounded_down, rounded_up

LOCAL_RESULTS = "local.json"


class Local(NamedTuple):
  """A row of the table of local mechanisms, or of runs with correlated noise.

  Attributes:
    name: of what was audited.
    audit: the bound.
    attainable: the bound that is to be expected of the best event, where that is known.
  """

  name: str
  audit: Audit
  attainable: float | None = None


class Central(NamedTuple):
  """A row of the table of runs.

  Attributes:
    noise_multiplier: z.
    participation: q.
    epsilon: what the ledger states.
    audit: the lower bound, by an observer who sees all models and knows the users' data.
    by_curve: another, from the same guesses, if the run is what its ledger says but for its noise.
    final: the one-shot estimate from the last model.
    observed: the one-shot estimate from all models.
    informed: the one-shot estimate by the observer of `audit`.
  """

  noise_multiplier: float
  participation: float
  epsilon: float
  audit: OneRunAudit
  by_curve: float
  final: float
  observed: float
  informed: float


def save_local(path: pathlib.Path, rows: Sequence[Local]) -> None:
  """Writes the rows of local mechanisms to a file."""
  files.write_json(path, [row._asdict() | {"audit": row.audit._asdict()} for row in rows])


def load_local(path: pathlib.Path) -> list[Local]:
  """The rows of a file that `save_local` wrote."""
  return [Local(**row | {"audit": Audit(**row["audit"])}) for row in files.read_json(path)]


def stored(path: pathlib.Path) -> str:
  """The tables of a file of results, in Markdown."""
  if path.name == LOCAL_RESULTS:
    return local_table(load_local(path))
  return procedure_report.tables(*procedure_report.load(path))


def local_part(options: AuditOptions, rows: Sequence[Local]) -> Part:
  """The table of local mechanisms, and a plot of the bounds."""
  above = [row.name for row in rows if row.audit.refuted]
  text = f"""{local_table(rows)}

{_verdict(above)} {_how_measured(options)} *At best* is the bound to be expected of the event with
the largest likelihood ratios, for so many reports on opposite ends, by the exact distribution of
the reports. Where it is far below what is stated, large losses are too rare to be counted. Where a
bound is far below it, that may be for want of a better score or of worse inputs: it proves
nothing."""
  return Part("Local mechanisms", text, {"local_audit": _figure(rows)})


def broken_part(options: AuditOptions, rows: Sequence[Local]) -> Part:
  """The table of mechanisms that cost more than they state."""
  missed = [row.name for row in rows if not row.audit.refuted]
  found = f"NOT FOUND: {'; '.join(missed)}." if missed else "All are refuted."
  text = f"""These cost more than they state, and an audit that is worth its name must say so.

{local_table(rows)}

{found} {_how_measured(options)} The first two inputs of the last lie outside the domain."""
  return Part("Broken mechanisms", text)


def runs_part(options: AuditOptions, sound: Sequence[Local], broken: Sequence[Local]) -> Part:
  """The table of whole runs with correlated noise."""
  above = [row.name for row in sound if row.audit.refuted]
  missed = [row.name for row in broken if not row.audit.refuted]
  found = f"NOT FOUND: {'; '.join(missed)}." if missed else "It is refuted."
  text = f"""{local_table([*sound, *broken])}

{_verdict(above)} The last row is broken: it takes the norms of the strategy's rows for those of its
columns, and its noise is calibrated by them. {found}

Each of the runs trains a linear model by DP-FedAvg: {ROUNDS} rounds of two users. One of six users
is in every {SEPARATION}rd round, and has a label far out of reach, so that its update has the clip
norm; or no data (zero-out). The observer sees the model after each round, and takes the inner
product of its changes with what the user changes, divided by the covariance of the noise. Epsilons
are stated for one Gaussian release of the whole run. The bounds hold together with probability
{options.confidence}. A tree has noise that no release uses, so its bound is lower."""
  return Part("Whole runs with correlated noise", text)


def _how_measured(options: AuditOptions) -> str:
  return f"""The bounds hold together with probability {options.confidence}. Each compares an event
on two inputs (opposite ends of the domain, zero, and values outside it), chosen on other reports
(Clopper-Pearson limits): a threshold on the estimate's length or its projection on the difference
of the ends, or a set of values or residues: reports are read to their last bits. Vectors have
{options.dim} dimensions."""


def _verdict(above: Sequence[str]) -> str:
  return f"REFUTED: {'; '.join(above)}." if above else "No stated epsilon is refuted."


def local_table(rows: Sequence[Local]) -> str:
  """What was proved of each, beside what is stated and what was to be expected at best."""
  audits, best = [row.audit for row in rows], [row.attainable for row in rows]
  columns = {
    "mechanism": [row.name for row in rows],
    "stated": [_stated_epsilon(own) for own in audits],
    "audited: at least": [rounded_down(own.bound, 4) for own in audits],
    "share": [f"{rounded_down(100 * own.bound / own.epsilon, 3)} %" for own in audits],
  }
  if best != [None] * len(rows):
    columns["at best"] = ["" if own is None else f"{own:.4g}" for own in best]
  columns |= {
    "statistic": [own.statistic for own in audits],
    "events": [f"{own.hits} against {own.false_hits}" for own in audits],
    "of reports": [f"{own.trials}" for own in audits],
  }
  return table(list(columns), zip(*columns.values(), strict=True))


def central_part(options: AuditOptions, problem: LearningProblem, rows: Sequence[Central]) -> Part:
  """The table of runs with canaries."""
  header = ["z", "q", "stated", "one run: at least", "by its curve", "right guesses"]
  header += ["estimate, last model", "all models", "users known"]
  found = table(
    header,
    (
      [
        *(str(row.noise_multiplier), str(row.participation)),
        rounded_up(row.epsilon, 4),
        *(rounded_down(bound, 4) for bound in (row.audit.epsilon, row.by_curve)),
        f"{row.audit.num_correct} of {row.audit.num_guesses}",
        *(f"{estimate:.2f}" for estimate in (row.final, row.observed, row.informed)),
      ]
      for row in rows
    ),
  )
  above = [
    f"z = {row.noise_multiplier}, q = {row.participation}"
    for row in rows
    if max(row.audit.epsilon, row.by_curve) > row.epsilon
  ]
  share = (1 - options.central_confidence) / len(rows)
  text = f"""{found}

{_verdict(above)} Epsilons at delta = {options.delta}, add/remove, of a client, to whoever sees all
models; stated ones by Rényi accounting of {options.num_rounds} rounds with noise multiplier z that
each client is in with probability q. {options.num_canaries} canaries with random directions of the
clip norm, each in the run by a fair coin, among {problem.num_users} users of {options.dataset} with
their gradients; {problem.dim} parameters.

**At least** (arXiv 2305.08846): bounds that hold together with probability
{options.central_confidence}, for an observer who knows the users' data: the canaries' cosines with
the sum of all rounds' movements, each less what the users alone are expected to move. With
{options.num_guesses} guesses no bound can exceed
{rounded_up(np.log(1 / (share ** (-1 / options.num_guesses) - 1)), 3)}.

**By its curve** (arXiv 2410.22235): bounds from the same guesses, against whole trade-off curves.
They presume that a run is what its ledger says, but for its noise: the guesses refute all noise
above some multiplier, and the bound is the ε of that multiplier. These bounds hold together with
probability {options.central_confidence} too.

**Estimates** (arXiv 2302.03098) are no bounds. They take the cosines (with the last model's
movement; the largest with a round's movement; or those of the bound) for normal, with the means and
deviations of the canaries in the run and of those left out. They may err to either side, and of
little they see too much: of {options.num_canaries} canaries that leave no trace the median estimate
is {_estimate_of_nothing(options):.2f}. The first two know nothing of the users, whose common
movement hides the canaries from them where it is long; with q < 1 canaries that sampling left out
in all rounds look like absent ones."""
  return Part("Central privacy: canaries in federated learning", text)


def _estimate_of_nothing(options: AuditOptions) -> float:
  """The median one-shot estimate over 25 draws in which canaries leave no trace."""
  halves = np.random.default_rng(0).normal(size=(25, 2, options.num_canaries // 2))
  return float(np.median([one_shot_estimate(a, delta=options.delta, absent=b) for a, b in halves]))


def _stated_epsilon(audit: Audit) -> str:
  delta = f" (δ = {rounded_up(audit.delta)})" if audit.delta else ""
  return f"{rounded_up(audit.epsilon, 4)}{delta}"


def _figure(rows: Sequence[Local]) -> Figure:
  names = list(dict.fromkeys(row.name for row in rows))
  figure, axes = plots.figure("ε proved, of the ε stated", "", "Audits: ε is at least")
  style.percent(axes.xaxis)
  # Epsilons that differ by rounding alone have one label.
  by_label: dict[str, list[Local]] = {}
  for row in sorted(rows, key=lambda row: row.audit.epsilon):
    by_label.setdefault(f"ε = {rounded_up(row.audit.epsilon, 3)}, stated", []).append(row)
  for label, look in style.series(list(by_label)).items():
    own = by_label[label]
    shares = [row.audit.bound / row.audit.epsilon for row in own]
    places = [names.index(row.name) for row in own]
    axes.plot(shares, places, label=label, **{**look, "linestyle": "none"})
  axes.set(xlim=(0, None), yticks=range(len(names)), yticklabels=names)
  axes.axvline(1.0, linestyle="--", **style.REFERENCE)
  axes.invert_yaxis()
  return figure
