"""The report of audits: what was proven beside what is stated."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.runner import plots
from experiments.runner.classification import Task
from experiments.runner.parts import Part
from experiments.runner.reports import table


def local_part(options: Any, rows: Sequence[Any]) -> Part:
  """The table of local mechanisms, and a plot of the bounds."""
  found = table(
    ["mechanism", "stated", "audited: at least", "share", "events", "of reports"],
    (
      [
        row.name,
        _stated(row.mechanism.guarantee),
        f"{row.audit.bound:.3f}",
        f"{row.audit.bound / row.mechanism.guarantee.epsilon:.0%}",
        f"{row.audit.hits} against {row.audit.false_hits}",
        f"{row.audit.trials}",
      ]
      for row in rows
    ),
  )
  above = [row.name for row in rows if row.audit.bound > row.mechanism.guarantee.epsilon]
  verdict = f"REFUTED: {', '.join(above)}." if above else "No stated epsilon is refuted."
  text = f"""{found}

{verdict} The bounds hold together with probability {options.confidence:g}. Each compares an event on two opposite
inputs, a threshold on the estimate's projection on their difference, chosen on as many other reports (Clopper-Pearson
limits). Vectors have {options.dim} dimensions. A bound far below what is stated may be for want of reports, of a better
score or of worse inputs: it proves nothing."""
  return Part("Local mechanisms", text, "local_audit", _figure(rows))


def central_part(options: Any, task: Task, rows: Sequence[Any]) -> Part:
  """The table of runs with canaries."""
  found = table(
    [
      "noise multiplier",
      "stated",
      "one run: at least",
      "right guesses",
      "estimate, last model",
      "estimate, all rounds",
    ],
    (
      [
        f"{row.noise_multiplier:g}",
        f"{row.epsilon:.3f}",
        f"{row.audit.epsilon:.3f}",
        f"{row.audit.num_correct} of {row.audit.num_guesses}",
        f"{row.final:.2f}",
        f"{row.observed:.2f}",
      ]
      for row in rows
    ),
  )
  above = [f"{row.noise_multiplier:g}" for row in rows if row.audit.epsilon > row.epsilon]
  verdict = f"REFUTED: z = {', '.join(above)}." if above else "No stated epsilon is refuted."
  text = f"""{found}

{verdict} Epsilons at delta = {options.delta:g}; stated ones by Rényi accounting of {options.num_rounds} rounds, every
client in each. {options.num_canaries} canaries with random directions of the clip norm, each in the run by
a fair coin, among {task.num_users} users of {options.dataset} with their gradients; {task.dim} parameters.

**At least** (arXiv 2305.08846): a bound of confidence {options.central_confidence:g}, for each run alone, from the
cosines of the canaries with what the last model moved. With {options.num_guesses} guesses no bound can exceed
{np.log(1 / ((1 - options.central_confidence) ** (-1 / options.num_guesses) - 1)):.2f}.

**Estimates** (arXiv 2302.03098) are no bounds. They take the cosines (with the last model's movement; or the
largest with a round's) for normal, with the means and deviations of the canaries in the run and of those left out, and
may err to either side: a run's {options.num_canaries} canaries know a deviation to some
{1 / np.sqrt(options.num_canaries):.0%}."""
  return Part("Central privacy: canaries in federated learning", text)


def _stated(guarantee) -> str:
  delta = f" (δ = {guarantee.delta:g})" if guarantee.delta else ""
  return f"{guarantee.epsilon:.4g}{delta}"


def _figure(rows):
  figure, axes = plots.figure("stated epsilon", "audited: at least", "Lower bounds on epsilon")
  for name in dict.fromkeys(row.name for row in rows):
    own = [row for row in rows if row.name == name]
    axes.plot([row.mechanism.guarantee.epsilon for row in own], [row.audit.bound for row in own], "o-", label=name)
  largest = max(row.mechanism.guarantee.epsilon for row in rows)
  axes.plot([0, largest], [0, largest], "--", color="0.3", label="stated")
  return figure
