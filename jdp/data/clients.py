"""Examples, and how they are divided among users."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jdp import _validate
from jdp._arguments import AnyRows, AnyVector, checked, take
from jdp.data.casts import exact_numbers, float32, whole_numbers

Array = jax.Array | np.ndarray
PyTree = Any
LABEL_KINDS = ("classes", "numbers", "words")


class Examples(NamedTuple):
  """Labelled examples, or those of many users with one more leading axis.

  Attributes:
    inputs: float32 [n, ...]. Text has words, int32 [n, unroll].
    labels: classes, int32 [n]. Text has the words that follow, int32 [n, unroll]. Other losses take
      arrays of any type, or a pytree of them, each with leading axis n.
    mask: float32 [n], 1 for an example, 0 for padding.
  """

  inputs: Array
  labels: Any
  mask: Array


@checked
def examples(
  inputs: AnyRows, labels: Any, num_classes: int | None = None, *, label_kind: str = "classes"
) -> Examples:
  """The `Examples` of inputs and labels, without padding.

  Args:
    inputs: real numbers [n, ...].
    labels: classes are whole numbers [n] of any type. Numbers are any array [n, ...], or a pytree
      of arrays.
    num_classes: classes are below it. None: below 2^31.
    label_kind: "classes"; "numbers", for a regression: floats become float32, whole numbers become
      int32, and booleans stay; or "words": inputs are words and labels are the words that follow,
      whole numbers [n, unroll], which become int32.

  Raises:
    ValueError: if the numbers of inputs and labels differ, or labels have another shape. Also if
      float32 or int32 would change a number by more than rounding: a class that is not whole, an
      input that is not finite.

  >>> examples(np.ones((2, 3)), np.array([0.0, 1.0])).labels
  array([0, 1], dtype=int32)
  >>> examples(np.ones((2, 3)), {"age": [31.5, 40.25]}, label_kind="numbers").labels
  {'age': array([31.5 , 40.25], dtype=float32)}
  """
  _validate.one_of(LABEL_KINDS, label_kind=label_kind)
  if num_classes is not None:
    _validate.integer(1, num_classes=num_classes)
  if np.ndim(inputs) < 1:
    raise ValueError(f"Expected inputs [n, ...], got shape {np.shape(inputs)}.")
  made = _labels(labels, num_classes, label_kind)
  cast = whole_numbers if label_kind == "words" else float32
  lengths = {len(leaf) for leaf in jax.tree.leaves(made)}
  if lengths != {len(inputs)}:
    raise ValueError(
      f"Expected as many inputs as labels, got {len(inputs)} and "
      f"{', '.join(map(str, sorted(lengths))) or 'none'}."
    )
  return Examples(cast("inputs", inputs), made, np.ones(len(inputs), np.float32))


def _labels(labels: PyTree, num_classes: int | None, label_kind: str) -> PyTree:
  """The labels as arrays, cast so that they keep their meaning."""
  if label_kind == "classes":
    return whole_numbers("labels", take(AnyVector, "labels", labels), below=num_classes)
  if label_kind == "words":
    return whole_numbers("labels", take(AnyRows, "labels", labels), below=num_classes)
  if num_classes is not None:
    raise ValueError(
      f"Expected num_classes without label_kind='numbers', got {num_classes}; leave it out."
    )
  # A list of numbers counts as an array here, not as a pytree.
  return jax.tree.map(
    lambda leaf: exact_numbers("labels", take(AnyRows, "labels", leaf)),
    labels,
    is_leaf=lambda x: isinstance(x, list),
  )


@checked
def group(
  data: Examples, users: Sequence[np.ndarray], *, max_examples: int | None = None
) -> Examples:
  """The examples of each user, in the same number of rows for all.

  The number of rows shapes every program, so it is public: no user's own size decides it.

  Args:
    data: n examples.
    users: for each user, the numbers of its examples, int [n_user].
    max_examples: a public bound, fixed without looking at the data. Each user keeps its first
      `max_examples` examples, and is padded to that number. None: all users have the same number.

  Returns:
    `Examples` with leading axes [len(users), max_examples].

  Raises:
    ValueError: if there is no example, or a user has one that is not in the data. Also if the
      data's parts differ in length, max_examples is not positive, or users differ in size and it is
      None.

  >>> data = examples(np.arange(3.0)[:, None], np.array([0, 1, 2]))
  >>> group(data, [np.array([2]), np.array([0, 1])], max_examples=2).labels.tolist()
  [[2, 0], [0, 1]]
  """
  users = checked_users(users, data, max_examples)
  if max_examples is None and len(set(map(len, users))) > 1:
    raise ValueError(
      "Expected max_examples with users of different sizes, got none: the largest user would shape "
      "the programs of all; declare a bound, or use jdp.data.pack."
    )
  rows = len(users[0]) if max_examples is None else max_examples
  indices = np.zeros((len(users), rows), np.int64)
  mask = np.zeros((len(users), rows), np.float32)
  for row, (user, count) in enumerate(zip(users, map(len, users), strict=True)):
    indices[row, :count], mask[row, :count] = user, 1

  def grouped(x):
    rows = np.asarray(x)[indices]
    rows[mask == 0] = 0  # padding's index 0 put another user's example there
    return rows

  inputs, labels = jax.tree.map(grouped, (data.inputs, data.labels))
  return Examples(inputs, labels, mask)


def checked_users(
  users: Sequence[np.ndarray], data: Examples, max_examples: int | None
) -> list[np.ndarray]:
  """The numbers of each user's examples, int [n_user], checked: the first `max_examples` of them.

  Raises:
    ValueError: if no user has an example, or a number is not that of an example (NumPy would take
      -1 for the last one). Also if the data's parts differ in length, or max_examples is not
      positive.
  """
  if max_examples is not None:
    _validate.in_range(1, 2**31 - 1, max_examples=max_examples)
  lengths = [len(part) for part in jax.tree.leaves(tuple(data))]
  if len(set(lengths)) > 1:
    raise ValueError(
      f"Expected as many inputs as labels and mask elements, got {lengths}; give all of them."
    )
  if not len(users):
    raise ValueError("Expected at least one user, got none.")
  if not lengths[0]:
    raise ValueError("Expected at least one example in the data, got none; give some.")
  if not any(map(np.size, users)):
    raise ValueError("Expected at least one user with an example, got none; give some.")
  if any(np.asarray(user).dtype == bool for user in users):
    raise ValueError("Expected the numbers of a user's examples, got booleans; use np.flatnonzero.")
  if any(np.ndim(user) != 1 for user in users):
    raise ValueError("Expected users to be arrays of one axis, got others; give example numbers.")
  return [
    whole_numbers("numbers of a user's examples", user, below=lengths[0], dtype=np.int64)[
      :max_examples
    ]
    for user in users
  ]


@checked
def partition_iid(
  rng: np.random.Generator, num_examples: int, examples_per_user: int
) -> list[np.ndarray]:
  """Users of equal size with random examples.

  Examples left over, too few for another user, are left out.

  >>> users = partition_iid(np.random.default_rng(0), 10, 3)  # the tenth is left out
  >>> [len(user) for user in users], len(np.unique(users))
  ([3, 3, 3], 9)
  """
  _validate.in_range(1, 2**31 - 1, num_examples=num_examples)
  _check_size(num_examples, examples_per_user)
  num_users = num_examples // examples_per_user
  return list(rng.permutation(num_examples)[: num_users * examples_per_user].reshape(num_users, -1))


@checked
def partition_by_label(
  rng: np.random.Generator, labels: AnyVector, examples_per_user: int, *, labels_per_user: int = 2
) -> list[np.ndarray]:
  """Non-IID users of equal size, each with few labels.

  The examples are sorted by label and cut into shards, which are dealt out at random. Each user
  gets `labels_per_user` shards, and so about that many labels (McMahan et al., arXiv 1602.05629,
  Section 3).

  >>> labels = np.arange(100) % 10
  >>> users = partition_by_label(np.random.default_rng(0), labels, 20)
  >>> [len(np.unique(labels[user])) for user in users]
  [2, 2, 2, 2, 2]
  """
  _check_size(len(labels), examples_per_user)
  _validate.integer(1, labels_per_user=labels_per_user)
  if examples_per_user % labels_per_user:
    raise ValueError(
      f"Expected examples_per_user to be a multiple of {labels_per_user} labels per user, got "
      f"{examples_per_user}."
    )
  shard = examples_per_user // labels_per_user
  num_shards = len(labels) // examples_per_user * labels_per_user
  # A random order first: the stable sort keeps it within each label, so shards are random.
  by_label = np.argsort(rng.permutation(len(labels)), kind="stable")
  by_label = by_label[_sorted("labels", labels[by_label])][: num_shards * shard].reshape(
    num_shards, shard
  )
  return list(by_label[rng.permutation(num_shards)].reshape(-1, examples_per_user))


@checked
def partition_dirichlet(
  rng: np.random.Generator, labels: np.ndarray, num_users: int, concentration: float
) -> list[np.ndarray]:
  """Non-IID users whose shares of each label follow a symmetric Dirichlet distribution.

  Each label's examples are dealt out by shares of their own (arXiv 1909.06335 draws a distribution
  of labels for each user instead). So users also differ in size. A user without any example is left
  out.

  Args:
    rng: deals the examples.
    labels: [n].
    num_users: from 1 to 10^7.
    concentration: > 0. Small: few users have a given label. Large: users are alike.

  >>> users = partition_dirichlet(np.random.default_rng(0), np.arange(100) % 5, 4, 0.5)
  >>> len(users), sum(map(len, users))
  (4, 100)
  """
  if not np.size(labels):
    raise ValueError("Expected labels of at least one example, got none.")
  _validate.in_range(1, 10**7, num_users=num_users)
  _validate.positive(concentration=concentration)
  users: list[list[np.ndarray]] = [[] for _ in range(num_users)]
  for label in np.unique(labels):
    own = rng.permutation(np.flatnonzero(labels == label))
    shares = np.cumsum(rng.dirichlet(np.full(num_users, concentration)))
    parts = np.split(own, np.round(shares[:-1] * len(own)).astype(np.int64))
    for user, part in zip(users, parts, strict=True):
      user.append(part)
  return [user for user in map(np.concatenate, users) if len(user)]


@checked
def partition_by_group(groups: AnyVector, *, num_examples: int | None = None) -> list[np.ndarray]:
  """One user for each distinct value of `groups` (a writer).

  Args:
    groups: the group of each example, [n].
    num_examples: the number of examples. Give it if the groups come from another file than the
      examples: examples beyond the last group would be left out silently. None: not compared.

  Raises:
    ValueError: if there is no example, or a group is NaN, which names no user. Also if there is not
      one group for each example.

  >>> partition_by_group(np.array(["ann", "bob", "ann"]), num_examples=3)
  [array([0, 2]), array([1])]
  """
  if np.ndim(groups) != 1 or num_examples not in (None, len(groups)):
    raise ValueError(
      f"Expected a group for each of {num_examples or 'n'} examples, got shape {np.shape(groups)}."
    )
  if not len(groups):
    raise ValueError("Expected the group of at least one example, got none; give some.")
  if np.any(groups != groups):  # NaN alone differs from itself; groups may be strings
    raise ValueError("Expected a group for each example, got NaN; leave those examples out.")
  order = _sorted("groups", groups)
  return np.split(order, np.flatnonzero(groups[order][1:] != groups[order][:-1]) + 1)


def _sorted(name: str, values: np.ndarray) -> np.ndarray:
  """The order that sorts the values, int [n]. Equal values keep their order."""
  try:
    return np.argsort(values, kind="stable")
  except TypeError:
    raise ValueError(f"Expected {name} of one type, got several; name them by strings.") from None


def _check_size(num_examples: int, examples_per_user: int) -> None:
  """Refuses users of fewer than one example, or of more than there are."""
  _validate.integer(1, examples_per_user=examples_per_user)
  if examples_per_user > num_examples:
    raise ValueError(f"Expected at most {num_examples} examples per user, got {examples_per_user}.")
