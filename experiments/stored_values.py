r"""Single values of results files, found by what stands beside them.

A path goes from the whole to the value, its steps parted by ` > `:

    Results > central only > test accuracy        a heading, a row, a column of a table
    federated, logistic > jdp, a binary > rate    rows of JSON lines, by one of their values
    num_rounds=1000, size=16 > jdp.seconds        by several; dots go into objects
    A divided by B                                the ratio of two such paths
    Results > local ε₁ = 500 - central only > test_accuracy    the paired difference of two runs

    processor_minutes                             of the run, in seconds like all times

A paired difference is the mean over repetitions, run by run, with its 95 % interval.

In Markdown, `[0.445 s](results/FILE.jsonl "PATH")` shows such a value: the link leads to the file,
its title is the path.
"""

import functools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence

from experiments.runner.files import Json, Row
from experiments.runner.reports.statistics import mean_interval

CITED = re.compile(r'\[([^\]]*)\]\(([^()\s]+\.jsonl?) "([^"]+)"\)')
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|\.\d+")
_SCALES = {"ms": 1e3, "µs": 1e6, "%": 1e2, "minutes": 1 / 60, "hours": 1 / 3600, "GB": 1e-9}
_STEP, _RATIO, _MINUS = " > ", " divided by ", " - "
_NAMES = re.compile(r", (?=[^,=]+=)")  # a text may have commas, too
_MINUTES = "_minutes"  # at the end of a name


@functools.cache
def document(path: pathlib.Path) -> Json:
  """A results file: an experiment's tables by heading, or the rows of a benchmark."""
  text = path.read_text()
  if path.suffix == ".jsonl":
    return [json.loads(line) for line in text.splitlines()]
  content = json.loads(text)
  return content if isinstance(content, list) else {**content, **_tables(content["tables"])}


def rows_of(table: str) -> list[dict[str, str]]:
  r"""The rows of a Markdown table, by column.

  >>> rows_of("| run | loss |\n| --- | --- |\n| a | 1.5 |")
  [{'run': 'a', 'loss': '1.5'}]
  """
  header, _, *rows = (
    [c.strip() for c in line.strip("|").split(" | ")] for line in table.split("\n")
  )
  return [dict(zip(header, row, strict=True)) for row in rows]


def _tables(tables: Mapping[str, Sequence[str]]) -> Row:
  """Tables by heading; a heading's second one is `HEADING, 2`."""
  return {
    heading if number == 1 else f"{heading}, {number}": rows_of(table)
    for heading, several in tables.items()
    for number, table in enumerate(several, 1)
  }


def value(source: Json, path: str) -> Json:
  """The value at a path (see above).

  >>> value(
  ...   [{"name": "a", "time": {"wall": 2.0}}, {"name": "b", "time": {"wall": 4.0}}],
  ...   "b > time.wall divided by a > time.wall",
  ... )
  2.0
  >>> value({"processor_minutes": 2.5}, "processor_minutes")
  150.0

  Raises:
    ValueError: if nothing is there.
  """
  if _RATIO in path:
    over, under = path.split(_RATIO)
    return _size(value(source, over)) / _size(value(source, under))
  steps = path.split(_STEP)
  if len(steps) == 3 and _MINUS in steps[1] and "results" in source:
    first, second = steps[1].split(_MINUS)
    return _paired(source["results"]["runs"], first, second, steps[2])
  found = functools.reduce(functools.partial(_step, path), steps, source)
  return 60 * found if path.endswith(_MINUTES) else found


def _step(path: str, at: Json, step: str) -> Json:
  if isinstance(at, list):
    at = next((row for row in reversed(at) if _matches(row, step)), None)  # the newest of them
  else:
    at = _field(at, step)
  if at is None:
    raise ValueError(f"Expected a value at {path!r}, got nothing at {step!r}; name what is there.")
  return at


def _matches(row: Row, step: str) -> bool:
  """Whether a row has all values of a step: `VALUE` in any column, `NAME=VALUE` in one."""
  if step in map(str, row.values()):
    return True
  wanted = [part.partition("=") for part in _NAMES.split(step)]
  return all(equal and str(_field(row, name)) == text for name, equal, text in wanted)


def _field(at: Json, name: str) -> Json:
  """The entry `name`, else that at the end of its dots; in any object of a row's own."""
  if not isinstance(at, Mapping):
    return None
  if name in at:
    return at[name]
  head, _, rest = name.partition(".")
  if rest and head in at:
    return _field(at[head], rest)
  nested = (_field(part, name) for part in at.values() if isinstance(part, Mapping))
  return next((found for found in nested if found is not None), None)


def _paired(runs: Sequence[Row], first: str, second: str, metric: str) -> str:
  """The mean difference of two settings' runs with the same seeds, as a share or as it is."""
  of = {
    label: {row["seed"]: row["metrics"][metric] for row in runs if row["label"] == label}
    for label in (first, second)
  }
  if not of[first] or of[first].keys() != of[second].keys():
    raise ValueError(f"Expected runs {first!r} and {second!r} of the same seeds, got {of}.")
  mean, width = mean_interval([of[first][seed] - of[second][seed] for seed in sorted(of[first])])
  scale, unit = (100, " points") if "accuracy" in metric else (1, "")
  interval = "" if width is None else f" ± {scale * width:.1f}"
  return f"{scale * mean:+.1f}{interval}{unit}"


def number(text: str) -> float:
  """The first number of a text.

  >>> number("90,051 clients/s"), number("88.7 % ± 1.1")
  (90051.0, 88.7)
  """
  return float(_NUMBER.search(text)[0].replace(",", ""))  # type: ignore[index]


def _size(found: str | float) -> float:
  """A value as a number: a table's cell begins with it."""
  return number(found) if isinstance(found, str) else float(found)


def shown(old: str, found: str | float) -> str:
  """A text with the value in place of its first number, to as many digits after the point.

  A value in seconds or a share is shown in minutes, ms or %, if the text says so.

  >>> shown("about 0.40 s", 0.4452615), shown("12.0 ms", 0.0123), shown("3,000 clients/s", 3466.2)
  ('about 0.45 s', '12.3 ms', '3,466 clients/s')

  Raises:
    ValueError: if the text has no number, or several.
  """
  numbers = list(_NUMBER.finditer(old))
  if len(numbers) != 1:
    raise ValueError(f"Expected one number in the text of a link to a result, got {old!r}.")
  match = numbers[0]
  if isinstance(found, str):
    size = number(found)
  else:
    rest = old[match.end() :].strip().split(" ")[0]
    size = float(found) * _SCALES.get(rest, 1.0)
  digits = len(match[0].partition(".")[2])
  text = f"{size:,.{digits}f}"
  if match[0].startswith("."):
    text = text.lstrip("0")
  return old[: match.start()] + text + old[match.end() :]


def cited(text: str, folder: pathlib.Path) -> str:
  """A page with the values of its links to results as their files have them."""

  def link(match: re.Match[str]) -> str:
    old, path, where = match.groups()
    found = value(document((folder / path).resolve()), where)
    return f'[{shown(old, found)}]({path} "{where}")'

  return CITED.sub(link, text)
