"""Plots of measured points, with intervals over repetitions."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.runner.files import Row
from experiments.runner.reports import style
from experiments.runner.reports.statistics import Interval, mean_interval
from experiments.runner.reports.style import Style

_MARKS = 12  # of a curve, about; it goes through every point
_INTERVAL = "95 % interval"


def figure(xlabel: str, ylabel: str, title: str) -> tuple[Figure, Axes]:
  """An empty plot."""
  made, axes = plt.subplots(figsize=style.SIZE)
  axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
  return made, axes


def panels(xlabel: str, ylabel: str, titles: Sequence[str]) -> tuple[Figure, Sequence[Axes]]:
  """Empty plots side by side, with one vertical scale."""
  size = (style.PANEL * len(titles), style.PANEL)
  made, all_axes = plt.subplots(1, len(titles), figsize=size, sharey=True)
  for axes, title in zip(all_axes, titles, strict=True):
    axes.set(xlabel=xlabel, title=title)
  all_axes[0].set_ylabel(ylabel)
  return made, all_axes


def save(made: Figure, path: pathlib.Path) -> None:
  """Writes a PNG and, for print, a PDF beside it; frees the figure.

  Panels share a legend, unless they have their own.
  """
  shared = [axes for axes in made.axes if axes.get_legend() is None]
  names = {
    name: handle
    for axes in shared
    for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
  }
  if _INTERVAL in names:
    names[_INTERVAL] = names.pop(_INTERVAL)  # It comes last.
  if names:
    style.legend(shared[-1], names)
  made.savefig(path, dpi=style.PICTURE)
  made.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
  plt.close(made)


def curves(axes: Axes, repetitions: Mapping[str, Sequence[Sequence[Row]]], metric: str) -> None:
  """For each label, the mean of a metric over rounds, with 95 % t intervals.

  The points are those that were measured; nothing is smoothed.
  """
  styles = style.series(list(repetitions))
  for label, rows in repetitions.items():
    rounds, intervals = merge(rows, metric)
    every = max(1, len(rounds) // _MARKS)
    means = [interval.mean for interval in intervals]
    axes.plot(rounds, means, label=label, markevery=every, **styles[label])
    if _known(intervals):
      _band(axes, rounds, intervals, styles[label])


def merge(repetitions: Sequence[Sequence[Row]], metric: str) -> tuple[list[int], list[Interval]]:
  """(rounds, mean and interval of the metric there) for the rounds that all repetitions reached."""
  values = [{row["round"]: row[metric] for row in rows} for rows in repetitions]
  # Runs may stop early at their budget: means need all repetitions.
  rounds = sorted(set.intersection(*(set(v) for v in values)))
  return rounds, [mean_interval([v[number] for v in values]) for number in rounds]


def points(
  axes: Axes, x: Sequence[float], intervals: Sequence[Interval], label: str, look: Style
) -> None:
  """Means with error bars, joined by a line."""
  means = [interval.mean for interval in intervals]
  if not _known(intervals):
    axes.plot(x, means, label=label, **look)
    return
  errors = [interval.half_width or 0.0 for interval in intervals]
  axes.errorbar(x, means, yerr=errors, label=label, capsize=3, **look)
  if _INTERVAL not in axes.get_legend_handles_labels()[1]:
    axes.errorbar([], [], yerr=[], fmt="none", ecolor="0.5", capsize=3, label=_INTERVAL)


def level(axes: Axes, interval: Interval, label: str, look: Style) -> None:
  """A baseline: a horizontal line with its interval."""
  axes.axhline(interval.mean, label=label, linestyle=look["linestyle"], color=look["color"])
  if _known([interval]):
    low, high = (float(bound[0]) for bound in _bounds([interval]))
    axes.axhspan(low, high, color=look["color"], alpha=0.1, linewidth=0)


def _known(intervals: Sequence[Interval]) -> bool:
  """Whether there are intervals; a single repetition has none."""
  return any(interval.half_width is not None for interval in intervals)


def _band(axes: Axes, x: Sequence[float], intervals: Sequence[Interval], look: Style) -> None:
  axes.fill_between(x, *_bounds(intervals), color=look["color"], alpha=0.15, linewidth=0)
  if _INTERVAL not in axes.get_legend_handles_labels()[1]:
    axes.fill_between([], [], color="0.5", alpha=0.3, linewidth=0, label=_INTERVAL)


def _bounds(intervals: Sequence[Interval]) -> tuple[np.ndarray, np.ndarray]:
  means = np.array([interval.mean for interval in intervals])
  errors = np.array([interval.half_width or 0.0 for interval in intervals])
  return means - errors, means + errors
