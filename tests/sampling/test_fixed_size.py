"""Samples of fixed size are uniform subsets: every subset is as likely as any other."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.events import FixedSizeSampling
from jdp.sampling import base, fixed_size
from tests.helpers import statistical
from tests.helpers.samples import draw, membership, run

POPULATION, SIZE, ROUNDS = 20, 7, 20_000


@pytest.fixture(scope="module")
def members():
  return membership(
    draw(fixed_size(POPULATION, SIZE), jax.random.split(jax.random.key(1), ROUNDS)), POPULATION
  )


def test_samples_hold_as_many_distinct_records_as_asked_for(members):
  assert set(np.unique(members)) == {0, 1}
  assert np.all(members.sum(axis=1) == SIZE)


def test_every_record_takes_part_with_the_same_probability(members):
  p = SIZE / POPULATION
  statistical.assert_mean(
    members, np.full(POPULATION, p), stddev=np.sqrt(p * (1 - p)), catches=0.1 * p
  )


def test_every_pair_takes_part_with_the_same_probability(members):
  first, second = np.triu_indices(POPULATION, 1)
  # independent records would have it 9 % higher
  p = SIZE * (SIZE - 1) / (POPULATION * (POPULATION - 1))
  stddev = np.sqrt(p * (1 - p))
  pairs = members[:, first] * members[:, second]
  statistical.assert_mean(pairs, np.full(len(first), p), stddev=stddev, catches=0.25 * p)
  statistical.assert_mean(
    members[:, 0] * members[:, 1:].sum(axis=1), (POPULATION - 1) * p, stddev=3, catches=0.2
  )


@pytest.mark.sweep
@pytest.mark.parametrize("size", [2, 4])  # the second by its complement
def test_every_subset_is_as_likely_as_any_other(key, size):
  sample = draw(fixed_size(6, size), jax.random.split(key, ROUNDS))
  subsets = {subset: place for place, subset in enumerate(itertools.combinations(range(6), size))}
  counts = np.bincount(
    [subsets[tuple(row)] for row in np.asarray(sample.indices).tolist()], minlength=len(subsets)
  )
  wrong = np.full(len(subsets), 0.955 / (len(subsets) - 1))
  wrong[0] = 0.045  # instead of 0.067
  statistical.assert_frequencies(counts, np.full(len(subsets), 1 / len(subsets)), catches=wrong)


def test_integers_are_uniform_and_those_of_the_uneven_rest_are_marked(key):
  bound, number = 3 * 2**29, 40_000  # a quarter of the words is beyond the last whole multiple
  drawn = np.asarray(base.integers(key, bound, number))
  statistical.assert_proportion(np.sum(drawn == bound), number, 1 / 4, catches=0.08)
  thirds = np.bincount(drawn[drawn < bound] // 2**29)
  statistical.assert_frequencies(thirds, np.full(3, 1 / 3), catches=np.array([0.5, 0.25, 0.25]))


@pytest.mark.slow
def test_marked_integers_are_drawn_again(key):
  sample = draw(fixed_size(3 * 2**29, 500), jax.random.split(key, 20)).indices
  assert np.all(np.diff(sample, axis=1) > 0)
  assert sample.max() < 3 * 2**29


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("population", "size"), [(1, 1), (5, 5), (2, 1), (10**6, 1), (10**6, 1000)]
)
def test_form_of_a_sample(key, population, size):
  sampler = fixed_size(population, size)
  sample, state = jax.jit(sampler.sample)(key, sampler.init())
  assert (sample.indices.dtype, sample.weights.dtype, sample.size.dtype) == (
    jnp.int32,
    jnp.float32,
    jnp.int32,
  )
  assert sample.indices.shape == sample.weights.shape == (size,) == (sampler.capacity,)
  assert sampler.expected_size == size == int(sample.size) == float(sample.weights.sum())
  assert len(set(sample.indices.tolist())) == size
  assert 0 <= sample.indices.min() <= sample.indices.max() < population
  assert sampler.event(state) == FixedSizeSampling(size, population)


@pytest.mark.slow
def test_rounds_of_a_scan_differ_and_equal_those_drawn_one_by_one(key):
  sampler, keys = fixed_size(1000, 50), jax.random.split(key, 5)
  samples, _, _ = run(sampler, keys)
  assert len({tuple(row) for row in samples.indices.tolist()}) == 5
  np.testing.assert_array_equal(samples.indices, [sampler.sample(k, ())[0].indices for k in keys])


def test_a_key_is_spent(key):
  sampler = fixed_size(10, 3)
  sampler.sample(key, ())
  with pytest.raises(jax.errors.KeyReuseError):
    sampler.sample(key, ())


@pytest.mark.parametrize(
  ("population", "size", "message"),
  [
    (0, 1, "population to be a whole number >= 1"),
    (2**31, 1, "population to be a number in"),
    (10, 0, "sample_size to be a whole number >= 1"),
    (10, 11, "sample_size <= population"),
    (10, np.nan, "sample_size to be a whole number"),
  ],
)
def test_bad_arguments_are_refused(population, size, message):
  with pytest.raises(ValueError, match=message):
    fixed_size(population, size)
