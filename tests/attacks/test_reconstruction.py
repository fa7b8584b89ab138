"""Attacks on gradients: exact without noise, the posterior mean with it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
from jax.flatten_util import ravel_pytree
from scipy import stats

from jdp import data, models
from jdp.attacks.gradient_matching import Candidates, match_gradient
from jdp.attacks.reconstruction import (
  GaussianPrior,
  coarsest_wavelets,
  gaussian_attack,
  input_of_gradient,
  lowest_frequencies,
  nearest_in_cap,
  pixel_prior,
  principal_prior,
  residuals_at_zero,
  succeeds,
)


@pytest.mark.slow
def test_without_privacy_an_image_is_recovered_from_any_logistic_regression(key):
  digits = data.digits()
  model = models.logistic_regression(digits.input_shape, digits.num_classes)
  gradient, start = jax.grad(models.cross_entropy(model)), model.init(key)
  params = jax.tree.map(lambda x: 0.3 * jax.random.normal(jax.random.key(x.ndim), x.shape), start)

  def attacked(params, image, label):
    found = gradient(params, data.Examples(image[None], label[None], jnp.ones(1)))
    return input_of_gradient(jnp.concatenate([found["w"], found["b"][:, None]], axis=1))

  attack = jax.jit(jax.vmap(attacked, (None, 0, 0)))
  images = digits.test.inputs.reshape(-1, 64)
  for parameters in (start, params):
    found = np.asarray(attack(parameters, digits.test.inputs, digits.test.labels))
    errors = np.linalg.norm(found - images, axis=1) / np.linalg.norm(images, axis=1)
    assert np.max(errors) < 1e-5


def test_a_gradient_of_zero_tells_nothing():
  np.testing.assert_array_equal(input_of_gradient(jnp.zeros((2, 4))), 0.0)


def test_the_residuals_are_those_of_the_model():
  """The gradient at parameters of zero is residual x (1, input)."""
  model = models.glm("multinomial", (3,), 4)
  inputs = jnp.array([[0.2, 0.9, 1.0]])
  for label, residual in enumerate(residuals_at_zero(4)):
    example = data.Examples(inputs, jnp.array([label]), jnp.ones(1))
    np.testing.assert_allclose(
      model.gradient(jnp.zeros((4, 3)), example), np.outer(residual, inputs[0]), atol=1e-7
    )


def brute_force(gradient, residuals, prior, noise_variance):
  """(input, candidate) by conditioning the normal distribution of all the gradient's entries, for
  each candidate.
  """
  basis, variances = np.asarray(prior.basis, float), np.asarray(prior.variances, float)
  features = basis.shape[1]
  scatter = basis.T @ np.diag(variances) @ basis
  mean = np.append(np.asarray(prior.mean, float), 1.0)
  found = []
  for residual in np.asarray(residuals, float):
    # from the input to the gradient
    design = np.kron(residual[:, None], np.eye(features + 1)[:, :features])
    center = np.outer(residual, mean).ravel()
    covariance = design @ scatter @ design.T + noise_variance * np.eye(len(center))
    off = np.asarray(gradient, float).ravel() - center
    evidence = stats.multivariate_normal(center, covariance).logpdf(center + off)
    found.append((evidence, mean[:-1] + scatter @ design.T @ np.linalg.solve(covariance, off)))
  best = int(np.argmax([evidence for evidence, _ in found]))
  return found[best][1], best


@pytest.mark.sweep
@pytest.mark.parametrize("noise_variance", [1e-3, 0.1, 3.0])
def test_the_attack_names_the_posterior_mean(noise_variance):
  generator = np.random.default_rng(1)
  residuals = residuals_at_zero(3) + generator.normal(size=(3, 3)).astype(np.float32) / 5
  prior = principal_prior(generator.normal(size=(9, 4)), 2)
  attack, candidates = jax.jit(gaussian_attack(residuals, prior)), []
  for _ in range(20):
    label = generator.integers(3)
    value = (
      prior.mean
      + np.sqrt(prior.variances) * generator.normal(size=2).astype(np.float32) @ prior.basis
    )
    gradient = np.outer(residuals[label], np.append(value, 1.0))
    gradient = jnp.asarray(
      gradient + math.sqrt(noise_variance) * generator.normal(size=gradient.shape), jnp.float32
    )
    found = attack(gradient, noise_variance)
    expected, candidate = brute_force(gradient, residuals, prior, noise_variance)
    candidates.append(candidate)
    assert found.candidate == candidate
    np.testing.assert_allclose(found.input, expected, rtol=1e-3, atol=1e-4)
  assert len(set(candidates)) > 1


def test_principal_components_are_those_of_the_covariance():
  inputs = np.random.default_rng(2).normal(size=(50, 2, 3))
  prior, flat = principal_prior(inputs, 6), inputs.reshape(50, 6)
  np.testing.assert_allclose(prior.mean, flat.mean(axis=0), atol=1e-6)
  np.testing.assert_allclose(
    prior.basis.T @ jnp.diag(prior.variances) @ prior.basis, np.cov(flat.T), atol=1e-5
  )
  np.testing.assert_array_equal(principal_prior(inputs, 2).basis, prior.basis[:2])


def test_more_components_than_the_rank_are_refused():
  with pytest.raises(ValueError, match="at most 1, the rank"):
    principal_prior(np.array([[0.0, 1.0], [1.0, 1.0]]), 2)


def test_lowest_frequencies_are_the_cosine_transforms():
  image = np.random.default_rng(3).normal(size=(4, 6))
  transform = scipy.fft.dctn(image, norm="ortho")
  own = lowest_frequencies((4, 6), 6) @ image.ravel().astype(np.float32)
  np.testing.assert_allclose(
    own, [transform[i, j] for i, j in ((0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0))], atol=1e-5
  )
  everything = lowest_frequencies((4, 6), 24)
  np.testing.assert_allclose(everything @ everything.T, np.eye(24), atol=1e-6)
  with pytest.raises(ValueError, match="pixels"):
    lowest_frequencies((2, 2), 5)


def test_coarsest_wavelets_are_the_means_of_blocks_then_their_differences():
  image = np.random.default_rng(3).normal(size=(8, 12)).astype(np.float32)
  # 8 = 2 * 2 * 2 and 12 = 3 * 2 * 2: at the coarsest common scale blocks are 4 x 4.
  blocks = image.reshape(2, 4, 3, 4).mean(axis=(1, 3))
  own = coarsest_wavelets((8, 12), 6)
  np.testing.assert_allclose(
    (own @ image.ravel()) @ own, np.kron(blocks, np.ones((4, 4))).ravel(), atol=1e-5
  )
  finer = coarsest_wavelets((8, 12), 24)
  blocks = image.reshape(4, 2, 6, 2).mean(axis=(1, 3))
  np.testing.assert_allclose(
    (finer @ image.ravel()) @ finer, np.kron(blocks, np.ones((2, 2))).ravel(), atol=1e-5
  )
  everything = coarsest_wavelets((8, 12), 96)
  np.testing.assert_allclose(everything @ everything.T, np.eye(96), atol=1e-6)
  with pytest.raises(ValueError, match="pixels"):
    coarsest_wavelets((2, 2), 5)
  with pytest.raises(ValueError, match="pixels"):
    coarsest_wavelets((0, 2), 1)


@pytest.mark.slow
@pytest.mark.parametrize("angle", [0.3, 1.2, 2.5])
def test_nothing_in_the_cap_is_nearer(angle):
  generator = np.random.default_rng(4)
  sphere = generator.normal(size=(20_000, 3))
  sphere /= np.linalg.norm(sphere, axis=1, keepdims=True)
  cap = sphere[np.arccos(sphere[:, 2]) <= angle]
  directions = generator.normal(size=(50, 3)).astype(np.float32)
  center = jnp.array([0.0, 0.0, 1.0])
  found = np.asarray(jax.vmap(lambda d: nearest_in_cap(d, center, angle))(directions))
  np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
  assert np.all(np.arccos(np.clip(found[:, 2], -1, 1)) <= angle + 1e-3)
  units = directions / np.linalg.norm(directions, axis=1, keepdims=True)
  assert np.all(np.sum(found * units, axis=1) >= np.max(units @ cap.T, axis=1) - 1e-5)


@pytest.mark.parametrize(
  "direction", [[math.nan, 1.0], [0.0, 0.0], [math.inf, 0.0], [0.0, -1.0], [1e38, 1e38]]
)
def test_hostile_directions_give_unit_vectors(direction):
  found = nearest_in_cap(jnp.array(direction), jnp.array([0.0, 1.0]), 0.5)
  assert float(jnp.linalg.norm(found)) == pytest.approx(1.0, abs=1e-5)
  assert float(found[1]) >= math.cos(0.5) - 1e-5
  np.testing.assert_allclose(
    nearest_in_cap(jnp.array(direction), jnp.array([0.0, 1.0]), -1.0), [0.0, 1.0], atol=1e-6
  )


def test_success_is_a_distance_between_directions():
  distance = math.sqrt(2 - 2 * math.cos(0.7))
  turned = jnp.array([5 * math.cos(0.7), 5 * math.sin(0.7)])
  assert succeeds(turned, jnp.array([0.1, 0.0]), distance + 1e-4)
  assert not succeeds(turned, jnp.array([0.1, 0.0]), distance - 1e-4)


PIXELS = GaussianPrior(jnp.full(6, 0.5), jnp.eye(6), jnp.full(6, 0.1))


@pytest.fixture(scope="module")
def network():
  """(gradient of a small network's loss, its attack): no closed form."""
  keys = jax.random.split(jax.random.key(5), 2)
  params = {"a": jax.random.normal(keys[0], (6, 8)), "b": jax.random.normal(keys[1], (8, 3))}

  def loss(params, value, label):
    return -jax.nn.log_softmax(jnp.tanh(value @ params["a"]) @ params["b"])[label]

  def gradient_of(value, label):
    return ravel_pytree(jax.grad(loss)(params, value, label))[0]

  attack = jax.jit(match_gradient(gradient_of, PIXELS))
  candidates = Candidates(jnp.arange(3), jnp.full((3, 6), 0.5))
  return gradient_of, lambda released, penalty, tried=candidates: attack(released, penalty, tried)


@pytest.mark.slow
def test_matching_finds_input_and_label_from_the_gradients_direction(network):
  gradient_of, attack = network
  value = jnp.array([0.1, 0.9, 0.4, 0.7, 0.2, 0.6])
  for label in (0, 2):
    match = attack(7.0 * gradient_of(value, label), 0.0)
    np.testing.assert_allclose(match.input, value, atol=0.02)
    assert match.candidate == label
    assert float(match.cosine) > 0.9999


@pytest.mark.slow
def test_a_large_penalty_leaves_the_priors_mean(network):
  gradient_of, attack = network
  match = attack(gradient_of(jnp.linspace(0.0, 1.0, 6), 1), 1e4)
  np.testing.assert_allclose(match.input, 0.5, atol=0.01)


@pytest.mark.slow
def test_candidates_start_where_they_are_told(network):
  """With one step of nearly nothing each remains where it began, and the matching one has the least
  loss.
  """
  gradient_of, _ = network
  value = jnp.array([0.1, 0.9, 0.4, 0.7, 0.2, 0.6])
  attack = jax.jit(match_gradient(gradient_of, PIXELS, num_steps=1, learning_rate=1e-5))
  candidates = Candidates(jnp.array([1, 1, 2]), jnp.stack([jnp.full(6, 0.5), value, value]))
  match = attack(gradient_of(value, 1), 0.0, candidates)
  assert match.candidate == 1
  np.testing.assert_allclose(match.input, value, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("released", [0.0, math.nan, math.inf])
def test_matching_survives_hostile_releases(network, released):
  gradient_of, attack = network
  match = attack(jnp.full_like(gradient_of(jnp.zeros(6), 0), released), 0.1)
  assert np.all(np.isfinite(match.input))


def test_arguments_out_of_range_are_refused():
  for settings in ({"num_steps": 0}, {"learning_rate": math.nan}):
    with pytest.raises(ValueError, match=next(iter(settings))):
      match_gradient(lambda value, label: value, pixel_prior(2), **settings)
