"""The hemisphere mechanism: its constants, its distribution, and what becomes of magnitudes."""

import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from jdp.mechanisms import hemisphere, priv_unit
from tests.helpers import releases, statistical

DIM = 5
U = jnp.array([0.0, 0.6, 0.0, -0.8, 0.0])


made = functools.cache(hemisphere)


def reports(mechanism, value, count=100_000):
  return releases.draw(mechanism.encode, value, count).astype(np.float64)


@pytest.mark.parametrize("dim", [2, 5, 1000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_norm_is_the_published_one_and_privunits_at_gamma_0(dim, epsilon):
  """B = r (e^eps + 1)/(e^eps - 1) sqrt(pi)/2 d Gamma((d-1)/2 + 1) / Gamma(d/2 + 1), arXiv
  1604.02390, Section 4.2.3.
  """
  ratio = math.exp(special.gammaln((dim + 1) / 2) - special.gammaln(dim / 2 + 1))
  expected = 3.0 / math.tanh(epsilon / 2) * math.sqrt(math.pi) / 2 * dim * ratio
  mechanism = hemisphere(dim, epsilon, radius=3.0)
  assert mechanism.max_norm == pytest.approx(expected, rel=1e-8)
  assert mechanism.max_norm == pytest.approx(
    3 * priv_unit(dim, epsilon, gamma=0.0).max_norm, rel=1e-12
  )


@pytest.mark.slow
@pytest.mark.parametrize("length", [2.0, 1.0, 0.0])
def test_the_near_hemisphere_has_the_stated_share(length):
  """100,000 draws; a share wrong by 3 % is caught. Magnitudes are rounded to the ends of the
  diameter.
  """
  mechanism = made(DIM, 1.5, radius=2.0)
  near = reports(mechanism, length * U) @ np.asarray(U) >= 0
  keep, rounded = special.expit(1.5), 0.5 + length / 4
  share = keep * rounded + (1 - keep) * (1 - rounded) if length else 0.5
  if not length:
    near = reports(mechanism, jnp.zeros(DIM))[:, 0] >= 0  # the direction of zero is the first axis
  statistical.assert_proportion(near.sum(), len(near), share, catches=0.03)


@pytest.mark.slow
def test_reports_are_uniform_within_the_hemispheres():
  """Unit vectors, with no preference around the axis u and the exact distribution of <V, u>^2,
  Beta(1/2, (d-1)/2).
  """
  samples = reports(made(DIM, 2.0), U)
  np.testing.assert_allclose(np.linalg.norm(samples, axis=1), 1, rtol=1e-5)
  squares = (samples @ np.asarray(U)) ** 2
  variance = 2 * (DIM - 1) / (DIM**2 * (DIM + 2))
  statistical.assert_mean(squares, 1 / DIM, stddev=math.sqrt(variance), catches=0.006)
  statistical.assert_mean(samples[:, [0, 2, 4]], np.zeros(3), stddev=DIM**-0.5, catches=0.015)


@pytest.mark.parametrize("filling", [np.nan, np.inf, 1e-40])
def test_unusable_vectors_release_as_zero(filling):
  value = jnp.zeros(DIM).at[2].set(filling)
  mechanism = made(DIM, 2.0)
  np.testing.assert_array_equal(
    reports(mechanism, value, 50), reports(mechanism, jnp.zeros(DIM), 50)
  )


def test_longer_vectors_release_as_the_radius():
  mechanism = made(DIM, 2.0)
  np.testing.assert_array_equal(reports(mechanism, 1e20 * U, 50), reports(mechanism, U, 50))


@pytest.mark.parametrize(
  "arguments", [(1, 1.0), (5, 0.0), (5, math.nan), (5, 1.0, 0.0), (5, 1.0, math.inf)]
)
def test_bad_arguments_are_refused(arguments):
  with pytest.raises(ValueError, match="Expected"):
    hemisphere(*arguments)
