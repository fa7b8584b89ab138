"""Links between files of the repository, as links between pages; names in code, as links to the
reference.

The files' text stays as it reads in the repository.
"""

import functools
import importlib
import os
import re
from collections.abc import Callable

from docs.site import public_names
from docs.site.paths import COPIED, DOCS, GENERATED, REPOSITORY

_LINK = re.compile(r'(\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?( "[^"]*")?\)')
_CODE = re.compile(r"(?<![`\w}])`((?:jdp\.)?[A-Za-z_]\w*(?:\.\w+)+)`(?!`)")
_FENCED = re.compile(r"(^```[^\n]*\n.*?^``` *$)", re.S | re.M)
_ORIGINS = {page: path for path, page in COPIED.items()}


def rewrite(app, docname: str, source: list[str]) -> None:
  """Sphinx's `source-read`: rewrites the text of a page, in place."""
  if docname.startswith("generated/api/"):  # whose docstrings have their links
    return
  source[0] = _LINK.sub(functools.partial(_link, docname), source[0])
  notebook = os.fspath(app.env.doc2path(docname)).endswith(".ipynb")
  if not notebook and docname != "generated/changelog":  # which tells of names that are gone
    source[0] = outside_fences(with_names, source[0])


def outside_fences(change: Callable[[str], str], text: str) -> str:
  """The text with every part changed that is not fenced code."""
  parts = _FENCED.split(text)
  return "".join(part if place % 2 else change(part) for place, part in enumerate(parts))


def with_names(text: str) -> str:
  """The text with links to the reference, where code is a public name.

  Raises:
    ValueError: if code is a name that jdp does not have.
  """
  return _CODE.sub(_name, text)


def _link(docname: str, found: re.Match[str]) -> str:
  """A link to the page that a file of the repository is; the bare file's name if it is none."""
  start, target, rest = found[1], found[2], (found[3] or "") + (found[4] or "")
  origin = _ORIGINS.get(docname)
  folder = (REPOSITORY / origin).parent if origin else (DOCS / docname).parent
  path = os.path.normpath(folder / target)
  relative = os.path.relpath(path, REPOSITORY)
  here = (DOCS / docname).parent
  if relative in COPIED:
    page = GENERATED.parent / f"{COPIED[relative]}{os.path.splitext(relative)[1]}"
    return f"{start}{os.path.relpath(page, here)}{rest})"
  if origin and (relative.startswith("docs/") or relative.endswith((".png", ".json", ".jsonl"))):
    return f"{start}{os.path.relpath(path, here)}{rest})"
  if relative == "README.md":
    return f"{start}{os.path.relpath(DOCS / 'index.md', here)})"
  return found[0]


def _name(found: re.Match[str]) -> str:
  name = found[1] if found[1].startswith("jdp.") else f"jdp.{found[1]}"
  if name in public_names.all_names():
    return f"{{py:obj}}`{found[1]} <{name}>`"
  if found[1].startswith("jdp.") and not _exists(name):
    raise ValueError(f"Expected a name of jdp in a page, got {name}; correct the page.")
  return found[0]


@functools.cache
def _exists(name: str) -> bool:
  """Whether a module, or what it holds, has that name."""
  parts = name.split(".")
  for length in range(len(parts), 0, -1):
    try:
      found = importlib.import_module(".".join(parts[:length]))
    except ModuleNotFoundError:
      continue
    for part in parts[length:]:
      if not hasattr(found, part) and part not in getattr(found, "__annotations__", {}):
        return False
      found = getattr(found, part, None)
    return True
  return False
