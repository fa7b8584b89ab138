"""Users' texts, their vocabulary, and the sequences that a language model learns from."""

import argparse
import ast
import functools
import gzip
import json
import math
import pathlib
from functools import partial

import jax
import numpy as np
import pytest

from jdp import accounting
from jdp.data import (
  private_vocabulary,
  public_vocabulary,
  python_modules,
  read_users,
  sequences,
  text,
  text_users,
)
from jdp.data.vocabulary import BOS, EOS, UNK, Vocabulary, words
from jdp.ledger import Ledger


def test_words_are_lower_case_with_apostrophes_inside():
  coffee = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
  text = f"Don\N{RIGHT SINGLE QUOTATION MARK}t 'STOP' -- {coffee}_2!"
  assert words(text) == ["don't", "stop", coffee, "2"]


def test_a_vocabulary_numbers_words_by_frequency_after_the_special_ones():
  vocabulary = public_vocabulary(["b a", "a c a", "b"], 2)
  assert (vocabulary.words, len(vocabulary)) == (("a", "b"), 5)
  assert vocabulary.encode("A b c") == [3, 4, UNK]
  assert vocabulary.decode([BOS, 3, UNK, EOS]) == "<bos> a <unk> <eos>"


def test_sequences_ask_for_each_next_word_and_for_the_end_but_never_for_bos():
  vocabulary = Vocabulary(("a", "b"))
  made = sequences(vocabulary, ["a b", "...", "x"], unroll=3, max_tokens=100)
  assert made.inputs.tolist() == [[BOS, 3, 4], [BOS, UNK, BOS]]
  assert made.labels.tolist() == [[3, 4, EOS], [UNK, EOS, BOS]]  # the last one is padding
  assert made.mask.tolist() == [1, 1]
  assert made.inputs.dtype == made.labels.dtype == np.int32
  cut = sequences(vocabulary, ["a b", "x"], unroll=3, max_tokens=4)
  assert cut.labels.tolist() == [[3, 4, EOS], [UNK, BOS, BOS]]


def test_equal_users_have_the_first_tokens_and_users_with_fewer_are_left_out():
  vocabulary = Vocabulary(("a", "b"))
  texts = [["a a a a"], ["b"], ["b b", "b b"]]
  equal = text_users(vocabulary, texts, tokens_per_user=4, unroll=2)
  assert equal.counts.tolist() == [2, 2]
  assert equal.user(1).labels.tolist() == [[4, 4], [EOS, 4]]
  unequal = text_users(vocabulary, texts, tokens_per_user=4, unroll=2, equal=False)
  assert unequal.counts.tolist() == [2, 1, 2]
  assert unequal.user(1).mask.tolist() == [1, 0]
  for arguments in ({"tokens_per_user": 5, "unroll": 2}, {"tokens_per_user": 20, "unroll": 2}):
    with pytest.raises(ValueError, match="Expected"):
      text_users(vocabulary, texts, **arguments)


@pytest.mark.parametrize("name", ["users.jsonl", "users.jsonl.gz"])
def test_files_of_users_are_read_line_by_line(tmp_path, name):
  content = "".join(
    json.dumps({"user": user, "text": text}) + "\n"
    for user, text in (("é", ["Hi.", "So?"]), ("x", []))
  )
  data = content.encode()
  (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
  assert [tuple(user) for user in read_users(tmp_path / name)] == [("é", ("Hi.", "So?")), ("x", ())]


@pytest.mark.parametrize(
  "line",
  ["{", "[1]", "3", '{"user": "x"}', '{"user": "x", "text": "no list"}', '{"user": 3, "text": []}'],
)
def test_a_line_of_another_form_is_refused_without_quoting_it(tmp_path, line):
  path = tmp_path / "users.jsonl"
  path.write_text('{"user": "a", "text": ["b"]}\n' + line + "\n")
  with pytest.raises(ValueError, match=r"in line 2 of .*, got something else"):
    read_users(path)


def test_python_modules_are_users_of_docstrings_and_comments(tmp_path):
  (tmp_path / "package").mkdir()
  (tmp_path / "tests").mkdir()
  (tmp_path / "one.py").write_text(
    '"""About.\n\nMore."""\n# A note.\ndef f():\n  """Does f."""\n  return "no"\n'
  )
  (tmp_path / "package" / "two.py").write_text("#\n#: Two.\nx = 1\n")
  (tmp_path / "broken.py").write_text("# not\nPython here\n")
  (tmp_path / "tests" / "three.py").write_text("# Three.\n")
  users = {name: [part.strip(" :") for part in text] for name, text in python_modules(tmp_path)}
  assert users == {"one": ["About.", "More.", "Does f.", "A note."], "package.two": ["Two."]}


CANDIDATES = [f"w{i}" for i in range(50)]


def test_private_counts_are_of_bounded_users_and_noised_as_the_event_says():
  # each may name two of its three
  users = [["w0 w0 w0 w1 w1 w2 other " + "other " * 50] for _ in range(30)]
  count = partial(private_vocabulary, users=users, candidates=CANDIDATES, size=2, words_per_user=2)
  vocabulary, event = count(jax.random.key(4), noise_multiplier=0.1)
  assert set(vocabulary.words) == {"w0", "w1"}  # equal counts: noise orders them
  assert event.query.stddev / event.query.clip_norm == pytest.approx(0.1)
  assert event.query.clip_norm == pytest.approx(math.sqrt(2))
  exact = accounting.gaussian_epsilon(1.0, 1e-6)
  _, event = count(jax.random.key(5), noise_multiplier=1.0)
  assert accounting.epsilon(Ledger().append(event), delta=1e-6) >= exact


def test_a_user_counts_once_for_a_word_however_often_it_says_it():
  users = [["w0 " * 500, "w0 " * 500], ["w1"], ["w1"]]
  vocabulary, _ = private_vocabulary(
    jax.random.key(0), users, CANDIDATES, 1, words_per_user=1, noise_multiplier=0.0
  )
  assert vocabulary.words == ("w1",)


def test_a_user_names_its_most_frequent_words_and_no_more_than_it_may():
  # A word that is not named would come before them: candidates are in this order.
  users = [["w0 w8 w9", "w9 w8 w1"]]
  vocabulary, _ = private_vocabulary(
    jax.random.key(0), users, CANDIDATES, 2, words_per_user=2, noise_multiplier=0.0
  )
  assert set(vocabulary.words) == {"w8", "w9"}


def test_noise_chooses_among_words_that_nobody_names():
  firsts = [
    private_vocabulary(
      jax.random.key(i), [], CANDIDATES, 1, words_per_user=4, noise_multiplier=2.0
    )[0].words[0]
    for i in range(100)
  ]
  assert len(set(firsts)) > 20


def test_a_vocabulary_larger_than_its_candidates_is_refused():
  with pytest.raises(ValueError, match="at most 50 candidates"):
    private_vocabulary(
      jax.random.key(0), [], CANDIDATES, 51, words_per_user=1, noise_multiplier=1.0
    )


def test_docstrings_come_in_the_order_of_a_walk_through_the_whole_module():
  sources = [pathlib.Path(module.__file__).read_bytes() for module in (ast, argparse, functools)]
  sources.append(NESTED.encode())
  for source in sources:
    module = ast.parse(source)
    walked = [node for node in ast.walk(module) if isinstance(node, text._DOCUMENTED)]
    assert [n for n in text._statements(module) if isinstance(n, text._DOCUMENTED)] == walked
    assert walked


NESTED = """
try:
  class A:
    async def in_class(self): "1"
except ValueError:
  def in_handler(): "2"
else:
  def in_else(): "3"
finally:
  def in_finally(): "4"
match 1:
  case 1:
    with open("x"):
      def in_case(): "5"
for i in range(3):
  if i:
    lambda: 0
  else:
    while i:
      def in_loop(): "6"
"""
