"""A small transformer that predicts the next word, and low-rank adapters to train only a part of
it.

Its parts are those of arXiv 1706.03762, with layers normalised before each part. Sequences are as
in `jdp.models.language_model`, and so is the loss (`jdp.models.next_word_loss`).
"""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx, traverse_util

from jdp import _validate
from jdp._arguments import Arrays, checked
from jdp.data.vocabulary import SPECIAL
from jdp.models.base import MOST_LAYERS, check_sizes
from jdp.models.frozen import freeze
from jdp.models.language.recurrent import LanguageModel, Prediction
from jdp.models.libraries.flax_modules import from_flax

_ADAPTER = "adapter"
_PLACES_STDDEV = 0.02


class _Projection(nnx.Linear):
  """A linear layer, plus the product of two thin matrices if there is a rank."""

  def __init__(self, inputs: int, outputs: int, rank: int | None, rngs: nnx.Rngs):
    super().__init__(inputs, outputs, rngs=rngs)
    if rank is not None:
      setattr(self, _ADAPTER, nnx.LoRA(inputs, rank, outputs, rngs=rngs))

  def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
    adapter = getattr(self, _ADAPTER, None)
    outputs = super().__call__(inputs, out_sharding)
    return outputs if adapter is None else outputs + adapter(inputs)


class _Block(nnx.Module):
  """Attention to earlier places, and two dense layers at each place. Each adds to its input."""

  def __init__(self, width: int, num_heads: int, rank: int | None, rngs: nnx.Rngs):
    self.num_heads = num_heads
    self.attention_norm = nnx.LayerNorm(width, rngs=rngs)
    self.query = _Projection(width, width, rank, rngs)
    self.key = _Projection(width, width, rank, rngs)
    self.value = _Projection(width, width, rank, rngs)
    self.out = _Projection(width, width, rank, rngs)
    self.dense_norm = nnx.LayerNorm(width, rngs=rngs)
    self.up = _Projection(width, 4 * width, rank, rngs)
    self.down = _Projection(4 * width, width, rank, rngs)

  def __call__(self, x: jax.Array) -> jax.Array:
    y = self.attention_norm(x)
    query, key, value = (
      layer(y).reshape(*y.shape[:-1], self.num_heads, -1)
      for layer in (self.query, self.key, self.value)
    )
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    x = x + self.out(mixed.reshape(x.shape))
    return x + self.down(nnx.gelu(self.up(self.dense_norm(x))))


class _Transformer(nnx.Module):
  """The network of `transformer`."""

  def __init__(
    self,
    vocabulary_size: int,
    max_length: int,
    width: int,
    num_heads: int,
    num_layers: int,
    rank: int | None,
    rngs: nnx.Rngs,
  ):
    self.words = nnx.Embed(vocabulary_size, width, rngs=rngs)
    places = jax.random.normal(rngs.params(), (max_length, width))
    self.places = nnx.Param(_PLACES_STDDEV * places)
    self.num_layers = num_layers
    for layer in range(num_layers):
      setattr(self, f"block_{layer}", _Block(width, num_heads, rank, rngs))
    self.norm = nnx.LayerNorm(width, rngs=rngs)
    self.bias = nnx.Param(jnp.zeros(vocabulary_size))

  def __call__(self, words: jax.Array) -> Prediction:
    places = self.places[...]
    if words.shape[1] > len(places):
      raise ValueError(
        f"Expected sequences of at most max_length {len(places)}, got {words.shape[1]}; cut them."
      )
    x = self.words(words) + places[None, : words.shape[1]]
    for layer in range(self.num_layers):
      x = getattr(self, f"block_{layer}")(x)
    return Prediction(self.norm(x), self.words.embedding[...], self.bias[...])


@checked
def transformer(
  vocabulary_size: int,
  *,
  max_length: int,
  width: int = 64,
  num_heads: int = 4,
  num_layers: int = 2,
  adapter_rank: int | None = None,
) -> LanguageModel:
  """A transformer with tied embeddings (flax nnx).

  A word's score depends only on the words before it. The parameters are a nested dict: the table of
  words, which is the output layer too, a vector for each place, the blocks, and the output biases.

  With adapters, every projection x W + b becomes x W + b + (x A) B (LoRA, arXiv 2106.09685), where
  A and B have `adapter_rank` columns and rows, and B starts at zero. `train_adapters` trains only A
  and B.

  Args:
    vocabulary_size: the number of words, with UNK, BOS and EOS.
    max_length: the most words of a sequence.
    width: the size of a word's vector, a multiple of num_heads.
    num_heads: the number of attention heads.
    num_layers: the number of blocks.
    adapter_rank: the rank of the adapters. None: there are no adapters.

  Raises:
    ValueError: if a size is too small or too large, or num_heads does not divide the width.

  >>> model = transformer(1000, max_length=16)
  >>> params = jax.eval_shape(model.init, jax.random.key(0))
  >>> sum(x.size for x in jax.tree.leaves(params))
  166120
  >>> jax.eval_shape(model.apply, params, jnp.zeros((3, 16), jnp.int32)).shape
  (3, 16, 1000)
  """
  _validate.integer(len(SPECIAL) + 1, vocabulary_size=vocabulary_size)
  check_sizes(1, vocabulary_size=vocabulary_size, max_length=max_length)
  check_sizes(1, width=width, num_heads=num_heads)
  _validate.integer(1, num_layers=num_layers)
  _validate.in_range(1, MOST_LAYERS, num_layers=num_layers)
  if adapter_rank is not None:
    check_sizes(1, adapter_rank=adapter_rank)
  if width % num_heads:
    raise ValueError(
      f"Expected num_heads to divide the width {width}, got {num_heads}; give a divisor."
    )

  def network(rngs):
    return _Transformer(
      vocabulary_size, max_length, width, num_heads, num_layers, adapter_rank, rngs
    )

  made = from_flax(network, (max_length,), dtype=jnp.int32)
  init, predict = made.init, cast(Callable[..., Prediction], made.apply)
  return LanguageModel(init, lambda params, words: predict(params, words).logits(), predict)


@checked
def train_adapters(model: LanguageModel, params: Arrays, key: jax.Array) -> LanguageModel:
  """The model that trains its adapters, and holds everything else at the given values.

  The held values must be public, or their cost must be in the ledger: see `freeze`.

  Args:
    model: a `transformer` with an `adapter_rank`.
    params: the parameters of the same transformer without adapters.
    key: draws the adapters that training starts from. At first they change no prediction.

  Returns:
    The model. Its parameters have None in place of what is frozen.

  Raises:
    ValueError: if the model has no adapters, or params are of another model.

  >>> plain, adapted = (
  ...   transformer(10, max_length=4, width=8, num_heads=2, num_layers=1, adapter_rank=rank)
  ...   for rank in (None, 2)
  ... )
  >>> model = train_adapters(adapted, plain.init(jax.random.key(0)), jax.random.key(1))
  >>> sum(x.size for x in jax.tree.leaves(model.init(jax.random.key(2))))
  288
  """
  start = traverse_util.flatten_dict(model.init(key))
  adapters = {path: leaf for path, leaf in start.items() if _ADAPTER in path}
  if not adapters:
    raise ValueError("Expected a model with adapters, got one without; give an adapter_rank.")
  merged = traverse_util.unflatten_dict(traverse_util.flatten_dict(params) | adapters)
  if jax.tree.map(jnp.shape, merged) != jax.tree.map(
    jnp.shape, traverse_util.unflatten_dict(start)
  ):
    raise ValueError(
      "Expected params of the same transformer without adapters, got others; give what its init "
      "returned, or a run's result."
    )
  return freeze(model, merged, lambda path: f"/{_ADAPTER}/" in path)
