"""Float noise that is released tells nothing by its low-order bits: it lies on grids with random
shifts.

Every audit of a release fails without the dither: floats near zero are finer, so that events of the
last digits have probabilities of up to a third on one input and none on the other. Their bounds
hold with probability 1 - 1e-6 each, on fixed keys.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jdp.audits.bounds import epsilon_bound, gaussian_bound
from jdp.audits.residues import audit_residues
from jdp.federated.draw_and_discard.client_updates import gaussian_update, laplace_update
from jdp.mechanisms import gaussian, l2_laplace, laplace
from jdp.numerics.dither import dithered, on_shifted_grid
from jdp.queries import adaptive_clipped_sum, average, gaussian_sum, weighted_average
from jdp.queries.adaptive_clipping import AdaptiveContribution
from jdp.queries.distributed.float_sums import distributed_sum
from jdp.queries.distributed.noise_schemes import central, uncalibrated
from jdp.queries.weighted_averages import WeightedContribution
from tests.helpers import statistical

pytestmark = pytest.mark.optimised
COUNT = 200_000
CONFIDENCE = 1 - 1e-6
EPSILONS = (0.1, 1.0, 4.0)


def drawn(release, values, seed=0):
  """COUNT releases of each value: a list of float arrays [COUNT]."""
  keys = jax.random.split(jax.random.key(seed), (len(values), COUNT))
  sample = jax.jit(jax.vmap(release, (0, None)))
  return [
    np.ravel(sample(own, jnp.float32(value))) for own, value in zip(keys, values, strict=True)
  ]


def loss_by_residues(release, bound, values):
  """The larger bound of the two orders in which the values' releases can be told apart."""
  first, second = drawn(release, values)
  return max(audit_residues(*pair, bound).bound for pair in ((first, second), (second, first)))


PURE = {
  "laplace": lambda epsilon: laplace(epsilon, 1.0).encode,
  "l2_laplace": lambda epsilon: l2_laplace(epsilon, 1.0).encode,
  "laplace_update, coordinate": lambda epsilon: of_update(
    laplace_update(given, epsilon, 0.1, clip=0.5)
  ),
  "laplace_update, user": lambda epsilon: of_update(
    laplace_update(given, epsilon, 0.1, clip=0.5, unit="user")
  ),
}


def given(params, client):
  del params
  return client


def of_update(update):
  return lambda key, value: update.release(update.settings, update.draw(key, value), value, value)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("name", PURE)
def test_residues_of_pure_releases_tell_no_more_than_real_noise(name, epsilon):
  """Zero and the edge of the domain differ by half of the sensitivity, so by half of epsilon."""
  assert loss_by_residues(PURE[name](epsilon), epsilon_bound(CONFIDENCE), (0.0, 0.5)) <= epsilon / 2


def of_query(query, contribution=lambda value: value):
  """Of a query whose sum is what `contribution` makes of one number."""
  return lambda key, value: query.finalize(key, query.init(value), contribution(value))[0]


def of_shares(scheme, *numbers):
  query = distributed_sum(1.0, 0.5, scheme)

  def release(key, value):
    share_key, server_key = jax.random.split(key)
    counts = jnp.array(numbers)
    total = value + query.noise(share_key, value, counts)
    return query.finalize(server_key, total, counts)[0]

  return release


def scheduled(value):
  return lambda step: jnp.float32(value)


UPDATE = gaussian_update(given, 1.0, 1e-5, 0.1, clip=0.5)
# Noise of 1/2 on sum and count. (Times a power of two, noise keeps the digits it was drawn with:
# products with others may be fused with the addition, which hides them by chance.)
ADAPTIVE = adaptive_clipped_sum(5**-0.5, 4.0, initial_clip_norm=1.0, count_stddev=0.5)
GAUSSIAN = {  # between 0 and 1/2 each moves by at most the standard deviation of its noise
  "gaussian": gaussian(0.5, 1.0, 1e-5).encode,
  "gaussian_update": of_update(
    UPDATE._replace(settings=UPDATE.settings._replace(noise_scale=np.float32(0.5)))
  ),
  "gaussian_sum": of_query(gaussian_sum(1.0, 0.5)),
  "gaussian_sum, scheduled": of_query(gaussian_sum(1.0, scheduled(0.5))),
  "average": of_query(average(gaussian_sum(1.0, 0.5), 10.0)),
  "weighted_average": of_query(
    weighted_average(1.0, 0.5, min_total_weight=1.0),
    lambda value: WeightedContribution(value, jnp.float32(1)),
  ),
  "adaptive, sum": of_query(ADAPTIVE, lambda value: AdaptiveContribution(value, jnp.float32(0))),
  "noise shares": of_shares(uncalibrated(), 4, 4),
  "central": of_shares(central(), 4, 3),
}


@pytest.mark.slow
def test_what_adaptive_clipping_learns_is_dithered():
  """With one key there is one noise and one shift: all counts give shares on one grid, whatever the
  sum is.
  """
  counts = jnp.linspace(-1, 1, 500)
  totals = AdaptiveContribution(jnp.zeros(500), counts)
  state = ADAPTIVE.init(jnp.float32(0))
  _, _, after = jax.vmap(ADAPTIVE.finalize, (None, None, 0))(jax.random.key(0), state, totals)
  counted = -4.0 / 0.2 * np.log(np.float64(after.clip_norm)) / (0.5 / 16)  # in spacings
  moved = counted - counted[0]
  assert len(np.unique(np.round(moved))) in (64, 65)
  np.testing.assert_allclose(moved, np.round(moved), atol=1e-3)


@pytest.mark.sweep
@pytest.mark.parametrize("name", GAUSSIAN)
def test_residues_of_gaussian_releases_tell_no_more_than_real_noise(name):
  """They move by at most one standard deviation: mu-GDP with mu = 1, which speaks of every delta at
  once.
  """
  assert loss_by_residues(GAUSSIAN[name], gaussian_bound(CONFIDENCE), (0.0, 0.5)) <= 1.0


@pytest.mark.sweep
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_who_knows_the_shift_sees_no_more(scale):
  """One shift for all releases, then their places on its grid, in units of the spacing."""

  def places(key, value):
    noised = scale * (value + jax.random.laplace(key))
    spacing = scale * 2**0.5 / 16
    shift = jax.random.uniform(jax.random.key(5))
    return jnp.round(dithered(jax.random.key(5), noised, spacing) / jnp.float32(spacing) - shift)

  first, second = (x.astype(int) for x in drawn(places, (0.0, 0.5)))
  found = [
    audit_residues(*pair, epsilon_bound(CONFIDENCE), spacing=2**0.5 / 16)
    for pair in ((first, second), (second, first))
  ]
  assert max(own.bound for own in found) <= 0.5


@pytest.mark.sweep
@pytest.mark.parametrize("number", [0.0, 0.125, -0.3, 77.25])
def test_the_rounding_error_is_uniform_whatever_the_number(number):
  """Kolmogorov and Smirnov's test on 200,000 shifts; a bias of 0.006 spacings and errors of 2 %
  more are caught.
  """
  (rounded,) = drawn(lambda key, value: dithered(key, value, 0.25), (number,))
  errors = np.float64(rounded) - np.float32(number)
  uniform = stats.uniform(-0.125, 0.25)
  assert stats.kstest(errors, uniform.cdf).pvalue > statistical.FALSE_FAILURE
  assert stats.kstest(1.02 * errors, uniform.cdf).pvalue < statistical.FALSE_FAILURE
  statistical.assert_mean(errors, 0.0, stddev=0.25 / 12**0.5, catches=0.0015)


def test_all_coordinates_lie_on_one_grid():
  tree = {"a": jnp.linspace(-3, 3, 100), "b": jnp.float32(0.3)}
  rounded = dithered(jax.random.key(0), tree, 0.5)
  places = np.concatenate([np.ravel(x) for x in jax.tree.leaves(rounded)]) / 0.5
  np.testing.assert_allclose((places - places[0]) - np.round(places - places[0]), 0, atol=1e-5)


@pytest.mark.slow
def test_no_noise_and_no_numbers_are_kept():
  """Also with a traced spacing of zero."""
  numbers = jnp.array([0.0, -1.5, 1e-30, 3e38, jnp.nan, jnp.inf, -jnp.inf])
  np.testing.assert_array_equal(jax.jit(dithered)(jax.random.key(0), numbers, 0.0), numbers)
  np.testing.assert_array_equal(dithered(jax.random.key(0), numbers, 1e20)[3:], numbers[3:])
  for query in (gaussian_sum(1.0, 0.0), gaussian_sum(1.0, scheduled(0.0))):
    totals = jnp.array([0.1, -1e-20, 3e7])
    np.testing.assert_array_equal(
      query.finalize(jax.random.key(0), query.init(totals), totals)[0], totals
    )


@functools.cache
def grid():
  return jax.jit(on_shifted_grid)


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("doublings", "least"), [(11, 0.97), (15, 0.97), (18, 0.25), (21, 0.25), (22, 0.25)]
)
def test_cells_are_as_wide_as_the_surcharge_says(doublings, least):
  """The real numbers that share a report, near a number of 2^doublings to twice as many spacings.

  Edges lie halfway between neighbouring float32 numbers, so widths are exact.
  """
  rng = np.random.default_rng(doublings)
  for _ in range(100):
    spacing, shift = np.float32(rng.uniform(1, 2)), np.float32(rng.integers(2**23) * 2.0**-23)
    first = np.float32(2.0**doublings * rng.uniform(1, 1.99) * spacing)
    numbers = (np.arange(40_000, dtype=np.int32) + first.view(np.int32)).view(np.float32)
    reports = np.asarray(grid()(numbers, shift, spacing))
    changed = np.flatnonzero(reports[1:] != reports[:-1])
    edges = (np.float64(numbers[1:])[changed] + np.float64(numbers[:-1])[changed]) / 2
    assert len(edges) > 1
    assert np.min(np.diff(edges)) >= least * spacing


@pytest.mark.slow
def test_releases_are_dithered_by_a_sixteenth_of_the_noise_and_cost_a_3072nd_of_its_variance():
  """The report is within half a spacing of value + noise, and on the grid that the shift's key
  says.
  """
  stddev, key = 2.0, jax.random.key(3)
  result, _, _ = (query := gaussian_sum(1.0, stddev)).finalize(
    key, query.init(jnp.zeros(1000)), jnp.zeros(1000)
  )
  plain = np.unique(np.round(np.diff(np.sort(np.float64(result))) / (stddev / 16), 3) % 1)
  assert set(plain) <= {0.0, 0.999, 0.001}
  for mechanism, variance in (
    (laplace(1.0, 3.0, shape=(4,)), 4 * 2 * 9),
    (l2_laplace(1.0, 3.0, shape=(4,)), 4 * 5 * 9),
    (gaussian(3.0, 3.0, 1e-5, shape=(4,)), 4 * 9),
  ):
    assert mechanism.mean_squared_error(1.0) == pytest.approx(variance * (1 + 1 / 3072), rel=1e-12)


@pytest.mark.slow
def test_shifts_of_an_update_are_uniform_and_of_each_weight(key):
  """A sum of several updates is no more telling than with real noise because of it."""
  update, params = laplace_update(given, 1.0, 0.1), {"a": jnp.zeros(20_000), "b": jnp.zeros(20_000)}
  shifts = np.stack(jax.tree.leaves(update.draw(key, params).shifts), axis=1)
  assert stats.kstest(shifts.ravel(), "uniform").pvalue > statistical.FALSE_FAILURE
  statistical.assert_uncorrelated((shifts - 0.5) * 12**0.5, catches=0.07)
  release = update.release(
    update.settings, update.draw(jax.random.clone(key), params), params, params
  )
  spacing = 2**0.5 / 16 * float(update.settings.noise_scale)
  on_own_grid = np.stack(jax.tree.leaves(release), axis=1) / spacing - shifts
  np.testing.assert_allclose(on_own_grid, np.round(on_own_grid), atol=1e-4)
