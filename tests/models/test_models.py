"""Models have the sizes their papers state, and losses count only what counts."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.data import Examples, examples
from jdp.models import accuracy, cross_entropy, logistic_regression, small_cnn

# The two convolutions and the two dense layers of a CNN by their own sizes, from the architecture
# by hand.
MODELS = {
  "logistic, images": (lambda: logistic_regression((28, 28), 10), (28, 28), 10, 784 * 10 + 10),
  "logistic, vectors": (lambda: logistic_regression((5,), 2), (5,), 2, 12),
  "CNN, MNIST": (lambda: small_cnn((28, 28), 10), (28, 28), 10, 26_010),
  "CNN, colour": (
    lambda: small_cnn((32, 32, 3), 10),
    (32, 32, 3),
    10,
    3_088 + 8_224 + 25_632 + 330,
  ),
  "CNN, smallest": (lambda: small_cnn((16, 16), 2), (16, 16), 2, 1_040 + 8_224 + 1_056 + 66),
}
every_model = pytest.mark.parametrize(
  ("make", "shape", "classes", "size"), MODELS.values(), ids=MODELS
)
LINEAR = logistic_regression((2,), 3)
PARAMS = {"b": jnp.array([0.0, 1.0, -1.0]), "w": jnp.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])}
LOSS = cross_entropy(LINEAR)
differentiate = jax.jit(jax.value_and_grad(LOSS))
DATA = examples(np.array([[1.0, 0.0], [0.0, 1.0], [-3.0, 0.5], [2.0, 2.0]]), np.array([0, 1, 2, 0]))


@every_model
def test_shapes_sizes_and_types(make, shape, classes, size, key):
  model = make()
  params = jax.eval_shape(model.init, key)
  assert sum(x.size for x in jax.tree.leaves(params)) == size
  assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
  logits = jax.eval_shape(model.apply, params, jnp.ones((3, *shape)))
  assert (logits.shape, logits.dtype) == ((3, classes), jnp.float32)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["logistic, vectors", "CNN, smallest"])
def test_examples_do_not_touch_each_other(name, key):
  make, shape, *_ = MODELS[name]
  model = make()
  init_key, data_key = jax.random.split(key)
  params, inputs = jax.jit(model.init)(init_key), jax.random.uniform(data_key, (3, *shape))
  together, alone = (
    jax.jit(model.apply)(params, x) for x in (inputs.at[1].set(jnp.nan), inputs[2:])
  )
  np.testing.assert_allclose(together[2], alone[0], rtol=1e-4, atol=1e-5)
  assert np.all(np.isfinite(together[2]))


class ReferenceCNN(nn.Module):
  """The same network by flax's own layers."""

  @nn.compact
  def __call__(self, x):
    x = nn.max_pool(nn.relu(nn.Conv(16, (8, 8), strides=2, padding="SAME")(x)), (2, 2))
    x = nn.max_pool(nn.relu(nn.Conv(32, (4, 4), strides=2, padding="VALID")(x)), (2, 2))
    x = nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1)))
    return nn.Dense(10)(x)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(28, 28, 1), (19, 22, 3)])
def test_the_cnn_is_that_of_flax_with_the_same_parameters_and_gradients(shape, key):
  model, reference = small_cnn(shape, 10), ReferenceCNN()
  init_key, data_key = jax.random.split(key)
  inputs = jax.random.normal(data_key, (2, *shape))
  params = jax.jit(model.init)(init_key)
  expected = jax.eval_shape(reference.init, key, inputs)["params"]
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, expected)

  def values_and_gradients(apply):
    return jax.jit(jax.value_and_grad(lambda params: jnp.sum(jnp.sin(apply(params, inputs)))))(
      params
    )

  ours = values_and_gradients(model.apply)
  theirs = values_and_gradients(lambda params, x: reference.apply({"params": params}, x))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), ours, theirs)


def log_probabilities():
  """Of every class for every example, by the definition."""
  logits = np.asarray(DATA.inputs, np.float64) @ np.asarray(PARAMS["w"], np.float64).T + np.asarray(
    PARAMS["b"]
  )
  return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@pytest.mark.slow
@pytest.mark.parametrize("mask", [[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1]])
def test_cross_entropy_is_the_mean_over_the_examples_that_count(mask):
  losses = -log_probabilities()[np.arange(4), DATA.labels]
  data = DATA._replace(mask=np.array(mask, np.float32))
  expected = losses[np.array(mask) == 1].mean()
  assert float(LOSS(PARAMS, data)) == pytest.approx(expected, rel=1e-5)


def test_cross_entropy_of_no_example_is_zero():
  assert float(LOSS(PARAMS, DATA._replace(mask=np.zeros(4, np.float32)))) == 0


@pytest.mark.parametrize("filling", [0.0, 1e38, np.inf, np.nan])
@pytest.mark.parametrize("label", [0, -1, 10**6])
def test_padding_changes_neither_loss_nor_gradient(filling, label):
  def padding(x, value):
    return np.concatenate([x, np.full((3, *x.shape[1:]), value, x.dtype)])

  padded = Examples(
    padding(DATA.inputs, filling), padding(DATA.labels, label), padding(DATA.mask, 0)
  )
  for with_padding, without in zip(
    jax.tree.leaves(differentiate(PARAMS, padded)),
    jax.tree.leaves(differentiate(PARAMS, DATA)),
    strict=True,
  ):
    np.testing.assert_allclose(with_padding, without, rtol=1e-5, atol=1e-7)


@pytest.mark.sweep
@pytest.mark.parametrize("batch_size", [1, 3, 1000])
def test_accuracy_is_the_share_of_right_answers_that_count(batch_size):
  right = log_probabilities().argmax(axis=1) == DATA.labels
  assert 0 < right.mean() < 1
  for mask in ([1, 1, 1, 1], [0, 1, 1, 0]):
    data = DATA._replace(mask=np.array(mask, np.float32))
    share = float(accuracy(LINEAR, PARAMS, data, batch_size=batch_size))
    assert share == pytest.approx(right[np.array(mask) == 1].mean())


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: logistic_regression((3,), 1), "num_classes to be a whole number >= 2"),
    (lambda: small_cnn((28, 28), 1.5), "num_classes to be a whole number"),
    (
      lambda: small_cnn((8, 8), 10),
      r"at least 16 x 16 pixels, got input_shape \(8, 8\); use logistic_regression",
    ),
    (lambda: small_cnn((784,), 10), "at least 16 x 16 pixels"),
  ],
)
def test_bad_arguments_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()
