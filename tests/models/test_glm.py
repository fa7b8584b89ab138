"""Generalised linear models: their likelihoods, their gradients, and what bounds them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jdp.data import Examples
from jdp.models.generalised_linear import FAMILIES, glm, with_intercept

FEATURES, COUNT = 5, 7
RNG = np.random.default_rng(0)
LOG_DENSITIES = {
  "linear": lambda y, mean: stats.norm.logpdf(y, mean),
  "logistic": lambda y, mean: stats.bernoulli.logpmf(y, mean),
  "poisson": lambda y, mean: stats.poisson.logpmf(y, mean),
}
HOSTILE = [np.nan, np.inf, -np.inf, 3e38, -3e38]


def compiled(model):
  """The model, with its computations as single programs."""
  return model._replace(
    loss=jax.jit(model.loss), gradient=jax.jit(model.gradient), predict=jax.jit(model.predict)
  )


@functools.cache
def model_of(family):
  return compiled(glm(family, (FEATURES,), 3 if family == "multinomial" else 1))


def make(family):
  model = model_of(family)
  params = jnp.asarray(RNG.normal(size=model.init(jax.random.key(0)).shape), jnp.float32)
  labels = RNG.integers(0, 3 if family == "multinomial" else 2, COUNT)
  inputs = jnp.asarray(RNG.random((COUNT, FEATURES)), jnp.float32)
  return model, params, Examples(inputs, jnp.asarray(labels, jnp.int32), jnp.ones(COUNT))


@pytest.mark.sweep
@pytest.mark.parametrize("family", LOG_DENSITIES)
def test_the_loss_is_the_negative_log_likelihood_up_to_a_function_of_the_response(family):
  model, params, examples = make(family)
  excess = []
  for candidate in (params, 0.5 * params):
    mean = np.asarray(model.predict(candidate, examples.inputs), np.float64)[:, 0]
    excess.append(
      model.loss(candidate, examples)
      + np.mean(LOG_DENSITIES[family](np.asarray(examples.labels), mean))
    )
  np.testing.assert_allclose(*excess, rtol=0, atol=1e-6)


def test_the_multinomial_loss_is_the_cross_entropy():
  model, params, examples = make("multinomial")
  chances = np.asarray(model.predict(params, examples.inputs))
  np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-6)
  expected = -np.mean(np.log(chances[np.arange(COUNT), examples.labels]))
  np.testing.assert_allclose(model.loss(params, examples), expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_that_of_the_loss_whatever_the_padding_holds(family):
  model, params, examples = make(family)
  mask = jnp.ones(COUNT).at[2].set(0.0)
  padded = Examples(examples.inputs.at[2].set(jnp.nan), examples.labels.at[2].set(99), mask)
  others = jax.tree.map(lambda x: np.delete(x, 2, axis=0), examples)
  gradient = model.gradient(params, padded)
  np.testing.assert_allclose(
    gradient, jax.jit(jax.grad(model.loss))(params, padded), rtol=1e-5, atol=1e-7
  )
  np.testing.assert_allclose(gradient, model.gradient(params, others), rtol=1e-5, atol=1e-7)
  nobody = padded._replace(mask=jnp.zeros(COUNT))
  assert not np.any(model.gradient(params, nobody))
  assert model.loss(params, nobody) == 0


@pytest.mark.sweep
@pytest.mark.parametrize("family", FAMILIES)
def test_images_are_flattened_and_float_responses_taken(family):
  model, params, examples = make(family)
  other = compiled(glm(family, (FEATURES, 1), params.shape[0]))
  images = examples._replace(inputs=examples.inputs[..., None])
  np.testing.assert_array_equal(other.gradient(params, images), model.gradient(params, examples))
  if family != "multinomial":
    floats = examples._replace(labels=examples.labels.astype(jnp.float32))
    np.testing.assert_array_equal(model.gradient(params, floats), model.gradient(params, examples))


@pytest.mark.parametrize("family", ["logistic", "multinomial"])
@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_examples_stay_within_the_bounds_of_honest_ones(family, value):
  model, params, examples = make(family)
  inputs = examples.inputs.at[0, 0].set(value).at[1].set(value)
  labels = (
    examples.labels
    if family == "multinomial"
    else examples.labels.astype(jnp.float32).at[2].set(value)
  )
  gradient = np.asarray(model.gradient(params, Examples(inputs, labels, examples.mask)))
  assert np.max(np.abs(gradient)) <= 1
  assert np.max(np.abs(gradient).sum(axis=0)) <= 2


def test_the_bound_on_a_feature_is_attained():
  model = compiled(glm("multinomial", (1,), 3))
  sure = jnp.array([[200.0], [0.0], [0.0]])  # certain of class 0
  gradient = model.gradient(sure, Examples(jnp.ones((1, 1)), jnp.array([1]), jnp.ones(1)))
  assert np.abs(gradient).sum() == 2


def test_an_intercept_is_a_feature_of_one():
  inputs = with_intercept(jnp.zeros((2, 3, 4)))
  assert inputs.shape == (2, 3, 5)
  assert np.all(inputs[..., -1] == 1)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("probit", (2,)), "Expected family to be one of linear"),
    (("multinomial", (2,), 1), "num_outputs to be a whole number >= 2"),
    (("logistic", (2,), 2), "Expected num_outputs 1 for family 'logistic', got 2"),
  ],
)
def test_bad_arguments_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    glm(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["linear", "logistic", "multinomial"])
def test_the_smoothness_bounds_the_curvature_and_is_nearly_attained(family):
  """For features of all ones at the scores of most curvature."""
  model = glm(family, (FEATURES,), 2 if family == "multinomial" else 1)
  outputs = 2 if family == "multinomial" else 1

  def flat_loss(weights, client):
    return model.loss(weights.reshape(outputs, FEATURES), client)

  curvatures = []
  for inputs in (jnp.ones((1, FEATURES)), jax.random.uniform(jax.random.key(0), (1, FEATURES))):
    client = Examples(inputs, jnp.zeros(1, jnp.int32), jnp.ones(1))
    for scale in (0.0, 0.3):
      weights = scale * jax.random.normal(jax.random.key(1), (outputs * FEATURES,))
      curvatures.append(jnp.linalg.eigvalsh(jax.hessian(flat_loss)(weights, client))[-1])
  assert 0.999 * model.smoothness <= max(curvatures) <= model.smoothness * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["logistic", "multinomial"])
def test_no_gradient_exceeds_its_bound_and_a_confident_mistake_attains_it(family):
  outputs = 3 if family == "multinomial" else 1
  model = glm(family, (FEATURES,), outputs)
  client = Examples(jnp.ones((1, FEATURES)), jnp.ones(1, jnp.int32), jnp.ones(1))
  weights = jnp.zeros((outputs, FEATURES)).at[0].set(50.0 if family == "multinomial" else -50.0)
  largest = jnp.max(jnp.abs(model.gradient(weights, client)))
  assert 0.999 < largest <= model.gradient_bound == 1.0


@pytest.mark.slow
def test_steps_of_two_over_the_smoothness_never_part_two_models_and_longer_ones_do():
  model = glm("multinomial", (FEATURES,), 3)
  client = Examples(jnp.ones((1, FEATURES)), jnp.ones(1, jnp.int32), jnp.ones(1))
  one = 1e-2 * jax.random.normal(jax.random.key(0), (1000, 3, FEATURES))
  other = one + jnp.array([1e-2, -1e-2, 0.0])[None, :, None]

  def stretch(rate):
    gradients = [jax.vmap(model.gradient, (0, None))(x, client) for x in (one, other)]
    after = one - other - rate * (gradients[0] - gradients[1])
    return jnp.linalg.norm(after, axis=(1, 2)) / jnp.linalg.norm(one - other, axis=(1, 2))

  assert jnp.max(stretch(2 / model.smoothness)) <= 1 + 1e-4
  assert jnp.max(stretch(4 / model.smoothness)) > 1.3
