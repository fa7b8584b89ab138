"""A size that no machine holds is a sentence: XLA would end the process."""

import jax
import pytest

from jdp import models
from jdp.models.base import LARGEST_SIZE
from jdp.models.batch_norm import batch_norm_cnn

_HUGE = 10**18


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: models.transformer(100, max_length=8, width=_HUGE, num_heads=1), "width"),
    (lambda: models.transformer(_HUGE, max_length=8), "vocabulary_size"),
    (lambda: models.transformer(100, max_length=_HUGE), "max_length"),
    (lambda: models.transformer(100, max_length=8, num_layers=_HUGE), "num_layers"),
    (lambda: models.transformer(100, max_length=8, adapter_rank=_HUGE), "adapter_rank"),
    (
      lambda: models.transformer(100, max_length=8, width=LARGEST_SIZE, num_layers=1),
      "at most 274877906944 parameters",
    ),
    (lambda: models.language_model(_HUGE), "vocabulary_size"),
    (lambda: models.language_model(100, hidden=_HUGE), "hidden"),
    (lambda: models.logistic_regression((_HUGE,), 2), "input_shape"),
    (lambda: models.logistic_regression((_HUGE, _HUGE), 2), "input_shape"),
    (lambda: models.logistic_regression((4,), _HUGE), "num_classes"),
    (lambda: models.small_cnn((_HUGE, 28, 1), 10), "input_shape"),
    (lambda: models.small_cnn((28, 28, 1), _HUGE), "num_classes"),
    (lambda: batch_norm_cnn((28, 28, 1), _HUGE), "num_classes"),
    (lambda: models.glm("logistic", (_HUGE,)), "input_shape"),
    (lambda: models.glm("multinomial", (4,), _HUGE), "num_outputs"),
  ],
)
def test_sizes_that_no_machine_holds_are_refused(make, message):
  with pytest.raises(ValueError, match=f"Expected {message}"):
    make()


def test_a_model_is_made_without_its_parameters():
  """A transformer of 4.8 GB: only `init` needs its memory."""
  model = models.transformer(100, max_length=8, width=10_000, num_heads=1, num_layers=1)
  shapes = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
  assert sum(4 * leaf.size for leaf in shapes) > 4.8e9
