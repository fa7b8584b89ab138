"""Single equations of JAX's programs (jaxprs), for code that runs a program in its own way."""

from collections.abc import Callable
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun


def read(values: dict[Any, Any], atom: Any) -> Any:
  """The value of an equation's operand: a literal's own, or that of a variable."""
  return atom.val if isinstance(atom, Literal) else values[atom]


def applied(code: Jaxpr, eqn: Any, value: Callable[[Any], Any]) -> list[Any]:
  """The results of one equation of a program.

  They can be differentiated and mapped, like the function that was traced.

  Args:
    code: the program.
    eqn: one of its equations.
    value: variable -> its value.
  """
  inputs = list(dict.fromkeys(atom for atom in eqn.invars if not isinstance(atom, Literal)))
  alone = code.replace(constvars=[], invars=inputs, outvars=eqn.outvars, eqns=[eqn])
  return list(jaxpr_as_fun(ClosedJaxpr(alone, []))(*map(value, inputs)))
