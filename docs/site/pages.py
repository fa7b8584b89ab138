"""Writes `docs/generated/`: what the pages of the site take from the code."""

from docs.site import api_pages, architecture, notebooks, tables
from docs.site.paths import COPIED, DOCS, GENERATED, REPOSITORY, write


def write_all() -> None:
  """All generated pages, tables and pictures."""
  tables.check_complete()
  for name, text in tables.parts().items():
    write(GENERATED / f"parts/{name}.md", text)
  for name, text in api_pages.pages().items():
    write(GENERATED / f"api/{name}.md", text)
  for origin, page in COPIED.items():
    if origin.endswith(".md"):
      write(DOCS / f"{page}.md", (REPOSITORY / origin).read_text())
  write(GENERATED / "architecture.svg", architecture.picture().decode())
  write(GENERATED / "experiments/index.md", _experiments())
  notebooks.write_all()


def _experiments() -> str:
  """The list of the experiments' pages."""
  names = sorted(
    page.rsplit("/", 1)[1] for page in COPIED.values() if page.startswith("generated/experiments/")
  )
  lines = "\n".join(names)
  return (
    "# Experiments and their results\n\nEach page has the results of one experiment, and the "
    "commands that made them. `benchmarks` has speed, beside peers.\n\n"
    f"```{{toctree}}\n:maxdepth: 1\n\n{lines}\n```\n"
  )
