"""SQLite files of TensorFlow Federated's data sets: a `tf.train.Example` message for each example.

Tables: `client_metadata` (client_id, split_name, num_examples) and `examples` (split_name,
client_id, serialized_example_proto).
"""

import contextlib
import pathlib
import urllib.parse
from collections.abc import Iterator
from typing import Any

import numpy as np

from jdp.data.files import open_data

_MAGIC = b"SQLite format 3\0"
_LIMIT_LENGTH = 0  # SQLite's number for the length of a value
_LONGEST_ROW = 2**24  # bytes
_TABLES = {"client_metadata", "examples"}
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # wire types of protocol buffers
_BYTES_LIST, _FLOAT_LIST, _INT_LIST = 1, 2, 3  # the kinds of a tf.train.Feature
Feature = list[bytes] | np.ndarray


def read_tff(
  path: pathlib.Path, split: str, max_users: int | None
) -> Iterator[tuple[str, list[dict[str, Feature]]]]:
  """The users of a split in the order of their names, each with its examples' features.

  Users are read one at a time. The file is not written to, and nothing in it is run: of its schema
  only plain tables are taken.

  Raises:
    ValueError: if it is no such file, is damaged, or has no user of that split.
  """
  import sqlite3  # some builds of Python have none

  with open_data(path) as file:
    begins = file.read(len(_MAGIC))
  if begins != _MAGIC:
    raise _refused(path, "another file")
  name = urllib.parse.quote(str(path.resolve()))
  found = False
  with contextlib.closing(sqlite3.connect(f"file:{name}?mode=ro&immutable=1", uri=True)) as opened:
    try:
      _check_schema(opened)
      for (user,) in opened.execute(
        "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id "
        "LIMIT ?",
        (split, -1 if max_users is None else max_users),
      ):
        found = True
        rows = opened.execute(
          "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? "
          "ORDER BY rowid",
          (split, user),
        )
        yield str(user), [parse_example(row) for (row,) in rows]
    # A value that is no blob, text that is no UTF-8, and whatever a damaged file leads to.
    except (sqlite3.Error, ValueError, TypeError, IndexError, OverflowError):
      raise _refused(path, "a damaged or another one") from None
  if not found:
    raise _refused(path, f"no user of the split {split!r}")


def parse_example(message: bytes) -> dict[str, Feature]:
  """The features of a serialized `tf.train.Example`.

  Raises:
    ValueError: if it is no such message.
    IndexError: if it is cut short.
  """
  made: dict[str, Feature] = {}
  for _, _, features in _fields(message):
    for _, _, entry in _fields(features):
      parts = {number: value for number, _, value in _fields(entry)}
      made[parts[1].decode() if 1 in parts else ""] = _feature(parts.get(2, b""))
  return made


def _feature(message: bytes) -> Feature:
  """The values of a `tf.train.Feature`: bytes, float32 or int64 [n]."""
  for kind, _, values in _fields(message):
    fields = list(_fields(values))
    if kind == _BYTES_LIST:
      return [value for _, _, value in fields]
    if kind == _FLOAT_LIST:  # packed, or one by one
      return np.frombuffer(b"".join(value for _, _, value in fields), "<f4")
    if kind == _INT_LIST:
      numbers = [n for _, wire, v in fields for n in (_varints(v) if wire == _BYTES else [v])]
      return np.array(numbers, np.uint64).astype(np.int64)
  return []


def _fields(message: bytes) -> Iterator[tuple[int, int, Any]]:
  """(number, wire type, value) of a protocol buffer's fields."""
  at = 0
  while at < len(message):
    tag, at = _varint(message, at)
    number, wire = tag >> 3, tag & 7
    if wire == _VARINT:
      value, at = _varint(message, at)
      yield number, wire, value
      continue
    if wire == _BYTES:
      size, at = _varint(message, at)
    elif wire in (_FOUR_BYTES, _EIGHT_BYTES):
      size = 4 if wire == _FOUR_BYTES else 8
    else:
      raise ValueError("another wire type")
    if at + size > len(message):
      raise ValueError("cut short")
    yield number, wire, message[at : at + size]
    at += size


def _varints(content: bytes) -> Iterator[int]:
  at = 0
  while at < len(content):
    value, at = _varint(content, at)
    yield value


def _varint(content: bytes, at: int) -> tuple[int, int]:
  """(A number of 7 bits in each byte, the place behind it)."""
  value = 0
  for shift in range(0, 70, 7):
    byte = content[at]
    value, at = value | (byte & 127) << shift, at + 1
    if byte < 128:
      return value, at
  raise ValueError("too long")


def _check_schema(opened: Any) -> None:
  """Refuses a file whose tables are views or virtual: reading them would run what it says."""
  opened.setlimit(_LIMIT_LENGTH, _LONGEST_ROW)
  opened.execute("PRAGMA trusted_schema = OFF")
  rows = opened.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
  tables = {name for name, sql in rows if sql.upper().startswith("CREATE TABLE")}
  if not tables >= _TABLES:
    raise ValueError("other tables")


def _refused(path: pathlib.Path, got: str) -> ValueError:
  return ValueError(
    f"Expected an SQLite file of TensorFlow Federated, decompressed, in {path}, got {got}; name "
    "another split, or fetch it again."
  )
