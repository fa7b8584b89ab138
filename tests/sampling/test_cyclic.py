"""Groups in turns keep the pattern that the accountant assumes; members are drawn fairly."""

import functools
import itertools

import jax
import numpy as np
import pytest
from scipy import stats

from jdp import sampling
from jdp.events import CyclicPoissonSampling, MinSeparationSampling
from jdp.random import draws
from jdp.sampling import cyclic_poisson, groups_by_identity, min_separation
from tests.helpers import statistical
from tests.helpers.samples import run as consecutive

NAMES = [f"user {number}" for number in range(40)]


@pytest.fixture
def key():
  return jax.random.key(7)


def run(sampler, keys):
  """The samples of a run, stacked, and the members of each round."""

  samples, _, _ = consecutive(sampler, keys)
  rows = zip(np.asarray(samples.indices), np.asarray(samples.weights), strict=True)
  return samples, [indices[weights > 0].tolist() for indices, weights in rows]


SAMPLERS = {
  "by number": lambda: min_separation(40, 6, 3),
  "shuffled": lambda: min_separation(40, 6, 3, shuffle_key=jax.random.key(1)),
  "by identity": lambda: min_separation(40, 6, 3, groups=groups_by_identity(NAMES, 6)),
  "coins": lambda: cyclic_poisson(40, 6, 0.5),
  "coins, by identity": lambda: cyclic_poisson(40, 6, 0.5, groups=groups_by_identity(NAMES, 6)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", SAMPLERS)
def test_no_record_takes_part_more_often_or_closer_than_its_event_says(name, key):
  sampler = SAMPLERS[name]()
  samples, rounds = run(sampler, jax.random.split(key, 25))
  times = [[t for t, members in enumerate(rounds) if record in members] for record in range(40)]
  event = sampler.event(sampler.init())
  cap = 25 if name.startswith("coins") else event.max_participations
  assert all(len(own) <= cap for own in times)
  assert all(b - a >= 6 for own in times for a, b in itertools.pairwise(own))
  assert all(len(set(members)) == len(members) for members in rounds)
  if not name.startswith("coins"):
    assert all(len(own) == 3 for own in times)  # nobody misses a turn
    assert rounds[18:] == [[]] * 7
  assert samples.population == sampler.population == 40
  np.testing.assert_array_equal(samples.size, [len(members) for members in rounds])


@pytest.mark.slow
def test_events_say_what_the_sampler_does():
  _, state = min_separation(40, 6, 3).sample(jax.random.key(0), min_separation(40, 6, 3).init())
  assert min_separation(40, 6, 3).event(state) == MinSeparationSampling(6, 3, 40, 1)
  named = min_separation(40, 6, 3, groups=np.zeros(40, int))
  assert named.event(named.init()).by_identity
  sampler = cyclic_poisson(40, 6, 0.3)
  event = sampler.event(sampler.init())
  rate = draws.realised_probability(0.3)
  assert event == CyclicPoissonSampling(6, rate, 40, 0, False, event.overflow_probability)


def test_who_leaves_moves_nobody_whose_group_is_by_identity():
  groups = dict(zip(NAMES, groups_by_identity(NAMES, 6), strict=True))
  others = NAMES[:11] + NAMES[12:]
  assert [groups[name] for name in others] == groups_by_identity(others, 6).tolist()


@pytest.mark.slow
def test_shuffled_groups_are_of_equal_size_and_the_same_in_all_runs(key):
  sampler = min_separation(40, 6, 3, shuffle_key=jax.random.key(1))
  assert not sampler.event(sampler.init()).by_identity
  parts = jax.random.split(key, 18).reshape(3, 6)
  first, again = (run(sampler, keys)[1] for keys in parts[:2])
  assert first == again
  assert sorted(map(len, first)) == [6, 6, 7, 7, 7, 7]
  assert first != run(min_separation(40, 6, 3), parts[2])[1]


@pytest.mark.parametrize(
  "make",
  [functools.partial(min_separation, 4, 2, 3), functools.partial(cyclic_poisson, 4, 2, 1.0)],
)
def test_a_run_that_goes_on_with_other_groups_keeps_its_own(make, key):
  """Record 1 is of group 0. In the other groups, of equal order, it would be in rounds 0 and 1."""
  begun, other = make(groups=[0, 0, 0, 1]), make(groups=[0, 1, 1, 1])
  keys = jax.random.split(key)
  first, state = begun.sample(keys[0], begun.init())
  second, _ = other.sample(keys[1], state)
  members = [sample.indices[: int(sample.size)].tolist() for sample in (first, second)]
  assert members == [[0, 1, 2], [3]]


def test_groups_by_identity_are_even():
  """40,000 names, 8 groups; catches a share of 0.15."""
  counts = np.bincount(groups_by_identity(map(str, range(40_000)), 8), minlength=8)
  statistical.assert_frequencies(
    counts, np.full(8, 1 / 8), catches=np.array([0.15, *[0.85 / 7] * 7])
  )


@pytest.mark.slow
def test_members_flip_coins_of_their_own(key):
  sampler = cyclic_poisson(30, 3, 0.3, capacity=6)
  samples, rounds = run(sampler, jax.random.split(key, 30_000))
  sizes = np.bincount(np.asarray(samples.size), minlength=7)
  law, wrong = stats.binom(10, 0.3), stats.binom(10, 0.31)
  expected, other = (d.pmf(np.arange(7)) + (np.arange(7) == 6) * d.sf(6) for d in (law, wrong))
  statistical.assert_frequencies(sizes, expected, catches=other)
  event = sampler.event(sampler.init())
  assert event.overflow_probability == pytest.approx(law.sf(6), rel=1e-9)
  assert not any(0 in members for members in rounds[1::3] + rounds[2::3])
  pair = np.array([[0 in members, 3 in members] for members in rounds[::3]])
  statistical.assert_proportion(int(pair[:, 0].sum()), 10_000, 0.3, catches=0.15)
  statistical.assert_uncorrelated((pair - 0.3) / 0.21**0.5, catches=0.15)


def test_a_round_compiles_once(key):
  sampler = cyclic_poisson(40, 6, 0.5)
  step = jax.jit(sampler.sample)
  state = sampler.init()
  for one in jax.random.split(key, 4):
    _, state = step(one, state)
  assert step._cache_size() == 1


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: min_separation(0, 1, 1), "population to be a whole number >= 1"),
    (lambda: min_separation(10, 0, 1), "separation to be a whole number >= 1"),
    (lambda: min_separation(10, 2, 0), "max_participations to be a whole number >= 1"),
    (lambda: min_separation(10, 2, 1, groups=np.zeros(9, int)), "groups to be 10 whole numbers"),
    (lambda: min_separation(10, 2, 1, groups=np.full(10, 2)), r"numbers in \[0, 2\)"),
    (lambda: min_separation(10, 2, 1, groups=np.zeros(10)), "groups to be 10 whole numbers"),
    (
      lambda: min_separation(10, 2, 1, groups=np.zeros(10, int), shuffle_key=jax.random.key(0)),
      "groups or a shuffle_key, got both",
    ),
    (lambda: cyclic_poisson(10, 2, 0.0), "probability to be a finite number > 0"),
    (lambda: cyclic_poisson(10, 2, 1.5), "probability to be a probability"),
    (lambda: cyclic_poisson(10, 2, 0.5, capacity=0), "capacity to be a whole number >= 1"),
    (lambda: cyclic_poisson(10, 0, 0.5), "num_groups to be a whole number >= 1"),
    (lambda: sampling.groups_by_identity(["a"], 0), "num_groups to be a whole number >= 1"),
  ],
)
def test_bad_arguments_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()
