"""How plots look: print sizes, colours and markers that colour-blind readers tell apart, percent.

A series' colour never says alone which series it is: its marker, its line style or its place in the
order says so too.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from cycler import cycler

matplotlib.use("Agg")  # No display is needed. It must come before pyplot is imported.

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import NullLocator

from experiments.runner.reports import tables

Style = dict[str, Any]
"""Keyword arguments of `Axes.plot`: color, marker and linestyle."""

SIZE = (5.5, 3.7)  # inches, of one plot without its legend
PANEL = 3.6  # inches, the side of one of several panels
PICTURE = 300  # dots per inch of the PNG
_WIDE = 36  # letters of a legend's name
REFERENCE: Style = {
  "color": "0.25",
  "linewidth": 1.0,
}  # what is compared with: bounds and thresholds

# Okabe & Ito, "Color Universal Design" (2008), without yellow, which is faint on white.
_DISTINCT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

matplotlib.rcParams.update(
  {
    "axes.formatter.min_exponent": 3,  # 0.6, not 6 times a power of ten
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=_DISTINCT),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.subplot.wspace": 0.3,
    "font.size": 9,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.title_fontsize": 8,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,  # letters stay letters, as journals ask
    "savefig.bbox": "tight",  # no label and no legend is cut
  }
)

_GREYS = ("0.0", "0.45", "0.65")
_ORDERED = matplotlib.colormaps["viridis"]  # perceptually uniform; its brightness alone orders it
_BRIGHTEST = 0.82  # of the colour map; what is brighter is faint on white
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", ":", "-.")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")


def series(labels: Sequence[str]) -> dict[str, Style]:
  """A style for each label.

  Labels that differ in numbers alone are a family. Their colours are in the order of the number
  that takes the most values, the first of equals, from dark to bright, and their markers in that of
  the other numbers. Families differ in their lines. Labels of no family get colours that are easily
  told apart; beside a family they are baselines, and grey.

  >>> styles = series(["no privacy", "ε = 8", "ε = 2"])
  >>> styles["ε = 2"]["color"] < styles["ε = 8"]["color"], styles["no privacy"]["color"]
  (True, '0.0')
  """
  families: dict[str, list[str]] = {}
  for label in dict.fromkeys(labels):
    families.setdefault(_NUMBER.sub("#", label), []).append(label)
  ordered = [family for family in families.values() if len(family) > 1]
  single = [label for family in families.values() if len(family) == 1 for label in family]
  styles = _baselines(single) if ordered else distinct(single)
  for number, family in enumerate(ordered):
    styles |= _ordered(family, number)
  return {label: styles[label] for label in labels}


def distinct(labels: Sequence[str]) -> dict[str, Style]:
  """A style for each label, easily told apart; nothing orders them."""
  made = {}
  for number, label in enumerate(dict.fromkeys(labels)):
    again, place = divmod(number, len(_DISTINCT))  # A colour that comes again has another marker.
    made[label] = {
      "color": _DISTINCT[place],
      "marker": _MARKERS[(place + again) % len(_MARKERS)],
      "linestyle": _LINES[again % len(_LINES)],
    }
  return made


def _baselines(labels: Sequence[str]) -> dict[str, Style]:
  return {
    label: {"color": color, "marker": marker, "linestyle": line}
    for label, color, marker, line in zip(
      labels,
      itertools.cycle(_GREYS),
      itertools.cycle(reversed(_MARKERS)),
      itertools.cycle(_LINES[1:]),
      strict=False,
    )
  }


def _ordered(family: Sequence[str], number: int) -> dict[str, Style]:
  """The styles of the family with this number."""
  columns = zip(*(map(float, _NUMBER.findall(label)) for label in family), strict=True)
  varied = [column for column in columns if len(set(column)) > 1]
  varied.sort(key=lambda column: -len(set(column)))
  first, *others = varied or [tuple(range(len(family)))]  # 1 and 1.0 differ in writing alone
  values, rest = sorted(set(first)), list(zip(*others, strict=True)) or [()] * len(family)
  kinds = sorted(set(rest))
  return {
    label: {
      "color": matplotlib.colors.to_hex(
        _ORDERED(_BRIGHTEST * values.index(value) / max(1, len(values) - 1))
      ),
      "marker": _MARKERS[(kinds.index(kind) + number) % len(_MARKERS)],
      "linestyle": _LINES[number % len(_LINES)],
    }
    for label, value, kind in zip(family, first, rest, strict=True)
  }


def legend(axes: Axes, names: Mapping[str, Artist], *, below: bool = False) -> None:
  """A legend outside of the axes, so that it hides nothing: beside them, or below them.

  Args:
    axes: whose legend it is.
    names: what is drawn, by name.
    below: always below. Otherwise it is so if a name is long.
  """
  widest = max(len(line) for name in names for line in name.splitlines())
  place = (0.0, -0.16) if below or widest > _WIDE else (1.02, 1.0)
  axes.legend(list(names.values()), list(names), loc="upper left", bbox_to_anchor=place)


def percent(axis: Axis) -> None:
  """Writes shares as percent, as tables do."""
  axis.set_major_formatter(lambda share, _: f"{100 * share:g} %")


def metric_axis(axis: Axis, metric: str) -> None:
  """Names an axis by the metric; shares are in percent."""
  axis.set_label_text(metric.replace("_", " "))
  if tables.is_share(metric):
    percent(axis)


def only_shares(axes: Axes, metric: str) -> None:
  """Cuts off what intervals of few repetitions leave of a share's axis below 0 and above 1."""
  if tables.is_share(metric):
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.02), min(high, 1.02))


def marked_values(axes: Axes, words: Mapping[float, str]) -> None:
  """Makes the horizontal axis logarithmic, with a tick at each of these values and none between."""
  axes.set_xscale("log")
  axes.set_xticks(list(words), list(words.values()))
  axes.xaxis.set_minor_locator(NullLocator())
