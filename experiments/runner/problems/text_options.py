"""The options of language models: users, words, and what is public."""

import dataclasses
from functools import partial

from experiments.runner import checks
from experiments.runner.options import option
from jdp import _validate

TEXT = ("modules", "movies", "movies_small", "shakespeare")
_share = partial(_validate.in_range, 0.0, 0.5)
_TEXT = {"dataset": TEXT}
_PRIVATE = {"vocabulary": ("private",)}
_LSTM = {**_TEXT, "language_model": ("lstm",)}
_TRANSFORMER = {**_TEXT, "language_model": ("transformer",)}


@dataclasses.dataclass(frozen=True)
class TextOptions:
  """The options of learning from text; they do not apply if `--dataset` is images."""

  SUBJECT = "Text"

  public_text: str | None = option(
    "users",
    "What vocabulary and warm start come from: users of the data declared public, or Python's own "
    "docstrings.",
    choices=("users", "modules"),
    when=_TEXT,
  )
  public_share: float | None = option(
    0.1,
    "Share of the users that is public: nobody's privacy, no clients.",
    check=_share,
    when={**_TEXT, "public_text": ("users",)},
  )
  test_share: float | None = option(
    0.1, "Share of the users whose text is for the test.", check=_share, when=_TEXT
  )
  test_tokens: int | None = option(
    20_000, "Tokens of the test, at most.", check=checks.count, when=_TEXT
  )
  vocabulary_size: int | None = option(
    None,
    "Words. Default: 10,000, or all of the public text if it has fewer.",
    check=checks.count,
    when=_TEXT,
  )
  vocabulary: str | None = option(
    "public",
    "Which words: the most frequent of the public text; or, of all its words, those that most "
    "users use, by a count with noise that is part of each run's cost.",
    choices=("public", "private"),
    when=_TEXT,
  )
  vocabulary_noise_multiplier: float | None = option(
    3.0,
    "z of that count: its noise over the bound of a user.",
    check=_validate.positive,
    when=_PRIVATE,
  )
  vocabulary_words_per_user: int | None = option(
    100, "Words that a user counts for, at most.", check=checks.count, when=_PRIVATE
  )
  tokens_per_user: int | None = option(
    1600, "A user's tokens beyond these are left out.", check=checks.count, when=_TEXT
  )
  equal_users: bool | None = option(
    True, "Whether users with fewer tokens are left out.", when=_TEXT
  )
  pseudo_users: int | None = option(
    None,
    "Cut each one's text into pieces of --tokens_per_user consecutive tokens, and make so many of "
    "them users of their own. What is protected is then such a piece, not the one who said it. "
    "Default: nobody is cut.",
    check=checks.count,
    when=_TEXT,
  )
  language_model: str | None = option(
    "lstm",
    "What learns the words: the published LSTM with tied embeddings, or a small transformer.",
    choices=("lstm", "transformer"),
    when=_TEXT,
  )
  embedding_size: int | None = option(
    96, "Size of a word's vector; the transformer's width.", check=checks.count, when=_TEXT
  )
  hidden_size: int | None = option(256, "Units of the LSTM.", check=checks.count, when=_LSTM)
  num_layers: int | None = option(
    2, "Blocks of the transformer.", check=checks.count, when=_TRANSFORMER
  )
  num_heads: int | None = option(
    4, "Heads of its attention, a divisor of its width.", check=checks.count, when=_TRANSFORMER
  )
  unroll: int | None = option(
    10, "Tokens of a sequence, the example of a local batch.", check=checks.count, when=_TEXT
  )
