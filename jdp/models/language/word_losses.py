"""The loss of predicted words, computed together with its gradient.

A token's scores of all words are many more numbers than their factors. An ordinary derivative keeps
the scores, or computes them again. Here the derivative is computed together with the loss, piece by
piece: each score is computed once, and only one piece's scores are held.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jdp._equations import with_derivative


def cross_entropies(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """-log softmax(logits)[label], float32 [n], for logits [n, vocabulary] and labels [n]."""
  chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
  return jax.nn.logsumexp(logits, axis=1) - chosen


def weighted_cross_entropy(
  vectors: jax.Array,
  words: jax.Array,
  biases: jax.Array,
  labels: jax.Array,
  weights: jax.Array,
  *,
  at_once: int,
) -> jax.Array:
  """The sum over tokens of weight times cross-entropy, in nats.

  Args:
    vectors: the tokens' vectors, float32 [n, size].
    words: the vectors of all words, float32 [vocabulary, size].
    biases: the words' biases, float32 [vocabulary].
    labels: the words that follow, int32 [n].
    weights: the tokens' weights, float32 [n].
    at_once: the largest number of tokens whose scores are held.
  """
  return _with_derivative(at_once)(vectors, words, biases, labels, weights)


@functools.cache
def _with_derivative(at_once: int) -> Callable[..., jax.Array]:
  """`weighted_cross_entropy` for `at_once` tokens at a time."""

  def total(vectors, words, biases, labels, weights):
    def piece(args):
      vectors, labels, weights = args
      return jnp.sum(weights * cross_entropies(vectors @ words.T + biases[None], labels))

    return _sum_of_pieces(piece, (vectors, labels, weights), at_once)

  def forward(vectors, words, biases, labels, weights):
    def add(sums, piece):
      vectors, labels, weights = piece
      own, of_tokens = _differentiated(vectors, labels, weights, words, biases)
      return jax.tree.map(jnp.add, sums, own), of_tokens

    zeros = (jnp.float32(0), jnp.zeros_like(words), jnp.zeros_like(biases))
    pieces = _pieces((vectors, labels, weights), at_once)
    (value, *by_shared), of_tokens = jax.lax.scan(add, zeros, pieces)
    by_tokens = [x.reshape(-1, *x.shape[2:])[: len(labels)] for x in of_tokens]
    return value, (*by_tokens, *by_shared)

  def backward(kept, by_value):
    by_vectors, by_weights, by_words, by_biases = (by_value * x for x in kept)
    return by_vectors, by_words, by_biases, None, by_weights

  return with_derivative(total, forward, backward)


def summed_by_pieces(
  function: Callable[[Any, Any], jax.Array], shared: Any, rows: Any, *, at_once: int
) -> jax.Array:
  """The sum over pieces of rows of function(shared, piece), one piece after the other.

  Its derivative by `shared` is computed together with the sum. So intermediate values are held for
  one piece only. The rows have no derivative.

  Args:
    function: must be a sum over rows, and zero for rows of zeros.
    shared: a pytree of float32 arrays.
    rows: a pytree of arrays [n, ...].
    at_once: the largest number of rows in a piece.
  """
  if len(jax.tree.leaves(rows)[0]) <= at_once:
    return function(shared, rows)

  def total(shared, rows):
    return _sum_of_pieces(functools.partial(function, shared), rows, at_once)

  def forward(shared, rows):
    def add(sums, piece):
      return jax.tree.map(jnp.add, sums, jax.value_and_grad(function)(shared, piece)), None

    zeros = (jnp.float32(0), jax.tree.map(jnp.zeros_like, shared))
    return jax.lax.scan(add, zeros, _pieces(rows, at_once))[0]

  def backward(by_shared, by_value):
    return jax.tree.map(lambda x: by_value * x, by_shared), None

  return with_derivative(total, forward, backward)(shared, rows)


def _sum_of_pieces(piece: Callable[[Any], jax.Array], rows: Any, at_once: int) -> jax.Array:
  """The sum of a function of pieces."""
  if len(jax.tree.leaves(rows)[0]) <= at_once:
    return piece(rows)
  # Without the checkpoint, a gradient would keep the intermediate values of all pieces.
  return jnp.sum(jax.lax.map(jax.checkpoint(piece), _pieces(rows, at_once)))


def _pieces(rows: Any, at_once: int) -> Any:
  """Arrays [n, ...] as [pieces, rows, ...], filled up with zeros."""
  n = len(jax.tree.leaves(rows)[0])
  count = max(1, -(-n // at_once))
  size = -(-n // count)

  def split(x):
    padded = jnp.pad(x, [(0, count * size - n)] + [(0, 0)] * (x.ndim - 1))
    return padded.reshape(count, size, *x.shape[1:])

  return jax.tree.map(split, rows)


def _differentiated(
  vectors: jax.Array, labels: jax.Array, weights: jax.Array, words: jax.Array, biases: jax.Array
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, jax.Array]]:
  """The loss of a piece, and its derivatives.

  Returns:
    The loss and the derivatives by the words and the biases. Then the derivatives by the vectors
    and the weights.
  """
  logits = vectors @ words.T + biases[None]
  largest = jnp.max(logits, axis=1)
  powers = jnp.exp(logits - largest[:, None])
  sums = jnp.sum(powers, axis=1)
  chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
  losses = jnp.log(sums) + largest - chosen
  # The softmax is powers / sums. The few numbers of a token are scaled instead of its scores.
  scale = weights / sums
  own = words.at[labels].get(mode="fill", fill_value=0.0)
  by_vectors = scale[:, None] * (powers @ words) - weights[:, None] * own
  by_words = (powers.T @ (scale[:, None] * vectors)).at[labels].add(-weights[:, None] * vectors)
  by_biases = (scale @ powers).at[labels].add(-weights)
  return (jnp.sum(weights * losses), by_words, by_biases), (by_vectors, losses)
