"""A picture of jdp's packages, drawn from the imports between them."""

import ast
import collections
import io

import matplotlib
from matplotlib import patches
from matplotlib.figure import Figure

from docs.site.paths import REPOSITORY

_WIDTH, _HEIGHT, _GAP = 1.9, 0.42, 0.78
_LEFT_OUT = {"random", "guarantees", "numerics"}  # which nearly all import: a line at the foot


def imports() -> dict[str, set[str]]:
  """For each package, or module of its own, the others that it imports."""
  found: dict[str, set[str]] = collections.defaultdict(set)
  for path in sorted((REPOSITORY / "jdp").rglob("*.py")):
    package = path.relative_to(REPOSITORY / "jdp").with_suffix("").parts[0]
    if package.startswith("_"):
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jdp"):
        names = node.module.split(".")[1:2] or [alias.name for alias in node.names]
        found[package] |= {name for name in names if name != package and name[0] != "_"}
  return {name: found[name] for name in {*found, *(n for names in found.values() for n in names)}}


def direct(edges: dict[str, set[str]]) -> dict[str, set[str]]:
  """The edges that no longer path stands for.

  Raises:
    ValueError: if packages import each other in a circle.
  """
  below = {name: _reached(edges, name, ()) for name in edges}
  return {
    name: {one for one in names if not any(one in below[other] for other in names)}
    for name, names in edges.items()
  }


def _reached(edges: dict[str, set[str]], name: str, path: tuple[str, ...]) -> set[str]:
  if name in path:
    raise ValueError(f"Expected packages without circles, got {' -> '.join((*path, name))}.")
  further = (_reached(edges, one, (*path, name)) for one in edges[name])
  return edges[name].union(*further)


def picture() -> bytes:
  """An SVG: packages above those that they import."""
  edges = {n: to - _LEFT_OUT for n, to in imports().items() if n not in _LEFT_OUT}
  edges = direct(edges)
  places = _places(edges)
  widest = max(x for x, _ in places.values())
  left = min(-_WIDTH / 2, widest / 2 - len(_LEFT_OUT) * (_WIDTH + 0.3) / 2)
  right, top = widest - left, max(y for _, y in places.values()) + 0.4
  lowest = min(y for _, y in places.values()) - _GAP
  figure = Figure(figsize=(0.8 * (right - left), 0.8 * (top - lowest + 0.7)))
  axes = figure.add_axes((0, 0, 1, 1))
  axes.set_axis_off()
  for name, (x, y) in places.items():
    for other in edges[name]:
      to_x, to_y = places[other]
      arrow = patches.FancyArrowPatch(
        (x, y - _HEIGHT / 2), (to_x, to_y + _HEIGHT / 2), arrowstyle="-|>", mutation_scale=9,
        color="#8796a5", linewidth=0.9, shrinkA=0, shrinkB=0,
      )  # fmt: skip
      axes.add_patch(arrow)
    _box(axes, name, x, y)
  feet = sorted(_LEFT_OUT)
  for place, name in enumerate(feet):
    _box(axes, name, widest / 2 + (place - (len(feet) - 1) / 2) * (_WIDTH + 0.3), lowest)
  axes.text(widest / 2, lowest - 0.5, "imported by nearly all", ha="center", fontsize=8)
  axes.set_xlim(left - 0.1, right + 0.1)
  axes.set_ylim(lowest - 0.7, top)
  out = io.BytesIO()
  with matplotlib.rc_context({"svg.hashsalt": "jdp", "svg.fonttype": "none"}):
    figure.savefig(out, format="svg", metadata={"Date": None})
  return out.getvalue()


def _box(axes, name: str, x: float, y: float) -> None:
  corner = (x - _WIDTH / 2, y - _HEIGHT / 2)
  axes.add_patch(
    patches.FancyBboxPatch(
      corner, _WIDTH, _HEIGHT, boxstyle="round,pad=0,rounding_size=0.1",
      facecolor="#eef3f8", edgecolor="#3b5b7a", linewidth=0.9, zorder=2,
    )
  )  # fmt: skip
  axes.text(x, y, name, ha="center", va="center", fontsize=8.5, zorder=3, color="#1d2b38")


def _places(edges: dict[str, set[str]]) -> dict[str, tuple[float, float]]:
  """A row for each length of the longest path downwards; centred, ordered by what is below."""
  rows: dict[int, list[str]] = collections.defaultdict(list)
  for name in sorted(edges):
    rows[_depth(edges, name)].append(name)
  widest = max(map(len, rows.values())) - 1
  places: dict[str, tuple[float, float]] = {}
  for depth in sorted(rows):
    names = rows[depth]
    below = {
      name: sum(places[one][0] for one in edges[name]) / max(1, len(edges[name])) for name in names
    }
    names.sort(key=lambda name, below=below: (below[name], name))
    for place, name in enumerate(names):
      x = (place + (widest - len(names) + 1) / 2) * (_WIDTH + 0.3)
      places[name] = (x, depth * _GAP)
  return places


def _depth(edges: dict[str, set[str]], name: str) -> int:
  return 1 + max((_depth(edges, one) for one in edges[name]), default=-1)
