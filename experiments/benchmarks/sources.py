"""Users read from files, beside users in memory."""

import itertools
import os
import pathlib
import resource
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence

import flax.linen as nn
import jax
import numpy as np
from matplotlib import pyplot as plt

from experiments.benchmarks import harness
from experiments.benchmarks.harness import Row, benchmark
from jdp import data, models
from jdp.data.vocabulary import Vocabulary
from jdp.federated import dp_fedavg, train
from jdp.queries.base import PyTree

_FEATURES, _CLASSES = 64, 10
_EXAMPLE_BYTES = 4 * (_FEATURES + 1)
_WORDS, _LONGEST = 10_000, 600
_MOST = 32  # examples of a user
_BLOCKS = 6  # of rounds, which are timed
_CLIENTS = {"StackOverflow": 100}  # of such a block


def _plot(rows: Sequence[Row], path: str) -> None:
  """Draws the rate against the number of users."""
  figure, axes = plt.subplots(figsize=(6, 3.5))
  cohorts = sorted({row["cohort"] for row in rows if row["users are"] == "read"})
  for (where, line), (number, cohort) in itertools.product(
    (("in memory", "--"), ("read", "-")), enumerate(cohorts)
  ):
    own = [row for row in rows if (row["users are"], row["cohort"]) == (where, cohort)]
    axes.plot(
      [row["users"] for row in own],
      [row["clients a second"] for row in own],
      line,
      color=f"C{number}",
      marker="o",
      label=f"{where}, {cohort:,} a round",
    )
  axes.set(xscale="log", ylim=(0, None), xlabel="users", ylabel="clients a second")
  axes.legend()
  figure.tight_layout()
  figure.savefig(path, dpi=150)


@benchmark(
  {"users": (200,), "cohorts": (10,), "all_users": 200, "stackoverflow_users": 200}, plot=_plot
)
def sources(
  folder: str = "",
  users: tuple[int, ...] = (1000, 10_000, 100_000, 1_000_000),
  cohorts: tuple[int, ...] = (100, 1000, 10_000),
  in_memory: int = 100_000,
  threads: int = 1,
  all_users: int = 1_000_000,
  stackoverflow_users: int = 342_477,
) -> Iterator[Row]:
  """Rounds whose users are read from a file, beside rounds of users in memory.

  The folder gets files of users where it has none (7 GB): `all_users` of 4 to 44 examples of 64
  numbers, and `stackoverflow_users` in a file of StackOverflow's schema. Without a name it is a
  temporary one. An MLP of 76,810 weights is trained on the first so many `users` by DP-FedAvg, with
  cohorts of so many expected clients, and a small LSTM on StackOverflow's, in a new process for
  each case. At most `in_memory` users are held in memory. So many `threads` read. A row has

  * the seconds from opening to the end of the first round, compiling included;
  * clients a second, in the rounds after it;
  * the peak of resident memory.
  """
  with tempfile.TemporaryDirectory() as temporary:
    where_files_are = pathlib.Path(folder or temporary)
    where_files_are.mkdir(parents=True, exist_ok=True)
    if not (where_files_are / "starts.npy").exists():
      _make_numbers(where_files_are, all_users)
    if not (where_files_are / "stackoverflow.sqlite").exists():
      _make_stackoverflow(where_files_are, stackoverflow_users)
    cases = [
      (where, number, cohort)
      for number, cohort in itertools.product(users, cohorts)
      for where, most in (("in memory", in_memory), ("read", number))
      if cohort <= number / 2 and number <= most
    ]
    for case in [*cases, ("StackOverflow", stackoverflow_users, 100)]:
      arguments = (str(where_files_are), threads, *case)
      found = harness.apart(measured, *arguments, devices=os.cpu_count())
      yield dict(zip(("users are", "users", "cohort"), case, strict=True)) | found


def measured(folder: str, threads: int, where: str, users: int, cohort: int) -> Row:
  """What a run takes whose users are read, or are in memory, in this process."""
  begun = time.perf_counter()
  if where == "StackOverflow":
    clients, loss, params = _stackoverflow(pathlib.Path(folder), users)
  else:
    clients, loss, params = _numbers(pathlib.Path(folder), users, threads if where == "read" else 0)
  block = max(1, _CLIENTS.get(where, 5_000) // cohort)
  algorithm = dp_fedavg(
    loss,
    clients,
    cohort_size=cohort,
    clip_norm=1.0,
    noise_multiplier=1.0,
    num_rounds=(1 + _BLOCKS) * block,
  )
  train(algorithm, params, clients, num_rounds=1, evaluate_every=block)
  first, ends = time.perf_counter() - begun, []
  train(
    algorithm,
    params,
    clients,
    evaluate_every=block,
    callbacks=[lambda progress: ends.append(time.perf_counter())],
  )
  # Neither the run's beginning nor its first block.
  seconds = float(np.median(np.diff(ends[1:])))
  return {
    "first round": first,
    "clients a second": block * cohort / seconds,
    "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
  }


class FileUsers:
  """Users who stand in a row in a file, with an index of where each begins.

  Args:
    folder: of the file.
    count: the first so many users.
  """

  def __init__(self, folder: pathlib.Path, count: int):
    self._starts = np.load(folder / "starts.npy")[: count + 1].tolist()
    self._file = os.open(folder / "users.bin", os.O_RDONLY)

  def __len__(self) -> int:
    return len(self._starts) - 1

  def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    first, last = self._starts[number : number + 2]
    count, size = last - first, _EXAMPLE_BYTES
    found = os.pread(self._file, count * size, first * size)
    inputs = np.frombuffer(found, np.float32, count * _FEATURES)
    labels = np.frombuffer(found, np.int32, count, inputs.nbytes)
    return inputs.reshape(count, _FEATURES), labels


def _numbers(folder: pathlib.Path, users: int, threads: int) -> tuple[PyTree, models.Loss, PyTree]:
  """(clients, loss, parameters) of the MLP; users are in memory where no thread reads them."""
  source = FileUsers(folder, users)
  clients: PyTree = (
    data.clients_from_source(source, max_examples=_MOST, num_threads=threads)
    if threads
    else data.clients_from_pairs(map(source.__getitem__, range(users)), max_examples=_MOST)
  )
  net = nn.Sequential([nn.Dense(1024), nn.relu, nn.Dense(_CLASSES)])
  model = models.from_flax(net, (_FEATURES,))
  return clients, models.cross_entropy(model), model.init(jax.random.key(0))


def _stackoverflow(folder: pathlib.Path, users: int) -> tuple[PyTree, models.Loss, PyTree]:
  """(clients, loss, parameters) of the LSTM, for users of at most 640 tokens."""
  words = Vocabulary(tuple(_word_list()))
  texts = data.stackoverflow(folder / "stackoverflow.sqlite")[:users]
  source = data.text_source(words, texts, tokens_per_user=20 * _MOST, unroll=20)
  clients = data.clients_from_source(
    source, max_examples=_MOST, label_kind="words", names=source.names
  )
  model = models.language_model(len(words), embedding=32, hidden=64)
  return clients, models.next_word_loss(model), model.init(jax.random.key(0))


def _make_numbers(folder: pathlib.Path, users: int) -> None:
  """Users of 4 to 44 examples in a row, each its inputs and its labels; `starts.npy` says where."""
  rng, sizes = np.random.default_rng(0), []
  weights = rng.normal(size=(_FEATURES, _CLASSES)).astype(np.float32)
  with (folder / "users.bin").open("wb") as file:
    for begun in range(0, users, 10_000):
      own = 4 + rng.binomial(40, 0.32, min(10_000, users - begun))
      rows = rng.standard_normal((int(own.sum()), _FEATURES), np.float32)
      labels = np.argmax(rows @ weights, axis=1).astype(np.int32)
      ends = np.cumsum(own)[:-1]
      for user in zip(np.split(rows, ends), np.split(labels, ends), strict=True):
        file.writelines(part.tobytes() for part in user)
      sizes.append(own)
  np.save(folder / "starts.npy", np.concatenate([[0], np.cumsum(np.concatenate(sizes))]))


def _make_stackoverflow(folder: pathlib.Path, users: int) -> None:
  """Users of 60 sentences on average, in a file with the tables and indexes of the real one."""
  rng = np.random.default_rng(0)
  words = np.array(_word_list())[np.minimum(rng.pareto(0.9, 50_000).astype(int), _WORDS - 1)]
  texts = [" ".join(words[at : at + 5 + at % 13]).encode() for at in range(len(words) - 20)]
  messages = [_message(text) for text in texts]
  sizes = 1 + rng.lognormal(np.log(36), 1.0, users).astype(int)
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


def _word_list() -> list[str]:
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
