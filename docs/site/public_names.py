"""The public names of jdp, found in its source: nothing is imported.

A package's public names are those of its `__all__`. Packages without one are used by their modules,
whose public names are what they define without a leading underscore. The types of what they take
and return are found by their annotations. They have an entry too, by the modules that define them.
"""

import ast
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from docs.site.paths import REPOSITORY

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.Module

_NESTED = (
  "accounting.draw_and_discard",
  "accounting.local",
  "federated.draw_and_discard",
  "federated.dropout",
)


class PublicName(NamedTuple):
  """A name that users import.

  Attributes:
    name: as one imports it, with its package.
    module: where it is defined.
    node: what defines it.
    docstring: None if it has none.
  """

  name: str
  module: str
  node: Definition
  docstring: str | None


def packages() -> list[str]:
  """The packages and modules that have a page of the reference."""
  return sorted(f"jdp.{name}" for name in (*(_all(_tree("jdp")) or ()), *_NESTED))


def module_docstring(module: str) -> str:
  """The docstring of a package or module."""
  return ast.get_docstring(_tree(module)) or ""


def sections(package: str) -> list[tuple[str, list[PublicName]]]:
  """The package's public names; then those of each module that is itself a public name; then the
  types of what they take and return, by module.

  Names that the package's docstring mentions come first, in its order.
  """
  held = [
    (module, sorted(types, key=lambda one: one.node.lineno))
    for module, types in sorted(_held().items())
    if _page_of(module) == package
  ]
  return [*_exported(package), *held]


def _exported(package: str) -> list[tuple[str, list[PublicName]]]:
  exported = _all(_tree(package))
  if exported is None and _path(package).name != "__init__.py":
    return [(package, list(_defined(package)))]
  if exported is None:
    modules = [f"{package}.{name}" for name in _modules(package)]
    return [(module, list(_defined(module))) for module in modules]
  inner = [name for name in exported if name in _modules(package)]
  mentioned = re.findall(r"`(\w+)`", module_docstring(package))
  first = [name for name in dict.fromkeys(mentioned) if name in exported]
  ordered = dict.fromkeys([*first, *exported])
  own = [_find(package, name, f"{package}.{name}") for name in ordered if name not in inner]
  return [(package, own), *((f"{package}.{m}", list(_defined(f"{package}.{m}"))) for m in inner)]


@functools.cache
def all_names() -> dict[str, PublicName]:
  """Every public name."""
  found = [one for package in packages() for _, names in sections(package) for one in names]
  return {one.name: one for one in found}


def undocumented() -> list[str]:
  """Public names without a docstring; methods and properties of public classes, too."""
  missing = []
  for one in all_names().values():
    missing += [] if one.docstring else [one.name]
    missing += [f"{one.name}.{m.name}" for m in methods(one) if not ast.get_docstring(m)]
  return sorted(missing)


def methods(one: PublicName) -> list[ast.FunctionDef]:
  """The public methods and properties that a class defines itself."""
  if not isinstance(one.node, ast.ClassDef):
    return []
  found = (node for node in one.node.body if isinstance(node, ast.FunctionDef))
  return [node for node in found if not node.name.startswith("_")]


@functools.cache
def _held() -> dict[str, list[PublicName]]:
  """The types of what public names take and return, and what these hold: module -> types.

  No package exports them. Who has such a value need not name its type.
  """
  todo = [one for package in packages() for _, names in _exported(package) for one in names]
  known = {(one.module, _name(one.node)) for one in todo}
  found: dict[str, list[PublicName]] = {}
  while todo:
    one = todo.pop()
    named = {name for annotation in _annotations(one) for name in _names(annotation)}
    for held in filter(None, (_resolved(one.module, name) for name in named)):
      place = held.module, _name(held.node)
      if place not in known:
        known.add(place)
        todo.append(held)
        if isinstance(held.node, ast.ClassDef) or held.docstring:  # else it only abbreviates
          found.setdefault(held.module, []).append(held)
  return found


def _page_of(module: str) -> str:
  """The package on whose page a module has its section."""
  return max((name for name in packages() if module.startswith(f"{name}.")), key=len)


def _annotations(one: PublicName) -> Iterator[ast.expr]:
  """The types of a function's arguments and result, of a class's fields and methods; or a type."""
  functions = [one.node] if isinstance(one.node, ast.FunctionDef) else methods(one)
  for function in functions:
    arguments = (part for part in ast.walk(function.args) if isinstance(part, ast.arg))
    yield from filter(None, (function.returns, *(part.annotation for part in arguments)))
  if isinstance(one.node, ast.ClassDef):
    fields = (node for node in one.node.body if isinstance(node, ast.AnnAssign))
    yield from (node.annotation for node in fields if not (_name(node) or "").startswith("_"))
  elif isinstance(one.node, ast.Assign):
    yield one.node.value


def _names(annotation: ast.expr) -> Iterator[str]:
  """The names in an annotation, in quotes or not."""
  for node in ast.walk(annotation):
    match node:
      case ast.Name(name):
        yield name
      case ast.Constant(str(quoted)) if quoted.isidentifier():
        yield quoted


def _resolved(module: str, name: str) -> PublicName | None:
  """What a module calls by a name, if jdp defines it and neither name nor module is private."""
  if "._" in f"{module}.{name}":
    return None
  for node in _tree(module).body:
    if _name(node) == name:
      return PublicName(f"{module}.{name}", module, node, _docstring(module, node))
  origin = _imports(module).get(name)
  return _resolved(*origin) if origin else None


@functools.cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
  """What a module imports from others of jdp: its name -> where it comes from, its name there."""
  return {
    alias.asname or alias.name: (node.module, alias.name)
    for node in ast.walk(_tree(module))
    if isinstance(node, ast.ImportFrom) and (node.module or module).startswith("jdp.")
    if node.module != module  # as a package's are that imports its own modules
    for alias in node.names
  }


@functools.cache
def _path(module: str) -> pathlib.Path:
  path = REPOSITORY.joinpath(*module.split("."))
  return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def _tree(module: str) -> ast.Module:
  return ast.parse(_path(module).read_text())


def _modules(package: str) -> list[str]:
  found = (path for path in _path(package).parent.glob("*.py") if not path.stem.startswith("_"))
  return sorted(path.stem for path in found)


def _all(tree: ast.Module) -> list[str] | None:
  for node in tree.body:
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
      return list(ast.literal_eval(node.value))
  return None


def _defined(module: str) -> Iterator[PublicName]:
  for node in _tree(module).body:
    name = _name(node)
    # An assignment without a docstring is a type variable or an abbreviation.
    if name and not name.startswith("_"):
      documented = _docstring(module, node)
      if documented or not isinstance(node, ast.Assign | ast.AnnAssign):
        yield PublicName(f"{module}.{name}", module, node, documented)


def _find(module: str, name: str, public: str) -> PublicName:
  for node in _tree(module).body:
    if _name(node) == name:
      return PublicName(public, module, node, _docstring(module, node))
    if isinstance(node, ast.ImportFrom) and node.module:
      for alias in node.names:
        if (alias.asname or alias.name) == name:
          return _find(node.module, alias.name, public)
  raise ValueError(f"Expected {module} to define or import {name}; mend its __all__.")


def _name(node: ast.stmt) -> str | None:
  if isinstance(node, ast.FunctionDef | ast.ClassDef):
    return node.name
  target = (
    node.targets[0]
    if isinstance(node, ast.Assign)
    else node.target
    if isinstance(node, ast.AnnAssign)
    else None
  )
  return target.id if isinstance(target, ast.Name) else None


def _docstring(module: str, node: ast.stmt) -> str | None:
  if isinstance(node, ast.FunctionDef | ast.ClassDef):
    return ast.get_docstring(node)
  body = _tree(module).body
  after = body[body.index(node) + 1 : body.index(node) + 2]
  if after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant):
    return str(after[0].value.value)
  return None
