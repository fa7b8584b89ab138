"""Checkpoints of a run's state, by orbax.

They are private: a sampler's state counts each user's participations.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

PyTree = Any


class Checkpoints:
  """The latest state of a run, in a folder.

  A state is saved leaf by leaf as plain arrays, random keys as their key data. A save is whole or
  absent, whenever the process is killed.

  Args:
    folder: made if missing.
  """

  def __init__(self, folder: pathlib.Path):
    options = ocp.CheckpointManagerOptions(
      max_to_keep=1, enable_async_checkpointing=False, **_alone(folder)
    )
    self._manager = ocp.CheckpointManager(folder, options=options)

  def save(self, step: int, state: PyTree) -> None:
    """Saves the state after `step` rounds, and removes the one before.

    The state is on disk when this returns.
    """
    leaves = [np.asarray(_to_data(leaf)) for leaf in jax.tree.leaves(state)]
    self._manager.save(step, args=ocp.args.StandardSave({"leaves": leaves}))

  def restore(self, like: PyTree) -> tuple[int, PyTree]:
    """(rounds done, state) of the last save, or (0, like) if there is none.

    Args:
      like: a state of the same structure, shapes and types.
    """
    step = self._manager.latest_step()
    if step is None:
      return 0, like
    leaves, treedef = jax.tree.flatten(like)
    target = {"leaves": [np.asarray(_to_data(leaf)) for leaf in leaves]}
    saved = self._manager.restore(step, args=ocp.args.StandardRestore(target))["leaves"]
    return step, jax.tree.unflatten(treedef, list(map(_from_data, saved, leaves)))

  def close(self) -> None:
    """Ends orbax's threads."""
    self._manager.close()


def _alone(folder: pathlib.Path) -> dict[str, Any]:
  """Options by which one of several processes waits for no other."""
  if jax.process_count() == 1:
    return {}
  folder.mkdir(parents=True, exist_ok=True)  # orbax does not, for one process of several
  this = jax.process_index()
  alone = ocp.options.MultiprocessingOptions(
    primary_host=this, active_processes={this}, barrier_sync_key_prefix="jdp"
  )
  return {"create": False, "multiprocessing_options": alone}


def _is_key(leaf: jax.Array) -> bool:
  return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_data(leaf: jax.Array) -> jax.Array:
  """The leaf as a plain array, which orbax can save."""
  return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _from_data(data: np.ndarray, like: jax.Array) -> jax.Array:
  """The leaf that was saved, a key if `like` is one."""
  if _is_key(like):
    return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(like))
  return jnp.asarray(data)
