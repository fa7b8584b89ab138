"""The recurrent language model of arXiv 1710.06963 (Appendix B), which predicts a user's next word.

It is an LSTM. A word has one embedding of norm 1, for input and for prediction. Sequences are
`Examples`. Inputs are words, int32 [n, steps]. Labels are the words that follow, int32 [n, steps].
A label BOS does not count.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp._equations import with_derivative
from jdp.data.clients import Examples
from jdp.data.vocabulary import BOS, SPECIAL
from jdp.models.base import Loss, check_sizes
from jdp.models.language.lstm import lstm
from jdp.models.language.word_losses import summed_by_pieces, weighted_cross_entropy

PyTree = Any

TOKENS_AT_ONCE = 256
"""The largest number of tokens whose scores, gates and states the loss holds, if sequences are not
longer."""

_GATES = ("i", "f", "o", "g")
_LEAST_NORM = 1e-6  # shorter rows are scaled by 1 / _LEAST_NORM, so none is divided by zero


class Prediction(NamedTuple):
  """The factors of the scores `vectors @ words.T + biases` of every word for every token.

  Attributes:
    vectors: float32 [n, steps, embedding].
    words: the words' embeddings of norm 1, float32 [vocabulary, embedding].
    biases: float32 [vocabulary].
  """

  vectors: jax.Array
  words: jax.Array
  biases: jax.Array

  def logits(self) -> jax.Array:
    """The scores, float32 [n, steps, vocabulary]."""
    return self.vectors @ self.words.T + self.biases[(None,) * (self.vectors.ndim - 1)]


class LanguageModel(NamedTuple):
  """A language model as pure functions: a `jdp.models.Model` with cheaper predictions.

  Attributes:
    init: key -> parameters, a plain pytree of float32 arrays.
    apply: (parameters, words int32 [n, steps]) -> logits of the words that follow, float32 [n,
      steps, vocabulary].
    predict: (parameters, words) -> the same logits as a `Prediction`, not yet multiplied.
  """

  init: Callable[[jax.Array], PyTree]
  apply: Callable[[PyTree, jax.Array], jax.Array]
  predict: Callable[[PyTree, jax.Array], Prediction]


@checked
def language_model(
  vocabulary_size: int, *, embedding: int = 96, hidden: int = 256
) -> LanguageModel:
  """An LSTM with tied embeddings.

  It has 1,346,336 weights and the output biases, for 10,000 words and UNK, BOS, EOS.

  A word is its row of one table, scaled to norm 1 whenever it is used. The rows themselves may
  grow, as they do where noise adds up in them. Then the same step, or the same noise, changes a
  word's direction less.

  One LSTM layer reads the words, from a state of zeros in each sequence. A matrix outside the
  recurrence maps its output to the embedding's size. The scores are the inner products with all
  words, plus biases. The table's gradient is the sum over both uses. So clipping bounds a client's
  effect on a word through both uses.

  For per-layer clipping `jdp.queries.per_layer_clipping.layers` finds 11 layers:

  * the four gates' matrices for the input;
  * the four gates' matrices for the state, each with its bias;
  * the output matrix, the table, and the output biases.

  Args:
    vocabulary_size: the number of words, with UNK, BOS and EOS.
    embedding: the size of a word's vector.
    hidden: the number of units of the LSTM.

  Raises:
    ValueError: if a size is too small or too large.

  >>> model = language_model(10003)
  >>> params = jax.eval_shape(model.init, jax.random.key(0))
  >>> sum(x.size for x in jax.tree.leaves(params)) - params["output"]["bias"].size
  1346336
  """
  _validate.integer(len(SPECIAL) + 1, vocabulary_size=vocabulary_size)
  check_sizes(1, vocabulary_size=vocabulary_size, embedding=embedding, hidden=hidden)
  cell = nn.OptimizedLSTMCell(hidden)

  def init(key):
    cell_key, projection_key, words_key = jax.random.split(key, 3)
    state = (jnp.zeros((1, hidden)), jnp.zeros((1, hidden)))
    return {
      "lstm": cell.init(cell_key, state, jnp.zeros((1, embedding)))["params"],
      "projection": {"kernel": nn.initializers.lecun_normal()(projection_key, (hidden, embedding))},
      "words": {
        "embedding": _directions(jax.random.normal(words_key, (vocabulary_size, embedding)))[0]
      },
      "output": {"bias": jnp.zeros(vocabulary_size)},
    }

  def predict(params, inputs):
    words, vectors = embedded(params["words"]["embedding"], inputs)
    outputs = recurrence(params["lstm"], vectors)
    return Prediction(outputs @ params["projection"]["kernel"], words, params["output"]["bias"])

  return LanguageModel(init, lambda params, inputs: predict(params, inputs).logits(), predict)


def _directions(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Each row scaled to norm 1, and the scales. A row near zero stays near zero."""
  squares = jnp.sum(rows**2, axis=1, keepdims=True)
  scales = jax.lax.rsqrt(jnp.maximum(squares, _LEAST_NORM**2))
  return rows * scales, scales


def _embedded(rows: jax.Array, numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
  """See `embedded`."""
  words, _ = _directions(rows)
  return words, words[numbers]


def _embed_forward(rows: jax.Array, numbers: jax.Array) -> tuple[tuple[jax.Array, jax.Array], Any]:
  """The words, and what their derivative needs."""
  words, scales = _directions(rows)
  return (words, words[numbers]), (words, scales, numbers)


def _embed_backward(kept: Any, by_result: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
  """The derivative by the rows, for both uses at once."""
  words, scales, numbers = kept
  by_words, by_inputs = by_result
  by_words = by_words.at[numbers].add(by_inputs)
  along = jnp.sum(by_words * words, axis=1, keepdims=True)
  # A row near zero is scaled by a constant.
  along = jnp.where(scales < 1 / _LEAST_NORM, along, 0.0)
  return scales * (by_words - along * words), None


embedded = with_derivative(_embedded, _embed_forward, _embed_backward)
"""(rows [vocabulary, size], numbers) -> each row scaled to norm 1, and the scaled rows of
`numbers`.

A row near zero stays near zero.
"""


def recurrence(params: PyTree, inputs: jax.Array) -> jax.Array:
  """flax's `OptimizedLSTMCell` along [n, steps, features].

  The input products of all steps are computed at once.
  """
  from_input, from_state, bias = (
    jnp.concatenate([params[name + gate][part] for gate in _GATES], axis=-1)
    for name, part in (("i", "kernel"), ("h", "kernel"), ("h", "bias"))
  )
  gates = inputs.swapaxes(0, 1) @ from_input + bias[None, None]
  return lstm(gates, from_state).swapaxes(0, 1)


@checked
def next_word_loss(model: LanguageModel) -> Loss:
  """The loss (parameters, examples) -> mean cross-entropy of the tokens that count, in nats.

  It is 0 if none does. The softmax is over all words, UNK included. The loss and its gradient are
  summed over pieces of whole sequences with `TOKENS_AT_ONCE` tokens, or of one sequence. So they
  need memory for one piece, however many tokens the examples have. Scores are held for at most
  `TOKENS_AT_ONCE` tokens, however long a sequence is. The contents of padding change neither the
  loss nor its gradient.

  >>> from jdp import data
  >>> model = language_model(5, embedding=4, hidden=4)
  >>> params = jax.eval_shape(model.init, jax.random.key(0))
  >>> params = jax.tree.map(jnp.zeros_like, params)  # all words are alike
  >>> examples = data.sequences(data.public_vocabulary(["the cat"], 2), ["the cat sat"])
  >>> round(next_word_loss(model)(params, examples).item(), 3)  # log 5
  1.609
  """

  def loss(params, examples):
    inputs, labels, counts = tokens(examples)
    weights = counts / jnp.maximum(jnp.sum(counts), 1.0)
    at_once = max(1, TOKENS_AT_ONCE // max(1, inputs.shape[1]))
    return summed_by_pieces(own_loss, params, (inputs, labels, weights), at_once=at_once)

  def own_loss(params, piece):
    inputs, labels, weights = piece
    vectors, words, biases = model.predict(params, inputs)
    vectors = vectors.reshape(-1, vectors.shape[-1])
    return weighted_cross_entropy(
      vectors, words, biases, labels.reshape(-1), weights.reshape(-1), at_once=TOKENS_AT_ONCE
    )

  return loss


def tokens(examples: Examples) -> tuple[jax.Array, jax.Array, jax.Array]:
  """(words, labels, mask) of sequences, all [n, steps], with BOS in place of padding.

  The mask is 1 for each token that counts, else 0.
  """
  is_real = jnp.asarray(examples.mask)[:, None] > 0
  inputs, labels = (
    jnp.where(is_real, jnp.asarray(x), BOS) for x in (examples.inputs, examples.labels)
  )
  return inputs, labels, (labels != BOS).astype(jnp.float32)
