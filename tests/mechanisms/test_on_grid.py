"""Releases on a grid: integers, of the stated width, with the stated error."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import random
from jdp.accounting.float_noise import FINEST_SHARE
from jdp.audits.bounds import epsilon_bound
from jdp.audits.local_audit import draw_scores
from jdp.audits.residues import audit_residues
from jdp.mechanisms import (
  gaussian,
  hemisphere,
  l2_laplace,
  laplace,
  on_grid,
  priv_unit,
  priv_unit_g,
  priv_unit_linf,
  scalar_dp,
  scalar_rel_dp,
  separated,
  stream_sum,
)
from jdp.mechanisms.grid import GridParameters
from tests.helpers import releases, statistical

DIM, SPACING = 20, 0.7
MECHANISM = priv_unit(DIM, 6.0)
COARSE = 4 * MECHANISM.max_norm
VALUE = jnp.zeros(DIM).at[3].set(0.8).at[7].set(-0.6)

rounded = functools.cache(on_grid)


def draw(mechanism, count, key=0):
  return releases.draw(mechanism.privatize, VALUE, count, seed=key).astype(np.float64)


@pytest.mark.slow
def test_to_nearest_moves_no_coordinate_by_more_than_half_the_spacing():
  moved = draw(rounded(MECHANISM, SPACING), 2000) - draw(MECHANISM, 2000)
  assert np.max(np.abs(moved)) <= SPACING / 2 * (1 + 1e-5)
  assert np.max(np.abs(moved)) > 0.49 * SPACING


@pytest.mark.slow
@pytest.mark.parametrize("unbiased", [False, True])
def test_every_estimate_is_a_multiple_of_the_spacing(unbiased):
  estimates = draw(rounded(MECHANISM, SPACING, unbiased=unbiased), 1000)
  levels = np.rint(estimates / SPACING)
  np.testing.assert_array_equal(
    estimates, (levels.astype(np.float32) * np.float32(SPACING)).astype(np.float64)
  )
  assert len(np.unique(levels)) > 3


@pytest.mark.slow
def test_random_rounding_is_unbiased_on_a_grid_coarser_than_the_release():
  """200,000 draws catch a bias of 2 % of the spacing; rounding to nearest would release zeros
  only.
  """
  samples = draw(on_grid(MECHANISM, COARSE, unbiased=True), 200_000)
  second_moment = MECHANISM.max_norm * COARSE  # E Z^2 <= COARSE E|estimate|
  statistical.assert_mean(
    samples, np.asarray(VALUE), stddev=math.sqrt(second_moment), catches=0.02 * COARSE
  )
  assert not np.any(draw(on_grid(MECHANISM, COARSE), 1000))


@pytest.mark.slow
@pytest.mark.parametrize("unbiased", [False, True])
def test_mean_squared_error_is_within_the_stated_bound_and_near_it_when_random(unbiased):
  """50,000 draws: standard error below 0.5 % of the error, false-failure rate 1e-6.

  Random rounding adds spacing^2 f (1 - f) for a remainder f; the test catches one that adds
  nothing, or twice that.
  """
  mechanism = rounded(MECHANISM, SPACING, unbiased=unbiased)
  errors = np.sum((draw(mechanism, 50_000) - np.asarray(VALUE)) ** 2, axis=1)
  margin = 5 * errors.std() / math.sqrt(len(errors))
  assert margin < 0.025 * errors.mean()
  assert errors.mean() + margin < mechanism.mean_squared_error(1.0)
  if unbiased:
    remainders = np.mod(draw(MECHANISM, 50_000, key=1) / SPACING, 1)
    expected = DIM * SPACING**2 * np.mean(remainders * (1 - remainders))
    assert margin < expected
    assert errors.mean() - MECHANISM.mean_squared_error(1.0) == pytest.approx(expected, abs=margin)


@pytest.mark.parametrize(
  ("levels", "dtype"), [(127, np.int8), (128, np.int16), (32767, np.int16), (32768, np.int32)]
)
def test_reports_are_the_narrowest_integers_that_hold_the_bound(levels, dtype):
  # has no float digits to hide, so that grids of 2^16 levels are not refused
  exact = hemisphere(DIM, 6.0)
  mechanism = on_grid(exact, exact.max_norm / (levels - 0.5))
  report = jax.eval_shape(mechanism.encode, jax.random.key(0), VALUE)
  assert mechanism.parameters.num_levels == levels
  assert (report.shape, report.dtype) == ((DIM,), dtype)


def test_unbounded_estimates_are_cut_off_and_never_wrap():
  unbounded = MECHANISM._replace(privatize=lambda key, value: value * 1e30, max_norm=math.inf)
  mechanism = on_grid(unbounded, SPACING)
  report = mechanism.encode(jax.random.key(0), VALUE)
  np.testing.assert_array_equal(np.asarray(report)[[3, 7, 0]], [2**24, -(2**24), 0])


@pytest.mark.slow
def test_scalars_and_separated_and_streams():
  scalar = on_grid(scalar_dp(4.0, 1.0), 0.01)
  assert scalar.encode(jax.random.key(0), jnp.float32(0.5)).shape == ()
  mechanism = on_grid(separated(MECHANISM, scalar_dp(4.0, 1.0)), 0.1)
  keys = jax.random.split(jax.random.key(1), 9)
  values = jnp.tile(VALUE, (9, 1))
  expected = jnp.sum(jax.jit(jax.vmap(mechanism.privatize))(keys, values), axis=0)
  streamed = jax.jit(lambda keys: stream_sum(mechanism, keys, values, block_size=4))(
    jax.random.clone(keys)
  )
  np.testing.assert_allclose(streamed, expected, atol=1e-4)


def test_guarantee_is_the_mechanisms():
  assert on_grid(MECHANISM, SPACING).guarantee == MECHANISM.guarantee


@pytest.mark.parametrize("spacing", [0.0, -1.0, math.nan, math.inf, 1e-9])
def test_bad_spacings_are_refused(spacing):
  with pytest.raises(ValueError, match="Expected spacing"):
    on_grid(MECHANISM, spacing)


NOISY = {
  "laplace": laplace(1.0, 1.0),
  "gaussian": gaussian(1.0, 1.0, 1e-3),
  "l2_laplace": l2_laplace(1.0, 1.0, shape=(2,)),
  "priv_unit, a circle": priv_unit(2, 1.0),
  "priv_unit": priv_unit(DIM, 4.0),
  "priv_unit_g": priv_unit_g(4, 1.0),
  "separated": separated(priv_unit(3, 1.0), scalar_dp(1.0, 1.0)),
}
EXACT = {
  "hemisphere": hemisphere(4, 1.0),
  "priv_unit_linf": priv_unit_linf(4, 1.0),
  "scalar_dp": scalar_dp(1.0, 1.0),
  "scalar_rel_dp": scalar_rel_dp(1.0, 1.0, num_levels=4, min_value=0.1),
  "of two exact ones": separated(priv_unit_linf(4, 1.0), scalar_dp(1.0, 1.0)),
}
AUDITED = 100_000
INPUTS = (0.0, 0.5, -0.5)
CONFIDENCE = 1 - 1e-3 / (3 * len(NOISY))  # 99.9 % over all audits at the finest spacing together


def finest(mechanism):
  return FINEST_SHARE * mechanism.noise


def ungated(mechanism, spacing):
  """The grid as it was when it took any spacing: the mechanism is said to have no noise."""
  return on_grid(mechanism._replace(noise=0.0), spacing)


def residue_audits(mechanism, spacing, confidence):
  """Of all pairs of `INPUTS`, each in every coordinate: the first two coordinates of the
  reports.
  """
  inputs = [jnp.full(mechanism.shape, x, jnp.float32) for x in INPUTS]
  drawn = draw_scores(
    jax.random.key(3), mechanism, lambda report: jnp.ravel(report)[:2], AUDITED, *inputs
  )
  bound = epsilon_bound(confidence, mechanism.guarantee.delta)
  return [
    audit_residues(*pair, bound, spacing=spacing) for pair in itertools.combinations(drawn, 2)
  ]


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISY)
def test_residues_refute_nothing_on_the_finest_grid(name):
  """At 99.9 % over all of them together; the next test is the same audit where it refutes."""
  mechanism, spacing = NOISY[name], finest(NOISY[name])
  audits = residue_audits(on_grid(mechanism, spacing), spacing, CONFIDENCE)
  assert max(found.bound for found in audits) <= mechanism.guarantee.epsilon


def test_residues_refute_a_grid_as_fine_as_floats():
  """Of noise that is not dithered: low-order bits of noise near zero are never those of noise near
  one half.
  """
  plain = laplace(1.0, 1.0)._replace(privatize=lambda key, value: value + random.laplace(key))
  found = residue_audits(ungated(plain, 1e-8), 1e-8, 1 - 1e-6)[0]
  assert found.bound > 4.0
  assert found.false_hits == 0


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("name", NOISY)
def test_grids_finer_than_a_sixteenth_of_the_noise_are_refused(name, unbiased):
  mechanism = NOISY[name]
  for share in (0.999, 1e-3, 1e-8):
    with pytest.raises(
      ValueError, match="Expected spacing to be at least 1/16 of the noise's standard deviation"
    ):
      on_grid(mechanism, share * finest(mechanism), unbiased=unbiased)
  assert isinstance(
    on_grid(mechanism, finest(mechanism), unbiased=unbiased).parameters, GridParameters
  )


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISY)
def test_noise_is_the_root_mean_square_of_a_coordinate(name):
  """Of 100,000 estimates of the input that has the largest; a statement off by 5 % is seen."""
  mechanism = NOISY[name]
  estimates = releases.draw(mechanism.privatize, jnp.zeros(mechanism.shape), AUDITED).astype(
    np.float64
  )
  observed = math.sqrt(np.mean(estimates**2))
  if name == "separated":  # stated for the largest magnitude there is
    magnitude = scalar_dp(1.0, 1.0)
    observed *= magnitude.max_norm / math.sqrt(magnitude.mean_squared_error(0.0))
  assert mechanism.noise == pytest.approx(observed, rel=0.05)


@pytest.mark.parametrize("name", EXACT)
def test_mechanisms_without_float_digits_take_any_grid(name):
  """Their estimates are functions of integers, or of floats as likely as their opposites."""
  assert EXACT[name].noise == 0.0
  assert on_grid(EXACT[name], 1e-6 * EXACT[name].max_norm).guarantee == EXACT[name].guarantee


def test_a_mechanism_on_a_grid_has_no_float_digits_left():
  assert on_grid(on_grid(laplace(1.0, 1.0), 0.25), 1e-3).noise == 0.0


def test_a_mechanism_that_does_not_state_its_noise_is_refused():
  with pytest.raises(ValueError, match="states its noise"):
    on_grid(MECHANISM._replace(noise=None), SPACING)
  with pytest.raises(ValueError, match="states its noise"):
    # a magnitude with float noise of its own
    on_grid(separated(MECHANISM, laplace(1.0, 1.0)), SPACING)
