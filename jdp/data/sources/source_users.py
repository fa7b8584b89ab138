"""Users who are read when they are sampled, for data that do not fit in memory."""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.data.clients import LABEL_KINDS, Examples, examples
from jdp.data.packed import identities_of
from jdp.data.sources.reading import Cast, Reader, cast_by_type, in_type, several_shapes

PyTree = Any
_LOOKED_AT = 64  # users, evenly spread, when a source is opened
_ALIGNMENT = 64  # bytes


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SourceUsers:
  """The users of a source, who stay there until they are sampled; see `clients_from_source`.

  Attributes:
    num_users: how many there are.
    max_examples: how many examples every user is padded to, public.
    identities: as in `PackedUsers`.
    seen: examples of some users, without padding, in the shapes and types that all users have.
    reader: reads users by their numbers.
    cast: (inputs, labels) -> `Examples`, with their values checked.
  """

  num_users: int
  max_examples: int
  identities: tuple[np.ndarray, ...]
  seen: Examples
  reader: Reader
  cast: Cast

  def __len__(self) -> int:
    return self.num_users

  def __repr__(self) -> str:
    # JAX quotes this in error messages, so it must hold no data.
    return f"SourceUsers of {len(self)} users"

  @property
  def one_user(self) -> Examples:
    """The shapes of one user's examples, with padding."""
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct((self.max_examples, *x.shape[1:]), x.dtype), self.seen
    )

  @property
  def begun_with(self) -> PyTree:
    """Data that tells this source from others, without reading all of it."""
    return np.int64(len(self)), np.int64(self.max_examples), self.identities, self.seen

  def read(self, numbers: np.ndarray, rows: int) -> Examples:
    """The examples of some users, with leading axes [rows, max_examples].

    Zeros take the place of missing examples and users.

    Args:
      numbers: the users' numbers, int [n].
      rows: at least n.

    Raises:
      ValueError: if the source fails, or returns something that `clients_from_source` does not
        expect. No message names a user: who was read is the sample, which is secret.
    """
    if len(self.reader.source) != self.num_users:
      raise ValueError(
        f"Expected a source of {self.num_users} users, as when it was opened, got "
        f"{len(self.reader.source)}; open it again for a new run."
      )
    users = self.reader.read(numbers)
    counts = np.array([user.rows for user in users], np.int64)
    made = jax.tree.map(
      lambda x: _zeros((rows * self.max_examples, *x.shape[1:]), x.dtype), self.seen
    )
    for own, found in cast_by_type(users, self.cast):
      if {jax.tree.structure(found)} != {jax.tree.structure(made)}:
        raise several_shapes()
      # Where each example goes, among the rows of all users.
      skipped = np.array(own) * self.max_examples - (np.cumsum(counts[own]) - counts[own])
      places = np.arange(counts[own].sum()) + np.repeat(skipped, counts[own])
      jax.tree.map(partial(_put, places), made, found)
    return jax.tree.map(lambda x: x.reshape(rows, self.max_examples, *x.shape[1:]), made)


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

  `jdp.federated.train` takes them in place of users in memory, with the same result, bit for bit.
  It draws the members of a round ahead, and reads them while the round before is computed. Memory
  holds about four samples' users, each padded to `max_examples`.

  A run that is resumed compares the number of users, their names, and the 64 users that are looked
  at here, not all users. If other users have changed, repeated rounds get other noise, and a
  released round is refused if its model differs.

  The reads from a source, and their times, tell who is in the samples. So the guarantee assumes
  that what the source's disk or network sees is secret, like the machine's memory.

  Args:
    source: `len(source)` is the number of users, and `source[i]` gives (inputs, labels) of user i,
      the same every time: lists and the sources of Grain have this form. It is read from other
      threads than this one. A user may have no example. With one thread, the source may reuse the
      memory of its arrays.
    max_examples: a public bound, fixed without looking at the data. Each user keeps its first
      `max_examples` examples.
    num_classes: classes are below it. None: below 2^31.
    label_kind: "classes", "numbers" or "words" (`jdp.data.examples`).
    names: a name for each user, from which its identity is made. None: its number takes the name's
      place.
    num_threads: how many threads read. More than one helps if reads wait for a disk or a network.
      The source must then allow it.

  Raises:
    ValueError: if the source fails, or has no user. Also if none of 64 users, evenly spread, has an
      example, if their examples differ in shape, or a number is refused (`jdp.data.examples`). Also
      if there is not one name for each user, or a number is out of range.

  >>> users = [(np.ones((1, 2)), [0]), ([], []), (np.zeros((3, 2)), [1, 0, 1])]
  >>> clients = clients_from_source(users, max_examples=2)
  >>> len(clients), clients.read(np.array([2, 0]), rows=2).labels.tolist()
  (3, [[1, 0], [0, 0]])
  """
  _validate.one_of(LABEL_KINDS, label_kind=label_kind)
  _validate.in_range(1, 2**31 - 1, max_examples=max_examples)
  _validate.in_range(1, 1024, num_threads=num_threads)
  if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
    raise ValueError(
      "Expected a source with len(source) and source[i], got a "
      f"{type(source).__name__}; give it both."
    )
  num_users = len(source)
  if not 0 < num_users < 2**31:
    raise ValueError(f"Expected a source of 1 to 2^31 - 1 users, got {num_users}.")
  reader = Reader(source, max_examples, label_kind == "numbers", num_threads)
  cast = partial(examples, num_classes=num_classes, label_kind=label_kind)
  numbers = np.unique(np.linspace(0, num_users - 1, _LOOKED_AT, dtype=np.int64))
  found = [own for _, own in cast_by_type(reader.read(numbers), cast)]
  if not found:
    raise ValueError(
      f"Expected an example of one of {len(numbers)} users, evenly spread over the source, got "
      "none; leave users without examples out."
    )
  identities = () if names is None else identities_of(names, num_users)
  return SourceUsers(num_users, max_examples, identities, _joined(found), reader, cast)


def _joined(parts: Sequence[Examples]) -> Examples:
  """Concatenated examples, in one type: float, if some are floats."""
  shapes = {str(jax.tree.map(lambda x: x.shape[1:], part)) for part in parts}
  if len(shapes) > 1:
    raise several_shapes()

  def joined(*arrays):
    dtype = np.result_type(*arrays)
    dtype = np.dtype(np.float32) if dtype.kind == "f" else dtype
    return np.concatenate([in_type(x, dtype) for x in arrays])

  return jax.tree.map(joined, *parts)


def _put(places: np.ndarray, made: np.ndarray, found: np.ndarray) -> None:
  """Writes what was found to its places."""
  if found.shape[1:] != made.shape[1:]:
    raise several_shapes()
  made[places] = in_type(found, made.dtype)


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  """Zeros that begin at a multiple of 64 bytes: JAX takes them on a CPU without a copy."""
  size = math.prod(shape) * dtype.itemsize
  whole = np.zeros(size + _ALIGNMENT, np.uint8)
  begin = -whole.ctypes.data % _ALIGNMENT
  return whole[begin : begin + size].view(dtype).reshape(shape)
