"""Next-word problems on text by user.

Users are film characters, Shakespeare's characters, or Python's modules.
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.runner.options import needed
from experiments.runner.problems.held_out import held_out
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.problems.precision import in_precision
from experiments.runner.problems.private_words import private_words
from experiments.runner.problems.problem_options import LearningOptions
from experiments.runner.problems.public_start import with_public_start
from experiments.runner.problems.text_options import TextOptions
from experiments.runner.reports import plots, style
from experiments.runner.reports.parts import Part
from experiments.runner.reports.tables import percent, table
from experiments.runner.runs.workdir import Workdir
from jdp import data, models
from jdp.data import Examples
from jdp.data.packed import PackedUsers
from jdp.data.text import UserText
from jdp.data.vocabulary import BOS, UNK, Vocabulary, vocabulary_event, words
from jdp.guarantees import Unit
from jdp.ledger import Ledger
from jdp.models.language.recurrent import LanguageModel
from jdp.queries.base import PyTree

_HEADS = (10, 50, 100)
_HEAD_TOKENS = 2_000
_MOST_WORDS = 10_000
# A transformer's parts want steps of very different sizes, which SGD has not.
_PUBLIC_TRAINING = {"lstm": ("sgd", 6.0), "transformer": ("adam", 0.5)}  # and the rate of SGD
_COUNTED = "used by most clients, by a noised count, of all words of"
_PROMPTS = ("i", "what do you", "this is the")
_LONGEST_PROMPT = 1 + max(len(words(prompt)) for prompt in _PROMPTS)  # with BOS
_CARRIED = ("accuracy_top1", "perplexity")


class Split(NamedTuple):
  """Users by their purpose.

  Attributes:
    public: their text is public. It gives the vocabulary and the warm start.
    test: for evaluation.
    private: the clients.
  """

  public: Sequence[UserText]
  test: Sequence[UserText]
  private: Sequence[UserText]


def text_problem(options: LearningOptions) -> LearningProblem:
  """Reads the texts and makes the model.

  A private vocabulary needs the run's noise key for its count. Until the problem is completed, its
  words are those of the public text. Sizes and shapes are the same.

  Raises:
    ValueError: if a share of the users is empty or no user has enough text. Also if the public text
      has too few words.
    FileNotFoundError: if a file is missing.
  """
  users = read(options.dataset, options.data_dir)
  split = divide(users, options)
  if options.pseudo_users is not None:
    size = needed(options.tokens_per_user)
    split = split._replace(private=_first_pieces(split.private, options.pseudo_users, size))
  public = [text for user in (split.public or data.python_modules()) for text in user.text]
  candidates = data.public_vocabulary(public, sys.maxsize).words
  size = options.vocabulary_size or min(_MOST_WORDS, len(candidates))
  if not size <= len(candidates):
    raise ValueError(
      f"Expected --vocabulary_size of at most the {len(candidates)} words of the public text, got "
      f"{size}; take fewer, or leave it out."
    )
  vocabulary = Vocabulary(candidates[:size])
  make = partial(_make_problem, options, split, public)
  if options.vocabulary == "public":
    return make(vocabulary, Ledger())
  # The event depends on the options alone, so the budget can be checked before the count.
  event = vocabulary_event(
    words_per_user=needed(options.vocabulary_words_per_user),
    noise_multiplier=needed(options.vocabulary_noise_multiplier),
  )
  prior = Ledger().append(event)

  def complete(workdir: Workdir) -> LearningProblem:
    drawn = private_words(workdir, options, split.private, candidates, size)
    return make(drawn, prior).completed(workdir)

  return make(vocabulary, prior)._replace(complete=complete)


def _make_problem(
  options: LearningOptions,
  split: Split,
  public: Sequence[str],
  vocabulary: Vocabulary,
  prior: Ledger,
) -> LearningProblem:
  """The problem with these words and their cost."""
  model = make_model(options, len(vocabulary))
  unroll, equal = needed(options.unroll), needed(options.equal_users)
  cut = partial(data.sequences, vocabulary, unroll=unroll)
  test = of_each(split.test, cut, options)
  # One sequence for each user: the state is carried from each of its windows to the next.
  whole = of_each(split.test, partial(_in_one_sequence, vocabulary), options)
  clients = data.text_users(
    vocabulary,
    [user.text for user in split.private],
    tokens_per_user=needed(options.tokens_per_user),
    unroll=unroll,
    equal=equal,
  )
  test, whole, clients = jax.tree.map(jnp.asarray, (test, whole, clients))
  metrics = jax.jit(partial(models.language_metrics, model))

  def evaluate(params: PyTree) -> dict[str, jax.Array]:
    found = metrics(params, test)
    if options.language_model != "lstm":  # A transformer has no places beyond a window's.
      return found
    carried = metrics(params, whole)
    return {**found, **{f"carried_{name}": carried[name] for name in _CARRIED}}

  problem = LearningProblem(
    init=model.init,
    loss=models.next_word_loss(in_precision(model, options.precision)),
    evaluate=evaluate,
    clients=clients,
    sizes=np.asarray(clients.counts),
    headline="accuracy_top1",
    facts=_facts(options, model, vocabulary, test, len(split.test), clients),
    equal=equal,
    parts=partial(_prediction_parts, model, vocabulary, test),
    prior=prior,
    protects=_protects(options),
  )
  optimizer, sgd_rate = _PUBLIC_TRAINING[needed(options.language_model)]
  return with_public_start(
    problem,
    options,
    lambda: cut(public, max_tokens=None),
    init_seed=options.init_seed,
    data_seed=options.data_seed,
    sgd_rate=sgd_rate,
    optimizer=optimizer,
  )


def make_model(options: TextOptions, size: int) -> LanguageModel:
  """The language model that the options ask for, of so many words.

  Raises:
    ValueError: if the transformer's heads do not divide its width.
  """
  width = needed(options.embedding_size)
  if options.language_model == "lstm":
    return models.language_model(size, embedding=width, hidden=needed(options.hidden_size))
  return models.transformer(
    size,
    max_length=max(needed(options.unroll), _LONGEST_PROMPT),
    width=width,
    num_heads=needed(options.num_heads),
    num_layers=needed(options.num_layers),
  )


def pieces(users: Iterable[UserText], num_tokens: int) -> Iterator[UserText]:
  """Every user's text in pieces of at least so many tokens, each as the text of a user of its own.

  A piece begins with an utterance, and ends with the utterance that completes it. A user's last
  utterances, which complete no piece, are left out.

  >>> [piece.text for piece in pieces([UserText("a", ("one two", "three", "four five"))], 4)]
  [('one two', 'three')]
  """
  for user in users:
    said: list[str] = []
    size = number = 0
    for utterance in user.text:
      said.append(utterance)
      if count := len(words(utterance)):
        size += count + 1  # and the end
      if size >= num_tokens:
        yield UserText(f"{user.user}, piece {number}", tuple(said))
        said, size, number = [], 0, number + 1


def _first_pieces(users: Sequence[UserText], count: int, num_tokens: int) -> list[UserText]:
  """The users that `--pseudo_users` asks for, of so many tokens."""
  found = list(itertools.islice(pieces(users, num_tokens), count))
  if len(found) < count:
    raise ValueError(
      f"Expected --pseudo_users of at most the {len(found)} pieces of {num_tokens} tokens, got "
      f"{count}; take fewer, or fewer --tokens_per_user."
    )
  return found


def _protects(options: TextOptions) -> dict[Unit, str]:
  """What guarantees are about where a user is a piece of one's text."""
  if options.pseudo_users is None:
    return {}
  whose = "consecutive tokens of one who speaks, not the one who speaks"
  return {
    Unit.USER: f"a piece of {options.tokens_per_user} {whose}",
    Unit.EXAMPLE: f"a sequence of {options.unroll} {whose}",
  }


def _in_one_sequence(vocabulary: Vocabulary, text: Sequence[str], *, max_tokens: int) -> Examples:
  return data.sequences(vocabulary, text, unroll=max_tokens, max_tokens=max_tokens)


def of_each(
  users: Sequence[UserText], cut: Callable[..., Examples], options: TextOptions
) -> Examples:
  """The first tokens of each user, the same number for each.

  The next words of a few users would say little about others.
  """
  unroll = needed(options.unroll)
  windows = max(1, needed(options.test_tokens) // (len(users) * unroll))
  parts = [cut(user.text, max_tokens=windows * unroll) for user in users]
  return Examples(*map(np.concatenate, zip(*parts, strict=True)))


def read(dataset: str, data_dir: str | None) -> list[UserText]:
  """The users of a data set; "modules" needs no file.

  Raises:
    ValueError: if no folder is named.
    FileNotFoundError: if the file is not in it.
  """
  if dataset == "modules":
    return data.python_modules()
  if data_dir is None:
    raise ValueError(
      f"Expected --data_dir for {dataset}, got none; name the folder with text/{dataset}.jsonl.gz."
    )
  return data.read_users(f"{data_dir}/text/{dataset}.jsonl.gz")


def divide(users: Sequence[UserText], options: LearningOptions) -> Split:
  """The users in a random order, cut into shares.

  No user is public if the public text is not that of the users. With `--validation_share` some of
  the private users take the test's place, by `held_out`.

  Raises:
    ValueError: if a share that is needed is empty.
  """
  order = np.random.default_rng(options.data_seed).permutation(len(users))
  from_users = options.public_text == "users"
  public = round(needed(options.public_share) * len(users)) if from_users else 0
  test = round(needed(options.test_share) * len(users))
  split = Split(*([users[i] for i in part] for part in np.split(order, [public, public + test])))
  if not split.test or not (split.public or options.public_text == "modules"):
    raise ValueError(
      f"Expected users for the test and for --public_text={options.public_text}, got "
      f"{len(split.test)} and {len(split.public)}; raise --test_share or --public_share."
    )
  if options.validation_share is None:
    return split
  chosen = held_out(
    [user.user for user in split.private], options.validation_share, options.data_seed
  )
  kept, held = (
    [user for user, out in zip(split.private, chosen, strict=True) if out == part]
    for part in (False, True)
  )
  return Split(split.public, held, kept)


def _facts(
  options: LearningOptions,
  model: LanguageModel,
  vocabulary: Vocabulary,
  test: Examples,
  num_tested: int,
  clients: PackedUsers,
) -> dict[str, str]:
  source = (
    "Python's docstrings"
    if options.public_text == "modules"
    else f"{percent(needed(options.public_share), 0)} of the users"
  )
  chosen = "most frequent in the text of" if options.vocabulary == "public" else _COUNTED
  counted = test.labels[test.labels != BOS]
  # Facts are printed, so they hold nothing that is known from the clients' text alone.
  length = "" if options.equal_users else "up to "
  start = (
    f", pre-trained on the public text ({options.public_passes}x)" if options.public_passes else ""
  )
  size = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))
  kind = {"lstm": "LSTM", "transformer": "transformer"}[needed(options.language_model)]
  one_user = _protects(options).get(Unit.USER)
  tested = "test" if options.validation_share is None else "tested on held-out users"
  return {
    **({"one user": one_user} if one_user else {}),
    "data": f"{options.dataset}: {len(clients.counts):,} users of "
    f"{length}{options.tokens_per_user:,} tokens; "
    f"{tested}: {counted.size:,} tokens of {num_tested:,} others",
    "vocabulary": f"{len(vocabulary.words):,} words, {chosen} {source}, public; "
    f"{percent(float(jnp.mean(counted == UNK)))} of the test's tokens are not among them",
    "model": f"{kind} with tied embeddings, {size:,} parameters{start}",
  }


def _prediction_parts(
  model: LanguageModel, vocabulary: Vocabulary, test: Examples, params_of: dict[str, PyTree]
) -> Iterator[Part]:
  """The models' predictions: the frequency of predicted words, and examples."""
  yield head_words(model, test, params_of)
  rows = [
    [
      label,
      *(
        ", ".join(word for word, _ in models.next_words(model, params, vocabulary, text))
        for text in _PROMPTS
      ),
    ]
    for label, params in params_of.items()
  ]
  yield Part(
    "The three likeliest next words", table(["run", *(f"{text} …" for text in _PROMPTS)], rows)
  )


def head_words(model: LanguageModel, test: Examples, params_of: dict[str, PyTree]) -> Part:
  """The share of tokens by how many of ten predicted words are among the most frequent."""
  # A sample of the test's sequences is enough for the shares, and ten predictions are costly.
  apart = max(1, test.labels.size // _HEAD_TOKENS)
  sample = jax.tree.map(lambda x: x[::apart], test)
  count = jax.jit(partial(models.head_words, model, heads=_HEADS))
  figure, panels = plots.panels(
    "of ten predictions", "tokens", [f"the {head} most frequent" for head in _HEADS]
  )
  style.percent(panels[0].yaxis)
  rows = []
  for label, look in style.series(list(params_of)).items():
    params = params_of[label]
    shares = np.asarray(count(params, sample)) / max(1, int(jnp.sum(sample.labels != BOS)))
    for head, axes, row in zip(_HEADS, panels, shares, strict=True):
      axes.plot(row, label=label, **look)
      rows.append([label, f"{head}", *map(percent, row)])
  return Part(
    "Head words",
    table(["run", "most frequent", *map(str, range(11))], rows),
    {"head_words": figure},
  )
