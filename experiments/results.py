"""The results that pages show, kept beside the experiments and never edited by hand.

    python -m experiments.results keep RUN NAME [--picture=PLOT ...] [--minutes=M]

takes over a finished work directory: `experiments/<experiment>/results/NAME.json` gets the command,
the versions, the tables of its `report.md` and all of its `results.json`, and the minutes of
processor time that it took. Each named plot goes beside it as `NAME_PLOT.png`.

A page shows results in four ways. The lines

    <!-- results/NAME.json: HEADING -->
    <!-- end -->

stand around the first table of the report's part with this heading (`HEADING, 2` is its second).
`<!-- results/NAME.jsonl: SUBJECT BENCHMARK -->` does the same for the rows of a benchmark, and
`<!-- reproduction: PUBLICATION -->` for a table of `experiments/reproduction.py`, and
`<!-- flags: presets -->` for what an experiment's flag files say of themselves. A link to a file,
titled with a path, holds one number (`experiments/stored_values.py`). A measured number stands
nowhere else, unless it is the text of a link to who published it.

    python -m experiments.results write    # fills these places in all pages
    python -m experiments.results check    # refuses pages that differ from the results
    python -m experiments.results again EXPERIMENT/NAME [--data_dir=DIR]

The last one runs the command of stored results anew, and compares the tables. Numbers with an
interval may differ as far as the intervals meet, as the noise is new.
"""

import argparse
import importlib
import itertools
import json
import pathlib
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from PIL import Image

from experiments import reproduction, stored_values
from experiments.benchmarks import harness
from experiments.runner import files, options
from experiments.runner.files import Json, Row

_FOLDER = pathlib.Path(__file__).parent
_ROOT = _FOLDER.parent
_REPORT, _RESULTS, _FLAGS = "report.md", "results.json", "flags.json"
_PLACES = ("data_dir", "data_file", "warm_start")  # flags that name files of one machine
_VERSIONS = ("python", "jax", "numpy", "devices")
_DIGITS = 6
_COLOURS = 64
_BLOCK = re.compile(
  r"^<!-- (\S*results/\S+\.jsonl?|reproduction|flags): (.+?)(?:, (\d+))? -->\n(.*?)^<!-- end -->$",
  re.M | re.S,
)
_BEGIN = re.compile(r"^<!--\s*(?:\S*results/|reproduction|flags)", re.M)
_MEASURED = re.compile(
  r"(?<![\w.])(?:\d[\d,]*)?\.?\d+\s?"
  r"(?:%|points|[mµn]?s|seconds?|minutes?|hours?|[kMG]i?B|times|[a-z]+/s|[a-z]+ a second)"
  r"(?![\w=]|\s+intervals?\b)"  # whose level is chosen
)
_PUBLISHED = re.compile(r"\[[^\]]*\]\(https?://[^)\s]+\)")
_UNMEASURED = re.compile(  # code, and formulas
  r"```.*?^```|`(?:[^`\n]|\n(?!\n))+`|^ {4}.*?$|\$\$.*?\$\$|(?<!\$)\$[^$\n]+\$", re.M | re.S
)
_MEAN = re.compile(r"([+-]?[\d.,e+-]*\d)( %)? (?:±|\+-) ([\d.e+-]*\d)(.*)")
_ENDS = re.compile(r"[\d.]+( %) \[([\d.]+), ([\d.]+)\](.*)")


def tables_of(report: str) -> dict[str, list[str]]:
  r"""The Markdown tables of a report, by the heading of their part.

  >>> tables_of("# A run\n\n## Accuracy\n\n| run |\n| --- |\n| a   |\n\nA note.\n")
  {'Accuracy': ['| run |\n| --- |\n| a   |']}
  """
  found: dict[str, list[str]] = {}
  for part in re.split(r"^## ", report, flags=re.M)[1:]:
    heading, _, text = part.partition("\n")
    if tables := _tables(text):
      found[heading] = tables
  return found


def stored(path: pathlib.Path, heading: str) -> Mapping[str, Sequence[str]]:
  """The tables of a file by heading: those of a report, or what code prints of a file of rows.

  The heading of a benchmark's rows is `SUBJECT BENCHMARK`.
  """
  if path.suffix == ".jsonl":
    subject, _, name = heading.partition(" ")
    module = importlib.import_module(f"{harness.__package__}.{subject}")
    return {heading: _tables(getattr(module, name).table(harness.read(path)))}
  content = files.read_json(path)
  if "tables" in content:
    return content["tables"]
  report = importlib.import_module(f"{__package__}.{path.resolve().parents[1].name}.report")
  return {heading: _tables(report.stored(path))}


def _tables(text: str) -> list[str]:
  return [table.rstrip("\n") for table in re.findall(r"(?:^\|.*\|\n?)+", text, re.M)]


def rounded(data: Json) -> Json:
  """JSON data whose numbers have six digits.

  >>> rounded({"accuracy": [0.123456789, 3]})
  {'accuracy': [0.123457, 3]}
  """
  if isinstance(data, float):
    return float(f"{data:.{_DIGITS}g}")
  if isinstance(data, Mapping):
    return {name: rounded(value) for name, value in data.items()}
  return [rounded(value) for value in data] if isinstance(data, list) else data


def command(experiment: str, preset: str, flags: Row) -> str:
  """What to type for a run with these flags: its preset, and what differs from it."""
  kind = importlib.import_module(f"experiments.{experiment}.__main__").EXPERIMENT.options_type
  path = _FOLDER / experiment / "flags" / f"{preset}.flags"
  own = vars(options.resolve(kind, {}, options.read_flagfile(kind, path)))
  given = {name: tuple(v) if isinstance(v, list) else v for name, v in flags.items()}
  words = (
    f"--{name}={name.upper() if name in _PLACES else options.written(value)}"
    for name, value in given.items()
    if value is not None and value != own[name]
  )
  return " ".join([f"python -m experiments.{experiment} --preset={preset}", *words])


def kept(run: pathlib.Path, minutes: float | None = None) -> Row:
  """What is kept of a finished run, and of its minutes of processor time, as JSON data.

  Raises:
    ValueError: if the run is not finished.
  """
  for name in (_FLAGS, _REPORT):
    if not (run / name).exists():
      raise ValueError(f"Expected {name} in {run}, got none; finish the run with --resume.")
  begun = files.read_json(run / _FLAGS)
  # A report of tables alone has no other results.
  results = files.read_json(run / _RESULTS) if (run / _RESULTS).exists() else {}
  named = {name: value for name, value in begun["flags"].items() if name not in _PLACES}
  return {
    "experiment": begun["experiment"],
    "command": command(begun["experiment"], begun["preset"], begun["flags"]),
    "environment": {name: begun["environment"][name] for name in _VERSIONS},
    **({} if minutes is None else {"processor_minutes": float(f"{minutes:.2g}")}),
    "tables": tables_of((run / _REPORT).read_text()),
    "results": rounded({**results, "flags": named}),
  }


def keep(
  run: pathlib.Path, name: str, pictures: Sequence[str] = (), minutes: float | None = None
) -> pathlib.Path:
  """Writes what is kept of a finished run, and small copies of its plots."""
  content = kept(run, minutes)
  folder = _FOLDER / content["experiment"] / "results"
  folder.mkdir(exist_ok=True)
  for picture in pictures:
    with Image.open(run / f"{picture}.png") as plot:
      small = plot.convert("RGB").quantize(_COLOURS)
      small.save(folder / f"{name}_{picture}.png", optimize=True)
  path = folder / f"{name}.json"
  lines = (
    f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items()
  )
  files.write(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
  return path


def filled(text: str, folder: pathlib.Path) -> str:
  """A page with its tables and numbers as the results have them, whose paths begin in its folder.

  Raises:
    ValueError: if it names a table or a value that is not there.
  """

  def block(match: re.Match[str]) -> str:
    path, heading, number, _ = match.groups()
    begin = match[0].partition("\n")[0]
    if path == "reproduction":
      return f"{begin}\n{reproduction.table_of(heading)}\n<!-- end -->"
    if (path, heading) == ("flags", "presets"):
      return f"{begin}\n{_presets(folder / path)}\n<!-- end -->"
    tables = stored(folder / path, heading)
    which = int(number or 1)
    if len(tables.get(heading, ())) < which:
      raise ValueError(f"Expected a table of {sorted(tables)} in {path}, got {heading}, {which}.")
    return f"{begin}\n{tables[heading][which - 1]}\n<!-- end -->"

  return stored_values.cited(_BLOCK.sub(block, text), folder)


def _presets(flags: pathlib.Path) -> str:
  """The table of an experiment's presets, each with the comment of its flag file."""
  rows = []
  for path in sorted(flags.glob("*.flags"), key=lambda path: (path.stem != "smoke", path.stem)):
    comment = [line[1:].strip() for line in path.read_text().splitlines() if line.startswith("#")]
    rows.append(f"| `{path.stem}` | {' '.join(comment).replace('|', chr(92) + '|')} |")
  return "\n".join(["| preset | what it is |", "| --- | --- |", *rows])


def pages() -> Iterator[pathlib.Path]:
  """The Markdown pages that may show results: READMEs, and those of `docs`."""
  docs = (path for path in (_ROOT / "docs").rglob("*.md") if "generated" not in path.parts)
  return iter(sorted([_ROOT / "README.md", *docs, *_FOLDER.glob("*/README.md")]))


def differences() -> list[str]:
  """What pages say otherwise than the results, or leave out; empty if nothing."""
  return list(itertools.chain.from_iterable(map(_differences, pages())))


def _differences(page: pathlib.Path) -> Iterator[str]:
  text, folder = page.read_text(), page.parent
  place = page.relative_to(_FOLDER.parent)
  if filled(text, folder) != text:
    yield f"{place} differs from its results; run python -m experiments.results write"
  if len(_BEGIN.findall(text)) != len(_BLOCK.findall(text)):
    yield f"{place} has a table's beginning without an end"
  shown = [heading for path, heading, *_ in _BLOCK.findall(text) if path == "reproduction"]
  if page.name == "reproduction.md" and sorted(shown) != sorted(reproduction.CLAIMS):
    yield f"{place} shows {shown}, and not each of {list(reproduction.CLAIMS)} once"
  for number in unsourced(text):
    yield f"{place} says {number}, and links it to no file of results"
  if folder.parent != _FOLDER:
    return
  for path in sorted((folder / "results").glob("*.png")):
    if f"results/{path.name}" not in text:
      yield f"{place} does not show results/{path.name}"


def unsourced(text: str) -> list[str]:
  """The measured numbers of a page that come from no file, and from no publication.

  A measured number has a unit of time, memory or speed, or is a share. It stands in a link to a
  file of results, in a table of one, or in a link to who published it. Code holds settings, and
  presets say no measured numbers of themselves.

  >>> link = '[0.4 s](results/a.jsonl "plan > seconds")'
  >>> unsourced(f"It takes {link}, and 3 times as long on 1,024 users.")
  ['3 times']
  >>> unsourced("[95.0 %](https://arxiv.org/abs/1) with `--dropout=.3` of `30 %`, a 95 % interval")
  []
  """
  text = _BLOCK.sub(lambda block: block[0] if block[1] == "flags" else "", text)
  for sourced in (stored_values.CITED, _PUBLISHED, _UNMEASURED):
    text = sourced.sub("", text)
  return _MEASURED.findall(text)


def again(name: str, places: Mapping[str, str]) -> list[str]:
  """Runs the command of stored results anew; returns the cells that differ beyond their intervals.

  Args:
    name: `EXPERIMENT/NAME`.
    places: flag -> the file or folder of this machine that the command needs.
  """
  experiment, _, stored = name.partition("/")
  content = files.read_json(_FOLDER / experiment / "results" / f"{stored}.json")
  command = content["command"]
  for flag, path in places.items():
    command = command.replace(f"={flag.upper()}", f"={shlex.quote(path)}")
  if missing := [flag for flag in _PLACES if f"={flag.upper()}" in command]:
    raise ValueError(f"Expected --{missing[0]}, which this command needs, got none; give it.")
  print(command, flush=True)
  with tempfile.TemporaryDirectory() as folder:
    run = pathlib.Path(folder) / "run"
    words = [sys.executable, *shlex.split(command)[1:], f"--workdir={run}"]
    subprocess.run(words, check=True, cwd=_ROOT, stdout=subprocess.DEVNULL)
    anew = tables_of((run / _REPORT).read_text())
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  print(f"{(used.ru_utime + used.ru_stime) / 60:.2g} minutes of processor time")
  return list(disagreements(content["tables"], anew))


def disagreements(
  before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]
) -> Iterator[str]:
  """The cells of tables that differ: intervals that do not meet, else any other text."""
  for heading, tables in before.items():
    pairs = itertools.zip_longest(tables, after.get(heading, ()), fillvalue="")
    for table, other in pairs:
      cells = ([c.strip() for c in text.split("|")] for text in (table, other))
      for old, new in itertools.zip_longest(*cells, fillvalue=""):
        if old != new and set(old + new) != {"-"} and not _meet(old, new):
          yield f"{heading}: {old!r} was stored, {new!r} came now"


def _meet(old: str, new: str) -> bool:
  """Whether two cells differ in their numbers alone, and their intervals meet."""
  one, other = _interval(old), _interval(new)
  if one is None or other is None or one[2] != other[2]:
    return False
  return max(one[0], other[0]) <= min(one[1], other[1])


def _interval(cell: str) -> tuple[Decimal, Decimal, tuple[str, ...]] | None:
  """The ends of an interval, exact, and the rest of its cell."""
  if found := _MEAN.fullmatch(cell):
    mean, unit, half, rest = found.groups("")
    middle, width = Decimal(mean.replace(",", "")), Decimal(half)
    return middle - width, middle + width, (unit, rest)
  if found := _ENDS.fullmatch(cell):
    unit, low, high, rest = found.groups("")
    return Decimal(low), Decimal(high), (unit, rest)
  return None


def main(arguments: Sequence[str]) -> None:
  """Carries out a command line."""
  parser = argparse.ArgumentParser(prog="python -m experiments.results", description=__doc__)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  commands = parser.add_subparsers(dest="command", required=True)
  keeping = commands.add_parser("keep", help="take over a finished work directory")
  keeping.add_argument("run", type=pathlib.Path)
  keeping.add_argument("name")
  keeping.add_argument("--picture", action="append", default=[], help="a plot's name")
  keeping.add_argument("--minutes", type=float, help="of processor time that the run took")
  commands.add_parser("write", help="fill the places of all pages")
  commands.add_parser("check", help="compare all pages with the results")
  repeating = commands.add_parser("again", help="run a stored command anew, and compare")
  repeating.add_argument("name", help="EXPERIMENT/NAME")
  for place in _PLACES:
    repeating.add_argument(f"--{place}")
  chosen = parser.parse_args(arguments)
  if chosen.command == "keep":
    print(keep(chosen.run, chosen.name, chosen.picture, chosen.minutes))
  elif chosen.command == "write":
    for page in pages():
      if (text := filled(page.read_text(), page.parent)) != page.read_text():
        page.write_text(text)
  elif chosen.command == "again":
    places = {name: path for name in _PLACES if (path := getattr(chosen, name))}
    if found := again(chosen.name, places):
      sys.exit("\n".join(found))
    print("All cells are equal, or their intervals meet.")
  elif found := differences():
    sys.exit("\n".join(found))


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except (ValueError, OSError, subprocess.CalledProcessError) as error:
    sys.exit(f"results: {error}")
