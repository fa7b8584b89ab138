"""Makes a state that is carried from call to call wait for itself on several simulated devices.

XLA on CPU starts a program's part on each device from one small pool of threads, and lets 32 parts
wait for each device. A loop that runs ahead of its results fills the pool with waiting parts. Then
a part of an earlier round finds no thread, and the other parts wait for it in their all-reduce.
After 40 seconds the process is aborted. So a state that goes from round to round waits for itself
before it is used again.

On one device, and on accelerators, nothing waits. Outside of jit no call runs ahead, as each
compiles first. Sums that are not carried from call to call cannot wait for each other (`cohort_sum`
or `stream_sum` in a jitted function): read a result every few calls.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
from jax.tree_util import GetAttrKey, register_pytree_with_keys

S = TypeVar("S", bound=type[NamedTuple])


def waits_for(field: str) -> Callable[[S], S]:
  """Registers a NamedTuple as a pytree that waits for its array `field` when it is taken apart.

  Every call of a jitted function takes its arguments apart, so every such call waits.
  """

  def register(kind: S) -> S:
    keys = tuple(map(GetAttrKey, kind._fields))

    def flatten(state):
      _wait(getattr(state, field))
      return tuple(state), None

    def flatten_with_keys(state):
      return tuple(zip(keys, flatten(state)[0], strict=True)), None

    register_pytree_with_keys(kind, flatten_with_keys, lambda _, values: kind(*values), flatten)
    return kind

  return register


def _wait(array: Any) -> None:
  # Tracers and donated arrays have no result to wait for.
  if (
    isinstance(array, jax.Array)
    and not isinstance(array, jax.core.Tracer)
    and not array.is_deleted()
  ):
    devices: Any = array.sharding.device_set
    if len(devices) > 1 and next(iter(devices)).platform == "cpu":
      array.block_until_ready()
