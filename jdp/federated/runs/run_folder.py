"""The files of a training run: those to publish, and apart from them those to keep secret.

The run's folder holds its ledger and its metrics. The secret folder holds the noise key and the
checkpoints. Whoever has them can take the noise off, or see who took part. Remove it when the run
is over and its result is saved.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from jdp import random

LEDGER = "ledger.jsonl"
METRICS = "metrics.jsonl"


class RunFolder(NamedTuple):
  """Where a run keeps its files.

  Attributes:
    path: of what may be published.
    secret: of what must not be. Nobody but its owner has access.
    name: of the run, in its ledger.
  """

  path: pathlib.Path
  secret: pathlib.Path
  name: str


def run_folder(workdir: str | os.PathLike | RunFolder) -> RunFolder:
  """Makes the folders of a run in `workdir` if they are missing.

  They are `workdir` itself, and `<workdir>.secret` for its owner alone.
  """
  if not isinstance(workdir, RunFolder):
    path = pathlib.Path(workdir).resolve()
    workdir = RunFolder(path, path.with_name(path.name + ".secret"), path.name)
  workdir.path.mkdir(parents=True, exist_ok=True)
  workdir.secret.mkdir(mode=0o700, parents=True, exist_ok=True)
  return workdir


def kept_key(path: pathlib.Path, *, begun: bool) -> jax.Array:
  """The key in a file of mode 0600.

  If the run has not begun and there is no file, the key is a new one of 256 bits from the operating
  system.

  Args:
    path: the file.
    begun: whether rounds were done.

  Raises:
    ValueError: if rounds were done with a key that is lost. Other noise on the same rounds would be
      a second release of them, while the ledger would hold one.
  """
  if path.exists():
    return random.restore_key(np.frombuffer(path.read_bytes(), np.uint32))
  if begun:
    name = path.name.replace("_", " ")
    raise ValueError(
      f"Expected the {name} of the run in {path}, got none; it cannot be resumed, start anew."
    )
  key = random.secure_key()
  write(path, np.asarray(jax.random.key_data(key)).tobytes(), mode=0o600)
  return key


def fingerprint(key: jax.Array) -> str:
  """Tells keys of 256 bits apart, and says nothing else about them."""
  return hashlib.sha256(
    b"fingerprint" + np.asarray(jax.random.key_data(key)).tobytes()
  ).hexdigest()[:16]


def write(path: pathlib.Path, content: bytes, *, mode: int = 0o666) -> None:
  """Writes a file at once: a reader sees the old content or the new, never a part.

  Args:
    path: the file, replaced if it exists.
    content: its bytes, on disk before the name points to them.
    mode: permissions, minus the process's umask. 0o600 is for secrets.
  """
  temporary = path.with_name(path.name + ".tmp")
  temporary.unlink(missing_ok=True)  # Left by a killed process: its mode would stay.
  with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
  # Only a file that is whole on disk gets the name.
  os.replace(temporary, path)


def write_rows(path: pathlib.Path, rows: Iterable[Any]) -> None:
  """Writes JSON Lines: one row a line. Infinity and NaN are refused: they are not JSON."""
  write(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())


def read_rows(path: pathlib.Path) -> list[Any]:
  """The rows of a JSON Lines file; none if there is no file."""
  return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class RowFile:
  """A JSON Lines file of rows by round.

  Args:
    path: the file.
    done: rows after this round are dropped, as they will be made again.

  Attributes:
    rows: what it holds.
  """

  def __init__(self, path: pathlib.Path, done: int):
    self._path = path
    self.rows = [row for row in read_rows(path) if row["round"] <= done]

  def append(self, row: dict[str, Any]) -> None:
    """Adds a row, on disk when this returns."""
    self.rows.append(row)
    write_rows(self._path, self.rows)
