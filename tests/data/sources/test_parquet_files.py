"""Users of Parquet files, sorted or not: the same as those of the table in memory."""

import concurrent.futures
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from jdp import data
from tests.helpers.refusals import refused

SECRET = "wilhelmina"
USERS = np.array(["bo", "al", "bo", "cy", "bo", "al", SECRET, "bo"])
IMAGES = np.arange(32.0, dtype=np.float32).reshape(8, 2, 2)
NAMES = {"user": "who", "label": "label", "inputs": ["a", "label"]}


def table(order=None, **columns):
  made = {
    "who": USERS,
    "label": np.arange(8),
    "a": np.linspace(0, 1, 8),
    "image": IMAGES.tolist(),
    **columns,
  }
  return pa.table(made).take(np.arange(8) if order is None else order)


def written(path, made, size=3):
  parquet.write_table(made, path, row_group_size=size)
  return path


def assert_same(source, clients):
  assert len(source) == len(clients.counts)
  for number, count in enumerate(clients.counts):
    inputs, labels = source[number]
    user = clients.user(number)
    np.testing.assert_array_equal(inputs.astype(np.float32), user.inputs[:count])
    np.testing.assert_array_equal(labels, user.labels[:count])


@pytest.mark.parametrize("order", [None, np.argsort(USERS, kind="stable")], ids=["any", "sorted"])
@pytest.mark.parametrize("files", [1, 3])
def test_users_are_those_of_the_table_in_memory(tmp_path, order, files):
  made = table(order)
  for number in range(files):
    written(tmp_path / f"{number}.parquet", made[number * 8 // files : (number + 1) * 8 // files])
  source = data.parquet_source(tmp_path if files > 1 else tmp_path / "0.parquet", **NAMES)
  assert source.names == ("al", "bo", "cy", SECRET)
  assert_same(source, data.clients_from_table(made.to_pandas(), **NAMES))


@pytest.mark.parametrize(
  "of", [pa.list_(pa.list_(pa.float32())), pa.list_(pa.list_(pa.float32(), 2), 2)]
)
def test_lists_of_one_shape_are_arrays(tmp_path, of):
  made = table(image=pa.array(IMAGES.tolist(), of), who=[7, 10, 7, 7, 10, 10, 7, 7])
  path = written(tmp_path / "a", made)
  source = data.parquet_source(path, user="who", label="label", inputs="image")
  assert source.names == ("7", "10")  # in the order of numbers
  assert source[0][0].dtype == np.float32
  users = np.asarray(made["who"])
  assert_same(source, data.clients_from_arrays(IMAGES, np.arange(8), users))
  whole = data.parquet_source(path, user="who", label="image", inputs="a")
  np.testing.assert_array_equal(whole[1][1], IMAGES[users == 10])


def test_a_user_is_read_from_its_own_row_groups(tmp_path, monkeypatch):
  made = table(np.argsort(USERS, kind="stable"))
  source = data.parquet_source(written(tmp_path / "a", made), **NAMES)
  read, groups = parquet.ParquetFile.read_row_group, []
  monkeypatch.setattr(
    parquet.ParquetFile,
    "read_row_group",
    lambda self, number, columns: groups.append((number, columns)) or read(self, number, columns),
  )
  assert [len(labels) for _, labels in (source[0], source[1])] == [2, 4]
  assert groups == [(group, ["label", "a"]) for group in (0, 0, 1)]


def test_other_threads_read_users(tmp_path):
  source = data.parquet_source(written(tmp_path / "a", table()), **NAMES)
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(source.__getitem__, [*range(4)] * 25))
  assert [len(labels) for _, labels in found] == [2, 4, 1, 1] * 25


def test_missing_files_columns_and_packages_are_named(tmp_path, monkeypatch):
  with pytest.raises(FileNotFoundError, match="put it there"):
    data.parquet_source(tmp_path, **NAMES)
  path = written(tmp_path / "a", table())
  with pytest.raises(
    ValueError, match=r"columns of user, label and inputs in .*, got none named 'b'"
  ):
    data.parquet_source(path, **{**NAMES, "inputs": "b"})
  with pytest.raises(ValueError, match="at least one column in inputs"):
    data.parquet_source(path, **{**NAMES, "inputs": []})
  monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
  with pytest.raises(ImportError, match="pip install 'jdp-fl\\[parquet\\]'"):
    data.parquet_source(path, **NAMES)


def last_user(path, names=NAMES):
  return data.parquet_source(path, **names)[-1]


@pytest.mark.parametrize(
  ("columns", "inputs"),
  [
    ({"who": [None, *USERS[1:]]}, "a"),
    ({"who": np.linspace(0, 1, 8)}, "a"),
    ({"who": [[SECRET]] * 8}, "a"),
    ({"a": [None] * 8}, "a"),
    ({"a": [SECRET] * 8}, "a"),
    ({"image": [[1.0, 2.0], [3.0]] * 4}, "image"),
    ({"image": [None, *IMAGES.tolist()[1:]]}, "image"),
    ({"image": IMAGES.tolist()}, ["a", "image"]),
  ],
)
def test_other_columns_are_refused_by_a_sentence(tmp_path, columns, inputs):
  made = table(**columns).set_column(0, "who", table(**columns)["who"])
  if "who" not in columns:
    made = made.set_column(0, "who", [["al"] * 8])
  path, names = written(tmp_path / "a", made), {**NAMES, "inputs": inputs}
  assert "without missing values" in refused(last_user, path, names, secret=SECRET)


def test_damaged_files_are_refused_by_a_sentence(tmp_path):
  whole = written(tmp_path / "whole", table()).read_bytes()
  contents = {
    "empty": b"",
    "text": SECRET.encode() * 99,
    "cut": whole[:-20],
    "overwritten": whole[:4] + SECRET.encode() * (len(whole) // 20) + whole[len(whole) // 2 :],
    "no rows": written(tmp_path / "none", table()[:0]).read_bytes(),
  }
  for name, content in contents.items():
    path = tmp_path / name
    path.write_bytes(content)
    assert str(path) in refused(last_user, path, secret=SECRET)


def test_a_user_is_refused_when_its_file_was_cut_after_opening(tmp_path):
  path = written(tmp_path / "a", table())
  source = data.parquet_source(path, **NAMES)
  path.write_bytes(path.read_bytes()[:100])
  with pytest.raises(ValueError, match=r"^Expected a Parquet file .*[.]$"):
    source[0]
