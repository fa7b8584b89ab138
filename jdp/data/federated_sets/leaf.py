"""JSON files of the LEAF benchmark (arXiv 1812.01097): {"user_data": {user: {"x": .., "y": ..}}}.

A file is read once to find where each user's data are. After that, only users that are asked for
are read.
"""

import array
import contextlib
import json
import os
import pathlib
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from jdp.data.files import open_data
from jdp.data.sources.on_disk import UsersOnDisk

# A bracket, a colon, or a string (complete if its second quote is there). Numbers are skipped.
_TOKEN = re.compile(rb'[{}\[\]:"](?:(?<=")(?:[^"\\]++|\\.)*+("?))?', re.DOTALL)
_PARTNERS = {ord("}"): ord("{"), ord("]"): ord("[")}
_CHUNK = 2**20
_LONGEST_STRING = 2**20  # bytes


def leaf_users(paths: list[pathlib.Path]) -> UsersOnDisk:
  """The users of LEAF files, in the files' order, each as (inputs, labels), float64 [n, ...].

  The files stay open. A gzip'd file is decompressed into a temporary file.

  Raises:
    ValueError: if a file is not such JSON, or a user is in it twice or in two files. A gzip'd
      file is refused if it is damaged, or holds more than `jdp.data.files.size_limit`. Reading a
      user raises it as well: its data are only parsed then.
  """
  names: dict[str, None] = {}
  places = array.array("q")  # for each user its file, and where it begins and ends in it
  with contextlib.ExitStack() as opened:
    files = [opened.enter_context(_seekable(path)) for path in paths]
    for number, path in enumerate(paths):
      for name, begin, end in _users_of_file(files[number], path):
        if name in names:
          raise ValueError(
            f"Expected every user once in LEAF's files, got one twice, the second time in {path}; "
            "give the files of one split."
          )
        names[name] = None
        places.extend((number, begin, end))
    kept_open = opened.pop_all()

  def read(user: int) -> tuple[np.ndarray, np.ndarray]:
    number, begin, end = places[3 * user : 3 * user + 3]
    return _read(files[number], begin, end, paths[number])

  weakref.finalize(read, kept_open.close)
  return UsersOnDisk(tuple(names), read)


def _seekable(path: pathlib.Path) -> BinaryIO:
  """The data of a file, or of the gzip'd file decompressed."""
  file = open_data(path)
  if path.suffix != ".gz":
    return file
  with file:
    copy = tempfile.TemporaryFile()  # noqa: SIM115  # is read as long as there are users
    shutil.copyfileobj(file, copy)
  copy.seek(0)
  return copy


def _read(
  file: BinaryIO, begin: int, end: int, path: pathlib.Path
) -> tuple[np.ndarray, np.ndarray]:
  """(inputs, labels) of the user between two places of a file."""
  try:
    # Unlike `seek` and `read`, `pread` may be called by several threads.
    own = json.loads(os.pread(file.fileno(), end - begin, begin))
    inputs, labels = (np.array(own[part], np.float64) for part in ("x", "y"))
    whole = len(inputs) == len(labels) > 0
  except (ValueError, TypeError, LookupError, OverflowError, RecursionError, OSError):
    whole = False
  if not whole:
    raise _refused(path) from None
  return inputs, labels


def _users_of_file(file: BinaryIO, path: pathlib.Path) -> list[tuple[str, int, int]]:
  """(name, begin, end) of each user's data in a file."""
  try:
    found = list(_places(file))
  except (ValueError, IndexError):  # also for damaged UTF-8 and JSON strings
    found = []
  if not found:
    raise _refused(path) from None
  return found


def _places(file: BinaryIO) -> Iterator[tuple[str, int, int]]:
  """The objects that are members of the object "user_data".

  Raises:
    ValueError: if brackets do not match, or there is more than one object.
    IndexError: if there are more closing brackets than opening ones.
  """
  opened = bytearray()  # the brackets that are not closed
  string, member, name, begin = b"", "", "", 0
  whole = False
  for at, token in _tokens(file):
    if whole:
      raise ValueError("more than one object")
    mark = token[0]
    if mark in b"{[":
      opened.append(mark)
      if opened == b"{{{":
        begin = at
    elif mark in b"}]":
      if opened == b"{{{" and member == "user_data":
        yield name, begin, at + 1
      if opened.pop() != _PARTNERS[mark]:
        raise ValueError("brackets that do not match")
      whole = not opened
    elif mark == ord('"'):
      string = token
    elif opened == b"{":  # the token is a colon, here and below
      member = json.loads(string.decode())
    elif opened == b"{{":
      name = json.loads(string.decode())
  if not whole:
    raise ValueError("cut short")


def _tokens(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
  """(place, token) of the brackets, colons and strings of JSON."""
  place, rest = 0, b""
  while chunk := file.read(_CHUNK):
    chunk, rest = rest + chunk, b""
    for found in _TOKEN.finditer(chunk):
      if found[1] == b"":  # the string goes on in the next chunk
        rest = chunk[found.start() :]
        break
      yield place + found.start(), found[0]
    if len(rest) > _LONGEST_STRING:
      raise ValueError("a string too long")
    place += len(chunk) - len(rest)


def _refused(path: pathlib.Path) -> ValueError:
  return ValueError(
    f'Expected LEAF\'s {{"user_data": {{user: {{"x": numbers, "y": numbers}}}}}} in {path}, got '
    "something else; fetch it again."
  )
