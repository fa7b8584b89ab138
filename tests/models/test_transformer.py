"""The transformer predicts from what came before, and its adapters are trained alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import models

SIZES = {"max_length": 4, "width": 8, "num_heads": 2, "num_layers": 1}


def test_what_does_not_fit_is_refused():
  with pytest.raises(ValueError, match="Expected num_heads to divide the width 8, got 3"):
    models.transformer(10, **SIZES | {"num_heads": 3})
  plain, adapted = (models.transformer(10, **SIZES, adapter_rank=rank) for rank in (None, 2))
  params = jax.eval_shape(plain.init, jax.random.key(0))
  with pytest.raises(ValueError, match="Expected sequences of at most max_length 4, got 5"):
    jax.eval_shape(plain.apply, params, jnp.zeros((1, 5), jnp.int32))
  with pytest.raises(ValueError, match="Expected a model with adapters"):
    models.train_adapters(plain, params, jax.random.key(1))
  with pytest.raises(ValueError, match="Expected params of the same transformer"):
    models.train_adapters(adapted, {"words": {"embedding": jnp.zeros((3, 8))}}, jax.random.key(1))


@pytest.mark.slow
def test_a_word_is_predicted_from_those_before_it():
  model = models.transformer(10, **SIZES)
  params, apply = jax.jit(model.init)(jax.random.key(0)), jax.jit(model.apply)
  words = jnp.array([[3, 4, 5, 6]])
  before, after = (np.asarray(apply(params, own)[0]) for own in (words, words.at[0, 2].set(7)))
  np.testing.assert_array_equal(before[:2], after[:2])
  assert np.all(np.any(before[2:] != after[2:], axis=1))
