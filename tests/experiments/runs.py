"""A run of an experiment, as a test makes it, and what it leaves."""

import contextlib
import io
import pathlib
from typing import NamedTuple

from experiments.runner import files, launch
from experiments.runner.launch import Experiment, Location


class Finished(NamedTuple):
  """A run's folder, and what it printed."""

  path: pathlib.Path
  out: str
  err: str

  @property
  def report(self) -> str:
    return (self.path / "report.md").read_text()

  @property
  def results(self) -> files.Json:
    return files.read_json(self.path / "results.json")

  def rows(self, name: str, file: str = "metrics") -> list[files.Row]:
    """The rows of a file of one of its trainings, such as private/0."""
    return files.read_rows(self.path / name / f"{file}.jsonl")


def prepare(experiment: Experiment, path: pathlib.Path, *, resume: bool = False, **given):
  """What is done before a run: it refuses what can be refused."""
  return launch.prepare(experiment, given, Location(path=str(path), resume=resume))


def run(experiment: Experiment, path: pathlib.Path, **given) -> Finished:
  """Runs the experiment in a folder, with these flags, or `resume=True`."""
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    launch.execute(prepare(experiment, path, **given))
  return Finished(path, out.getvalue(), err.getvalue())
