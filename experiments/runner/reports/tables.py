"""Tables in Markdown, and their cells."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from experiments.runner.reports.statistics import Interval
from jdp.guarantees import rounded_up

_PREDICTED = {
  "accuracy_top1": "AccuracyTop1",
  "accuracy_top3": "Top3",
  "accuracy_top5": "Top5",
  "perplexity": "perplexity",
  "carried_accuracy_top1": "carried: Top1",
  "carried_perplexity": "carried: perplexity",
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """A Markdown table, aligned so that it reads well as plain text too.

  >>> print(table(["run", "accuracy"], [["a", "90 %"]]))
  | run | accuracy |
  | --- | -------- |
  | a   | 90 %     |
  """
  lines = [list(header), *map(list, rows)]
  widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
  lines.insert(1, ["-" * width for width in widths])
  padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
  return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def by_column(rows: Iterable[Mapping[str, str]]) -> str:
  """A table of rows that hold their cells by column: one row at least, all of the same columns.

  >>> print(by_column([{"run": "a", "accuracy": "90 %"}]))
  | run | accuracy |
  | --- | -------- |
  | a   | 90 %     |
  """
  lines = list(rows)
  return table(list(lines[0]), [list(line.values()) for line in lines])


def properties(values: Mapping[str, object]) -> str:
  """A table of names and values."""
  return table(["", ""], ([name, str(value)] for name, value in values.items()))


def epsilon(value: float | None) -> str:
  """An accountant's epsilon as a cell, rounded up to four digits; infinity if there is none.

  >>> epsilon(1.00049), epsilon(2.0), epsilon(4321.0), epsilon(None)
  ('1.001', '2.000', '4321', '∞')
  """
  if value is None or value == math.inf:
    return "∞"
  return f"{float(rounded_up(value, 4)):#.4g}".rstrip(".")


def percent(share: Interval | float, digits: int = 1) -> str:
  """A share as a cell, in percent.

  >>> percent(Interval(0.9, 0.01)), percent(0.1, digits=0)
  ('90.0 % ± 1.0', '10 %')
  """
  mean, half_width = share if isinstance(share, Interval) else (share, None)
  error = "" if half_width is None else f" ± {100 * half_width:.{digits}f}"
  return f"{100 * mean:.{digits}f} %{error}"


def points(difference: Interval) -> str:
  """A difference of shares as a cell, in percentage points.

  >>> points(Interval(-0.0125, 0.005)), points(Interval(0.01, None))
  ('-1.25 ± 0.50', '+1.00')
  """
  error = "" if difference.half_width is None else f" ± {100 * difference.half_width:.2f}"
  return f"{100 * difference.mean:+.2f}{error}"


def metric(name: str, interval: Interval) -> str:
  """A metric as a cell: in percent if its name says that it is a share.

  >>> metric("test_accuracy", Interval(0.9, None)), metric("test_loss", Interval(0.9, None))
  ('90.0 %', '0.9')
  """
  return percent(interval) if is_share(name) else number(interval)


def metric_titles(names: Collection[str]) -> dict[str, str]:
  """The metrics of a table with their titles: those of predicted words if there are any, or all.

  >>> metric_titles(["perplexity", "accuracy_top1"])
  {'accuracy_top1': 'AccuracyTop1', 'perplexity': 'perplexity'}
  >>> metric_titles(["test_accuracy"])
  {'test_accuracy': 'test accuracy'}
  """
  predicted = {name: title for name, title in _PREDICTED.items() if name in names}
  return predicted or {name: name.replace("_", " ") for name in names}


def is_share(name: str) -> bool:
  """Whether the metric of this name is a share in [0, 1]."""
  return "accuracy" in name


def number(interval: Interval) -> str:
  """A number as a cell."""
  error = "" if interval.half_width is None else f" ± {interval.half_width:.2g}"
  return f"{interval.mean:.4g}{error}"
