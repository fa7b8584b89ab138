"""SQLite files of TensorFlow Federated's data sets: a `tf.train.Example` message for each example.

Tables: `client_metadata` (client_id, split_name, num_examples) and `examples` (split_name,
client_id, serialized_example_proto).
"""

import array
import contextlib
import itertools
import pathlib
import re
import threading
import urllib.parse
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jdp.data.files import open_data
from jdp.data.sources.on_disk import UserRows, UsersOnDisk, rows_of_users

_MAGIC = b"SQLite format 3\0"
_LIMIT_LENGTH = 0  # SQLite's number for the length of a value
_LONGEST_ROW = 2**24  # bytes
_TABLES = {"client_metadata", "examples"}
_USERS = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id"
# The second condition also tells names apart that a column's own comparison takes as equal.
_EXAMPLES = (
  "SELECT serialized_example_proto FROM examples WHERE split_name = :split AND client_id = :user "
  "AND client_id = :user COLLATE BINARY"
)
_ROWS = "SELECT rowid, client_id FROM examples WHERE split_name = ? ORDER BY rowid"
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # wire types of protocol buffers
_BYTES_LIST, _FLOAT_LIST, _INT_LIST = 1, 2, 3  # the kinds of a tf.train.Feature
Feature = list[bytes] | np.ndarray


def tff_users(path: pathlib.Path, split: str, features: Sequence[str]) -> UsersOnDisk:
  """The users of a split in the order of their names, each with its examples' features.

  TensorFlow Federated's files have an index of users, by which one user is found. If a file has no
  index, its table is read once, and every run of a user's rows takes 16 bytes of memory.

  The file is not written to, and nothing in it is run: only plain tables of its schema are
  accepted.

  Args:
    path: the file.
    split: the name of the split.
    features: names of the features to read.

  Returns:
    Users as lists of examples, each a dictionary of features.

  Raises:
    ValueError: if it is not such a file, is damaged, or has no user of that split. Reading a user
      raises it as well.
  """
  import sqlite3  # some builds of Python have none

  with open_data(path) as file:
    begins = file.read(len(_MAGIC))
  if begins != _MAGIC:
    raise _refused(path, "another file")
  address = urllib.parse.quote(str(path.resolve()))
  # `check_same_thread=False`: the reader's lock lets one thread at a time use it.
  opened = sqlite3.connect(f"file:{address}?mode=ro&immutable=1", uri=True, check_same_thread=False)
  names = re.compile("|".join(map(re.escape, features)).encode())
  reader = _Reader(opened, path, split, names)
  reader.open()
  if not reader.users:
    raise _refused(path, f"no user of the split {split!r}")
  names_of_users = tuple(map(str, reader.users))
  if len(set(names_of_users)) < len(names_of_users):
    raise _refused(path, "two users of one name")
  return UsersOnDisk(names_of_users, reader.read)


class _Reader:
  """An open file of one split."""

  def __init__(self, opened: Any, path: pathlib.Path, split: str, names: re.Pattern[bytes]):
    self._opened, self._path, self._split, self._names = opened, path, split, names
    self._lock = threading.Lock()
    self._rows: UserRows | None = None
    self.users: list[Any] = []
    weakref.finalize(self, opened.close)

  def open(self) -> None:
    """Finds the users, and their rows if the file has no index of them."""
    with self._refusing():
      _check_schema(self._opened)
      self.users = [user for (user,) in self._opened.execute(_USERS, (self._split,))]
      plan = self._opened.execute(
        f"EXPLAIN QUERY PLAN {_EXAMPLES}", {"split": self._split, "user": ""}
      )
      if not any("client_id=?" in step for *_, step in plan):
        self._rows = _runs(self._opened.execute(_ROWS, (self._split,)), self.users)

  def read(self, number: int) -> list[dict[str, Feature]]:
    """The examples of a user."""
    with self._refusing():
      with self._lock:
        messages = self._messages(number)
      return [parse_example(message, self._names) for (message,) in messages]

  def _messages(self, number: int) -> list[tuple[bytes]]:
    of_user = {"split": self._split, "user": self.users[number]}
    if self._rows is None:
      return self._opened.execute(f"{_EXAMPLES} ORDER BY rowid", of_user).fetchall()
    query = f"{_EXAMPLES} AND rowid BETWEEN :first AND :last ORDER BY rowid"
    runs = self._rows.of(number).tolist()
    found = (
      self._opened.execute(query, of_user | {"first": first, "last": last}) for first, last in runs
    )
    return list(itertools.chain.from_iterable(found))

  @contextlib.contextmanager
  def _refusing(self) -> Iterator[None]:
    """Turns any error that a damaged file causes into one sentence."""
    import sqlite3

    try:
      yield
    # For a value that is not a blob, text that is not UTF-8, a truncated file.
    except (sqlite3.Error, ValueError, TypeError, IndexError, OverflowError):
      raise _refused(self._path, "a damaged or another one") from None


def _runs(rows: Iterator[tuple[int, Any]], users: Sequence[Any]) -> UserRows:
  """Where each user's rows are, from (row, user) in the order of rows."""
  numbers = {user: number for number, user in enumerate(users)}
  owners, firsts, lasts = array.array("q"), array.array("q"), array.array("q")
  for row, user in rows:
    number = numbers.get(user, -1)
    if owners and owners[-1] == number:
      lasts[-1] = row
    elif number >= 0:
      owners.append(number)
      firsts.append(row)
      lasts.append(row)
  return rows_of_users(owners, firsts, lasts, len(users))


def parse_example(message: bytes, names: re.Pattern[bytes]) -> dict[str, Feature]:
  """The features of a serialized `tf.train.Example` whose names match `names`.

  Raises:
    ValueError: if it is not such a message.
    IndexError: if it is cut short.
  """
  made: dict[str, Feature] = {}
  for _, _, features in _fields(message):
    for _, _, entry in _fields(features):
      # Most entries have other names, and parsing them would take most of the reading time.
      if names.search(entry):
        parts = {number: value for number, _, value in _fields(entry)}
        if names.fullmatch(name := parts.get(1, b"")):
          made[name.decode()] = _feature(parts.get(2, b""))
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
  at, end = 0, len(message)
  while at < end:
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
    if at + size > end:
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
  value = content[at]
  if value < 128:  # the usual case, one byte
    return value, at + 1
  value = 0
  for shift in range(0, 70, 7):
    byte = content[at]
    value, at = value | (byte & 127) << shift, at + 1
    if byte < 128:
      return value, at
  raise ValueError("too long")


def _check_schema(opened: Any) -> None:
  """Refuses a file whose tables are views or virtual: reading them would run code of the file."""
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
