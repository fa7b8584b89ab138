"""Models as pairs of pure functions, and their losses."""

from jdp.models.base import Loss, Model, accuracy
from jdp.models.cnn import small_cnn
from jdp.models.frozen import freeze, unfreeze
from jdp.models.generalised_linear import glm, with_intercept
from jdp.models.language.evaluation import head_words, language_metrics, next_words
from jdp.models.language.recurrent import language_model, next_word_loss
from jdp.models.language.transformers import train_adapters, transformer
from jdp.models.libraries.equinox_modules import from_equinox
from jdp.models.libraries.flax_modules import from_flax
from jdp.models.logistic import logistic_regression
from jdp.models.losses import (
  binary_cross_entropy,
  cross_entropy,
  example_loss,
  huber,
  squared_error,
)
from jdp.models.parameter_files import load_params, save_params
from jdp.models.precision import half_precision
from jdp.models.validation import validate

__all__ = [
  "Loss",
  "Model",
  "accuracy",
  "binary_cross_entropy",
  "cross_entropy",
  "example_loss",
  "freeze",
  "from_equinox",
  "from_flax",
  "glm",
  "half_precision",
  "head_words",
  "huber",
  "language_metrics",
  "language_model",
  "load_params",
  "logistic_regression",
  "next_word_loss",
  "next_words",
  "save_params",
  "small_cnn",
  "squared_error",
  "train_adapters",
  "transformer",
  "unfreeze",
  "validate",
  "with_intercept",
]
