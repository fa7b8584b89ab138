"""The stored notebooks: as pages, as figures of other pages, and as a gallery of thumbnails."""

import base64
import json
import pathlib
import re

from docs.site.paths import GENERATED, REPOSITORY, write

_OF_THE_FILE = re.compile(r"^\[!\[Open in Colab.*\n+|\n*On Colab, install first:.*", re.M)
_INSTALL = "install"  # the id of the cell that installs


def write_all() -> None:
  """Copies of the notebooks, their figures, and the gallery."""
  cards = []
  for path in sorted((REPOSITORY / "colabs").glob("*.ipynb")):
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell.get("id") != _INSTALL]
    first = "".join(cells[0]["source"])
    text = _OF_THE_FILE.sub("", first)
    cells[0]["source"] = [text]
    content = json.dumps({**notebook, "cells": cells}, indent=1)
    write(GENERATED / "notebooks" / path.name, content)
    figures = [figure for cell in cells for figure in _figures(cell)]
    for number, figure in enumerate(figures, 1):
      _write_bytes(GENERATED / f"figures/{path.stem}_{number}.png", figure)
    cards.append(_card(path.stem, text, bool(figures)))
  names = "\n".join(path.stem for path in sorted((REPOSITORY / "colabs").glob("*.ipynb")))
  write(
    GENERATED / "notebooks/index.md",
    "# Gallery\n\nEvery notebook is executed whenever the code changes. Shown are its outputs.\n\n"
    + "\n".join(cards)
    + f"\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n",
  )


def _figures(cell: dict) -> list[bytes]:
  outputs = (output.get("data", {}) for output in cell.get("outputs", []))
  pictures = (data["image/png"] for data in outputs if "image/png" in data)
  return [base64.b64decode("".join(picture)) for picture in pictures]


def _card(name: str, text: str, has_figure: bool) -> str:
  """A notebook's heading, its first sentence and its first figure."""
  heading, _, rest = text.strip().partition("\n")
  sentence = " ".join(rest.strip().split("\n\n")[0].split())
  lines = [f"## [{heading.lstrip('# ')}]({name}.ipynb)", "", sentence, ""]
  if has_figure:
    lines += [
      f"```{{image}} ../figures/{name}_1.png\n:alt: {heading.lstrip('# ')}",
      f":target: {name}.html\n:class: thumbnail\n```",
      "",
    ]
  return "\n".join(lines)


def _write_bytes(path: pathlib.Path, content: bytes) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  if not path.exists() or path.read_bytes() != content:
    path.write_bytes(content)
