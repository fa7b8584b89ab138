"""Files that are whole or absent, whenever the process is killed."""

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any


def write(path: pathlib.Path, content: bytes, *, mode: int = 0o666) -> None:
  """Writes a file at once: a reader sees the old content or the new, never a part.

  Args:
    path: the file; replaced if it exists.
    content: its bytes, on disk before the name points to them.
    mode: permissions, less the process's umask. 0o600 is for secrets.
  """
  temporary = path.with_name(path.name + ".tmp")
  temporary.unlink(missing_ok=True)  # Of a killed process; another mode would survive.
  with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
  os.replace(temporary, path)


def write_json(path: pathlib.Path, data: Any) -> None:
  """Writes JSON data, indented. Infinity and NaN are refused: they are not JSON."""
  write(path, (json.dumps(data, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: pathlib.Path) -> Any:
  """The data in a JSON file."""
  return json.loads(path.read_text())


def write_rows(path: pathlib.Path, rows: Iterable[Any]) -> None:
  """Writes JSON Lines: one row a line."""
  write(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())


def read_rows(path: pathlib.Path) -> list[Any]:
  """The rows of a JSON Lines file; none if there is no file."""
  return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
