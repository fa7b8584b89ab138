"""Parts of the accounting experiment's report: tables, most of them with a plot."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from experiments.runner.published_language_models import DELTA, PUBLISHED, ROUNDS, TABLE_1
from experiments.runner.reports import plots, style
from experiments.runner.reports.parts import Part
from experiments.runner.reports.statements import warnings
from experiments.runner.reports.tables import table
from jdp import accounting
from jdp.events import LocalRelease, Round
from jdp.guarantees import rounded_up
from jdp.ledger import Ledger, subsampled_gaussian

_POINTS = 12
_SLOW = 1000  # Beyond so many distinct rounds, privacy loss distributions take minutes.


def plan_part(
  runs: Iterable[tuple[float, float, int]], delta: float, accountants: Sequence[str]
) -> Part:
  """Epsilons of planned runs (q, z, rounds), Poisson sampling under add/remove."""
  runs = list(runs)
  rows = [
    [str(q), str(z), str(rounds), *_epsilons(subsampled_gaussian(q, z, rounds), delta, accountants)]
    for q, z, rounds in runs
  ]
  made, axes = plots.figure("rounds", f"ε of the run (δ = {delta})", "Planned runs, add/remove")
  axes.set(xscale="log", yscale="log")
  lines = [(q, z, name) for q, z in dict.fromkeys(run[:2] for run in runs) for name in accountants]
  looks = style.series([f"{name}, q = {q}, z = {z}" for q, z, name in lines])
  for (q, z, name), (label, look) in zip(lines, looks.items(), strict=True):
    counts = _spread(max(rounds for *run, rounds in runs if run == [q, z]))
    epsilons = [_epsilon(subsampled_gaussian(q, z, n), delta, name) for n in counts]
    axes.plot(counts, epsilons, label=label, markevery=2, **look)
  header = ["q", "z", "rounds", *accountants]
  return Part(
    f"Epsilon at delta = {delta}, add/remove", table(header, rows), {"epsilon_over_rounds": made}
  )


def ledger_parts(
  ledger: Ledger,
  observer: str,
  relation: str | None,
  delta: float,
  accountants: Sequence[str],
  *,
  remarks: Sequence[str] = (),
) -> list[Part]:
  """What one observer learnt: epsilon over the rounds, and delta over epsilon at the end.

  A ledger's caveats stand before every number and in the plots' titles. So do the remarks on its
  file (`LedgerFile.remarks`), but for the titles.
  """
  seen = Ledger().extend(
    (event, count) for event, count in ledger.entries if event.observer == observer
  )
  kinds = " and ".join(sorted({type(event).__name__ for event, _ in seen.entries}))
  label = " (NOT PRIVATE)" if seen.caveats else ""
  scope = f"{observer}: {len(seen)} events of type {kinds}{label}"
  local = [event for event, _ in seen.entries if isinstance(event, LocalRelease)]
  notes = warnings(seen.caveats) + "".join(f"**Note: {remark}.**\n\n" for remark in remarks)
  text = notes + (
    f"All local releases of a unit together: {accounting.local_guarantee(seen)}.\n\n"
    if local
    else ""
  )
  if (
    len({event for event, _ in seen.entries if isinstance(event, Round)}) > _SLOW
    and "pld" in accountants
  ):
    accountants = [name for name in accountants if name != "pld"]
    text += f"No pld: more than {_SLOW} distinct rounds take it minutes.\n\n"

  ends = list(itertools.accumulate(count for _, count in seen.entries))

  def prefix(length: int) -> Ledger:
    return Ledger().extend(
      (event, max(0, min(count, length - end + count)))
      for (event, count), end in zip(seen.entries, ends, strict=True)
    )

  counts = _spread(len(seen))
  columns = {
    name: [
      _epsilon(prefix(count), delta, name, relation=relation, observer=observer) for count in counts
    ]
    for name in accountants
  }
  rows = [
    [str(count), *(_cell(columns[name][i]) for name in accountants)]
    for i, count in enumerate(counts)
  ]
  ylabel = f"ε of all events so far (δ = {delta})"
  over_rounds, axes = plots.figure("events", ylabel, scope)
  _curves(axes, counts, columns)
  end = {name: values[-1] for name, values in columns.items()}
  return [
    Part(
      scope,
      text + table(["events", *accountants], rows),
      {f"{observer}_epsilon_over_rounds": over_rounds},
    ),
    _delta_part(seen, observer, relation, end, notes),
  ]


def published_parts(accountants: Sequence[str]) -> list[Part]:
  """The tables of arXiv 1710.06963, beside today's accountants.

  The moments accountant is theirs. How many of its epsilons are those printed, to the last printed
  digit, is counted.
  """
  rounds = [10**i for i in range(len(TABLE_1[0].epsilons))]
  costs = {
    (row, name): [_epsilon(row.plan(n), row.users**-1.1, name) for n in rounds]
    for row in TABLE_1
    for name in accountants
  }
  first = [
    [f"{row.users:g}", f"{row.cohort:g}", str(row.noise_multiplier), name, *cells]
    for row in TABLE_1
    for name, cells in (
      ("published", row.epsilons),
      *((name, list(map(_cell, costs[row, name]))) for name in accountants),
    )
  ]
  plans = {
    (row, name): _epsilon(row.plan, DELTA, name) for row in PUBLISHED for name in accountants
  }
  second = [
    [
      *(f"{row.users:,}", str(row.cohort), str(row.epsilon)),
      *(_cell(plans[row, name]) for name in accountants),
    ]
    for row in PUBLISHED
  ]
  parts = [
    Part(
      "arXiv 1710.06963, Table 1: epsilon after 1 to 10^6 rounds, delta = users^-1.1",
      table(["users", "sample", "z", "accountant", *(f"{n:,}" for n in rounds)], first),
    ),
    Part(
      f"arXiv 1710.06963, Table 2: epsilon of {ROUNDS:,} rounds at z = 1, delta = {DELTA}",
      table(["users", "sample", "published", *accountants], second),
    ),
  ]
  if "moments" not in accountants:
    return parts
  pairs = {
    "Table 1": [
      pair for row in TABLE_1 for pair in zip(row.epsilons, costs[row, "moments"], strict=True)
    ],
    "Table 2": [(str(row.epsilon), plans[row, "moments"]) for row in PUBLISHED],
  }
  counts = [
    [name, f"{sum(_rounds_to(*pair) for pair in found)} of {len(found)}"]
    for name, found in pairs.items()
  ]
  return [*parts, Part("Equal to the printed digits", table(["of", "moments"], counts))]


def _rounds_to(printed: str, value: float) -> bool:
  """Whether a value, rounded to as many digits as are printed, is what is printed."""
  digits = len(printed.partition(".")[2])
  return abs(value - float(printed)) <= 0.5 * 10**-digits


def _delta_part(
  seen: Ledger, observer: str, relation: str | None, end: Mapping[str, float], notes: str
) -> Part:
  # The curve goes on to twice the largest stated epsilon, where delta is below its target.
  largest = max((2 * value for value in end.values() if math.isfinite(value)), default=1.0)
  grid = np.linspace(0.0, largest, 33)
  columns: dict[str, list[float]] = {}
  for name in (name for name, value in end.items() if not math.isnan(value)):
    columns[name] = [
      accounting.delta(seen, float(e), accountant=name, relation=relation, observer=observer)
      for e in grid
    ]
  rows = [
    [rounded_up(grid[i], 4), *(rounded_up(column[i], 3) for column in columns.values())]
    for i in range(0, len(grid), 4)
  ]
  label = " (NOT PRIVATE)" if seen.caveats else ""
  made, axes = plots.figure("ε of all events", "δ", f"{observer}, all events{label}")
  _curves(axes, grid, columns)
  axes.set(yscale="log", ylim=(1e-12, 1))
  text = notes + table(["epsilon", *columns], rows)
  return Part(f"{observer}: delta over epsilon{label}", text, {f"{observer}_delta": made})


def _curves(
  axes: Axes, x: Sequence[float] | np.ndarray, columns: Mapping[str, Sequence[float]]
) -> None:
  for name, look in style.series(list(columns)).items():
    axes.plot(x, columns[name], label=name, markevery=max(1, len(x) // 12), **look)


def _epsilons(run: Ledger, delta: float, accountants: Sequence[str]) -> list[str]:
  return [_cell(_epsilon(run, delta, name)) for name in accountants]


def _epsilon(run: Ledger, delta: float, accountant: str, **scope: str | None) -> float:
  """Epsilon, or NaN where this accountant has no analysis of such events."""
  try:
    return accounting.epsilon(run, delta, accountant=accountant, **scope)
  except ValueError:
    return math.nan


def _cell(value: float) -> str:
  return "no analysis" if math.isnan(value) else rounded_up(value, 4)


def _spread(largest: int) -> list[int]:
  """Whole numbers from 1 to `largest`, evenly on a logarithmic scale."""
  return sorted({round(n) for n in np.geomspace(1, largest, _POINTS)})
