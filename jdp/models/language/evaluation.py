"""How well a language model predicts, and which words it predicts."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp.data.clients import Examples
from jdp.data.vocabulary import BOS, EOS, SPECIAL, UNK, Vocabulary
from jdp.models.base import batch_within
from jdp.models.language.recurrent import LanguageModel, tokens
from jdp.models.language.word_losses import cross_entropies

PyTree = Any
TOPS = (1, 3, 5)


@checked
def language_metrics(
  model: LanguageModel, params: PyTree, examples: Examples, *, batch_size: int = 50
) -> dict[str, jax.Array]:
  """Accuracy and perplexity, computed in batches of bounded memory.

  accuracy_top1, accuracy_top3 and accuracy_top5 are the shares of words that are among the 1, 3 and
  5 words with the highest scores. A word ranks below other words whose score is equal or NaN, and a
  word with a NaN score ranks last. A word outside the vocabulary is never predicted correctly, so
  that vocabularies can be compared (arXiv 1710.06963, Appendix B).

  UNK, BOS and EOS are not offered as predictions. The end of an utterance does not count in the
  accuracies. Perplexity is e^(mean cross-entropy) over all tokens, EOS and UNK included.

  As in training, every sequence begins with a state of zeros. Its first words are predicted from
  almost no context. On average, about half a sequence precedes a word.

  Args:
    model: a `language_model`.
    params: its parameters.
    examples: sequences.
    batch_size: the number of sequences computed side by side.

  Returns:
    The three accuracies and "perplexity", float32 scalars by name.

  >>> from jdp import data, models
  >>> vocabulary = Vocabulary(("the", "cat", "sat"))
  >>> model = models.language_model(len(vocabulary), embedding=4, hidden=4)
  >>> params = jax.eval_shape(model.init, jax.random.key(0))
  >>> params = jax.tree.map(jnp.zeros_like, params)  # all words are alike
  >>> metrics = language_metrics(model, params, data.sequences(vocabulary, ["the cat sat"]))
  >>> {name: round(value.item(), 3) for name, value in metrics.items()}
  {'accuracy_top1': 0.0, 'accuracy_top3': 1.0, 'accuracy_top5': 1.0, 'perplexity': 6.0}
  """

  def one(sequence):
    inputs, labels, counts = _tokens_of_one(sequence)
    logits = model.apply(params, inputs[None])[0]
    # No comparison with NaN is true: NaN and equal scores count against the label.
    below = _offered(logits) < jnp.take_along_axis(logits, labels[:, None], axis=1)
    rank = logits.shape[1] - jnp.sum(below, axis=1, dtype=jnp.int32)  # 1 is the best
    is_word = jnp.where(labels == EOS, 0.0, counts)
    right = {top: jnp.sum(jnp.where((rank <= top) & (labels != UNK), is_word, 0.0)) for top in TOPS}
    return (
      right,
      jnp.sum(is_word),
      jnp.sum(cross_entropies(logits, labels) * counts),
      jnp.sum(counts),
    )

  by_sequence = jax.lax.map(one, examples, batch_size=batch_within(batch_size, examples))
  right, num_words, loss, num_tokens = jax.tree.map(jnp.sum, by_sequence)
  accuracies = {f"accuracy_top{top}": right[top] / jnp.maximum(num_words, 1.0) for top in TOPS}
  return {**accuracies, "perplexity": jnp.exp(loss / jnp.maximum(num_tokens, 1.0))}


def _offered(logits: jax.Array) -> jax.Array:
  """Logits [..., vocabulary] with minus infinity for UNK, BOS and EOS."""
  return logits.at[..., : len(SPECIAL)].set(-jnp.inf)


def _tokens_of_one(sequence: Examples) -> tuple[jax.Array, jax.Array, jax.Array]:
  """`tokens` of a single sequence, all [steps]."""
  inputs, labels, counts = tokens(jax.tree.map(lambda x: jnp.asarray(x)[None], sequence))
  return inputs[0], labels[0], counts[0]


@checked
def head_words(
  model: LanguageModel,
  params: PyTree,
  examples: Examples,
  heads: Sequence[int] = (10, 50, 100),
  *,
  predictions: int = 10,
  batch_size: int = 50,
) -> jax.Array:
  """How strongly a model prefers frequent words, as in Table 3 of arXiv 1710.06963.

  For each token it intersects the model's likeliest words with the N most frequent, and counts how
  many they share.

  Args:
    model: a `language_model`, whose words are numbered by frequency.
    params: its parameters.
    examples: sequences.
    heads: the values of N.
    predictions: how many of the likeliest words are counted.
    batch_size: the number of sequences computed side by side.

  Returns:
    int32 [len(heads), predictions + 1]. Column i is the number of tokens for which i of the words
    are among the N.

  >>> from jdp import data, models
  >>> vocabulary = Vocabulary(("the", "cat", "sat"))
  >>> model = models.language_model(len(vocabulary), embedding=4, hidden=4)
  >>> params = jax.tree.map(jnp.zeros_like, jax.eval_shape(model.init, jax.random.key(0)))
  >>> params["output"]["bias"] = -jnp.arange(6.0)  # the more frequent, the likelier
  >>> made = data.sequences(vocabulary, ["the cat sat"])
  >>> head_words(model, params, made, (1, 3), predictions=2).tolist()  # of 4 tokens
  [[0, 4, 0], [0, 0, 4]]
  """
  last = jnp.array(heads, jnp.int32) + len(SPECIAL)

  num_words = jax.eval_shape(model.apply, params, examples.inputs[:1]).shape[-1]
  _validate.in_range(1, num_words, predictions=predictions)
  _validate.integer(1, length_of_heads=len(heads))

  def one(sequence):
    inputs, _, counts = _tokens_of_one(sequence)
    # likeliest: [steps, predictions]
    _, likeliest = jax.lax.top_k(_offered(model.apply(params, inputs[None])[0]), predictions)
    is_head = (likeliest[None] >= len(SPECIAL)) & (likeliest[None] < last[:, None, None])
    size = jnp.sum(is_head, axis=-1, dtype=jnp.int32)  # [heads, steps]
    places = jax.nn.one_hot(size, predictions + 1, dtype=jnp.int32)
    return jnp.sum(places, axis=1, where=counts[None, :, None] > 0)

  by_sequence = jax.lax.map(one, examples, batch_size=batch_within(batch_size, examples))
  return jnp.sum(by_sequence, axis=0)


@checked
def next_words(
  model: LanguageModel, params: PyTree, vocabulary: Vocabulary, text: str, count: int = 3
) -> list[tuple[str, float]]:
  """The likeliest words after the beginning of an utterance, with their probabilities.

  A keyboard would offer them. The end of the utterance and UNK are not offered, even if they are
  likelier.

  >>> from jdp.models.language.recurrent import language_model
  >>> vocabulary = Vocabulary(("the", "cat", "sat"))
  >>> model = language_model(len(vocabulary), embedding=4, hidden=8)
  >>> words = next_words(model, model.init(jax.random.key(0)), vocabulary, "the cat")
  >>> sorted(word for word, _ in words)
  ['cat', 'sat', 'the']
  """
  _validate.integer(1, count=count)
  numbers = jnp.array([[BOS, *vocabulary.encode(text)]], jnp.int32)
  logits = model.apply(params, numbers)[0, -1]
  _, likeliest = jax.lax.top_k(_offered(logits), min(count, len(vocabulary.words)))
  probabilities = jax.nn.softmax(logits)[likeliest]
  return [
    (vocabulary.decode([number]), p)
    for number, p in zip(likeliest.tolist(), probabilities.tolist(), strict=True)
  ]
