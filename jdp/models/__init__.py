"""Models as pairs of pure functions, and their losses."""

from jdp.models.base import Loss, Model, accuracy, cross_entropy
from jdp.models.cnn import small_cnn
from jdp.models.logistic import logistic_regression

__all__ = ["Loss", "Model", "accuracy", "cross_entropy", "logistic_regression", "small_cnn"]
