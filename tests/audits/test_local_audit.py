"""Black-box audits: every local mechanism stays below what it states, and broken ones are found
out.

All bounds of right mechanisms hold jointly with probability 1 - 1e-4: so likely is it that a
failure here is not chance.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import random
from jdp.accounting.local.priv_unit import cap_of, optimal_cap
from jdp.audits.bounds import epsilon_bound, gaussian_bound
from jdp.audits.local_audit import audit_mechanism, draw_scores, opposite_inputs
from jdp.audits.scores import audit_outcomes
from jdp.guarantees import PureDP
from jdp.mechanisms import gaussian, laplace, priv_unit, registry, scalar_dp, scalar_rel_dp
from jdp.random import draws

DIM, SAMPLES = 16, 24_000
SETTING = registry.Setting(DIM, 4.0, num_projections=DIM // 2, delta=0.01)
CASES = {
  name: (entry.make(SETTING), entry.radius(SETTING))
  for name, entry in registry.registered().items()
}
CASES |= {"priv_unit, many dimensions": (priv_unit(80, 4.0), 1.0)}
TIGHT = {"priv_unit", "scalar_dp", "laplace_scalar"}
CONFIDENCE = 1 - 1e-4 / len(CASES)
BROKEN_CONFIDENCE = 1 - 1e-6


def audit(mechanism, *inputs, samples=SAMPLES, confidence=BROKEN_CONFIDENCE, bound=None):
  """On opposite ends of the domain, unless told otherwise."""
  first, second = map(jnp.asarray, inputs or opposite_inputs(mechanism))
  bound = bound or epsilon_bound(confidence, mechanism.guarantee.delta)
  return audit_mechanism(
    jax.random.key(5), mechanism, first, second, num_samples=samples, bound=bound
  )


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_bounds_are_below_what_is_stated_and_not_far_below(name):
  """In more dimensions than the conformance tests audit."""
  mechanism, radius = CASES[name]
  stated = mechanism.guarantee.epsilon
  found = audit(mechanism, *opposite_inputs(mechanism, radius), confidence=CONFIDENCE)
  assert found.trials >= 100 * math.exp(min(stated, 4.0))
  assert found.bound <= stated
  assert found.bound > (0.5 if name in TIGHT else 0.2) * stated


@pytest.mark.slow
def test_a_cap_ten_percent_too_high_is_found():
  cap = optimal_cap(DIM, 4.0)
  wrong = cap_of(DIM, 1.1 * cap.gamma, cap.p)
  mechanism = priv_unit(DIM, 5.0, gamma=wrong.gamma, p=wrong.p)._replace(guarantee=PureDP(4.0))
  found = audit(mechanism, samples=200_000)
  assert 4.0 < found.bound < wrong.epsilon
  assert audit(priv_unit(DIM, 4.0), samples=200_000).bound < 4.0


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_laplace_noise_a_quarter_too_small_is_found(epsilon):
  claimed = laplace(epsilon, 1.0)
  mechanism = laplace(epsilon / 0.75, 1.0)._replace(guarantee=claimed.guarantee)
  assert epsilon < audit(mechanism, samples=100_000).bound < epsilon / 0.75


@pytest.mark.slow
def test_normal_noise_a_quarter_too_small_is_found():
  """At a delta of 0.01 by events of epsilon; at any delta by what events say of mu = sensitivity /
  stddev.
  """
  claimed = gaussian(1.0, 1.0, 0.01)
  mechanism = gaussian(0.75, 1.0, 0.01)
  found = audit(mechanism._replace(guarantee=claimed.guarantee), samples=200_000)
  assert claimed.guarantee.epsilon < found.bound < mechanism.guarantee.epsilon
  assert 1.0 < audit(mechanism, bound=gaussian_bound(BROKEN_CONFIDENCE)).bound < 1 / 0.75
  assert 0.8 < audit(claimed, bound=gaussian_bound(BROKEN_CONFIDENCE)).bound < 1.0


@pytest.mark.slow
def test_clipping_after_the_noise_is_found():
  def encode(key, value):
    return jnp.clip(value + 0.25 * random.laplace(key, value.shape), -0.5, 0.5)

  right = laplace(4.0, 1.0)
  broken = right._replace(encode=encode, privatize=encode)
  assert audit(broken, 10.0, -10.0).bound > 4.0
  assert audit(right, 10.0, -10.0).bound < 4.0
  assert audit(broken).bound < 8.0  # the ends of the domain tell it not


@pytest.mark.slow
def test_a_filter_with_a_private_threshold_is_found():
  """Noise on the values that are sent, none on the decision which are."""

  def encode(key, value):
    return jnp.where(jnp.abs(value) > 0.3, laplace(4.0, 1.0).encode(key, value), 0.0)

  filtered = laplace(4.0, 1.0)._replace(encode=encode)
  found = audit(filtered, 0.31, 0.29)
  assert found.bound > 4.0


def histograms(mechanism, values, num_outcomes):
  """[values, outcomes], how often each report comes."""
  inputs = [jnp.asarray(v) for v in values]
  scores = draw_scores(jax.random.key(9), mechanism, lambda report: report, SAMPLES, *inputs)
  return np.stack([np.bincount(s, minlength=num_outcomes) for s in scores])


@pytest.mark.slow
@pytest.mark.parametrize("make", [scalar_dp, scalar_rel_dp])
def test_every_level_of_the_scalar_mechanisms(make):
  """All pairs of levels and of values between them, jointly."""
  options = {"num_levels": 4} | ({"min_value": 0.1} if make is scalar_rel_dp else {})
  mechanism = make(3.0, 1.0, **options)
  found = audit_outcomes(histograms(mechanism, [0.0, 0.1, 0.3, 0.75, 1.0], 5), confidence=1 - 1e-4)
  assert 1.5 < found < 3.0


def test_lies_that_stay_near_the_truth_are_found():
  right = scalar_dp(3.0, 1.0, num_levels=4)

  def encode(key, value):
    lie_key, side_key = jax.random.split(key)
    lie = draws.rare_bernoulli(lie_key, right.parameters.log_lie_probability)
    level = jnp.round(4 * value).astype(jnp.int32)
    up = jax.random.bernoulli(side_key) | (level == 0)
    return jnp.where(lie, level + jnp.where(up & (level < 4), 1, -1), level)

  counts = histograms(right._replace(encode=encode), [0.0, 0.25, 0.5, 0.75, 1.0], 5)
  assert audit_outcomes(counts, confidence=1 - 1e-4) > 3.0


def test_refusals():
  with pytest.raises(ValueError, match="Expected num_samples to be a whole number >= 4, got 3"):
    audit(laplace(1.0, 1.0), samples=3)
  broken = laplace(1.0, 1.0)._replace(encode=lambda key, value: value * jnp.nan)
  with pytest.raises(ValueError, match="none of them NaN"):
    audit(broken)
