"""The parts of a sweep, each in a work directory of its own, put together as one finished sweep."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.runner import files
from experiments.runner.files import Row
from experiments.runner.runs import workdir
from experiments.runner.runs.results import RESULT
from experiments.runner.runs.sweep_parts import number_and_count, own_runs
from experiments.runner.runs.workdir import Workdir
from jdp._files import read_bytes
from jdp.federated.runs.whole_files import read_sealed, write_sealed

PART = "part.json"
"""The file of a part that names all runs of the sweep."""
_OF_PART = {workdir.FLAGS, workdir.DEVICES, "run.flags", PART}


class Parts(NamedTuple):
  """All parts of a sweep, whose runs are finished.

  Attributes:
    folders: their work directories, in order.
    preset: of the sweep.
    flags: of the sweep in one piece.
  """

  folders: Sequence[pathlib.Path]
  preset: str
  flags: Row


def note_runs(folder: Workdir, names: Sequence[str]) -> None:
  """Keeps in `part.json` which runs the whole sweep has."""
  write_sealed(folder.path / PART, {"runs": list(names)})


def finished_parts(path: str, experiment: str) -> Parts:
  """The parts in a folder.

  Args:
    path: the folder that has their work directories.
    experiment: the binary's name.

  Raises:
    ValueError: if a run is missing, a part is there twice, or parts have other flags. Also if they
      were made by another experiment or in another environment.
  """
  found: dict[int, tuple[pathlib.Path, Row]] = {}
  for place in sorted(pathlib.Path(path).glob(f"*/{workdir.FLAGS}")):
    (folder, *_), preset, flags = workdir.reopen(str(place.parent), experiment)
    if flags["part"] is None:
      raise ValueError(f"Expected parts of a sweep in {path}, got a whole one, {folder}; move it.")
    number, _ = number_and_count(flags["part"])
    if number in found:
      raise ValueError(
        f"Expected each part once in {path}, got part {flags['part']} in {found[number][0]} and in "
        f"{folder}, each with noise of its own; move one away."
      )
    found[number] = folder, {"preset": preset, **flags}
  if not found:
    raise ValueError(f"Expected work directories of parts in {path}, got none; name their folder.")
  first, begun = next(iter(found.values()))
  _, count = number_and_count(begun["part"])
  for number, (folder, flags) in found.items():
    _refuse_other({**begun, "part": f"{number}/{count}"}, first, flags, folder)
  folders = {number: found[number][0] for number in sorted(found)}
  _refuse_missing(path, folders, count)
  whole = {**begun, "part": None}
  return Parts(list(folders.values()), whole.pop("preset"), whole)


def _refuse_other(expected: Row, first: pathlib.Path, flags: Row, folder: pathlib.Path) -> None:
  for name, value in expected.items():
    if flags[name] != value:
      raise ValueError(
        f"Expected --{name}={value} in {folder}, as in {first}, got {flags[name]}; merge the parts "
        "of one sweep."
      )


def _refuse_missing(path: str, folders: Mapping[int, pathlib.Path], count: int) -> None:
  """Refuses a sweep some of whose runs are not finished, and says which."""
  listed = [read_sealed(f / PART)["runs"] for f in folders.values() if (f / PART).exists()]
  if not listed:
    raise ValueError(f"Expected finished parts in {path}, got none; run or resume them.")
  names = listed[0]
  missing = {
    f"{number}/{count}": lacking
    for number in range(1, count + 1)
    if (
      lacking := [
        names[run]
        for run in own_runs(f"{number}/{count}", len(names))
        if number not in folders or not (folders[number] / names[run] / RESULT).exists()
      ]
    )
  }
  if missing:
    said = "; ".join(f"of part {part}: {', '.join(runs)}" for part, runs in missing.items())
    raise ValueError(
      f"Expected all {len(names)} runs of the sweep in {path}, got none {said}; run these parts, "
      "or continue them with --resume."
    )


def gather(folders: Sequence[pathlib.Path], into: Workdir) -> None:
  """Copies what the parts' runs left, and the devices they were computed on.

  Raises:
    ValueError: if two parts have another file of the same name, such as a public start.
  """
  for folder in folders:
    for source in filter(pathlib.Path.is_file, sorted(folder.rglob("*"))):
      name = source.relative_to(folder)
      if str(name) not in _OF_PART:
        _copy(source, into.path / name)
  used = [count for folder in folders for count in workdir.used_devices(Workdir(folder))]
  if set(used) != {workdir.environment()["devices"]}:
    files.write_json(into.path / workdir.DEVICES, list(dict.fromkeys(used)))


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
  content = read_bytes(source)
  if not target.exists():
    target.parent.mkdir(parents=True, exist_ok=True)
    files.write(target, content)
  elif read_bytes(target) != content:
    raise ValueError(
      f"Expected {source} to be as in the parts before it, got another; parts must be computed on "
      "one kind of machine."
    )
