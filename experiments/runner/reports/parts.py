"""Reports of binaries that answer questions: parts, each a text or table and perhaps a plot."""

from collections.abc import Iterable
from typing import NamedTuple

from matplotlib.figure import Figure

from experiments.runner import files
from experiments.runner.reports import plots
from experiments.runner.reports.tables import repeat
from experiments.runner.runs.workdir import Workdir


class Part(NamedTuple):
  """A piece of a report: `text` in Markdown under `title`, with a plot saved as `name`.png or none."""

  title: str
  text: str
  name: str | None = None
  figure: Figure | None = None


def section(workdir: Workdir, part: Part) -> str:
  """A part in Markdown; its plot is saved."""
  text = f"## {part.title}\n\n{part.text}\n"
  if part.figure is None:
    return text
  plots.save(part.figure, workdir.path / f"{part.name}.png")
  return f"{text}\n![{part.title}]({part.name}.png)\n"


def write_parts(workdir: Workdir, title: str, experiment: str, parts: Iterable[Part]) -> None:
  """Prints each part as it comes, saves its plot, and then writes `report.md`.

  Args:
    workdir: gets the files.
    title: of the report.
    experiment: the binary's name.
    parts: an iterator may compute each when it is asked for it.
  """
  sections = []
  for part in parts:
    print(f"\n## {part.title}\n\n{part.text}\n", flush=True)
    sections.append(section(workdir, part))
  report = workdir.path / "report.md"
  files.write(report, "\n".join([f"# {title}\n", *sections, repeat(experiment)]).encode())
  print(f"Report and plots: {report}")
