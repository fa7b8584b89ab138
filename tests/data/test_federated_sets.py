"""FEMNIST and StackOverflow, read from small files in their distributed formats, or refused."""

import concurrent.futures
import gzip
import json
import os
import re
import sqlite3
import struct

import numpy as np
import pytest

from jdp.data import femnist, stackoverflow, text_source, text_users
from jdp.data.federated_sets import leaf as leaf_files
from jdp.data.federated_sets.tff import parse_example
from jdp.data.vocabulary import Vocabulary
from tests.helpers.refusals import refused

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


def write_sqlite(path, splits, view=False, indexed=True):
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
    if indexed:
      opened.execute("CREATE INDEX i ON examples (split_name, client_id)")
  opened.commit()
  opened.close()
  return path


def written(own):
  return [example(pixels=IMAGES[i].ravel().tolist(), label=[CLASSES[i]]) for i in own]


def test_packed_numbers_are_parsed_too():
  """As protocol buffers pack them: -1 in ten bytes, and 300 in two."""
  numbers = b"\xff" * 9 + b"\x01" + b"\xac\x02"
  entry = field(1, b"a") + field(2, field(3, field(1, numbers)))
  other = field(1, b"ab") + field(2, b"no feature")
  found = parse_example(field(1, field(1, entry) + field(1, other)), re.compile(b"a"))
  assert {name: values.tolist() for name, values in found.items()} == {"a": [-1, 300]}


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
  writers = femnist(path)
  assert (len(writers), writers.names) == (2, ("f0_1", "f0_2"))
  for (images, classes), own in zip(writers, WRITERS.values(), strict=True):
    np.testing.assert_array_equal(images, IMAGES[own])
    assert classes.tolist() == [CLASSES[i] for i in own]
    assert (images.dtype, classes.dtype) == (np.float32, np.int32)
  if form == "sqlite":
    assert [len(classes) for _, classes in femnist(path, split="test")] == [1]
  else:
    assert [classes.tolist() for _, classes in femnist(path, digits_only=True)] == [[9, 0], [4]]


def test_a_writer_without_digits_is_one_without_examples(tmp_path):
  (tmp_path / "data.json").write_text(json.dumps(leaf({"f0_1": [0], "f0_2": [1]})))
  images, classes = femnist(tmp_path / "data.json", digits_only=True)[1]
  assert (images.shape, classes.shape) == ((0, 28, 28), (0,))


SENTENCES = {"1": [b"a sentence .", b"another one"], "2": ["caf\u00e9 a".encode()], "3": [b"..."]}


def write_stackoverflow(path, **options):
  rows = {
    user: [example(tokens=text, score=[3]) for text in texts] for user, texts in SENTENCES.items()
  }
  test = {"1": [example(tokens=b"later")]}
  return write_sqlite(path, {"train": rows, "heldout": {}, "test": test}, **options)


def test_users_have_their_sentences(tmp_path):
  path = write_stackoverflow(tmp_path / "stackoverflow.sqlite")
  users = stackoverflow(path)
  assert [user.user for user in users] == list(users.names) == ["1", "2", "3"]
  assert [user.text for user in users[:2]] == [("a sentence .", "another one"), ("café a",)]
  assert [user.text for user in stackoverflow(path, split="test")] == [("later",)]
  with pytest.raises(ValueError, match="got no user of the split 'heldout'"):
    stackoverflow(path, split="heldout")


def test_texts_on_disk_become_the_sequences_of_texts_in_memory(tmp_path):
  users = stackoverflow(write_stackoverflow(tmp_path / "stackoverflow.sqlite"))
  lengths = {"tokens_per_user": 6, "unroll": 3}
  source = text_source(Vocabulary(("a", "one")), users, **lengths)
  texts = [user.text for user in users[:2]]
  packed = text_users(Vocabulary(("a", "one")), texts, equal=False, **lengths)
  assert source.names == users.names
  for number, count in enumerate(packed.counts):
    inputs, labels = source[number]
    assert inputs.tolist() == packed.user(number).inputs[:count].tolist()
    assert labels.tolist() == packed.user(number).labels[:count].tolist()
    assert inputs.dtype == labels.dtype == np.int32
  assert [part.shape for part in source[2]] == [(0, 3), (0, 3)]  # it says nothing
  with pytest.raises(ValueError, match="multiple of unroll=4"):
    text_source(Vocabulary(("a",)), users, tokens_per_user=6, unroll=4)


@pytest.mark.parametrize("interleaved", [False, True])
def test_users_of_a_table_without_an_index_are_found(tmp_path, interleaved):
  path = write_stackoverflow(tmp_path / "so.sqlite", indexed=False)
  if interleaved:
    opened = sqlite3.connect(path)
    add = "INSERT INTO examples VALUES ('train', ?, ?)"
    opened.executemany(add, [(user, example(tokens=b"more")) for user in ("2", "nobody", "1", "2")])
    opened.commit()
    opened.close()
  texts = [user.text for user in stackoverflow(path)]
  more = [("more",), ("more", "more"), ()] if interleaved else [()] * 3
  assert texts == [
    tuple(text.decode() for text in own) + added
    for own, added in zip(SENTENCES.values(), more, strict=True)
  ]


def test_other_threads_read_users(tmp_path):
  database = write_stackoverflow(tmp_path / "so.sqlite")
  (tmp_path / "data.json").write_text(json.dumps(leaf()))
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    users, writers = stackoverflow(database), femnist(tmp_path / "data.json")
    assert list(pool.map(users.__getitem__, [0, 1, 2] * 50)) == list(users) * 50
    found = list(pool.map(writers.__getitem__, [0, 1] * 50))
  assert [len(classes) for _, classes in found] == [2, 3] * 50


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_chunks_of_a_file_end_anywhere(tmp_path, monkeypatch, chunk):
  monkeypatch.setattr(leaf_files, "_CHUNK", chunk)
  name = 'say "hi" \\ } \u00e9'
  others = {"note": ["}", {"x": '"'}], "user_data": {name: {"x": [[1.5]], "y": [2]}}}
  path = tmp_path / "data.json"
  path.write_text(json.dumps(others))
  users = leaf_files.leaf_users([path])
  assert (users.names, [part.tolist() for part in users[0]]) == ((name,), [[[1.5]], [2]])


def test_a_user_is_refused_when_its_file_was_cut_after_opening(tmp_path):
  texts = {str(user): [example(tokens=b"word " * 20)] * 9 for user in range(100)}
  database = write_sqlite(tmp_path / "so.sqlite", {"train": texts})
  path = tmp_path / "data.json"
  path.write_text(json.dumps(leaf()))
  for users, file in ((stackoverflow(database), database), (femnist(path), path)):
    assert users[-1]
    os.truncate(file, 5000)
    refused(list, users, secret=SECRET)


WHOLE = json.dumps(leaf())
HOSTILE_LEAF = {
  "empty": "",
  "text": SECRET,
  "a list": json.dumps([SECRET]),
  "no users": json.dumps({**leaf(), "user_data": {}}),
  "brackets that do not match": WHOLE.replace("]}", "}]", 1),
  "too many brackets": WHOLE + "}",
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
  "another type of class": json.dumps({"user_data": {SECRET: {"x": [[0] * 784], "y": [1.5]}}}),
  "beyond float32": json.dumps({"user_data": {SECRET: {"x": [[1e300] * 784], "y": [0]}}}),
  "numbers beyond float64": '{"user_data": {"a": {"x": [1' + "0" * 400 + '], "y": [1]}}}',
}


@pytest.mark.parametrize("name", HOSTILE_LEAF)
def test_hostile_json_is_refused_by_a_sentence(tmp_path, name):
  path = tmp_path / "data.json"
  path.write_text(HOSTILE_LEAF[name])
  refused(femnist, path, secret=SECRET)


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
    for reader in (femnist, stackoverflow):
      refused(reader, path, secret=SECRET)
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
    path = write_sqlite(tmp_path / f"{name}.db", splits, view)
    for reader in (femnist, stackoverflow):
      refused(reader, path, secret=SECRET)


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
