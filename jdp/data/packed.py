"""Users of unequal size, one after the other in one array.

The array takes memory for the examples alone, not for padding between users.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jdp._arguments import checked
from jdp.data.casts import whole_numbers
from jdp.data.clients import Array, Examples, checked_users


@partial(
  jax.tree_util.register_dataclass,
  data_fields=["examples", "starts", "counts"],
  meta_fields=["width"],
)
@dataclasses.dataclass(frozen=True)
class PackedUsers:
  """The examples of many users, a pytree.

  Attributes:
    examples: those of all users in a row, with `width` rows of padding at the end.
    starts: int32 [users], where each user begins.
    counts: int32 [users], how many examples each user has.
    width: the largest count, static.
  """

  examples: Examples
  starts: Array
  counts: Array
  width: int

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
def pack(data: Examples, users: Sequence[np.ndarray]) -> PackedUsers:
  """The examples of each user, without padding between them.

  In contrast, `jdp.data.group` pads every user to the largest.

  Args:
    data: n examples.
    users: for each user, the numbers of its examples, int [n_user].

  Raises:
    ValueError: if there is no example, or a user has one that is not in the data. Also if all
      together are too many for int32, or the data's parts differ in length.

  >>> from jdp.data import examples
  >>> data = examples(np.arange(3.0)[:, None], np.array([0, 1, 2]))
  >>> packed = pack(data, [np.array([2]), np.array([0, 1])])
  >>> packed.user(0).labels.tolist(), packed.user(0).mask.tolist(), packed.user(1).labels.tolist()
  ([2, 0], [1.0, 0.0], [0, 1])
  """
  users = checked_users(users, data)
  counts = np.array([len(user) for user in users], np.int32)
  width = int(counts.max())
  ends = whole_numbers(
    "numbers of all users' examples", np.cumsum(counts, dtype=np.int64), below=2**31 - width
  )
  order = np.concatenate(users)

  # `width` rows at the end keep the last user's slice in place: JAX would shift one that overruns.
  def padded(x):
    x = np.asarray(x)
    return np.concatenate([x[order], np.zeros((width, *x.shape[1:]), x.dtype)])

  return PackedUsers(jax.tree.map(padded, data), ends - counts, counts, width)
