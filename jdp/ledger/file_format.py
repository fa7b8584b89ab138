"""The lines of a ledger file, each with a checksum.

It knows records, which are JSON data, and nothing of what they say.
"""

import json
import os
import pathlib
import zlib
from typing import Any

FORMAT_VERSION = 1


def file_header() -> dict[str, Any]:
  """The first record of a file."""
  return {"format": "jdp-ledger", "version": FORMAT_VERSION}


def to_line(record: dict[str, Any]) -> str:
  """The line of a record, with its checksum in front."""
  # The default is for NumPy scalars, which become Python's numbers exactly.
  text = json.dumps(record, separators=(",", ":"), default=lambda scalar: scalar.item())
  return f"{zlib.crc32(text.encode()):08x} {text}\n"


def _parse(line: bytes) -> dict[str, Any] | None:
  """The record of a line, or None if it is torn or damaged."""
  checksum, _, text = line.partition(b" ")
  if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text.removesuffix(b"\n")):
    return None
  return json.loads(text)


def read_records(path: pathlib.Path) -> tuple[list[dict[str, Any]], int]:
  """All intact records of a file, and the number of bytes they take."""
  lines = path.read_bytes().splitlines(keepends=True)
  records: list[Any] = [_parse(line) for line in lines]
  # A last line without its end was torn while it was written. Its round was never used.
  if records and records[-1] is None and not lines[-1].endswith(b"\n"):
    records.pop()
  if None in records:
    raise ValueError(
      f"Expected intact lines in {path}, got a damaged one at line {records.index(None) + 1}."
    )
  if records and (records[0].get("format"), records[0].get("version")) != (
    "jdp-ledger",
    FORMAT_VERSION,
  ):
    raise ValueError(
      f"Expected a jdp-ledger file of version {FORMAT_VERSION} in {path}, got header {records[0]}."
    )
  return records, sum(len(line) for line in lines[: len(records)])


def sync_folder(path: pathlib.Path) -> None:
  """Brings a new name onto the disk: fsync of a file does not cover its folder's entry."""
  folder = os.open(path.absolute().parent, os.O_RDONLY)
  try:
    os.fsync(folder)
  finally:
    os.close(folder)
