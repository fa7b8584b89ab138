"""A page of the reference for each package: signatures and docstrings as they stand in the source.

Docstrings are Markdown with Google's sections, so they are pages as they are, but for those
sections and for examples.
"""

import ast
import copy
import re
import textwrap

from docs.site import public_names
from docs.site.links import outside_fences, with_names
from docs.site.public_names import PublicName

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):\n((?:(?:  .*)?\n?)+)", re.M)
_ENTRY = re.compile(r"^(\*{0,2}[\w., ]+?): +(.*(?:\n  .*)*)", re.M)
_EXAMPLE = re.compile(r"^(>>> .*(?:\n.+)*)", re.M)
_HEADINGS = {"Args": "Arguments"}


def pages() -> dict[str, str]:
  """Every page of the reference, by its name.

  Raises:
    ValueError: if a public name has no docstring.
  """
  if missing := public_names.undocumented():
    raise ValueError(
      f"Expected a docstring of every public name, got none of {', '.join(missing)}."
    )
  packages = public_names.packages()
  return {"index": _index(packages), **{name: _page(name) for name in packages}}


def _index(packages: list[str]) -> str:
  lines = [
    "# API reference",
    "",
    "Every public name, from the source.",
    "",
    "| package | subject |",
    "| --- | --- |",
    *(
      f"| [`{name}`]({name}.md) | {_summary(public_names.module_docstring(name))} |"
      for name in packages
    ),
    "",
    "```{toctree}",
    ":hidden:",
    "",
    *packages,
    "```",
  ]
  return "\n".join(lines) + "\n"


def _page(package: str) -> str:
  parts = [f"# {package}", f"```{{py:module}} {package}\n```"]
  for module, names in public_names.sections(package):
    if module != package:
      parts += [f"## {module}", f"```{{py:module}} {module}\n```"]
    parts += [
      markdown(public_names.module_docstring(module)),
      *(_entry(one, module) for one in names),
    ]
  return "\n\n".join(parts) + "\n"


def _summary(docstring: str) -> str:
  return docstring.split("\n\n")[0].replace("\n", " ")


def _entry(one: PublicName, module: str) -> str:
  """A name's directive, with its docstring and those of a class's methods."""
  name = one.name.removeprefix(f"{module}.")
  body = [markdown(one.docstring or "")]
  match one.node:
    case ast.FunctionDef():
      return _directive("function", f"{name}{_signature(one.node)}", body)
    case ast.ClassDef():
      body += [_members(one.node)] if _is_enum(one.node) else []
      body += [_method(method) for method in public_names.methods(one)]
      return _directive("class", name, body)
  return _directive("data", name, body)


def _method(node: ast.FunctionDef) -> str:
  body = [markdown(ast.get_docstring(node) or "")]
  decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
  if decorators & {"property", "functools.cached_property"}:
    return _directive("property", node.name, body, fence=4)
  name = f"{node.name}{_signature(node, method='staticmethod' not in decorators)}"
  return _directive("method", name, body, fence=4)


def _directive(kind: str, signature: str, body: list[str], fence: int = 5) -> str:
  text = "\n\n".join(part for part in body if part)
  return f"{'`' * fence}{{py:{kind}}} {signature}\n\n{text}\n{'`' * fence}"


def _signature(node: ast.FunctionDef, *, method: bool = False) -> str:
  """The signature as it is written, without the first parameter of a method."""
  arguments = copy.deepcopy(node.args)
  if method and (named := arguments.posonlyargs or arguments.args):
    del named[0]
  result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
  return f"({ast.unparse(arguments)}){result}"


def _is_enum(node: ast.ClassDef) -> bool:
  return any(ast.unparse(base).startswith("enum.") for base in node.bases)


def _members(node: ast.ClassDef) -> str:
  members = (member for member in node.body if isinstance(member, ast.Assign))
  return "\n".join(f"- `{ast.unparse(member)}`" for member in members)


def markdown(docstring: str) -> str:
  """A docstring as a page has it."""
  text = _SECTION.sub(_section, docstring.strip() + "\n")
  return outside_fences(with_names, _EXAMPLE.sub(r"```pycon\n\1\n```", text)).strip()


def _section(found: re.Match[str]) -> str:
  name, body = found[1], textwrap.dedent(found[2]).strip("\n")
  heading = f"**{_HEADINGS.get(name, name)}**\n\n"
  if name in ("Returns", "Yields"):
    return f"{heading}{body}\n\n"
  entries = (f"- `{key}`: {text}" for key, text in _ENTRY.findall(body))
  return heading + "\n".join(entries) + "\n\n"
