"""One compiled program for all functions that differ only in numbers.

The settings of a sweep differ in a noise multiplier, a clip norm or a rate. JAX writes these
numbers into the program, so each setting has a program of its own, and XLA compiles every one. Here
they become arguments, and settings that are computed in the same way share a program.

**The rule.** Whether a number becomes an argument depends on its type and its place, not on other
settings: the bits of a result do not depend on what was computed before. Arguments are

* scalars of floating point, except 0, 1, -1 and non-finite numbers, by which XLA simplifies, and
  except exponents, as XLA has special code for some;
* arrays of floating point, and keys;
* arrays of other types that are longer than the constants of a cipher;
* words that other words are compared with: the probabilities of draws.

Other scalars are never arguments: shifts, masks and counts stay what they are. An argument has the
bits of the number, and its type. A division by it becomes a product with its inverse, which is how
XLA divides by a constant. XLA does not compute with an argument beforehand, so last bits can differ
from those of `jax.jit`. The compiled functions of JAX and of `jdp.random` keep the constants that
they have.

**What is shared.** Two programs are one if all that is left is the same: the equations, their types
and their parameters. Functions among the parameters are the same if they are one object. Programs
within programs count in the same way. Inner programs of equations that this module does not know
keep all their numbers.
"""

import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun
from jax.extend.core.primitives import div_p, eq_p, lt_p, pow_p
from jax.sharding import PartitionSpec

from jdp import random
from jdp._equations import closed, literal_value, scan_counts, with_more_constants
from jdp._program_names import program_name
from jdp.numerics.compensated import float64

PyTree = Any

# Functions of these libraries keep their own constants: coefficients, and units in the last place.
_LIBRARIES = tuple(os.path.dirname(str(library.__file__)) + os.sep for library in (jax, random))
_KEPT_WORDS = 4  # a row of ChaCha's state: its constants, or its rotations
_COMPARISONS = (lt_p, eq_p)
_MOST_PROGRAMS = 32  # each entry holds a compiled program
_MOST_TRACES = 8  # of one function: shapes of arguments, devices


def shared(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
  """`jax.jit`, with one program for all functions that differ only in numbers.

  Results are those of `jax.jit` up to the last bits, and do not depend on what else was computed.
  A function with side effects, or one called while JAX traces, has `jax.jit`'s own program. So does
  every function on JAX 0.7.

  Args:
    function: takes arrays, in any pytrees, by position, and returns arrays.

  >>> def scaled(factor):
  ...   return shared(lambda x: factor * x)
  >>> scaled(0.5)(jnp.float32(3)).item(), scaled(0.25)(jnp.float32(3)).item()  # one program
  (1.5, 0.75)
  """
  alone = jax.jit(function)
  bound: OrderedDict[int, tuple[Any, Callable[..., Any] | None]] = OrderedDict()

  @functools.wraps(function)
  def call(*args):
    leaves = jax.tree.leaves(args)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
      return alone(*args)
    traced = alone.trace(*args)
    # JAX traces once for arguments of one kind. `bound` keeps the trace alive, so its id stays
    # valid.
    if id(traced.jaxpr) not in bound:
      bound[id(traced.jaxpr)] = traced.jaxpr, _bound(traced)
      if len(bound) > _MOST_TRACES:
        bound.popitem(last=False)
    _, program = bound[id(traced.jaxpr)]
    return alone(*args) if program is None else program(leaves)

  return call


def _bound(traced: Any) -> Callable[[list[Any]], PyTree] | None:
  """Leaves of arguments -> results, by a program that may be shared. None: it may not."""
  if traced.jaxpr.effects or not _keeps_float64():
    return None
  lifted = _Lifting().of_trace(traced.jaxpr)
  program = _compiled(lifted.program, _places(lifted.values), traced.fun_name)
  numbers, arrays = _packed(lifted.values)
  # `out_tree`, as `out_info` would not do: events that hold shapes instead of numbers have another
  # structure.
  structure = traced.out_tree
  return lambda leaves: jax.tree.unflatten(structure, program(numbers, arrays, *leaves))


@functools.cache
def _keeps_float64() -> bool:
  """Whether JAX keeps numbers of 64 bits in a program that it runs. JAX 0.7 does not."""
  with float64(True):
    double = jaxpr_as_fun(jax.make_jaxpr(lambda x: x + x)(np.float64(1)))

  def of_words(words):
    with float64(True):
      number = lax.bitcast_convert_type(words, np.float64)
    return double(number)

  (result,) = jax.eval_shape(of_words, jax.ShapeDtypeStruct((2,), np.uint32))
  return bool(result.dtype == np.float64)


# Programs.

_programs: OrderedDict[Hashable, Callable[..., list[jax.Array]]] = OrderedDict()
_lock = threading.Lock()


def _compiled(
  program: ClosedJaxpr, places: tuple[Hashable, ...], name: str
) -> Callable[..., list[jax.Array]]:
  """(packed numbers, arrays, *inputs) -> outputs, by the compiled program that they share."""
  key = program_name(program), places

  def run(numbers, arrays, *inputs):
    return jaxpr_as_fun(program)(*inputs, *_unpacked(places, numbers, arrays))

  run.__name__ = name
  with _lock:
    compiled = _programs.pop(key, None) or jax.jit(run)
    _programs[key] = compiled
    if len(_programs) > _MOST_PROGRAMS:
      _programs.popitem(last=False)
  return compiled


def _places(values: Sequence[Any]) -> tuple[Hashable, ...]:
  """How each value is passed: the type of a number, what makes a key of words, None for others."""

  def place(value):
    if _is_key(value):
      return jax.random.key_impl(value)
    return value.dtype if _is_scalar(value) else None

  return tuple(map(place, values))


def _packed(values: Sequence[Any]) -> tuple[list[np.ndarray], list[Any]]:
  """The numbers as two arrays, which are passed faster than many arguments, and the arrays.

  Without JAX's x64 mode, no float64 can be an argument: numbers of 64 bits are passed as words.
  """
  scalars = [x for x in values if _is_scalar(x)]
  short = np.array([x for x in scalars if x.dtype.itemsize <= 4], np.float32)
  long = np.array([x for x in scalars if x.dtype.itemsize > 4], np.float64)
  return [short, long.view(np.uint32).reshape(-1, 2)], [
    _on_device(x) for x in values if not _is_scalar(x)
  ]


def _unpacked(
  places: tuple[Hashable, ...], numbers: Sequence[jax.Array], arrays: Sequence[jax.Array]
) -> list[jax.Array]:
  """The values, in their order."""
  short, words = numbers
  with float64(True):
    parts = {False: iter(short), True: iter(lax.bitcast_convert_type(words, np.float64))}
    rest = iter(arrays)

    def value(place):
      if isinstance(place, np.dtype):
        return lax.convert_element_type(next(parts[place.itemsize > 4]), place)
      array = next(rest)
      return array if place is None else jax.random.wrap_key_data(array, impl=place)

    return list(map(value, places))


def _is_scalar(value: Any) -> bool:
  return isinstance(value, np.ndarray) and value.ndim == 0 and _is_floating(value)


def _is_key(value: Any) -> bool:
  return bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def _on_device(array: Any) -> Any:
  if _is_key(array):
    return jax.random.key_data(array)  # the key itself would count as used after the first call
  if jax.process_count() > 1 or isinstance(array, jax.Array):
    return array
  with float64(array.dtype.itemsize > 4):
    return jnp.asarray(array)


# Numbers become arguments.


class _Lifted(NamedTuple):
  """A program whose numbers are arguments.

  Attributes:
    program: it takes the values after its own inputs.
    values: the values of the numbers and of the arrays.
  """

  program: ClosedJaxpr
  values: tuple[Any, ...]


class _Lifting:
  """Turns numbers into arguments, in a program and in those within it."""

  def __init__(self):
    self._done: dict[tuple[int, ...], _Lifted] = {}
    # Equations as this version of JAX makes them.
    self._plain_jit = jax.make_jaxpr(jax.jit(lambda x: x * x))(np.float32(0)).eqns[0]
    (self._product,) = self._plain_jit.params["jaxpr"].eqns

  def of_trace(self, program: ClosedJaxpr) -> _Lifted:
    """The program as one call, which JAX does not trace again."""
    inputs, outputs = ([Var(x.aval) for x in part] for part in (program.invars, program.outvars))
    call = self._as_jit(self._plain_jit.replace(invars=inputs, outvars=outputs), program)
    code = Jaxpr([], inputs, outputs, [call], debug_info=program.jaxpr.debug_info)
    return self.lifted(ClosedJaxpr(code, []))

  def lifted(self, program: ClosedJaxpr) -> _Lifted:
    """The program with its numbers as arguments. The same object in gives the same object out."""
    identity = (id(program.jaxpr), *map(id, program.consts))
    found = self._done.get(identity)
    if found is None:
      found = self._done[identity] = self._lifted(program)
    return found

  def _lifted(self, program: ClosedJaxpr) -> _Lifted:
    code, variables, values = program.jaxpr, [], []

    def argument(value, aval):
      variables.append(Var(aval))
      values.append(value)
      return variables[-1]

    constants = list(zip(code.constvars, map(_array, program.consts), strict=True))
    kept = [(variable, value) for variable, value in constants if not _becomes_argument(value)]
    for variable, value in constants:
      if _becomes_argument(value):
        variables.append(variable)
        values.append(value)

    def lifted(atom, compared=False):
      value = literal_value(atom) if isinstance(atom, Literal) else None
      word = compared and value is not None and value.dtype == np.uint32
      return argument(value, atom.aval) if word or _becomes_argument(value) else atom

    equations = []
    for eqn in code.eqns:
      eqn = _multiplying(eqn, self._product)
      numbers = eqn.invars[: 1 if eqn.primitive is pow_p else None]
      compared = eqn.primitive in _COMPARISONS
      operands = [lifted(atom, compared) for atom in numbers] + eqn.invars[len(numbers) :]
      equations.append(self._equation(eqn.replace(invars=operands), argument))
    results = [*map(lifted, code.outvars)]
    constvars, consts = [variable for variable, _ in kept], [value for _, value in kept]
    code = code.replace(
      constvars=constvars, invars=[*code.invars, *variables], eqns=equations, outvars=results
    )
    return _Lifted(ClosedJaxpr(code, consts), tuple(values))

  def _equation(self, eqn: Any, argument: Callable[[Any, Any], Var]) -> Any:
    """The equation, with the numbers of the programs in it among its operands."""
    name = eqn.primitive.name
    if name in _CALLS:
      eqn = self._as_jit(eqn, eqn.params[_CALLS[name]])
      name = eqn.primitive.name
    parameters, extended = _EXTENDED.get(name, ((), None))
    if extended is None or not all(parameter in eqn.params for parameter in parameters):
      return eqn
    programs = jax.tree.leaves([eqn.params[parameter] for parameter in parameters])
    if extended is _of_jit and _of_library(programs[0]):
      return eqn
    if any(hasattr(effect, "input_index") for code in programs for effect in code.effects):
      return eqn
    inner = [self.lifted(closed(code)) for code in programs]
    added = [
      [
        argument(value, variable.aval)
        for value, variable in zip(part.values, _last(part.program, len(part.values)), strict=True)
      ]
      for part in inner
    ]
    operands, params = extended(eqn, [part.program for part in inner], added, self._plain_jit)
    return eqn.replace(invars=operands, params={**eqn.params, **params})

  def _as_jit(self, eqn: Any, program: ClosedJaxpr) -> Any:
    """The call as a plain one, without its rules: nothing differentiates or maps it any more."""
    like, inputs, outputs = self._plain_jit.params, len(eqn.invars), len(eqn.outvars)
    params = {
      name: value * (outputs if name.startswith("out_") else inputs)
      if isinstance(value, tuple) and len(value) == 1
      else value
      for name, value in like.items()
    }
    params |= {"jaxpr": program, "name": eqn.primitive.name}
    return eqn.replace(primitive=self._plain_jit.primitive, params=params)


def _multiplying(eqn: Any, product: Any) -> Any:
  """A division by a number, as XLA computes it: by a product with the inverse."""
  if eqn.primitive is not div_p or not isinstance(eqn.invars[1], Literal):
    return eqn
  divisor = literal_value(eqn.invars[1])
  if not _becomes_argument(divisor):
    return eqn
  inverse = np.asarray(divisor.dtype.type(1) / divisor, divisor.dtype)
  if not abs(inverse) >= jnp.finfo(divisor.dtype).tiny:
    return eqn
  operands = [eqn.invars[0], Literal(inverse, eqn.invars[1].aval)]
  return eqn.replace(primitive=product.primitive, invars=operands, params=product.params)


def _of_library(code: Jaxpr | ClosedJaxpr) -> bool:
  """Whether the program is a compiled function of JAX or of `jdp.random`."""
  where = str(getattr(code.debug_info, "func_src_info", ""))
  return any(library in where for library in _LIBRARIES)


def _becomes_argument(value: Any) -> bool:
  """Whether the module's rule makes the value an argument."""
  if value is None:
    return False
  if _is_key(value):
    return True
  if value.ndim:
    return _is_floating(value) or value.nbytes > 4 * _KEPT_WORDS
  return _is_floating(value) and bool(np.isfinite(value)) and abs(float(value)) not in (0.0, 1.0)


def _is_floating(value: Any) -> bool:
  return bool(jnp.issubdtype(value.dtype, jnp.floating))


def _array(value: Any) -> Any:
  """A constant as a NumPy array. A JAX array stays where it is, unless it is short."""
  if isinstance(value, jax.Array) and (_is_key(value) or value.nbytes > 4 * _KEPT_WORDS):
    return value
  return np.asarray(value)


def _last(program: ClosedJaxpr, count: int) -> list[Var]:
  return program.jaxpr.invars[len(program.jaxpr.invars) - count :]


# What the programs in an equation take: primitive -> (parameters that hold them, how operands and
# parameters change when the programs get further inputs, and what these inputs are given).


def _of_jit(eqn, programs, added, plain):
  (program,), (new,) = programs, added
  params = {"jaxpr": program}
  for name in ("in_shardings", "in_layouts", "donated_invars"):
    params[name] = eqn.params[name] + plain.params[name] * len(new)
  return [*eqn.invars, *new], params


def _of_scan(eqn, programs, added, plain):
  del plain
  (program,), (new,) = programs, added
  place, _ = scan_counts(eqn.params)
  params = with_more_constants(eqn.params, len(new))
  params["jaxpr"] = _taking_earlier(program, len(new), place)
  return _inserted(eqn.invars, new, place), params


def _of_while(eqn, programs, added, plain):
  del plain
  (condition, body), (of_condition, of_body) = programs, added
  first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
  operands = _inserted(eqn.invars, of_body, first + second)
  return _inserted(operands, of_condition, first), {
    "cond_jaxpr": _taking_earlier(condition, len(of_condition), first),
    "body_jaxpr": _taking_earlier(body, len(of_body), second),
    "cond_nconsts": first + len(of_condition),
    "body_nconsts": second + len(of_body),
  }


def _of_cond(eqn, programs, added, plain):
  del plain
  new = [variable for part in added for variable in part]
  branches, before = [], 0
  for program, own in zip(programs, added, strict=True):
    code = program.jaxpr
    inputs = [Var(variable.aval) for variable in new]
    inputs[before : before + len(own)] = _last(program, len(own))
    before += len(own)
    taken = [*code.invars[: len(code.invars) - len(own)], *inputs]
    branches.append(ClosedJaxpr(code.replace(invars=taken), program.consts))
  return [*eqn.invars, *new], {"branches": tuple(branches)}


def _of_checkpoint(eqn, programs, added, plain):
  del plain
  (program,), (new,) = programs, added
  return [*eqn.invars, *new], {"jaxpr": program.jaxpr}


def _of_shard_map(eqn, programs, added, plain):
  del plain
  (program,), (new,) = programs, added
  specs = (*eqn.params["in_specs"], *[PartitionSpec()] * len(new))
  return [*eqn.invars, *new], {"jaxpr": program.jaxpr, "in_specs": specs}


_EXTENDED = {
  "pjit": (("jaxpr",), _of_jit),
  "jit": (("jaxpr",), _of_jit),
  "scan": (("jaxpr",), _of_scan),
  "while": (("cond_jaxpr", "body_jaxpr"), _of_while),
  "cond": (("branches",), _of_cond),
  "checkpoint": (("jaxpr",), _of_checkpoint),
  "remat2": (("jaxpr",), _of_checkpoint),
  "shard_map": (("jaxpr",), _of_shard_map),
}
_CALLS = {
  "custom_jvp_call": "call_jaxpr",
  "custom_vjp_call": "call_jaxpr",
  "custom_vmap_call": "call",
}


def _inserted(items: Sequence[Any], new: Sequence[Any], place: int) -> list[Any]:
  return [*items[:place], *new, *items[place:]]


def _taking_earlier(program: ClosedJaxpr, count: int, place: int) -> ClosedJaxpr:
  """The program with its last `count` inputs at another place."""
  inputs = program.jaxpr.invars
  own, new = inputs[: len(inputs) - count], _last(program, count)
  code = program.jaxpr.replace(invars=_inserted(own, new, place))
  return ClosedJaxpr(code, program.consts)
