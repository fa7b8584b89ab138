"""The report of every experiment: parts, and how to repeat it.

A part is a text with tables and perhaps plots.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from matplotlib.figure import Figure

from experiments.runner import files
from experiments.runner.reports import plots, statements
from experiments.runner.runs.layouts import kept_layouts
from experiments.runner.runs.training import TrainingOptions
from experiments.runner.runs.workdir import Workdir, changed_devices, environment

_SWEEP_FILES = (
  "All results are in `results.json`. The folder `<setting>/<repetition>` of each run holds its\n"
  "metrics, its ledger and its last parameters (`params.npz`)."
)


class Part(NamedTuple):
  """A part of a report.

  Attributes:
    title: its heading.
    text: in Markdown.
    figures: plots by name. Each is saved as `<name>.png`, shown below the text, and as a PDF.
    printed: whether the terminal shows it too. Explanations of the results are in the report alone.
  """

  title: str
  text: str
  figures: Mapping[str, Figure] = MappingProxyType({})
  printed: bool = True


def write_report(
  workdir: Workdir,
  experiment: str,
  title: str,
  parts: Iterable[Part],
  *,
  notice: str = "",
  remark: str = "",
) -> None:
  """Prints the parts in turn, saves their plots, and then writes `report.md`.

  Args:
    workdir: gets the files.
    experiment: its name.
    title: of the report.
    parts: an iterator may compute each part when it is asked for it.
    notice: warnings (`statements.notice`), which come first.
    remark: a paragraph on how to repeat the results, and where they lie.
  """
  if notice:
    print(f"\n{notice.rstrip()}", flush=True)
  sections = []
  for part in parts:
    if part.printed:
      print(f"\n## {part.title}\n\n{part.text}\n", flush=True)
    sections.append(_section(workdir, part))
  report = workdir.path / "report.md"
  content = [f"# {title}\n", *([notice.rstrip() + "\n"] if notice else []), *sections]
  files.write(report, "\n".join([*content, _ending(experiment, remark)]).encode())
  print(f"Report and plots: {report}")


def write_sweep_report(
  workdir: Workdir, experiment: str, title: str, options: TrainingOptions, parts: Iterable[Part]
) -> None:
  """Writes the report of a sweep with these `TrainingOptions`: see `write_report`."""
  changes = statements.computed(changed_devices(workdir), kept_layouts(workdir))
  remark = "\n".join([statements.randomness(options), *changes, _SWEEP_FILES])
  notice = statements.notice(options)
  write_report(workdir, experiment, title, parts, notice=notice, remark=remark)


def _section(workdir: Workdir, part: Part) -> str:
  """A part in Markdown; saves its plots."""
  for name, figure in part.figures.items():
    plots.save(figure, workdir.path / f"{name}.png")
  pictures = (f"![{_caption(name)}]({name}.png)" for name in part.figures)
  return f"## {part.title}\n\n" + "\n\n".join([part.text, *pictures]) + "\n"


def _caption(name: str) -> str:
  return name.replace("_", " ").capitalize()


def _ending(experiment: str, remark: str) -> str:
  """The report's last section: the command, the folder's contents, and the machine."""
  paragraphs = [
    "## How to repeat it",
    "From the repository, with the path of this folder:",
    f"    python -m experiments.{experiment} --flagfile=<folder>/run.flags",
    f"All flags are in `run.flags` and `flags.json`.\n{remark}".rstrip(),
    "\n".join(f"- {name}: {value}" for name, value in environment().items()),
  ]
  return "\n\n".join(paragraphs) + "\n"
