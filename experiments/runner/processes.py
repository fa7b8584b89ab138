"""Several processes that run one experiment together.

The first of them alone reads and writes the work directory, and tells the others what is in it. All
call the functions of this module in the same order. The failure of one is the end of all.
"""

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

import jax

Made = TypeVar("Made")

_HEARTBEAT_SECONDS = 30
"""After this silence of a process, JAX ends the others. Its default is 100."""
_LAST_WORDS_SECONDS = 2
_LOST = ("Gloo", "coordination service")  # In the errors of exchanges that another does not answer.


def join(
  coordinator: str | None,
  num_processes: int | None,
  process_id: int | None,
  *,
  distributed: bool = False,
) -> None:
  """Makes this process one of several, before JAX starts its devices.

  Args:
    coordinator: host and port of the first process, the same for all. None: there is one process,
      or the cluster says which.
    num_processes: how many there are.
    process_id: the number of this one, from 0.
    distributed: whether JAX reads all of this from the cluster that has begun the process.

  Raises:
    ValueError: if some are given and not all, or the number is none of these processes. Also if
      there is no cluster to read them from.
  """
  given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
  missing = [f"--{name}" for name, value in given.items() if value is None]
  if distributed and len(missing) < len(given):
    raise ValueError(
      f"Expected --distributed without --{', --'.join(given)}, got both; a cluster says these."
    )
  if distributed:
    _join_cluster()
    return
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
  _initialize(coordinator_address=coordinator, num_processes=num_processes, process_id=process_id)


def _join_cluster() -> None:
  try:
    _initialize()
  except ValueError as error:  # JAX has found no cluster, or its description is incomplete.
    raise ValueError(
      "Expected a process of SLURM (begun by srun), Open MPI 4, Kubernetes or a TPU pod with "
      f"--distributed, got none of them ({error}); elsewhere give --coordinator, --num_processes "
      "and --process_id."
    ) from error


def _initialize(
  coordinator_address: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> None:
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  jax.distributed.initialize(
    coordinator_address, num_processes, process_id, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS
  )
  # JAX takes SIGTERM for a notice, which nobody here asks for. A run may be killed at any time.
  signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def fail_together(name: str) -> Iterator[None]:
  """Ends this process as soon as it fails, if it is one of several, and says why.

  An ordinary end would first wait for the others, who wait for this one. They see its end, and end.

  Args:
    name: of the program, which begins the message.
  """
  try:
    yield
  except BaseException as error:
    ended_well = isinstance(error, SystemExit) and not error.code
    if ended_well or not jax.distributed.is_initialized():
      raise
    _end(name, error)


def _end(name: str, error: BaseException) -> NoReturn:
  text = str(error.code if isinstance(error, SystemExit) else error)
  if any(sign in text for sign in _LOST):
    text = (
      f"{name}: Expected all processes to go on, got the end or the silence of one, whose output "
      f"says why; mend that, and begin all again with --resume. JAX says: {text.splitlines()[0]}"
    )
  elif not isinstance(error, SystemExit):
    text = "".join(traceback.format_exception(error))
  print(text, file=sys.stderr, flush=True)
  sys.stdout.flush()
  # The end of the first kills the others, who may be about to say something.
  time.sleep(_LAST_WORDS_SECONDS)
  os._exit(1)


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


def by_first(do: Callable[[], object]) -> None:
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
  from jdp.federated.runs import shared_records  # Slow to import.

  return shared_records.together(do)
