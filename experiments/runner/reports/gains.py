"""What stands beside each central epsilon: how tight it is, and what an attacker gains."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.runner.files import Row
from experiments.runner.reports import plots
from experiments.runner.reports.parts import Part
from experiments.runner.reports.tables import table
from experiments.runner.runs.finished_ledgers import finished_ledger
from experiments.runner.runs.workdir import Workdir
from jdp import accounting
from jdp.guarantees import Observer, rounded_down, rounded_up
from jdp.ledger import Ledger

_HEADER = ("run", "least ε", "found at 0.1 % false alarms", "at 1 %", "advantage", "μ")
_RATES = np.geomspace(1e-4, 1.0, 60)  # false-positive rates of a plot


_TEXT = """By privacy loss distributions, from the same ledgers. The least ε that a run's rounds
guarantee, at its δ, lies between the two numbers (0: no attack on that mechanism is known to be
tight). An attacker who knows all records but one, and sees all that the guarantee is about, finds
at most that share of the records it looks for if it accuses that share of the others. "Advantage"
is the most by which the first exceeds the second. μ is that of the Gaussian trade-off curve, where
the run's is near one."""


def attacker_parts(workdir: Workdir, summary: Sequence[Row], title: str) -> Iterator[Part]:
  """The part on settings with a central guarantee; none without any.

  Settings with equal figures share a row and a curve: their releases differ in scale alone.

  Args:
    workdir: where the ledgers lie.
    summary: as `summarise` returns it. Figures are of its repetition with the largest epsilon.
    title: of the plot.
  """
  alike: dict[tuple[str, ...], tuple[Ledger, list[str]]] = {}
  for (ledger, delta), labels in _ledgers(workdir, summary).items():
    alike.setdefault(_cells(ledger, delta), (ledger, []))[1].extend(labels)
  if not alike:
    return
  rows = [[", ".join(labels), *cells] for cells, (_, labels) in alike.items()]
  curves = {"\n".join(labels): ledger for ledger, labels in alike.values()}
  yield Part(
    "What an attacker gains",
    f"{table(_HEADER, rows)}\n\n{_TEXT}",
    {"attacker": trade_off_figure(curves, title)},
    printed=False,
  )


def trade_off_figure(ledgers: Mapping[str, Ledger], title: str) -> Figure:
  """The trade-off curves of labelled ledgers, to whoever sees the models: upper bounds."""
  figure, axes = plots.figure("false-positive rate", "true-positive rate, at most", title)
  for label, ledger in ledgers.items():
    curve = accounting.trade_off(ledger, _RATES.tolist(), observer=Observer.MODEL)
    axes.plot(_RATES, curve, label=label)
  axes.plot(_RATES, _RATES, label="a guess", linestyle="dotted", color="0.3")
  axes.set(xscale="log", yscale="log")
  return figure


def _ledgers(workdir: Workdir, summary: Sequence[Row]) -> Mapping[tuple[Ledger, float], list[str]]:
  """The labels of settings by what their runs recorded, and by delta."""
  labels: defaultdict[tuple[Ledger, float], list[str]] = defaultdict(list)
  for row in summary:
    if row["central"] is not None:
      ledger = finished_ledger(workdir.path / row["setting"] / str(row["worst"]))
      labels[ledger, row["central"]["delta"]].append(row["label"])
  return labels


def _cells(ledger: Ledger, delta: float) -> tuple[str, ...]:
  lower, upper = accounting.epsilon_interval(ledger, delta, observer=Observer.MODEL)
  gain = accounting.attacker_gain(ledger, observer=Observer.MODEL)
  return (
    f"between {rounded_down(lower, 3)} and {rounded_up(upper, 3)}",
    *(f"{rounded_up(100 * rate, 3)} %" for rate in (*gain.true_positive_rates, gain.advantage)),
    "no" if gain.mu is None else rounded_up(gain.mu, 3),
  )
