"""What every local mechanism promises, for all that are registered: its form, its error, and its
epsilon.

The audits' bounds hold together with probability 99.9 %: so likely is it that a refuted epsilon is
no chance. The keys are fixed. Every audit must also refute the epsilon lowered by 10 %, so none of
them passes for want of reports.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import conformance, mechanisms, sampling
from jdp.conformance.subjects import sharpest_subject
from jdp.guarantees import PureDP, Relation, Unit
from jdp.mechanisms import (
  laplace,
  on_grid,
  priv_unit,
  priv_unit_g,
  priv_unit_linf,
  registry,
  scalar_dp,
)
from jdp.numerics.vectors import unit
from tests.helpers import statistical

REGISTERED = registry.registered()


def typical(entry):
  """A mechanism as it is used; with an epsilon at which 20,000 reports hold many lies of a
  scalar's.
  """
  dim, epsilon = 100 if entry.projects else 30, 4.0 if entry.estimates_directions else 2.0
  return entry.make(registry.Setting(dim, epsilon, num_projections=16, delta=1e-5))


MECHANISMS = {name: typical(entry) for name, entry in REGISTERED.items()} | {
  "priv_unit, many dimensions": priv_unit(300, 4.0),
  "priv_unit, gamma 0": priv_unit(30, 1.0, gamma=0.0),
  "on_grid, at random": on_grid(scalar_dp(2.0, 1.0), 0.25, unbiased=True),
  "priv_unit_linf, one vertex in the cap": priv_unit_linf(5, 2.0, kappa=4),
  "laplace, a matrix": laplace(40.0, 2.0, shape=(4, 5)),
}
BIASED = {"on_grid", "laplace_on_grid", "gaussian_on_grid"}  # rounding to nearest
BATCH = 1000  # releases at once, in every test: one program each
MSE_IS_A_BOUND = {name for name, entry in REGISTERED.items() if not entry.exact} | {
  "on_grid, at random",
  "priv_unit_linf",
  "priv_unit_linf, one vertex in the cap",
}
# A projection that all share has an error that does not average out over releases.
AVERAGING = [
  name for name in MECHANISMS if name not in REGISTERED or not REGISTERED[name].shares_projection
]

EPSILONS = (0.2, 4.0)
FAST_AUDITS = [(name, 1.0) for name in ("laplace_scalar", "scalar_dp", "hemisphere")]
AUDITS = [(name, epsilon) for name in REGISTERED for epsilon in EPSILONS] + FAST_AUDITS
ERROR = 1e-3 / len(AUDITS)
# 10 % less than epsilon is refuted by so many
REPORTS = {0.2: 500_000, 1.0: 150_000, 4.0: 150_000}
CHOOSING = {0.2: 2**15, 1.0: 37_500, 4.0: 37_500}
# Their best events have probabilities of a third, or of no more above delta than that; of the best
# event of proj_unit, the dither blurs the rim. compressed_priv_unit spends a part of its epsilon on
# the other candidates, which the statistics do not look at.
MORE_REPORTS = {
  "compressed_priv_unit": 2,
  "separated": 3,
  "scalar_rel_dp": 3,
  "gaussian": 4,
  "gaussian_on_grid": 4,
  "proj_unit": 2,
}


@pytest.fixture(params=MECHANISMS, name="case")
def _case(request):
  mechanism = MECHANISMS[request.param]
  value = jnp.asarray(np.random.default_rng(0).uniform(0.01, 0.2, mechanism.shape), jnp.float32)
  return mechanism, value


@functools.cache
def releases(mechanism):
  """(keys [n], values [n, ...] or one value) -> estimates [n, ...], compiled once for n = BATCH."""
  privatize = jax.jit(jax.vmap(mechanism.privatize))
  return lambda keys, values: privatize(
    keys, jnp.broadcast_to(values, (len(keys), *mechanism.shape))
  )


def keys():
  return jax.random.split(jax.random.key(11), BATCH)


def inputs(mechanism):
  """Values of norm 1, in every mechanism's domain: along an axis, along the diagonal, and
  neither.
  """
  ones = np.ones(mechanism.shape)
  axis = (np.arange(ones.size) == ones.size // 2).astype(float).reshape(mechanism.shape)
  for value in (axis, ones, np.random.default_rng(3).uniform(0.1, 1, mechanism.shape)):
    value = jnp.asarray(value, jnp.float32)
    yield value / mechanism.norm(value)


def test_estimate_keeps_the_shape_and_is_float32(case):
  mechanism, value = case
  estimate = jax.eval_shape(mechanism.privatize, jax.random.key(0), value)
  assert estimate.shape == value.shape
  assert estimate.dtype == jnp.float32


@pytest.mark.parametrize("name", [name for name, own in MECHANISMS.items() if own.shape])
def test_a_batch_in_place_of_a_value_is_refused(name):
  mechanism = MECHANISMS[name]
  with pytest.raises(ValueError, match=rf"shape {re.escape(str(mechanism.shape))}.*vmap over a"):
    jax.eval_shape(mechanism.privatize, jax.random.key(0), jnp.zeros((2, *mechanism.shape)))


@pytest.mark.slow
def test_privatize_is_decode_after_encode_compiled_or_not_in_a_batch_or_alone(case):
  """Compiled batches of `privatize` against a loop over both halves that is not compiled."""
  mechanism, value = case
  batch = releases(mechanism)(keys(), value)
  loop = np.stack([mechanism.decode(mechanism.encode(key, value)) for key in keys()[:4]])
  np.testing.assert_allclose(batch[:4], loop, rtol=1e-5, atol=1e-5)


@pytest.mark.sweep
def test_clients_of_a_batch_do_not_touch_each_other(case):
  mechanism, value = case
  values = jnp.broadcast_to(value, (BATCH, *mechanism.shape))
  changed = releases(mechanism)(keys(), values.at[2].set(jnp.nan))
  unchanged = releases(mechanism)(keys(), value)
  others = np.arange(BATCH) != 2
  np.testing.assert_array_equal(np.asarray(changed)[others], np.asarray(unchanged)[others])


@pytest.mark.sweep
def test_same_key_same_report_and_different_keys_differ(case):
  mechanism, value = case
  first, second = (releases(mechanism)(keys(), value) for _ in range(2))
  np.testing.assert_array_equal(first, second)
  assert len(np.unique(np.asarray(first).reshape(len(first), -1), axis=0)) > 1


def test_guarantee_is_finite_per_value_under_replacement(case):
  guarantee = case[0].guarantee
  assert guarantee.relation is Relation.REPLACE_ONE
  assert guarantee.unit is Unit.VALUE
  assert 0 < guarantee.epsilon < np.inf
  assert 0 <= guarantee.delta < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", AVERAGING)
def test_mean_and_mean_squared_error_are_as_stated(name):
  """20,000 releases; an error in the mean of 10 standard errors, and one of 12 % in the second
  moment, are caught.
  """
  mechanism, count = MECHANISMS[name], 20_000
  batches = jax.random.split(jax.random.key(11), (count // BATCH, BATCH))
  for value in inputs(mechanism):
    samples = np.concatenate(
      [np.asarray(releases(mechanism)(batch, value), np.float64) for batch in batches]
    )
    stddev = samples.std(axis=0).max()
    if name not in BIASED:
      statistical.assert_mean(
        samples, np.asarray(value), stddev=stddev, catches=10 * stddev / np.sqrt(count)
      )
    errors = np.sum((samples - np.asarray(value)).reshape(count, -1) ** 2, axis=1)
    stated, margin = mechanism.mean_squared_error(1.0), 5 * errors.std() / np.sqrt(count)
    assert margin < 0.12 * stated
    assert errors.mean() - margin <= stated * (1 + 1e-5)
    if name not in MSE_IS_A_BOUND:
      assert errors.mean() + margin >= stated * (1 - 1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("filling", [0.0, np.nan, np.inf, -np.inf, 1e30, -1e38, 1e-40])
def test_every_input_gives_a_finite_estimate_within_the_bound(case, filling):
  mechanism, value = case
  estimates = releases(mechanism)(keys(), jnp.full_like(value, filling))
  assert np.all(np.isfinite(estimates))
  assert np.max(np.asarray(jax.vmap(mechanism.norm)(estimates))) <= mechanism.max_norm * (1 + 1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_inputs_of_any_float_type_are_taken(case, dtype):
  mechanism, value = case
  assert (
    jax.eval_shape(mechanism.privatize, jax.random.key(0), value.astype(dtype)).dtype == jnp.float32
  )


def audited(name, epsilon):
  """In the fewest dimensions that the mechanism takes, where the likelihood ratio is a function of
  the statistics.
  """
  more = MORE_REPORTS.get(name, 1)
  count, choosing = more * REPORTS[epsilon], more * CHOOSING[epsilon]
  subject = sharpest_subject(name, epsilon)
  return conformance.audit(
    subject, jax.random.key(17), num_samples=count, num_choosing=choosing, confidence=1 - ERROR
  )


@pytest.mark.optimised
@pytest.mark.parametrize(
  ("name", "epsilon"),
  [
    pytest.param(*audit, marks=() if audit in FAST_AUDITS else pytest.mark.slow) for audit in AUDITS
  ],
)
def test_the_stated_epsilon_is_not_refuted_and_nine_tenths_of_it_are(name, epsilon):
  found = audited(name, epsilon)
  assert epsilon * (1 - 1e-6) <= found.epsilon < 1.01 * epsilon
  assert not found.refuted, str(found)
  assert found.bound > 0.9 * epsilon, str(found)


@pytest.fixture
def register(monkeypatch):
  """`registry.register`, undone after the test."""
  monkeypatch.setattr(registry, "_MECHANISMS", registry.registered())
  return registry.register


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_registered_mechanism_that_states_half_of_its_epsilon_is_refuted(register, epsilon):
  def half_stated(setting):
    return priv_unit(setting.dim, 2 * setting.epsilon)._replace(guarantee=PureDP(setting.epsilon))

  register("half stated", half_stated)
  subject = sharpest_subject("half stated", epsilon)
  assert conformance.audit(
    subject, jax.random.key(3), num_samples=50_000, confidence=1 - ERROR
  ).refuted


@pytest.mark.slow
def test_inputs_outside_the_domain_are_audited(register):
  """A mechanism that keeps its epsilon between the corners of its domain, and lets huge values
  through.
  """

  def unclipped(setting):
    stated = laplace(setting.epsilon, 2.0)
    return stated._replace(encode=lambda key, value: stated.encode(key, jnp.float32(0)) + value)

  register("unclipped", unclipped)
  found = conformance.audit(sharpest_subject("unclipped", 1.0), jax.random.key(3), num_samples=2000)
  assert found.refuted
  assert {"huge", "infinite", "NaN"} & set(found.pair)


@pytest.mark.optimised
def test_a_registered_mechanism_of_plain_float_noise_is_refuted(register):
  """What `laplace` was without its dither: right for real numbers, and refuted at once by its
  low-order bits.
  """

  def undithered(setting):
    stated = laplace(setting.epsilon, 2.0)
    return stated._replace(
      encode=lambda key, value: (
        jnp.clip(jnp.nan_to_num(value), -1, 1) + stated.parameters * jax.random.laplace(key)
      )
    )

  register("undithered", undithered, smallest_dim=1)
  found = conformance.audit(
    sharpest_subject("undithered", 1.0), jax.random.key(5), num_samples=20_000
  )
  assert found.bound > 4.0
  assert "granularity" in found.statistic


def _residues_of(mechanism, epsilon, key):
  """The audit of a mechanism of directions, with statistics that see the low-order bits of its
  reports.
  """
  subject = conformance.mechanism_subject(mechanism)
  return conformance.audit(
    subject._replace(epsilon=epsilon), key, num_samples=150_000, confidence=1 - ERROR
  )


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("make", [priv_unit, priv_unit_g])
def test_directions_in_three_dimensions_hide_their_low_order_bits(make, epsilon):
  """Two dimensions are audited above."""
  found = _residues_of(make(3, epsilon), epsilon, jax.random.key(5))
  assert not found.refuted, str(found)


@pytest.mark.optimised
@pytest.mark.slow
def test_low_order_bits_refute_the_plain_floats_of_priv_unit():
  """V as computed, on the cap and off it, neither dithered nor brought back to the sphere."""
  stated = priv_unit(2, 1.0)
  cap = stated.parameters
  edge = jnp.arccos(jnp.float32(cap.gamma))

  def encode(key, value):
    choice_key, angle_key, side_key = jax.random.split(key, 3)
    inside = jax.random.uniform(choice_key) < cap.p
    share = jax.random.uniform(angle_key)
    angle = jnp.where(inside, edge * share, edge + (jnp.pi - edge) * share)
    u = unit(value)
    normal = jax.random.rademacher(side_key, dtype=jnp.float32) * jnp.stack([-u[1], u[0]])
    return jnp.cos(angle) * u + jnp.sin(angle) * normal

  found = _residues_of(stated._replace(encode=encode), 1.0, jax.random.key(5))
  assert found.bound > 3.0, str(found)


def test_every_public_factory_and_event_is_audited():
  assert conformance.unaudited(mechanisms, sampling) == []


def test_a_factory_that_is_not_registered_is_named(monkeypatch):
  entries = {
    name: entry for name, entry in REGISTERED.items() if entry.factory is not mechanisms.hemisphere
  }
  monkeypatch.setattr(registry, "_MECHANISMS", entries)
  (missing,) = conformance.unaudited(mechanisms)
  assert (
    missing
    == "jdp.mechanisms.hemisphere_sampling.hemisphere is the factory of no entry: register it."
  )


def test_refusals():
  with pytest.raises(
    ValueError, match="Expected a name that no mechanism has, got 'laplace'; choose another"
  ):
    registry.register("laplace", REGISTERED["laplace"].make)
  with pytest.raises(ValueError, match="Expected num_samples to be a whole number >= 4, got 3"):
    conformance.audit(
      conformance.mechanism_subject(laplace(1.0, 1.0)), jax.random.key(0), num_samples=3
    )
