"""Files that are whole or absent, whenever the process is killed."""

import json
import pathlib
from typing import Any

from jdp._files import read_bytes
from jdp.federated.runs.whole_files import read_rows, write, write_rows

__all__ = ["Json", "Row", "read_json", "read_rows", "write", "write_json", "write_rows"]

Json = Any
"""JSON data, whatever it is."""
Row = dict[str, Json]
"""JSON data by name: a row of a file, or an entry of a result."""


def write_json(path: pathlib.Path, data: object) -> None:
  """Writes JSON data, indented; refuses infinity and NaN, which are not JSON."""
  write(path, (json.dumps(data, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: pathlib.Path) -> Json:
  """The data in a JSON file.

  Raises:
    ValueError: if it holds no JSON.
  """
  try:
    return json.loads(read_bytes(path))
  except ValueError as error:
    raise ValueError(
      f"Expected JSON in {path}, got a file that was changed or damaged; restore it from a copy."
    ) from error
