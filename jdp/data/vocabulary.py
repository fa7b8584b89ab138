"""Words and their numbers: a vocabulary from public text, or counted privately among users."""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.queries import gaussian_sum
from jdp.queries.finalizing import finalized

SPECIAL = ("<unk>", "<bos>", "<eos>")
UNK, BOS, EOS = range(len(SPECIAL))
"""The numbers of the special words.

UNK stands for any word that is not in the vocabulary. An utterance begins with BOS and ends with
EOS.
"""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words(text: str) -> list[str]:
  """The words of a text in lower case: letters and digits, with apostrophes inside.

  All other characters are left out.

  >>> words("Don't -- you   DARE!")
  ["don't", 'you', 'dare']
  """
  return _WORD.findall(text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """A fixed list of words, public.

  Attributes:
    words: the words, the most frequent first. Word i has the number i + 3, after UNK, BOS and EOS.

  >>> vocabulary = Vocabulary(("the", "cat"))
  >>> len(vocabulary), vocabulary.encode("The cat sat."), vocabulary.decode([3, 4, 0])
  (5, [3, 4, 0], 'the cat <unk>')
  """

  words: tuple[str, ...]

  def __len__(self) -> int:
    """How many numbers there are."""
    return len(SPECIAL) + len(self.words)

  @functools.cached_property
  def _numbers(self) -> dict[str, int]:
    """The number of each word."""
    return {word: number for number, word in enumerate(self.words, len(SPECIAL))}

  @checked
  def encode(self, text: str) -> list[int]:
    """The numbers of the words of a text, without BOS and EOS."""
    return [self._numbers.get(word, UNK) for word in words(text)]

  @checked
  def decode(self, numbers: Iterable[int]) -> str:
    """The words with these numbers, and spaces between them.

    Raises:
      ValueError: if a number is not that of a word.
    """
    every, chosen = (*SPECIAL, *self.words), tuple(numbers)
    for number in chosen:
      _validate.in_range(0, len(every) - 1, numbers=number)
    return " ".join(every[number] for number in chosen)


@checked
def public_vocabulary(texts: Iterable[str], size: int) -> Vocabulary:
  """The `size` most frequent words of public texts, or all of them if there are fewer.

  Formal guarantee: none. The texts must be public: a rare word in the list reveals that somebody
  wrote it.

  Args:
    texts: any strings.
    size: at least 1.

  >>> public_vocabulary(["a rose is a rose", "is it?"], 3).words
  ('a', 'rose', 'is')
  """
  _validate.integer(1, size=size)
  counts = collections.Counter(word for text in texts for word in words(text))
  return Vocabulary(tuple(word for word, _ in counts.most_common(size)))


@checked
def private_vocabulary(
  key: jax.Array,
  users: Sequence[Iterable[str]],
  candidates: Iterable[str],
  size: int,
  *,
  words_per_user: int,
  noise_multiplier: float,
) -> tuple[Vocabulary, Round]:
  """The words that most users use, among public candidates, by a noised count.

  Every user names the candidates that it uses most, at most `words_per_user` of them. For every
  candidate, the number of users who named it is released with Gaussian noise. The largest are
  taken. A word that is not a candidate stays unknown, whatever users write. So the list of words
  tells nothing about a single user beyond the noised counts.

  Formal guarantee: that of the event, per user and under add/remove. It holds against anyone who
  sees the vocabulary. The event is a Gaussian release of all users' sum with the noise multiplier
  z. A user's vector of zeros and ones has an L2 norm of at most sqrt(words_per_user). Sums of fewer
  than 2^24 users are exact in float32. The noised counts are dithered, and floats cost as much as
  for `jdp.queries.gaussian_sum`.

  Args:
    key: key of the noise; consumed. Use it once. Take it from `jdp.random.secure_key`: otherwise
      the event is marked.
    users: the texts of each user, any strings.
    candidates: words from public sources. Repetitions are ignored.
    size: how many words the vocabulary has, at most as many as there are candidates.
    words_per_user: L >= 1. The noise on a count is z sqrt(L).
    noise_multiplier: z >= 0. At 0 nothing is private.

  Returns:
    (vocabulary, event). Append the event to the ledger of the training that uses the vocabulary.

  Raises:
    ValueError: if a number is out of range.

  >>> users = [["the cat", "the dog"], ["the cat"], ["the mouse"]]
  >>> vocabulary, event = private_vocabulary(
  ...   jax.random.key(0),
  ...   users,
  ...   ["a", "dog", "cat", "the"],
  ...   2,
  ...   words_per_user=4,
  ...   noise_multiplier=0.01,
  ... )
  >>> vocabulary.words, event.query
  (('the', 'cat'), GaussianSum(clip_norm=2.0, stddev=0.02))
  """
  names = tuple(dict.fromkeys(candidates))
  _validate.integer(1, size=size, words_per_user=words_per_user)
  if size > len(names):
    raise ValueError(
      f"Expected size of at most {len(names)} candidates, got {size}; name more candidates."
    )
  query = gaussian_sum(*_bound_and_noise(words_per_user, noise_multiplier))
  named = jnp.asarray(_naming_counts(users, names, words_per_user), jnp.float32)
  noised, event, _ = finalized(query, key, query.init(named), named)
  order = np.argsort(-np.asarray(noised), kind="stable")[:size]
  return Vocabulary(tuple(names[i] for i in order)), Round(PoissonSampling(1.0), event)


@checked
def vocabulary_event(*, words_per_user: int, noise_multiplier: float) -> Round:
  """The event of a `private_vocabulary` not yet drawn, for planning.

  It depends on nobody's words.

  >>> vocabulary_event(words_per_user=4, noise_multiplier=0.5).query
  GaussianSum(clip_norm=2.0, stddev=1.0)
  """
  return Round(
    PoissonSampling(1.0), GaussianSum(*_bound_and_noise(words_per_user, noise_multiplier))
  )


def _bound_and_noise(words_per_user: int, noise_multiplier: float) -> tuple[float, float]:
  """The clip norm sqrt(L) of a user's vector, and the noise's standard deviation z sqrt(L)."""
  _validate.in_range(1, 2**31 - 1, words_per_user=words_per_user)
  # The range that a Gaussian sum accepts for its noise in float32, or no noise.
  if noise_multiplier != 0:
    _validate.in_range(1e-20, 1e20, noise_multiplier=noise_multiplier)
  clip_norm = math.sqrt(words_per_user)
  return clip_norm, noise_multiplier * clip_norm


def _naming_counts(
  users: Iterable[Iterable[str]], names: Sequence[str], words_per_user: int
) -> np.ndarray:
  """For each candidate, how many users name it, int64 [candidates]."""
  numbers = {name: i for i, name in enumerate(names)}
  total = np.zeros(len(names), np.int64)
  for texts in users:
    counts = collections.Counter(
      numbers[word] for text in texts for word in words(text) if word in numbers
    )
    total[[number for number, _ in counts.most_common(words_per_user)]] += 1
  return total
