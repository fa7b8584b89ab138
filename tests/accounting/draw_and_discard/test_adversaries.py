"""Draw and Discard, the three adversaries: brute force on small models, reference points, bounds
that must hold.
"""

import math

import absl.logging
import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy import special, stats

from jdp.accounting import draw_and_discard, gaussian_epsilon, gaussian_noise_multiplier
from jdp.accounting.draw_and_discard import later_updates, lineage, one_update
from jdp.accounting.draw_and_discard.laplace_sums import hockey_stick
from jdp.accounting.draw_and_discard.later_updates import LaterUpdates
from jdp.guarantees import Observer, PureDP, Unit
from tests.helpers import statistical

absl.logging.set_verbosity(absl.logging.ERROR)


def _logistic_gradients(weights):
  """Gradients [2^d, 2, d] of a logistic model for all features in {.98, 1}^d and both labels."""
  features = 1 - 0.02 * ((np.arange(2 ** len(weights))[:, None] >> np.arange(len(weights))) & 1)
  residuals = special.expit(features @ weights)[:, None] - np.array([0.0, 1.0])
  return residuals[:, :, None] * features[:, None, :]


def test_brute_force_one_feature_costs_far_more_than_epsilon():
  """Ten features, epsilon = 1 each: one feature costs 5 jointly, anything nearly 10; no coordinate
  more than 1.
  """
  # The first feature alone turns the prediction.
  gradients = _logistic_gradients(6000 * np.array([1.0] + 9 * [-0.11]))
  partners = (np.arange(1024) ^ (1 << feature) for feature in range(10))
  one_feature = max(
    np.abs(gradients - gradients[partner]).sum(axis=-1).max() / 2 for partner in partners
  )
  anything, alone = 0.0, 0.0
  for gradient in gradients.reshape(-1, 10):
    distance = np.abs(gradients - gradient)
    anything, alone = max(anything, distance.sum(axis=-1).max() / 2), max(alone, distance.max() / 2)
  assert one_feature == pytest.approx(5.0, abs=1e-6)
  assert alone == pytest.approx(1.0, abs=1e-6)
  bound = one_update.joint_epsilon(1.0, 10)
  assert bound == 10
  assert 0.99 * bound < anything <= bound


def test_brute_force_row_of_multinomial_regression():
  """A feature's row costs 2 epsilon, and nearly reaches it; with clipping at .5 twice that in units
  of its epsilon.
  """
  rng = np.random.default_rng(4)
  logits = 40 * rng.normal(size=(1500, 3))
  residuals = special.softmax(logits, axis=1) - np.eye(3)[rng.integers(3, size=1500)]
  rows = residuals * rng.choice([0.5, 1.0], size=(1500, 1))
  for clip in (1.0, 0.5):
    clipped = np.clip(rows, -clip, clip)
    joint = max(np.abs(clipped - row).sum(axis=1).max() for row in clipped) / (2 * clip)
    bound = one_update.joint_epsilon(1.0, 3, clip=clip, l1_norm=2.0)
    assert 0.99 * min(2.0, bound) < joint <= bound * (1 + 1e-12)
  assert one_update.joint_epsilon(1.0, 10, l1_norm=2.0) == 2.0


def test_brute_force_later_updates_mix_coordinates():
  """Two coordinates, epsilon 1 each; a later client moves the first by c or -c, as it finds the
  second above 0.

  Between gradients that differ in one coordinate, the first coordinate of its model costs at most
  1; between some that differ in both it costs more, although it is seen alone.
  """
  grid = np.arange(-60, 60, 1e-3)

  def density(first, second):
    """Of the first coordinate after both updates, in scales of the noise, for a user's gradient
    there and there.
    """
    above = stats.laplace.sf(-second / 2)
    two_draws = [
      (1 + abs(z)) * np.exp(-abs(z)) / 4 for z in (grid - first / 2 - u for u in (0.5, -0.5))
    ]
    return above * two_draws[0] + (1 - above) * two_draws[1]

  def delta(one, other):
    return np.maximum(density(*one) - math.e * density(*other), 0).sum() * 1e-3

  stated = later_updates.line_epsilon(1.0, 1e-6, 1)
  assert stated < 1
  assert max(delta((1, 1), (-1, 1)), delta((1, -1), (-1, -1)), delta((1, 1), (1, -1))) < 1e-12
  assert delta((1, 1), (-1, -1)) > 1e-3


@pytest.mark.parametrize(("coordinates", "reports"), [(1, 1), (1, 40), (8, 5)])
def test_gaussian_reports_compose_exactly(coordinates, reports):
  def stated(**bounds):
    report = {"coordinates": coordinates, "reports": reports, **bounds}
    return one_update.channel_guarantee(0.5, delta=1e-5, noise="gaussian", **report)

  accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
  multiplier = gaussian_noise_multiplier(0.5, 1e-5)
  accountant.compose(dp_accounting.GaussianDpEvent(multiplier), coordinates * reports)
  assert stated().epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
  assert stated().delta == 1e-5
  squares = reports * min(coordinates, 4)
  assert stated(l2_norm=1.0, clip=0.5).epsilon == pytest.approx(
    gaussian_epsilon(multiplier / squares**0.5, 1e-5)
  )
  assert stated(l1_norm=1.0, clip=0.5) == stated(l1_norm=2.0)


def test_noise_for_the_whole_update():
  scale = one_update.noise_scale(1.0, norm=20.0, step=0.5)
  alone = 2 * 1.0 * 0.5 / scale  # epsilon of a coordinate with |g| <= 1
  assert one_update.joint_epsilon(alone, 7850, l1_norm=20.0) == pytest.approx(1.0, rel=1e-12)


def test_channel_guarantees_name_unit_and_observer():
  assert one_update.channel_guarantee(0.5, reports=3) == PureDP(1.5, unit=Unit.COORDINATE)
  joint = one_update.channel_guarantee(0.5, coordinates=10, reports=3)
  assert joint == PureDP(15.0, unit=Unit.USER)
  assert joint.observer is Observer.SERVER
  assert one_update.channel_guarantee(0.5, reports=3, delta=1e-300) == PureDP(
    1.5, unit=Unit.COORDINATE
  )


@pytest.mark.parametrize(
  ("epsilon", "coordinates", "reports"), [(0.1, 1, 400), (0.1, 8, 50), (1.0, 1, 100)]
)
def test_many_reports_cost_less_than_their_sum_and_not_too_little(epsilon, coordinates, reports):
  stated = one_update.channel_guarantee(
    epsilon, coordinates=coordinates, reports=reports, delta=1e-6
  )
  accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
  accountant.compose(dp_accounting.LaplaceDpEvent(1 / epsilon), coordinates * reports)
  exact = accountant.get_epsilon(1e-6)
  assert 0.99 * exact < stated.epsilon < 1.2 * exact
  assert stated.epsilon < 0.8 * coordinates * reports * epsilon


def test_known_l1_norm_bounds_the_composition_too():
  row = one_update.channel_guarantee(0.1, coordinates=10, l1_norm=2.0, reports=400, delta=1e-6)
  two = one_update.channel_guarantee(0.1, coordinates=2, reports=400, delta=1e-6)
  assert row.epsilon == pytest.approx(two.epsilon, rel=1e-6)
  half_more, one = (
    one_update.channel_guarantee(0.1, coordinates=10, l1_norm=norm, reports=400, delta=1e-6).epsilon
    for norm in (1.5, 1.0)
  )
  assert 1.05 * one < half_more < two.epsilon / 1.05


def test_published_numbers():
  lemma = [draw_and_discard.published_lemma(1.0, 1e-6, updates) for updates in (10, 100, 1000)]
  assert lemma == pytest.approx([1.197, 0.3673, 0.1151], abs=5e-4)
  assert draw_and_discard.published_average(1.0, 20) == 0.95
  assert draw_and_discard.published_lemma(1.0, 0.0, 10) == math.inf


@pytest.mark.parametrize(
  ("updates", "independent", "non_expansive"),
  [(10, 0.6322, 0.998), (100, 0.2590, 0.419), (1000, 0.07956, 0.1263)],
)
def test_line_epsilon_equals_reference_points(updates, independent, non_expansive):
  def epsilon(later, **options):
    return later_updates.line_epsilon(1.0, 1e-6, updates, later=later, **options)

  assert epsilon("data_independent") == pytest.approx(independent, rel=2e-4)
  assert epsilon("non_expansive", dimension=1) == pytest.approx(non_expansive, abs=5e-4)
  assert epsilon("non_expansive", dimension=1) <= epsilon("non_expansive") <= epsilon("any")
  assert epsilon("any") == pytest.approx(1.0 + 2 * math.log1p(-1e-6), abs=1e-9)


def test_coordinates_together_cost_more_and_never_more_than_their_sum():
  for later in LaterUpdates:
    alone, three = (
      later_updates.line_epsilon(0.5, 1e-5, 60, later=later, coordinates=m) for m in (1, 3)
    )
    assert alone < three <= 1.5
  # All that is known of two coordinates is their joint epsilon: randomised response with it has
  # delta = .01 here.
  together = later_updates.line_epsilon(0.5, 0.01, 60, coordinates=2)
  assert (math.e - math.exp(together)) / (1 + math.e) == pytest.approx(0.01, rel=1e-6)
  two, each = (
    later_updates.line_epsilon(1.0, delta, 10, later="data_independent", coordinates=m)
    for m, delta in ((2, 1e-6), (1, 5e-7))
  )
  # few coordinates: basic composition is the best of the bounds
  assert two == pytest.approx(2 * each, rel=1e-6)
  # Sums of Laplace noise on many coordinates are close to Gaussian: what the bound may lose against
  # the exact Gaussian.
  joint = later_updates.line_epsilon(1.0, 1e-6, 1000, later="data_independent", coordinates=50)
  mu = math.sqrt(50 / (2 * 1001))  # shift over standard deviation
  exact = stats.norm.sf(joint / mu - mu / 2) - math.exp(joint) * stats.norm.sf(joint / mu + mu / 2)
  assert 1e-12 < exact < 1e-6


def test_snapshot_without_later_updates_has_a_closed_form():
  """One instance of k seen at once is the user's with probability 1/k: (1 - e^((e-1)/2)) / k =
  delta.
  """
  epsilon = later_updates.snapshot_epsilon(1.0, 1e-3, 20, 0)
  assert epsilon == pytest.approx(1 + 2 * math.log1p(-20 * 1e-3), abs=1e-9)
  every = later_updates.snapshot_epsilon(1.0, 1e-3, 20, 0, seen=20)
  assert every == pytest.approx(1 + 2 * math.log1p(-1e-3), abs=1e-9)


@pytest.mark.slow
def test_snapshot_mixes_over_survival_and_over_the_line():
  k, updates, delta = 5, 300, 1e-5
  one = later_updates.snapshot_epsilon(1.0, delta, k, updates, later="data_independent")
  weights = stats.binom.pmf(np.arange(updates + 1), updates, 1 / k) / k
  spent = sum(w * hockey_stick(n + 1, 1.0, one) for n, w in enumerate(weights) if w > 1e-20)
  assert spent == pytest.approx(delta, rel=1e-6)
  every = later_updates.snapshot_epsilon(1.0, delta, k, updates, later="data_independent", seen=k)
  later = later_updates.snapshot_epsilon(1.0, delta, k, 2 * updates, later="data_independent")
  assert later < one < every < 1
  gone = lineage.probability_gone(k, updates)
  assert later_updates.snapshot_epsilon(1.0, 1 - gone, k, updates, seen=k) == 0.0


def test_statements_say_what_is_proved():
  first = draw_and_discard.channel_listener(1.0, coordinates=10)
  second = draw_and_discard.internal_threat(1.0, 20)
  third = draw_and_discard.opportunistic_threat(
    1.0, 1e-6, 20, 100, later="non_expansive", coordinates=2
  )
  assert (first.epsilon, first.unit, first.published) == (10.0, Unit.USER, 1.0)
  assert (second.epsilon, second.unit, second.published) == (1.0, Unit.COORDINATE, 0.95)
  assert third.unit is Unit.USER
  assert third.published == 1.0  # T/k = 5 updates: the lemma exceeds epsilon
  assert 1.0 < third.epsilon <= 2.0
  assert draw_and_discard.channel_listener(1.0).published is None
  gaussian = draw_and_discard.internal_threat(1.0, 20, noise="gaussian", delta=1e-6)
  assert (gaussian.delta, gaussian.published) == (1e-6, None)
  assert "no guarantee" in str(second)


def _stationary(rng, runs, k, d, scale):
  """Instances in the steady state, and a model that a client made of one of them with gradient -1
  and step 1.
  """
  # variance k s2/2, with s2 = 2 scale^2
  instances = rng.normal(scale=scale * math.sqrt(k), size=(runs, k, d))
  drawn = instances[np.arange(runs), rng.integers(k, size=runs)]
  return instances, drawn + 1 + rng.laplace(scale=scale, size=(runs, d))


def test_internal_losses_are_the_likelihood_ratios():
  rng = np.random.default_rng(0)
  instances, released = _stationary(rng, 1, 3, 2, 2.0)
  move, other = np.array([-1.0, 0.3]), np.array([0.8, -0.2])

  def likelihood(move, columns):
    noise = (released[0] - instances[0] + move)[:, columns]
    return stats.laplace.pdf(noise, scale=2.0).prod(axis=1).sum()

  losses = draw_and_discard.internal_ratios(instances[0], released[0], move, other, 2.0)
  assert losses.joint == pytest.approx(
    math.log(likelihood(move, [0, 1]) / likelihood(other, [0, 1]))
  )
  for c in (0, 1):
    changed = np.where(np.arange(2) == c, other, move)
    expected = math.log(likelihood(move, [0, 1]) / likelihood(changed, [0, 1]))
    assert losses.coordinates[c] == pytest.approx(expected)
    assert losses.alone[c] == pytest.approx(
      math.log(likelihood(move, [c]) / likelihood(other, [c]))
    )


def test_internal_losses_never_exceed_epsilon_and_reach_it_for_equal_instances():
  rng = np.random.default_rng(1)
  instances, released = _stationary(rng, 300, 20, 10, 2.0)
  instances[:100] = instances[:100, :1]  # equal
  released[:100] = instances[:100, 0] + 1 + rng.laplace(scale=2.0, size=(100, 10))
  losses = draw_and_discard.internal_ratios(
    instances, released, np.full(10, -1.0), np.full(10, 1.0), 2.0
  )
  for per_coordinate in (losses.coordinates, losses.alone):
    assert np.abs(per_coordinate).max() <= 1 + 1e-12
  assert np.abs(losses.joint).max() <= 10 + 1e-12
  statistical.assert_proportion(
    np.sum(losses.coordinates[:100] > 1 - 1e-12), 1000, 0.5, catches=0.27
  )  # half the noises have the sign that gives everything away


def test_many_coordinates_tell_the_pre_image():
  """k=20, d=100: the mean loss is that of a report whose pre-image is known, e^-1; a coordinate
  alone shows a third.
  """
  instances, released = _stationary(np.random.default_rng(2), 1000, 20, 100, 2.0)
  losses = draw_and_discard.internal_ratios(
    instances, released, np.full(100, -1.0), np.full(100, 1.0), 2.0
  )
  # The loss of one coordinate lies in [-1, 1]: its standard deviation is below 1, that of the mean
  # of 100 below .1.
  statistical.assert_mean(losses.coordinates.mean(axis=1), math.exp(-1), stddev=0.1, catches=0.03)
  assert losses.alone.mean() < losses.coordinates.mean() / 2


@pytest.mark.parametrize(
  ("call", "expected"),
  [
    (lambda: one_update.joint_epsilon(math.nan, 3), "epsilon"),
    (lambda: one_update.joint_epsilon(1.0, 3, l1_norm=math.nan), "l1_norm"),
    (lambda: one_update.channel_guarantee(1.0, reports=0), "reports"),
    (lambda: one_update.channel_guarantee(1.0, delta=math.nan), "delta"),
    (lambda: one_update.channel_guarantee(1.0, l2_norm=math.nan), "l2_norm"),
    (lambda: one_update.channel_guarantee(1.0, noise="uniform"), "noise"),
    (lambda: later_updates.line_epsilon(1.0, 1e-6, 5, later="contractive"), "later"),
    (lambda: later_updates.line_epsilon(1.0, 1e-6, 5, coordinates=4, dimension=3), "dimension"),
    (lambda: later_updates.snapshot_epsilon(1.0, 1e-6, 5, 3, seen=0), "seen"),
    (lambda: draw_and_discard.published_lemma(1.0, 1e-6, math.nan), "updates"),
  ],
)
def test_arguments_out_of_range_are_refused(call, expected):
  with pytest.raises(ValueError, match=f"Expected {expected}"):
    call()
