"""Users from a source: read as arrays, and cast like users in memory."""

import concurrent.futures
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from jdp.data.casts import float32
from jdp.data.clients import Examples

PyTree = Any
T = TypeVar("T")
Cast = Callable[[np.ndarray, PyTree], Examples]


class Source(Protocol):
  """Users are read from it, in any order and repeatedly. A list has this form."""

  def __len__(self) -> int:
    """The number of users, public."""

  def __getitem__(self, number: int, /) -> Any:
    """(inputs, labels) of a user, each with a row for every example."""


class UserArrays(NamedTuple):
  """What a source holds of a user.

  Attributes:
    rows: the number of examples.
    arrays: the inputs, and the arrays of the labels, copied: a source may reuse its own memory.
    structure: the structure of the labels' pytree.
  """

  rows: int
  arrays: list[np.ndarray]
  structure: Any


class Reader(NamedTuple):
  """How users are read.

  Attributes:
    source: the source of the users.
    max_examples: how many examples of a user are kept.
    label_trees: whether labels may be pytrees. A list is an array in any case.
    num_threads: the number of threads that read.
  """

  source: Source
  max_examples: int
  label_trees: bool
  num_threads: int

  def read(self, numbers: np.ndarray) -> list[UserArrays]:
    """What the source holds of some users.

    Raises:
      ValueError: if it fails, or gives something else. No message names a user, or quotes its data.
    """
    if self.num_threads == 1:
      return self._read_users(numbers)
    parts = np.array_split(numbers, self.num_threads)
    reading = [in_thread(partial(self._read_users, part)) for part in parts]
    return [user for part in reading for user in part.result()]

  def _read_users(self, numbers: np.ndarray) -> list[UserArrays]:
    return list(map(self._read_user, numbers.tolist()))

  def _read_user(self, number: int) -> UserArrays:
    try:
      pair = self.source[number]
    except Exception as error:  # whatever a user's own code raises
      raise _failed(error) from error
    if not isinstance(pair, tuple | list) or len(pair) != 2:
      raise ValueError(
        f"Expected (inputs, labels) of every user from the source, got {type(pair).__name__}; "
        "give both."
      )
    labels, structure = [pair[1]], None
    if self.label_trees:
      labels, structure = jax.tree.flatten(pair[1], is_leaf=lambda x: isinstance(x, list))
    try:
      lengths = {len(x) for x in (pair[0], *labels)}
      arrays = [np.array(x[: self.max_examples]) for x in (pair[0], *labels)]
    except Exception as error:  # lazily read arrays may raise anything; also numbers, ragged lists
      raise _failed(error) from None
    if len(lengths) != 1:
      raise ValueError(
        "Expected inputs and labels with a row for each example of a user from the source, got "
        "arrays of several lengths; mend it."
      )
    return UserArrays(min(lengths.pop(), self.max_examples), arrays, structure)


def in_thread(function: Callable[[], T]) -> concurrent.futures.Future[T]:
  """Calls a function in a thread of its own. The program may end without waiting for it."""
  future: concurrent.futures.Future[T] = concurrent.futures.Future()

  def run() -> None:
    try:
      future.set_result(function())
    except BaseException as error:
      future.set_exception(error)

  threading.Thread(target=run, daemon=True).start()
  return future


def cast_by_type(users: Sequence[UserArrays], cast: Cast) -> Iterator[tuple[list[int], Examples]]:
  """(places of users in the list, their concatenated examples), for users of one type at a time.

  Whether a user is accepted does not depend on who else is read: arrays of several types are never
  joined. A user without examples is left out.

  Raises:
    ValueError: if users differ in shape, or `cast` refuses one.
  """
  groups: dict[Any, list[int]] = {}
  for place, user in enumerate(users):
    if user.rows:
      groups.setdefault(tuple(x.dtype for x in user.arrays), []).append(place)
  for own in groups.values():
    if len({users[place].structure for place in own}) > 1:
      raise several_shapes()
    parts = list(zip(*(users[place].arrays for place in own), strict=True))
    if any(len({x.shape[1:] for x in part}) > 1 for part in parts):
      raise several_shapes()
    inputs, *labels = map(np.concatenate, parts)
    structure = users[own[0]].structure
    whole = labels[0] if structure is None else jax.tree.unflatten(structure, labels)
    yield own, cast(inputs, whole)


def in_type(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
  """Labels in the common type of all users. Whole numbers and booleans become floats where that is
  exact.

  Raises:
    ValueError: if they would change.
  """
  if values.dtype == dtype:
    return values
  if dtype == np.float32:
    return float32("labels", values)
  if dtype == np.int32 and values.dtype == np.bool_:
    return values.astype(dtype)
  raise ValueError(
    f"Expected labels of type {dtype} from the source, as those of the users it was opened with, "
    f"got {values.dtype}; give those of all users in one type."
  )


def several_shapes() -> ValueError:
  """The error for users who differ in shape."""
  return ValueError(
    "Expected examples of one shape from all users of the source, got several shapes; make them "
    "alike."
  )


def _failed(error: Exception) -> ValueError:
  return ValueError(
    f"Expected the source to give every user's examples, got {type(error).__name__} from it; "
    "mend it. A run in a workdir goes on when it is started again."
  )
