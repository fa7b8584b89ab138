"""Random allocation: every record has k rounds of each epoch, each subset equally likely."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.sampling import random_allocation
from jdp.sampling.base import integers_below
from tests.helpers import statistical
from tests.helpers.samples import membership, run


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "taken"), [(5, 2), (5, 5), (4, 1)])
def test_every_record_is_in_k_rounds_of_every_epoch(key, rounds, taken):
  samples, _, _ = run(
    random_allocation(12, rounds, taken, capacity=12), jax.random.split(key, 4 * rounds)
  )
  members = membership(samples, 12).reshape(4, rounds, 12)
  np.testing.assert_array_equal(members.sum(axis=1), taken)
  assert taken == rounds or np.any(members[0] != members[1])


@pytest.mark.slow
def test_every_subset_is_as_likely_as_any_other_and_independent(key):
  # 6,000 epochs of two records; a subset that is 20 % rarer would be seen.
  sampler = random_allocation(2, 4, 2, capacity=2)

  def epoch(key):
    state, rows = sampler.init(), []
    for own in jax.random.split(key, 4):
      sample, state = sampler.sample(own, state)
      rows.append(jnp.zeros(2).at[sample.indices].add(sample.weights))
    return jnp.stack(rows)

  members = np.asarray(jax.jit(jax.vmap(epoch))(jax.random.split(key, 6000))).astype(bool)
  places = {rows: n for n, rows in enumerate(itertools.combinations(range(4), 2))}
  chosen = np.array(
    [
      [places[tuple(np.flatnonzero(row).tolist())] for row in record]
      for record in members.transpose(2, 0, 1)
    ]
  )
  rarer = np.append(np.full(5, (1 - 0.134) / 5), 0.134)
  statistical.assert_frequencies(
    np.bincount(chosen.ravel(), minlength=6), np.full(6, 1 / 6), catches=rarer
  )
  standard = (members - 0.5) / 0.5
  statistical.assert_uncorrelated(standard[:, 0], catches=0.12)  # of two records, in one round


def test_integers_below_a_traced_bound_are_uniform(key):
  draw = jax.jit(lambda key, bound: integers_below(key, bound, 30_000))
  keys = jax.random.split(key, 3)
  counts = np.bincount(draw(keys[0], jnp.int32(3)), minlength=3)
  statistical.assert_frequencies(counts, np.full(3, 1 / 3), catches=np.array([0.30, 0.35, 0.35]))
  assert draw(keys[1], jnp.int32(1)).max() == 0
  # A quarter of all words is not a fair draw below this bound: kept, the share would be .5625.
  bound = 3 * 2**29
  small = int(np.sum(np.asarray(draw(keys[2], jnp.int32(bound))) < bound // 2))
  statistical.assert_proportion(small, 30_000, 0.5, catches=0.54)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: random_allocation(0, 5, 2), "population to be a whole number >= 1"),
    (lambda: random_allocation(10, 0, 1), "num_batches"),
    (lambda: random_allocation(10, 2**31, 1), "num_batches to be a number in"),
    (lambda: random_allocation(10, 5, 0), "participations to be a whole number >= 1"),
    (lambda: random_allocation(10, 5, 6), "participations <= num_batches"),
    (lambda: random_allocation(10, 5, 2, capacity=0), "capacity to be a whole number >= 1"),
  ],
)
def test_bad_arguments_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()
