"""Dropout models lose as many clients as they say, in the pattern they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.federated import dropout
from jdp.federated.dropout.dropout_models import stage_counts
from tests.helpers import statistical


def run(model, key, rounds):
  init_key, key = jax.random.split(key)

  def one(state, key):
    present, state = model.sample(key, state)
    return state, present

  return np.asarray(jax.lax.scan(one, model.init(init_key), jax.random.split(key, rounds))[1])


def test_independent(key):
  lost = ~run(dropout.independent(50, 0.3), key, 2000)[:, 0]
  statistical.assert_proportion(lost.sum(), lost.size, 0.3, catches=0.05)
  again = lost[1:] & lost[:-1]
  statistical.assert_proportion(again.sum(), again.size, 0.09, catches=0.1)


@pytest.mark.slow
def test_bursty_losses_last(key):
  lost = ~run(dropout.bursty(200, 0.2, mean_rounds=5.0), key, 1000)[:, 0]
  rate = lost.mean(axis=0)
  # 200,000 rounds, correlated over about nine: standard error 0.0027
  assert abs(rate.mean() - 0.2) < 0.01
  statistical.assert_proportion((lost[1:] & lost[:-1]).sum(), lost[:-1].sum(), 0.8, catches=0.03)


def test_groups_are_lost_together_and_independently_of_each_other(key):
  """Of seven clients in groups of three, the last one is a group of its own."""
  lost = ~run(dropout.bursty(7, 0.3, mean_rounds=2.0, group_size=3), key, 20_000)[:, 0]
  groups = lost[:, [0, 3, 6]]
  assert np.array_equal(lost, groups[:, [0, 0, 0, 1, 1, 1, 2]])
  # A chain's draws are correlated by 1 - 1/2 - 3/14 a round: every tenth is nearly independent.
  apart = groups[::10]
  statistical.assert_proportion(apart.sum(), apart.size, 0.3, catches=0.2)
  statistical.assert_uncorrelated(apart, catches=0.25)
  again = (groups[1:] & groups[:-1])[::10]
  statistical.assert_proportion(again.sum(), again.size, 0.15, catches=0.3)


def test_large_clients_are_lost_more_often(key):
  sizes = np.repeat([10, 30], 25)
  lost = ~run(dropout.by_size(sizes, 0.2), key, 4000)[:, 0]
  for part, expected in ((lost[:, :25], 0.1), (lost[:, 25:], 0.3)):
    statistical.assert_proportion(part.sum(), part.size, expected, catches=0.1)


@pytest.mark.optimised
@pytest.mark.slow
def test_whoever_is_lost_stays_lost_and_calibrations_lose_more(key):
  present = run(dropout.with_calibrations(dropout.independent(100, 0.3), [0.1, 0.2]), key, 1000)
  assert present.shape == (1000, 3, 100)
  assert not np.any(present[:, 1:] & ~present[:, :-1])
  for stage, rate in ((1, 0.9), (2, 0.8)):
    statistical.assert_proportion(
      present[:, stage].sum(), present[:, stage - 1].sum(), rate, catches=0.02
    )
  assert np.array_equal(stage_counts(jnp.asarray(present[0])), [100, *present[0].sum(axis=1)])


@pytest.mark.parametrize(
  "make",
  [
    lambda: dropout.independent(0, 0.1),
    lambda: dropout.independent(5, np.nan),
    lambda: dropout.bursty(5, 1.0, 3.0),
    lambda: dropout.bursty(5, 0.9, 2.0),
    lambda: dropout.bursty(5, 0.1, 0.5),
    lambda: dropout.bursty(5, 0.1, 3.0, group_size=0),
    lambda: dropout.by_size([1, 0], 0.1),
    lambda: dropout.by_size([1, 9], 0.9),
    lambda: dropout.with_calibrations(dropout.independent(5, 0.1), [1.5]),
  ],
)
def test_invalid_arguments_are_refused(make):
  with pytest.raises(ValueError, match="Expected"):
    make()
