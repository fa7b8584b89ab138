"""What is registered nowhere: mechanisms, queries and events whose epsilon no audit would see."""

import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from jdp.accounting.releases import has_analysis
from jdp.conformance.queries import event_of
from jdp.events import GroupedSums, SumQueryEvent, query_event_types
from jdp.mechanisms import LocalMechanism
from jdp.mechanisms import registry as mechanisms
from jdp.queries import SumQuery
from jdp.queries import registry as queries
from jdp.queries.distributed import DistributedSum

_MADE = (LocalMechanism, SumQuery, DistributedSum)
_ANALYSE = "call accounting.register_analysis"
_RELEASE = "call queries.registry.register"


def unaudited(*modules: ModuleType) -> list[str]:
  """Sentences about what no audit sees; none if conformance is complete.

  A query's event type needs an analysis and a registered query that releases it. A public function of `modules` that is
  annotated to return a `LocalMechanism`, a `SumQuery` or a `DistributedSum` needs an entry in their registry.

  Args:
    *modules: packages or modules that export factories.

  >>> import jdp
  >>> unaudited(jdp.mechanisms, jdp.queries)
  []
  """
  released = {type(event) for name in queries.registered() for event in _parts(event_of(name))}
  types = query_event_types()
  missing = [f"event {kind.__name__} has no analysis: {_ANALYSE}." for kind in types if not has_analysis(kind)]
  missing += [f"event {kind.__name__} is released by no query: {_RELEASE}." for kind in types if kind not in released]
  known = {entry.factory for entry in mechanisms.registered().values()}
  known |= {query.factory for query in queries.registered().values()}
  made = {factory for module in modules for factory in _factories(module)}
  names = (f"{factory.__module__}.{factory.__name__}" for factory in made - known)
  missing += [f"{name} is the factory of no entry: register it." for name in names]
  return sorted(missing)


def _parts(event: SumQueryEvent) -> Iterable[SumQueryEvent]:
  """An event, and all those within it."""
  yield event
  if isinstance(event, GroupedSums):
    for part in event.parts:
      yield from _parts(part)


def _factories(module: ModuleType) -> Iterable[Any]:
  public = (value for name, value in vars(module).items() if not name.startswith("_") and inspect.isfunction(value))
  return (function for function in public if inspect.signature(function, eval_str=True).return_annotation in _MADE)
