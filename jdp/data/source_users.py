"""Users who are read when they are sampled, as all of them do not fit in memory."""

import concurrent.futures
import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.data.clients import LABEL_KINDS, Examples, examples
from jdp.data.packed import identities_of

PyTree = Any
_LOOKED_AT = 64  # users, evenly spread, when a source is opened
_TWO_ARRAYS = jax.tree.structure((0, 0))
_ALIGNMENT = 64  # bytes


class _User(NamedTuple):
  """What a source has of a user: arrays of so many rows, and how (inputs, labels) hold them."""

  rows: int
  arrays: list[np.ndarray]
  structure: Any


class Source(Protocol):
  """Where users are read, in any order and again and again: a list has this form."""

  def __len__(self) -> int:
    """The number of users, public."""

  def __getitem__(self, number: int, /) -> Any:
    """(inputs, labels) of a user, each with a row for every example."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SourceUsers:
  """The users of a source, who stay there until they are sampled; see `clients_from_source`.

  Attributes:
    source: gives (inputs, labels) of a user by its number.
    max_examples: how many examples every user is padded to, public.
    identities: as in `PackedUsers`.
    seen: examples of some users, without padding, in the shapes and types of all.
    to_examples: (inputs, labels) -> `Examples`, with their values checked.
    num_threads: that read a sample's users.
  """

  source: Source
  max_examples: int
  identities: tuple[np.ndarray, ...]
  seen: Examples
  to_examples: partial[Examples]
  num_threads: int

  def __len__(self) -> int:
    return len(self.source)

  def __repr__(self) -> str:
    # Where arrays are expected, JAX's message has this: no data may be in it.
    return f"SourceUsers of {len(self)} users"

  @property
  def one_user(self) -> Examples:
    """The shapes of one user's examples, with padding."""
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct((self.max_examples, *x.shape[1:]), x.dtype), self.seen
    )

  @property
  def begun_with(self) -> PyTree:
    """What tells this source from another without reading all of it."""
    return np.int64(len(self)), np.int64(self.max_examples), self.identities, self.seen

  def read(self, numbers: np.ndarray, rows: int) -> Examples:
    """The examples of some users, with leading axes [rows, max_examples].

    Zeros take the place of missing examples and users.

    Args:
      numbers: of the users, int [n].
      rows: at least n.

    Raises:
      ValueError: if the source fails, or gives what `clients_from_source` does not expect. No
        message names a user: who was read is the sample, which is secret.
    """
    users = _read(self.source, numbers, self.max_examples, self.num_threads)
    counts = np.array([user.rows for user in users], np.int64)
    # Where an example goes, among the rows of all users.
    skipped = np.arange(len(users)) * self.max_examples - (np.cumsum(counts) - counts)
    places = np.arange(counts.sum()) + np.repeat(skipped, counts)

    def padded(like, values):
      made = _zeros((rows * self.max_examples, *like.shape[1:]), like.dtype)
      made[places] = values
      return made.reshape(rows, self.max_examples, *like.shape[1:])

    return jax.tree.map(padded, self.seen, self._joined(users))

  def _joined(self, users: Sequence[_User]) -> Examples:
    """The examples of users, one user after the other."""
    found = [user for user in users if user.rows]
    none = jax.tree.map(lambda x: x[:0], self.seen)
    joined = self.to_examples(*_concatenated(found)) if found else none
    (own, structure), (like, expected) = map(jax.tree.flatten, (joined, none))
    if (structure, [x.shape[1:] for x in own]) != (expected, [x.shape[1:] for x in like]):
      raise _of_several("shapes")
    if [x.dtype for x in own] != [x.dtype for x in like]:
      raise _of_several("types")
    return joined


@checked
def clients_from_source(
  source: Any,
  *,
  max_examples: int,
  num_classes: int | None = None,
  label_kind: str = "classes",
  names: Sequence[object] | None = None,
  num_threads: int = 1,
) -> SourceUsers:
  """Users who are read when they are in a sample, for more data than memory holds.

  `jdp.federated.train` takes them in the place of users in memory, with the same result, bit for
  bit. It draws the members of a round ahead, and reads them while the round before is computed.
  Memory holds at most three samples' users, each padded to `max_examples`.

  What is read from a source, and when, tells who is in the samples. So the guarantee takes as
  secret what the source's disk or network sees, as it does the memory of the machine.

  Args:
    source: `len(source)` is the number of users, and `source[i]` gives (inputs, labels) of user i,
      the same whenever it is asked: a list has this form, and so have the sources of Grain. It is
      read from other threads than this one. A user may have no example.
    max_examples: a public bound, fixed without a look at the data. Each user has so many of its
      examples, the first ones.
    num_classes: classes are below it. None: below 2^31.
    label_kind: "classes", "numbers" or "words" (`jdp.data.examples`).
    names: a name for each user, of which its identity is made. None: its number takes the place.
    num_threads: how many threads read. More than one helps where a read waits for a disk or a
      network; the source must then allow it.

  Raises:
    ValueError: if the source fails, or has no user. Also if none of 64 users, evenly spread, has an
      example, theirs differ in shape, or a number is refused (`jdp.data.examples`). Also if there
      is not one name for each user, or a number is out of range.

  >>> users = [(np.ones((1, 2)), [0]), ([], []), (np.zeros((3, 2)), [1, 0, 1])]
  >>> clients = clients_from_source(users, max_examples=2)
  >>> len(clients), clients.read(np.array([2, 0]), rows=2).labels.tolist()
  (3, [[1, 0], [0, 0]])
  """
  _validate.one_of(LABEL_KINDS, label_kind=label_kind)
  _validate.integer(1, max_examples=max_examples, num_threads=num_threads)
  if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
    raise ValueError(
      f"Expected a source with len(source) and source[i], got a "
      f"{type(source).__name__}; give it both."
    )
  if not 0 < len(source) < 2**31:
    raise ValueError(f"Expected a source of 1 to 2^31 - 1 users, got {len(source)}.")
  numbers = np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT, dtype=np.int64))
  found = [user for user in _read(source, numbers, max_examples, num_threads) if user.rows]
  if not found:
    raise ValueError(
      f"Expected an example of one of {len(numbers)} users, evenly spread over the source, got "
      "none; leave users without examples out."
    )
  to_examples = partial(examples, num_classes=num_classes, label_kind=label_kind)
  identities = () if names is None else identities_of(names, len(source))
  seen = to_examples(*_concatenated(found))
  return SourceUsers(source, max_examples, identities, seen, to_examples, num_threads)


def _read(source: Source, numbers: np.ndarray, max_examples: int, num_threads: int) -> list[_User]:
  """What users have, at most so many rows of each."""
  read = partial(_read_user, source, max_examples)
  if num_threads == 1:
    return list(map(read, numbers.tolist()))
  with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
    return list(pool.map(read, numbers.tolist()))


def _read_user(source: Source, max_examples: int, number: int) -> _User:
  try:
    pair = source[number]
  except Exception as error:  # whatever a user's own code raises
    raise ValueError(
      f"Expected the source to give every user's examples, got {type(error).__name__} from it; "
      "mend it. A run in a workdir goes on when it is started again."
    ) from error
  if not isinstance(pair, tuple | list) or len(pair) != 2:
    raise ValueError(
      f"Expected (inputs, labels) of every user from the source, got {type(pair).__name__}; "
      "give both."
    )
  if all(isinstance(part, np.ndarray | list) for part in pair):  # most, and for them it is faster
    leaves, structure = list(pair), _TWO_ARRAYS
  else:
    leaves, structure = jax.tree.flatten(tuple(pair), is_leaf=_is_list)
  arrays = list(map(np.asarray, leaves))
  lengths = {x.shape[:1] for x in arrays}
  if len(lengths) != 1 or () in lengths:
    raise ValueError(
      "Expected inputs and labels with a row for each example of a user from the source, got "
      "arrays of several lengths; mend it."
    )
  return _User(len(arrays[0][:max_examples]), [x[:max_examples] for x in arrays], structure)


def _is_list(value: Any) -> bool:
  """A list of numbers is an array, and no pytree."""
  return isinstance(value, list)


def _concatenated(users: Sequence[_User]) -> tuple[np.ndarray, PyTree]:
  """(inputs, labels) of users who have examples, one user after the other."""
  first = users[0]
  if len({user.structure for user in users}) > 1:
    raise _of_several("shapes")
  parts = list(zip(*(user.arrays for user in users), strict=True))
  if any(len({x.shape[1:] for x in part}) > 1 for part in parts):
    raise _of_several("shapes")
  return jax.tree.unflatten(first.structure, list(map(np.concatenate, parts)))


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  """Zeros that begin at a multiple of 64 bytes: JAX takes them on a CPU without a copy."""
  size = math.prod(shape) * dtype.itemsize
  whole = np.zeros(size + _ALIGNMENT, np.uint8)
  begin = -whole.ctypes.data % _ALIGNMENT
  return whole[begin : begin + size].view(dtype).reshape(shape)


def _of_several(what: str) -> ValueError:
  return ValueError(
    f"Expected examples of one shape and type from the source, got several {what}; make those of "
    "all users alike."
  )
