"""FEMNIST and StackOverflow, read from small files in their distributed formats, or refused."""

import gzip
import json
import sqlite3
import struct
import traceback

import numpy as np
import pytest

from jdp.data import femnist, stackoverflow
from jdp.data.federated_sets.tff import parse_example

SECRET = "wilhelmina"
IMAGES = np.round(np.random.default_rng(0).random((5, 28, 28)), 3).astype(np.float32)
WRITERS = {"f0_1": [0, 3], "f0_2": [1, 2, 4]}  # each writer's images
CLASSES = [9, 61, 35, 0, 4]


def leaf(writers=WRITERS):
  data = {
    name: {"x": IMAGES[own].reshape(-1, 784).tolist(), "y": [CLASSES[i] for i in own]}
    for name, own in writers.items()
  }
  counts = [len(own) for own in writers.values()]
  return {"users": list(writers), "num_samples": counts, "user_data": data}


def field(number, content):
  """A field of a protocol buffer, with a length in one or two bytes."""
  size = len(content)
  length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
  return bytes([number << 3 | 2]) + length + content


def example(**features):
  """A serialized tf.train.Example: bytes, floats or whole numbers by name."""
  entries = b""
  for name, values in features.items():
    if isinstance(values, bytes):
      feature = field(1, field(1, values))
    elif isinstance(values[0], float):
      feature = field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
    else:
      feature = field(3, b"".join(bytes([1 << 3, value]) for value in values))  # not packed
    entries += field(1, field(1, name.encode()) + field(2, feature))
  return field(1, entries)


def write_sqlite(path, splits, view=False):
  """A file of TensorFlow Federated: split -> user -> serialized examples."""
  opened = sqlite3.connect(path)
  opened.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INT)")
  opened.execute(
    "CREATE TABLE rows (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
  )
  for split, users in splits.items():
    for user, rows in users.items():
      opened.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (user, split, len(rows)))
      opened.executemany("INSERT INTO rows VALUES (?, ?, ?)", [(split, user, row) for row in rows])
  if view:
    opened.execute("CREATE VIEW examples AS SELECT * FROM rows")
  else:
    opened.execute("ALTER TABLE rows RENAME TO examples")
  opened.commit()
  opened.close()
  return path


def written(own):
  return [example(pixels=IMAGES[i].ravel().tolist(), label=[CLASSES[i]]) for i in own]


def test_packed_numbers_are_parsed_too():
  """As protocol buffers pack them: -1 in ten bytes, and 300 in two."""
  numbers = b"\xff" * 9 + b"\x01" + b"\xac\x02"
  entry = field(1, b"a") + field(2, field(3, field(1, numbers)))
  assert parse_example(field(1, field(1, entry)))["a"].tolist() == [-1, 300]


@pytest.mark.parametrize("form", ["file", "folder", "split", "gzip", "sqlite"])
def test_writers_have_their_images_in_every_format(tmp_path, form):
  if form == "sqlite":
    others = {"f0_1": written([2])}
    users = {name: written(own) for name, own in WRITERS.items()}
    path = write_sqlite(tmp_path / "emnist.sqlite", {"all_train": users, "all_test": others})
  elif form == "split":
    (tmp_path / "train").mkdir()
    path = tmp_path
    (path / "train/all_data_0.json").write_text(json.dumps(leaf()))
  elif form == "folder":
    path = tmp_path
    for number, name in enumerate(WRITERS):
      one = json.dumps(leaf({name: WRITERS[name]}), indent=1)
      (path / f"all_data_{number}.json").write_text(one)
  else:
    path = tmp_path / ("data.json.gz" if form == "gzip" else "data.json")
    content = json.dumps(leaf()).encode()
    path.write_bytes(gzip.compress(content) if form == "gzip" else content)
  clients = femnist(path)
  assert clients.counts.tolist() == [2, 3]
  for number, own in enumerate(WRITERS.values()):
    user = clients.user(number)
    np.testing.assert_array_equal(user.inputs[: len(own)], IMAGES[own])
    assert user.labels[: len(own)].tolist() == [CLASSES[i] for i in own]
  assert femnist(path, max_users=1).counts.tolist() == [2]
  if form == "sqlite":
    assert femnist(path, split="test").counts.tolist() == [1]
  else:
    assert femnist(path, digits_only=True).examples.labels[:3].tolist() == [9, 0, 4]


def test_users_have_their_sentences(tmp_path):
  rows = {user: [example(tokens=text, score=[3]) for text in texts] for user, texts in (
    ("1", [b"a sentence .", b"another one"]), ("2", ["caf\u00e9".encode()]),
  )}  # fmt: skip
  path = write_sqlite(tmp_path / "stackoverflow.sqlite", {"train": rows, "heldout": {}})
  users = stackoverflow(path)
  assert [user.user for user in users] == ["1", "2"]
  assert [user.text for user in users] == [("a sentence .", "another one"), ("café",)]
  assert len(stackoverflow(path, max_users=1)) == 1
  with pytest.raises(ValueError, match="got no user of the split 'heldout'"):
    stackoverflow(path, split="heldout")


WHOLE = json.dumps(leaf())
HOSTILE_LEAF = {
  "empty": "",
  "text": SECRET,
  "a list": json.dumps([SECRET]),
  "no users": json.dumps({**leaf(), "user_data": {}}),
  "a list of users": json.dumps({**leaf(), "user_data": [SECRET]}),
  "cut": WHOLE[:-40],
  "two objects": WHOLE + WHOLE,
  "text for numbers": json.dumps({"user_data": {SECRET: {"x": [SECRET], "y": [0]}}}),
  "rows of other lengths": json.dumps({"user_data": {SECRET: {"x": [[1], [1, 2]], "y": [0, 1]}}}),
  "fewer labels": json.dumps({"user_data": {SECRET: {"x": [[1], [2]], "y": [0]}}}),
  "deep": '{"user_data": ' + "[" * 10**5,
  "a user twice": WHOLE[:-1] + f', "user_data": {json.dumps(leaf()["user_data"])}}}',
  "other images": json.dumps({"user_data": {SECRET: {"x": [[1, 2]], "y": [0]}}}),
  "another class": json.dumps({"user_data": {SECRET: {"x": [[0] * 784], "y": [62]}}}),
  "NaN": json.dumps({"user_data": {SECRET: {"x": [[float("nan")] * 784], "y": [0]}}}),
  "numbers beyond float64": '{"user_data": {"a": {"x": [1' + "0" * 400 + '], "y": [1]}}}',
}


@pytest.mark.parametrize("name", HOSTILE_LEAF)
def test_hostile_json_is_refused_by_a_sentence(tmp_path, name):
  path = tmp_path / "data.json"
  path.write_text(HOSTILE_LEAF[name])
  assert_refused(path, femnist)


def test_hostile_databases_are_refused_by_a_sentence(tmp_path):
  good = {"all_train": {"a": written([0])}, "train": {"a": [example(tokens=b"a")]}}
  whole = write_sqlite(tmp_path / "whole.sqlite", good).read_bytes()
  contents = {
    "text": SECRET.encode(),
    "no tables": b"SQLite format 3\0" + bytes(4096),
    "cut": whole[:5000],
    "overwritten": whole[:4096] + SECRET.encode() * (len(whole) // 10),
    "compressed": b"\xfd7zXZ\0" + whole,
  }
  for name, content in contents.items():
    path = tmp_path / f"{name}.sqlite"
    path.write_bytes(content)
    assert_refused(path, femnist, stackoverflow)
  rows = {
    "a view": ([], True),
    "no message": ([SECRET.encode()], False),
    "text": ([SECRET], False),
    "a number": ([7], False),
    "empty": ([b""], False),
    "cut short": ([example(tokens=SECRET.encode())[:-3]], False),
    "a length of exabytes": ([b"\x0a" + b"\xff" * 8 + b"\x01"], False),
    "an endless number": ([b"\x0a" + b"\xff" * 30], False),
    "groups": ([b"\x0b\x0c"], False),
    "a number for a message": ([b"\x08\x01"], False),
    "other features": ([example(other=SECRET.encode())], False),
    "Latin-1": ([example(tokens=b"caf\xe9", pixels=[0.5], label=[3])], False),
  }
  for name, (content, view) in rows.items():
    splits = {"all_train": {"a": content}, "train": {"a": content}}
    assert_refused(write_sqlite(tmp_path / f"{name}.db", splits, view), femnist, stackoverflow)


def assert_refused(path, *readers):
  for reader in readers:
    with pytest.raises(ValueError, match=r"^Expected .*[.]$") as error:
      reader(path)
    shown = "".join(traceback.format_exception(error.value))
    assert SECRET not in shown
    assert "During handling" not in shown
    assert "direct cause" not in shown


def test_a_file_is_read_and_never_written(tmp_path):
  path = write_sqlite(tmp_path / "so ?#%.sqlite", {"train": {"a": [example(tokens=b"a")]}})
  before = path.read_bytes()
  path.chmod(0o400)
  assert stackoverflow(path)[0].text == ("a",)
  assert path.read_bytes() == before
  assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("reader", [femnist, stackoverflow])
def test_a_missing_file_and_another_split_are_named(tmp_path, reader):
  with pytest.raises(FileNotFoundError, match=r"put .* there"):
    reader(tmp_path / "nothing")
  with pytest.raises(ValueError, match="Expected split to be one of train"):
    reader(tmp_path / "nothing", split="validation")
