"""Separated mechanisms: product of two independent estimates."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jdp.guarantees import SeparatedDP
from jdp.mechanisms import priv_unit, priv_unit_linf, scalar_dp, separated
from tests.helpers import releases
from tests.helpers.statistical import assert_mean

MAX_Z = stats.norm.isf(0.5e-6)  # false-failure rate 1e-6


def draw(mechanism, value, count):
  return releases.draw(mechanism.privatize, value, count, seed=4).astype(np.float64)


@pytest.fixture(scope="module")
def mechanism():
  return separated(priv_unit(20, 6.0), scalar_dp(2.0, 2.0))


def test_guarantee_keeps_both_parts(mechanism):
  assert isinstance(mechanism.guarantee, SeparatedDP)
  assert mechanism.guarantee.direction == pytest.approx(6.0, rel=1e-9)
  assert mechanism.guarantee.magnitude == 2.0
  assert mechanism.guarantee.epsilon <= 8.0


@pytest.mark.slow
@pytest.mark.parametrize("length", [0.0, 0.3, 1.0, 2.0])
def test_estimate_is_unbiased_with_the_stated_error(mechanism, length):
  """400,000 draws: catches a bias of 2 % of the longest vector, and a mean squared error that is 2
  % off.
  """
  w = np.zeros(20)
  w[3] = length
  z = draw(mechanism, w, 400_000)
  errors = np.sum((z - w) ** 2, axis=1)
  standard_error = errors.std() / math.sqrt(len(errors))
  assert abs(errors.mean() - mechanism.mean_squared_error(length)) < MAX_Z * standard_error
  assert MAX_Z * standard_error < 0.02 * errors.mean()
  bias = (z.mean(axis=0) - w) / (z.std(axis=0) / math.sqrt(len(z)))
  assert np.max(np.abs(bias)) < stats.norm.isf(0.5e-6 / 20)
  assert MAX_Z * z[:, 3].std() / math.sqrt(len(z)) < 0.02 * 2


@pytest.mark.slow
@pytest.mark.parametrize("filling", [0.0, np.nan, np.inf, -1e38, 1e-40])
def test_no_input_breaks_the_bound_on_the_release(mechanism, filling):
  z = draw(mechanism, np.full(20, filling), 1000)
  assert np.all(np.isfinite(z))
  assert np.max(np.linalg.norm(z, axis=1)) <= mechanism.max_norm * (1 + 1e-5)


@pytest.mark.slow
def test_norms_above_the_largest_magnitude_are_clipped(mechanism):
  w = np.ones(20)
  np.testing.assert_allclose(
    draw(mechanism, 100 * w, 50), draw(mechanism, 2 / math.sqrt(20) * w, 50), rtol=1e-4, atol=1e-5
  )


@pytest.mark.slow
def test_direction_in_another_norm_is_that_on_its_own_sphere():
  """Of a vector well inside the cube: without division by its norm the mean would be a tenth of the
  vector.
  """
  w = 0.1 * np.linspace(-1, 1, 10)
  mechanism = separated(priv_unit_linf(10, 6.0), scalar_dp(6.0, 1.0))
  z = draw(mechanism, w, 100_000)
  assert_mean(z, w, stddev=z.std(axis=0), catches=0.03)
  error = np.mean(np.sum((z - w) ** 2, axis=1))
  assert 0.9 * mechanism.mean_squared_error(0.1) < error < mechanism.mean_squared_error(0.1) * 1.02


@pytest.mark.slow
def test_report_is_what_is_needed_to_decode(mechanism):
  key, value = jax.random.key(0), jnp.ones(20)
  report = mechanism.encode(key, value)
  assert report.direction.shape == (20,)
  assert report.magnitude.dtype == jnp.int32
  np.testing.assert_array_equal(
    mechanism.decode(report), mechanism.privatize(jax.random.clone(key), value)
  )


def test_parts_of_different_units_are_refused():
  magnitude = scalar_dp(2.0, 2.0)
  restated = magnitude._replace(guarantee=magnitude.guarantee.restate(unit="user"))
  with pytest.raises(ValueError, match="one relation, unit and observer"):
    separated(priv_unit(20, 6.0), restated)
