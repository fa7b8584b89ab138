"""Exact audits agree with what mechanisms state, and see what is wrong with those that are
wrong.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from jdp.accounting import gaussian_epsilon
from jdp.audits.bounds import epsilon_bound
from jdp.audits.channels import (
  attainable_bound,
  binned_channel,
  cap_channel,
  channel_epsilon,
  cube_channel,
  gaussian_cap_channel,
  l2_laplace_channel,
  response_channel,
)
from jdp.audits.scores import audit_scores
from jdp.mechanisms import (
  hemisphere,
  priv_unit,
  priv_unit_g,
  priv_unit_linf,
  scalar_dp,
  scalar_rel_dp,
  separated,
)


def of_grid(mechanism):
  """ScalarDP's levels."""
  levels = getattr(mechanism.parameters, "num_levels", None) or len(mechanism.parameters.levels) - 1
  return response_channel(levels, mechanism.parameters.log_lie_probability)


def of_cap(mechanism):
  """PrivUnit's height."""
  cap = mechanism.parameters
  return cap_channel(cap.dim, cap.gamma, cap.p)


CASES = {
  "scalar_dp": (scalar_dp, of_grid),
  "scalar_rel_dp": (
    lambda epsilon, size: scalar_rel_dp(epsilon, 1.0, num_levels=size, min_value=0.1),
    of_grid,
  ),
  "priv_unit": (lambda epsilon, size: priv_unit(size, epsilon), of_cap),
  "hemisphere": (lambda epsilon, size: hemisphere(size, epsilon), of_cap),
  "priv_unit_g": (
    lambda epsilon, size: priv_unit_g(size, epsilon),
    lambda mechanism: gaussian_cap_channel(mechanism.parameters.gamma, mechanism.parameters.p),
  ),
  "priv_unit_linf": (
    lambda epsilon, size: priv_unit_linf(size, epsilon),
    lambda m: cube_channel(m.parameters.dim, m.parameters.threshold, m.parameters.p),
  ),
  "separated": (
    lambda epsilon, size: separated(priv_unit(size, 0.6 * epsilon), scalar_dp(0.4 * epsilon, 1.0)),
    lambda m: np.kron(
      of_cap(m._replace(parameters=m.parameters.direction)),
      of_grid(m._replace(parameters=m.parameters.magnitude)),
    ),
  ),
}


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 16.0])
@pytest.mark.parametrize("size", [2, 5, 1000])
@pytest.mark.parametrize("name", CASES)
def test_the_exact_epsilon_is_the_stated_one(name, size, epsilon):
  make, channel = CASES[name]
  mechanism = make(epsilon, size)
  found = channel_epsilon(channel(mechanism))
  assert found == pytest.approx(mechanism.guarantee.epsilon, rel=1e-8)
  assert found <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("dim", [2, 16, 1000])
def test_a_cap_ten_percent_too_high_costs_more(dim):
  cap = priv_unit(dim, 4.0).parameters
  assert channel_epsilon(cap_channel(dim, 1.1 * cap.gamma, cap.p)) > 4.1


@pytest.mark.parametrize("delta", [0.0, 0.01, 0.2])
def test_no_event_needs_more_and_one_needs_as_much(delta):
  """Against all events of three random distributions on seven outcomes."""
  channel = np.random.default_rng(0).dirichlet(np.ones(7), size=3)
  needed = 0.0
  for p, q in itertools.permutations(channel, 2):
    for event in itertools.product([False, True], repeat=7):
      if p[list(event)].sum() > delta:
        needed = max(needed, math.log((p[list(event)].sum() - delta) / q[list(event)].sum()))
  assert channel_epsilon(channel, delta) == pytest.approx(needed, rel=1e-12)


@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-12])
@pytest.mark.parametrize("z", [0.3, 1.0, 10.0])
def test_normal_noise_in_small_cells_has_the_analytic_epsilon(z, delta):
  laws = stats.norm(0, z), stats.norm(1, z)
  found = channel_epsilon(binned_channel(laws, np.linspace(-12 * z, 1 + 12 * z, 20_001)), delta)
  expected = gaussian_epsilon(z, delta)
  assert found <= expected
  assert found == pytest.approx(expected, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 4.0, 30.0])
def test_laplace_noise_in_three_cells(epsilon):
  laws = stats.laplace(0, 1 / epsilon), stats.laplace(1, 1 / epsilon)
  assert channel_epsilon(binned_channel(laws, [0.0, 1.0])) == pytest.approx(epsilon, rel=1e-12)
  quiet = stats.laplace(0, 0.75 / epsilon), stats.laplace(1, 0.75 / epsilon)
  assert channel_epsilon(binned_channel(quiet, [0.0, 1.0])) == pytest.approx(
    epsilon / 0.75, rel=1e-12
  )


def test_an_outcome_that_one_input_alone_has():
  """A filter that sends what exceeds a private percentile, and nothing else, without noise on the
  decision.
  """
  filtered = [[1.0, 0.0, 0.0], [1e-3, 0.5, 0.499]]
  assert channel_epsilon(filtered) == math.inf
  assert channel_epsilon(filtered, delta=0.998) == math.inf
  assert channel_epsilon(filtered, delta=0.9990001) < math.inf
  assert channel_epsilon([[0.5, 0.5, 0.0]] * 3) == 0  # an outcome that nobody has


@pytest.mark.parametrize(
  ("channel", "delta", "message"),
  [
    ([[0.5, 0.4]], 0.0, "Expected channel to be rows of probabilities that sum to 1"),
    ([[1.5, -0.5]], 0.0, "Expected channel to be rows of probabilities"),
    ([[math.nan, 1.0]], 0.0, "Expected channel to be rows of probabilities"),
    ([[1.0]], 1.0, r"Expected delta in \[0, 1\)"),
  ],
)
def test_refusals(channel, delta, message):
  with pytest.raises(ValueError, match=message):
    channel_epsilon(channel, delta)


@pytest.mark.parametrize(("dim", "epsilon"), [(2, 4.0), (16, 4.0), (500, 8.0)])
def test_cells_of_l2_laplace_have_their_loss(dim, epsilon):
  """The ratio of each cell's two probabilities follows from the noise's density alone."""
  first, second = l2_laplace_channel(dim, epsilon, 50)
  seen = np.minimum(first, second) > 1e-280
  losses = epsilon * (np.arange(-50, 50) + 0.5) / 50
  np.testing.assert_allclose(
    np.log(first[seen] / second[seen]), losses[seen], atol=epsilon / 50, rtol=0
  )
  assert first.sum() == pytest.approx(1.0)


def test_an_audit_of_the_best_event_finds_what_is_attainable():
  """Of L2-Laplace noise in the plane, by its likelihood ratio: within four standard errors."""
  epsilon, number, rng = 2.0, 100_000, np.random.default_rng(0)
  u, bound = np.eye(2)[0], epsilon_bound(0.999)
  expected = attainable_bound(l2_laplace_channel(2, epsilon), number, bound)

  def scores(end):
    normal = rng.normal(size=(2 * number, 2))
    lengths = rng.gamma(2, 1 / epsilon, (2 * number, 1))
    outputs = end + lengths * normal / np.linalg.norm(normal, axis=1, keepdims=True)
    return np.linalg.norm(outputs + u, axis=1) - np.linalg.norm(outputs, axis=1)

  found = audit_scores(scores(0.0), scores(-u), bound)
  spread = math.sqrt(1 / found.hits + 1 / found.false_hits)
  assert abs(found.bound - expected) < 4 * spread < 0.1 * expected
  assert 0.9 * epsilon < found.bound < epsilon


def test_what_is_attainable_of_two_outcomes_is_the_bound_at_their_frequencies():
  bound = epsilon_bound(0.99, delta=0.1)
  channel = np.array([[0.3, 0.7], [0.9, 0.1]])
  expected = max(bound(700, 1000, 100, 1000), bound(900, 1000, 300, 1000))
  assert attainable_bound(channel, 1000, bound) == pytest.approx(float(expected))
