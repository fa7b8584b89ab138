"""The identity of a JAX program as a value: equal for the same programs, and for no others."""

import enum
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var
from jax.sharding import PartitionSpec

from jdp._equations import closed, is_tree, literal_value, settings_of_operation

_SAME_IF_EQUAL = np.dtype | enum.Enum | jax.sharding.Sharding | jax.sharding.Mesh | PartitionSpec


def program_name(program: ClosedJaxpr) -> Hashable:
  """The program's value: all programs within it, each once, in the order in which they end.

  Functions among the parameters are the same if they are one object.
  """
  naming = _Naming()
  naming.number(program)
  return tuple(naming.codes)


class _Naming:
  """Numbers the programs within a program, and keeps the code of each."""

  def __init__(self):
    self._numbers: dict[tuple[int, ...], int] = {}
    self.codes: list[Hashable] = []

  def number(self, program: ClosedJaxpr) -> int:
    identity = (id(program.jaxpr), *map(id, program.consts))
    if identity not in self._numbers:
      named = self._code(program)
      self._numbers[identity] = len(self.codes)
      self.codes.append(named)
    return self._numbers[identity]

  def _code(self, program: ClosedJaxpr) -> Hashable:
    code = program.jaxpr
    places: dict[Var, int] = {}

    def place(variable):
      return places.setdefault(variable, len(places))

    def atom(x):
      return self._parameter(literal_value(x)) if isinstance(x, Literal) else place(x)

    def typed(variables):
      return tuple((place(variable), variable.aval) for variable in variables)

    inputs = typed([*code.constvars, *code.invars])
    equations = tuple(
      (
        eqn.primitive,
        tuple((atom(x), x.aval) for x in eqn.invars),
        typed(eqn.outvars),
        self._parameter(eqn.params),
        self._parameter(eqn.effects),
        eqn.ctx,
      )
      for eqn in code.eqns
    )
    outputs = tuple((atom(x), x.aval) for x in code.outvars)
    return inputs, tuple(map(self._parameter, program.consts)), equations, outputs

  def _parameter(self, x: Any) -> Hashable:
    """A parameter's value, if the value describes it completely. Otherwise the object itself."""
    if isinstance(x, Jaxpr | ClosedJaxpr):
      return ClosedJaxpr, self.number(closed(x))
    if isinstance(x, tuple | list):
      return type(x), *map(self._parameter, x)
    if isinstance(x, dict):
      return dict, *((name, self._parameter(x[name])) for name in sorted(x, key=str))
    if isinstance(x, set | frozenset):
      return frozenset, frozenset(map(self._parameter, x))
    if isinstance(x, np.ndarray | np.generic):
      return np.ndarray, x.dtype, x.shape, x.tobytes()
    if isinstance(x, bool | int | str | bytes | type(None)):
      return type(x), x
    if isinstance(x, float | complex):
      return type(x), repr(x)
    if isinstance(x, _SAME_IF_EQUAL) or is_tree(x):
      return type(x), x
    if (settings := settings_of_operation(x)) is not None:
      return type(x), self._parameter(settings)
    return _Itself(x)


class _Itself:
  """An object that equals only itself, whatever its own `__eq__` says."""

  def __init__(self, it: Any):
    self.it = it

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Itself) and self.it is other.it

  def __hash__(self) -> int:
    return id(self.it)
