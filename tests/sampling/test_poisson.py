"""Poisson samples follow their distribution, keep their form, and say in their event what was
realised.
"""

import fractions

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jdp.events import PoissonSampling
from jdp.sampling import base, poisson
from tests.helpers import statistical
from tests.helpers.samples import draw, membership

POPULATION, PROBABILITY, ROUNDS = 50, 0.3, 20_000
LAW = stats.binom(POPULATION, PROBABILITY)


@pytest.fixture(scope="module")
def members():
  keys = jax.random.split(jax.random.key(1), ROUNDS)
  return membership(draw(poisson(POPULATION, PROBABILITY), keys), POPULATION)


def test_no_record_is_in_a_sample_twice(members):
  assert set(np.unique(members)) == {0, 1}


def test_probability_of_taking_part(members):
  statistical.assert_proportion(members.sum(), members.size, PROBABILITY, catches=0.02)


def test_every_record_takes_part_with_the_same_probability(members):
  stddev = np.sqrt(PROBABILITY * (1 - PROBABILITY))
  statistical.assert_mean(
    members, np.full(POPULATION, PROBABILITY), stddev=stddev, catches=0.1 * PROBABILITY
  )


def test_records_take_part_independently_of_each_other(members):
  stddev = np.sqrt(PROBABILITY * (1 - PROBABILITY))
  statistical.assert_uncorrelated((members - PROBABILITY) / stddev, catches=0.07)


@pytest.mark.parametrize(
  "wrong",
  [
    stats.binom(POPULATION, 1.02 * PROBABILITY),
    stats.binom(POPULATION, 0.98 * PROBABILITY),
    stats.randint(LAW.mean(), LAW.mean() + 1),
  ],
  ids=["2 % too many", "2 % too few", "fixed size"],
)
def test_sizes_are_binomial(members, wrong):
  sizes = np.bincount(members.sum(axis=1), minlength=POPULATION + 1)
  categories = np.arange(POPULATION + 1)
  statistical.assert_frequencies(sizes, LAW.pmf(categories), catches=wrong.pmf(categories))


@pytest.mark.parametrize("probability", [1e-9, 1e-6, 0.01, 1 / 3, 0.1, 1 - 2**-53, 1.0])
def test_event_holds_the_realised_probability_to_64_bits(probability):
  event = poisson(1000, probability).event(())
  assert isinstance(event, PoissonSampling)
  assert abs(
    fractions.Fraction(event.probability) - fractions.Fraction(probability)
  ) <= fractions.Fraction(1, 2**64)
  assert poisson(1000, probability).expected_size == 1000 * probability


@pytest.mark.slow
def test_everybody_takes_part_with_probability_one(key):
  sampler = poisson(7, 1.0)
  sample, _ = sampler.sample(key, sampler.init())
  assert sample.indices.tolist() == list(range(7))
  assert sample.weights.tolist() == [1.0] * 7
  assert int(sample.size) == 7
  assert sampler.event(()) == PoissonSampling(1.0, 0.0, population=7)


@pytest.mark.slow
@pytest.mark.parametrize(("population", "probability"), [(10, 1e-12), (1, 1e-13), (1000, 1e-15)])
def test_empty_samples_have_slots_of_weight_zero(key, population, probability):
  sample = draw(poisson(population, probability), jax.random.split(key, 100))
  assert sample.indices.shape[1] >= 1
  assert not np.any(sample.weights)
  assert not np.any(sample.size)
  assert np.all((sample.indices >= 0) & (sample.indices < population))


@pytest.mark.parametrize(
  ("population", "probability", "capacity"), [(60_000, 0.01, 916), (10**6, 0.001, 1404)]
)
def test_default_capacity_is_the_least_that_no_plan_notices(population, probability, capacity):
  sampler = poisson(population, probability)
  assert sampler.capacity == capacity
  assert (
    sampler.event(()).overflow_probability
    < 1e-33
    <= stats.binom(population, probability).sf(capacity - 1)
  )


@pytest.mark.slow
def test_overflow_happens_as_often_as_the_event_says(key):
  capacity, rounds = 18, 20_000
  sampler = poisson(POPULATION, PROBABILITY, capacity=capacity)
  assert sampler.event(()).overflow_probability == pytest.approx(LAW.sf(capacity), rel=1e-9)
  sample = draw(sampler, jax.random.split(key, rounds))
  assert sample.indices.shape == (rounds, capacity)
  assert np.all(np.asarray(sample.size) <= capacity)
  assert membership(sample, POPULATION).max() == 1
  # A full sample is one that overflowed or fitted exactly.
  statistical.assert_proportion(
    np.sum(sample.size == capacity), rounds, LAW.sf(capacity - 1), catches=0.15
  )


@pytest.mark.slow
def test_members_come_first_and_padding_has_weight_zero(key):
  sample = draw(poisson(POPULATION, PROBABILITY), jax.random.split(key, 200))
  places = np.arange(sample.weights.shape[1])
  np.testing.assert_array_equal(
    sample.weights, (places < np.asarray(sample.size)[:, None]).astype(np.float32)
  )
  assert (sample.indices.dtype, sample.weights.dtype, sample.size.dtype) == (
    jnp.int32,
    jnp.float32,
    jnp.int32,
  )
  assert np.all((sample.indices >= 0) & (sample.indices < POPULATION))


@pytest.mark.slow
@pytest.mark.parametrize(("population", "capacity"), [(1000, 5), (1024, 5), (1000, 40)])
@pytest.mark.parametrize("probability", [0.0, 0.003, 0.05])
def test_members_are_the_first_that_were_chosen(key, population, capacity, probability):
  chosen = jax.random.bernoulli(key, probability, (20, population)).at[0, -1].set(True)
  samples = jax.jit(jax.vmap(lambda row: base.pack(row, capacity)))(chosen)
  assert samples.population == population
  slots = (samples.indices, samples.weights, samples.size)
  for row, indices, weights, size in zip(np.asarray(chosen), *slots, strict=True):
    members = np.flatnonzero(row)[:capacity]
    assert indices.tolist() == [*members, *[0] * (capacity - len(members))]
    assert (weights.sum(), size) == (len(members), len(members))


def test_capacity_beyond_the_population_is_the_population():
  sampler = poisson(10, 0.5, capacity=100)
  assert (sampler.capacity, sampler.event(()).overflow_probability) == (10, 0.0)


def test_no_record_exceeds_the_participation_cap(key):
  population, cap, rounds = 40, 3, 100
  sampler = poisson(population, 0.2, max_participations=cap)

  def one_round(state, round_key):
    sample, state = sampler.sample(round_key, state)
    return state, (sample, state)

  final, (samples, states) = jax.jit(lambda s, keys: jax.lax.scan(one_round, s, keys))(
    sampler.init(), jax.random.split(key, rounds)
  )
  taken = membership(samples, population)
  np.testing.assert_array_equal(np.cumsum(taken, axis=0), states)
  assert taken.sum(axis=0).max() == cap == int(final.max())
  # Until its cap a record takes part as often as ever: with 20 rounds expected, nobody is left
  # below it.
  assert taken.sum(axis=0).min() == cap
  assert sampler.max_participations == cap


@pytest.mark.slow
def test_the_cap_does_not_touch_those_below_it():
  samplers = (
    poisson(POPULATION, PROBABILITY, max_participations=1),
    poisson(POPULATION, PROBABILITY),
  )
  capped, free = (sampler.sample(jax.random.key(1), sampler.init())[0] for sampler in samplers)
  np.testing.assert_array_equal(capped.indices, free.indices)


@pytest.mark.slow
def test_rounds_differ_and_repeat_with_their_key():
  sampler = poisson(1000, 0.1)
  first, again, other = (
    sampler.sample(jax.random.key(seed), sampler.init())[0] for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(first.indices, again.indices)
  assert first.indices.tolist() != other.indices.tolist()


def test_a_million_users_in_one_program_for_all_rounds(key):
  sampler, traces = poisson(10**6, 0.001, max_participations=1), []

  @jax.jit
  def one_round(key, state):
    traces.append(1)
    return sampler.sample(key, state)

  state, seen = sampler.init(), np.zeros(0, np.int32)
  for round_key in jax.random.split(key, 3):
    sample, state = one_round(round_key, state)
    assert sample.indices.shape == (1404,)
    seen = np.append(seen, np.asarray(sample.indices)[np.asarray(sample.weights) > 0])
  assert len(traces) == 1
  assert len(np.unique(seen)) == len(seen)  # the cap of 1
  statistical.assert_proportion(len(seen), 3 * 10**6, 0.001, catches=0.16)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"population": 0}, "population to be a whole number >= 1"),
    ({"population": 1.5}, "population to be a whole number"),
    ({"population": 2**31}, "population to be a number in"),
    ({"probability": 0.0}, "probability to be a finite number > 0"),
    ({"probability": 1.1}, "probability to be a probability"),
    ({"probability": np.nan}, "probability"),
    ({"capacity": 0}, "capacity to be a whole number >= 1"),
    ({"max_participations": 0}, "max_participations to be a whole number >= 1"),
  ],
)
def test_bad_arguments_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    poisson(**({"population": 10, "probability": 0.1} | arguments))
