"""Nothing in accounting decides by what type an event has, or which family a pair is of.

What is known of an event is found by its analysis, and of a pair by its family's interface. So a
stranger's event or family is treated as jdp's own. Two files are excepted, as they are where types
are told apart for all others.
"""

import ast
import pathlib

import pytest

from jdp import accounting
from jdp.accounting.families import base, gaussian, releases
from jdp.events.base import EVENT_TYPES

FOLDER = pathlib.Path(accounting.__file__).parent
EXCEPTED = {
  "registration.py",  # the registry of analyses, by an event's type
  "seen.py",  # rounds and local releases, the two kinds of entries that a ledger has
}
UNIONS = {"Event", "EventBase", "QueryEvent", "SamplingEvent", "SumQueryEvent", "WholeRunEvent"}
FAMILIES = {
  name
  for module in (gaussian, releases)
  for name, value in vars(module).items()
  if isinstance(value, base.Family)
}
KINDS = {kind.__name__ for kind in EVENT_TYPES.values() if kind.__module__.startswith("jdp.")}
NAMES = FAMILIES | KINDS | (UNIONS - {"EventBase"})  # its test for one or several decides nothing
LONGEST = 300


def names_in(*nodes):
  """The event types and families that expressions name, in quotes or not."""
  inner = [part for node in nodes if node is not None for part in ast.walk(node)]
  named = {
    getattr(part, "id", getattr(part, "attr", getattr(part, "value", None))) for part in inner
  }
  return {name for name in named if isinstance(name, str)} & NAMES


def decisions(source):
  """The lines that decide by a type: calls, comparisons, `match`, and tables."""
  tree = ast.parse(source)
  read = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
  for node in ast.walk(tree):
    match node:
      case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, *kinds]):
        found = names_in(*kinds)
      case ast.Call(func=ast.Name("type"), args=[_]):
        found = id(node) not in read  # but `type(event).__name__`, for messages
      case ast.Attribute(attr="__class__" | "singledispatch" | "singledispatchmethod"):
        found = True
      case ast.Name("singledispatch" | "singledispatchmethod") | ast.Match():
        found = True
      case ast.Compare(left=left, comparators=others):
        found = names_in(left, *others)
      case ast.Dict(keys=keys):
        found = names_in(*keys)
      case ast.Set(elts=kinds) | ast.Assign(value=ast.Tuple(elts=kinds)):
        found = names_in(*kinds)
      case _:
        found = False
    if found:
      yield node.lineno, ast.unparse(node)


FILES = sorted(path for path in FOLDER.rglob("*.py"))


def test_no_type_is_asked_for():
  found = {
    (str(path.relative_to(FOLDER)), *decision)
    for path in FILES
    for decision in decisions(path.read_text())
  }
  assert {name for name, *_ in found} >= EXCEPTED  # nor would the count be 0 if it saw nothing
  assert sorted(decision for decision in found if decision[0] not in EXCEPTED) == []


@pytest.mark.parametrize(
  "code",
  [
    "isinstance(query, GaussianSum | LaplaceSum)",
    "isinstance(query, events.GaussianSum)",
    "type(query) is kind",
    "query.__class__ in kinds",
    "pair.family is GAUSSIAN",
    "families <= {GAUSSIAN, families.LAPLACE}",
    "TABLE = {PoissonSampling: 1}",
    "EPOCHS = (BallsInBins, ShuffledBatches)",
    "type(query).__name__ == 'GaussianSum'",
    "match query:\n  case GaussianSum(): pass",
    "functools.singledispatch(cost)",
  ],
)
def test_such_decisions_are_seen(code):
  assert list(decisions(code))


def test_no_module_is_long():
  lengths = {str(path.relative_to(FOLDER)): path.read_text().count("\n") for path in FILES}
  assert {name: length for name, length in lengths.items() if length > LONGEST} == {}
