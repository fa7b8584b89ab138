"""A record moves a sum by at most its bound, and the noise is what the event says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdp.events import GaussianSum, NonPrivate, PoissonSampling, Round, WeightedAverage
from jdp.events.base import NO_NUMBER
from jdp.ledger.unstacking import unstack
from jdp.queries import average, gaussian_sum, no_privacy, registry, weighted_average
from jdp.queries.base import unbounded

S = 1.5
ADVERSARIAL = [np.nan, np.inf, -np.inf, 3e38, -1e30, 1.0, 1e-30, 0.0]
QUERIES = {
  "sum": lambda: gaussian_sum(S, 2.0),
  "average": lambda: average(gaussian_sum(S, 2.0), 8.0),
  "schedules": lambda: gaussian_sum(
    lambda step: S / (1 + step.astype(jnp.float32)), lambda step: jnp.float32(2.0)
  ),
  "no privacy": no_privacy,
}
every_query = pytest.mark.parametrize("query", [make() for make in QUERIES.values()], ids=QUERIES)
private_query = pytest.mark.parametrize(
  "query", [make() for name, make in QUERIES.items() if name != "no privacy"], ids=lambda q: ""
)
records = st.lists(st.sampled_from(ADVERSARIAL), min_size=4, max_size=4)
weights = st.sampled_from([0.0, -1.0, np.nan, 0.5, 1.0, 7.0, 3e38, np.inf, -np.inf])
hypothesis = settings(max_examples=80, derandomize=True, deadline=None, database=None)


def tree(entries):
  """Four numbers as a record of two leaves."""
  x = np.asarray(entries, np.float32)
  return x[None, :3], x[3]


def contribution(query, entries, weight):
  """The contribution of a record in the first round, flat, in float64."""
  state = query.init(tree(np.zeros(4)))
  parts = query.preprocess(jax.random.key(0), state, tree(entries), jnp.float32(weight))
  return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(parts)])


@pytest.mark.slow
@private_query
@hypothesis
@given(first=records, second=records, weight=weights, other_weight=weights)
def test_any_record_moves_the_sum_by_at_most_its_bound(query, first, second, weight, other_weight):
  one, two = contribution(query, first, weight), contribution(query, second, other_weight)
  assert np.linalg.norm(one) <= S  # added, removed or zeroed out
  assert np.linalg.norm(one - two) <= 2 * S  # replaced


@pytest.mark.sweep
@every_query
@pytest.mark.parametrize("weight", [0.0, np.nan, -1.0, -np.inf])
@pytest.mark.parametrize("entry", ADVERSARIAL)
def test_padding_contributes_exactly_zero_whatever_it_holds(query, entry, weight):
  assert not np.any(contribution(query, [entry, 1.0, -1.0, entry], weight))


@pytest.mark.sweep
@pytest.mark.parametrize("name", registry.registered())
def test_a_query_sends_the_same_of_a_record_and_of_what_it_clips_it_to(key, name):
  """So local training that stays within `clip` sends what it has trained."""
  entry = registry.registered()[name]
  query, record = entry.make(), jax.tree.map(jnp.asarray, entry.victim)
  state = query.public(query.init(record))

  def sent(record):
    return query.preprocess(jax.random.clone(key), state, record, jnp.float32(1))

  clipped = query.clip(state, record)
  changed = any(jax.tree.leaves(jax.tree.map(lambda x, y: bool(jnp.any(x != y)), clipped, record)))
  assert changed == (query.clip is not unbounded)
  found, expected = sent(clipped), sent(record)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, expected)


@every_query
def test_weight_scales_and_stops_at_one(query):
  record = [3.0, -4.0, 0.0, 12.0]
  full = contribution(query, record, 1.0)
  np.testing.assert_allclose(contribution(query, record, 0.25), full / 4, rtol=1e-6)
  for weight in (1.5, 3e38, np.inf):
    np.testing.assert_array_equal(contribution(query, record, weight), full)


def test_sum_clips_to_its_bound_and_no_privacy_does_not():
  record = [3.0, -4.0, 0.0, 12.0]
  np.testing.assert_allclose(
    contribution(gaussian_sum(S, 0.0), record, 1.0), np.array(record) * S / 13, rtol=4e-6
  )
  np.testing.assert_array_equal(contribution(gaussian_sum(13.1, 0.0), record, 1.0), record)
  np.testing.assert_array_equal(contribution(no_privacy(), record, 1.0), record)


def test_the_denominator_does_not_move_with_the_cohort():
  query = average(gaussian_sum(S, 0.0), 4.0)
  state = query.init(tree(np.zeros(4)))
  parts = [
    query.preprocess(jax.random.key(0), state, tree([1.0, 0, 0, 0]), jnp.float32(1))
    for _ in range(3)
  ]
  for cohort in (parts, parts[:2], parts[:1]):
    total = jax.tree.map(lambda *x: sum(x), *cohort)
    result, _, _ = query.finalize(jax.random.key(0), state, total)
    assert result[0].tolist() == [[len(cohort) / 4, 0, 0]]


@pytest.mark.parametrize(
  ("query", "stated"), [(gaussian_sum(S, 0.0), GaussianSum(S, 0.0)), (no_privacy(), NonPrivate())]
)
def test_without_noise_the_result_is_the_sum_and_the_event_says_so(query, stated, key):
  total = {"w": jnp.array([1.0, -2.0]), "b": jnp.float32(0.1)}
  result, event, state = query.finalize(key, query.init(total), total)
  assert jax.tree.map(lambda x: x.tolist(), result) == jax.tree.map(lambda x: x.tolist(), total)
  assert (event, int(state.step)) == (stated, 1)


@pytest.mark.parametrize(
  ("make", "kind", "options"),
  [
    (gaussian_sum, GaussianSum, {}),
    (weighted_average, WeightedAverage, {"min_total_weight": 1.0}),
  ],
)
def test_schedules_are_followed_and_the_event_says_what_was_done_in_that_round(
  key, make, kind, options
):
  clips, stddevs = jnp.array([4.0, 2.0, 1.0]), jnp.array([0.0, 0.5, 8.0])
  query = make(lambda step: clips[step], lambda step: stddevs[step], **options)
  record = jnp.array([3.0, 4.0])

  def one_round(state, key):
    part = query.preprocess(key, state, record, jnp.float32(1))
    _, event, state = query.finalize(key, state, part)
    return state, (jnp.linalg.norm(getattr(part, "vector", part)), event)

  state, (norms, events) = jax.lax.scan(one_round, query.init(record), jax.random.split(key, 3))
  np.testing.assert_allclose(norms, clips, rtol=4e-6)
  levels = zip(clips.tolist(), stddevs.tolist(), strict=True)
  rounds = [event.query for event in unstack(Round(PoissonSampling(0.1), events))]
  assert rounds == [kind(clip, stddev, **options) for clip, stddev in levels]
  assert int(state.step) == 3


@pytest.mark.parametrize("clip", [np.nan, 0.0, -1.0])
def test_a_schedule_that_gives_no_bound_lets_nothing_through(clip):
  assert not np.any(
    contribution(gaussian_sum(lambda step: jnp.float32(clip), 1.0), [1.0, 2.0, 3.0, 4.0], 1.0)
  )


@every_query
def test_the_event_of_constants_is_exact_through_jit(query, key):
  total = jnp.zeros(3)
  event = jax.jit(lambda k, s: query.finalize(k, s, total)[1])(key, query.init(total))
  (event,) = unstack(event)
  assert event in (GaussianSum(S, 2.0), NonPrivate())


def test_constants_stay_float64_in_the_event(key):
  total, query = jnp.zeros(3), gaussian_sum(1 / 3, 0.1)
  event = jax.jit(query.finalize)(key, query.init(total), total)[1]
  assert jax.tree.leaves(event) == [NO_NUMBER]
  assert event == GaussianSum(1 / 3, 0.1)


@every_query
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_counts_as_zero(query, poison):
  assert not np.any(contribution(query, [1.0, poison, 1.0, 1.0], 1.0))


@pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf, "1", None])
@pytest.mark.parametrize(
  ("make", "name"),
  [
    (lambda x: gaussian_sum(x, 1.0), "clip_norm"),
    (lambda x: gaussian_sum(1.0, x), "stddev"),
    (lambda x: average(no_privacy(), x), "denominator"),
  ],
  ids=["clip_norm", "stddev", "denominator"],
)
def test_bad_arguments_are_refused_by_name(make, name, bad):
  with pytest.raises(ValueError, match=f"Expected {name} to be a"):
    make(bad)


@pytest.mark.parametrize("beyond", [1e-31, 1e31, 1e-320])
@pytest.mark.parametrize("name", ["clip_norm", "stddev"])
def test_numbers_that_float32_would_flush_are_refused(name, beyond):
  with pytest.raises(ValueError, match=f"Expected {name} to be a number in"):
    gaussian_sum(**({"clip_norm": 1.0, "stddev": 1.0} | {name: beyond}))
