"""Losses by example: their values, and that padding changes neither them nor their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import data, models
from jdp.data import Examples
from jdp.models import Model

LINE = Model(lambda key: jnp.ones((3, 1)), lambda params, x: x @ params)
PLANE = Model(lambda key: jnp.ones((3, 2)), lambda params, x: x @ params)
PARAMS = jnp.array([[0.5], [-1.0], [2.0]])
INPUTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
SCORES = INPUTS @ np.asarray(PARAMS)[:, 0]
NUMBERS, YES = np.array([0.5, -2.0, 30.0, 1.0], np.float32), np.array([True, False, True, True])


def huber(errors, t):
  return np.where(np.abs(errors) <= t, errors**2 / 2, t * (np.abs(errors) - t / 2))


CASES = {
  "squared": (models.squared_error(LINE), NUMBERS, (SCORES - NUMBERS) ** 2),
  "huber": (models.huber(LINE, 1.5), NUMBERS, huber(SCORES - NUMBERS, 1.5)),
  "binary": (
    models.binary_cross_entropy(LINE),
    YES,
    np.log1p(np.exp(-SCORES * np.where(YES, 1, -1))),
  ),
  "own, of two parts": (
    models.example_loss(LINE, lambda s, y: jnp.abs(s[:, 0] - y["a"]) * y["b"].astype(jnp.float32)),
    {"a": NUMBERS, "b": YES},
    np.abs(SCORES - NUMBERS) * YES,
  ),
}


def padded(labels, count):
  """The first examples, and NaN, large integers or True in place of the others."""
  mask = (np.arange(4) < count).astype(np.float32)

  def spoilt(x):
    filling = np.nan if x.dtype.kind == "f" else np.iinfo(x.dtype).max if x.dtype.kind == "i" else 1
    return np.where(mask.reshape(-1, *[1] * (x.ndim - 1)) > 0, x, x.dtype.type(filling))

  return Examples(spoilt(INPUTS), jax.tree.map(spoilt, labels), mask)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_loss_is_the_mean_over_what_counts_and_padding_changes_nothing(name):
  loss, labels, expected = CASES[name]
  assert loss(PARAMS, padded(labels, 4)) == pytest.approx(expected.mean(), rel=1e-5)
  step = jax.jit(jax.value_and_grad(loss))
  value, gradient = step(PARAMS, padded(labels, 2))
  assert value == pytest.approx(expected[:2].mean(), rel=1e-5)
  two = Examples(*jax.tree.map(lambda x: x[:2], tuple(padded(labels, 4))))
  np.testing.assert_allclose(gradient, jax.grad(loss)(PARAMS, two), rtol=1e-6)
  value, gradient = step(PARAMS, padded(labels, 0))
  assert value == 0
  assert not np.any(gradient)


def test_predictions_and_labels_of_other_shapes_are_refused_rather_than_broadcast():
  """[n, 1] less [n] is [n, n]: a loss of every prediction with every label."""
  made = data.examples(INPUTS, NUMBERS, label_kind="numbers")
  with pytest.raises(ValueError, match=r"Expected predictions of the labels' shape \(4,\), got"):
    models.squared_error(PLANE)(jnp.ones((3, 2)), made)
  both = made._replace(labels=np.stack([NUMBERS, NUMBERS], 1))
  two = models.squared_error(PLANE)(jnp.concatenate([PARAMS, PARAMS], 1), both)
  assert two == pytest.approx(np.mean((SCORES - NUMBERS) ** 2), rel=1e-5)
  whole = models.example_loss(PLANE, lambda scores, labels: jnp.sum(scores))
  with pytest.raises(ValueError, match=r"Expected a loss for each example, of shape \(4,\), got"):
    whole(jnp.ones((3, 2)), made)


def test_labels_of_any_type_survive_grouping_packing_and_training():
  """Each user's labels are its own, under one key of data, in all three forms of clients."""
  from jdp.federated import local_sgd
  from jdp.federated.engine.sharded import client_data

  labels, users = {"a": NUMBERS, "b": YES}, [np.array([3]), np.array([0, 2])]
  made = data.examples(INPUTS, labels, label_kind="numbers")
  assert (made.labels["a"].dtype, made.labels["b"].dtype) == (np.float32, np.bool_)
  packed, grouped = data.pack(made, users), data.group(made, users, max_examples=2)
  pairs = data.clients_from_pairs(
    [(INPUTS[user], jax.tree.map(lambda x, own=user: x[own], labels)) for user in users],
    label_kind="numbers",
  )
  update = jax.jit(local_sgd(CASES["own, of two parts"][0], 0.1, batch_size=2))
  for number, user in enumerate(users):
    forms = [packed.user(number), pairs.user(number), client_data(grouped, number)]
    for form in forms:
      np.testing.assert_array_equal(form.labels["a"][: len(user)], NUMBERS[user])
      np.testing.assert_array_equal(form.labels["b"][: len(user)], YES[user])
      moved = update(jax.random.key(0), PARAMS, form)
      np.testing.assert_array_equal(moved, update(jax.random.key(0), PARAMS, forms[0]))


@pytest.mark.parametrize(
  ("labels", "options", "message"),
  [
    (NUMBERS, {}, "whole numbers"),
    ([1.0, np.nan, 0.0, 0.0], {"label_kind": "numbers"}, "finite in float32"),
    ([1, 2, 3, 2**31], {"label_kind": "numbers"}, "that int32 holds"),
    (NUMBERS[:3], {"label_kind": "numbers"}, "as many inputs as labels, got 4 and 3"),
    ({"a": NUMBERS, "b": YES[:2]}, {"label_kind": "numbers"}, "got 4 and 2, 4"),
    ({}, {"label_kind": "numbers"}, "got 4 and none"),
    (["a", "b", "c", "d"], {"label_kind": "numbers"}, "real numbers"),
    (
      NUMBERS,
      {"label_kind": "numbers", "num_classes": 3},
      "Expected num_classes without label_kind",
    ),
    (NUMBERS, {"label_kind": "regression"}, "Expected label_kind to be one of classes, numbers"),
  ],
)
def test_labels_that_would_change_are_refused(labels, options, message):
  with pytest.raises(ValueError, match=message):
    data.examples(INPUTS, labels, **options)
