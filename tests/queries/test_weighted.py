"""Averages by the sample's own weight, and clip norms that follow the sample's own norms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.events import GaussianSum, GroupedSums, PoissonSampling, Round, WeightedAverage
from jdp.ledger.unstacking import unstack
from jdp.queries import adaptive_clipped_sum, weighted_average


def totals(query, state, records, weights):
  """The sum of the contributions of records [n, ...]."""
  rows = jax.vmap(query.preprocess, (None, None, 0, 0))(jax.random.key(0), state, records, weights)
  return jax.tree.map(lambda x: jnp.sum(x, axis=0), rows)


@pytest.mark.slow
@pytest.mark.parametrize(
  "weights", [[0.25, 0.5, 1.0], [0.1, 0.0, 0.2], [0.0, 0.0, 0.0], [9.0, -1.0, np.nan]]
)
def test_weighted_average_is_its_definition(weights):
  query = weighted_average(2.0, 0.0, min_total_weight=0.5)
  records = np.array([[0.5, 0.5], [6.0, 8.0], [-1.0, 1.0]], np.float32)
  state = query.init(records[0])
  result, event, after = query.finalize(
    jax.random.key(1), state, totals(query, state, jnp.asarray(records), jnp.array(weights))
  )
  w = np.clip(np.nan_to_num(weights), 0, 1)
  clipped = records * np.minimum(1, 2 / np.linalg.norm(records, axis=1))[:, None]
  np.testing.assert_allclose(result, w @ clipped / max(0.5, w.sum()), rtol=4e-6, atol=4e-6)
  assert (event, int(after.step)) == (WeightedAverage(2.0, 0.0, 0.5), 1)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, 1e-31, "1", None])
def test_the_least_weight_is_checked_by_name(bad):
  with pytest.raises(ValueError, match="Expected min_total_weight to be a number"):
    weighted_average(1.0, 1.0, min_total_weight=bad)


def test_without_noise_the_clip_norm_settles_at_the_quantile(key):
  norms = jnp.linspace(0.01, 10.0, 1000)
  query = adaptive_clipped_sum(0.0, 1000.0, initial_clip_norm=0.1, quantile=0.7, count_stddev=1e-6)
  records = norms[:, None] * jnp.array([[0.6, 0.8]])

  def one_round(state, key):
    return query.finalize(key, state, totals(query, state, records, jnp.ones(1000)))[2], None

  state, _ = jax.lax.scan(one_round, query.init(records[0]), jax.random.split(key, 200))
  assert float(state.clip_norm) == pytest.approx(7.0, rel=0.02)


def test_the_update_is_the_papers(key):
  """S exp(-learning_rate (share of unclipped records - quantile)), the share over the expected
  size.
  """
  query = adaptive_clipped_sum(
    0.0, 8.0, initial_clip_norm=2.0, quantile=0.25, learning_rate=0.3, count_stddev=1e-6
  )
  records, weights = (
    jnp.array([[1.0], [3.0], [1.5], [9.0], [0.1]]),
    jnp.array([1.0, 1.0, 1.0, 0.5, 0.0]),
  )
  state = query.init(records[0])
  result, event, after = query.finalize(key, state, totals(query, state, records, weights))
  share = 0.5 + (0.5 - 0.5 + 0.5 - 0.25) / 8
  assert float(after.clip_norm) == pytest.approx(2 * math.exp(-0.3 * (share - 0.25)), rel=1e-5)
  assert result.tolist() == pytest.approx([1 + 2 + 1.5 + 1], rel=4e-6)
  assert [float(part.clip_norm) for part in event.parts] == [0.5, 2.0]


@pytest.mark.slow
@pytest.mark.parametrize("z", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("count_stddev", [1.51, 20.0])
def test_sum_and_count_cost_together_as_much_as_one_gaussian(z, count_stddev, key):
  query = adaptive_clipped_sum(z, 50.0, initial_clip_norm=0.3, count_stddev=count_stddev)
  state = query.init(jnp.zeros(3))
  _, event, _ = query.finalize(key, state, totals(query, state, jnp.zeros((1, 3)), jnp.zeros(1)))
  assert isinstance(event, GroupedSums)
  assert event.labels == ("count", "sum")
  assert event.parts[0] == GaussianSum(0.5, count_stddev)
  costs = [
    math.inf if part.stddev == 0 else (float(part.clip_norm) / float(part.stddev)) ** 2
    for part in event.parts
  ]
  assert sum(costs) ** -0.5 == pytest.approx(z, rel=3e-7)


def test_the_event_holds_the_clip_norm_of_its_own_round(key):
  query = adaptive_clipped_sum(1.0, 4.0, initial_clip_norm=0.5, count_stddev=1.0)
  records = jnp.full((4, 2), 10.0)

  def one_round(state, key):
    total = totals(query, state, records, jnp.ones(4))
    _, event, after = query.finalize(key, state, total)
    return after, (state.clip_norm, jnp.linalg.norm(total.vector), event)

  _, (clips, norms, events) = jax.lax.scan(
    one_round, query.init(records[0]), jax.random.split(key, 5)
  )
  assert len(set(clips.tolist())) == 5
  np.testing.assert_allclose(norms, 4 * clips, rtol=4e-6)
  rounds = [event.query for event in unstack(Round(PoissonSampling(0.1), events))]
  assert [event.parts[1].clip_norm for event in rounds] == clips.tolist()
  assert [event.parts[0] for event in rounds] == [GaussianSum(0.5, 1.0)] * 5


@pytest.mark.slow
@pytest.mark.parametrize("count", [1e30, -1e30])
def test_the_clip_norm_never_leaves_its_range(count, key):
  query = adaptive_clipped_sum(1.0, 1.0, count_stddev=1.0)
  state = query.init(jnp.zeros(2))
  total = totals(query, state, jnp.zeros((1, 2)), jnp.zeros(1))._replace(
    unclipped=jnp.float32(count)
  )
  _, _, after = query.finalize(key, state, total)
  assert float(after.clip_norm) == pytest.approx(1e-15 if count > 0 else 1e15)


@pytest.mark.parametrize("count_stddev", [0.5, 0.49, 0.0, -1.0, np.nan, np.inf])
def test_a_count_that_costs_more_than_the_whole_is_refused(count_stddev):
  with pytest.raises(
    ValueError, match=r"Expected a finite count_stddev > noise_multiplier / 2 = 0.5, got"
  ):
    adaptive_clipped_sum(1.0, 100.0, count_stddev=count_stddev)


@pytest.mark.parametrize(
  ("name", "bad"),
  [
    ("noise_multiplier", np.nan),
    ("expected_size", np.nan),
    ("initial_clip_norm", np.nan),
    ("quantile", np.nan),
    ("learning_rate", np.nan),
    ("initial_clip_norm", 1e-16),
    ("quantile", 1.1),
    ("learning_rate", 0.0),
    ("expected_size", 0.0),
  ],
)
def test_arguments_of_adaptive_clipping_are_checked_by_name(name, bad):
  with pytest.raises(ValueError, match=f"Expected {name} to be a"):
    adaptive_clipped_sum(**{"noise_multiplier": 1.0, "expected_size": 100.0} | {name: bad})
