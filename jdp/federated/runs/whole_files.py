"""Files that are whole or absent, whenever the process is killed, and that reveal changes."""

import contextlib
import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from jdp._files import read_bytes, write
from jdp.ledger.append_only_file import AppendOnlyFile

_DAMAGED = (
  "a file that was changed or damaged; restore it from a copy, or start anew in another folder."
)


def write_rows(path: pathlib.Path, rows: Iterable[Any]) -> None:
  """Writes JSON Lines: one row a line. Infinity and NaN are refused: they are not JSON."""
  write(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())


def read_rows(path: pathlib.Path) -> list[Any]:
  """The rows of a JSON Lines file; none if there is no file.

  Raises:
    ValueError: if a line is not JSON.
  """
  try:
    return [json.loads(line) for line in read_bytes(path).splitlines()] if path.exists() else []
  except ValueError as error:
    raise ValueError(f"Expected JSON Lines in {path}, got {_DAMAGED}") from error


def write_sealed(path: pathlib.Path, data: Mapping[str, Any], *, mode: int = 0o666) -> None:
  """Writes JSON data with their digest, by which `read_sealed` sees a change."""
  content = {**data, "digest": _seal(data)}
  write(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode(), mode=mode)


def read_sealed(path: pathlib.Path) -> dict[str, Any]:
  """The data that `write_sealed` wrote.

  Raises:
    ValueError: if they were changed since, by hand or by damage.
  """
  try:
    data = json.loads(read_bytes(path))
    seal = data.pop("digest")
  except (ValueError, TypeError, AttributeError, KeyError) as error:
    raise ValueError(f"Expected {path} as it was written, got {_DAMAGED}") from error
  if seal != _seal(data):
    raise ValueError(f"Expected {path} as it was written, got {_DAMAGED}")
  return data


def _seal(data: Mapping[str, Any]) -> str:
  text = json.dumps(data, sort_keys=True, allow_nan=False)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


class RowFile:
  """A JSON Lines file of rows by round, which grows at its end.

  Adding a row takes the same time however many there are. An incomplete row of a killed process is
  dropped.

  Args:
    path: the file.
    done: rows after this round are dropped, as they will be made again. If no round is done, all
      rows are dropped.

  Attributes:
    rows: the file's rows.

  Raises:
    ValueError: if the file holds anything else.
  """

  def __init__(self, path: pathlib.Path, done: int):
    self._path = path
    lines = read_bytes(path).splitlines(keepends=True) if done and path.exists() else []
    if lines and not lines[-1].endswith(b"\n"):
      del lines[-1]
    try:
      rows = [json.loads(line) for line in lines]
      self.rows = [row for row in rows if row["round"] <= done]
    except (KeyError, TypeError, ValueError) as error:
      raise ValueError(f"Expected rows by round in {path}, got {_DAMAGED}") from error
    kept = b"".join(lines[: len(self.rows)])
    self._size, self._hash = len(kept), hashlib.sha256(kept)

  @property
  def digest(self) -> bytes:
    """SHA-256 of what the file holds."""
    return self._hash.digest()

  def append(self, row: dict[str, Any]) -> None:
    """Adds a row, on disk when this returns."""
    line = (json.dumps(row, allow_nan=False) + "\n").encode()
    with contextlib.closing(AppendOnlyFile(self._path)) as file:
      file.append(line, size=self._size)
    self.rows.append(row)
    self._size += len(line)
    self._hash.update(line)
