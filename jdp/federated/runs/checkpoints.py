"""Checkpoints of a run's state, by orbax.

They are private: a sampler's state counts each user's participations.
"""

import hashlib
import pathlib
import warnings
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jdp.federated.runs.digest import from_bytes, to_bytes
from jdp.federated.runs.secret_folder import close_to_others

PyTree = Any
_KEPT = 3
_DIGEST_SIZE = 32


class Checkpoints:
  """The latest states of a run, in a folder.

  A save is a digest of the state and of the run's name, followed by the state's bytes. A save is
  whole or absent, whenever the process is killed. The last three are kept, so one that is damaged
  later is replaced by the one before it.

  Args:
    folder: made if missing.
    run: tells runs apart. Saves of another run count as damaged.
  """

  def __init__(self, folder: pathlib.Path, run: str):
    options = ocp.CheckpointManagerOptions(
      max_to_keep=_KEPT, enable_async_checkpointing=False, **_alone(folder)
    )
    self._folder, self._run = folder, run.encode()
    try:
      self._manager = ocp.CheckpointManager(folder, options=options)
    except Exception as error:
      raise ValueError(
        f"Expected checkpoints in {folder}, got what orbax cannot read ({error}); restore them "
        "from a copy, or remove that folder: the run then repeats its rounds, bit for bit."
      ) from error
    self._damaged: list[int] = []

  def save(self, step: int, state: PyTree) -> None:
    """Saves the state after `step` rounds, and removes the oldest of more than three.

    The state is on disk when this returns.
    """
    # Saves that could not be read are kept until there is something newer to replace them.
    while self._damaged:
      self._manager.delete(self._damaged.pop())
    content = to_bytes(state)
    saved = {"state": np.concatenate([self._digest(content), content])}
    self._manager.save(step, args=ocp.args.StandardSave(saved), force=True)
    close_to_others(self._folder)

  def restore(self, like: PyTree) -> tuple[int, PyTree]:
    """(rounds done, state) of the newest save that is whole, or (0, like) if there is none.

    A damaged one is named in a warning.

    Args:
      like: a state of the same structure and shapes.
    """
    for step in sorted(self._manager.all_steps(), reverse=True):
      content = self._read(step)
      if content is not None:
        return step, from_bytes(content, like)
      self._damaged.append(step)
      warnings.warn(
        f"Expected a whole checkpoint after round {step} in {self._folder}, got a damaged one, or "
        "one of another run; the rounds since an older one, or all, are repeated, bit for bit.",
        stacklevel=2,
      )
    return 0, like

  def close(self) -> None:
    """Ends orbax's threads."""
    self._manager.close()

  def _read(self, step: int) -> np.ndarray | None:
    """The bytes of a save, or None if it is damaged."""
    try:
      saved = self._manager.restore(step, args=ocp.args.StandardRestore())["state"]
    except Exception:  # Whatever orbax and its libraries raise at damaged files.
      return None
    digest, content = saved[:_DIGEST_SIZE], saved[_DIGEST_SIZE:]
    return content if np.array_equal(digest, self._digest(content)) else None

  def _digest(self, content: np.ndarray) -> np.ndarray:
    found = hashlib.sha256(hashlib.sha256(self._run).digest())
    found.update(content.data)
    return np.frombuffer(found.digest(), np.uint8)


def _alone(folder: pathlib.Path) -> dict[str, Any]:
  """Options with which one of several processes does not wait for the others."""
  if jax.process_count() == 1:
    return {}
  folder.mkdir(parents=True, exist_ok=True)  # orbax does not, for one process of several
  this = jax.process_index()
  alone = ocp.options.MultiprocessingOptions(
    primary_host=this, active_processes={this}, barrier_sync_key_prefix="jdp"
  )
  return {"create": False, "multiprocessing_options": alone}
