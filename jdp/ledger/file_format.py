"""The lines of a ledger file: a chain of records.

A line is a link in hexadecimal digits, a space and a record as JSON. A link is the first 16
bytes of the SHA-256 hash of the link before it and the record's text. So it stands for the whole
file up to its line: a line that was changed, removed or moved breaks the chain. The first record is
the header, with the run's name. The last one of a closed file is the end record.

The links need no secret. So whoever can write the file can also write another one with valid links.
With a key the links are message authentication codes (HMAC-SHA-256), which only the key's holders
can make. Nothing here stops the holders themselves.

This module does not interpret the records.
"""

import hashlib
import hmac
import json
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from jdp._files import open_to_read

FORMAT_VERSION = 2
"""The version of ledger files that is written."""

_UNCHAINED = 1  # the version whose lines have checksums instead of links
_LINK_BYTES = 16  # finding another text with the same link takes some 2^128 tries
_MIN_KEY_BYTES = 16


class Line(NamedTuple):
  """A whole line of a file.

  Attributes:
    number: counted from 1.
    record: its content.
    link: its link, or None in a file without links.
    end: the number of bytes up to its end.
  """

  number: int
  record: dict[str, Any]
  link: bytes | None
  end: int


def file_header(key: bytes | None, **fields: Any) -> dict[str, Any]:
  """The first record of a file."""
  keyed = {} if key is None else {"keyed": True}
  return {"format": "jdp-ledger", "version": FORMAT_VERSION, **keyed, **fields}


def check_key(key: bytes | None) -> None:
  """Refuses what is not a key, or is a key that can be guessed."""
  if key is None:
    return
  if not isinstance(key, bytes):
    raise TypeError(f"Expected key to be bytes or None, got {type(key).__name__}.")
  if len(key) < _MIN_KEY_BYTES:
    raise ValueError(
      f"Expected key to have at least {_MIN_KEY_BYTES} bytes, got {len(key)}; take secrets."
      "token_bytes(32)."
    )


def to_lines(
  records: Iterable[dict[str, Any]], link: bytes, key: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
  """Each record's line and link, after a line with the given link (empty for the header)."""
  for record in records:
    # `default` is for NumPy scalars, which become Python numbers exactly.
    text = json.dumps(record, separators=(",", ":"), default=lambda scalar: scalar.item()).encode()
    link = _next_link(link, text, key)
    yield b"%s %s\n" % (link.hex().encode(), text), link


def _next_link(link: bytes, text: bytes, key: bytes | None) -> bytes:
  """The link of a record with this text, after a record with the given link."""
  message = link + text
  whole = hashlib.sha256(message).digest() if key is None else hmac.digest(key, message, "sha256")
  return whole[:_LINK_BYTES]


def read_lines(path: pathlib.Path, key: bytes | None) -> Iterator[Line]:
  """The lines of a file. The first is a header. No lines if the header is torn.

  A last line without its end is torn: its writer was killed. It is left out.

  Raises:
    ValueError: if a line is damaged, removed or moved, or if the file is not a ledger's, or is a
      device or a pipe. Also if it was written with another key.
  """
  link, end = b"", 0
  with open_to_read(path) as file:
    for number, line in enumerate(file, 1):
      if number == 1:
        chained = line[2 * _LINK_BYTES : 2 * _LINK_BYTES + 1] == b" "
        _check_key_kind(path, line, key)
      parsed = _parse(line, link, key) if chained else _parse_unchained(line)
      # A torn line lacks its end. A line whose only fault is its last byte is damaged, not torn.
      if not line.endswith(b"\n") and parsed is None:
        whole = line[:-1] + b"\n"
        if (_parse(whole, link, key) if chained else _parse_unchained(whole)) is None:
          return
      if parsed is None:
        raise ValueError(_damaged(path, number, chained, key))
      text, link = parsed
      end += len(line)
      record = _record(path, number, text)
      if number == 1:
        _check_header(path, record, FORMAT_VERSION if chained else _UNCHAINED)
      yield Line(number, record, link or None, end)


def _record(path: pathlib.Path, number: int, text: bytes) -> Any:
  """The JSON data of a line."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError) as error:  # also for numbers of thousands of digits
    raise ValueError(
      f"Expected JSON in line {number} of {path}, got other text: {error}; restore the file from a "
      "copy."
    ) from error


def _parse(line: bytes, before: bytes, key: bytes | None) -> tuple[bytes, bytes] | None:
  """(text, link) of a line after the given link; None if it is torn or does not belong there."""
  digits, _, text = line.partition(b" ")
  if not text.endswith(b"\n"):
    return None
  link = _next_link(before, text[:-1], key)
  return (text, link) if hmac.compare_digest(digits, link.hex().encode()) else None


def _parse_unchained(line: bytes) -> tuple[bytes, bytes] | None:
  """(text, no link) of a line with a checksum; None if it is torn or damaged."""
  checksum, _, text = line.partition(b" ")
  if not text.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text[:-1]):
    return None
  return text, b""


def _check_key_kind(path: pathlib.Path, header: bytes, key: bytes | None) -> None:
  """Refuses a key for a file without one, and no key for a file with one."""
  keyed = b'"keyed":true' in header
  if keyed and key is None:
    raise ValueError(
      f"Expected the key with which {path} was written, got none; its links cannot be checked "
      "without it."
    )
  if key is not None and not keyed and header.endswith(b"\n"):
    raise ValueError(
      f"Expected {path} to be written with a key, got a file without one; if that is no surprise, "
      "leave key out."
    )


def _check_header(path: pathlib.Path, record: Any, version: int) -> None:
  """Refuses a file of another format."""
  if not isinstance(record, dict) or (record.get("format"), record.get("version")) != (
    "jdp-ledger",
    version,
  ):
    raise ValueError(
      f"Expected a jdp-ledger file of version {FORMAT_VERSION} or {_UNCHAINED} in {path}, got "
      f"header {record}."
    )


def _damaged(path: pathlib.Path, number: int, chained: bool, key: bytes | None) -> str:
  """The message about a line that does not belong where it is."""
  others = ""
  if chained and number > 1:
    others = ", or lines before it were removed or moved"
  elif key is not None:
    others = ", or the file was written with another key"
  return (
    f"Expected intact lines in {path}, got a damaged one at line {number}{others}; restore the "
    "file from a copy, as without that line its epsilon would be too small."
  )


def sync_folder(path: pathlib.Path) -> None:
  """Writes a new file name to disk: fsync of a file does not cover its folder's entry."""
  folder = os.open(path.absolute().parent, os.O_RDONLY)
  try:
    os.fsync(folder)
  finally:
    os.close(folder)
