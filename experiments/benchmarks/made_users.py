"""Makes files of users for the benchmark of sources: plain numbers, and StackOverflow's schema."""

import pathlib
import sqlite3
from collections.abc import Iterator

import numpy as np

FEATURES, CLASSES, USERS = 64, 10, 1_000_000
STACKOVERFLOW_USERS = 342_477
EXAMPLE_BYTES = 4 * (FEATURES + 1)
_WORDS, _LONGEST = 10_000, 600


def make_numbers(folder: pathlib.Path) -> None:
  """Users of 4 to 44 examples in a row, each its inputs and its labels; `starts.npy` says where."""
  rng, sizes = np.random.default_rng(0), []
  weights = rng.normal(size=(FEATURES, CLASSES)).astype(np.float32)
  with (folder / "users.bin").open("wb") as file:
    for _ in range(USERS // 10_000):
      own = 4 + rng.binomial(40, 0.32, 10_000)
      rows = rng.standard_normal((int(own.sum()), FEATURES), np.float32)
      labels = np.argmax(rows @ weights, axis=1).astype(np.int32)
      ends = np.cumsum(own)[:-1]
      for user in zip(np.split(rows, ends), np.split(labels, ends), strict=True):
        file.writelines(part.tobytes() for part in user)
      sizes.append(own)
  np.save(folder / "starts.npy", np.concatenate([[0], np.cumsum(np.concatenate(sizes))]))


def make_stackoverflow(folder: pathlib.Path) -> None:
  """Users of 60 sentences on average, in a file with the tables and indexes of the real one."""
  rng = np.random.default_rng(0)
  words = np.array(word_list())[np.minimum(rng.pareto(0.9, 50_000).astype(int), _WORDS - 1)]
  texts = [" ".join(words[at : at + 5 + at % 13]).encode() for at in range(len(words) - 20)]
  messages = [_message(text) for text in texts]
  sizes = 1 + rng.lognormal(np.log(36), 1.0, STACKOVERFLOW_USERS).astype(int)
  sizes = np.minimum(sizes, _LONGEST).tolist()
  names = [f"{number:08d}" for number in range(len(sizes))]

  def rows() -> Iterator[tuple[str, str, bytes]]:
    for name, size in zip(names, sizes, strict=True):
      for place in rng.integers(len(messages), size=size).tolist():
        yield "train", name, messages[place]

  opened = sqlite3.connect(folder / "stackoverflow.sqlite")
  opened.executescript("""
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB);
    CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER);
  """)
  with opened:
    opened.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows())
    of_users = zip(names, sizes, strict=True)
    opened.executemany("INSERT INTO client_metadata VALUES (?, 'train', ?)", of_users)
    opened.execute("CREATE INDEX of_client ON examples (split_name, client_id)")
    opened.execute("CREATE INDEX of_metadata ON client_metadata (client_id)")
  opened.close()


def word_list() -> list[str]:
  """The words of the sentences, the most frequent first."""
  letters = np.random.default_rng(1).integers(97, 123, (_WORDS, 6), np.uint8)
  return [row.tobytes().decode() for row in letters]


def _message(text: bytes) -> bytes:
  """A `tf.train.Example` whose feature "tokens" is this text."""
  feature = _field(1, _field(1, text))
  return _field(1, _field(1, _field(1, b"tokens") + _field(2, feature)))


def _field(number: int, content: bytes) -> bytes:
  """A field of a protocol buffer: tag, length, content."""
  length, size = b"", len(content)
  while size > 127:
    length, size = length + bytes([size & 127 | 128]), size >> 7
  return bytes([number << 3 | 2]) + length + bytes([size]) + content
