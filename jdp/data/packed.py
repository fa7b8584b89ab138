"""Users of unequal size, one after the other in one array.

The array takes memory for the examples alone, not for padding between users.
"""

import dataclasses
import hashlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jdp._arguments import checked
from jdp.data.casts import whole_numbers
from jdp.data.clients import Array, Examples, checked_users


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedUsers:
  """The examples of many users, a pytree.

  Attributes:
    examples: those of all users in a row, with `width` rows of padding at the end.
    starts: int32 [users], where each user begins.
    counts: int32 [users], how many examples each user has.
    width: how many examples a user is padded to, static. It shapes every program, so it is public.
    identities: two words for each user, uint32 [users] each, from which the user's keys are made.
      They stay the same when other users come and go. Empty: a user's row number takes their place.
      Then a neighbour is a data set where one user's examples are gone but its row is kept.
    declared: whether `width` was declared (`max_examples`), static. Otherwise it is the size of the
      largest user, which the guarantee takes as public.
  """

  examples: Examples
  starts: Array
  counts: Array
  width: int = dataclasses.field(metadata={"static": True})
  identities: tuple[Array, ...] = ()
  declared: bool = dataclasses.field(default=False, metadata={"static": True})

  def user(self, number: jax.Array) -> Examples:
    """One user's examples, padded with zeros to `width`.

    No example of the next user remains in the padding.
    """

    def rows(x):
      own = jax.lax.dynamic_slice_in_dim(jnp.asarray(x), self.starts[number], self.width)
      inside = jnp.arange(self.width, dtype=jnp.int32) < self.counts[number]
      return jnp.where(inside.reshape(-1, *[1] * (own.ndim - 1)), own, jnp.zeros((), own.dtype))

    return jax.tree.map(rows, self.examples)


@checked
def pack(
  data: Examples,
  users: Sequence[np.ndarray],
  *,
  names: Sequence[object] | None = None,
  max_examples: int | None = None,
) -> PackedUsers:
  """The examples of each user, without padding between them.

  In contrast, `jdp.data.group` gives every user the same number of rows.

  Args:
    data: n examples.
    users: for each user, the numbers of its examples, int [n_user].
    names: a name for each user, a string or a number, from which its identity is made. None: the
      user's row number takes its place.
    max_examples: a public bound, fixed without looking at the data. Each user keeps its first
      `max_examples` examples, and is padded to that number. None: all are kept, padded to the
      largest user, whose size the guarantee then takes as public.

  Raises:
    ValueError: if there is no example, or a user has one that is not in the data. Also if all
      examples together are too many for int32, the data's parts differ in length, or there is not
      one name for each user. Also if max_examples is not positive.

  >>> from jdp.data import examples
  >>> data = examples(np.arange(3.0)[:, None], np.array([0, 1, 2]))
  >>> packed = pack(data, [np.array([2]), np.array([0, 1])])
  >>> packed.user(0).labels.tolist(), packed.user(0).mask.tolist(), packed.user(1).labels.tolist()
  ([2, 0], [1.0, 0.0], [0, 1])
  """
  users = checked_users(users, data, max_examples)
  counts = np.array([len(user) for user in users], np.int32)
  width = int(counts.max()) if max_examples is None else max_examples
  # A user's slice ends at `start + width`, which must fit in int32 too.
  ends = whole_numbers(
    "numbers of all users' examples", np.cumsum(counts, dtype=np.int64), below=2**31 - width
  )
  order = np.concatenate(users)

  # `width` rows at the end keep the last user's slice in place: JAX would shift a slice that
  # overruns.
  def padded(x):
    x = np.asarray(x)
    return np.concatenate([x[order], np.zeros((width, *x.shape[1:]), x.dtype)])

  return PackedUsers(
    jax.tree.map(padded, data),
    ends - counts,
    counts,
    width,
    () if names is None else identities_of(names, len(users)),
    declared=max_examples is not None,
  )


def identities_of(names: Sequence[object], count: int) -> tuple[np.ndarray, ...]:
  """64 bits of each name's hash, as two words."""
  digests = [
    hashlib.blake2b(str(name).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    for name in names
  ]
  if len(digests) != count or len(set(digests)) != count:
    raise ValueError(
      f"Expected {count} different names, one for each user, got {len(set(digests))} among "
      f"{len(digests)}; name every user once."
    )
  return tuple(np.frombuffer(b"".join(digests), "<u4").astype(np.uint32).reshape(-1, 2).T)
