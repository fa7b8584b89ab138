"""Epochs: every record has one round of each, drawn anew; a run resumes anywhere."""

import itertools

import jax
import numpy as np
import pytest
from scipy import stats

from jdp import accounting
from jdp.events import BallsInBins, GaussianSum, RandomAllocation, Round, ShuffledBatches
from jdp.ledger import Ledger
from jdp.sampling import allocation, balls_in_bins, base, epochs, random_allocation, shuffled
from tests.helpers import statistical
from tests.helpers.samples import membership, run

SAMPLERS = [
  shuffled(10, 4),
  shuffled(10, 4, keep_partial=True),
  shuffled(8, 4),
  balls_in_bins(10, 3, capacity=10),
]
NAMES = ["dropped", "kept", "whole", "bins"]


def assignments(sampler, keys):
  """The assignment of the first epoch for each key."""
  return np.asarray(
    jax.jit(jax.vmap(lambda key: sampler.sample(key, sampler.init())[1].assignment))(keys)
  )


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS, ids=NAMES)
def test_every_record_has_at_most_one_round_of_an_epoch(key, sampler):
  num_batches = sampler.event(sampler.init()).num_batches
  samples, _, _ = run(sampler, jax.random.split(key, 20 * num_batches))
  taken = membership(samples, 10 if sampler is not SAMPLERS[2] else 8)
  of_epoch = taken.reshape(20, num_batches, -1).sum(axis=1)
  assert of_epoch.max() == 1
  dropped = 2 if sampler is SAMPLERS[0] else 0
  assert np.all(np.sum(of_epoch == 0, axis=1) == dropped)
  assert len({rows.tobytes() for rows in taken.reshape(20, -1)}) > 10  # assigned anew
  assert taken.sum() == 20 * num_batches * sampler.expected_size
  np.testing.assert_array_equal(taken.sum(axis=1), samples.size)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS, ids=NAMES)
def test_a_run_resumes_at_any_round(sampler):
  def rest_after(done, state):
    return run(sampler, jax.random.split(jax.random.key(1), 5)[done:], state)

  samples, _, states = rest_after(0, None)
  for done in (1, 4):  # within the first epoch and in another
    resumed, _, _ = rest_after(done, jax.tree.map(lambda x, done=done: x[done - 1], states))
    jax.tree.map(
      np.testing.assert_array_equal, resumed, jax.tree.map(lambda x, done=done: x[done:], samples)
    )


def test_batches_filled_exactly_are_charged_for_the_one_that_a_removed_record_leaves_short():
  """Records +1 and -1 in batches of one, in either order, against -1 and an empty batch: exactly,
  on a grid.
  """
  grid = np.linspace(-4, 4, 801)
  sampler, stddev = shuffled(2, 1), 0.3

  def law(first, second):
    x, y = (np.exp(-((grid - mean) ** 2) / (2 * stddev**2)) for mean in (first, second))
    return np.outer(x / x.sum(), y / y.sum())

  both, one = (law(1, -1) + law(-1, 1)) / 2, law(-1, 0)
  ledger = Ledger().append(
    Round(sampler.event(sampler.init()), GaussianSum(1.0, stddev), "add_remove")
  )
  for epsilon in (35.0, 50.0, 60.0):
    truth = np.maximum(both - np.exp(epsilon) * one, 0).sum()
    assert truth <= accounting.delta(ledger, epsilon) < 1
  assert shuffled(9, 4).event(epochs.EpochState(None, 1)) == ShuffledBatches(2, False, False, 9)


@pytest.mark.sweep
@pytest.mark.parametrize(
  "sampler", [*SAMPLERS, random_allocation(10, 3, 2)], ids=[*NAMES, "allocation"]
)
def test_events_tell_where_epochs_start(key, sampler):
  def step(state, key):
    event = Round(sampler.event(state), GaussianSum(1.0, 1.0))
    return sampler.sample(key, state)[1], event

  _, events = jax.jit(lambda keys: jax.lax.scan(step, sampler.init(), keys))(
    jax.random.split(key, 7)
  )
  sampled = [event.sampling for event in Ledger().append(events)]
  assert [event.starts_epoch for event in sampled] == [
    n % sampled[0].num_batches == 0 for n in range(7)
  ]


def test_events_hold_what_is_public():
  assert shuffled(10, 4).event(epochs.EpochState(None, 1)) == ShuffledBatches(2, False, False, 10)
  assert shuffled(10, 4, keep_partial=True).event(epochs.EpochState(None, 0)) == ShuffledBatches(
    3, True, True, 10
  )
  event = balls_in_bins(10, 3, capacity=4).event(epochs.EpochState(None, 0))
  assert event == BallsInBins(3, True, stats.binom(10, 1 / 3).sf(4), 10)
  event = random_allocation(10, 3, 2).event(allocation.AllocationState(None, 1))
  assert event == RandomAllocation(3, 2, False, 0.0, 10)


def test_the_kept_partial_batch_is_padded(key):
  samples, _, _ = run(shuffled(10, 4, keep_partial=True), jax.random.split(key, 3))
  assert samples.weights.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]
  assert samples.indices[2, 2:].tolist() == [0, 0]
  assert samples.size.tolist() == [4, 4, 2]


def assert_orders_are_uniform(key):
  """Of four records; one that comes in .027 of all cases, instead of .042, is caught."""
  places = {order: place for place, order in enumerate(itertools.permutations(range(4)))}
  rows = assignments(shuffled(4, 1), jax.random.split(key, 24_000))
  counts = np.bincount([places[tuple(row)] for row in rows.tolist()], minlength=24)
  less_of_one = np.append(np.full(23, (1 - 0.027) / 23), 0.027)
  statistical.assert_frequencies(counts, np.full(24, 1 / 24), catches=less_of_one)


@pytest.mark.slow
def test_every_order_is_as_likely_as_any_other(key):
  assert_orders_are_uniform(key)


def test_orders_stay_uniform_where_words_are_often_equal(key, monkeypatch):
  def coarse(key, shape):
    word = jax.random.bits(key, shape)
    return word & np.uint32(1), (word >> 1) & np.uint32(3)

  monkeypatch.setattr(base, "words", coarse)
  assert_orders_are_uniform(key)


def test_picks_are_uniform_and_independent(key):
  picks = assignments(balls_in_bins(6, 5), jax.random.split(key, 20_000))
  counts = np.bincount(picks.ravel(), minlength=5)
  statistical.assert_frequencies(
    counts, np.full(5, 1 / 5), catches=np.array([0.19, 0.2025, 0.2025, 0.2025, 0.2025])
  )
  for bin_number in (0, 4):
    statistical.assert_uncorrelated(((picks == bin_number) - 0.2) / 0.4, catches=0.07)


@pytest.mark.parametrize(
  "sampler",
  [balls_in_bins(50, 4, capacity=16), random_allocation(50, 8, 2, capacity=16)],
  ids=["bins", "allocation"],
)
def test_sizes_are_binomial_and_overflow_as_often_as_the_event_says(key, sampler):
  sizes = jax.jit(jax.vmap(lambda key: sampler.sample(key, sampler.init())[0].size))(
    jax.random.split(key, 20_000)
  )
  sizes_up_to = np.arange(17)
  law, other = stats.binom(50, 1 / 4), stats.binom(50, 0.26)
  assert sampler.event(sampler.init()).overflow_probability == pytest.approx(law.sf(16), rel=1e-9)
  expected, wrong = (d.pmf(sizes_up_to) + (sizes_up_to == 16) * d.sf(16) for d in (law, other))
  statistical.assert_frequencies(np.bincount(sizes, minlength=17), expected, catches=wrong)


def test_empty_bins_are_ordinary(key):
  sampler = balls_in_bins(1, 1000)
  samples, _, _ = run(sampler, jax.random.split(key, 1000))
  assert (sampler.capacity, samples.indices.shape) == (1, (1000, 1))
  assert float(samples.weights.sum()) == int(samples.size.sum()) == 1


@pytest.mark.parametrize(
  ("sampler", "capacity", "expected_size"),
  [
    (shuffled(10, 4), 4, 4.0),
    (shuffled(10, 4, keep_partial=True), 4, 10 / 3),
    (balls_in_bins(60_000, 100), 916, 600.0),
    (balls_in_bins(7, 1), 7, 7.0),
  ],
)
def test_public_sizes(sampler, capacity, expected_size):
  assert (sampler.capacity, sampler.expected_size) == (
    capacity,
    pytest.approx(expected_size, rel=1e-15),
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  "sampler", [shuffled(10**6, 1000), balls_in_bins(10**6, 1000)], ids=["shuffled", "bins"]
)
def test_a_million_users_in_one_program_for_all_rounds(key, sampler):
  samples, _, states = run(sampler, jax.random.split(key, 3))
  members = np.asarray(samples.indices)[np.asarray(samples.weights) > 0]
  assert len(set(members.tolist())) == len(members) == int(samples.size.sum())
  statistical.assert_proportion(len(members), 3 * 10**6, 0.001, catches=0.16)
  np.testing.assert_array_equal(states.assignment[0], states.assignment[2])


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: shuffled(0, 1), "population to be a whole number >= 1"),
    (lambda: shuffled(2**31, 1), "population to be a number in"),
    (lambda: shuffled(10, 0), "batch_size to be a whole number >= 1"),
    (lambda: shuffled(10, 11), "batch_size <= population"),
    (lambda: balls_in_bins(0, 1), "population to be a whole number >= 1"),
    (lambda: balls_in_bins(10, 0), "num_batches to be a whole number >= 1"),
    (lambda: balls_in_bins(10, 2**31), "num_batches to be a number in"),
    (lambda: balls_in_bins(10, 2, capacity=0), "capacity to be a whole number >= 1"),
    (lambda: balls_in_bins(10, np.nan), "num_batches to be a whole number"),
  ],
)
def test_bad_arguments_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()
