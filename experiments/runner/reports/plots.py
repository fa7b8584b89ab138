"""Plots with intervals over repetitions."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")  # No display is needed. It must come before pyplot is imported.

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.runner.reports.statistics import Interval, mean_interval


def figure(xlabel: str, ylabel: str, title: str) -> tuple[Figure, Axes]:
  """An empty plot."""
  made, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
  axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
  axes.grid(alpha=0.3)
  return made, axes


def panels(xlabel: str, ylabel: str, titles: Sequence[str]) -> tuple[Figure, Sequence[Axes]]:
  """Empty plots side by side, with one vertical scale."""
  made, all_axes = plt.subplots(
    1, len(titles), figsize=(4 * len(titles), 4), sharey=True, layout="constrained"
  )
  for axes, title in zip(all_axes, titles, strict=True):
    axes.set(xlabel=xlabel, title=title)
    axes.grid(alpha=0.3)
  all_axes[0].set_ylabel(ylabel)
  return made, all_axes


def save(made: Figure, path: pathlib.Path) -> None:
  """Writes a PNG and frees the figure."""
  if made.axes[0].get_legend_handles_labels()[0]:  # Pictures have no labels.
    made.axes[0].legend()
  made.savefig(path, dpi=150)
  plt.close(made)


def curves(
  axes: Axes, repetitions: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], metric: str
) -> None:
  """For each label, the mean of a metric over rounds, with 95 % t intervals."""
  for label, rows in repetitions.items():
    rounds, intervals = merge(rows, metric)
    (line,) = axes.plot(rounds, [interval.mean for interval in intervals], label=label)
    axes.fill_between(rounds, *_bounds(intervals), color=line.get_color(), alpha=0.15)


def merge(
  repetitions: Sequence[Sequence[Mapping[str, Any]]], metric: str
) -> tuple[list[int], list[Interval]]:
  """(rounds, mean and interval of the metric there) for the rounds that all repetitions reached."""
  values = [{row["round"]: row[metric] for row in rows} for rows in repetitions]
  # Runs may stop early at their budget: means need all repetitions.
  rounds = sorted(set.intersection(*(set(v) for v in values)))
  return rounds, [mean_interval([v[number] for v in values]) for number in rounds]


def points(axes: Axes, x: Sequence[float], intervals: Sequence[Interval], label: str) -> None:
  """Means with error bars, joined by a line."""
  means, errors = zip(*((i.mean, i.half_width or 0.0) for i in intervals), strict=True)
  axes.errorbar(x, means, yerr=errors, label=label, marker="o", capsize=3)


def level(axes: Axes, interval: Interval, label: str, style: str) -> None:
  """A baseline: a horizontal line with its interval."""
  line = axes.axhline(interval.mean, label=label, linestyle=style, color="0.3")
  axes.axhspan(*(float(b[0]) for b in _bounds([interval])), color=line.get_color(), alpha=0.1)


def _bounds(intervals: Sequence[Interval]) -> tuple[np.ndarray, np.ndarray]:
  means = np.array([interval.mean for interval in intervals])
  errors = np.array([interval.half_width or 0.0 for interval in intervals])
  return means - errors, means + errors
