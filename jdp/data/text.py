"""Text of many users, and the sequences of words that a language model learns from."""

import ast
import collections
import itertools
import json
import pathlib
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.data.clients import Examples
from jdp.data.files import first_file, lines
from jdp.data.packed import PackedUsers, pack
from jdp.data.sources.on_disk import UsersOnDisk
from jdp.data.vocabulary import BOS, EOS, Vocabulary

_LONGEST = 2**20  # tokens of a sequence

_COMMENT = re.compile(r"^\s*#+(.*)$", re.MULTILINE)
_NOT_MODULES = {"site-packages", "dist-packages", "test", "tests"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class UserText(NamedTuple):
  """What one user wrote.

  Attributes:
    user: the user's name.
    text: the utterances, in order.
  """

  user: str
  text: tuple[str, ...]


@checked
def read_users(path: str | pathlib.Path) -> list[UserText]:
  """The users of a file in JSON Lines, gzip'd if its name ends in .gz.

  Each line is {"user": name, "text": [utterance, ...]}.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if a line is not of this form, or a user has several lines. A gzip'd file is refused
      if it is damaged, or holds more than `jdp.data.files.size_limit`.

  >>> import tempfile
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   path = pathlib.Path(folder, "users.jsonl")
  ...   _ = path.write_text('{"user": "ann", "text": ["good morning", "see you"]}')
  ...   read_users(path)
  [UserText(user='ann', text=('good morning', 'see you'))]
  """
  path = first_file(
    [pathlib.Path(path)],
    f"Expected a file of users' texts at {path}; put it there, or name another folder.",
  )
  users = [
    _parsed_user(line, f"line {number} of {path}") for number, line in enumerate(lines(path), 1)
  ]
  if len({user.user for user in users}) < len(users):
    raise ValueError(
      f"Expected one line for each user in {path}, got several for one, who would count as several "
      "users; join them."
    )
  return users


def _parsed_user(line: str, place: str) -> UserText:
  """The user of one line; `place` says where it is, for the message."""
  try:
    row = json.loads(line)
    user, text = row["user"], row["text"]
    valid = (
      isinstance(user, str)
      and isinstance(text, list)
      and all(isinstance(part, str) for part in text)
    )
  except (ValueError, TypeError, KeyError, RecursionError):  # not JSON, another form, too deep
    valid = False
  if not valid:
    raise ValueError(
      f'Expected {{"user": a string, "text": [strings]}} in {place}, got something else; '
      "mend the file."
    )
  return UserText(user, tuple(text))


@checked
def python_modules(folder: str | pathlib.Path | None = None) -> list[UserText]:
  """The docstrings and comments of Python modules, as the texts of users.

  This is public text that every machine has.

  Args:
    folder: the modules in it and in its subfolders are the users, in order of their names. Tests
      and installed packages are left out. None: the standard library.

  Raises:
    ValueError: if there is no module with text.

  >>> import tempfile
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   _ = pathlib.Path(folder, "greeting.py").write_text("# Says hello.")
  ...   python_modules(folder)
  [UserText(user='greeting', text=(' Says hello.',))]
  """
  root = pathlib.Path(sysconfig.get_path("stdlib") if folder is None else folder)
  paths = sorted(path.relative_to(root) for path in root.rglob("*.py") if path.is_file())
  modules = (path for path in paths if _NOT_MODULES.isdisjoint(path.parts))
  texts = (
    UserText(".".join(path.with_suffix("").parts), tuple(_prose(root / path))) for path in modules
  )
  users = [user for user in texts if user.text]
  if not users:
    raise ValueError(
      f"Expected Python modules with comments in folder {root}, got none; name another."
    )
  return users


def _statements(module: ast.AST) -> Iterator[ast.AST]:
  """The module and its parts in the order of `ast.walk`, without parts that hold no docstring.

  Most of a module is expressions, and walking them would take most of the time.
  """
  queue = collections.deque([module])
  while queue:
    yield (node := queue.popleft())
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
      queue.extend(getattr(node, part, ()))


def _prose(path: pathlib.Path) -> Iterator[str]:
  """The paragraphs of a module's docstrings, and its comments."""
  source = path.read_bytes()
  try:
    nodes = [node for node in _statements(ast.parse(source)) if isinstance(node, _DOCUMENTED)]
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return  # written for another version of Python, too deep for the parser, or not text
  for docstring in filter(None, map(ast.get_docstring, nodes)):
    yield from docstring.split("\n\n")
  yield from (
    comment for comment in _COMMENT.findall(source.decode("utf-8", "replace")) if comment.strip()
  )


@checked
def text_users(
  vocabulary: Vocabulary,
  users: Iterable[Sequence[str]],
  *,
  tokens_per_user: int = 1600,
  unroll: int = 10,
  equal: bool = True,
) -> PackedUsers:
  """Users' texts as sequences of words. Each sequence is an example; see `sequences`.

  Args:
    vocabulary: public.
    users: the utterances of each user.
    tokens_per_user: how many of a user's first tokens are kept. A multiple of `unroll`.
    unroll: the number of tokens of a sequence.
    equal: whether users who have fewer tokens are left out (arXiv 1710.06963, Appendix B). If
      False, all users are kept. Then weigh them by their number of sequences
      (`jdp.federated.weight_by_examples`).

  Returns:
    `PackedUsers` whose `Examples` have inputs and labels int32 [sequences, unroll].

  Raises:
    ValueError: if a number is out of range, or no user is left.

  >>> users = text_users(
  ...   Vocabulary(("a", "b")), [["a b", "b"], ["a"]], tokens_per_user=6, unroll=2, equal=False
  ... )
  >>> users.user(0).inputs.tolist(), users.user(0).labels.tolist()
  ([[1, 3], [4, 1], [4, 1]], [[3, 4], [2, 4], [2, 1]])
  >>> users.counts.tolist()
  [3, 1]
  """
  _check_lengths(tokens_per_user, unroll)
  least = tokens_per_user if equal else 1
  encoded = (_token_pairs(vocabulary, text, tokens_per_user) for text in users)
  parts = [_cut_sequences(pairs, unroll) for pairs in encoded if len(pairs) >= least]
  if not parts:
    raise ValueError(
      f"Expected users with at least {least} tokens, got none; take fewer tokens_per_user."
    )
  data = Examples(*map(np.concatenate, zip(*parts, strict=True)))
  ends = np.cumsum([len(part.labels) for part in parts])
  numbers = np.split(np.arange(ends[-1]), ends[:-1])
  return pack(data, numbers, max_examples=tokens_per_user // unroll)


@checked
def text_source(
  vocabulary: Vocabulary, users: UsersOnDisk, *, tokens_per_user: int = 1600, unroll: int = 10
) -> UsersOnDisk:
  """Users' texts on disk as sequences of words; for users in memory see `text_users`.

  All users are kept, also those with fewer tokens or none. So weigh them by their number of
  sequences (`jdp.federated.weight_by_examples`).

  Args:
    vocabulary: public.
    users: each is a `UserText`, such as those of `jdp.data.stackoverflow`.
    tokens_per_user: how many of a user's first tokens are kept. A multiple of `unroll`.
    unroll: the number of tokens of a sequence.

  Returns:
    The same users, each as (words, words that follow), int32 [sequences, unroll]. A user has at
    most tokens_per_user / unroll sequences.

  Raises:
    ValueError: if a number is out of range.

  >>> users = UsersOnDisk(("ann",), lambda number: UserText("ann", ("a b", "b")))
  >>> inputs, labels = text_source(Vocabulary(("a", "b")), users, tokens_per_user=6, unroll=2)[0]
  >>> inputs.tolist(), labels.tolist()
  ([[1, 3], [4, 1], [4, 1]], [[3, 4], [2, 4], [2, 1]])
  """
  _check_lengths(tokens_per_user, unroll)

  def read(number: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = _token_pairs(vocabulary, users[number].text, tokens_per_user)
    own = _cut_sequences(pairs, unroll)
    return np.asarray(own.inputs), own.labels

  return UsersOnDisk(users.names, read)


def _check_lengths(tokens_per_user: int, unroll: int) -> None:
  _validate.integer(1, unroll=unroll)
  _validate.in_range(1, 2**31 - 1, tokens_per_user=tokens_per_user)
  if tokens_per_user % unroll:
    raise ValueError(
      f"Expected tokens_per_user to be a multiple of unroll={unroll}, got {tokens_per_user}."
    )


@checked
def sequences(
  vocabulary: Vocabulary, texts: Iterable[str], *, unroll: int = 10, max_tokens: int | None = None
) -> Examples:
  """Utterances as sequences of words and the words that follow them.

  An utterance w_1 .. w_n is n + 1 tokens: w_1 follows BOS, w_2 follows w_1, and EOS follows w_n.
  The concatenated tokens of all utterances are cut into sequences of `unroll`. The last sequence is
  padded with the label BOS, which never follows a word and does not count.

  Args:
    vocabulary: a word that is not in it is UNK.
    texts: utterances, in order.
    unroll: the number of tokens of a sequence.
    max_tokens: only the first `max_tokens` tokens are kept. None: all are.

  Returns:
    `Examples` with inputs and labels int32 [n, unroll].

  >>> made = sequences(Vocabulary(("the", "cat")), ["the cat sat"], unroll=3)
  >>> made.inputs.tolist(), made.labels.tolist()
  ([[1, 3, 4], [0, 1, 1]], [[3, 4, 0], [2, 1, 1]])
  """
  _validate.in_range(1, _LONGEST, unroll=unroll)
  if max_tokens is not None:
    _validate.in_range(1, 2**31 - 1, max_tokens=max_tokens)
  return _cut_sequences(_token_pairs(vocabulary, texts, max_tokens), unroll)


def _token_pairs(
  vocabulary: Vocabulary, texts: Iterable[str], max_tokens: int | None
) -> np.ndarray:
  """(word, next word) of at most the first `max_tokens` tokens, int32 [tokens, 2]."""
  tokens = itertools.chain.from_iterable(
    itertools.pairwise((BOS, *numbers, EOS)) for numbers in map(vocabulary.encode, texts) if numbers
  )
  return np.array(list(itertools.islice(tokens, max_tokens)), np.int32).reshape(-1, 2)


def _cut_sequences(pairs: np.ndarray, unroll: int) -> Examples:
  """Tokens [n, 2] as sequences of `unroll`, the last one padded."""
  padded = np.pad(pairs, ((0, -len(pairs) % unroll), (0, 0)), constant_values=BOS)
  inputs, labels = padded.T.reshape(2, -1, unroll)
  return Examples(inputs, labels, np.ones(len(inputs), np.float32))
