"""Single equations of JAX's programs (jaxprs), for code that runs a program in its own way."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

_INSIDE = {
  "pjit": "jaxpr",
  "jit": "jaxpr",
  "checkpoint": "jaxpr",
  "remat2": "jaxpr",
  "scan": "jaxpr",
  "custom_vjp_call": "call_jaxpr",
}


def read(values: dict[Any, Any], atom: Any) -> Any:
  """The value of an equation's operand: a literal's own value, or the variable's."""
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


def with_derivative(
  function: Callable[..., Any], forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., Any]:
  """The function, with its derivative computed by rules of its own.

  Code that walks through a program finds `function` in it, by `program_inside`. So the derivative
  must be the same in exact arithmetic.

  Args:
    function: arrays -> arrays.
    forward: the same arrays -> (the function's result, what `backward` needs).
    backward: (what it needs, derivative by the result) -> derivatives by the arguments.
  """

  def with_own_derivative(*args):
    return function(*args)

  made = jax.custom_vjp(jax.jit(with_own_derivative))
  made.defvjp(forward, backward)
  return made


def program_inside(eqn: Any) -> Any | None:
  """The program that an equation runs, once or at every step of a scan. None if it runs none.

  A derivative rule need not agree with the program, so programs with such a rule count only if
  `with_derivative` made them.
  """
  program = eqn.params.get(_INSIDE.get(eqn.primitive.name, ""))
  if eqn.primitive.name == "custom_vjp_call":
    inner = program.jaxpr.eqns
    if len(inner) != 1 or inner[0].params.get("name") != "with_own_derivative":
      return None
  return program


def literal_value(literal: Literal) -> np.ndarray:
  """The number in a literal, with its type."""
  value: Any = literal
  return np.asarray(value.val, value.aval.dtype)


def closed(code: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
  """The program with its constants. An open program has none."""
  return code if isinstance(code, ClosedJaxpr) else ClosedJaxpr(code, ())


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
  """How many operands of a scan are constants (which come first), and how many are its carry."""
  if "num_consts" in params:  # before JAX 0.11
    return params["num_consts"], params["num_carry"]
  consts, carry, _ = params["ft_in"].unpack()
  return len(consts), len(carry)


def is_tree(x: object) -> bool:
  """Whether a parameter is one of JAX's trees of operands, which can be compared by equality."""
  return type(x).__module__ == "jax._src.flattree"


def settings_of_operation(x: Any) -> dict[str, Any] | None:
  """All settings of a JAX operation that a parameter holds (JAX 0.12). Else None."""
  kinds = [kind.__module__ for kind in type(x).__mro__]
  return x.params if "jax._src.hijax" in kinds and kinds[0].startswith("jax._src.") else None


def with_more_constants(params: Mapping[str, Any], count: int) -> dict[str, Any]:
  """The parameters that change when a scan gets `count` further constants after its own."""
  place, _ = scan_counts(params)
  if "num_consts" not in params:
    consts, carry, inputs = params["ft_in"].unpack()
    trees: Any = inspect.getmodule(type(consts))  # JAX exports no constructor of these trees
    return {"ft_in": trees.pack(((consts, trees.nones(count)), carry, inputs))}
  changed: dict[str, Any] = {"num_consts": place + count}
  if "linear" in params:  # before JAX 0.10
    flags = params["linear"]
    changed["linear"] = (*flags[:place], *[False] * count, *flags[place:])
  return changed
