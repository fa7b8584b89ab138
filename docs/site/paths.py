"""Where things lie: the repository, the documentation, what a build writes."""

import pathlib

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
GENERATED = DOCS / "generated"

COPIED = {
  **{
    f"{name.upper()}.md": f"generated/{name}" for name in ("changelog", "contributing", "security")
  },
  **{
    page.relative_to(REPOSITORY).as_posix(): f"generated/experiments/{page.parent.name}"
    for page in sorted(REPOSITORY.glob("experiments/*/README.md"))
  },
  **{
    notebook.relative_to(REPOSITORY).as_posix(): f"generated/notebooks/{notebook.stem}"
    for notebook in sorted(REPOSITORY.glob("colabs/*.ipynb"))
  },
}
"""Files outside docs/ that are pages of the site, by their path in the repository."""


def write(path: pathlib.Path, text: str) -> None:
  """Writes a file of `generated/`, if it is new: Sphinx reads changed files again."""
  path.parent.mkdir(parents=True, exist_ok=True)
  if not path.exists() or path.read_text() != text:
    path.write_text(text)
