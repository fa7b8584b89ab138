"""JSON files of the LEAF benchmark (arXiv 1812.01097): {"user_data": {user: {"x": .., "y": ..}}}.

One user at a time becomes arrays. Python's lists of a whole file would take several times as much
memory as the file.
"""

import json
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jdp.data.files import open_data, size_limit

_DECODER = json.JSONDecoder()
_SPACE = " \t\n\r"


class LeafUser(NamedTuple):
  """A user of a LEAF file.

  Attributes:
    user: the user's name.
    inputs: float64 [n, ...].
    labels: float64 [n, ...].
  """

  user: str
  inputs: np.ndarray
  labels: np.ndarray


def read_leaf(paths: list[pathlib.Path]) -> list[LeafUser]:
  """The users of LEAF files, in the files' order.

  Raises:
    ValueError: if a file is no such JSON, or a user is in it twice or in two files. A gzip'd file
      is refused if it is damaged, or holds more than `jdp.data.files.size_limit`.
  """
  users: dict[str, LeafUser] = {}
  for path in paths:
    for user in _users_of_file(path):
      if user.user in users:
        raise ValueError(
          f"Expected every user once in LEAF's files, got one twice, the second time in {path}; "
          "give the files of one split."
        )
      users[user.user] = user
  return list(users.values())


def _users_of_file(path: pathlib.Path) -> list[LeafUser]:
  with open_data(path) as file:
    content = file.read(size_limit(path) + 1)
  found: list[LeafUser] = []

  def user(text: str, name: str, at: int) -> int:
    own, end = _DECODER.raw_decode(text, at)
    found.append(LeafUser(name, *(np.array(own[part], np.float64) for part in ("x", "y"))))
    return end

  def member(text: str, name: str, at: int) -> int:
    if name == "user_data":
      return _walk(text, at, user)
    return _DECODER.raw_decode(text, at)[1]

  try:
    text = content.decode()
    end = _walk(text, _after_space(text, 0), member)
    whole = _after_space(text, end) == len(text)
  except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
    whole = False
  if not (whole and found and all(len(u.inputs) == len(u.labels) > 0 for u in found)):
    raise ValueError(
      f'Expected LEAF\'s {{"user_data": {{user: {{"x": numbers, "y": numbers}}}}}} in {path}, got '
      "something else; fetch it again."
    ) from None
  return found


def _walk(text: str, at: int, each: Callable[[str, str, int], int]) -> int:
  """Calls `each` for every member of the JSON object at a place; gives the place behind it.

  Args:
    text: JSON.
    at: where the object begins.
    each: (text, name, place of the value) -> the place behind the value.

  Raises:
    ValueError: if there is no object.
    IndexError: if the text ends within it.
  """
  mark = "{"
  while text[at] == mark:
    name, at = _DECODER.raw_decode(text, _after_space(text, at + 1))
    at = _after_space(text, at)
    if not isinstance(name, str) or text[at] != ":":
      raise ValueError("no member")
    at = _after_space(text, each(text, name, _after_space(text, at + 1)))
    mark = ","
  if text[at] != "}":
    raise ValueError("no object")
  return at + 1


def _after_space(text: str, at: int) -> int:
  while text[at : at + 1] and text[at] in _SPACE:
    at += 1
  return at
