"""The recurrent language model: its recurrence, its tied embedding, its loss and its metrics."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.data import Examples
from jdp.data.vocabulary import BOS, EOS, UNK, Vocabulary
from jdp.federated import local_sgd
from jdp.models import head_words, language_metrics, language_model, next_word_loss, next_words
from jdp.models.language.lstm import lstm
from jdp.models.language.recurrent import TOKENS_AT_ONCE, LanguageModel, embedded
from jdp.models.language.word_losses import summed_by_pieces, weighted_cross_entropy
from jdp.queries.per_layer_clipping import layers

V, E, H, N, T = 17, 6, 5, 4, 3
MODEL = language_model(V, embedding=E, hidden=H)
LOSS = next_word_loss(MODEL)
grad = jax.jit(jax.grad(LOSS))


@pytest.fixture(scope="module")
def params():
  """With embeddings that are not of norm 1, and biases that are not zero."""

  @jax.jit
  def draw(key, noise_key):
    params = MODEL.init(key)
    noise = iter(jax.random.split(noise_key, len(jax.tree.leaves(params))))
    return jax.tree.map(lambda x: x + 0.3 * jax.random.normal(next(noise), x.shape), params)

  return draw(jax.random.key(0), jax.random.key(1))


@pytest.fixture(scope="module")
def examples():
  words = np.random.default_rng(0).integers(3, V, (2, N, T)).astype(np.int32)
  return Examples(words[0], words[1], np.ones(N, np.float32))


def test_size_is_the_published_one_with_eleven_layers_and_any_vocabulary():
  for words in (10_000, 20_000, 30_000):
    shapes = jax.eval_shape(language_model(words + 3).init, jax.random.key(0))
    assert (
      sum(x.size for x in jax.tree.leaves(shapes)) == 1_346_336 + (words - 10_000) * 96 + words + 3
    )
  assert len(set(jax.tree.leaves(layers(shapes)))) == 11


@pytest.mark.slow
def test_logits_are_those_of_flax_with_normalised_tied_words(params, examples):
  words = np.asarray(params["words"]["embedding"])
  words = words / np.linalg.norm(words, axis=1, keepdims=True)
  recurrent = jax.jit(nn.RNN(nn.OptimizedLSTMCell(H)).apply)
  hidden = recurrent({"params": {"cell": params["lstm"]}}, jnp.asarray(words)[examples.inputs])
  expected = np.asarray(hidden @ params["projection"]["kernel"]) @ words.T + np.asarray(
    params["output"]["bias"]
  )
  np.testing.assert_allclose(jax.jit(MODEL.apply)(params, examples.inputs), expected, atol=1e-5)


@pytest.mark.slow
def test_gradient_of_the_tied_table_is_the_sum_of_both_uses(params, examples):
  def untied(read, predicted):
    inputs = MODEL.predict({**params, "words": {"embedding": read}}, examples.inputs)
    outputs = MODEL.predict({**params, "words": {"embedding": predicted}}, examples.inputs)
    split = LanguageModel(MODEL.init, MODEL.apply, lambda *_: inputs._replace(words=outputs.words))
    return next_word_loss(split)(params, examples)

  table = params["words"]["embedding"]
  read, predicted = jax.jit(jax.grad(untied, (0, 1)))(table, table)
  np.testing.assert_allclose(
    grad(params, examples)["words"]["embedding"], read + predicted, atol=1e-6
  )
  assert min(np.linalg.norm(read), np.linalg.norm(predicted)) > 1e-3


@pytest.mark.slow
def test_a_word_of_no_length_has_a_finite_gradient(params, examples):
  dead = {**params, "words": {"embedding": jnp.zeros((V, E))}}
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(grad(dead, examples)))


@pytest.mark.slow
def test_padding_does_not_change_the_gradient(params, examples):
  padded = Examples(
    np.concatenate([examples.inputs, np.full((1, T), 10**6, np.int32)]),
    np.concatenate([examples.labels, np.full((1, T), -(10**6), np.int32)]),
    np.append(examples.mask, np.float32(0)),
  )
  # A token that does not count, too: the last of the last sequence.
  some, less = (x.labels.copy() for x in (examples, padded))
  some[-1, -1] = less[N - 1, -1] = BOS
  one = grad(params, examples._replace(labels=some))
  other = grad(params, padded._replace(labels=less))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), one, other)
  whole = grad(params, examples)
  assert float(jnp.abs(one["output"]["bias"] - whole["output"]["bias"]).max()) > 1e-3
  empty = grad(params, examples._replace(mask=np.zeros(N, np.float32)))
  assert all(np.all(g == 0) for g in jax.tree.leaves(empty))


@pytest.mark.slow
def test_a_loss_computed_by_pieces_is_the_mean_over_all_tokens(params):
  rng = np.random.default_rng(1)
  n = TOKENS_AT_ONCE // T + 5
  inputs, labels = rng.integers(1, V, (2, n, T)).astype(np.int32)
  many = Examples(inputs, labels, np.ones(n, np.float32))

  def plain(params):
    losses = -jax.nn.log_softmax(MODEL.apply(params, inputs))[
      np.arange(n)[:, None], np.arange(T)[None], labels
    ]
    return jnp.sum(losses, where=labels != BOS) / np.float32((labels != BOS).sum())

  expected = jax.jit(jax.value_and_grad(plain))(params)
  by_pieces = jax.jit(jax.value_and_grad(LOSS))(params, many)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), by_pieces, expected
  )
  jaxpr = str(jax.make_jaxpr(jax.grad(LOSS))(params, many))
  assert f"f32[{-(-n * T // 2)},{V}]" in jaxpr  # two pieces
  assert f"[{n * T},{V}]" not in jaxpr  # no logits of all tokens at once
  assert f"[{T},{-(-n // 2)},{4 * H}]" in jaxpr
  assert f"[{T},{n},{4 * H}]" not in jaxpr  # no gates of them either


def _agree(function, plain, *args):
  """Values and derivatives are those that JAX finds for a plain function, up to rounding.

  The derivative of the derivative too, by which gradients are matched.
  """

  def both(function):
    def total(*args):
      return sum(jnp.sum(jnp.sin(x + 0.3)) for x in jax.tree.leaves(function(*args)))

    def steepness(*args):
      return sum(jnp.sum(x**2) for x in jax.grad(total, which)(*args))

    return jax.jit(
      lambda *args: (
        function(*args),
        jax.grad(total, which)(*args),
        jax.grad(steepness, which)(*args),
      )
    )(*args)

  which = tuple(i for i, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating))
  for own, other in zip(*(jax.tree.leaves(both(f)) for f in (function, plain)), strict=True):
    np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5 * float(jnp.abs(other).max()))


@pytest.mark.slow
def test_the_lstm_has_the_derivative_of_its_steps():
  def plain(gates, from_state):
    def step(state, own):
      cell, output = state
      i, f, o, g = jnp.split(own + output @ from_state, 4, axis=1)
      cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
      output = jax.nn.sigmoid(o) * jnp.tanh(cell)
      return (cell, output), output

    zeros = jnp.zeros((N, H))
    return jax.lax.scan(step, (zeros, zeros), gates)[1]

  keys = jax.random.split(jax.random.key(7), 2)
  _agree(
    lstm, plain, jax.random.normal(keys[0], (T, N, 4 * H)), jax.random.normal(keys[1], (H, 4 * H))
  )


@pytest.mark.slow
def test_words_have_the_derivative_of_both_uses():
  def plain(rows, numbers):
    words = rows / jnp.maximum(jnp.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    return words, words[numbers]

  rows = jax.random.normal(jax.random.key(8), (V, E)).at[2].set(1e-8)
  # The derivative of a row near zero is 1e6 times as large, and hides the others' errors.
  for own in (rows, rows[3:]):
    _agree(embedded, plain, own, jnp.asarray([[0, 2, 2], [5, 2, 1]]))


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [2, 5, 12])
def test_the_loss_of_words_has_the_derivative_of_the_softmax(at_once):
  def plain(vectors, words, biases, labels, weights):
    shares = jax.nn.log_softmax(vectors @ words.T + biases[None])
    return -jnp.sum(weights * shares[jnp.arange(5), labels])

  keys = jax.random.split(jax.random.key(9), 4)
  shapes = (5, E), (V, E), (V,), (5,)
  vectors, words, biases, weights = map(jax.random.normal, keys, shapes)
  function = functools.partial(weighted_cross_entropy, at_once=at_once)
  _agree(function, plain, vectors, words, biases, jnp.asarray([3, 0, 16, 3, 5]), weights)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [2, 5])
def test_a_sum_by_pieces_has_the_derivative_of_the_whole(at_once):
  def wave(shared, rows):
    numbers, weights = rows
    return jnp.sum(weights[:, None] * jnp.sin(shared["a"][numbers] * shared["b"][None]))

  a, b = map(jax.random.normal, jax.random.split(jax.random.key(10)), ((4, 3), (3,)))
  rows = jnp.asarray([1, 3, 3, 0, 2]), np.arange(5, dtype=np.float32)

  def whole(a, b):
    return wave({"a": a, "b": b}, rows)

  def by_pieces(a, b):
    return summed_by_pieces(wave, {"a": a, "b": b}, rows, at_once=at_once)

  _agree(by_pieces, whole, a, b)


@pytest.mark.slow
def test_local_training_learns_a_sequence():
  words = np.tile(np.array([3, 4, 5, 3, 6, 7], np.int32), 7)
  cycle = Examples(words[:-2].reshape(8, 5), words[1:-1].reshape(8, 5), np.ones(8, np.float32))
  start = jax.jit(MODEL.init)(jax.random.key(2))
  train = jax.jit(local_sgd(LOSS, 2.0, num_epochs=60, batch_size=4))
  trained = jax.tree.map(jnp.add, start, train(jax.random.key(3), start, cycle))
  metrics = language_metrics(MODEL, trained, cycle)
  # What follows the first word of a sequence may be unclear, the other 4 of 5 tokens are certain.
  assert metrics["accuracy_top1"] >= 0.8
  assert metrics["perplexity"] < 2


def _fixed(logits) -> LanguageModel:
  """A model that gives these logits [steps, V] for every sequence."""
  return LanguageModel(
    lambda key: None, lambda params, inputs: jnp.stack([jnp.asarray(logits)] * len(inputs)), None
  )


def test_metrics_count_words_by_rank_and_never_unk_eos_ties_nan_or_padding():
  best_first = np.full((8, V), -9.0, np.float32)
  best_first[:, [UNK, EOS, 5, 6, 7, 8]] = [6, 5, 4, 3, 2, 1]  # of the words, 5 is the first, ..
  best_first[6:] = [[0.0], [math.nan]]  # all tied, and all NaN
  labels = np.array([[UNK, 5, 6, 8, EOS, BOS, 3, 3]], np.int32)
  sequences = Examples(
    np.full((2, 8), 4, np.int32), np.repeat(labels, 2, 0), np.array([1.0, 0.0], np.float32)
  )
  metrics = language_metrics(_fixed(best_first), None, sequences, batch_size=2)
  rights = {
    name: round(float(value) * 6, 5) for name, value in metrics.items() if name != "perplexity"
  }
  assert rights == {"accuracy_top1": 1, "accuracy_top3": 2, "accuracy_top5": 3}


@pytest.mark.slow
def test_perplexity_is_of_all_tokens_that_count_the_ends_and_unknown_words_among_them():
  logits = np.random.default_rng(2).normal(scale=2.0, size=(4, V))
  labels = np.array([[5, EOS, UNK, 6], [EOS, 7, BOS, BOS], [9, 9, 9, 9]], np.int32)
  sequences = Examples(np.full((3, 4), 4, np.int32), labels, np.array([1, 1, 0], np.float32))
  metrics = language_metrics(_fixed(logits.astype(np.float32)), None, sequences)
  losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(4), labels]
  expected = np.exp([*losses[0], *losses[1, :2]]).prod() ** (1 / 6)
  assert float(metrics["perplexity"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_head_words_count_the_frequent_among_the_likeliest():
  logits = np.zeros((2, V), np.float32)
  # of the 4 likeliest: 2 among the first 2 words, 3 among the first 10
  logits[0, [UNK, 3, 4, 12, 14]] = [9, 8, 7, 6, 5]
  logits[1, [13, 14, 15, 16]] = 5
  pair = Examples(
    np.zeros((3, 2), np.int32),
    np.array([[5, 5], [5, BOS], [5, 5]], np.int32),
    np.array([1, 1, 0], np.float32),
  )
  counts = head_words(_fixed(logits), None, pair, heads=(2, 10), predictions=4)
  assert counts.tolist() == [[1, 0, 2, 0, 0], [1, 0, 0, 2, 0]]


def test_next_words_offer_words_by_probability_and_no_unk():
  vocabulary = Vocabulary(tuple("abcdefghijklmn"))
  logits = np.zeros((3, V), np.float32)
  logits[-1, [UNK, BOS, 5, 3]] = [99, 98, 97, 96]
  (first, p), (second, q) = next_words(_fixed(logits), None, vocabulary, "c b", 2)
  assert (first, second) == ("c", "a")
  assert p > q


@pytest.mark.parametrize("sizes", [{"vocabulary_size": 3}, {"vocabulary_size": 9, "hidden": 0}])
def test_a_size_out_of_range_is_refused(sizes):
  with pytest.raises(ValueError, match="Expected"):
    language_model(**sizes)
