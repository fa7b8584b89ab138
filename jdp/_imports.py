"""Modules that a command's `--import` imports, so that they register their objects."""

import importlib
import sys
from collections.abc import Iterable


def import_all(modules: Iterable[str]) -> None:
  """Imports modules, from the working directory too.

  Raises:
    ValueError: if one is not found.
  """
  for module in modules:
    if "" not in sys.path:
      sys.path.insert(0, "")
    try:
      if not all(map(str.isidentifier, module.split("."))):
        raise ModuleNotFoundError("this is not the name of one")
      importlib.import_module(module)
    except ModuleNotFoundError as error:
      raise ValueError(
        f"Expected --import to name a module, got {module!r}: {error}; start the command in the "
        "folder that holds it, or install it."
      ) from None
