"""Users' data from its usual forms: arrays, pairs, tables."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from jdp._arguments import AnyRows, AnyVector, checked
from jdp.data.clients import Examples, examples, partition_by_group
from jdp.data.packed import PackedUsers, pack


@checked
def clients_from_arrays(
  inputs: AnyRows,
  labels: Any,
  users: AnyVector,
  *,
  num_classes: int | None = None,
  label_kind: str = "classes",
  max_examples: int | None = None,
) -> PackedUsers:
  """Users from arrays with a row for each example.

  Args:
    inputs: real numbers [n, ...].
    labels: classes [n], or numbers (`jdp.data.examples`).
    users: the user of each example, [n], numbers or strings.
    num_classes: classes are below it. None: below 2^31.
    label_kind: "classes", or "numbers" for a regression.
    max_examples: a public bound on a user's examples; the first ones are kept (`jdp.data.pack`).
      None: all are kept, and the largest user's size counts as public.

  Returns:
    The users in the order of their names, of unequal sizes, without padding between them. Their
    identities are made from their names.

  Raises:
    ValueError: if there is no example, if the lengths differ, or a number is refused
      (`jdp.data.examples`).

  >>> clients = clients_from_arrays(np.ones((3, 2)), [0, 1, 1], ["bo", "al", "bo"])
  >>> clients.counts.tolist()
  [1, 2]
  """
  users = np.asarray(users)
  if not len(inputs):
    raise ValueError("Expected at least one example, got inputs without rows; give some.")
  data = examples(np.asarray(inputs), labels, num_classes, label_kind=label_kind)
  if users.shape != data.mask.shape:
    raise ValueError(
      f"Expected a user for each of {len(data.mask)} examples, got users of shape {users.shape}."
    )
  numbers = partition_by_group(users)
  names = users[[own[0] for own in numbers]].tolist()
  return pack(data, numbers, names=names, max_examples=max_examples)


@checked
def clients_from_pairs(
  pairs: Iterable[Any],
  *,
  num_classes: int | None = None,
  label_kind: str = "classes",
  names: Sequence[object] | None = None,
  max_examples: int | None = None,
) -> PackedUsers:
  """Users from one pair (inputs, labels) for each user, in this order.

  A user may have no example, such as ([], []). It counts in the population, and adds nothing to a
  sum. `num_classes` and `label_kind` are those of `jdp.data.examples`, `names` and `max_examples`
  those of `jdp.data.pack`.

  Raises:
    ValueError: if no user has an example, if users' examples differ in shape, or a number is
      refused (`jdp.data.examples`, `jdp.data.pack`).

  >>> clients = clients_from_pairs([(np.ones((1, 2)), [0]), (np.ones((2, 2)), [1, 1])])
  >>> clients.counts.tolist()
  [1, 2]
  """
  pairs = list(pairs)
  if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
    raise ValueError("Expected pairs of (inputs, labels), got others; give one for each user.")
  users = [examples(np.asarray(x), y, num_classes, label_kind=label_kind) for x, y in pairs]
  if not any(len(user.mask) for user in users):
    raise ValueError("Expected at least one user with an example in pairs, got none.")
  ends = np.cumsum([len(user.mask) for user in users])
  # Users without examples have neither a shape nor a type.
  data = _joined([user for user in users if len(user.mask)])
  numbers = np.split(np.arange(ends[-1]), ends[:-1])
  return pack(data, numbers, names=names, max_examples=max_examples)


@checked
def clients_from_table(
  table: Any,
  *,
  user: str,
  label: str,
  inputs: str | Sequence[str],
  num_classes: int | None = None,
  label_kind: str = "classes",
  max_examples: int | None = None,
) -> PackedUsers:
  """Users from a table with a row for each example.

  Args:
    table: anything whose columns are `table[name]`: a pandas data frame, a table of `datasets`, a
      dict of arrays.
    user: the column with each example's user.
    label: the column of classes or numbers to predict.
    inputs: one column of arrays, or the names of several columns of numbers.
    num_classes: classes are below it. None: below 2^31.
    label_kind: "classes", or "numbers" for a regression.
    max_examples: see `clients_from_arrays`.

  Raises:
    ValueError: as for `clients_from_arrays`, and if the table lacks a column or has no rows.

  >>> table = {"id": [7, 3, 7], "age": [0.2, 0.4, 0.1], "clicks": [1, 0, 2], "bought": [0, 1, 1]}
  >>> clients = clients_from_table(table, user="id", label="bought", inputs=["age", "clicks"])
  >>> clients.examples.inputs.shape[1:], clients.counts.tolist()
  ((2,), [1, 2])
  """

  def column(name: str) -> np.ndarray:
    missing = f"Expected a column {name!r} in the table, got none of that name."
    # A table of `datasets` reads columns lazily, so a missing one would only fail later.
    names = getattr(table, "column_names", None)
    if names is not None and name not in names:
      raise ValueError(missing)
    try:
      values = np.asarray(table[name])
    except (KeyError, TypeError, IndexError):
      raise ValueError(missing) from None
    if not values.ndim:
      raise ValueError(
        f"Expected a column {name!r} of values, got a {type(table[name]).__name__}; read the table "
        "into memory."
      )
    return values

  if not len(column(user)):
    raise ValueError("Expected a row for each example in the table, got no rows; give some.")
  if not len(inputs):
    raise ValueError("Expected at least one column in inputs, got none; name some.")
  if isinstance(inputs, str):
    rows = np.stack([np.asarray(row) for row in column(inputs)])
  else:
    rows = np.stack([column(name) for name in inputs], axis=1)
  return clients_from_arrays(
    rows,
    column(label),
    column(user),
    num_classes=num_classes,
    label_kind=label_kind,
    max_examples=max_examples,
  )


def _joined(users: Sequence[Examples]) -> Examples:
  """The examples of several users, one user after the other."""
  shapes = {str(jax.tree.map(lambda leaf: leaf.shape[1:], user[:2])) for user in users}
  if len(shapes) > 1:
    raise ValueError(
      "Expected examples of one shape in all pairs, got inputs and labels of shapes "
      f"{' and '.join(sorted(shapes))}; make them alike."
    )
  return jax.tree.map(lambda *parts: np.concatenate(parts), *users)
