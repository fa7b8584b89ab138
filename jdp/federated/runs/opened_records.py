"""Opens the records of a run: in memory or in a folder, of one process or of several."""

import os

import jax
import numpy as np

from jdp import random
from jdp.federated.runs.folder_records import FolderRecords, own_keys
from jdp.federated.runs.run_folder import RunFolder, fingerprint, run_folder
from jdp.federated.runs.run_records import Beginning, MemoryRecords, Records
from jdp.random.keys import is_exposed

Workdir = str | os.PathLike | RunFolder
Opened = tuple[Records, tuple[jax.Array, jax.Array]]


def open_records(workdir: Workdir | None, beginning: Beginning) -> Opened:
  """The records of a run, and its keys for noise and for data.

  Args:
    workdir: where the run keeps its files. None: in memory.
    beginning: what the run begins with.

  Raises:
    ImportError: see `FolderRecords`.
    ValueError: see `FolderRecords`.
  """
  if jax.process_count() > 1:
    return _open_shared(workdir, beginning)
  return _open(workdir, beginning)


def _open(workdir: Workdir | None, beginning: Beginning) -> Opened:
  """As `open_records`, for one process."""
  if workdir is None:
    keys = own_keys(beginning, None)
    return _in_memory(beginning, keys), keys
  records = FolderRecords(run_folder(workdir), beginning)
  return records, records.keys


def _open_shared(workdir: Workdir | None, beginning: Beginning) -> Opened:
  """As `open_records`, if several processes compute a run: only the first one has files."""
  # Here, as a run of one process need not spend the time of this import.
  from jdp.federated.runs.shared_records import SharedRecords, told

  opened: list[Opened] = []
  told(lambda: opened.append(_open(workdir, beginning)))

  def key(given: jax.Array | None, place: int) -> jax.Array:
    if given is not None:
      return given
    made = told(lambda: np.asarray(jax.random.key_data(opened[0][1][place])).tobytes())
    return random.restore_key(np.frombuffer(made, np.uint32))

  keys = key(beginning.noise_key, 0), key(beginning.data_key, 1)
  first = opened[0][0] if opened else None
  return SharedRecords(first, _in_memory(beginning, keys)), keys


def _in_memory(beginning: Beginning, keys: tuple[jax.Array, jax.Array]) -> MemoryRecords:
  exposed = bool(is_exposed(*keys))
  return MemoryRecords(beginning.prior, exposed=exposed, identity=fingerprint(keys[0]))
