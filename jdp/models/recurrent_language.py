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
from jdp.data.clients import Examples
from jdp.data.vocabulary import BOS, SPECIAL
from jdp.models.base import Loss, mean_of_counting

PyTree = Any

TOKENS_AT_ONCE = 512
"""The largest number of tokens that the loss computes at once.

For more tokens it computes the predictions piece by piece, and again for the gradient.
"""

_GATES = ("i", "f", "g", "o")
_LEAST_NORM = 1e-6


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
  grow, as they do where noise adds up in them. The same step, or the same noise, then turns a
  word's direction less.

  One LSTM layer reads the words, from a state of zeros in each sequence. A matrix outside the
  recurrence takes its output back to the embedding's size. The scores are the inner products with
  all words, plus biases. The table's gradient is the sum over both uses. So clipping bounds what a
  client does to a word by either use.

  For per-layer clipping `jdp.queries.layers` finds 11 layers:

  * the four gates' matrices for the input;
  * the four gates' matrices for the state, each with its bias;
  * the output matrix, the table, and the output biases.

  Args:
    vocabulary_size: with UNK, BOS and EOS.
    embedding: size of a word's vector.
    hidden: units of the LSTM.

  Raises:
    ValueError: if a size is too small.

  >>> model = language_model(10003)
  >>> params = jax.eval_shape(model.init, jax.random.key(0))
  >>> sum(x.size for x in jax.tree.leaves(params)) - params["output"]["bias"].size
  1346336
  """
  _validate.integer(len(SPECIAL) + 1, vocabulary_size=vocabulary_size)
  _validate.integer(1, embedding=embedding, hidden=hidden)
  cell = nn.OptimizedLSTMCell(hidden)

  def init(key):
    cell_key, projection_key, words_key = jax.random.split(key, 3)
    state = (jnp.zeros((1, hidden)), jnp.zeros((1, hidden)))
    return {
      "lstm": cell.init(cell_key, state, jnp.zeros((1, embedding)))["params"],
      "projection": {"kernel": nn.initializers.lecun_normal()(projection_key, (hidden, embedding))},
      "words": {
        "embedding": normalised(jax.random.normal(words_key, (vocabulary_size, embedding)))
      },
      "output": {"bias": jnp.zeros(vocabulary_size)},
    }

  def predict(params, inputs):
    words = normalised(params["words"]["embedding"])
    outputs = recurrence(params["lstm"], words[inputs])
    return Prediction(outputs @ params["projection"]["kernel"], words, params["output"]["bias"])

  return LanguageModel(init, lambda params, inputs: predict(params, inputs).logits(), predict)


def normalised(rows: jax.Array) -> jax.Array:
  """Each row scaled to norm 1; a row near zero stays near zero."""
  return rows * jax.lax.rsqrt(jnp.maximum(jnp.sum(rows**2, axis=1, keepdims=True), _LEAST_NORM**2))


def recurrence(params: PyTree, inputs: jax.Array) -> jax.Array:
  """flax's `OptimizedLSTMCell` along [n, steps, features].

  The input products of all steps are computed at once.
  """
  from_input, from_state, bias = (
    jnp.concatenate([params[name + gate][part] for gate in _GATES], axis=-1)
    for name, part in (("i", "kernel"), ("h", "kernel"), ("h", "bias"))
  )
  gates = inputs.swapaxes(0, 1) @ from_input + bias[None, None]

  def step(state, gates):
    c, h = state
    i, f, g, o = jnp.split(gates + h @ from_state, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (c, h), h

  # from_state is [hidden, 4 hidden]: its rows are the units.
  zeros = jnp.zeros((inputs.shape[0], from_state.shape[0]), inputs.dtype)
  _, outputs = jax.lax.scan(step, (zeros, zeros), gates)
  return outputs.swapaxes(0, 1)


@checked
def next_word_loss(model: LanguageModel) -> Loss:
  """The loss (parameters, examples) -> mean cross-entropy of the tokens that count, in nats.

  It is 0 if none does. The softmax is over all words, UNK included. The loss needs memory for the
  scores of `TOKENS_AT_ONCE` tokens, however many the examples have. The contents of padding change
  neither the loss nor its gradient.
  """

  def loss(params, examples):
    inputs, labels, counts = tokens(examples)
    vectors, words, biases = model.predict(params, inputs)

    def piece(args):
      vectors, labels = args
      return cross_entropies(Prediction(vectors, words, biases).logits(), labels)

    losses = _by_pieces(piece, vectors.reshape(-1, vectors.shape[-1]), labels.reshape(-1))
    return mean_of_counting(losses, counts.reshape(-1))

  return loss


def _by_pieces(
  function: Callable[[tuple[jax.Array, jax.Array]], jax.Array],
  vectors: jax.Array,
  labels: jax.Array,
) -> jax.Array:
  """`function((vectors, labels))` of tokens [n, ...], for `TOKENS_AT_ONCE` of them at a time."""
  n = labels.size
  if n <= TOKENS_AT_ONCE:
    return function((vectors, labels))
  padding = -n % TOKENS_AT_ONCE
  pieces = (
    jnp.pad(vectors, ((0, padding), (0, 0))).reshape(-1, TOKENS_AT_ONCE, vectors.shape[1]),
    jnp.pad(labels, (0, padding)).reshape(-1, TOKENS_AT_ONCE),
  )
  # Without the checkpoint, the gradient would keep the scores of all pieces.
  return jax.lax.map(jax.checkpoint(function), pieces).reshape(-1)[:n]


def cross_entropies(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """-log softmax(logits)[label], float32 [n], for logits [n, vocabulary] and labels [n]."""
  chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
  return jax.nn.logsumexp(logits, axis=1) - chosen


def tokens(examples: Examples) -> tuple[jax.Array, jax.Array, jax.Array]:
  """(words, labels, mask) of sequences, all [n, steps], with BOS in place of padding.

  The mask is 1 for each token that counts, else 0.
  """
  is_real = jnp.asarray(examples.mask)[:, None] > 0
  inputs, labels = (
    jnp.where(is_real, jnp.asarray(x), BOS) for x in (examples.inputs, examples.labels)
  )
  return inputs, labels, (labels != BOS).astype(jnp.float32)
