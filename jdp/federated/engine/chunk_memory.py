"""How many clients an accelerator computes side by side, by the memory that they take.

The rule looks only at shapes, and at a share of memory that every accelerator in use has. So it is
the same when a run is resumed, even on another device.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from jdp._equations import closed
from jdp.federated.engine.sharded import client_data, is_declared, own_key

PyTree = Any

# More clients do not fill a GPU better: on an H100, 4,096 take as long. On a TPU v5e, which has no
# float64 units, 1,024 clients of a transformer would take 19.9 GB by ghost norms, and 256 take 6.5.
_MOST_ON_GPU, _MOST_ELSEWHERE = 1024, 256
_MOST_BYTES = 2**32  # bytes of a chunk; the smallest devices have four times as much
_COPIES = 4  # of what a client adds: the record, bounded, weighted, and a sum twice as long
_LOOPS = "scan", "while"
_PRODUCTS = "dot_general", "conv_general_dilated"
_MOVES = "gather", "scatter", "scatter-add", "sort", "concatenate", "dynamic_update_slice"


def fitting_chunk_size(
  summand: Any, keys: PyTree, shared: PyTree, data: PyTree, platform: str
) -> int:
  """The largest power of two of clients whose arrays fit in 4 GiB, and that fills a device.

  A client's arrays are those that its program holds at one time (`held_bytes`), or four copies of
  what it adds, if these take more. If users are padded to the largest one, that size depends on one
  user's data, and chunk sizes differ in rounding. So only the copies count there.

  Args: those of `cohort_sum`, arrays or their shapes, and "gpu" or "tpu".
  """

  def of_one(number, keys, shared, data):
    own_keys = jax.tree.map(lambda key: own_key(key, data, number), keys)
    return summand(own_keys, shared, client_data(data, number), jnp.float32(1))

  program, added = jax.make_jaxpr(of_one, return_shape=True)(jnp.int32(0), keys, shared, data)
  most = _COPIES * sum(map(_bytes, jax.tree.leaves(added)))
  if is_declared(data):
    most = max(most, held_bytes(program.jaxpr))
  filling = _MOST_ON_GPU if platform == "gpu" else _MOST_ELSEWHERE
  fitting = max(1, min(filling, _MOST_BYTES // max(1, most)))
  return 1 << (fitting.bit_length() - 1)


def held_bytes(program: Jaxpr) -> int:
  """The most bytes that a program's arrays take at one time, in addition to its arguments.

  Equations run in their order, and an array is let go after its last use. Results of elementwise
  equations, which XLA fuses, count only where a product, a loop or another program reads them.
  In any case, their operands are kept until the results' own last use.
  """
  last: dict[Any, int] = {}
  read = set(_variables(program.outvars))
  last |= dict.fromkeys(read, len(program.eqns))
  for n, eqn in reversed(list(enumerate(program.eqns))):
    name, runs = eqn.primitive.name, bool(_programs_of(eqn))
    until = n if runs or name in _PRODUCTS + _MOVES else max(last.get(v, n) for v in eqn.outvars)
    if runs or name in _PRODUCTS:
      read |= set(_variables(eqn.invars))
    if runs or name in _PRODUCTS + _MOVES:
      read |= set(eqn.outvars)
    for v in _variables(eqn.invars):
      last[v] = max(last.get(v, n), until)
  held: dict[Any, int] = {}
  most = 0
  for n, eqn in enumerate(program.eqns):
    held |= {v: _bytes(v.aval) for v in eqn.outvars if v in read}
    inside = max(map(held_bytes, _programs_of(eqn)), default=0)
    if eqn.primitive.name not in _LOOPS:  # the inner program's results are the equation's own
      inside = max(0, inside - sum(_bytes(v.aval) for v in eqn.outvars))
    most = max(most, sum(held.values()) + inside)
    held = {v: size for v, size in held.items() if last.get(v, n) > n}
  return most


def _variables(atoms: Sequence[Any]) -> list[Any]:
  return [atom for atom in atoms if not isinstance(atom, Literal)]


def _programs_of(eqn: Any) -> list[Jaxpr]:
  """All programs that an equation runs: a loop's body, the branches of a choice.

  The programs of reductions work on single numbers, so they do not count.
  """
  if eqn.primitive.name.startswith("reduce"):
    return []
  programs = ClosedJaxpr | Jaxpr
  params = jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: isinstance(x, programs))
  return [closed(x).jaxpr for x in params if isinstance(x, programs)]


def _bytes(array: Any) -> int:
  return math.prod(array.shape) * array.dtype.itemsize
