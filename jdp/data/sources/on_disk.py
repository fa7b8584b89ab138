"""Users who stay in their files, each read when it is asked for."""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class UsersOnDisk(Sequence):
  """Users who stay on disk, as a sequence: `users[i]` reads user i, from any thread.

  A slice is another such sequence, and reads nothing: `users[:100]` has the first 100.

  Attributes:
    names: the users' names, in order.
    read: number -> the user's data.

  >>> users = UsersOnDisk(("al", "bo", "cy"), lambda number: 10 * number)
  >>> users[1], users[-1], list(users[1:]), users[1:].names
  (10, 20, [10, 20], ('bo', 'cy'))
  """

  names: Sequence[str]
  read: Callable[[int], Any]

  def __len__(self) -> int:
    """How many users there are."""
    return len(self.names)

  def __getitem__(self, number: Any) -> Any:
    """The data of a user, or the users of a slice.

    Raises:
      IndexError: if there is no such user.
      ValueError: if the user cannot be read any more.
    """
    if isinstance(number, slice):
      chosen = range(len(self))[number]
      return UsersOnDisk(self.names[number], lambda i: self.read(chosen[i]))
    try:
      number = range(len(self))[operator.index(number)]
    except IndexError:
      raise IndexError(f"Expected a number below the {len(self)} users, got another.") from None
    return self.read(number)


@dataclasses.dataclass(frozen=True)
class UserRows:
  """The rows of a table that belong to each user, as runs of consecutive rows: 16 bytes a run.

  Attributes:
    starts: int64 [users + 1]. User i has the runs from starts[i] to starts[i + 1].
    runs: int64 [runs, 2], the first row and the last.
  """

  starts: np.ndarray
  runs: np.ndarray

  def of(self, number: int) -> np.ndarray:
    """The runs of a user, in order, int64 [n, 2]."""
    return self.runs[self.starts[number] : self.starts[number + 1]]


def rows_of_users(users: Any, firsts: Any, lasts: Any, num_users: int) -> UserRows:
  """The rows of each user.

  Args:
    users: the user of each run, int [runs].
    firsts: each run's first row, ascending, int [runs].
    lasts: each run's last row, int [runs].
    num_users: the users' numbers are below it.
  """
  users = np.asarray(users, np.int64)
  order = np.argsort(users, kind="stable")
  starts = np.searchsorted(users[order], np.arange(num_users + 1))
  return UserRows(starts, np.stack([firsts, lasts], axis=1)[order])
