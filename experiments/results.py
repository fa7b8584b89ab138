"""The results that an experiment's README shows, kept beside it and never edited by hand.

    python -m experiments.results keep RUN NAME [--picture=PLOT ...]

takes over a finished work directory: `experiments/<experiment>/results/NAME.json` gets the command,
the versions, the tables of its `report.md` and all of its `results.json`. Each named plot goes
beside it as `NAME_PLOT.png`. In a README, the lines

    <!-- results/NAME.json: HEADING -->
    <!-- end -->

stand around the first table of the report's part with this heading (`HEADING, 2` is its second).

    python -m experiments.results write    # fills these places in all READMEs
    python -m experiments.results check    # refuses READMEs that differ from the results
"""

import argparse
import importlib
import itertools
import json
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from PIL import Image

from experiments.runner import files, options

_FOLDER = pathlib.Path(__file__).parent
_REPORT, _RESULTS, _FLAGS = "report.md", "results.json", "flags.json"
_PLACES = ("data_dir", "data_file", "warm_start")  # flags that name files of one machine
_VERSIONS = ("python", "jax", "numpy", "devices")
_DIGITS = 6
_COLOURS = 64
_BLOCK = re.compile(
  r"^<!-- (results/\S+\.json): (.+?)(?:, (\d+))? -->\n(.*?)^<!-- end -->$", re.M | re.S
)


def tables_of(report: str) -> dict[str, list[str]]:
  r"""The Markdown tables of a report, by the heading of their part.

  >>> tables_of("# A run\n\n## Accuracy\n\n| run |\n| --- |\n| a   |\n\nA note.\n")
  {'Accuracy': ['| run |\n| --- |\n| a   |']}
  """
  found: dict[str, list[str]] = {}
  for part in re.split(r"^## ", report, flags=re.M)[1:]:
    heading, _, text = part.partition("\n")
    tables = re.findall(r"(?:^\|.*\|\n?)+", text, re.M)
    if tables:
      found[heading] = [table.rstrip("\n") for table in tables]
  return found


def rounded(data: Any) -> Any:
  """JSON data whose numbers have six digits.

  >>> rounded({"accuracy": [0.123456789, 3]})
  {'accuracy': [0.123457, 3]}
  """
  if isinstance(data, float):
    return float(f"{data:.{_DIGITS}g}")
  if isinstance(data, Mapping):
    return {name: rounded(value) for name, value in data.items()}
  return [rounded(value) for value in data] if isinstance(data, list) else data


def command(experiment: str, preset: str, flags: Mapping[str, Any]) -> str:
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


def kept(run: pathlib.Path) -> dict[str, Any]:
  """What is kept of a finished run, as JSON data.

  Raises:
    ValueError: if the run is not finished.
  """
  for name in (_FLAGS, _REPORT, _RESULTS):
    if not (run / name).exists():
      raise ValueError(f"Expected {name} in {run}, got none; finish the run with --resume.")
  begun, results = files.read_json(run / _FLAGS), files.read_json(run / _RESULTS)
  named = {name: value for name, value in begun["flags"].items() if name not in _PLACES}
  return {
    "experiment": begun["experiment"],
    "command": command(begun["experiment"], begun["preset"], begun["flags"]),
    "environment": {name: begun["environment"][name] for name in _VERSIONS},
    "tables": tables_of((run / _REPORT).read_text()),
    "results": rounded({**results, "flags": named}),
  }


def keep(run: pathlib.Path, name: str, pictures: Sequence[str] = ()) -> pathlib.Path:
  """Writes what is kept of a finished run, and small copies of its plots."""
  content = kept(run)
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
  """A README with its tables as the results in its folder have them.

  Raises:
    ValueError: if it names a table that is not there.
  """

  def block(match: re.Match[str]) -> str:
    path, heading, number, _ = match.groups()
    tables = files.read_json(folder / path)["tables"]
    which = int(number or 1)
    if len(tables.get(heading, ())) < which:
      raise ValueError(f"Expected a table of {sorted(tables)} in {path}, got {heading}, {which}.")
    begin = match[0].partition("\n")[0]
    return f"{begin}\n{tables[heading][which - 1]}\n<!-- end -->"

  return _BLOCK.sub(block, text)


def readmes() -> Iterator[pathlib.Path]:
  """The READMEs of all experiments."""
  return iter(sorted(_FOLDER.glob("*/README.md")))


def differences() -> list[str]:
  """What READMEs say otherwise than the results, or leave out; empty if nothing."""
  return list(itertools.chain.from_iterable(map(_differences, readmes())))


def _differences(readme: pathlib.Path) -> Iterator[str]:
  text, folder = readme.read_text(), readme.parent
  place = f"{folder.name}/README.md"
  if filled(text, folder) != text:
    yield f"{place} differs from its results; run python -m experiments.results write"
  if text.count("<!-- results/") != len(_BLOCK.findall(text)):
    yield f"{place} has a table's beginning without an end"
  for path in sorted((folder / "results").glob("*.png")):
    if f"results/{path.name}" not in text:
      yield f"{place} does not show results/{path.name}"


def main(arguments: Sequence[str]) -> None:
  """Carries out a command line."""
  parser = argparse.ArgumentParser(prog="python -m experiments.results", description=__doc__)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  commands = parser.add_subparsers(dest="command", required=True)
  keeping = commands.add_parser("keep", help="take over a finished work directory")
  keeping.add_argument("run", type=pathlib.Path)
  keeping.add_argument("name")
  keeping.add_argument("--picture", action="append", default=[], help="a plot's name")
  commands.add_parser("write", help="fill the tables of all READMEs")
  commands.add_parser("check", help="compare all READMEs with the results")
  chosen = parser.parse_args(arguments)
  if chosen.command == "keep":
    print(keep(chosen.run, chosen.name, chosen.picture))
  elif chosen.command == "write":
    for readme in readmes():
      readme.write_text(filled(readme.read_text(), readme.parent))
  elif found := differences():
    sys.exit("\n".join(found))


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except (ValueError, OSError) as error:
    sys.exit(f"results: {error}")
