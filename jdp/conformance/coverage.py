"""What no check covers: mechanisms, queries, samplers and events that are not registered."""

import functools
import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from jdp.accounting.registration import has_analysis
from jdp.conformance.queries import event_of
from jdp.conformance.reference_queries import audited
from jdp.events import GroupedSums
from jdp.events.queries import QueryEvent, query_event_types
from jdp.mechanisms import LocalMechanism
from jdp.mechanisms import registry as mechanisms
from jdp.queries import SumQuery
from jdp.queries import registry as queries
from jdp.queries.distributed.float_sums import DistributedSum
from jdp.sampling import Sampler
from jdp.sampling import registry as samplers

_REGISTERED_TYPES = (LocalMechanism, SumQuery, DistributedSum, Sampler)
_ANALYSE = "call accounting.charge_as or register_query"
_RELEASE = "call queries.registry.register"


def unaudited(*modules: ModuleType) -> list[str]:
  """Sentences about what no audit covers. An empty list means that conformance is complete.

  The rules:

  * A query's event type needs an analysis and a registered query that releases it.
  * A public function of `modules` that is annotated to return a `LocalMechanism`, a `SumQuery`, a
    `DistributedSum` or a `Sampler` needs an entry in their registry. The same holds for the
    function of a public `functools.partial`.
  * A function that a module defines without a return annotation is reported, since its result is
    unknown.
  * Other callables (classes, compiled functions) are not examined.

  Args:
    *modules: packages or modules that export factories.

  >>> import jdp
  >>> unaudited(jdp.mechanisms, jdp.queries, jdp.sampling)
  []
  """
  released = {type(event) for name in audited() for event in _parts(event_of(name))}
  types = query_event_types()
  missing = [
    f"event {kind.__name__} has no analysis: {_ANALYSE}."
    for kind in types
    if not has_analysis(kind)
  ]
  missing += [
    f"event {kind.__name__} is released by no query: {_RELEASE}."
    for kind in types
    if kind not in released
  ]
  registries: list[Any] = [mechanisms, queries, samplers]
  entries = [entry for registry in registries for entry in registry.registered().values()]
  known = {_function(entry.factory) for entry in entries}
  public = {function for module in modules for function in _public_functions(module)}
  made = {function for function in public if _returned(function) in _REGISTERED_TYPES}
  silent = {
    function for function in public - known if _returned(function) is inspect.Signature.empty
  }
  missing += [
    f"{_name(function)} is the factory of no entry: register it." for function in made - known
  ]
  missing += [
    f"{_name(function)} does not say what it returns: annotate it." for function in silent
  ]
  return sorted(missing)


def _parts(event: QueryEvent) -> Iterable[QueryEvent]:
  """An event, and all events within it."""
  yield event
  if isinstance(event, GroupedSums):
    for part in event.parts:
      yield from _parts(part)


def _public_functions(module: ModuleType) -> Iterable[Any]:
  """Functions that the module makes public.

  Functions from other modules count only if they have a return annotation.
  """
  for name, value in vars(module).items():
    function = _function(value)
    if not name.startswith("_") and inspect.isfunction(function):
      own = function.__module__.startswith(module.__name__)
      if own or _returned(function) is not inspect.Signature.empty:
        yield function


def _function(value: Any) -> Any:
  """The function that a `functools.partial` finally calls; anything else as it is."""
  return _function(value.func) if isinstance(value, functools.partial) else value


def _returned(function: Any) -> Any:
  """The return annotation of a function, evaluated."""
  return inspect.signature(function, eval_str=True).return_annotation


def _name(function: Any) -> str:
  """The full name of a function, for messages."""
  return f"{function.__module__}.{function.__name__}"
