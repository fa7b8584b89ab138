"""Half precision rounds what is computed, and nothing else."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jdp import data, models


@pytest.mark.slow
def test_gradients_are_rounded_to_float32_by_two_to_the_minus_eight():
  """Losses of images and of text; a gradient of 2^-8 that is rounded a few times over."""
  model, words = models.logistic_regression((4, 4), 3), models.language_model(8, embedding=4)
  images = data.examples(np.ones((2, 4, 4)), np.array([0, 1]))
  text = data.Examples(jnp.full((2, 3), 5), jnp.full((2, 3), 6), jnp.ones(2))
  for made, loss, examples in (
    (model, models.cross_entropy, images),
    (words, models.next_word_loss, text),
  ):
    params = made.init(jax.random.key(0))
    exact, rounded = (
      ravel_pytree(jax.grad(loss(single_or_half))(params, examples))[0]
      for single_or_half in (made, models.half_precision(made))
    )
    assert rounded.dtype == jnp.float32
    error = np.linalg.norm(exact - rounded) / np.linalg.norm(exact)
    assert 1e-5 < error < 2**-5


def test_words_keep_their_numbers():
  """No bfloat16 lies between 256 and 258: a word's number in it would be another word's."""
  made = models.from_flax(nn.Embed(300, 3), (2,), dtype=jnp.int32)
  params = made.init(jax.random.key(0))
  words = jnp.array([[256, 257], [258, 299]])
  single = made.apply(params, words)
  half = models.half_precision(made).apply(params, words)
  np.testing.assert_array_equal(half, single.astype(jnp.bfloat16).astype(jnp.float32))


def test_dropout_in_training_takes_its_key():
  class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
      return nn.Dropout(0.5, deterministic=not train)(nn.Dense(64)(x))

  made = models.from_flax(Dropping(), (4,))
  params, inputs = made.init(jax.random.key(0)), jnp.ones((1, 4))
  single, half = (
    model.apply_training(params, inputs, jax.random.key(1))
    for model in (made, models.half_precision(made))
  )
  np.testing.assert_array_equal(single == 0, half == 0)
  assert 20 < int((half == 0).sum()) < 44  # 3 standard deviations of 64 coins, on a fixed key


@pytest.mark.parametrize("model", [dict, None, lambda params, inputs: inputs])
def test_what_is_no_model_is_refused(model):
  with pytest.raises(TypeError, match="Expected model to be one of Model, LanguageModel"):
    models.half_precision(model)
