"""No line of jdp, its experiments or its notebooks rounds an epsilon, a delta or a bound to the
nearest.

`jdp.guarantees.rounded_up` and `rounded_down` are the ways to print one; without a format, a number
prints in full. This reads the sources. What they print is in
tests/experiments/test_printed_bounds.py.
"""

import ast
import json
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[1]
WORDS = {
  *("epsilon", "epsilons", "eps", "delta", "deltas", "guarantee", "guarantees", "stated", "spent"),
  *("cost", "costs", "bound", "bounds", "proved", "sharp", "rdp", "pld", "moments", "multiplier"),
  *("direction", "magnitude"),
}
SPOKEN = re.compile(
  r"(epsilon|eps|ε\S?|delta|δ|at least|[(\s]z)\s*(=|:|of|for|is|<=|≤)?\s*\(?$", re.IGNORECASE
)
ROUNDING = re.compile(r"[eEfFgGn%]$|^[^a-zA-Z]*\.\d+$")
ALLOWED = {
  # The helpers' own: all 15 digits that a float64 keeps.
  "jdp/guarantees.py: bound",
  # The root mean square of what a ledger holds: a measurement, beside the epsilon that it led to.
  "experiments/client_dropout/report.py: row['multiplier']",
}


def sources() -> Iterator[tuple[str, str]]:
  """(place, Python source) of every module, and of every code cell of a notebook."""
  for folder in ("jdp", "experiments"):
    for path in sorted((ROOT / folder).rglob("*.py")):
      yield str(path.relative_to(ROOT)), path.read_text()
  for path in sorted((ROOT / "colabs").glob("*.ipynb")):
    cells = json.loads(path.read_text())["cells"]
    for cell in cells:
      if cell["cell_type"] == "code" and cell["id"] != "install":  # That one is not plain Python.
        yield str(path.relative_to(ROOT)), "".join(cell["source"])


def rounded(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
  """(what is rounded, the text before it) wherever a number is rounded to be printed."""
  for node in ast.walk(tree):
    if isinstance(node, ast.JoinedStr):
      yield from _fields(node)
    elif isinstance(node, ast.Call):
      name = (
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
      )
      if name in ("round", "around", "format", "format_float_positional", "array2string"):
        yield from ((argument, "") for argument in node.args[:1])
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
      text = getattr(node.left, "value", None)
      yield from ((node.right, text.partition("%")[0]) for text in [text] if isinstance(text, str))


def _fields(text: ast.JoinedStr) -> Iterator[tuple[ast.expr, str]]:
  before = ""
  for part in text.values:
    if isinstance(part, ast.FormattedValue):
      spec = ast.unparse(part.format_spec)[2:-1] if part.format_spec else ""
      if ROUNDING.search(spec) or "{" in spec:
        yield part.value, before
      before = ""
    else:
      before = part.value


def speaks_of_privacy(value: ast.expr, before: str) -> bool:
  """Whether a number is a bound on privacy loss, by the names in it or by the words before it."""
  names = (
    getattr(node, field, None) for node in ast.walk(value) for field in ("id", "attr", "value")
  )
  words = {
    word for name in names if isinstance(name, str) for word in re.split(r"[\W_]+", name.lower())
  }
  return bool(words & WORDS or SPOKEN.search(before))


def faults(place: str, source: str) -> list[str]:
  """Where a source rounds such a number."""
  found = (
    value for value, before in rounded(ast.parse(source)) if speaks_of_privacy(value, before)
  )
  return [
    text for text in (f"{place}: {ast.unparse(value)}" for value in found) if text not in ALLOWED
  ]


def test_bounds_are_rounded_by_the_helpers_alone():
  assert [fault for place, source in sources() for fault in faults(place, source)] == []


@pytest.mark.parametrize(
  "line",
  [
    'f"{value.epsilon:.3f}"',
    "f\"{row['bound']:.4g}\"",
    'f"δ = {x:.2g}"',
    'f"central epsilon: {x:.3}"',
    'f"{epsilon:.{digits}f}"',
    "round(accounting.epsilon(book, 1e-5), 3)",
    'format(spent, ".3f")',
    '"epsilon %.3f" % x',
    '"{:.3f}".format(found.bound)',
    "np.round(epsilons, 2)",
    'f"z = {plan.noise_multiplier:g}"',
  ],
)
def test_such_a_line_is_found(line):
  assert faults("a", line) != []


@pytest.mark.parametrize(
  "line", ['f"{epsilon}"', 'f"{rounded_up(epsilon):>9}"', 'f"{accuracy:.3f}"', "round(3.2)"]
)
def test_others_are_not(line):
  assert faults("a", line) == []
