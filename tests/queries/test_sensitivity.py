"""No record moves any query's release by more than its event says: brute force over neighbouring
samples.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdp import accounting, ledger, queries
from jdp.events import GaussianSum, GroupedSums, PoissonSampling, Round, WeightedAverage
from jdp.ledger.unstacking import unstack
from tests.helpers import query_cases, statistical

pytestmark = pytest.mark.usefixtures("undithered")

SIZE = {"a": 3, "v": 1, "w": 2}
SHAPES = query_cases.record(lambda leaf: jax.ShapeDtypeStruct((SIZE[leaf],), jnp.float32))
EXAMPLES = query_cases.examples(SHAPES)
every_case = pytest.mark.parametrize("case", EXAMPLES.values(), ids=EXAMPLES)
hypothesis = settings(derandomize=True, deadline=None, database=None)

HOSTILE = [np.nan, np.inf, -np.inf, 3e38, -1e30, 1e30, -40.0, 1.0, 0.3, -0.3, 1e-30, 0.0]
WEIGHTS = [0.0, 0.5, 1.0, 1.0, 1.0, -1.0, 7.0, 3e38, np.nan, np.inf, -np.inf]
entries = st.lists(st.sampled_from(HOSTILE), min_size=6, max_size=6)
samples = st.lists(st.tuples(entries, st.sampled_from(WEIGHTS)), min_size=5, max_size=5)


def stacked(rows):
  """Rows of 6 entries as records with a leading axis."""
  x = np.asarray(rows, np.float32)
  parts = {"a": x[:, :3], "v": x[:, 3:4], "w": x[:, 4:]}
  return query_cases.record(lambda leaf: jnp.asarray(parts[leaf]))


def neighbours(n):
  """Which of n records and one more, the last, are in: all n; all but one, for each; the last for
  one, for each.
  """
  everyone = np.append(np.ones(n), 0.0)
  dropped = everyone - np.eye(n, n + 1)
  return np.stack([everyone, *dropped, *(dropped + np.eye(1, n + 1, n))])


def distances(case, records, weights):
  """How far dropping, and how far replacing each record by the last moves the release, in units of
  the noise.
  """
  state, rows = query_cases.contributions(case, records, jnp.asarray(weights, jnp.float32))
  members = neighbours(len(weights) - 1)
  released = query_cases.releases(
    case, state, jax.tree.map(lambda x: np.tensordot(members, x, 1), rows)
  )
  moved = np.linalg.norm(released[1:] - released[0], axis=1)
  return np.split(moved, 2)


def assert_bounded(case, records, weights):
  dropped, replaced = distances(case, records, weights)
  rounding = 1 + 1e-4  # float32 sums, and the float32 noise that cancels
  assert np.all(dropped <= np.sqrt(case.cost) * rounding)
  assert np.all(replaced <= np.sqrt(case.replace_cost) * rounding)


@pytest.mark.slow
@settings(hypothesis, max_examples=40)
@given(case=query_cases.random_cases(), sample=samples)
def test_queries_nested_at_random_move_by_at_most_their_bound(case, sample):
  rows, weights = zip(*sample, strict=True)
  assert_bounded(case, stacked(rows), weights)


@pytest.mark.sweep
@every_case
@settings(hypothesis, max_examples=8)
@given(sample=samples)
def test_every_kind_of_query_moves_by_at_most_its_bound(case, sample):
  rows, weights = zip(*sample, strict=True)
  assert_bounded(case, stacked(rows), weights)


# Records that are just not clipped where the query counts that: then the count moves together with
# the sum.
UNCLIPPED = {"adaptive": np.full(6, 1.49 / np.sqrt(6)), "nested": [1e3, 1e3, 1e3, 1.49, 1e3, 1e3]}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bounds_are_attained_and_kept(name):
  """Two records pull every group one way, one pulls the other way, and one more replaces it."""
  case, large, ratios = EXAMPLES[name], np.full(6, 1e3), []
  rows = [large, large, np.multiply(UNCLIPPED.get(name, large), -1), large]
  # total weight without the one: 0.75, and the least
  for weights in ([0.25, 0.5, 1.0, 1.0], [0.75, 1.0, 1.0, 1.0]):
    dropped, replaced = distances(case, stacked(rows), weights)
    ratios.append((dropped.max() / np.sqrt(case.cost), replaced.max() / np.sqrt(case.replace_cost)))
  assert np.all(np.max(ratios, axis=0) > 0.99)
  assert np.all(np.max(ratios, axis=0) < 1 + 1e-4)


@pytest.mark.slow
@every_case
def test_padding_changes_no_bit_whatever_it_holds(case):
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(4, 6))
  padding = np.array([[np.nan] * 6, [np.inf] * 6, [3e38] * 6, [1.0] * 6])
  _, parts = query_cases.contributions(
    case, stacked([*rows, *padding]), jnp.array([1.0, 0.5, 1, 1, 0, 0, np.nan, -1])
  )
  for leaf in jax.tree.leaves(parts):
    assert not np.any(leaf[4:])
    assert np.any(leaf[:4])


def zero_total(case, shapes):
  """The sum over an empty sample."""
  state = case.query.init(shapes)
  total = jax.eval_shape(case.query.preprocess, jax.random.key(0), state, shapes, jnp.float32(0))
  return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), total)


LARGE = query_cases.record(lambda leaf: jax.ShapeDtypeStruct((90_000,), jnp.float32))


@pytest.mark.parametrize("name", EXAMPLES)
def test_noise_of_an_empty_sample_has_exactly_the_stated_stddev_on_every_leaf(name, key):
  case = query_cases.examples(LARGE)[name]
  state, total = zero_total(case, LARGE)
  result, _, _ = case.query.finalize(key, state, total)
  for leaf, stddev in zip(jax.tree.leaves(result), query_cases.leaf_stddevs(case), strict=True):
    statistical.assert_normal_stddev(leaf, stddev, catches=0.02)
    statistical.assert_mean(leaf, 0.0, stddev=stddev, catches=0.03 * stddev)
    for factor in (0.98, 1.02):
      with pytest.raises(AssertionError, match="times the expected"):
        statistical.assert_normal_stddev(factor * leaf, stddev, catches=0.02)


def test_noise_of_the_adaptive_count_has_exactly_the_stated_stddev(key):
  case = EXAMPLES["adaptive"]
  state, total = zero_total(case, SHAPES)
  finalize = jax.jit(jax.vmap(lambda k: case.query.finalize(k, state, total)[2].clip_norm))
  # share 1/2 = quantile: no drift
  steps = np.log(np.float64(finalize(jax.random.split(key, 90_000))) / 1.5)
  statistical.assert_normal_stddev(steps, case.clip_stddevs[0], catches=0.02)


@every_case
def test_groups_leaves_and_rounds_never_share_noise(case, key):
  shapes = query_cases.record(lambda leaf: jax.ShapeDtypeStruct((20_000,), jnp.float32))
  state, total = zero_total(case, shapes)
  columns = []
  for round_key in jax.random.split(key):
    result, _, state = case.query.finalize(round_key, state, total)
    columns += [np.asarray(x) / np.std(x) for x in jax.tree.leaves(result)]
  statistical.assert_uncorrelated(np.stack(columns, axis=1), catches=0.07)


def count(event):
  """The number of independent noise draws that an event states."""
  return sum(map(count, event.parts)) if isinstance(event, GroupedSums) else 1


def cost(event):
  """sum_g (S_g / sigma_g)^2 under add/remove."""
  match event:
    case GroupedSums(parts=parts):
      return sum(map(cost, parts))
    case GaussianSum(clip_norm=clip, stddev=stddev):
      return float(clip / stddev) ** 2
    case WeightedAverage(clip_norm=clip, stddev=stddev, min_total_weight=least):
      return float(2 * clip / (least + 1) / stddev) ** 2


@pytest.mark.sweep
@every_case
def test_the_event_says_what_was_worked_out_by_hand(case, key):
  state, total = zero_total(case, SHAPES)
  _, event, _ = case.query.finalize(jax.random.clone(key), state, total)
  np.testing.assert_allclose(cost(event), case.cost, rtol=1e-6)
  _, jitted, _ = jax.jit(case.query.finalize)(key, state, total)
  (stored,) = unstack(Round(PoissonSampling(0.1), jitted))
  np.testing.assert_allclose(cost(stored.query), case.cost, rtol=1e-6)


def epsilon(event):
  return accounting.epsilon(
    ledger.Ledger().append(Round(PoissonSampling(0.1), event), count=20), 1e-5
  )


@every_case
def test_the_accountant_composes_the_parts_to_the_cost_worked_out_by_hand(case, key):
  state, total = zero_total(case, SHAPES)
  _, event, _ = case.query.finalize(key, state, total)
  assert epsilon(event) == pytest.approx(epsilon(GaussianSum(1.0, case.cost**-0.5)), rel=1e-5)


@pytest.mark.parametrize(
  "query",
  [
    queries.gaussian_sum(1.0, 0.0),
    queries.joint_clipped_sum(2.0, 1.0, 0.0),
    queries.weighted_average(1.0, 0.0, min_total_weight=2.0),
    queries.adaptive_clipped_sum(0.0, 100.0),
    queries.per_layer(SHAPES, 1.0, 0.0),
    queries.grouped(
      {"x": queries.gaussian_sum(1.0, 0.0), "y": queries.gaussian_sum(1.0, 9.0)},
      {"a": "x", "b": "y"},
    ),
    queries.grouped(
      {"x": queries.no_privacy(), "y": queries.gaussian_sum(1.0, 9.0)}, {"a": "x", "b": "y"}
    ),
  ],
)
def test_without_noise_in_any_part_epsilon_is_infinite(query, key):
  state, total = zero_total(query_cases.Case(query, {}, (), 0, 0), SHAPES)
  _, event, _ = query.finalize(key, state, total)
  assert epsilon(event) == np.inf


@every_case
def test_all_leaves_have_noise_and_no_key_comes_twice(case, key, noise_draws):
  state, total = zero_total(case, SHAPES)
  one, other = (case.query.finalize(jax.random.clone(key), state, total) for _ in range(2))
  jax.tree.map(np.testing.assert_array_equal, one[0], other[0])  # a function of its key
  noise_draws.clear()
  for round_key in jax.random.split(key, 3):
    _, _, state = case.query.finalize(round_key, state, total)
  arrays = sum(count for _, count in noise_draws)
  assert arrays == 3 * (len(query_cases.LEAVES) + len(case.clip_stddevs))
  assert len({key for key, _ in noise_draws}) == len(noise_draws)


def test_as_many_events_as_noise_draws(key, noise_draws):
  """With one vector in each group, and one more draw for each adaptive query's count."""
  parts = {leaf: query_cases.gaussian([leaf]) for leaf in ("a", "v")} | {
    "w": query_cases.adaptive(["w"])
  }
  case = query_cases.grouped(parts)
  state, total = zero_total(case, SHAPES)
  _, event, _ = case.query.finalize(key, state, total)
  assert count(event) == len(noise_draws) == 4
