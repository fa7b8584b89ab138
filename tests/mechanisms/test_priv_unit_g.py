"""The distribution of PrivUnitG's releases: a truncated normal along the input, plain noise
orthogonal to it.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from jdp.accounting.local.priv_unit_g import GaussianCap, optimal_gaussian_cap
from jdp.mechanisms import priv_unit, priv_unit_g
from jdp.mechanisms.draws import quantiles
from jdp.mechanisms.priv_unit_gaussian import truncated_normal
from tests.helpers.statistical import assert_frequencies, assert_mean, assert_normal_stddev


def cell_probabilities(cap: GaussianCap, edges):
  """Of the cells between edges (and beyond them) under t's exact distribution."""
  q = math.exp(cap.log_q)
  upper = stats.norm.sf(np.concatenate([[-np.inf], edges, [np.inf]]))
  tail = cap.p * np.minimum(upper, q) / q + (1 - cap.p) * np.maximum(upper - q, 0) / (1 - q)
  return -np.diff(tail)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 64.0])
def test_component_along_the_input_has_the_exact_law(epsilon):
  cap = optimal_gaussian_cap(epsilon)
  draw = jax.jit(jax.vmap(truncated_normal(cap)))
  anywhere, top = draw(jax.random.split(jax.random.key(1), 300_000))
  plain = np.random.default_rng(1).standard_normal(300_000)
  t = np.where(anywhere, plain, np.asarray(top, np.float64))
  above = -special.ndtri_exp(cap.log_q + np.log(np.linspace(0, 1, 21)[1:-1]))
  rim = cap.gamma * (1 - 1e-6)  # a float32 point of the rim is on one side or the other
  below = stats.norm.ppf(np.linspace(0, 1, 21)[1:-1] * stats.norm.cdf(cap.gamma))
  edges = np.unique(np.concatenate([below, [rim], above]))
  less_often = cap._replace(p=0.98 * cap.p)
  wider = cap._replace(log_q=float(special.log_ndtr(-0.9 * cap.gamma)))
  counts = np.bincount(np.searchsorted(edges, t), minlength=len(edges) + 1)
  for wrong in (less_often, wider):
    assert_frequencies(
      counts, cell_probabilities(cap, edges), catches=cell_probabilities(wrong, edges)
    )


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1e-3, 4.0, 256.0])
def test_tabulated_quantiles_are_accurate(epsilon):
  """Within 1e-5 and float32's own rounding, down to a share of 2^-65."""
  log_q = optimal_gaussian_cap(epsilon).log_q
  y = np.linspace(-45, 0, 5003).astype(np.float32)

  def exact(y):
    t = -special.ndtri_exp(log_q + y)
    return t, -np.exp(log_q + y - stats.norm.logpdf(t))

  t = quantiles.tabulate(exact)(jnp.asarray(y))
  np.testing.assert_allclose(t, exact(np.float64(y))[0], atol=1e-5, rtol=1e-6)


def unit_vector(dim):
  u = np.random.default_rng(7).standard_normal(dim)
  return u / np.linalg.norm(u)


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "count"), [(2, 40_000), (50, 20_000)])
def test_estimate_is_unbiased_and_noise_orthogonal_to_the_input_is_not_renormalised(dim, count):
  mechanism, u = priv_unit_g(dim, 4.0), unit_vector(dim)
  m = mechanism.parameters.m
  keys = jax.random.split(jax.random.key(3), count)
  estimates = jax.jit(jax.vmap(mechanism.privatize, (0, None)))(keys, jnp.asarray(u, jnp.float32))
  estimates = np.asarray(estimates, np.float64)
  assert_mean(estimates, u, stddev=1 / m, catches=0.05)
  orthogonal = m * (estimates - np.outer(estimates @ u, u))
  axes, _ = np.linalg.qr(
    np.column_stack([u, np.random.default_rng(5).standard_normal((dim, dim - 1))])
  )
  assert_normal_stddev(orthogonal @ axes[:, 1:], 1.0, catches=0.03)
  # chi-square with d - 1 degrees: renormalised, it would have no variance
  squares = np.sum(orthogonal**2, axis=1)
  spread = np.std((squares - (dim - 1)) ** 2)
  assert_mean(
    (squares - (dim - 1)) ** 2, 2 * (dim - 1), stddev=1.1 * spread, catches=0.3 * 2 * (dim - 1)
  )
  errors = np.sum((estimates - u) ** 2, axis=1)
  stated = mechanism.mean_squared_error(1.0)
  assert_mean(errors, stated, stddev=1.1 * errors.std(), catches=0.06 * stated)


def test_error_approaches_that_of_priv_unit_in_many_dimensions():
  for dim, most in ((100, 1.1), (10**5, 1.0002)):
    ratio = priv_unit_g(dim, 4.0).mean_squared_error(1.0) / priv_unit(dim, 4.0).mean_squared_error(
      1.0
    )
    assert 1 < ratio < most


def test_one_dimension_is_refused():
  with pytest.raises(ValueError, match="dim"):
    priv_unit_g(1, 1.0)
