"""Several processes that run one experiment together.

The first of them alone reads and writes the work directory, and tells the others what is in it. All
call the functions of this module in the same order.
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

Made = TypeVar("Made")


def join(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
  """Makes this process one of several, before JAX starts its devices.

  Args:
    coordinator: host and port of the first process, the same for all. None: there is one process.
    num_processes: how many there are.
    process_id: the number of this one, from 0.

  Raises:
    ValueError: if some are given and not all, or the number is none of these processes.
  """
  given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
  missing = [f"--{name}" for name, value in given.items() if value is None]
  if len(missing) == len(given):
    return
  if missing:
    raise ValueError(
      f"Expected --{', --'.join(given)} together, got no {' and no '.join(missing)}; give all or "
      "none."
    )
  if not 0 <= process_id < num_processes:  # type: ignore[operator]
    raise ValueError(
      f"Expected --process_id from 0 to below --num_processes={num_processes}, got {process_id}."
    )
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  jax.distributed.initialize(coordinator, num_processes, process_id)


def is_first() -> bool:
  """Whether this is the first process, or the only one."""
  return jax.process_index() == 0


def told(say: Callable[[], Made]) -> Made:
  """What `say` returns on the first process, as JSON data where there are others.

  Raises:
    Exception: on the first process, what `say` raises.
    RuntimeError: on the others, if `say` raises anything.
  """
  if jax.process_count() == 1:
    return say()
  return json.loads(told_bytes(lambda: json.dumps(say()).encode()))


def told_bytes(say: Callable[[], bytes]) -> bytes:
  """`told`, of bytes."""
  if jax.process_count() == 1:
    return say()
  from jdp.federated.runs import shared_records  # Slow to import.

  return shared_records.told(say)


def by_first(do: Callable[[], Any]) -> None:
  """Does something on the first process alone; its error is an error of all."""

  def silently() -> None:
    do()

  told(silently)


def together(do: Callable[[], Made]) -> Made:
  """What `do` returns here, once it has succeeded on every process.

  Raises:
    Exception: what `do` raises here.
    RuntimeError: if it has raised anything on another process.
  """
  if jax.process_count() == 1:
    return do()
  from jax.experimental import multihost_utils  # Slow to import.

  made, failure = None, None
  try:
    made = do()
  except Exception as error:
    failure = error
  failed = np.asarray(multihost_utils.process_allgather(np.int32(failure is not None)))
  if failure is not None:
    raise failure
  if failed.any():
    raise RuntimeError(
      f"Expected process {int(np.argmax(failed))} to go on, got an error, which it shows."
    )
  return made  # type: ignore[return-value]
