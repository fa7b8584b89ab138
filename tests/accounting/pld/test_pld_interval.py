"""Intervals of epsilon: they hold exact values and dp_accounting's, and are narrow."""

import dataclasses
import math
import subprocess
import sys
import tracemalloc

import dp_accounting
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from scipy import special

from jdp import accounting, queries, sampling
from jdp.accounting.families import gaussian
from jdp.events import (
  BallsInBins,
  ConcentratedRelease,
  DiscreteGaussianSum,
  FixedSizeSampling,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  LocalRelease,
  NonPrivate,
  PoissonSampling,
  PureRelease,
  RandomizedResponse,
  Round,
  SkellamSum,
  WeightedAverage,
)
from jdp.guarantees import PureDP
from jdp.ledger import Ledger, subsampled_gaussian
from tests.helpers.ledgers import random_ledgers

WHOLE = PoissonSampling(1.0)


def once(query, sampling=WHOLE, relation="zero_out", count=1):
  return Ledger().append(Round(sampling, query, relation), count=count)


def theirs(q, z, rounds, delta, step):
  """dp_accounting's optimistic and pessimistic estimates."""
  result = []
  for pessimistic in (False, True):
    distribution = privacy_loss_distribution.from_gaussian_mechanism(
      z,
      sampling_prob=q,
      value_discretization_interval=step,
      pessimistic_estimate=pessimistic,
      use_connect_dots=pessimistic,
    )
    result.append(distribution.self_compose(rounds).get_epsilon_for_delta(delta))
  return result


def is_narrow(lower, upper):
  return upper - lower <= max(1e-3 * upper, 1e-4)


@pytest.mark.parametrize(
  ("z", "delta"), [(0.3, 1e-5), (1.0, 1e-8), (5.0, 1e-5), (20.0, 1e-6), (200.0, 1e-9)]
)
def test_one_gaussian(z, delta):
  exact = accounting.gaussian_epsilon(z, delta)
  lower, upper = accounting.epsilon_interval(subsampled_gaussian(1.0, z, 1), delta)
  assert lower <= exact * (1 + 1e-9)
  assert exact * (1 - 1e-9) <= upper
  assert upper - lower <= 2e-5 * upper
  many = accounting.epsilon_interval(subsampled_gaussian(1.0, 10 * z, 100), delta)
  np.testing.assert_allclose(many, (lower, upper), rtol=1e-9)


# Values of dp_accounting on a grid of 1e-4, which are above the truth by that grid.
@pytest.mark.parametrize(
  ("run", "delta", "reference"),
  [
    ((0.01, 1.0, 10_000), 1e-5, 6.1877),
    ((0.01, 1.0, 1000), 1e-5, 1.8282),
    ((5000 / 763_430, 1.0, 5000), 1e-9, 3.899),
  ],
)
def test_published_values(run, delta, reference):
  lower, upper = accounting.epsilon_interval(subsampled_gaussian(*run), delta)
  assert lower <= reference <= upper * (1 + 2e-5)
  assert is_narrow(lower, upper)
  assert upper == pytest.approx(
    accounting.epsilon(subsampled_gaussian(*run), delta, accountant="pld"), rel=1e-3
  )


def test_calibration_of_the_published_value():
  z = accounting.calibrate_noise_multiplier(2.0, 1e-6, 0.001, 5000, accountant="pld")
  np.testing.assert_allclose(z, 0.64650, rtol=1e-3)


# In strata by epsilon; each takes dp_accounting less than a second. The benchmark
# `accounting agreement` has more.
@pytest.mark.parametrize(
  "plan",
  [
    (0.02, 0.8, 30, 1e-6),
    (0.3, 2.0, 12, 1e-5),
    (1e-3, 0.6, 400, 1e-7),
    (3e-4, 1.4, 220, 2e-6),
    (2.3e-2, 6.5, 3, 7.5e-8),
    (0.7, 9.0, 100, 1e-4),
    (0.05, 1.1, 150, 1e-9),
    (8e-3, 2.4, 49, 3e-6),
    (0.11, 0.7, 6, 1e-3),
    (1.9e-3, 1.0, 489, 1.5e-8),
  ],
  ids=str,
)
def test_meets_the_interval_of_dp_accounting(plan):
  lower, upper = accounting.epsilon_interval(subsampled_gaussian(*plan[:3]), plan[3])
  optimistic, pessimistic = theirs(*plan, step=1e-3)
  assert lower <= pessimistic
  assert optimistic <= upper
  assert lower > 0
  assert is_narrow(lower, upper)


# Their losses have long tails: a tilt that suits the likely ones is not right for these.
@pytest.mark.parametrize(
  "plan",
  [
    (1.4537e-4, 1.02285, 6026, 9.4497e-9),
    (2.3548e-4, 1.22129, 1644, 1.1008e-4),
    (1.9730e-3, 4.98154, 144, 2.6926e-9),
    (1.1457e-4, 0.83308, 1707, 9.8372e-8),
    (3.8229e-4, 1.19089, 2760, 3.8701e-5),
    (4.9369e-4, 2.27093, 9, 2.3545e-8),
  ],
  ids=str,
)
def test_intervals_of_rare_large_losses_are_narrow(plan):
  assert is_narrow(*accounting.epsilon_interval(subsampled_gaussian(*plan[:3]), plan[3]))


def test_rare_large_losses_meet_the_interval_of_dp_accounting():
  lower, upper = accounting.epsilon_interval(subsampled_gaussian(4.937e-4, 2.271, 9), 2.3545e-8)
  optimistic, pessimistic = theirs(4.937e-4, 2.271, 9, 2.3545e-8, step=1e-5)
  assert pessimistic - optimistic < 0.02 * upper  # else it shows little
  assert lower <= pessimistic
  assert optimistic <= upper


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize(("first", "second"), [((0.1, 1.0), (0.3, 0.8)), ((0.01, 0.7), (1.0, 4.0))])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_two_events_by_quadrature(first, second, removed, delta):
  """E over the first's losses of the second's exact hockey stick; the trapezoidal rule errs by less
  than 1e-12.
  """

  def stick(q, z, epsilon):
    bound = epsilon if removed else -epsilon
    with np.errstate(divide="ignore", invalid="ignore"):
      gain = np.expm1(bound) / q + 1
      t = np.where(gain > 0, np.log(np.maximum(gain, 1e-300)) * z + 0.5 / z, -np.inf)
    none, one = (special.ndtr(s - t) if removed else special.ndtr(t - s) for s in (0.0, 1 / z))
    mixed = (1 - q) * none + q * one
    return mixed - np.exp(epsilon) * none if removed else none - np.exp(epsilon) * mixed

  q, z = first
  x = np.linspace(-14, 14 + 1 / z, 20_001)
  none, one = (np.exp(-0.5 * (x - s) ** 2) / math.sqrt(2 * math.pi) for s in (0.0, 1 / z))
  loss = np.log1p(q * np.expm1((x - 0.5 / z) / z)) * (1 if removed else -1)
  density = ((1 - q) * none + q * one) if removed else none

  def exact(epsilon):
    return float(np.sum(density * stick(*second, epsilon - loss)) * (x[1] - x[0]))

  run = Ledger().extend(
    (Round(PoissonSampling(q), GaussianSum(1.0, z)), 1) for q, z in (first, second)
  )
  lower, upper = accounting.epsilon_interval(run, delta)
  assert exact(upper) <= delta * (1 + 1e-9)  # in this direction and in the other
  assert is_narrow(lower, upper)
  if removed:  # the dearer direction here
    assert exact(lower) >= delta * (1 - 1e-9)


def test_many_pure_releases_are_a_binomial():
  """Randomised responses on one bit, 40 times: ones are binomial, and the interval is exact."""
  epsilon, count, delta = 0.3, 40, 1e-5
  p = special.expit(epsilon)
  run = once(RandomizedResponse(2 * (1 - p), 2), relation="replace_one", count=count)
  lower, upper = accounting.epsilon_interval(run, delta)
  ones = np.arange(count + 1)
  here = special.comb(count, ones) * p**ones * (1 - p) ** (count - ones)

  def exact(total):
    return float(np.sum(np.maximum(here - math.exp(total) * here[::-1], 0)))

  assert exact(upper) <= delta * (1 + 1e-9)
  assert exact(lower) >= delta * (1 - 1e-9)
  assert upper - lower <= 1e-7


@pytest.mark.slow
@pytest.mark.parametrize(
  "query",
  [
    PureRelease(0.1),
    WeightedAverage(1.0, 4.0, 2.0),
    ConcentratedRelease(0.01),
    GroupedSums((GaussianSum(1.0, 5.0), ConcentratedRelease(0.01)), ("a", "b")),
  ],
  ids=lambda query: type(query).__name__,
)
def test_no_lower_bound_for_pairs_that_are_not_known_to_be_attained(query):
  lower, upper = accounting.epsilon_interval(once(query, count=5), 1e-5)
  assert lower == 0 < upper <= 1.001 * accounting.epsilon(once(query, count=5), 1e-5)
  both = once(query, count=5) + subsampled_gaussian(0.1, 1.0, 20)
  alone = accounting.epsilon_interval(subsampled_gaussian(0.1, 1.0, 20), 1e-5)
  lower, upper = accounting.epsilon_interval(both, 1e-5, relation="zero_out")
  assert lower == pytest.approx(alone[0], rel=2e-3)
  assert upper > alone[1]


@pytest.mark.parametrize(
  ("z", "other"), [(10.0, PureRelease(0.3)), (1.0, ConcentratedRelease(0.5))]
)
def test_a_loose_upper_end_does_not_raise_the_lower_one(z, other):
  """Only the Gaussian is attained: the other release may show nothing."""
  run = once(GaussianSum(1.0, z)) + once(other)
  exact = accounting.gaussian_epsilon(z, 1e-5)
  lower, upper = accounting.epsilon_interval(run, 1e-5)
  assert exact * (1 - 1e-3) <= lower <= exact * (1 + 1e-9)
  assert upper > 1.2 * exact


def response_deltas(noise, values, count, epsilon):
  """Both deltas of that many responses of a value against uniform answers, exactly: how often the
  value was told is binomial.
  """
  told = np.arange(count + 1)
  laws = [
    special.comb(count, told) * p**told * (1 - p) ** (count - told)
    for p in (1 - noise + noise / values, 1 / values)
  ]
  for p, q in (laws, laws[::-1]):
    yield float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0)))


@pytest.mark.parametrize(
  ("noise", "values", "count", "delta"),
  [(0.2, 4, 1, 0.05), (0.5, 2, 30, 1e-4), (0.9, 10, 25, 1e-6)],
)
def test_responses_of_a_null_record_are_binomial(noise, values, count, delta):
  run = once(RandomizedResponse(noise, values, uniform_null=True), count=count)
  lower, upper = accounting.epsilon_interval(run, delta)
  assert max(response_deltas(noise, values, count, upper)) <= delta * (1 + 1e-9)
  assert max(response_deltas(noise, values, count, lower)) >= delta * (1 - 1e-9)
  assert upper - lower <= 1e-6 * upper
  # Where the event does not say what is released of a null record, it may be as much, or more.
  unknown = once(RandomizedResponse(noise, values), count=count)
  found = accounting.epsilon_interval(unknown, delta)
  assert found[0] == pytest.approx(lower, rel=1e-6)
  assert found[1] == pytest.approx(
    accounting.epsilon_interval(unknown, delta, relation="replace_one")[1], rel=1e-6
  )
  assert found[1] > upper


def test_the_response_of_a_null_record_is_that_of_dp_accounting():
  theirs = privacy_loss_distribution.from_randomized_response(
    0.2, 4, neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL
  )
  run = once(RandomizedResponse(0.2, 4, uniform_null=True))
  for delta in (0.01, 0.1, 0.4):  # losses of log 3.4 and log 5
    found = accounting.epsilon(run, delta, accountant="pld")
    assert found <= theirs.get_epsilon_for_delta(delta) <= found + 2e-4


@pytest.mark.parametrize(
  "event",
  [
    Round(PoissonSampling(0.01), NonPrivate()),
    Round(FixedSizeSampling(1, 100), NonPrivate(), "replace_one"),
    Round(BallsInBins(100, True), NonPrivate()),
    Round(PoissonSampling(0.01), GaussianSum(1.0, 0.0)),
    Round(FixedSizeSampling(1, 100), GaussianSum(1.0, 0.0), "replace_one"),
  ],
  ids=str,
)
def test_who_is_rarely_in_a_sample_is_rarely_shown(event):
  # Of three rounds the record is in one with probability 1 - .99^3 = .0297.
  assert accounting.epsilon_interval(Ledger().append(event, count=3), 0.03)[0] == 0.0
  if type(event.query) is GaussianSum:
    assert accounting.epsilon_interval(Ledger().append(event, count=3), 0.029)[0] == math.inf


def test_a_cap_on_participations_is_not_attained():
  # A record that is in one round at most costs what one release does; three rounds would cost more.
  sampler = sampling.poisson(10, 0.9, max_participations=1)
  run = Ledger().append(Round(sampler.event(sampler.init()), GaussianSum(1.0, 1.0)), count=3)
  lower, upper = accounting.epsilon_interval(run, 1e-5)
  assert lower <= accounting.gaussian_epsilon(1.0, 1e-5) < upper


def test_rounding_is_not_attained():
  """A record that is rounded to integers is rarely as long as their bound."""
  for noise in ("gaussian", "skellam"):
    query = queries.discrete_sum(jnp.zeros(4), 1.0, 1.0, num_clients=1, noise=noise)
    key, state = jax.random.key(0), query.init(jnp.zeros(4))
    one = jax.eval_shape(query.preprocess, key, state, jnp.zeros(4), jnp.float32(1))
    assert jax.eval_shape(query.finalize, key, state, one)[1].rounded
  for event in (DiscreteGaussianSum(3, 3, 5.0, 1, 4), SkellamSum(3, 3, 25.0, 1)):
    assert accounting.epsilon_interval(once(event), 1e-5)[0] > 0
    event = dataclasses.replace(event, rounded=True)
    assert accounting.epsilon_interval(once(event), 1e-5)[0] == 0


def test_sums_of_what_local_mechanisms_released_are_not_attained():
  # Their randomness hides a record too: none is known to move the sum by the bound for certain.
  run = once(GaussianSum(1.0, 5.0), relation="add_remove")
  assert accounting.epsilon_interval(run, 1e-5)[0] > 0
  local = LocalRelease(PureDP(1.0, relation="replace_one", unit="user", observer="server"))
  assert accounting.epsilon_interval(run.append(local), 1e-5, observer="model")[0] == 0.0


def test_rounds_that_a_sample_may_hide_are_not_attained():
  part_of_an_epoch = once(GaussianSum(1.0, 5.0), BallsInBins(4, True))
  assert accounting.epsilon_interval(part_of_an_epoch, 1e-5)[0] == 0.0
  known = Ledger().append(
    Round(PoissonSampling(0.1), GaussianSum(1.0, 5.0), "zero_out", observer="server"), count=9
  )
  assert accounting.epsilon_interval(known, 1e-5)[0] > 0
  reported = known.append(
    LocalRelease(PureDP(1.0, relation="zero_out", unit="user", observer="server"))
  )
  assert accounting.epsilon_interval(reported, 1e-5)[0] == 0.0


@pytest.mark.slow
def test_fixed_size_samples_are_between_their_halves_and_no_sampling():
  run = once(GaussianSum(1.0, 2.0), FixedSizeSampling(100, 10_000), "replace_one", count=1000)
  lower, upper = accounting.epsilon_interval(run, 1e-5)
  halves = accounting.epsilon_interval(subsampled_gaussian(0.01, 1.0, 1000), 1e-5)
  np.testing.assert_allclose(lower, halves[0], rtol=1e-3)  # a data set attains each
  assert halves[1] < upper < 0.7 * accounting.epsilon(run, 1e-5, accountant="rdp")
  unsampled = once(GaussianSum(1.0, 2.0), FixedSizeSampling(100, 100), "replace_one")
  np.testing.assert_allclose(
    accounting.epsilon_interval(unsampled, 1e-5), accounting.gaussian_epsilon(1.0, 1e-5), rtol=1e-4
  )


@pytest.mark.slow
def test_overflow_widens_the_interval():
  plain = accounting.epsilon_interval(subsampled_gaussian(0.02, 1.2, 50), 1e-5)
  event = Round(PoissonSampling(0.02, overflow_probability=1e-9), GaussianSum(1.0, 1.2))
  lower, upper = accounting.epsilon_interval(Ledger().append(event, count=50), 1e-5)
  assert 0.97 * plain[0] < lower < plain[0] < plain[1] < upper


def test_ends():
  run = subsampled_gaussian(0.1, 1.0, 10)
  assert accounting.epsilon_interval(run, 0.0) == (0.0, math.inf)
  assert accounting.epsilon_interval(run, 1.0) == (0.0, 0.0)
  assert accounting.epsilon_interval(Ledger(), 1e-5) == (0.0, 0.0)
  assert accounting.epsilon_interval(run.append(Round(WHOLE, NonPrivate())), 1e-5) == (
    math.inf,
    math.inf,
  )
  assert accounting.epsilon_interval(subsampled_gaussian(0.1, 0.0, 3), 1e-5) == (math.inf, math.inf)
  assert accounting.epsilon_interval(once(LaplaceSum(1.0, 2.0)), 0.9) == (0.0, 0.0)
  with pytest.raises(ValueError, match="tolerance"):
    accounting.epsilon_interval(run, 1e-5, tolerance=0.0)


def test_a_smaller_tolerance_narrows_the_interval():
  run = subsampled_gaussian(0.01, 1.0, 1000)
  coarse, fine = (accounting.epsilon_interval(run, 1e-5, tolerance=t) for t in (1e-2, 1e-4))
  assert coarse[0] <= fine[0] <= fine[1] <= coarse[1]
  assert fine[1] - fine[0] <= 1e-4 * fine[1]


def test_epsilon_and_delta_agree():
  for run in (subsampled_gaussian(0.01, 1.0, 1000), once(LaplaceSum(1.0, 8.0), count=30)):
    epsilon = accounting.epsilon(run, 1e-6, accountant="pld")
    np.testing.assert_allclose(accounting.delta(run, epsilon, accountant="pld"), 1e-6, rtol=1e-3)


def test_random_intervals_are_in_order():
  """Deterministic: extreme ledgers, every kind of event; both ends are numbers, and the lower one
  is the lower one.
  """
  found = 0
  for i in range(25):
    ledger = random_ledgers.random_ledger(np.random.default_rng([11, i]))
    relation = next((e.relation for e, _ in ledger.entries if isinstance(e, Round)), None)
    by_rdp = random_ledgers.stated(accounting.epsilon, ledger, 1e-5, "rdp", relation)
    if by_rdp is None:  # refused
      continue
    lower, upper = accounting.epsilon_interval(ledger, 1e-5, relation=relation)
    assert 0 <= lower <= upper <= by_rdp
    found += 1
  assert found >= 8


def with_memory(run):
  """The interval at delta = 1e-5, and the peak of the memory that it took, in bytes."""
  tracemalloc.start()
  try:
    return accounting.epsilon_interval(run, 1e-5), tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()


@pytest.mark.parametrize("query", [GaussianSum(1.0, 1e4), LaplaceSum(1.0, 1e4)])
def test_the_most_rounds_are_bounded_in_little_memory(query):
  rounds = 2**53
  run = once(query, PoissonSampling(0.1), count=rounds)
  (lower, upper), peak = with_memory(run)
  by_rdp = accounting.epsilon(run, 1e-5)
  assert 0 <= lower <= upper <= by_rdp < math.inf
  assert peak < 200e6
  if type(query) is GaussianSum:  # the sampled Gaussian's share of mu-GDP, in the limit
    mu = 0.1 * math.sqrt(rounds * math.expm1(1e-8))
    assert upper > 0.99 * accounting.gaussian_epsilon(1 / mu, 1e-5)


@pytest.mark.slow
def test_a_coarse_grid_still_bounds_very_many_rounds():
  """The limit is the Gaussian of mu = q sqrt(T (e^(1/z^2) - 1)), from which epsilon differs by less
  than 1e-3 here: the losses' third cumulant is small.
  """
  q, z, rounds = 0.01, 1000.0, 10**9
  run = subsampled_gaussian(q, z, rounds)
  (lower, upper), peak = with_memory(run)
  mu = q * math.sqrt(rounds * math.expm1(1 / z**2))
  exact = accounting.gaussian_epsilon(1 / mu, 1e-5)
  assert lower < exact * (1 + 1e-3)
  assert exact * (1 - 1e-3) < upper < 1.04 * lower
  assert upper < 0.95 * accounting.epsilon(run, 1e-5, accountant="rdp")
  assert peak < 200e6


def test_a_tiny_epsilon_needs_little_memory():
  run = subsampled_gaussian(1e-3, 100.0, 100_000)
  (lower, upper), peak = with_memory(run)
  assert 0.005 < lower < upper < 0.01
  assert peak < 200e6


def test_importing_jdp_does_not_import_it():
  code = "import sys, jdp; sys.exit(any(m.startswith('jdp.accounting.pld') for m in sys.modules))"
  assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def exact_delta(q, z, epsilon):
  """The larger hockey stick of one sampled Gaussian, in 60 digits."""
  with mpmath.workdps(60):
    q, mean, ratio = mpmath.mpf(q), 1 / mpmath.mpf(z), mpmath.exp(epsilon)

    def where(loss):  # of a removal
      gain = mpmath.expm1(loss) / q + 1
      return mpmath.log(gain) / mean + mean / 2 if gain > 0 else -mpmath.inf

    above, below = where(epsilon), where(-epsilon)
    removed = (1 - q) * mpmath.ncdf(-above) + q * mpmath.ncdf(mean - above)
    removed -= ratio * mpmath.ncdf(-above)
    mixed = (1 - q) * mpmath.ncdf(below) + q * mpmath.ncdf(below - mean)
    return float(max(removed, mpmath.ncdf(below) - ratio * mixed))


@pytest.mark.parametrize(
  ("q", "z", "delta"),
  [
    (1e-4, 0.4, 1e-9),
    (1e-5, 0.5, 1e-9),
    (3.3421926e-6, 0.37986814, 6.2658e-10),
    (1.13484e-8, 4.50718, 4.09555e-10),
  ],
)
def test_one_rare_sample_is_tight(q, z, delta):
  """Where losses are nearly all alike, and few large ones matter."""
  lower, upper = accounting.epsilon_interval(subsampled_gaussian(q, z, 1), delta)
  assert is_narrow(lower, upper)
  assert exact_delta(q, z, upper) <= delta * (1 + 1e-9)
  assert exact_delta(q, z, lower) >= delta * (1 - 1e-9)
  stated = accounting.epsilon(subsampled_gaussian(q, z, 1), delta, accountant="pld")
  assert stated <= max(lower * (1 + 1e-3), lower + 1e-5)


@pytest.mark.parametrize(
  ("q", "z", "delta"),
  [(1e-9, 1.0, 6.657e-7), (1.95e-11, 0.777, 1.99e-9), (6.98e-11, 0.302, 3.26e-8)],
)
def test_nothing_is_spent_where_delta_is_above_the_chance_of_being_drawn(q, z, delta):
  """A plan for three such rounds missed by 1.9 to 17: a fourth round seemed to lower epsilon."""
  event = Round(PoissonSampling(q), GaussianSum(1.0, z), "replace_one", observer="server")
  for count in range(1, 7):
    spent = Ledger().append(event, count=count)
    assert accounting.epsilon(spent, delta, accountant="pld") == 0.0
    assert accounting.epsilon_interval(spent, delta) == (0.0, 0.0)


def test_what_is_rarer_than_rounding_is_not_lost():
  """Differences of probabilities near 1 lose a chance of 1e-15, but for the bounds on their errors.

  The distance of a removal is q (2 Phi(1/2) - 1), and epsilon is above 0 below it.
  """
  for q in np.geomspace(1e-16, 1e-13, 30):
    distance = q * (2 * special.ndtr(0.5) - 1)
    assert accounting.epsilon(subsampled_gaussian(q, 1.0, 1), 0.999 * distance) > 0


@pytest.mark.parametrize(("z", "delta"), [(1.0, 1e-150), (0.2914, 1.5e-160), (1.0, 1e-200)])
def test_lower_ends_hold_at_deltas_whose_squares_underflow(z, delta):
  """At the end, delta by 60 digits is above the one asked for: it was 2e-5 below at 1e-200."""
  many = 7
  lower, _ = accounting.epsilon_interval(subsampled_gaussian(1.0, z, many), delta)
  with mpmath.workdps(60):
    mean, end = mpmath.sqrt(many) / mpmath.mpf(z), mpmath.mpf(lower)
    above, below = mean / 2 - end / mean, -mean / 2 - end / mean
    assert mpmath.ncdf(above) - mpmath.exp(end) * mpmath.ncdf(below) >= delta


def test_extreme_single_releases_are_held():
  """Deterministic: deltas down to 1e-100, probabilities to 1e-12."""
  rng = np.random.default_rng(2)
  for _ in range(12):
    q, z, delta = 10.0 ** rng.uniform([-12, -1.5, -100], [0, 4, -1])
    lower, upper = accounting.epsilon_interval(subsampled_gaussian(q, z, 1), delta)
    assert upper == math.inf or exact_delta(q, z, upper) <= delta * (1 + 1e-9)
    assert lower == 0 or exact_delta(q, z, lower) >= delta * (1 - 1e-9)


def test_the_interval_of_a_million_rounds_is_narrow():
  # Sketches whose mass was not 1 sent the plan astray: nothing above was proved.
  run = Ledger().append(Round(PoissonSampling(1.0), LaplaceSum(1.0, 100.0)), count=10**6)
  lower, upper = accounting.epsilon_interval(run, 1e-5)
  # The loss of one round has mean .01^2 / 2, about, and variance .01^2: together nearly Gaussian.
  assert lower == pytest.approx(accounting.gaussian_epsilon(0.1, 1e-5), rel=0.01)
  assert upper - lower <= 1e-3 * upper
  fixed = Round(FixedSizeSampling(2, 100), GaussianSum(1.0, 2.4), "replace_one")
  lower, upper = accounting.epsilon_interval(Ledger().append(fixed, count=300), 1e-5)
  # Both halves of the pair together are above the one that data sets attain.
  assert 1.52 < lower < upper < 1.77


@pytest.mark.parametrize("probabilities", [1, 3, 40])
def test_many_different_samples_count_as_fewer_from_both_sides(monkeypatch, probabilities):
  z = np.geomspace(0.9, 1.8, 80)
  q = np.resize(np.geomspace(0.02, 0.022, probabilities), 80)
  run = Ledger()
  for row in zip(q.tolist(), z.tolist(), strict=True):
    run += subsampled_gaussian(*row, 5)
  least, most = accounting.epsilon_interval(run, 1e-5)
  monkeypatch.setattr(gaussian, "_MOST_SAMPLED", 64)
  lower, upper = accounting.epsilon_interval(run, 1e-5, tolerance=0.01)
  assert lower < least < most < upper < (1.05 if probabilities < 40 else 1.4) * lower


@pytest.mark.parametrize("attained", [False, True])
def test_merged_samples_are_more_severe_or_less(attained):
  rng = np.random.default_rng(0)
  rows = np.exp(rng.uniform((-9.0, -2.0), (0.0, 3.0), (2000, 2)))
  rows[:5] = (1.0, 2.0), (0.0, 1.0), (0.1, np.inf), (0.2, 0.0), (1.0, 0.0)  # these stay
  counts = rng.integers(1, 9, 2000).astype(float)
  merged, of = gaussian.GAUSSIAN.merged(rows, counts, attained)
  assert of.sum() == counts.sum()
  assert len(merged) <= 256 + 5
  assert {*map(tuple, rows[:5].tolist())} <= {*map(tuple, merged.tolist())}
  for column, above in ((0, not attained), (1, attained)):  # in order, each beside its own
    ours, theirs = (
      np.sort(np.repeat(every[:, column], n.astype(int)))
      for every, n in ((merged, of), (rows, counts))
    )
    assert np.all(ours >= theirs if above else ours <= theirs)


@pytest.mark.parametrize("plan", [(4.3e-5, 0.31, 1692, 1.6e-5), (1e-5, 0.3, 2000, 1e-6)])
def test_a_delta_near_the_chance_of_being_drawn(plan):
  q, z, number, delta = plan
  lower, upper = accounting.epsilon_interval(subsampled_gaussian(q, z, number), delta)
  assert 0.999 * upper < lower
  event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
  theirs = PLDAccountant(value_discretization_interval=1e-3).compose(event, number)
  assert lower < theirs.get_epsilon(delta) < 1.001 * upper
