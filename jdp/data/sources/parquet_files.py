"""Parquet files with a row for each example and a column of users."""

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jdp._arguments import checked
from jdp.data.files import first_file, open_data
from jdp.data.sources.on_disk import UserRows, UsersOnDisk, rows_of_users


class _Group(NamedTuple):
  """A row group: its file, the file's metadata, and its number in the file."""

  path: pathlib.Path
  metadata: Any
  number: int


class _Index(NamedTuple):
  """Where users are.

  Attributes:
    names: the users' names, in order.
    rows: their rows, numbered over all row groups.
    groups: the row groups.
    firsts: the number of each group's first row, int [groups].
  """

  names: tuple[str, ...]
  rows: UserRows
  groups: list[_Group]
  firsts: np.ndarray


@checked
def parquet_source(
  path: str | pathlib.Path, *, user: str, label: str, inputs: str | Sequence[str]
) -> UsersOnDisk:
  """Users of Parquet files with a row for each example, each read when it is asked for.

  The column of users is read once, to find their rows. Every run of a user's rows then takes 16
  bytes of memory. To read a user, the columns of labels and inputs are read whole in every row
  group that has its rows. So files are best sorted by user, in row groups of some thousand rows
  (`row_group_size` of pyarrow's writer): then a user is in one or two of them. If they are not
  sorted, reading one user may read all files.

  Args:
    path: a Parquet file, or a folder of files *.parquet.
    user: the column with each example's user: strings or whole numbers.
    label: the column to predict.
    inputs: one column of numbers or of lists of one shape, or the names of several columns of
      numbers.

  Returns:
    The users in the order of their names, each as (inputs, labels) with a row for each example.

  Raises:
    FileNotFoundError: if there is no such file.
    ImportError: if pyarrow is not installed (the extra `parquet`).
    ValueError: if a file has another format, lacks a column, or has a row without a user. Reading a
      user raises it as well, and also if a number is missing or lists differ in length.

  >>> import tempfile, pyarrow.parquet
  >>> table = {"who": ["al", "bo", "al"], "age": [20, 40, 10], "label": [0, 1, 2]}
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   pyarrow.parquet.write_table(pyarrow.table(table), f"{folder}/people.parquet")
  ...   users = parquet_source(folder, user="who", label="label", inputs=["age"])
  ...   users.names, [part.tolist() for part in users[0]]
  (('al', 'bo'), [[[20], [10]], [0, 2]])
  """
  try:
    import pyarrow.parquet  # noqa: F401  # an optional dependency
  except ModuleNotFoundError as error:
    raise ImportError(
      "Expected pyarrow for Parquet files, got none; run: pip install 'jdp-fl[parquet]'."
    ) from error
  if not len(inputs):
    raise ValueError("Expected at least one column in inputs, got none; name some.")
  columns = [inputs] if isinstance(inputs, str) else list(inputs)
  index = _index(_files(pathlib.Path(path)), user, (label, *columns))

  def read(number: int) -> tuple[np.ndarray, np.ndarray]:
    parts = [_read(index, *part, [label, *columns]) for part in _parts(index, number)]
    with _refusing(pathlib.Path(path)):
      labels, *found = (np.concatenate(column) for column in zip(*parts, strict=True))
      return found[0] if isinstance(inputs, str) else np.stack(found, axis=1), labels

  return UsersOnDisk(index.names, read)


def _files(path: pathlib.Path) -> list[pathlib.Path]:
  if path.is_dir() and (found := sorted(path.glob("*.parquet"))):
    return found
  missing = f"Expected a Parquet file, or a folder of files *.parquet, at {path}; put it there."
  return [first_file([path], missing)]


def _index(paths: Sequence[pathlib.Path], user: str, others: Sequence[str]) -> _Index:
  """Where the users are in the files."""
  found: dict[Any, int] = {}
  groups: list[_Group] = []
  firsts, owners, starts, lasts, total = [], [], [], [], 0
  for path in paths:
    metadata, of_groups = _users_of_file(path, user, others, found)
    for number, users in enumerate(of_groups):
      begins = np.flatnonzero(np.diff(users, prepend=-1))
      groups.append(_Group(path, metadata, number))
      firsts.append(total)
      owners.append(users[begins])
      starts.append(total + begins)
      total += len(users)
      lasts.append(np.append(starts[-1][1:], total)[: len(begins)] - 1)
  with _refusing(paths[0]):
    ranks, names = _in_order(found)
  owned = ranks[np.concatenate(owners)]
  rows = rows_of_users(owned, np.concatenate(starts), np.concatenate(lasts), len(names))
  return _Index(names, rows, groups, np.array(firsts))


def _users_of_file(
  path: pathlib.Path, user: str, others: Sequence[str], found: dict[Any, int]
) -> tuple[Any, list[np.ndarray]]:
  """(A file's metadata, the number of each row's user for each row group)."""
  numbers: list[np.ndarray] = []
  with _opened(path) as parquet:
    names = parquet.schema_arrow.names
    missing = [name for name in (user, *others) if name not in names]
    for group in range(0 if missing else parquet.num_row_groups):
      numbers.append(_user_numbers(parquet.read_row_group(group, columns=[user])[user], found))
  if missing:
    raise ValueError(
      f"Expected the columns of user, label and inputs in {path}, got none named "
      f"{', '.join(map(repr, missing))}; name others."
    )
  return parquet.metadata, numbers


def _user_numbers(column: Any, found: dict[Any, int]) -> np.ndarray:
  """The number of each row's user, int64 [rows]; users who are not in `found` are added."""
  encoded = column.combine_chunks().dictionary_encode()
  values = encoded.dictionary.to_pylist()
  if encoded.null_count or not all(type(value) in (str, int) for value in values):
    raise ValueError("other users")
  numbers = [found.setdefault(value, len(found)) for value in values]
  return np.array(numbers, np.int64)[encoded.indices.to_numpy()]


def _in_order(found: dict[Any, int]) -> tuple[np.ndarray, tuple[str, ...]]:
  """(Each user's place in the order of names, the names in order)."""
  values = sorted(found)
  ranks = np.empty(len(found), np.int64)
  ranks[[found[value] for value in values]] = np.arange(len(found))
  if not values:
    raise ValueError("no users")
  return ranks, tuple(map(str, values))


def _parts(index: _Index, number: int) -> Iterator[tuple[int, np.ndarray]]:
  """(Number of a row group, a user's rows in it), in order."""
  runs = index.rows.of(number)
  # A run lies within one group.
  of_run = np.searchsorted(index.firsts, runs[:, 0], side="right") - 1
  for group in np.unique(of_run).tolist():
    own = runs[of_run == group] - index.firsts[group]
    yield group, np.concatenate([np.arange(first, last + 1) for first, last in own])


def _read(index: _Index, group: int, rows: np.ndarray, columns: Sequence[str]) -> list[np.ndarray]:
  """The columns of some rows of a row group."""
  path, metadata, number = index.groups[group]
  with _opened(path, metadata) as parquet:
    table = parquet.read_row_group(number, columns=list(dict.fromkeys(columns))).take(rows)
    return [_numbers(table[name].combine_chunks()) for name in columns]


def _numbers(column: Any) -> np.ndarray:
  """A column of numbers [n], or of lists of one shape [n, ...].

  Raises:
    ValueError: if the column is of another kind, or a number is missing.
  """
  import pyarrow as pa
  from pyarrow import compute

  shape = [len(column)]
  while isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
    sizes = compute.unique(compute.list_value_length(column)).to_pylist()
    if len(sizes) != 1 or column.null_count:
      raise ValueError("lists of several lengths")
    shape.append(sizes[0])
    column = column.flatten()
  values = column.to_numpy(zero_copy_only=False)
  if column.null_count or values.dtype.kind not in "biuf":
    raise ValueError("no numbers")
  return values.reshape(shape)


@contextlib.contextmanager
def _opened(path: pathlib.Path, metadata: Any = None) -> Iterator[Any]:
  """A Parquet file, with its metadata if they are known."""
  from pyarrow import parquet

  with open_data(path) as file, _refusing(path):
    yield parquet.ParquetFile(file, metadata=metadata)


@contextlib.contextmanager
def _refusing(path: pathlib.Path) -> Iterator[None]:
  """Turns any error that a damaged file causes into one sentence."""
  import pyarrow as pa

  try:
    yield
  except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, OverflowError):
    raise ValueError(
      f"Expected a Parquet file of users and numbers, without missing values, in {path}, got a "
      "damaged or another one; mend it."
    ) from None
