"""Laplace, Gaussian and L2-Laplace: exact likelihood ratios, the distributions of their noise,
domains kept by force.
"""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from jdp.accounting import analytic_gaussian
from jdp.mechanisms import gaussian, l2_laplace, laplace
from tests.helpers import statistical
from tests.helpers.gaussian import gaussian_delta

COUNT = 100_000


def noise(mechanism, count=COUNT):
  keys = jax.random.split(jax.random.key(0), count)
  zeros = jnp.zeros(mechanism.shape)
  return np.asarray(jax.jit(jax.vmap(mechanism.privatize, (0, None)))(keys, zeros), np.float64)


def exact_delta(z, epsilon):
  """The hockey-stick divergence of two normal distributions 1/z apart, in 60 digits."""
  with mpmath.workdps(60):
    z, epsilon = mpmath.mpf(z), mpmath.mpf(epsilon)
    return mpmath.ncdf(0.5 / z - epsilon * z) - mpmath.exp(epsilon) * mpmath.ncdf(
      -0.5 / z - epsilon * z
    )


@pytest.mark.parametrize("z", [1e-4, 0.01, 0.3, 1.0, 10.0, 1e4])
def test_gaussian_delta_against_60_digits(z):
  for x in (-8.0, -1.01, -0.99, 0.0, 3.0, 12.0):
    epsilon = (x + 0.5 / z) / z
    if epsilon >= 0:
      expected = float(exact_delta(z, epsilon))
      assert gaussian_delta(z, epsilon) == pytest.approx(expected, rel=1e-10)


def test_gaussian_delta_is_the_divergence_by_quadrature():
  """The definition: the integral of max(0, f - e^epsilon g) for the two densities."""
  z, epsilon = 0.8, 1.3

  def excess(x):
    return max(0.0, stats.norm.pdf(x, 1.0, z) - math.exp(epsilon) * stats.norm.pdf(x, 0.0, z))

  crossing = 0.5 + epsilon * z**2
  found, _ = integrate.quad(excess, crossing, 12.0, epsabs=1e-13)
  assert gaussian_delta(z, epsilon) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("z", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("delta", [1e-100, 1e-12, 1e-5, 0.1])
def test_gaussian_epsilon_suffices_and_no_smaller_one_does(z, delta):
  epsilon = analytic_gaussian.gaussian_epsilon(z, delta)
  assert exact_delta(z, epsilon) <= delta
  assert epsilon == 0 or exact_delta(z, epsilon * (1 - 1e-6)) > delta


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 1000.0])
def test_calibrated_noise_suffices_and_no_less_does(epsilon):
  z = analytic_gaussian.gaussian_noise_multiplier(epsilon, 1e-6)
  assert exact_delta(z, epsilon) <= 1e-6 < exact_delta(z * (1 - 1e-6), epsilon)
  assert analytic_gaussian.gaussian_epsilon(z, 1e-6) <= epsilon


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan, -1.0])
def test_bad_deltas_are_refused(delta):
  with pytest.raises(ValueError, match="Expected delta"):
    analytic_gaussian.gaussian_epsilon(1.0, delta)
  with pytest.raises(ValueError, match="Expected delta"):
    analytic_gaussian.gaussian_noise_multiplier(1.0, delta)


def test_budgets_that_no_noise_multiplier_meets_are_refused():
  with pytest.raises(ValueError, match="Expected a noise multiplier"):
    analytic_gaussian.gaussian_noise_multiplier(1e-9, 1e-12)


def ball(norm, dim, count=2_000):
  """Points of the domain of sensitivity 3 (radius 1.5), most on its boundary, the axes' ends among
  them.
  """
  points = np.random.default_rng(0).normal(size=(count, dim))
  points = np.concatenate([points, np.eye(dim), -np.eye(dim)])
  return 1.5 * points / norm(points)[:, None]


NORMS = {"l1": lambda x: np.abs(x).sum(axis=-1), "l2": lambda x: np.sqrt((x**2).sum(axis=-1))}


@pytest.mark.parametrize(("factory", "norm"), [(laplace, "l1"), (l2_laplace, "l2")])
@pytest.mark.parametrize("dim", [1, 3])
def test_epsilon_is_the_largest_likelihood_ratio(factory, norm, dim):
  """log density = -||z - x|| / scale + constant, over pairs of inputs and outputs: reached at
  opposite points.
  """
  mechanism = factory(2.5, 3.0, shape=(dim,))
  inputs = ball(NORMS[norm], dim)
  first, second = inputs[-2 * dim :], -inputs[-2 * dim :]
  outputs = np.concatenate([2 * inputs, first])
  losses = NORMS[norm](outputs[:, None] - second) - NORMS[norm](outputs[:, None] - first)
  assert losses.max() / mechanism.parameters == pytest.approx(
    mechanism.guarantee.epsilon, rel=1e-12
  )
  others = NORMS[norm](outputs - inputs[0]) - NORMS[norm](outputs - inputs[1])
  assert others.max() / mechanism.parameters <= mechanism.guarantee.epsilon * (1 + 1e-12)


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("mechanism", "norm"),
  [
    (laplace(86.0, 3.0, shape=(4,)), "l1"),
    (l2_laplace(86.0, 3.0, shape=(4,)), "l2"),
    (gaussian(0.6, 3.0, 1e-5, shape=(4,)), "l2"),
  ],
  ids=["laplace", "l2_laplace", "gaussian"],
)
def test_every_input_is_brought_into_the_ball(mechanism, norm):
  """With one key and so one noise, releases differ as the clipped inputs do, to a grid's step."""
  step = mechanism.noise / 16 * 1.01

  def moved(value):
    releases = [mechanism.privatize(jax.random.key(0), x) for x in (value, jnp.zeros(4))]
    return releases[0] - releases[1]

  fillings = [[np.nan, 0, 0, 1], [np.inf, 0, 1, 0], [-np.inf, 1, 1, 1], [1e-42] * 4, [0.0] * 4]
  for filling in fillings:
    released = moved(jnp.array(filling, jnp.float32))
    np.testing.assert_allclose(released, np.zeros(4), atol=step)
  direction = np.array([3.0, -1.0, 0.5, 0.0])
  for length in (1e-3, 1.0, 1.4, 1.6, 1e10, 1e37):
    value = length * direction / NORMS[norm](direction)
    expected = min(length, 1.5) * direction / NORMS[norm](direction)
    released = moved(jnp.array(value, jnp.float32))
    np.testing.assert_allclose(released, expected, atol=step)


def test_gaussian_noise_has_its_stddev_and_shape():
  samples = noise(gaussian(1.7, 3.0, 1e-5, shape=(2, 3)))
  statistical.assert_normal_stddev(samples, 1.7, catches=0.02)
  assert stats.kstest(samples.ravel() / 1.7, "norm").pvalue > statistical.FALSE_FAILURE


@pytest.mark.slow
def test_laplace_noise_has_its_scale():
  """Kolmogorov and Smirnov's test on 600,000 draws, which rejects a scale wrong by 2 %."""
  samples = noise(laplace(2.0, 3.0, shape=(2, 3))).ravel()
  assert stats.kstest(samples, stats.laplace(scale=1.5).cdf).pvalue > statistical.FALSE_FAILURE
  assert stats.kstest(samples, stats.laplace(scale=1.53).cdf).pvalue < statistical.FALSE_FAILURE


@pytest.mark.sweep
@pytest.mark.parametrize("dim", [1, 5])
def test_l2_laplace_noise_has_a_gamma_length_and_a_uniform_direction(dim):
  """100,000 draws, which reject a length wrong by 3 %; coordinates are uncorrelated and centred."""
  samples = noise(l2_laplace(2.0, 3.0, shape=(dim,)))
  length = np.sqrt(np.sum(samples**2, axis=1))
  assert stats.kstest(length, stats.gamma(dim, scale=1.5).cdf).pvalue > statistical.FALSE_FAILURE
  assert stats.kstest(length, stats.gamma(dim, scale=1.545).cdf).pvalue < statistical.FALSE_FAILURE
  directions = samples / length[:, None]
  statistical.assert_mean(directions, np.zeros(dim), stddev=dim**-0.5, catches=0.03)
  if dim > 1:
    statistical.assert_uncorrelated(directions * math.sqrt(dim), catches=0.03)
    # <direction, e_1> of a uniform direction: (1 + t)/2 is Beta(2, 2) in five dimensions.
    assert (
      stats.kstest((1 + directions[:, 0]) / 2, stats.beta(2, 2).cdf).pvalue
      > statistical.FALSE_FAILURE
    )


def test_error_outside_the_domain_is_bounded():
  mechanism = gaussian(1.0, 2.0, 1e-5)
  noise = 1.0 + 1 / 3072  # with the dither
  assert mechanism.mean_squared_error(1.0) == noise
  assert mechanism.mean_squared_error(4.0) == noise + 3.0**2


@pytest.mark.parametrize("factory", [laplace, l2_laplace])
@pytest.mark.parametrize(
  ("epsilon", "sensitivity"), [(0.0, 1.0), (math.nan, 1.0), (1.0, -1.0), (1.0, math.inf)]
)
def test_bad_arguments_are_refused(factory, epsilon, sensitivity):
  with pytest.raises(ValueError, match="Expected"):
    factory(epsilon, sensitivity)


@pytest.mark.parametrize(
  ("stddev", "sensitivity"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.0, 1e9)]
)
def test_bad_gaussians_are_refused(stddev, sensitivity):
  with pytest.raises(ValueError, match="Expected"):
    gaussian(stddev, sensitivity, 1e-5)
